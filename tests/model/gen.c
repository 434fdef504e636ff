#include "tests/model/gen.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum gen_type { GEN_T_BF16, GEN_T_F16, GEN_T_F32, GEN_T_FP8, GEN_T_FP4, GEN_T_I64 };

struct tensor {
	char name[96];
	enum gen_type type;
	uint32_t rows, cols; /* rows is 0 for a vector of cols */
};

/* What the shapes need of a configuration. */
struct dims {
	uint32_t d, heads, vocab, groups, o_lora, q_lora, index_heads, experts, inter, k, layers,
		hash;
	bool quantised;
	const json_t *ratios;
};

struct list {
	struct tensor *at;
	size_t n, cap;
	enum gen_base base;
	bool quantised;
};

/* How a tensor is drawn, by the end of its name; the first rule that fits. */
static const struct rule {
	const char *suffix;
	enum { LINEAR, FLAT, AROUND } kind;
	double amount;
} rules[] = {
	{"head.weight", LINEAR, 3.0},
	{"embed.weight", FLAT, 1.0},
	{"norm.weight", AROUND, 0.5},
	{"_fn", LINEAR, 1.0},
	{"_base", FLAT, 1.0},
	{"_scale", AROUND, 0.5},
	{"attn_sink", FLAT, 1.0},
	{".ape", FLAT, 0.5},
	{"gate.bias", FLAT, 0.3},
	{"wo_a.weight", LINEAR, 2.0},
	{"wo_b.weight", LINEAR, 2.0},
	{"wgate.weight", LINEAR, 2.0},
	{"gate.weight", LINEAR, 2.0},
	{"w1.weight", LINEAR, 3.0},
	{"w3.weight", LINEAR, 3.0},
	{"weight", LINEAR, 1.0},
};

static const char *const keep_f32[] = {"_fn", "_base", "_scale", "attn_sink", ".ape", "gate.bias"};
static const char *const dense_fp8[] = {"attn.wq_a.weight", "attn.wq_b.weight", "attn.wkv.weight",
	"attn.wo_a.weight", "attn.wo_b.weight"};

static bool ends_with(const char *s, const char *suffix)
{
	size_t n = strlen(s), m = strlen(suffix);

	return n >= m && strcmp(s + n - m, suffix) == 0;
}

static bool ends_with_any(const char *s, const char *const *suffixes, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (ends_with(s, suffixes[i]))
			return true;
	return false;
}

uint64_t gen_mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
	x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
	return x ^ (x >> 31);
}

static uint64_t key_of(const char *name, uint64_t seed)
{
	uint64_t h = 0xCBF29CE484222325ull;

	for (; *name; name++)
		h = (h ^ (unsigned char)*name) * 0x100000001B3ull;
	return h ^ gen_mix(seed);
}

static uint64_t bits(uint64_t key, uint64_t i)
{
	return gen_mix(key + (i + 1) * 0x9E3779B97F4A7C15ull);
}

static double unit(uint64_t key, uint64_t i)
{
	return ((double)(bits(key, i) >> 40) - 8388608.0) / 8388608.0;
}

int gen_base_parse(const char *name, enum gen_base *ret_base)
{
	static const char *const names[] = {"BF16", "F16", "F32"};
	size_t i;

	for (i = 0; i < ARRAY_LEN(names); i++) {
		if (strcmp(name, names[i]) == 0) {
			*ret_base = (enum gen_base)i;
			return 0;
		}
	}
	return -EINVAL;
}

void gen_prompt(uint64_t seed, uint32_t length, uint32_t vocab, uint32_t *ret_ids)
{
	uint64_t key = key_of("prompt", seed);
	uint32_t i;

	for (i = 0; i < length; i++)
		ret_ids[i] = i ? 2 + (uint32_t)((bits(key, i) >> 32) % (vocab - 2)) : 0;
}

/* ---- shapes -------------------------------------------------------------------------------- */

static enum gen_type type_of(const struct list *l, const char *name)
{
	if (ends_with(name, "tid2eid"))
		return GEN_T_I64;
	if (l->quantised && strstr(name, ".experts."))
		return GEN_T_FP4;
	if (l->quantised && (ends_with_any(name, dense_fp8, ARRAY_LEN(dense_fp8)) ||
				    strstr(name, "shared_experts")))
		return GEN_T_FP8;
	if (ends_with_any(name, keep_f32, ARRAY_LEN(keep_f32)))
		return GEN_T_F32;
	return l->base == GEN_BF16 ? GEN_T_BF16 : l->base == GEN_F16 ? GEN_T_F16 : GEN_T_F32;
}

static void add(struct list *l, const char *prefix, const char *name, uint32_t rows, uint32_t cols)
{
	struct tensor *t;

	if (l->n == l->cap) {
		l->cap = l->cap ? 2 * l->cap : 256;
		l->at = realloc(l->at, l->cap * sizeof(*l->at));
		if (!l->at)
			abort(); /* a test that cannot have its data cannot go on */
	}
	t = &l->at[l->n++];
	snprintf(t->name, sizeof(t->name), "%s%s", prefix, name);
	t->rows = rows;
	t->cols = cols;
	t->type = type_of(l, t->name);
}

static void add_attention(struct list *l, const struct dims *c, const char *p, uint32_t ratio)
{
	uint32_t m = ratio == 4 ? 2 : 1;

	add(l, p, "attn.wq_a.weight", c->q_lora, c->d);
	add(l, p, "attn.q_norm.weight", 0, c->q_lora);
	add(l, p, "attn.wq_b.weight", c->heads * 512, c->q_lora);
	add(l, p, "attn.wkv.weight", 512, c->d);
	add(l, p, "attn.kv_norm.weight", 0, 512);
	add(l, p, "attn.wo_a.weight", c->groups * c->o_lora, c->heads * 512 / c->groups);
	add(l, p, "attn.wo_b.weight", c->d, c->groups * c->o_lora);
	add(l, p, "attn.attn_sink", 0, c->heads);
	if (!ratio)
		return;
	add(l, p, "attn.compressor.ape", ratio, m * 512);
	add(l, p, "attn.compressor.wkv.weight", m * 512, c->d);
	add(l, p, "attn.compressor.wgate.weight", m * 512, c->d);
	add(l, p, "attn.compressor.norm.weight", 0, 512);
	if (ratio != 4)
		return;
	add(l, p, "attn.indexer.wq_b.weight", c->index_heads * 128, c->q_lora);
	add(l, p, "attn.indexer.weights_proj.weight", c->index_heads, c->d);
	add(l, p, "attn.indexer.compressor.ape", 4, 256);
	add(l, p, "attn.indexer.compressor.wkv.weight", 256, c->d);
	add(l, p, "attn.indexer.compressor.wgate.weight", 256, c->d);
	add(l, p, "attn.indexer.compressor.norm.weight", 0, 128);
}

static void add_expert(struct list *l, const struct dims *c, const char *p, const char *expert)
{
	char prefix[96];

	snprintf(prefix, sizeof(prefix), "%sffn.%s.", p, expert);
	add(l, prefix, "w1.weight", c->inter, c->d);
	add(l, prefix, "w3.weight", c->inter, c->d);
	add(l, prefix, "w2.weight", c->d, c->inter);
}

static void add_layer(struct list *l, const struct dims *c, uint32_t n)
{
	char p[32], hc[64], expert[32];
	static const char *const halves[] = {"attn", "ffn"};
	uint32_t e, h;

	snprintf(p, sizeof(p), "layers.%u.", n);
	for (h = 0; h < 2; h++) {
		snprintf(hc, sizeof(hc), "%s_norm.weight", halves[h]);
		add(l, p, hc, 0, c->d);
		snprintf(hc, sizeof(hc), "hc_%s_fn", halves[h]);
		add(l, p, hc, 24, 4 * c->d);
		snprintf(hc, sizeof(hc), "hc_%s_base", halves[h]);
		add(l, p, hc, 0, 24);
		snprintf(hc, sizeof(hc), "hc_%s_scale", halves[h]);
		add(l, p, hc, 0, 3);
	}
	add_attention(l, c, p, (uint32_t)json_integer_value(json_array_get(c->ratios, n)));
	add(l, p, "ffn.gate.weight", c->experts, c->d);
	if (n < c->hash)
		add(l, p, "ffn.gate.tid2eid", c->vocab, c->k);
	else
		add(l, p, "ffn.gate.bias", 0, c->experts);
	for (e = 0; e < c->experts; e++) {
		snprintf(expert, sizeof(expert), "experts.%u", e);
		add_expert(l, c, p, expert);
	}
	add_expert(l, c, p, "shared_experts");
}

static uint32_t number(const json_t *config, const char *key)
{
	return (uint32_t)json_integer_value(json_object_get(config, key));
}

static void list_tensors(struct list *l, const json_t *config)
{
	struct dims c = {
		.d = number(config, "hidden_size"),
		.heads = number(config, "num_attention_heads"),
		.vocab = number(config, "vocab_size"),
		.groups = number(config, "o_groups"),
		.o_lora = number(config, "o_lora_rank"),
		.q_lora = number(config, "q_lora_rank"),
		.index_heads = number(config, "index_n_heads"),
		.experts = number(config, "n_routed_experts"),
		.inter = number(config, "moe_intermediate_size"),
		.k = number(config, "num_experts_per_tok"),
		.layers = number(config, "num_hidden_layers"),
		.hash = number(config, "num_hash_layers"),
		.ratios = json_object_get(config, "compress_ratios"),
	};
	uint32_t n;

	l->quantised = json_object_get(config, "quantization_config") != NULL;
	add(l, "", "embed.weight", c.vocab, c.d);
	add(l, "", "norm.weight", 0, c.d);
	add(l, "", "head.weight", c.vocab, c.d);
	add(l, "", "hc_head_fn", 4, 4 * c.d);
	add(l, "", "hc_head_base", 0, 4);
	add(l, "", "hc_head_scale", 0, 1);
	for (n = 0; n < c.layers; n++)
		add_layer(l, &c, n);
}

/* ---- values -------------------------------------------------------------------------------- */

static uint16_t to_bf16(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return (uint16_t)((u + 0x7FFFu + ((u >> 16) & 1)) >> 16);
}

/* Round to nearest even, subnormals included; the values drawn here are far from overflow. */
static uint16_t to_f16(float f)
{
	uint16_t sign = signbit(f) ? 0x8000 : 0;
	double a = fabs((double)f);
	int e;

	if (a == 0)
		return sign;
	e = ilogb(a);
	if (e < -14)
		return sign | (uint16_t)nearbyint(ldexp(a, 24));
	return (uint16_t)(sign + ((e + 14) << 10) + (int)nearbyint(ldexp(a, 10 - e)));
}

static float draw(const struct tensor *t, uint64_t key, uint64_t i)
{
	const struct rule *r = rules;
	double std;

	while (!ends_with(t->name, r->suffix))
		r++;
	if (r->kind == AROUND)
		return (float)(1.0 + r->amount * unit(key, i));
	std = r->kind == FLAT ? r->amount : r->amount / sqrt((double)t->cols);
	return (float)(unit(key, i) * (double)(float)(std * sqrt(3.0)));
}

static int half_log2(uint32_t k)
{
	int n = 0;

	for (k--; k; k >>= 1)
		n++;
	return n / 2;
}

static void scale_name(const struct tensor *t, char out[96])
{
	snprintf(out, 96, "%.*sscale", (int)(strlen(t->name) - strlen("weight")), t->name);
}

static void fill_experts(const struct tensor *t, uint32_t experts, uint64_t key, int64_t *out)
{
	int64_t *ids = malloc(experts * sizeof(*ids)), swap;
	uint32_t row, j, s;

	if (!ids)
		abort();
	for (row = 0; row < t->rows; row++) {
		for (j = 0; j < experts; j++)
			ids[j] = j;
		for (j = 0; j < t->cols; j++) {
			s = j + (uint32_t)((bits(key, (uint64_t)row * t->cols + j) >> 32) %
					   (experts - j));
			swap = ids[j];
			ids[j] = ids[s];
			ids[s] = swap;
			out[(size_t)row * t->cols + j] = ids[j];
		}
	}
	free(ids);
}

/* Bytes of a tensor's data and of its scales. */
static size_t data_bytes(const struct tensor *t)
{
	static const uint32_t twice[] = {4, 4, 8, 2, 1, 16}; /* half bytes an element, doubled */

	return (size_t)MAX(t->rows, 1u) * t->cols * twice[t->type] / 2;
}

static size_t scale_bytes(const struct tensor *t)
{
	if (t->type == GEN_T_FP8)
		return (size_t)DIV_UP(t->rows, 128) * DIV_UP(t->cols, 128);
	return t->type == GEN_T_FP4 ? (size_t)t->rows * t->cols / 32 : 0;
}

static void fill(const struct tensor *t, uint32_t experts, uint64_t seed, void *out)
{
	uint64_t key = key_of(t->name, seed);
	size_t n = (size_t)MAX(t->rows, 1u) * t->cols, i;
	uint8_t *bytes = out;

	if (t->type == GEN_T_I64) {
		fill_experts(t, experts, key, out);
		return;
	}
	for (i = 0; i < (t->type == GEN_T_FP4 ? n / 2 : n); i++) {
		switch (t->type) {
		case GEN_T_BF16:
			((uint16_t *)out)[i] = to_bf16(draw(t, key, i));
			break;
		case GEN_T_F16:
			((uint16_t *)out)[i] = to_f16(draw(t, key, i));
			break;
		case GEN_T_F32:
			((float *)out)[i] = draw(t, key, i);
			break;
		default:
			bytes[i] = (uint8_t)(bits(key, i) >> 40);
			if (t->type == GEN_T_FP8 && (bytes[i] & 0x7F) == 0x7F)
				bytes[i] ^= 1; /* the two NaN codes */
		}
	}
}

static void fill_scale(const struct tensor *t, uint64_t seed, uint8_t *out)
{
	char name[96];
	uint64_t key;
	size_t i;
	int base = 127 - (t->type == GEN_T_FP8 ? 7 : 1) - half_log2(t->cols);

	scale_name(t, name);
	key = key_of(name, seed);
	for (i = 0; i < scale_bytes(t); i++)
		out[i] = (uint8_t)((int)((bits(key, i) >> 40) % 3) + base);
}

/* ---- file ---------------------------------------------------------------------------------- */

static void header_row(FILE *f, const char *name, const char *dtype, uint32_t rows, uint32_t cols,
	size_t *offset, size_t bytes)
{
	fprintf(f, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", *offset ? "," : "{", name, dtype);
	if (rows)
		fprintf(f, "%u,", rows);
	fprintf(f, "%u],\"data_offsets\":[%zu,%zu]}", cols, *offset, *offset + bytes);
	*offset += bytes;
}

static void write_header(FILE *out, const struct list *l)
{
	static const char *const dtypes[] = {"BF16", "F16", "F32", "F8_E4M3", "I8", "I64"};
	char *text, name[96];
	size_t len, i, offset = 0;
	uint64_t padded;
	FILE *f = open_memstream(&text, &len);

	if (!f)
		abort();
	for (i = 0; i < l->n; i++) {
		const struct tensor *t = &l->at[i];

		header_row(f, t->name, dtypes[t->type], t->rows,
			t->type == GEN_T_FP4 ? t->cols / 2 : t->cols, &offset, data_bytes(t));
		if (!scale_bytes(t))
			continue;
		scale_name(t, name);
		header_row(f, name, "F8_E8M0",
			t->type == GEN_T_FP8 ? DIV_UP(t->rows, 128) : t->rows,
			t->type == GEN_T_FP8 ? DIV_UP(t->cols, 128) : t->cols / 32, &offset,
			scale_bytes(t));
	}
	fputc('}', f);
	(void)fclose(f);
	padded = ALIGN_UP(len, 8);
	fwrite(&padded, sizeof(padded), 1, out);
	fprintf(out, "%-*s", (int)padded, text);
	free(text);
}

static uint64_t sum_bytes(const uint8_t *p, size_t n)
{
	uint64_t sum = 0;
	size_t i;

	for (i = 0; i < n; i++)
		sum += gen_mix(p[i] + (uint64_t)(i + 1) * 256);
	return sum;
}

static int write_model(const char *path, const struct list *l, uint32_t experts, uint64_t seed,
	uint64_t *ret_checksum)
{
	FILE *out = fopen(path, "we");
	uint64_t checksum = 0, h;
	uint8_t *data;
	size_t i;
	int r;

	if (!out)
		return -errno;
	write_header(out, l);
	for (i = 0; i < l->n; i++) {
		const struct tensor *t = &l->at[i];
		size_t n = data_bytes(t), s = scale_bytes(t);

		data = malloc(n + s);
		if (!data)
			abort();
		fill(t, experts, seed, data);
		fill_scale(t, seed, data + n);
		fwrite(data, 1, n + s, out);
		h = key_of(t->name, 0) + sum_bytes(data, n) + sum_bytes(data + n, s);
		checksum ^= gen_mix(h);
		free(data);
	}
	r = ferror(out) ? -EIO : 0;
	if (fclose(out) != 0)
		r = -errno;
	if (r == 0 && ret_checksum)
		*ret_checksum = checksum;
	return r;
}

int gen_checkpoint(const char *dir, const json_t *config, uint64_t seed, enum gen_base base,
	uint64_t *ret_checksum)
{
	struct list l = {.base = base};
	char path[1200];
	int r;

	snprintf(path, sizeof(path), "%s/config.json", dir);
	if (json_dump_file(config, path, JSON_INDENT(1)) < 0)
		return -EIO;
	list_tensors(&l, config);
	snprintf(path, sizeof(path), "%s/model.safetensors", dir);
	r = write_model(path, &l, number(config, "n_routed_experts"), seed, ret_checksum);
	free(l.at);
	return r;
}
