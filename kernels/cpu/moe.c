/*
 * Reference: the experts. A weight row is widened once and used for all the pairs of its expert.
 */
#include "kernels/cpu/act.h"
#include "kernels/cpu/moe.h"
#include "kernels/cpu/run.h"

static float dot_chain(const float *x, const float *w, uint32_t k)
{
	float sum = 0;

	for (uint32_t i = 0; i < k; i++)
		sum = kern_fma(x[i], w[i], sum);
	return sum;
}

static void widen_row(const struct kern_weight *w, uint32_t n, float *row)
{
	for (uint32_t k = 0; k < w->k; k++)
		row[k] = kern_weight_get(w, n, k);
}

struct up_job {
	const struct kern_moe_up_args *a;
	float *scratch; /* [threads][3][k] */
};

/* Outputs begin..end of one expert for the pairs that chose it; e = experts: the shared one. */
static void up_expert(const struct up_job *j, uint32_t e, struct kern_part p, float *scratch)
{
	const struct kern_moe_up_args *a = j->a;
	bool shared = e == a->experts;
	const struct kern_weight *w1 = shared ? a->shared_w1 : a->w1[e];
	const struct kern_weight *w3 = shared ? a->shared_w3 : a->w3[e];
	uint32_t k = w1->k, pairs = shared ? a->rows : a->rows * a->topk;
	float *r1 = scratch, *r3 = r1 + k, *x = r3 + k;

	for (uint32_t o = (uint32_t)p.begin; o < p.end; o++) {
		widen_row(w1, o, r1);
		widen_row(w3, o, r3);
		for (uint32_t q = 0; q < pairs; q++) {
			const float *row = a->x + (size_t)(shared ? q : q / a->topk) * k;
			float *h = shared ? a->shared_h + (size_t)q * w1->n
					  : a->h + (size_t)q * a->inter;

			if (!shared && a->ids[q] != e)
				continue;
			kern_act_round(
				row, k, w1->col0, kern_act_of(a->act, w1), a->scale_pow2, NULL, x);
			h[o] = kern_swiglu(dot_chain(x, r1, k), dot_chain(x, r3, k), a->limit,
				shared ? 1.0f : a->weights[q]);
		}
	}
}

static void up_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct up_job *j = job;
	const struct kern_moe_up_args *a = j->a;
	uint32_t k = kern_moe_up_k(a);

	for (uint32_t e = 0; e < a->experts; e++)
		if (a->w1[e])
			up_expert(
				j, e, kern_part(a->inter, 1, i, n), j->scratch + (size_t)i * 3 * k);
	if (a->shared_w1)
		up_expert(j, a->experts, kern_part(a->shared_w1->n, 1, i, n),
			j->scratch + (size_t)i * 3 * k);
}

int KERN_FN(moe_up)(const struct kern_moe_up_args *a, void *stream)
{
	struct kern_cpu_ctx *c = stream;
	struct kern_arena arena = kern_arena(c);
	struct up_job j = {.a = a};

	if (kern_moe_up_check(a))
		return -EINVAL;
	j.scratch = kern_arena_get(&arena, (size_t)c->n * 3 * kern_moe_up_k(a) * sizeof(float));
	if (!j.scratch)
		return -EINVAL;
	kern_run(c, (size_t)a->rows << 20, up_part, &j);
	return 0;
}

struct down_job {
	const struct kern_moe_down_args *a;
	float *scratch; /* [threads][2][k] */
};

/* Adds outputs begin..end of one expert to the rows that chose it. */
static void down_expert(
	const struct kern_moe_down_args *a, uint32_t e, struct kern_part p, float *scratch)
{
	bool shared = e == a->experts;
	const struct kern_weight *w = shared ? a->shared_w2 : a->w2[e];
	const float *amax = shared ? a->shared_amax : a->amax;
	uint32_t k = w->k, pairs = shared ? a->rows : a->rows * a->topk;
	uint32_t ng = kern_act_groups(k, w->col0);
	float *row = scratch, *x = row + k;

	for (uint32_t o = (uint32_t)p.begin; o < p.end; o++) {
		widen_row(w, o, row);
		for (uint32_t q = 0; q < pairs; q++) {
			float *y = a->y + (size_t)(shared ? q : q / a->topk) * a->d + o;

			if (!shared && a->ids[q] != e)
				continue;
			kern_act_round((shared ? a->shared_h : a->h) + (size_t)q * k, k, w->col0,
				kern_act_of(a->act, w), a->scale_pow2,
				amax ? amax + (size_t)q * ng : NULL, x);
			*y = *y + dot_chain(x, row, k);
		}
	}
}

static void down_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct down_job *j = job;
	const struct kern_moe_down_args *a = j->a;
	struct kern_part p = kern_part(a->d, 1, i, n);
	float *scratch = j->scratch + (size_t)i * 2 * kern_moe_down_k(a);

	for (uint32_t t = 0; t < a->rows; t++)
		memset(a->y + (size_t)t * a->d + p.begin, 0, (p.end - p.begin) * sizeof(float));
	for (uint32_t e = 0; e < a->experts; e++)
		if (a->w2[e])
			down_expert(a, e, p, scratch);
	if (a->shared_w2)
		down_expert(a, a->experts, p, scratch);
}

int KERN_FN(moe_down)(const struct kern_moe_down_args *a, void *stream)
{
	struct kern_cpu_ctx *c = stream;
	struct kern_arena arena = kern_arena(c);
	struct down_job j = {.a = a};

	if (kern_moe_down_check(a))
		return -EINVAL;
	j.scratch = kern_arena_get(&arena, (size_t)c->n * 2 * kern_moe_down_k(a) * sizeof(float));
	if (!j.scratch)
		return -EINVAL;
	kern_run(c, (size_t)a->rows << 20, down_part, &j);
	return 0;
}
