/*
 * Vector code: the experts. Pairs are sorted by expert (stably, so by row); each expert's weights
 * are then used for all of its rows.
 */
#include "kernels/cpu/act.h"
#include "kernels/cpu/moe.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/vec.h"

enum { CHUNK = KERN_PANEL_N / KERN_GROUP }; /* groups of outputs worked on at a time */

/* start[e] .. start[e+1]: the pairs of expert e in list. */
struct pairs {
	uint32_t *start, *list;
};

static int sort_pairs(
	struct kern_arena *a, const uint32_t *ids, uint32_t n, uint32_t experts, struct pairs *ret)
{
	struct pairs p;

	p.start = kern_arena_get(a, (experts + 2) * sizeof(uint32_t));
	p.list = kern_arena_get(a, n * sizeof(uint32_t));
	if (!p.start || !p.list)
		return -EINVAL;
	memset(p.start, 0, (experts + 2) * sizeof(uint32_t));
	for (uint32_t i = 0; i < n; i++)
		p.start[ids[i] + 2]++;
	for (uint32_t e = 0; e < experts; e++)
		p.start[e + 2] += p.start[e + 1];
	for (uint32_t i = 0; i < n; i++)
		p.list[p.start[ids[i] + 1]++] = i;
	*ret = p;
	return 0;
}

/* The first expert from e on that is here and has pairs; n: none. */
static uint32_t next_expert(
	const struct pairs *p, const struct kern_weight *const *w, uint32_t n, uint32_t e)
{
	while (e < n && (!w[e] || p->start[e] == p->start[e + 1]))
		e++;
	return e;
}

/* A thread's scratch. */
struct lane {
	float *panel, *g, *u, *rounded; /* g, u: [ROW_BLOCK][PANEL_N]; rounded: [ROW_BLOCK][k] */
	/* what the first of `rounded` are made of, and how: the experts of a few rows share them */
	const float *from[VEC_MR];
	uint32_t k, col0;
	enum kern_act act;
};

/* Groups worked on at a time, so that g and u hold them: of few rows, many. */
static uint32_t groups_at_once(uint32_t rows)
{
	return rows <= VEC_MR ? CHUNK * (KERN_ROW_BLOCK / VEC_MR) : CHUNK;
}

static size_t lane_bytes(uint32_t k)
{
	return KERN_PRODUCT_BYTES + (size_t)KERN_ROW_BLOCK * (2 * KERN_PANEL_N + k) * sizeof(float);
}

static struct lane lane_of(char *scratch, unsigned i, uint32_t k)
{
	struct lane l = {0};

	l.panel = (float *)(scratch + i * ALIGN_UP(lane_bytes(k), (size_t)64));
	l.g = l.panel + KERN_PRODUCT_BYTES / sizeof(float);
	l.u = l.g + KERN_ROW_BLOCK * KERN_PANEL_N;
	l.rounded = l.u + KERN_ROW_BLOCK * KERN_PANEL_N;
	return l;
}

/*
 * Rounds the rows x points at into the lane and points there. Without amax, rows that were rounded
 * in the same way by the call before it are taken from there.
 */
static void round_rows(const float **x, uint32_t rows, const struct kern_weight *w,
	enum kern_act act, bool pow2, const float *const *amax, struct lane *l)
{
	act = kern_act_of(act, w);
	if (act == KERN_ACT_F32)
		return;
	if (amax || l->act != act || l->k != w->k || l->col0 != w->col0)
		memset(l->from, 0, sizeof(l->from));
	l->act = act;
	l->k = w->k;
	l->col0 = w->col0;
	for (uint32_t i = 0; i < rows; i++) {
		float *to = l->rounded + (size_t)i * w->k;

		if (i >= VEC_MR || l->from[i] != x[i])
			kern_act_round(x[i], w->k, w->col0, act, pow2, amax ? amax[i] : NULL, to);
		if (i < VEC_MR)
			l->from[i] = x[i];
		x[i] = to;
	}
}

struct up_job {
	const struct kern_moe_up_args *a;
	struct pairs pairs;
	char *scratch;
	uint32_t k;
};

/* kern_swiglu() of n outputs; g and u have whole vectors to read. */
static void swiglu(const float *g, const float *u, float limit, float weight, uint32_t n, float *h)
{
	v16 top = v16_set1(limit), low = v16_set1(-limit), one = v16_set1(1.0f);

	for (uint32_t o = 0; o < n; o += KERN_LANES) {
		v16 a = v16_min(top, v16_load(g + o)); /* NaN stays: second operand */
		v16 b = v16_max(low, v16_min(top, v16_load(u + o)));
		v16 e = v16_exp(v16_mul(a, v16_set1(-1.0f)));

		a = v16_mul(v16_mul(v16_div(a, v16_add(one, e)), b), v16_set1(weight));
		v16_store_n(h + o, a, MIN(n - o, (uint32_t)KERN_LANES));
	}
}

/* h of outputs 16*begin .. of the pairs in list (NULL: of rows 0 .. n-1, the shared expert). */
static void up_expert(const struct up_job *j, const struct kern_weight *w1,
	const struct kern_weight *w3, const uint32_t *list, uint32_t n, struct kern_part p,
	const uint8_t *next, struct lane *l)
{
	const struct kern_moe_up_args *a = j->a;
	const float *x[KERN_ROW_BLOCK];

	for (uint32_t t = 0; t < n; t += KERN_ROW_BLOCK) {
		uint32_t rows = MIN(n - t, (uint32_t)KERN_ROW_BLOCK), most = groups_at_once(rows);
		size_t ld = (size_t)most * KERN_GROUP;

		for (uint32_t i = 0; i < rows; i++)
			x[i] = a->x + (size_t)(list ? list[t + i] / a->topk : t + i) * j->k;
		round_rows(x, rows, w1, a->act, a->scale_pow2, NULL, l);
		for (size_t g = p.begin; g < p.end; g += most) {
			uint32_t ng = (uint32_t)MIN(p.end - g, (size_t)most);
			uint32_t first = (uint32_t)g * KERN_GROUP;
			uint32_t width = MIN(w1->n - first, ng * KERN_GROUP);

			KERN_FN(product)
			(w1, (uint32_t)g, ng, rows, x, l->g, ld, kern_product_at(w3, g), l->panel);
			KERN_FN(product)
			(w3, (uint32_t)g, ng, rows, x, l->u, ld,
				g + ng < p.end ? kern_product_at(w1, g + ng) : next, l->panel);
			for (uint32_t i = 0; i < rows; i++) {
				float weight = list ? a->weights[list[t + i]] : 1.0f;
				float *h = list ? a->h + (size_t)list[t + i] * w1->n
						: a->shared_h + (size_t)(t + i) * w1->n;

				swiglu(l->g + i * ld, l->u + i * ld, a->limit, weight, width,
					h + first);
			}
		}
	}
}

/* Threads share out the outputs of every expert. */
static void up_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct up_job *j = job;
	const struct kern_moe_up_args *a = j->a;
	struct lane l = lane_of(j->scratch, i, j->k);
	struct kern_part p = kern_part(DIV_UP(a->inter, KERN_GROUP), 1, i, n);
	struct kern_part shared = {0, 0};
	const uint8_t *last = NULL;

	if (a->shared_w1) {
		shared = kern_part(DIV_UP(a->shared_w1->n, KERN_GROUP), 1, i, n);
		last = kern_product_at(a->shared_w1, shared.begin);
	}
	for (uint32_t e = next_expert(&j->pairs, a->w1, a->experts, 0), after; e < a->experts;
		e = after) {
		uint32_t from = j->pairs.start[e], to = j->pairs.start[e + 1];

		after = next_expert(&j->pairs, a->w1, a->experts, e + 1);
		up_expert(j, a->w1[e], a->w3[e], j->pairs.list + from, to - from, p,
			after < a->experts ? kern_product_at(a->w1[after], p.begin) : last, &l);
	}
	if (a->shared_w1)
		up_expert(j, a->shared_w1, a->shared_w3, NULL, a->rows, shared, NULL, &l);
}

int KERN_FN(moe_up)(const struct kern_moe_up_args *a, void *stream)
{
	struct kern_cpu_ctx *c = stream;
	struct kern_arena arena = kern_arena(c);
	struct up_job j = {.a = a, .k = kern_moe_up_k(a)};
	size_t work = (size_t)a->rows * j.k * 2 *
		      ((size_t)a->topk * a->inter + (a->shared_w1 ? a->shared_w1->n : 0));

	if (kern_moe_up_check(a) ||
		sort_pairs(&arena, a->ids, a->rows * a->topk, a->experts, &j.pairs))
		return -EINVAL;
	j.scratch = kern_arena_get(&arena, c->n * ALIGN_UP(lane_bytes(j.k), (size_t)64));
	if (!j.scratch)
		return -EINVAL;
	kern_run(c, work, up_part, &j);
	return 0;
}

struct down_job {
	const struct kern_moe_down_args *a;
	struct pairs pairs;
	char *scratch;
	uint32_t k;
};

/* Adds outputs of one expert to the rows of its pairs (list NULL: the shared one, every row). */
static void down_expert(const struct down_job *j, const struct kern_weight *w, const uint32_t *list,
	uint32_t n, struct kern_part p, const uint8_t *next, struct lane *l)
{
	const struct kern_moe_down_args *a = j->a;
	const float *src = list ? a->h : a->shared_h, *am = list ? a->amax : a->shared_amax;
	uint32_t ng_act = kern_act_groups(w->k, w->col0);
	const float *x[KERN_ROW_BLOCK], *amax[KERN_ROW_BLOCK];

	for (uint32_t t = 0; t < n; t += KERN_ROW_BLOCK) {
		uint32_t rows = MIN(n - t, (uint32_t)KERN_ROW_BLOCK), most = groups_at_once(rows);
		size_t ld = (size_t)most * KERN_GROUP;

		for (uint32_t i = 0; i < rows; i++) {
			size_t q = list ? list[t + i] : t + i;

			x[i] = src + q * w->k;
			amax[i] = am ? am + q * ng_act : NULL;
		}
		round_rows(x, rows, w, a->act, a->scale_pow2, amax, l);
		for (size_t g = p.begin; g < p.end; g += most) {
			uint32_t ng = (uint32_t)MIN(p.end - g, (size_t)most);
			uint32_t first = (uint32_t)g * KERN_GROUP;
			uint32_t width = MIN(w->n - first, ng * KERN_GROUP);

			KERN_FN(product)
			(w, (uint32_t)g, ng, rows, x, l->g, ld,
				g + ng < p.end ? kern_product_at(w, g + ng) : next, l->panel);
			for (uint32_t i = 0; i < rows; i++) {
				uint32_t row = list ? list[t + i] / a->topk : t + i;
				float *y = a->y + (size_t)row * a->d + first;

				for (uint32_t o = 0; o < width; o++)
					y[o] = y[o] + l->g[i * ld + o];
			}
		}
	}
}

/* Threads share out the outputs; each adds its own, experts ascending, then the shared one. */
static void down_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct down_job *j = job;
	const struct kern_moe_down_args *a = j->a;
	struct lane l = lane_of(j->scratch, i, j->k);
	struct kern_part p = kern_part(DIV_UP(a->d, KERN_GROUP), 1, i, n);
	size_t first = p.begin * KERN_GROUP, end = MIN(p.end * KERN_GROUP, (size_t)a->d);
	const uint8_t *last = a->shared_w2 ? kern_product_at(a->shared_w2, p.begin) : NULL;

	if (first >= end)
		return;
	for (uint32_t t = 0; t < a->rows; t++)
		memset(a->y + (size_t)t * a->d + first, 0, (end - first) * sizeof(float));
	for (uint32_t e = next_expert(&j->pairs, a->w2, a->experts, 0), after; e < a->experts;
		e = after) {
		uint32_t from = j->pairs.start[e], to = j->pairs.start[e + 1];

		after = next_expert(&j->pairs, a->w2, a->experts, e + 1);
		down_expert(j, a->w2[e], j->pairs.list + from, to - from, p,
			after < a->experts ? kern_product_at(a->w2[after], p.begin) : last, &l);
	}
	if (a->shared_w2)
		down_expert(j, a->shared_w2, NULL, a->rows, p, NULL, &l);
}

int KERN_FN(moe_down)(const struct kern_moe_down_args *a, void *stream)
{
	struct kern_cpu_ctx *c = stream;
	struct kern_arena arena = kern_arena(c);
	struct down_job j = {.a = a, .k = kern_moe_down_k(a)};
	size_t work = (size_t)a->rows * a->d *
		      ((size_t)a->topk * a->inter + (a->shared_w2 ? a->shared_w2->k : 0));

	if (kern_moe_down_check(a) ||
		sort_pairs(&arena, a->ids, a->rows * a->topk, a->experts, &j.pairs))
		return -EINVAL;
	j.scratch = kern_arena_get(&arena, c->n * ALIGN_UP(lane_bytes(j.k), (size_t)64));
	if (!j.scratch)
		return -EINVAL;
	kern_run(c, work, down_part, &j);
	return 0;
}
