/* Log-softmax of a few tokens of each row, their rank, and the most probable alternatives. */
#include "kernels/cpu/run.h"
#include "kernels/cpu/math.h"

/* Puts (v, id) into a list kept best first; ids come ascending, so ties stay in order. */
static uint32_t keep_best(
	float *values, uint32_t *ids, uint32_t n, uint32_t cap, float v, uint32_t id)
{
	uint32_t at = n;

	if (!cap || (n == cap && !(v > values[n - 1])))
		return n;
	if (n == cap)
		at = n - 1;
	else
		n++;
	while (at && v > values[at - 1]) {
		values[at] = values[at - 1];
		ids[at] = ids[at - 1];
		at--;
	}
	values[at] = v;
	ids[at] = id;
	return n;
}

static void logprob_row(const struct kern_logprob_args *a, size_t t)
{
	const float *x = a->logits + t * a->ld;
	float lane[KERN_LANES] = {0}, max = -INFINITY, own = x[a->tokens[t]];
	float *alt = a->alt_logprob + t * a->top_max;
	struct kern_logprob r = {.rank = 1};
	double norm;

	for (uint32_t i = 0; i < a->vocab; i++) {
		r.nan |= x[i] != x[i];
		max = x[i] > max ? x[i] : max;
		r.rank += x[i] > own || (x[i] == own && i < a->tokens[t]);
	}
	if (a->top[t])
		for (uint32_t i = 0; i < a->vocab; i++)
			if (x[i] == x[i])
				r.alts = keep_best(alt, a->alt_token + t * a->top_max, r.alts,
					a->top[t], x[i], i);
	for (uint32_t i = 0; i < a->vocab; i++)
		lane[i % KERN_LANES] += kern_expf(x[i] - max);
	norm = (double)max + log((double)kern_sum16(lane));
	for (uint32_t i = 0; i < r.alts; i++)
		alt[i] = (float)((double)alt[i] - norm);
	r.logprob = r.nan ? NAN : (float)((double)own - norm);
	a->out[t] = r;
}

static void logprob_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct kern_logprob_args *a = job;
	struct kern_part p = kern_part(a->rows, 1, i, n);

	for (size_t t = p.begin; t < p.end; t++)
		logprob_row(a, t);
}

int KERN_FN(logprob)(const struct kern_logprob_args *a, void *stream)
{
	for (uint32_t t = 0; t < a->rows; t++)
		if (a->tokens[t] >= a->vocab || a->top[t] > a->top_max)
			return -EINVAL;
	if (a->top_max > 64)
		return -EINVAL;
	kern_run(stream, (size_t)a->rows * a->vocab * 8, logprob_part, a);
	return 0;
}
