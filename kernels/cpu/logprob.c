/* Log-softmax of a few tokens of each row, their rank, and the most probable alternatives. */
#include "kernels/cpu/run.h"
#include "kernels/cpu/math.h"
#ifdef __AVX2__
#include "kernels/cpu/vec.h"
#endif

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

/* How many of x[n] are greater than v, or with ties not less. */
static uint32_t count_above(const float *x, uint32_t n, float v, bool ties)
{
	uint32_t above = 0;

	if (ties)
		for (uint32_t i = 0; i < n; i++)
			above += x[i] >= v;
	else
		for (uint32_t i = 0; i < n; i++)
			above += x[i] > v;
	return above;
}

static uint32_t count_nan(const float *x, uint32_t n)
{
	uint32_t nan = 0;

	for (uint32_t i = 0; i < n; i++)
		nan += x[i] != x[i];
	return nan;
}

/* The greatest of x[n], NaN left out; -inf when there is none. */
static float greatest(const float *x, uint32_t n)
{
	float max = -INFINITY;
	uint32_t i = 0;

#ifdef __AVX2__
	float lane[KERN_LANES];
	v16 top = v16_set1(max);

	for (; i + KERN_LANES <= n; i += KERN_LANES)
		top = v16_max(v16_load(x + i), top);
	v16_store(lane, top);
	for (int l = 0; l < KERN_LANES; l++)
		max = lane[l] > max ? lane[l] : max;
#endif
	for (; i < n; i++)
		max = x[i] > max ? x[i] : max;
	return max;
}

/* Sum of e^(x - max), lane l taking the elements of index l mod 16. */
static float sum_exp(const float *x, uint32_t n, float max)
{
	float lane[KERN_LANES] = {0};
	uint32_t i = 0;

#ifdef __AVX2__
	v16 sum = v16_set1(0), m = v16_set1(max);

	for (; i + KERN_LANES <= n; i += KERN_LANES)
		sum = v16_add(sum, v16_exp(v16_sub(v16_load(x + i), m)));
	v16_store(lane, sum);
#endif
	for (; i < n; i++)
		lane[i % KERN_LANES] += kern_expf(x[i] - max);
	return kern_sum16(lane);
}

static void logprob_row(const struct kern_logprob_args *a, size_t t)
{
	const float *x = a->logits + t * a->ld;
	float max = greatest(x, a->vocab), own = x[a->tokens[t]];
	float *alt = a->alt_logprob + t * a->top_max;
	uint32_t before = a->tokens[t];
	struct kern_logprob r = {.nan = count_nan(x, a->vocab) > 0};
	double norm;

	r.rank = 1 + count_above(x, before, own, true) +
		 count_above(x + before, a->vocab - before, own, false);
	if (a->top[t])
		for (uint32_t i = 0; i < a->vocab; i++)
			if (x[i] == x[i])
				r.alts = keep_best(alt, a->alt_token + t * a->top_max, r.alts,
					a->top[t], x[i], i);
	norm = (double)max + log((double)sum_exp(x, a->vocab, max));
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
