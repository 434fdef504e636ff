/* Vector code: dense products. */
#include "kernels/cpu/act.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/tile.h"

/* One call: outputs that share x. */
struct fast_job {
	uint32_t rows, n;
	const float *x;
	size_t ldx;
	const struct kern_linear_out *out;
	char *panels;
	bool by_rows; /* threads share out rows instead of outputs */
};

/* rows first .. first+rows-1 times one weight's groups begin .. end. */
static void one_weight(const struct fast_job *j, const struct kern_linear_out *o, uint32_t first,
	uint32_t rows, struct kern_part p, const uint8_t *next, float *panel)
{
	const float *x[KERN_ROW_BLOCK];

	for (uint32_t t = 0; t < rows; t += KERN_ROW_BLOCK) {
		uint32_t n = MIN(rows - t, (uint32_t)KERN_ROW_BLOCK);

		for (uint32_t i = 0; i < n; i++)
			x[i] = j->x + (first + t + i) * j->ldx;
		KERN_FN(product)
		(o->w, (uint32_t)p.begin, (uint32_t)(p.end - p.begin), n, x,
			o->y + (first + t) * o->ldy + p.begin * KERN_GROUP, o->ldy, next, panel);
	}
}

/* Thread i's groups of output k: whole tiles, where there are enough of them for all. */
static struct kern_part groups_of(const struct fast_job *j, uint32_t k, unsigned i, unsigned n)
{
	size_t groups = DIV_UP(j->out[k].w->n, KERN_GROUP);

	if (j->by_rows)
		return (struct kern_part){0, groups};
	return kern_part(groups, j->rows > VEC_MR && groups >= 2 * VEC_NV * n ? VEC_NV : 1, i, n);
}

static void fast_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct fast_job *j = job;
	float *panel = (float *)(j->panels + (size_t)i * KERN_PRODUCT_BYTES);
	struct kern_part rows = {0, j->rows};

	if (j->by_rows)
		rows = kern_part(j->rows, VEC_MR, i, n);
	for (uint32_t k = 0; k < j->n; k++) {
		struct kern_part p = groups_of(j, k, i, n);
		const uint8_t *next = NULL;

		if (k + 1 < j->n)
			next = kern_product_at(j->out[k + 1].w, groups_of(j, k + 1, i, n).begin);
		if (p.begin < p.end)
			one_weight(j, &j->out[k], (uint32_t)rows.begin,
				(uint32_t)(rows.end - rows.begin), p, next, panel);
	}
}

/* What a multiply-add costs here: of few rows, as much as its weight takes to arrive. */
static size_t cost_of(const struct fast_job *j, const struct kern_weight *w)
{
	if (j->rows > VEC_MR)
		return 1;
	return w->dtype == KERN_F32 ? 4 : w->dtype == KERN_BF16 || w->dtype == KERN_F16 ? 2 : 1;
}

static void run_job(struct fast_job *j, struct kern_cpu_ctx *c)
{
	size_t work = 0, least = SIZE_MAX;

	for (uint32_t k = 0; k < j->n; k++) {
		work += (size_t)j->rows * j->out[k].w->n * j->out[k].w->k * cost_of(j, j->out[k].w);
		least = MIN(least, DIV_UP(j->out[k].w->n, KERN_GROUP * VEC_NV));
	}
	j->by_rows = j->rows >= 2 * VEC_MR * c->n && least < 4 * c->n;
	kern_run(c, work, fast_part, j);
}

struct round_job {
	const float *x;
	size_t ldx;
	uint32_t rows, k, col0;
	enum kern_act act;
	bool pow2;
	const float *amax;
	float *to;
};

static void round_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct round_job *r = job;
	struct kern_part p = kern_part(r->rows, 1, i, n);
	uint32_t ng = kern_act_groups(r->k, r->col0);

	for (size_t t = p.begin; t < p.end; t++)
		kern_act_round(r->x + t * r->ldx, r->k, r->col0, r->act, r->pow2,
			r->amax ? r->amax + t * ng : NULL, r->to + t * r->k);
}

/* Outputs of one rounding, in blocks of rows that fit the scratch. */
static int rounded(const struct kern_linear_args *a, const struct kern_linear_out *out, uint32_t n,
	enum kern_act act, struct kern_cpu_ctx *c)
{
	struct kern_arena arena = kern_arena(c);
	uint32_t k = out->w->k, ng = kern_act_groups(k, out->w->col0);
	char *panels = kern_arena_get(&arena, (size_t)c->n * KERN_PRODUCT_BYTES);
	float *to = kern_arena_get(&arena, (size_t)KERN_ROW_BLOCK * k * sizeof(float));

	if (!panels || !to)
		return -EINVAL;
	for (uint32_t t = 0; t < a->rows; t += KERN_ROW_BLOCK) {
		uint32_t rows = MIN(a->rows - t, (uint32_t)KERN_ROW_BLOCK);
		struct round_job r = {a->x + t * a->ldx, a->ldx, rows, k, out->w->col0, act,
			a->scale_pow2, a->amax ? a->amax + (size_t)t * ng : NULL, to};
		struct kern_linear_out o[KERN_LINEAR_MAX];
		struct fast_job j = {
			.rows = rows, .n = n, .x = to, .ldx = k, .out = o, .panels = panels};

		for (uint32_t i = 0; i < n; i++) {
			o[i] = out[i];
			o[i].y += t * out[i].ldy;
		}
		kern_run(c, (size_t)rows * k * 8, round_part, &r);
		run_job(&j, c);
	}
	return 0;
}

int KERN_FN(linear)(const struct kern_linear_args *a, void *stream)
{
	struct kern_cpu_ctx *c = stream;
	struct kern_arena arena = kern_arena(c);
	struct kern_linear_out set[KERN_LINEAR_MAX];
	struct fast_job j = {.rows = a->rows, .x = a->x, .ldx = a->ldx, .out = set};
	int rc = 0;

	if (!a->n || a->n > KERN_LINEAR_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < a->n; i++)
		if (a->out[i].w->k != a->out[0].w->k || a->out[i].w->col0 != a->out[0].w->col0)
			return -EINVAL;
	/* outputs whose activations are rounded alike run together */
	for (int act = KERN_ACT_F32; act <= KERN_ACT_FP8 && !rc; act++) {
		uint32_t n = 0;

		for (uint32_t i = 0; i < a->n; i++)
			if ((int)kern_act_of(a->act, a->out[i].w) == act)
				set[n++] = a->out[i];
		if (!n)
			continue;
		if (act != KERN_ACT_F32) {
			rc = rounded(a, set, n, (enum kern_act)act, c);
			continue;
		}
		j.n = n;
		j.panels = kern_arena_get(&arena, (size_t)c->n * KERN_PRODUCT_BYTES);
		if (!j.panels)
			return -EINVAL;
		run_job(&j, c);
	}
	return rc;
}

/* ---- wo_a ---- */

/* A thread's scratch: the product's, and a block of outputs. */
enum { GROUPED_BYTES = KERN_PRODUCT_BYTES + KERN_ROW_BLOCK * KERN_PANEL_N * 4 };

struct grouped_job {
	const struct kern_linear_grouped_args *a;
	const float *x; /* rounded, or a->x */
	uint32_t rows;
	float *y;
	char *panels;
};

/*
 * Threads share out the blocks and their outputs. A block's rows need not begin at a group of 16:
 * the products of a group that straddles two blocks are computed for both, and each keeps its own.
 */
static void grouped_rows(
	const struct grouped_job *j, uint32_t block, struct kern_part p, float *panel, float *tmp)
{
	const struct kern_linear_grouped_args *a = j->a;
	uint32_t n = a->w->n, k = a->w->k, per = n / a->groups;
	uint32_t from = MAX((uint32_t)p.begin * KERN_GROUP, block * per);
	uint32_t to = MIN((uint32_t)p.end * KERN_GROUP, (block + 1) * per);
	const float *x[KERN_ROW_BLOCK];

	for (uint32_t t = 0; t < j->rows; t += KERN_ROW_BLOCK) {
		uint32_t rows = MIN(j->rows - t, (uint32_t)KERN_ROW_BLOCK);

		for (uint32_t i = 0; i < rows; i++)
			x[i] = j->x + ((size_t)(t + i) * a->groups + block) * k;
		KERN_FN(product)
		(a->w, (uint32_t)p.begin, (uint32_t)(p.end - p.begin), rows, x, tmp, KERN_PANEL_N,
			NULL, panel);
		for (uint32_t i = 0; i < rows; i++)
			memcpy(j->y + (size_t)(t + i) * n + from,
				tmp + (size_t)i * KERN_PANEL_N + from - p.begin * KERN_GROUP,
				(to - from) * sizeof(float));
	}
}

static void grouped_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct grouped_job *j = job;
	uint32_t per = j->a->w->n / j->a->groups;
	struct kern_part p = kern_part(DIV_UP(j->a->w->n, KERN_GROUP), 1, i, n), q;
	float *panel = (float *)(j->panels + i * (size_t)GROUPED_BYTES);
	float *tmp = panel + KERN_PRODUCT_BYTES / sizeof(float);

	for (size_t g = p.begin; g < p.end; g = q.end) {
		uint32_t first = (uint32_t)(g * KERN_GROUP) / per, last;
		size_t end = MIN(p.end, g + KERN_PANEL_N / KERN_GROUP);

		/* as many groups as lie wholly in one block, or one that straddles */
		q = (struct kern_part){g, g + 1};
		while (q.end < end && ((q.end + 1) * KERN_GROUP - 1) / per == first)
			q.end++;
		last = (uint32_t)(MIN(q.end * KERN_GROUP, (size_t)j->a->w->n) - 1) / per;
		for (uint32_t b = first; b <= last; b++)
			grouped_rows(j, b, q, panel, tmp);
	}
}

int KERN_FN(linear_grouped)(const struct kern_linear_grouped_args *a, void *stream)
{
	struct kern_cpu_ctx *c = stream;
	struct kern_arena arena = kern_arena(c);
	uint32_t k = a->w->k;
	enum kern_act act = kern_act_of(a->act, a->w);
	struct grouped_job j = {a, a->x, a->rows, a->y, NULL};
	float *to;

	if (!a->groups || a->w->n % a->groups)
		return -EINVAL;
	j.panels = kern_arena_get(&arena, c->n * (size_t)GROUPED_BYTES);
	to = kern_arena_get(&arena, (size_t)KERN_ROW_BLOCK * a->groups * k * sizeof(float));
	if (!j.panels || !to)
		return -EINVAL;
	if (act == KERN_ACT_F32) {
		kern_run(c, (size_t)a->rows * a->w->n * k, grouped_part, &j);
		return 0;
	}
	j.x = to;
	for (uint32_t t = 0; t < a->rows; t += KERN_ROW_BLOCK) {
		uint32_t rows = MIN(a->rows - t, (uint32_t)KERN_ROW_BLOCK);
		struct round_job r = {a->x + (size_t)t * a->groups * k, k, rows * a->groups, k,
			a->w->col0, act, a->scale_pow2, NULL, to};

		j.rows = rows;
		j.y = a->y + (size_t)t * a->w->n;
		kern_run(c, (size_t)rows * a->groups * k * 8, round_part, &r);
		kern_run(c, (size_t)rows * a->w->n * k, grouped_part, &j);
	}
	return 0;
}
