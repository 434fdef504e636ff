/* Hyper-connections: coefficients, the streams joined, the streams updated. */
#include "kernels/cpu/product.h"
#include "kernels/cpu/rotate.h"
#include "kernels/cpu/run.h"

/*
 * Coefficients from m = fn x (24 numbers, already scaled by rho) for up to LANES rows, one a lane:
 * every lane goes through the same operations whatever stands beside it. Sums run over ascending
 * indices.
 */
enum { LANES = 16 };

struct lanes {
	float x[LANES];
};

/* One number of every row; lanes without a row repeat the last one. */
static void gather(struct lanes *to, const float *m, int k, uint32_t rows)
{
	for (uint32_t l = 0; l < LANES; l++)
		to->x[l] = m[MIN(l, rows - 1) * KERN_HC_COEF + (uint32_t)k];
}

/* c[0..3] /= c[0] + c[1] + c[2] + c[3] + eps */
static void normalise(struct lanes *c[4], float eps)
{
	for (int l = 0; l < LANES; l++) {
		float s = c[0]->x[l] + c[1]->x[l] + c[2]->x[l] + c[3]->x[l] + eps;

		c[0]->x[l] /= s;
		c[1]->x[l] /= s;
		c[2]->x[l] /= s;
		c[3]->x[l] /= s;
	}
}

/* Softmax of four logits, plus eps. */
static void softmax(struct lanes *c[4], float eps)
{
	for (int l = 0; l < LANES; l++) {
		float a = c[0]->x[l], b = c[1]->x[l], d = c[2]->x[l], e = c[3]->x[l], s;
		float max = a > -INFINITY ? a : -INFINITY;

		max = b > max ? b : max;
		max = d > max ? d : max;
		max = e > max ? e : max;
		a = kern_expf(a - max);
		b = kern_expf(b - max);
		d = kern_expf(d - max);
		e = kern_expf(e - max);
		s = a + b + d + e;
		c[0]->x[l] = a / s + eps;
		c[1]->x[l] = b / s + eps;
		c[2]->x[l] = d / s + eps;
		c[3]->x[l] = e / s + eps;
	}
}

/* comb[rows][4][4] */
static void combinations(
	const struct kern_hc_coef_args *a, const float *m, uint32_t rows, float *comb)
{
	struct lanes c[16], *row[4][4], *col[4][4];

	for (int i = 0; i < 4; i++)
		for (int j = 0; j < 4; j++) {
			struct lanes *x = row[i][j] = col[j][i] = &c[4 * i + j];

			gather(x, m, 8 + 4 * i + j, rows);
			for (int l = 0; l < LANES; l++)
				x->x[l] = x->x[l] * a->scale[2] + a->base[8 + 4 * i + j];
		}
	for (int i = 0; i < 4; i++)
		softmax(row[i], a->hc_eps);
	for (uint32_t it = 0; it < a->iters; it++) {
		for (int i = 0; it && i < 4; i++)
			normalise(row[i], a->hc_eps);
		for (int j = 0; j < 4; j++)
			normalise(col[j], a->hc_eps);
	}
	for (uint32_t l = 0; l < rows; l++)
		for (int i = 0; i < 16; i++)
			comb[16 * l + (uint32_t)i] = c[i].x[l];
}

#ifdef __AVX2__

/*
 * The same for few rows: the 16 numbers of a row in one vector, by rows of comb, and up to FEW rows
 * side by side, because every step waits for the one before it.
 */
enum { FEW = 4 };

VEC_INLINE v16 sum_rows(v16 x)
{
	return v16_add(v16_add(v16_add(v16_spread(x, 0), v16_spread(x, 1)), v16_spread(x, 2)),
		v16_spread(x, 3));
}

VEC_INLINE v16 sum_columns(v16 x)
{
	return v16_add(
		v16_add(v16_add(v16_quad(x, 0), v16_quad(x, 1)), v16_quad(x, 2)), v16_quad(x, 3));
}

VEC_INLINE v16 softmax_rows(v16 x, v16 eps)
{
	v16 max = v16_max(v16_spread(x, 0), v16_set1(-INFINITY)), e;

	max = v16_max(v16_spread(x, 1), max);
	max = v16_max(v16_spread(x, 2), max);
	max = v16_max(v16_spread(x, 3), max);
	e = v16_exp(v16_sub(x, max));
	return v16_add(v16_div(e, sum_rows(e)), eps);
}

/* comb[rows][4][4] of n = rows, or of FEW >= rows; n is a constant. */
VEC_INLINE void few_combinations(
	const struct kern_hc_coef_args *a, const float *m, const int n, uint32_t rows, float *comb)
{
	v16 c[FEW], eps = v16_set1(a->hc_eps), base = v16_load(a->base + 8);

#pragma GCC unroll 4
	for (int r = 0; r < n; r++) {
		const float *own = m + MIN((uint32_t)r, rows - 1) * KERN_HC_COEF + 8;

		c[r] = v16_add(v16_mul(v16_load(own), v16_set1(a->scale[2])), base);
		c[r] = softmax_rows(c[r], eps);
	}
	for (uint32_t it = 0; it < a->iters; it++) {
#pragma GCC unroll 4
		for (int r = 0; r < n; r++)
			if (it)
				c[r] = v16_div(c[r], v16_add(sum_rows(c[r]), eps));
#pragma GCC unroll 4
		for (int r = 0; r < n; r++)
			c[r] = v16_div(c[r], v16_add(sum_columns(c[r]), eps));
	}
#pragma GCC unroll 4
	for (int r = 0; r < n; r++)
		if ((uint32_t)r < rows)
			v16_store(comb + 16 * r, c[r]);
}

/* pre and post of a row: eight sigmoids at once. */
static void gates(const struct kern_hc_coef_args *a, const float *m, float *pre, float *post)
{
	float scale[KERN_LANES] = {0}, g[KERN_LANES];
	v16 one = v16_set1(1), x;

	for (int i = 0; i < 8; i++)
		scale[i] = a->scale[i / 4];
	x = v16_add(v16_mul(v16_load_n(m, 8), v16_load(scale)), v16_load_n(a->base, 8));
	x = v16_div(one, v16_add(one, v16_exp(v16_mul(x, v16_set1(-1.0f)))));
	v16_store(g, x);
	for (int i = 0; i < 4; i++) {
		pre[i] = g[i] + a->hc_eps;
		post[i] = 2.0f * g[4 + i];
	}
}

static void coefficients(const struct kern_hc_coef_args *a, const float *m, uint32_t rows,
	float *pre, float *post, float *comb)
{
	for (uint32_t l = 0; l < rows; l++)
		gates(a, m + l * KERN_HC_COEF, pre + 4 * l, post + 4 * l);
	if (rows > 3 * FEW) {
		combinations(a, m, rows, comb);
		return;
	}
	if (rows == 1) {
		few_combinations(a, m, 1, 1, comb);
		return;
	}
	for (uint32_t l = 0; l < rows; l += FEW)
		few_combinations(
			a, m + l * KERN_HC_COEF, FEW, MIN(rows - l, (uint32_t)FEW), comb + 16 * l);
}

#else

static void coefficients(const struct kern_hc_coef_args *a, const float *m, uint32_t rows,
	float *pre, float *post, float *comb)
{
	for (uint32_t l = 0; l < rows; l++, m += KERN_HC_COEF)
		for (int i = 0; i < 4; i++) {
			pre[4 * l + (uint32_t)i] =
				kern_sigmoid(m[i] * a->scale[0] + a->base[i]) + a->hc_eps;
			post[4 * l + (uint32_t)i] =
				2.0f * kern_sigmoid(m[4 + i] * a->scale[1] + a->base[4 + i]);
		}
	combinations(a, m - (size_t)rows * KERN_HC_COEF, rows, comb);
}

#endif

struct coef_job {
	const struct kern_hc_coef_args *a;
	float *m;     /* [rows][24] */
	char *panels; /* threads compute m of their own rows first, or NULL: m is there */
};

#ifdef __AVX2__

/* Rows for each thread from which on each computes its own: x lies where hc_post put it. */
enum { COEF_OWN_ROWS = 4 };

static void coef_products(const struct coef_job *j, struct kern_part p, unsigned i)
{
	size_t width = (size_t)KERN_STREAMS * j->a->d;
	const float *x[KERN_ROW_BLOCK];

	for (size_t t = p.begin; t < p.end; t++)
		x[t - p.begin] = j->a->x + t * width;
	KERN_FN(product)
	(j->a->fn, 0, DIV_UP(KERN_HC_COEF, KERN_GROUP), (uint32_t)(p.end - p.begin), x,
		j->m + p.begin * KERN_HC_COEF, KERN_HC_COEF, NULL,
		(float *)(j->panels + (size_t)i * KERN_PRODUCT_BYTES));
}

static char *coef_panels(const struct kern_cpu_ctx *c, uint32_t rows)
{
	struct kern_arena arena = kern_arena(c);

	return rows < COEF_OWN_ROWS * c->n
		       ? NULL
		       : kern_arena_get(&arena, (size_t)c->n * KERN_PRODUCT_BYTES);
}

#else

static void coef_products(const struct coef_job *j, struct kern_part p, unsigned i)
{
}

static char *coef_panels(const struct kern_cpu_ctx *c, uint32_t rows)
{
	return NULL;
}

#endif

static void coef_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct coef_job *j = job;
	const struct kern_hc_coef_args *a = j->a;
	struct kern_part p = kern_part(a->rows, 1, i, n);
	size_t width = (size_t)KERN_STREAMS * a->d;

	if (j->panels && p.begin < p.end)
		coef_products(j, p, i);
	for (size_t t = p.begin; t < p.end; t++) {
		float rho = kern_rms_scale(a->x + t * width, width, a->rms_eps);

		for (int k = 0; k < KERN_HC_COEF; k++)
			j->m[t * KERN_HC_COEF + k] = rho * j->m[t * KERN_HC_COEF + k];
	}
	for (size_t t = p.begin; t < p.end; t += LANES)
		coefficients(a, j->m + t * KERN_HC_COEF, (uint32_t)MIN(p.end - t, (size_t)LANES),
			a->pre + 4 * t, a->post + 4 * t, a->comb + 16 * t);
}

/* m of all rows, outputs shared out. */
static int coef_linear(const struct kern_hc_coef_args *a, float *m, struct kern_cpu_ctx *c)
{
	uint32_t width = KERN_STREAMS * a->d;
	struct kern_linear_args lin = {.rows = a->rows, .n = 1, .x = a->x, .ldx = width};

	lin.out[0] = (struct kern_linear_out){a->fn, m, KERN_HC_COEF};
	return KERN_FN(linear)(&lin, c);
}

int KERN_FN(hc_coef)(const struct kern_hc_coef_args *a, void *stream)
{
	struct kern_cpu_ctx *c = stream;
	uint32_t width = KERN_STREAMS * a->d;
	float m[KERN_ROW_BLOCK * KERN_HC_COEF];

	if (a->fn->k != width || a->fn->n != KERN_HC_COEF)
		return -EINVAL;
	for (uint32_t t = 0; t < a->rows; t += KERN_ROW_BLOCK) {
		struct kern_hc_coef_args b = *a;
		struct coef_job j = {&b, m, NULL};
		int rc = 0;

		b.rows = MIN(a->rows - t, (uint32_t)KERN_ROW_BLOCK);
		b.x += (size_t)t * width;
		b.pre += 4 * (size_t)t;
		b.post += 4 * (size_t)t;
		b.comb += 16 * (size_t)t;
		j.panels = coef_panels(c, b.rows);
		if (!j.panels)
			rc = coef_linear(&b, m, c);
		if (rc)
			return rc;
		kern_run(c, (size_t)b.rows * (width + 4096), coef_part, &j);
	}
	return 0;
}

static void hc_expand_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct kern_hc_expand_args *a = job;
	struct kern_part p = kern_part(a->rows, 1, i, n);

	for (size_t t = p.begin; t < p.end; t++)
		for (size_t s = 0; s < KERN_STREAMS; s++)
			memcpy(a->y + (t * KERN_STREAMS + s) * a->d, a->x + t * a->d,
				a->d * sizeof(float));
}

int KERN_FN(hc_expand)(const struct kern_hc_expand_args *a, void *stream)
{
	kern_run(stream, (size_t)a->rows * a->d * KERN_STREAMS, hc_expand_part, a);
	return 0;
}

/* y = sum of pre[i] times stream i. */
static void join_row(const float *x, const float *pre, uint32_t d, float *y)
{
	uint32_t i = 0;

#ifdef __AVX2__
	for (; i + LANES <= d; i += LANES) {
		v16 s = v16_mul(v16_set1(pre[0]), v16_load(x + i));

		s = v16_fma(v16_set1(pre[1]), v16_load(x + d + i), s);
		s = v16_fma(v16_set1(pre[2]), v16_load(x + 2 * d + i), s);
		s = v16_fma(v16_set1(pre[3]), v16_load(x + 3 * d + i), s);
		v16_store(y + i, s);
	}
#endif
	for (; i < d; i++) {
		float s = pre[0] * x[i];

		s = kern_fma(pre[1], x[d + i], s);
		s = kern_fma(pre[2], x[2 * d + i], s);
		y[i] = kern_fma(pre[3], x[3 * d + i], s);
	}
}

static void hc_pre_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct kern_hc_pre_args *a = job;
	struct kern_part p = kern_part(a->rows, 1, i, n);

	for (size_t t = p.begin; t < p.end; t++)
		join_row(a->x + t * KERN_STREAMS * a->d, a->pre + 4 * t, a->d, a->y + t * a->d);
}

int KERN_FN(hc_pre)(const struct kern_hc_pre_args *a, void *stream)
{
	kern_run(stream, (size_t)a->rows * a->d * KERN_STREAMS, hc_pre_part, a);
	return 0;
}

static void hc_pre_norm_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct kern_hc_pre_norm_args *a = job;
	uint32_t d = a->pre.d;
	struct kern_part p = kern_part(a->pre.rows, 1, i, n);

	for (size_t t = p.begin; t < p.end; t++) {
		float *y = a->pre.y + t * d;

		join_row(a->pre.x + t * KERN_STREAMS * d, a->pre.pre + 4 * t, d, y);
		kern_norm_row(y, a->w, d, a->eps, y);
	}
}

int KERN_FN(hc_pre_norm)(const struct kern_hc_pre_norm_args *a, void *stream)
{
	kern_run(stream, (size_t)a->pre.rows * a->pre.d * 20, hc_pre_norm_part, a);
	return 0;
}

/* Streams of one row, in place or not: a column is read as a whole before it is written. */
static void post_row(
	const float *x, const float *o, const float *post, const float *m, uint32_t d, float *y)
{
	uint32_t i = 0;

#ifdef __AVX2__
	for (; i + LANES <= d; i += LANES) {
		v16 out = v16_load(o + i), in[KERN_STREAMS];

#pragma GCC unroll 4
		for (uint32_t k = 0; k < KERN_STREAMS; k++)
			in[k] = v16_load(x + k * d + i);
#pragma GCC unroll 4
		for (uint32_t k = 0; k < KERN_STREAMS; k++) {
			v16 s = v16_mul(v16_set1(post[k]), out);

#pragma GCC unroll 4
			for (uint32_t j = 0; j < KERN_STREAMS; j++)
				s = v16_fma(v16_set1(m[4 * j + k]), in[j], s);
			v16_store(y + k * d + i, s);
		}
	}
#endif
	for (; i < d; i++) {
		float in[KERN_STREAMS];

		for (uint32_t k = 0; k < KERN_STREAMS; k++)
			in[k] = x[k * d + i];
		for (uint32_t k = 0; k < KERN_STREAMS; k++) {
			float s = post[k] * o[i];

			for (uint32_t j = 0; j < KERN_STREAMS; j++)
				s = kern_fma(m[4 * j + k], in[j], s);
			y[k * d + i] = s;
		}
	}
}

static void hc_post_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct kern_hc_post_args *a = job;
	size_t width = (size_t)KERN_STREAMS * a->d;
	struct kern_part p = kern_part(a->rows, 1, i, n);

	for (size_t t = p.begin; t < p.end; t++)
		post_row(a->x + t * width, a->o + t * a->d, a->post + 4 * t, a->comb + 16 * t, a->d,
			a->y + t * width);
}

int KERN_FN(hc_post)(const struct kern_hc_post_args *a, void *stream)
{
	kern_run(stream, (size_t)a->rows * a->d * 20, hc_post_part, a);
	return 0;
}

/* Rows from output t on that lie one after the other in x, at most KERN_ROW_BLOCK. */
static uint32_t head_run(const struct kern_hc_head_args *a, uint32_t t)
{
	uint32_t n = 1, most = MIN(a->n - t, (uint32_t)KERN_ROW_BLOCK);

	while (n < most && (!a->rows || a->rows[t + n] == a->rows[t] + n))
		n++;
	return n;
}

int KERN_FN(hc_head)(const struct kern_hc_head_args *a, void *stream)
{
	uint32_t width = KERN_STREAMS * a->d;
	float m[KERN_ROW_BLOCK * KERN_STREAMS];

	if (a->fn->k != width || a->fn->n != KERN_STREAMS)
		return -EINVAL;
	for (uint32_t t = 0, run; t < a->n; t += run) {
		const float *x = a->x + (size_t)(a->rows ? a->rows[t] : t) * width;
		struct kern_linear_args lin = {.n = 1, .x = x, .ldx = width};
		int rc;

		lin.rows = run = head_run(a, t);
		lin.out[0] = (struct kern_linear_out){a->fn, m, KERN_STREAMS};
		rc = KERN_FN(linear)(&lin, stream);
		if (rc)
			return rc;
		for (uint32_t i = 0; i < run; i++, x += width) {
			float *pre = m + i * KERN_STREAMS,
			      rho = kern_rms_scale(x, width, a->rms_eps);

			for (int k = 0; k < KERN_STREAMS; k++)
				pre[k] = kern_sigmoid(rho * pre[k] * a->scale[0] + a->base[k]) +
					 a->hc_eps;
			join_row(x, pre, a->d, a->y + (size_t)(t + i) * a->d);
		}
	}
	return 0;
}
