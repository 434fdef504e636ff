/* Reference: dense products. Each output is one chain of fused multiply-adds over k. */
#include "kernels/cpu/act.h"
#include "kernels/cpu/run.h"

struct linear_job {
	const struct kern_weight *w;
	uint32_t rows, groups; /* groups: blocks of wo_a, else 1 */
	const float *x;
	size_t ldx, gstride; /* gstride: from one block's input to the next */
	float *y;
	size_t ldy;
	float *row; /* [n threads][k] one widened row of W */
};

static void linear_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct linear_job *j = job;
	const struct kern_weight *w = j->w;
	struct kern_part p = kern_part(w->n, 1, i, n);
	float *row = j->row + (size_t)i * w->k;

	for (uint32_t o = (uint32_t)p.begin; o < p.end; o++) {
		const float *x = j->x + o / (w->n / j->groups) * j->gstride;

		for (uint32_t k = 0; k < w->k; k++)
			row[k] = kern_weight_get(w, o, k);
		for (uint32_t t = 0; t < j->rows; t++) {
			float sum = 0;

			for (uint32_t k = 0; k < w->k; k++)
				sum = kern_fma(x[t * j->ldx + k], row[k], sum);
			j->y[t * j->ldy + o] = sum;
		}
	}
}

/* Rounds `rows` rows of `width` = groups * k into `to`. */
static void round_rows(const struct linear_job *j, enum kern_act act, bool pow2, const float *amax,
	uint32_t first, uint32_t rows, float *to)
{
	uint32_t k = j->w->k, ng = kern_act_groups(k, j->w->col0);

	for (uint32_t t = 0; t < rows; t++)
		for (uint32_t g = 0; g < j->groups; g++)
			kern_act_round(j->x + (first + t) * j->ldx + g * j->gstride, k, j->w->col0,
				act, pow2, amax ? amax + (size_t)(first + t) * ng : NULL,
				to + ((size_t)t * j->groups + g) * k);
}

static int linear_run(struct linear_job *j, enum kern_act act, bool pow2, const float *amax,
	struct kern_cpu_ctx *c)
{
	struct kern_arena a = kern_arena(c);
	uint32_t width = j->groups * j->w->k;
	float *rounded = kern_arena_get(&a, (size_t)KERN_ROW_BLOCK * width * sizeof(float));

	j->row = kern_arena_get(&a, (size_t)c->n * j->w->k * sizeof(float));
	if (!rounded || !j->row)
		return -EINVAL;
	act = kern_act_of(act, j->w);
	if (act == KERN_ACT_F32) {
		kern_run(c, (size_t)j->rows * j->w->n * j->w->k, linear_part, j);
		return 0;
	}
	for (uint32_t t = 0; t < j->rows; t += KERN_ROW_BLOCK) {
		struct linear_job b = *j;

		b.rows = MIN(j->rows - t, (uint32_t)KERN_ROW_BLOCK);
		round_rows(j, act, pow2, amax, t, b.rows, rounded);
		b.x = rounded;
		b.ldx = width;
		b.gstride = j->w->k;
		b.y = j->y + t * j->ldy;
		kern_run(c, (size_t)b.rows * b.w->n * b.w->k, linear_part, &b);
	}
	return 0;
}

int KERN_FN(linear)(const struct kern_linear_args *a, void *stream)
{
	int rc = 0;

	if (!a->n || a->n > KERN_LINEAR_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < a->n; i++)
		if (a->out[i].w->k != a->out[0].w->k || a->out[i].w->col0 != a->out[0].w->col0)
			return -EINVAL;
	for (uint32_t i = 0; i < a->n && !rc; i++) {
		struct linear_job j = {
			.w = a->out[i].w,
			.rows = a->rows,
			.groups = 1,
			.x = a->x,
			.ldx = a->ldx,
			.y = a->out[i].y,
			.ldy = a->out[i].ldy,
		};

		rc = linear_run(&j, a->act, a->scale_pow2, a->amax, stream);
	}
	return rc;
}

int KERN_FN(linear_grouped)(const struct kern_linear_grouped_args *a, void *stream)
{
	struct linear_job j = {
		.w = a->w,
		.rows = a->rows,
		.groups = a->groups,
		.x = a->x,
		.ldx = (size_t)a->groups * a->w->k,
		.gstride = a->w->k,
		.y = a->y,
		.ldy = a->w->n,
	};

	if (!a->groups || a->w->n % a->groups)
		return -EINVAL;
	return linear_run(&j, a->act, a->scale_pow2, NULL, stream);
}
