/*
 * Reference: attention over a row's keys in tiles of KERN_KEY_TILE, counted from the row's own
 * first key, so that the result depends on nothing but the row. The running maximum starts at the
 * sink, whose weight in the denominator is then 1: a row without keys gives zeros.
 */
#include "kernels/cpu/attention.h"
#include "kernels/cpu/run.h"

/* One head's running state over the tiles: o is unnormalised. */
struct head {
	float max, sum;
};

static void add_tile(
	struct head *s, const float *q, const float *keys, uint32_t n, float scale, float *o)
{
	float p[KERN_KEY_TILE], lane[KERN_LANES] = {0}, max = s->max, shrink;

	for (uint32_t j = 0; j < n; j++) {
		p[j] = kern_dot16(q, keys + (size_t)j * KERN_HEAD, KERN_HEAD) * scale;
		max = p[j] > max ? p[j] : max;
	}
	shrink = s->max == max ? 1.0f : kern_expf(s->max - max);
	for (uint32_t j = 0; j < n; j++) {
		p[j] = kern_expf(p[j] - max);
		lane[j % KERN_LANES] += p[j];
	}
	s->sum = kern_fma(s->sum, shrink, kern_sum16(lane));
	s->max = max;
	for (uint32_t i = 0; i < KERN_HEAD; i++) {
		float v = o[i] * shrink;

		for (uint32_t j = 0; j < n; j++)
			v = kern_fma(p[j], keys[(size_t)j * KERN_HEAD + i], v);
		o[i] = v;
	}
}

struct attention_job {
	const struct kern_attention_args *a;
	float *keys; /* [threads][KERN_KEY_TILE][512] */
};

static void attend(const struct kern_attention_args *a, uint32_t row, uint32_t h, float *keys)
{
	const float *q = a->q + ((size_t)row * a->heads + h) * KERN_HEAD;
	float *out = a->o + ((size_t)row * a->heads + h) * KERN_HEAD, o[KERN_HEAD] = {0};
	struct head s = {a->sink[h], 1.0f};
	struct kern_keys k = kern_keys(a, row);
	const uint8_t *at[KERN_KEY_TILE];
	uint32_t n;

	while ((n = kern_keys_next(&k, KERN_KEY_TILE, at))) {
		for (uint32_t j = 0; j < n; j++)
			kern_kv_decode(a->format, at[j], keys + (size_t)j * KERN_HEAD);
		add_tile(&s, q, keys, n, a->scale, o);
	}
	for (uint32_t i = 0; i < KERN_HEAD; i++)
		out[i] = o[i] / s.sum;
}

static void attention_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct attention_job *j = job;
	const struct kern_attention_args *a = j->a;
	struct kern_part p = kern_part((size_t)a->batch->ntok * a->heads, 1, i, n);

	for (size_t r = p.begin; r < p.end; r++)
		attend(a, (uint32_t)(r / a->heads), (uint32_t)(r % a->heads),
			j->keys + (size_t)i * KERN_KEY_TILE * KERN_HEAD);
}

int KERN_FN(attention)(const struct kern_attention_args *a, void *stream)
{
	struct kern_cpu_ctx *c = stream;
	struct kern_arena arena = kern_arena(c);
	struct attention_job j = {a, NULL};

	j.keys = kern_arena_get(&arena, (size_t)c->n * KERN_KEY_TILE * KERN_HEAD * sizeof(float));
	if (!j.keys || kern_attention_check(a))
		return -EINVAL;
	kern_run(c, (size_t)a->batch->ntok << 20, attention_part, &j);
	return 0;
}
