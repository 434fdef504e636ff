#include "tests/unit/ckpt_fixture.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "worker/ckpt/ckpt.h"

enum { LAYERS = 4, Q_LORA = 40, INDEX_HEADS = 3 };
static const uint32_t ratios[LAYERS] = {0, 4, 128, 4};

uint64_t fix_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

uint64_t fix_seed(void)
{
	static uint64_t seed;
	const char *env = getenv("HEDDLE_TEST_SEED");

	if (!seed) {
		seed = env ? strtoull(env, NULL, 0)
			   : ((uint64_t)time(NULL) << 20 ^ (uint64_t)getpid());
		seed |= 1;
		fprintf(stderr, "HEDDLE_TEST_SEED=%llu\n", (unsigned long long)seed);
	}
	return seed;
}

static struct fix_opts with_defaults(const struct fix_opts *o)
{
	struct fix_opts r = *o;

	r.hidden = r.hidden ? r.hidden : 160;
	r.heads = r.heads ? r.heads : 8;
	r.groups = r.groups ? r.groups : 8;
	r.o_lora = r.o_lora ? r.o_lora : 24;
	r.experts = r.experts ? r.experts : 8;
	r.inter = r.inter ? r.inter : 192;
	r.vocab = r.vocab ? r.vocab : 72;
	r.seed = r.seed ? r.seed : fix_seed();
	return r;
}

json_t *fix_config(const struct fix_opts *opts)
{
	struct fix_opts o = with_defaults(opts);
	json_t *c = json_pack(
		"{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}",
		"model_type", "deepseek_v4", "hidden_size", o.hidden, "num_hidden_layers", LAYERS,
		"num_attention_heads", o.heads, "q_lora_rank", Q_LORA, "o_groups", o.groups,
		"o_lora_rank", o.o_lora, "sliding_window", 128, "index_n_heads", INDEX_HEADS,
		"index_topk", 16, "hc_sinkhorn_iters", 20, "n_routed_experts", o.experts,
		"num_experts_per_tok", 2, "moe_intermediate_size", o.inter, "num_hash_layers", 2,
		"vocab_size", o.vocab);
	json_t *more = json_pack("{s:i, s:f, s:f, s:f, s:f, s:i, s:i, s:s, s:i, s:i, s:i, s:i, s:i,"
				 " s:[i,i,i,i,i], s:i, s:i}",
		"max_position_embeddings", 65536, "hc_eps", 1e-6, "rms_norm_eps", 1e-6,
		"routed_scaling_factor", 1.5, "swiglu_limit", 10.0, "rope_theta", 10000,
		"compress_rope_theta", 160000, "scoring_func", "sqrtsoftplus", "head_dim", 512,
		"qk_rope_head_dim", 64, "index_head_dim", 128, "hc_mult", 4, "n_shared_experts", 1,
		"compress_ratios", 0, 4, 128, 4, 0, "bos_token_id", 0, "eos_token_id", 1);

	assert_non_null(c);
	assert_non_null(more);
	json_object_update(c, more);
	json_decref(more);
	json_object_set_new(c, "rope_scaling",
		json_pack("{s:s, s:i, s:i, s:i, s:i}", "type", "yarn", "factor", 16,
			"original_max_position_embeddings", 65536, "beta_fast", 32, "beta_slow",
			1));
	if (o.quantised) {
		json_object_set_new(c, "quantization_config",
			json_pack("{s:s, s:s, s:s, s:[i,i]}", "quant_method", "fp8", "fmt", "e4m3",
				"scale_fmt", "ue8m0", "weight_block_size", 128, 128));
		json_object_set_new(c, "expert_dtype", json_string("fp4"));
	}
	return c;
}

static uint64_t dtype_bytes(const char *dtype)
{
	if (!strcmp(dtype, "I64"))
		return 8;
	if (!strcmp(dtype, "F32") || !strcmp(dtype, "I32"))
		return 4;
	return !strcmp(dtype, "BF16") || !strcmp(dtype, "F16") ? 2 : 1;
}

struct fix_tensor *fix_add(struct fix_model *m, const char *name, const char *dtype, uint32_t ndim,
	const uint64_t *shape)
{
	struct fix_tensor *t;

	if (m->n == m->cap) {
		m->cap = m->cap ? m->cap * 2 : 64;
		m->tensors = realloc(m->tensors, m->cap * sizeof(*m->tensors));
		assert_non_null(m->tensors);
	}
	t = &m->tensors[m->n++];
	memset(t, 0, sizeof(*t));
	snprintf(t->name, sizeof(t->name), "%s", name);
	t->dtype = dtype;
	t->ndim = ndim;
	t->bytes = dtype_bytes(dtype);
	for (uint32_t i = 0; i < ndim; i++) {
		t->shape[i] = shape[i];
		t->bytes *= shape[i];
	}
	t->data = malloc(t->bytes + 1);
	assert_non_null(t->data);
	for (uint64_t i = 0; i < t->bytes; i++)
		t->data[i] = (uint8_t)(fix_random(&m->rng) >> 32);
	if (!strcmp(dtype, "F8_E8M0"))
		for (uint64_t i = 0; i < t->bytes; i++)
			t->data[i] = (uint8_t)(100 + t->data[i] % 50);
	if (strstr(name, "scale_inv"))
		for (uint64_t i = 0; i < t->bytes / 4; i++) {
			float f = (float)(1 + t->data[4 * i]) / 64;

			memcpy(t->data + 4 * i, &f, 4);
		}
	t->shard = m->shards ? (uint32_t)(fix_random(&m->rng) % m->shards) : 0;
	return t;
}

/* One tensor under the released or transformers' name, with the model's prefix. */
static struct fix_tensor *add(struct fix_model *m, const struct fix_opts *o, const char *released,
	const char *hf, const char *dtype, uint32_t ndim, uint64_t rows, uint64_t cols)
{
	char name[128];
	uint64_t shape[2] = {rows, cols};
	bool prefix = o->hf_names ? strncmp(hf, "lm_head", 7) != 0 : o->prefix;

	snprintf(name, sizeof(name), "%s%s", prefix ? "model." : "", o->hf_names ? hf : released);
	return fix_add(m, name, dtype, ndim, shape);
}

/* A matrix that is FP8 (or FP4) in quantised models, with its scales. */
static void add_linear(struct fix_model *m, const struct fix_opts *o, const char *released,
	const char *hf, bool fp4, uint64_t rows, uint64_t cols)
{
	char scale[128];
	int stem = (int)(strlen(released) - strlen(".weight"));

	if (!o->quantised) {
		add(m, o, released, hf, "BF16", 2, rows, cols);
	} else if (fp4) {
		add(m, o, released, hf, "I8", 2, rows, cols / 2);
		snprintf(scale, sizeof(scale), "%.*s.scale", stem, released);
		add(m, o, scale, "", "F8_E8M0", 2, rows, cols / 32);
	} else {
		add(m, o, released, hf, "F8_E4M3", 2, rows, cols);
		snprintf(scale, sizeof(scale), "%.*s.%s", stem, released,
			o->f32_scales ? "weight_scale_inv" : "scale");
		add(m, o, scale, "", o->f32_scales ? "F32" : "F8_E8M0", 2, (rows + 127) / 128,
			(cols + 127) / 128);
	}
}

/* The names of layer n: released, and transformers'. */
struct names {
	char a[128], b[128];
};
static struct names at(int n, const char *released, const char *hf)
{
	struct names r;

	snprintf(r.a, sizeof(r.a), "layers.%d.%s", n, released);
	snprintf(r.b, sizeof(r.b), "layers.%d.%s", n, hf);
	return r;
}
#define PLAIN(n, rel, hf, dtype, ndim, rows, cols)                                                 \
	do {                                                                                       \
		struct names x_ = at(n, rel, hf);                                                  \
		add(m, o, x_.a, x_.b, dtype, ndim, rows, cols);                                    \
	} while (0)
#define LINEAR(n, rel, hf, rows, cols)                                                             \
	do {                                                                                       \
		struct names x_ = at(n, rel, hf);                                                  \
		add_linear(m, o, x_.a, x_.b, false, rows, cols);                                   \
	} while (0)

static void add_compressor(
	struct fix_model *m, const struct fix_opts *o, int n, bool index, uint64_t dim)
{
	uint64_t c = ratios[n] == 4 ? 2 : 1;
	const char *a = index ? "attn.indexer.compressor." : "attn.compressor.";
	const char *b = index ? "self_attn.compressor.indexer." : "self_attn.compressor.";
	char rel[96], hf[96];
	static const char *const part[4][2] = {{"ape", "position_bias"},
		{"wkv.weight", "kv_proj.weight"}, {"wgate.weight", "gate_proj.weight"},
		{"norm.weight", "kv_norm.weight"}};

	for (int i = 0; i < 4; i++) {
		snprintf(rel, sizeof(rel), "%s%s", a, part[i][0]);
		snprintf(hf, sizeof(hf), "%s%s", b, part[i][1]);
		if (i == 0)
			PLAIN(n, rel, hf, "F32", 2, ratios[n], c * dim);
		else if (i == 3)
			PLAIN(n, rel, hf, "BF16", 1, dim, 0);
		else
			PLAIN(n, rel, hf, "BF16", 2, c * dim, o->hidden);
	}
}

static void add_attention(struct fix_model *m, const struct fix_opts *o, int n)
{
	LINEAR(n, "attn.wq_a.weight", "self_attn.q_a_proj.weight", Q_LORA, o->hidden);
	PLAIN(n, "attn.q_norm.weight", "self_attn.q_a_norm.weight", "BF16", 1, Q_LORA, 0);
	LINEAR(n, "attn.wq_b.weight", "self_attn.q_b_proj.weight", o->heads * 512, Q_LORA);
	LINEAR(n, "attn.wkv.weight", "self_attn.kv_proj.weight", 512, o->hidden);
	PLAIN(n, "attn.kv_norm.weight", "self_attn.kv_norm.weight", "BF16", 1, 512, 0);
	LINEAR(n, "attn.wo_a.weight", "self_attn.o_a_proj.weight", o->groups * o->o_lora,
		o->heads / o->groups * 512);
	LINEAR(n, "attn.wo_b.weight", "self_attn.o_b_proj.weight", o->hidden,
		o->groups * o->o_lora);
	PLAIN(n, "attn.attn_sink", "self_attn.sinks", "F32", 1, o->heads, 0);
	if (ratios[n])
		add_compressor(m, o, n, false, 512);
	if (ratios[n] == 4) {
		LINEAR(n, "attn.indexer.wq_b.weight",
			"self_attn.compressor.indexer.q_b_proj.weight", INDEX_HEADS * 128, Q_LORA);
		PLAIN(n, "attn.indexer.weights_proj.weight",
			"self_attn.compressor.indexer.scorer.weights_proj.weight", "BF16", 2,
			INDEX_HEADS, o->hidden);
		add_compressor(m, o, n, true, 128);
	}
}

static void add_ids(struct fix_model *m, const struct fix_opts *o, int n)
{
	struct names x = at(n, "ffn.gate.tid2eid", "mlp.gate.tid2eid");
	struct fix_tensor *t = add(m, o, x.a, x.b, o->i32_ids ? "I32" : "I64", 2, o->vocab, 2);

	for (uint64_t i = 0; i < 2 * (uint64_t)o->vocab; i++) {
		int64_t id = (int64_t)((i / 2 * 3 + (i & 1)) % o->experts);
		int32_t narrow = (int32_t)id;

		if (o->i32_ids)
			memcpy(t->data + 4 * i, &narrow, 4);
		else
			memcpy(t->data + 8 * i, &id, 8);
	}
}

static void add_experts(struct fix_model *m, const struct fix_opts *o, int n)
{
	char name[128];
	uint64_t pair[3] = {o->experts, 2 * o->inter, o->hidden};
	uint64_t down[3] = {o->experts, o->hidden, o->inter};

	if (o->hf_names) {
		snprintf(name, sizeof(name), "model.layers.%d.mlp.experts.gate_up_proj", n);
		fix_add(m, name, "BF16", 3, pair);
		snprintf(name, sizeof(name), "model.layers.%d.mlp.experts.down_proj", n);
		fix_add(m, name, "BF16", 3, down);
		return;
	}
	for (uint32_t e = 0; e < o->experts; e++) {
		for (int w = 1; w <= 3; w++) {
			snprintf(
				name, sizeof(name), "layers.%d.ffn.experts.%u.w%d.weight", n, e, w);
			add_linear(m, o, name, "", true, w == 2 ? o->hidden : o->inter,
				w == 2 ? o->inter : o->hidden);
		}
	}
}

static void add_layer(struct fix_model *m, const struct fix_opts *o, int n)
{
	PLAIN(n, "attn_norm.weight", "input_layernorm.weight", "BF16", 1, o->hidden, 0);
	PLAIN(n, "ffn_norm.weight", "post_attention_layernorm.weight", "BF16", 1, o->hidden, 0);
	PLAIN(n, "hc_attn_fn", "attn_hc.fn", "F32", 2, 24, 4 * o->hidden);
	PLAIN(n, "hc_attn_base", "attn_hc.base", "F32", 1, 24, 0);
	PLAIN(n, "hc_attn_scale", "attn_hc.scale", "F32", 1, 3, 0);
	PLAIN(n, "hc_ffn_fn", "ffn_hc.fn", "F32", 2, 24, 4 * o->hidden);
	PLAIN(n, "hc_ffn_base", "ffn_hc.base", "F32", 1, 24, 0);
	PLAIN(n, "hc_ffn_scale", "ffn_hc.scale", "F32", 1, 3, 0);
	add_attention(m, o, n);
	PLAIN(n, "ffn.gate.weight", "mlp.gate.weight", "BF16", 2, o->experts, o->hidden);
	if (n < 2)
		add_ids(m, o, n);
	else
		PLAIN(n, "ffn.gate.bias", "mlp.gate.e_score_correction_bias", "F32", 1, o->experts,
			0);
	LINEAR(n, "ffn.shared_experts.w1.weight", "mlp.shared_experts.gate_proj.weight", o->inter,
		o->hidden);
	LINEAR(n, "ffn.shared_experts.w2.weight", "mlp.shared_experts.down_proj.weight", o->hidden,
		o->inter);
	LINEAR(n, "ffn.shared_experts.w3.weight", "mlp.shared_experts.up_proj.weight", o->inter,
		o->hidden);
	add_experts(m, o, n);
}

struct fix_model *fix_new(const struct fix_opts *opts)
{
	struct fix_opts full = with_defaults(opts), *o = &full;
	struct fix_model *m = calloc(1, sizeof(*m));

	assert_non_null(m);
	fix_tempdir(m->dir, sizeof(m->dir));
	m->config = fix_config(o);
	m->shards = o->shards;
	m->rng = o->seed;
	add(m, o, "embed.weight", "embed_tokens.weight", "BF16", 2, o->vocab, o->hidden);
	add(m, o, "norm.weight", "norm.weight", "BF16", 1, o->hidden, 0);
	add(m, o, "head.weight", "lm_head.weight", "BF16", 2, o->vocab, o->hidden);
	add(m, o, "hc_head_fn", "hc_head.hc_fn", "F32", 2, 4, 4 * o->hidden);
	add(m, o, "hc_head_base", "hc_head.hc_base", "F32", 1, 4, 0);
	add(m, o, "hc_head_scale", "hc_head.hc_scale", "F32", 1, 1, 0);
	for (int n = 0; n < LAYERS; n++)
		add_layer(m, o, n);
	return m;
}

static void shard_name(const struct fix_model *m, uint32_t shard, char out[64])
{
	if (m->shards)
		snprintf(out, 64, "model-%05u-of-%05u.safetensors", shard + 1, m->shards);
	else
		snprintf(out, 64, "model.safetensors");
}

static void write_shard(struct fix_model *m, uint32_t shard, json_t *map)
{
	json_t *header = json_object();
	char name[64], *text;
	uint64_t at = 0, len;
	FILE *f;

	shard_name(m, shard, name);
	for (size_t i = 0; i < m->n; i++) {
		struct fix_tensor *t = &m->tensors[i];
		json_t *shape;

		if (t->shard != shard)
			continue;
		shape = json_array();
		for (uint32_t d = 0; d < t->ndim; d++)
			json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
		json_object_set_new(header, t->name,
			json_pack("{s:s, s:o, s:[I,I]}", "dtype", t->dtype, "shape", shape,
				"data_offsets", (json_int_t)at, (json_int_t)(at + t->bytes)));
		json_object_set_new(map, t->name, json_string(name));
		at += t->bytes;
	}
	text = json_dumps(header, JSON_COMPACT);
	len = strlen(text);
	f = fopen(fix_path(m, name), "wb");
	assert_non_null(f);
	assert_int_equal(fwrite(&len, 8, 1, f), 1); /* little-endian hosts only */
	assert_int_equal(fwrite(text, len, 1, f), 1);
	for (size_t i = 0; i < m->n; i++)
		if (m->tensors[i].shard == shard && m->tensors[i].bytes)
			assert_int_equal(fwrite(m->tensors[i].data, m->tensors[i].bytes, 1, f), 1);
	assert_int_equal(fclose(f), 0);
	free(text);
	json_decref(header);
}

void fix_write(struct fix_model *m)
{
	json_t *index = json_object(), *map = json_object();

	assert_int_equal(json_dump_file(m->config, fix_path(m, "config.json"), 0), 0);
	for (uint32_t s = 0; s < (m->shards ? m->shards : 1); s++)
		write_shard(m, s, map);
	json_object_set_new(index, "weight_map", map);
	if (m->shards)
		assert_int_equal(
			json_dump_file(index, fix_path(m, "model.safetensors.index.json"), 0), 0);
	json_decref(index);
}

struct ckpt *fix_open(struct fix_model *m)
{
	struct errbuf err = {"", 0};
	struct ckpt *ck;

	fix_write(m);
	if (ckpt_open(m->dir, &ck, &err) < 0)
		fail_msg("%s", err.text);
	return ck;
}

void fix_free(struct fix_model *m)
{
	for (size_t i = 0; i < m->n; i++)
		free(m->tensors[i].data);
	free(m->tensors);
	json_decref(m->config);
	fix_remove_dir(m->dir);
	free(m);
}

struct fix_tensor *fix_find(struct fix_model *m, const char *name)
{
	for (size_t i = 0; i < m->n; i++)
		if (!strcmp(m->tensors[i].name, name))
			return &m->tensors[i];
	return NULL;
}

void fix_remove(struct fix_model *m, const char *name)
{
	struct fix_tensor *t = fix_find(m, name);

	assert_non_null(t);
	free(t->data);
	memmove(t, t + 1, (size_t)(&m->tensors[m->n] - (t + 1)) * sizeof(*t));
	m->n--;
}

const char *fix_path(const struct fix_model *m, const char *name)
{
	static char path[512];

	snprintf(path, sizeof(path), "%s/%s", m->dir, name);
	return path;
}

void fix_write_file(const char *path, const void *bytes, size_t n)
{
	FILE *f = fopen(path, "wb");

	assert_non_null(f);
	assert_int_equal(fwrite(bytes, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
}

char *fix_read_file(const char *path, size_t *ret_n)
{
	struct stat st;
	char *bytes;
	FILE *f = fopen(path, "rb");

	assert_non_null(f);
	assert_int_equal(fstat(fileno(f), &st), 0);
	bytes = malloc((size_t)st.st_size + 1);
	assert_non_null(bytes);
	assert_int_equal(fread(bytes, 1, (size_t)st.st_size, f), st.st_size);
	bytes[st.st_size] = '\0';
	fclose(f);
	*ret_n = (size_t)st.st_size;
	return bytes;
}

void fix_tempdir(char *out, size_t cap)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(out, cap, "%s/heddle-ckpt.XXXXXX", tmp ? tmp : "/tmp");
	assert_non_null(mkdtemp(out));
}

void fix_remove_dir(const char *dir)
{
	DIR *d = opendir(dir);
	struct dirent *e;

	assert_non_null(d);
	while ((e = readdir(d)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			unlinkat(dirfd(d), e->d_name, 0);
	closedir(d);
	rmdir(dir);
}

void fix_assert_says(const char *text, ...)
{
	const char *part;
	va_list ap;

	va_start(ap, text);
	while ((part = va_arg(ap, const char *)))
		if (!strstr(text, part))
			fail_msg("\"%s\" does not say \"%s\"", text, part);
	va_end(ap);
	if (strchr(text, '\n'))
		fail_msg("\"%s\" is more than one line", text);
}
