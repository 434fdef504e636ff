/* heddle inspect: what a checkpoint is, what it holds, and what W workers need for it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/opts.h"
#include "client/text.h"
#include "client/verify.h"
#include "shm/cpus.h"
#include "worker/ckpt/memory.h"
#include "worker/ckpt/plan.h"
#include "worker/scratch.h"
#include "worker/slots.h"

/* Parameters a tensor holds; tables of ids are none. */
static uint64_t params(const struct ckpt_entry *e)
{
	return tensor_row(e->kind)->types == TENSOR_TYPES_INT ? 0 : e->shape.rows * e->shape.cols;
}

static void show_head(const struct ckpt *ck)
{
	const struct model_config *c = &ck->cfg;
	uint64_t n = 0, bytes = 0;
	char a[TEXT_SHORT], b[TEXT_SHORT];
	struct text_table t;

	for (size_t i = 0; i < ck->entry_n; i++) {
		n += params(&ck->entries[i]);
		bytes += ckpt_entry_bytes(&ck->entries[i]);
	}
	printf("%s\n  DeepSeek V4, %u layers, %s parameters, %s in %zu file%s\n\n", ck->dir,
		c->layers, text_count(n, a), text_bytes(bytes, b), ck->file_n,
		ck->file_n == 1 ? "" : "s");
	text_table_init(&t, 2, 0);
#define ROW(name, ...)                                                                             \
	do {                                                                                       \
		text_table_add(&t, "%s", name);                                                    \
		text_table_add(&t, __VA_ARGS__);                                                   \
	} while (0)
	ROW("hidden", "%u, %d residual streams", c->hidden, MODEL_HC_MULT);
	ROW("attention", "%u heads of %d (%d rotate), query rank %u, output %u groups of rank %u",
		c->heads, MODEL_HEAD_DIM, MODEL_ROPE_DIM, c->q_lora, c->o_groups, c->o_lora);
	ROW("window", "%u tokens", c->window);
	ROW("indexer", "%u heads of %d, top %u", c->index_heads, MODEL_INDEX_DIM, c->index_topk);
	ROW("experts", "%u of width %u, %u a token, and a shared one", c->experts, c->inter,
		c->experts_per_token);
	ROW("vocabulary", "%u", c->vocab);
	ROW("context", "%s tokens", text_count(c->max_position, a));
	if (c->yarn)
		ROW("rope", "base %g; compressed layers %g with YaRN x%g from %u", c->rope_theta,
			c->compress_rope_theta, c->yarn_factor, c->yarn_original);
	else
		ROW("rope", "base %g; compressed layers %g", c->rope_theta, c->compress_rope_theta);
	if (ck->extra_n)
		ROW("not used", "%zu tensors, %s", ck->extra_n, text_bytes(ck->extra_bytes, a));
#undef ROW
	(void)!text_table_print(&t, stdout, 2);
}

static bool same_layer(const struct model_config *c, uint32_t a, uint32_t b)
{
	return c->layer[a] == c->layer[b] && (a < c->hash_layers) == (b < c->hash_layers);
}

/* Runs of equal layers. */
static void show_layers(const struct model_config *c)
{
	static const char *const what[] = {
		"window only", "compressed by 4, chosen by the indexer", "compressed by 128"};
	struct text_table t;

	puts("\nlayers");
	text_table_init(&t, 4, 0);
	for (uint32_t i = 0, next; i < c->layers; i = next) {
		for (next = i + 1; next < c->layers && same_layer(c, i, next);)
			next++;
		if (next == i + 1)
			text_table_add(&t, "%u", i);
		else
			text_table_add(&t, "%u-%u", i, next - 1);
		text_table_add(&t, "%s", model_layer_name(c->layer[i]));
		text_table_add(&t, "%s", what[c->layer[i]]);
		text_table_add(&t, "%s routing", i < c->hash_layers ? "hash" : "scored");
	}
	(void)!text_table_print(&t, stdout, 2);
}

/* Tensors of one kind that look alike, over layers and experts. */
struct group {
	const struct ckpt_entry *first;
	size_t n;
	uint64_t bytes;
};

static bool same_group(const struct ckpt_entry *a, const struct ckpt_entry *b)
{
	return a->kind == b->kind && a->shape.rows == b->shape.rows &&
	       a->shape.cols == b->shape.cols && a->elem == b->elem && a->scale == b->scale;
}

static const char *type_text(const struct ckpt_entry *e, char out[TEXT_SHORT])
{
	static const char *const scale[] = {"", " + E8M0", " + F32"};

	snprintf(out, TEXT_SHORT, "%s%s", ckpt_elem_name(e->elem), scale[e->scale]);
	return out;
}

static void add_group_row(struct text_table *t, const struct group *g)
{
	const struct tensor_row *row = tensor_row(g->first->kind);
	char a[TEXT_SHORT];

	text_table_add(t, "%s%s",
		row->scope == TENSOR_IN_EXPERT  ? "layers.N.ffn.experts.E."
		: row->scope == TENSOR_IN_MODEL ? ""
						: "layers.N.",
		row->name);
	if (row->ndim == 1)
		text_table_add(t, "%" PRIu64, g->first->shape.rows);
	else
		text_table_add(
			t, "%" PRIu64 " x %" PRIu64, g->first->shape.rows, g->first->shape.cols);
	text_table_add(t, "%s", type_text(g->first, a));
	text_table_add(t, "%zu", g->n);
	text_table_add(t, "%s", text_bytes(g->bytes, a));
}

static int show_tensors(const struct ckpt *ck)
{
	enum { GROUPS_MAX = TENSOR__COUNT * 16 };
	struct group *groups = calloc(GROUPS_MAX, sizeof(*groups));
	struct text_table t;
	size_t n = 0;

	if (!groups)
		return -ENOMEM;
	for (size_t i = 0; i < ck->entry_n; i++) {
		const struct ckpt_entry *e = &ck->entries[i];
		size_t g = 0;

		while (g < n && !same_group(groups[g].first, e))
			g++;
		if (g == GROUPS_MAX) /* more kinds of types than there can be, nearly */
			continue;
		if (g == n)
			groups[n++].first = e;
		groups[g].n++;
		groups[g].bytes += ckpt_entry_bytes(e);
	}
	puts("\ntensors");
	text_table_init(&t, 5, 1 << 3 | 1 << 4);
	for (size_t g = 0; g < n; g++)
		add_group_row(&t, &groups[g]);
	free(groups);
	return text_table_print(&t, stdout, 2);
}

static void show_types(const struct ckpt *ck)
{
	uint64_t bytes[CKPT_ELEM__COUNT] = {0}, scales = 0, n[CKPT_ELEM__COUNT] = {0};
	char a[TEXT_SHORT];
	struct text_table t;

	for (size_t i = 0; i < ck->entry_n; i++) {
		n[ck->entries[i].elem]++;
		bytes[ck->entries[i].elem] += ck->entries[i].data.bytes;
		scales += ck->entries[i].scales.bytes;
	}
	puts("\ntypes");
	text_table_init(&t, 3, 1 << 1 | 1 << 2);
	for (int e = 0; e < CKPT_ELEM__COUNT; e++) {
		if (!n[e])
			continue;
		text_table_add(&t, "%s", ckpt_elem_name((enum ckpt_elem)e));
		text_table_add(&t, "%s tensors", text_count(n[e], a));
		text_table_add(&t, "%s", text_bytes(bytes[e], a));
	}
	if (scales) {
		text_table_add(&t, "scales");
		text_table_add(&t, "%s", "");
		text_table_add(&t, "%s", text_bytes(scales, a));
	}
	(void)!text_table_print(&t, stdout, 2);
}

static int show_files(const struct ckpt *ck, bool verify, struct errbuf *err)
{
	char a[TEXT_SHORT], hash[VERIFY_HEX] = "";
	struct text_table t;
	int ret = 0;

	puts(verify ? "\nfiles (with SHA-256)" : "\nfiles");
	text_table_init(&t, verify ? 3 : 2, 1 << 1);
	for (size_t i = 0; i < ck->file_n && ret == 0; i++) {
		if (verify)
			ret = verify_hash(ck, i, hash, err);
		text_table_add(&t, "%s", ck->files[i].name);
		text_table_add(&t, "%s", text_bytes(ck->files[i].bytes, a));
		if (verify)
			text_table_add(&t, "%s", hash);
	}
	(void)!text_table_print(&t, stdout, 2);
	return ret;
}

/* ---- --verify -------------------------------------------------------------------------------- */

static void add_stats_row(struct text_table *t, const char *name, const struct verify_stats *s)
{
	text_table_add(t, "%s", name);
	if (s->min <= s->max) {
		text_table_add(t, "%.6g", s->min);
		text_table_add(t, "%.6g", s->max);
	} else {
		text_table_add(t, "-");
		text_table_add(t, "-");
	}
	text_table_add(t, "%" PRIu64, s->nan);
	text_table_add(t, "%" PRIu64, s->inf);
	text_table_add(t, "%" PRIu64, s->bad);
}

/* Experts of a layer and kind share a row unless all are wanted. */
static bool joins(const struct ckpt_entry *e, const struct ckpt_entry *next)
{
	return next && e->expert >= 0 && next->kind == e->kind && next->layer == e->layer;
}

/* What is wrong in the contents, as bits. */
enum { WRONG_NUMBERS = 1, WRONG_IDS = 2 };

/* Returns such bits, or an error. */
static int show_values(const struct ckpt *ck, bool all, struct errbuf *err)
{
	struct verify_stats sum = {0}, one;
	bool begun = false, tty = isatty(STDERR_FILENO);
	struct text_table t;
	int ret = 0, wrong = 0;

	text_table_init(&t, 6, 0x3e);
	text_table_add(&t, "tensor");
	text_table_add(&t, "min");
	text_table_add(&t, "max");
	text_table_add(&t, "NaN");
	text_table_add(&t, "Inf");
	text_table_add(&t, "bad");
	for (size_t i = 0; i < ck->entry_n && ret == 0; i++) {
		const struct ckpt_entry *e = &ck->entries[i];
		char name[TENSOR_NAME_MAX + 16];

		if (tty && i % 64 == 0)
			fprintf(stderr, "\rverifying %zu of %zu tensors", i, ck->entry_n);
		ret = verify_entry(ck, e, &one, err);
		if (ret < 0)
			break;
		if (one.nan + one.inf + one.bad)
			wrong |= e->kind == TENSOR_GATE_TID2EID ? WRONG_IDS : WRONG_NUMBERS;
		if (begun)
			verify_join(&sum, &one);
		else
			sum = one;
		begun = !all && joins(e, i + 1 < ck->entry_n ? e + 1 : NULL);
		if (begun)
			continue;
		tensor_name(e->kind, e->layer, e->expert, name);
		if (!all && e->expert >= 0)
			snprintf(name, sizeof(name), "layers.%d.ffn.experts.*.%s", e->layer,
				tensor_row(e->kind)->name);
		add_stats_row(&t, name, &sum);
	}
	if (tty)
		fputs("\r\x1b[K", stderr);
	puts("\ncontents (bad: scales that are no numbers, rows of expert ids that are not right)");
	(void)!text_table_print(&t, stdout, 2);
	return ret < 0 ? ret : wrong;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int largest_shard(const struct ckpt *ck, uint32_t world, uint64_t *ret_bytes,
	bool *ret_by_id, struct errbuf *err)
{
	uint64_t most = 0;

	for (uint32_t r = 0; r < world; r++) {
		struct plan p;
		int ret = plan_build(ck, r, world, &p, err);

		if (ret < 0)
			return ret;
		most = MAX(most, p.bytes);
		*ret_by_id = p.experts_by_id;
		plan_fini(&p);
	}
	*ret_bytes = most;
	return 0;
}

/* Threads as heddled would take on this machine, if it has as many cores as logical CPUs. */
static uint32_t threads_of(const struct conf *conf, uint32_t world)
{
	struct cpus cpus;

	if (conf->fabric_threads != CONF_AUTO)
		return (uint32_t)conf->fabric_threads;
	return cpus_allowed(&cpus) == 0 ? MAX(cpus_count(&cpus) / world, 1u) : 1;
}

/*
 * Buffers of a step, of the rank that needs the most, and what a worker remembers of sequences. The
 * configuration may be another model's: then there is neither.
 */
static void add_buffers(
	struct text_table *t, const struct ckpt *ck, uint32_t world, const struct conf *conf)
{
	uint32_t threads = threads_of(conf, world);
	struct errbuf err = {"", 0};
	uint64_t most = 0, slots;
	struct shape sh;
	char a[TEXT_SHORT], b[TEXT_SHORT];

	for (uint32_t r = 0; r < world; r++) {
		if (shape_make(&ck->cfg, conf, r, world, &sh, &err) < 0) {
			fprintf(stderr, "heddle: scratch and states are not known: %s\n", err.text);
			return;
		}
		most = MAX(most, scratch_bytes(&sh, threads));
	}
	text_table_add(t, "scratch, %u compute thread%s", threads, threads == 1 ? "" : "s");
	text_table_add(t, "%s", text_bytes(most, a));
	slots = slots_bytes(&sh, sh.context); /* the same in all ranks */
	text_table_add(t, "states of %s sequence%s (schedule.max_sequences)",
		text_count(sh.sequences, a), sh.sequences == 1 ? "" : "s");
	text_table_add(t, "%s", text_bytes(slots, a));
	text_table_add(t, "  of each, for up to %s tokens", text_count(sh.context, b));
	text_table_add(t, "%s", text_bytes(slots / sh.sequences, a));
}

static void add_sequence(struct text_table *t, const struct memory_plan *m,
	const struct model_config *c, uint64_t tokens)
{
	char a[TEXT_SHORT];

	text_table_add(t, "pages of a sequence of %s tokens", text_count(tokens, a));
	text_table_add(t, "%s", text_bytes(memory_sequence_bytes(m, c, tokens), a));
}

static int show_memory(
	const struct ckpt *ck, uint32_t world, const struct conf *conf, struct errbuf *err)
{
	static const char *const classes[] = {
		"raw KV", "CSA entries and index keys", "HCA entries"};
	struct memory_plan m = memory_plan(&ck->cfg, (enum conf_kv)conf->attention_kv,
		(enum conf_index_key)conf->attention_index_key);
	uint64_t weights, per_1k = 0;
	struct text_table t;
	char a[TEXT_SHORT];
	bool by_id = false;
	int ret = largest_shard(ck, world, &weights, &by_id, err);

	if (ret < 0)
		return ret;
	printf("\nmemory of each of %u worker%s\n", world, world == 1 ? "" : "s");
	text_table_init(&t, 2, 1 << 1);
	text_table_add(&t, "weights as stored%s",
		world == 1 ? ""
		: by_id    ? " (experts by id)"
			   : " (experts by width)");
	text_table_add(&t, "%s", text_bytes(weights, a));
	add_buffers(&t, ck, world, conf);
	for (int c = 0; c < MEMORY_CLASS__COUNT; c++) {
		if (!m.page[c].tokens)
			continue;
		text_table_add(&t, "a page of %u tokens: %s", m.page[c].tokens, classes[c]);
		text_table_add(&t, "%s", text_bytes(m.page[c].bytes, a));
		if (c != MEMORY_RAW)
			per_1k += m.page[c].bytes * 1024 / m.page[c].tokens;
	}
	text_table_add(&t, "pages of each further 1,024 tokens");
	text_table_add(&t, "%s", text_bytes(per_1k, a));
	add_sequence(&t, &m, &ck->cfg, 1024);
	add_sequence(&t, &m, &ck->cfg, 32768);
	add_sequence(&t, &m, &ck->cfg, ck->cfg.max_position);
	return text_table_print(&t, stdout, 2);
}

/* ---- the command ---------------------------------------------------------------------------- */

struct want {
	bool verify, all;
	int64_t workers;
	const char *file;
	struct opt_list sets;
};

static int inspect(const char *dir, const struct want *w, const struct conf *conf)
{
	struct errbuf err = {"", 0};
	struct ckpt *ck;
	int ret, bad = 0;

	if (ckpt_open(dir, &ck, &err) < 0)
		return client_fail(&err);
	show_head(ck);
	show_layers(&ck->cfg);
	ret = show_tensors(ck);
	show_types(ck);
	if (ret == 0)
		ret = show_files(ck, w->verify, &err);
	if (ret == 0 && w->verify)
		ret = bad = show_values(ck, w->all, &err);
	if (ret >= 0)
		ret = show_memory(ck, (uint32_t)w->workers, conf, &err);
	if (ret == -ENOMEM && !err.text[0])
		err_set(&err, ret, EXIT_OS_ERR, "no memory for the tables");
	ckpt_close(ck);
	if (ret < 0)
		return client_fail(&err);
	if (bad)
		return client_fail_with(EXIT_DATA_ERR,
			"%s: some tensors hold %s%s%s; see the counts above", dir,
			bad & WRONG_NUMBERS ? "what is no number" : "",
			bad == (WRONG_NUMBERS | WRONG_IDS) ? ", and " : "",
			bad & WRONG_IDS ? "ids of experts that are not there, or one twice" : "");
	return 0;
}

int cmd_inspect(const struct client *client, const struct client_cmd *self, int argc, char **argv)
{
	struct want w = {.workers = 1};
	const struct opt table[] = {
		{"verify", 0, NULL, OPT_FLAG, &w.verify, 0, 0,
			"read everything: hashes, and each tensor's range, NaN and Inf"},
		{"all", 'a', NULL, OPT_FLAG, &w.all, 0, 0, "with --verify: every expert in a row"},
		{"workers", 'w', "W", OPT_INT, &w.workers, 1, MODEL_WORLD_MAX,
			"plan the memory of W workers"},
		{"config", 'c', "FILE", OPT_STR, &w.file, 0, 0,
			"formats from this file instead of " HEDDLE_INI},
		{"set", 's', "SECTION.KEY=VALUE", OPT_LIST, &w.sets, 0, 0,
			"such as attention.index_key=fp8; repeatable"},
	};
	struct errbuf err = {"", 0};
	struct conf_set set;
	int rest, ret = opts_parse(self, table, ARRAY_LEN(table), argc, argv, &rest);

	(void)client;
	if (ret != 0)
		return ret < 0 ? EXIT_USAGE_ERR : 0;
	if (rest + 1 != argc)
		return client_fail_with(
			EXIT_USAGE_ERR, "inspect: the directory of one checkpoint is needed");
	ret = client_conf(w.file, &set, &err);
	if (ret < 0)
		return client_fail(&err);
	for (size_t i = 0; i < w.sets.n && ret == 0; i++)
		ret = conf_override(&set, w.sets.items[i], &err);
	ret = ret < 0 ? client_fail(&err) : inspect(argv[rest], &w, &set.conf);
	conf_fini(&set);
	return ret;
}
