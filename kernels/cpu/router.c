/* Experts of a token: by score plus bias, or by table; ids ascending, weights normalised. */
#include "kernels/cpu/run.h"

/* sqrt(softplus(x)), in double and rounded once; softplus(x) = max(x, 0) + log1p(e^-|x|). */
static float score(float x)
{
	double v = x;

	return (float)sqrt(fmax(v, 0) + log1p(exp(-fabs(v))) + (v != v ? v : 0));
}

static void insert_ascending(uint32_t *ids, uint32_t n, uint32_t id)
{
	while (n && ids[n - 1] > id) {
		ids[n] = ids[n - 1];
		n--;
	}
	ids[n] = id;
}

/* The j-th best not yet taken: greatest s + bias, ties to the lower id, NaN only when all else is
 * taken. */
static uint32_t best_expert(
	const struct kern_router_args *a, const float *logits, const uint32_t *ids, uint32_t taken)
{
	uint32_t best = UINT32_MAX, j = 0;
	float best_v = 0;

	for (uint32_t e = 0; e < a->experts; e++) {
		float v;

		if (j < taken && ids[j] == e) {
			j++;
			continue;
		}
		v = score(logits[e]) + (a->bias ? a->bias[e] : 0);
		if (best == UINT32_MAX || v > best_v || (best_v != best_v && v == v)) {
			best = e;
			best_v = v;
		}
	}
	return best;
}

static void router_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct kern_router_args *a = job;
	struct kern_part p = kern_part(a->rows, 1, i, n);

	for (size_t t = p.begin; t < p.end; t++) {
		const float *logits = a->logits + t * a->experts;
		uint32_t *ids = a->ids + t * a->topk;
		float *w = a->weights + t * a->topk, sum = 0;

		for (uint32_t j = 0; j < a->topk; j++)
			insert_ascending(ids, j,
				a->tid2eid
					? (uint32_t)a->tid2eid[(size_t)a->tokens[t] * a->topk + j]
					: best_expert(a, logits, ids, j));
		for (uint32_t j = 0; j < a->topk; j++) {
			w[j] = score(logits[ids[j]]);
			sum += w[j];
		}
		for (uint32_t j = 0; j < a->topk; j++)
			w[j] = w[j] / sum * a->scale;
	}
}

int KERN_FN(router)(const struct kern_router_args *a, void *stream)
{
	if (!a->topk || a->topk > a->experts)
		return -EINVAL;
	kern_run(stream, (size_t)a->rows * a->experts * 64, router_part, a);
	return 0;
}
