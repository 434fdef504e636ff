/*
 * Dense products and experts: every weight type, slice and rounding against double loops; equal
 * bits for every variant, thread count and number of rows.
 */
#include <math.h>

#include "tests/kern/kt.h"

struct kind {
	enum kern_dtype dtype;
	enum kern_scale scale;
};
static const struct kind KINDS[] = {{KERN_F32, KERN_SCALE_NONE}, {KERN_F16, KERN_SCALE_NONE},
	{KERN_BF16, KERN_SCALE_NONE}, {KERN_FP8, KERN_SCALE_E8M0}, {KERN_FP8, KERN_SCALE_F32},
	{KERN_FP4, KERN_SCALE_E8M0}};

/* Rounds to bf16 by arithmetic. */
static float plain_bf16(float x)
{
	int e;
	double m = frexp(x, &e);

	return (float)ldexp(nearbyint(ldexp(m, 8)), e - 8);
}

/* Nearest e4m3 value of x / s, times s. */
static float plain_fp8(float x, double s)
{
	double a = fabs(x / s), best = 0, dist = INFINITY;

	for (int c = 0; c < 0x7f; c++) {
		double v = kt_e4m3((uint8_t)c), d = fabs(v - a);

		if (d < dist || (d == dist && c % 2 == 0)) {
			dist = d;
			best = v;
		}
	}
	return (float)((x < 0 ? -best : best) * s);
}

/* The activations a product sees. */
static void plain_act(const float *x, uint32_t k, uint32_t col0, enum kern_act act, bool pow2,
	const struct kind *kind, float *y)
{
	bool fp8 = act == KERN_ACT_FP8 && (kind->dtype == KERN_FP8 || kind->dtype == KERN_FP4);

	for (uint32_t i = 0; i < k; i++) {
		double amax = 1e-4, s;

		if (act == KERN_ACT_F32) {
			y[i] = x[i];
			continue;
		}
		if (!fp8) {
			y[i] = plain_bf16(x[i]);
			continue;
		}
		for (uint32_t j = 0; j < k; j++)
			if ((col0 + j) / 128 == (col0 + i) / 128)
				amax = fmax(amax, fabs(x[j]));
		if (pow2)
			for (s = 0x1p-60; s * 448 < (float)amax;)
				s *= 2;
		else
			s = (float)amax / 448.0f;
		y[i] = plain_fp8(x[i], s);
	}
}

/* y[rows][n] in double, and a bound of its magnitude for tolerances. */
static void plain_linear(const float *x, size_t ldx, uint32_t rows, const struct kt_weight *w,
	enum kern_act act, bool pow2, const struct kind *kind, double *y)
{
	uint32_t k = w->w.k, n = w->w.n;
	float *a = malloc(k * sizeof(float));

	for (uint32_t t = 0; t < rows; t++) {
		plain_act(x + t * ldx, k, w->w.col0, act, pow2, kind, a);
		for (uint32_t o = 0; o < n; o++) {
			double s = 0;

			for (uint32_t i = 0; i < k; i++)
				s += a[i] * w->value[(size_t)o * k + i];
			y[(size_t)t * n + o] = s;
		}
	}
	free(a);
}

static void check_linear(const struct kind *kind, uint32_t rows, uint32_t n, uint32_t k,
	uint32_t row0, uint32_t col0, enum kern_act act, bool pow2)
{
	struct kt_weight w = kt_weight(kind->dtype, kind->scale, n, k, row0, col0);
	size_t ldx = k + 5, ldy = n + 3;
	float *x = kt_normals(rows * ldx, 1), *base = NULL;
	double *want = kt_new(sizeof(double) * rows * n);

	plain_linear(x, ldx, rows, &w, act, pow2, kind, want);
	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		float *y = kt_floats(rows * ldy);
		struct kern_linear_args a = {.rows = rows,
			.n = 1,
			.x = x,
			.ldx = ldx,
			.act = act,
			.scale_pow2 = pow2,
			.out = {{&w.w, y, ldy}}};

		assert_int_equal(c->ops.linear(&a, &c->ctx), 0);
		if (base) {
			kt_same(c->variant, y, base, rows * ldy * sizeof(float));
			continue;
		}
		base = y;
		for (uint32_t t = 0; t < rows; t++)
			kt_close("linear", y + t * ldy, want + (size_t)t * n, n, 2e-5, 1e-5);
	}
	kt_free_all();
}

static void test_linear_every_type_and_boundary_size(void **state)
{
	static const uint32_t sizes[] = {
		1, 3, 4, 5, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257};

	for (size_t i = 0; i < ARRAY_LEN(KINDS); i++)
		for (int r = 0; r < 14; r++) {
			uint32_t n = sizes[kt_below(ARRAY_LEN(sizes))];
			uint32_t k = sizes[kt_below(ARRAY_LEN(sizes))];
			uint32_t rows = r < 9 ? (uint32_t)r + 1 : 10 + kt_below(100);
			uint32_t row0 = kt_below(300), col0 = kt_below(150) * 2;

			if (KINDS[i].dtype == KERN_FP4)
				k = (k + 1) / 2 * 2;
			check_linear(&KINDS[i], rows, n, k, row0, col0, KERN_ACT_F32, true);
		}
}

static void test_linear_rounds_activations_as_asked(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(KINDS); i++)
		for (int r = 0; r < 2; r++) {
			uint32_t col0 = r ? 32 * kt_below(8) : 0,
				 k = r ? 96 + 32 * kt_below(8) : 256;

			check_linear(
				&KINDS[i], 1 + kt_below(9), 33, k, 7, col0, KERN_ACT_BF16, true);
			check_linear(
				&KINDS[i], 1 + kt_below(9), 20, k, 7, col0, KERN_ACT_FP8, true);
			check_linear(
				&KINDS[i], 100 + kt_below(9), 4, k, 7, col0, KERN_ACT_FP8, false);
		}
}

/* A slice that cuts a 128-group uses the whole group's amax, given by act_amax over all slices. */
static void test_linear_slices_share_amax(void **state)
{
	const struct kind kind = {KERN_FP8, KERN_SCALE_E8M0};
	uint32_t rows = 3, k = 320, cut = 160;
	float *x = kt_normals(rows * k, 1), *am[2], *all = kt_floats(rows * 3);
	struct kt_weight w = kt_weight(kind.dtype, kind.scale, 16, cut, 0, cut);
	struct kt_config *c = &kt_all[kt_count - 1];
	struct kern_linear_args a = {.rows = rows,
		.n = 1,
		.x = x + cut,
		.ldx = k,
		.act = KERN_ACT_FP8,
		.scale_pow2 = true};
	float *y = kt_floats(rows * 16), *rounded = kt_floats(rows * k);

	for (int h = 0; h < 2; h++) {
		struct kern_act_amax_args m = {
			.rows = rows, .k = cut, .col0 = h * cut, .x = x + h * cut, .ldx = k};

		m.amax = am[h] = kt_floats(rows * 2);
		assert_int_equal(c->ops.act_amax(&m, &c->ctx), 0);
	}
	for (uint32_t t = 0; t < rows; t++) {
		all[3 * t] = am[0][2 * t];
		all[3 * t + 1] = fmaxf(am[0][2 * t + 1], am[1][2 * t]);
		all[3 * t + 2] = am[1][2 * t + 1];
		/* groups 1 and 2 are this slice's */
		am[1][2 * t] = all[3 * t + 1];
		plain_act(x + t * k, k, 0, KERN_ACT_FP8, true, &kind, rounded + t * k);
	}
	a.amax = am[1];
	a.out[0] = (struct kern_linear_out){&w.w, y, 16};
	assert_int_equal(c->ops.linear(&a, &c->ctx), 0);
	for (uint32_t t = 0; t < rows; t++)
		for (uint32_t o = 0; o < 16; o++) {
			double s = 0;

			for (uint32_t i = 0; i < cut; i++)
				s += rounded[t * k + cut + i] * w.value[o * cut + i];
			kt_close("slice", y + t * 16 + o, &s, 1, 1e-5, 1e-5);
		}
	kt_free_all();
}

/* Row r's bits are the same alone, among 2048, in any order and at any place. */
static void test_linear_rows_do_not_depend_on_company(void **state)
{
	enum { ROWS = 2048, N = 72, K = 300 };
	static const uint32_t counts[] = {1, 2, 5, 6, 7, 8, 95, 96, 97, 191, 193, 1000, 2048};

	for (size_t i = 0; i < ARRAY_LEN(KINDS); i++)
		for (size_t act = 0; act < 2; act++) {
			struct kt_weight w =
				kt_weight(KINDS[i].dtype, KINDS[i].scale, N, K, 40, 36);
			float *x = kt_normals(ROWS * K, 1), *all = kt_floats(ROWS * N);
			float *some = kt_floats(ROWS * N);
			struct kt_config *c = &kt_all[kt_count - 1];
			struct kern_linear_args a = {.rows = ROWS,
				.n = 1,
				.x = x,
				.ldx = K,
				.act = act ? KERN_ACT_FP8 : KERN_ACT_F32,
				.out = {{&w.w, all, N}}};

			assert_int_equal(c->ops.linear(&a, &c->ctx), 0);
			for (size_t j = 0; j < ARRAY_LEN(counts); j++) {
				uint32_t first = kt_below(ROWS - counts[j] + 1);

				c = &kt_all[kt_count > 4 ? 4 + kt_below(kt_count - 4) : 0];
				a.rows = counts[j];
				a.x = x + first * K;
				a.out[0].y = some;
				kt_poison(some, ROWS * N * sizeof(float));
				assert_int_equal(c->ops.linear(&a, &c->ctx), 0);
				kt_same("rows", some, all + first * N,
					counts[j] * N * sizeof(float));
			}
			kt_free_all();
		}
}

static void test_linear_several_outputs_share_x(void **state)
{
	uint32_t rows = 9, k = 130;
	struct kt_weight w[3] = {kt_weight(KERN_BF16, KERN_SCALE_NONE, 24, k, 0, 0),
		kt_weight(KERN_FP8, KERN_SCALE_E8M0, 65, k, 0, 0),
		kt_weight(KERN_FP4, KERN_SCALE_E8M0, 8, k, 0, 0)};
	float *x = kt_normals(rows * k, 1);

	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		struct kern_linear_args a = {.rows = rows,
			.n = 3,
			.x = x,
			.ldx = k,
			.act = KERN_ACT_FP8,
			.scale_pow2 = true};

		for (int i = 0; i < 3; i++)
			a.out[i] = (struct kern_linear_out){
				&w[i].w, kt_floats(rows * w[i].w.n), w[i].w.n};
		assert_int_equal(c->ops.linear(&a, &c->ctx), 0);
		for (int i = 0; i < 3; i++) {
			struct kern_linear_args one = a;
			float *y = kt_floats(rows * w[i].w.n);

			one.n = 1;
			one.out[0] = a.out[i];
			one.out[0].y = y;
			assert_int_equal(c->ops.linear(&one, &c->ctx), 0);
			kt_same("one of three", a.out[i].y, y, rows * w[i].w.n * sizeof(float));
		}
		a.n = 0;
		assert_int_equal(c->ops.linear(&a, &c->ctx), -EINVAL);
		a.n = KERN_LINEAR_MAX + 1;
		assert_int_equal(c->ops.linear(&a, &c->ctx), -EINVAL);
	}
	kt_free_all();
}

/* A NaN or infinity in one row reaches that row only. */
static void test_linear_nan_stays_in_its_row(void **state)
{
	uint32_t rows = 13, k = 70, n = 40;
	struct kt_weight w = kt_weight(KERN_BF16, KERN_SCALE_NONE, n, k, 0, 0);
	float *x = kt_normals(rows * k, 1), *y = kt_floats(rows * n), *clean = kt_floats(rows * n);

	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		struct kern_linear_args a = {
			.rows = rows, .n = 1, .x = x, .ldx = k, .out = {{&w.w, clean, n}}};
		float was = x[5 * k + 3];

		assert_int_equal(c->ops.linear(&a, &c->ctx), 0);
		x[5 * k + 3] = NAN;
		a.out[0].y = y;
		assert_int_equal(c->ops.linear(&a, &c->ctx), 0);
		x[5 * k + 3] = was;
		for (uint32_t t = 0; t < rows; t++)
			for (uint32_t o = 0; o < n; o++)
				assert_true(t == 5 ? isnan(y[t * n + o])
						   : y[t * n + o] == clean[t * n + o]);
	}
	kt_free_all();
}

static void test_linear_grouped_is_block_diagonal(void **state)
{
	static const uint32_t shape[][4] = {
		{1, 4, 64, 16}, {7, 2, 130, 5}, {100, 8, 40, 24}, {6, 3, 33, 17}};

	for (size_t s = 0; s < ARRAY_LEN(shape); s++) {
		uint32_t rows = shape[s][0], g = shape[s][1], k = shape[s][2], n = g * shape[s][3];
		const struct kind *kind = &KINDS[s + 1];
		struct kt_weight w = kt_weight(kind->dtype, kind->scale, n, k, 64, 0);
		float *x = kt_normals(rows * g * k, 1), *base = NULL;
		double *want = kt_new(sizeof(double) * rows * n);

		for (uint32_t t = 0; t < rows; t++)
			for (uint32_t o = 0; o < n; o++) {
				double sum = 0;

				for (uint32_t i = 0; i < k; i++)
					sum += x[(t * g + o / (n / g)) * k + i] *
					       w.value[(size_t)o * k + i];
				want[t * n + o] = sum;
			}
		for (struct kt_config *c = kt_all; c < kt_end; c++) {
			float *y = kt_floats(rows * n);
			struct kern_linear_grouped_args a = {
				.rows = rows, .groups = g, .x = x, .w = &w.w, .y = y};

			assert_int_equal(c->ops.linear_grouped(&a, &c->ctx), 0);
			if (!base) {
				kt_close("grouped", base = y, want, rows * n, 2e-5, 1e-5);
				continue;
			}
			kt_same(c->variant, y, base, rows * n * sizeof(float));
			a.groups = n + 1;
			assert_int_equal(c->ops.linear_grouped(&a, &c->ctx), -EINVAL);
		}
		kt_free_all();
	}
}

/* ---- experts ---- */

enum { EXPERTS = 7, TOPK = 3 };

struct moe {
	struct kt_weight w1[EXPERTS], w2[EXPERTS], w3[EXPERTS], s1, s2, s3;
	const struct kern_weight *p1[EXPERTS], *p2[EXPERTS], *p3[EXPERTS];
	uint32_t rows, d, inter, shared;
	float *x, *weights;
	uint32_t *ids;
};

static void make_moe(struct moe *m, const struct kind *kind, uint32_t rows, uint32_t d,
	uint32_t inter, uint32_t col0)
{
	*m = (struct moe){.rows = rows, .d = d, .inter = inter, .shared = inter / 2};
	for (int e = 0; e < EXPERTS; e++) {
		m->w1[e] = kt_weight(kind->dtype, kind->scale, inter, d, col0, 0);
		m->w3[e] = kt_weight(kind->dtype, kind->scale, inter, d, col0, 0);
		m->w2[e] = kt_weight(kind->dtype, kind->scale, d, inter, 0, col0);
		m->p1[e] = &m->w1[e].w;
		m->p2[e] = &m->w2[e].w;
		m->p3[e] = &m->w3[e].w;
	}
	m->s1 = kt_weight(KERN_FP8, KERN_SCALE_E8M0, m->shared, d, 0, 0);
	m->s3 = kt_weight(KERN_FP8, KERN_SCALE_E8M0, m->shared, d, 0, 0);
	m->s2 = kt_weight(KERN_FP8, KERN_SCALE_E8M0, d, m->shared, 0, 0);
	m->x = kt_normals(rows * d, 3);
	m->weights = kt_normals(rows * TOPK, 1);
	m->ids = kt_new(rows * TOPK * sizeof(uint32_t));
	for (uint32_t t = 0; t < rows; t++) {
		uint32_t a = kt_below(EXPERTS - 2), b = a + 1 + kt_below(EXPERTS - 2 - a);

		m->ids[t * TOPK] = a;
		m->ids[t * TOPK + 1] = b;
		m->ids[t * TOPK + 2] = b + 1 + kt_below(EXPERTS - 1 - b);
	}
}

static double plain_dot(const float *x, const double *w, uint32_t k)
{
	double s = 0;

	for (uint32_t i = 0; i < k; i++)
		s += x[i] * w[i];
	return s;
}

static double plain_swiglu(double g, double u, double limit, double weight)
{
	g = fmin(g, limit);
	u = fmax(-limit, fmin(u, limit));
	return weight * (g / (1 + exp(-g))) * u;
}

/* h of one pair, in double, then y's terms of it. */
static void plain_expert(const struct moe *m, const float *x, const struct kt_weight *w1,
	const struct kt_weight *w3, float limit, double weight, double *h)
{
	for (uint32_t i = 0; i < w1->w.n; i++)
		h[i] = plain_swiglu(plain_dot(x, w1->value + (size_t)i * m->d, m->d),
			plain_dot(x, w3->value + (size_t)i * m->d, m->d), limit, weight);
}

static void check_moe(const struct kind *kind, uint32_t rows, uint32_t d, uint32_t inter,
	uint32_t col0, bool with_shared, uint32_t missing)
{
	struct moe m;
	float limit = 1.5f, *h0 = NULL, *s0 = NULL, *y0 = NULL;
	double *h, *sh, *y;

	make_moe(&m, kind, rows, d, inter, col0);
	h = kt_new(sizeof(double) * rows * TOPK * inter);
	sh = kt_new(sizeof(double) * rows * m.shared);
	y = kt_new(sizeof(double) * rows * d);
	if (missing < EXPERTS)
		m.p1[missing] = m.p2[missing] = m.p3[missing] = NULL;
	for (uint32_t t = 0; t < rows; t++) {
		for (uint32_t j = 0; j < TOPK; j++) {
			uint32_t e = m.ids[t * TOPK + j];

			plain_expert(&m, m.x + t * d, &m.w1[e], &m.w3[e], limit,
				m.weights[t * TOPK + j], h + (t * TOPK + j) * inter);
		}
		plain_expert(&m, m.x + t * d, &m.s1, &m.s3, limit, 1, sh + t * m.shared);
	}
	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		float *gh = kt_floats(rows * TOPK * inter), *gs = kt_floats(rows * m.shared);
		float *gy = kt_floats(rows * d);
		struct kern_moe_up_args up = {.rows = rows,
			.topk = TOPK,
			.experts = EXPERTS,
			.inter = inter,
			.x = m.x,
			.ids = m.ids,
			.weights = m.weights,
			.w1 = m.p1,
			.w3 = m.p3,
			.limit = limit,
			.h = gh};
		struct kern_moe_down_args down = {.rows = rows,
			.topk = TOPK,
			.experts = EXPERTS,
			.inter = inter,
			.h = gh,
			.ids = m.ids,
			.w2 = m.p2,
			.d = d,
			.y = gy};

		if (with_shared) {
			up.shared_w1 = &m.s1.w;
			up.shared_w3 = &m.s3.w;
			up.shared_h = gs;
			down.shared_w2 = &m.s2.w;
			down.shared_h = gs;
		}
		assert_int_equal(c->ops.moe_up(&up, &c->ctx), 0);
		assert_int_equal(c->ops.moe_down(&down, &c->ctx), 0);
		if (h0) {
			kt_same(c->variant, gh, h0, rows * TOPK * inter * sizeof(float));
			kt_same(c->variant, gs, s0, rows * m.shared * sizeof(float));
			kt_same(c->variant, gy, y0, rows * d * sizeof(float));
			continue;
		}
		h0 = gh;
		s0 = gs;
		y0 = gy;
		for (uint32_t p = 0; p < rows * TOPK; p++)
			if (m.ids[p] != missing)
				kt_close(
					"moe_up", gh + p * inter, h + p * inter, inter, 3e-5, 2e-5);
			else /* not written */
				assert_true(isnan(gh[p * inter]));
		if (with_shared)
			kt_close("shared up", gs, sh, rows * m.shared, 3e-5, 2e-5);
		for (uint32_t t = 0; t < rows; t++)
			for (uint32_t o = 0; o < d; o++) {
				double s = 0;

				for (uint32_t j = 0; j < TOPK; j++) {
					uint32_t p = t * TOPK + j, e = m.ids[p];

					if (e != missing)
						s += plain_dot(gh + p * inter,
							m.w2[e].value + (size_t)o * inter, inter);
				}
				if (with_shared)
					s += plain_dot(gs + t * m.shared,
						m.s2.value + (size_t)o * m.shared, m.shared);
				y[t * d + o] = s;
			}
		kt_close("moe_down", gy, y, rows * d, 3e-5, 2e-5);
	}
	kt_free_all();
}

static void test_moe_matches_loops(void **state)
{
	static const struct kind fp4 = {KERN_FP4, KERN_SCALE_E8M0}, bf16 = {KERN_BF16, 0},
				 fp8 = {KERN_FP8, KERN_SCALE_F32};

	check_moe(&fp4, 1, 64, 32, 0, true, 99);
	check_moe(&fp4, 5, 66, 96, 32, true, 99);
	check_moe(&fp8, 37, 40, 160, 64, true, 99);
	check_moe(&bf16, 64, 30, 17, 0, false, 99);
	check_moe(&fp4, 130, 64, 32, 0, true, 99);
	check_moe(&fp4, 12, 64, 32, 0, true, 2);
	check_moe(&bf16, 3, 24, 20, 0, false, 4);
}

/* failures 44: slices of the intermediate dim, also inside a scale block, add up to the whole */
static void test_moe_sliced_by_intermediate_dim_adds_up(void **state)
{
	enum { ROWS = 4, D = 64, INTER = 256, PARTS = 4 };
	struct kt_config *c = &kt_all[kt_count - 1];
	struct kern_weight_desc whole = {KERN_FP8, KERN_SCALE_E8M0, D, INTER, 0, 0};
	uint8_t *raw = kt_new(D * INTER), scales[2] = {118, 121};
	float *h = kt_normals(ROWS * INTER, 1), *y = kt_floats(ROWS * D), sum[ROWS * D] = {0};
	double want[ROWS * D];
	struct kern_weight w;
	uint32_t ids[ROWS] = {0};
	const struct kern_weight *pw = &w;
	struct kern_moe_down_args a = {
		.rows = ROWS, .topk = 1, .experts = 1, .ids = ids, .w2 = &pw, .d = D, .y = y};

	for (int i = 0; i < D * INTER; i++)
		raw[i] = (uint8_t)(kt_random() & 0xf7);
	for (int p = 0; p < PARTS; p++) {
		uint32_t col = p * (INTER / PARTS), k = INTER / PARTS;
		struct kern_weight_desc d = {KERN_FP8, KERN_SCALE_E8M0, D, k, 0, col};
		float part[ROWS * INTER / PARTS];

		assert_int_equal(kern_weight_init(&w, &d, kt_new(kern_weight_bytes(&d)), NULL), 0);
		assert_int_equal(
			kern_weight_pack(&w, 0, D, raw + col, INTER, scales + col / 128, 2, NULL),
			0);
		for (int t = 0; t < ROWS; t++)
			memcpy(part + t * k, h + t * INTER + col, k * sizeof(float));
		a.inter = k;
		a.h = part;
		assert_int_equal(c->ops.moe_down(&a, &c->ctx), 0);
		for (int i = 0; i < ROWS * D; i++)
			sum[i] += y[i];
	}
	for (int t = 0; t < ROWS; t++)
		for (int o = 0; o < D; o++) {
			want[t * D + o] = 0;
			for (int k = 0; k < INTER; k++)
				want[t * D + o] += h[t * INTER + k] * kt_e4m3(raw[o * INTER + k]) *
						   ldexp(1, scales[k / 128] - 127);
		}
	kt_close("sum of slices", sum, want, ROWS * D, 1e-3, 1e-4);
	(void)whole;
	kt_free_all();
}

static void test_moe_rows_do_not_depend_on_company(void **state)
{
	static const struct kind fp4 = {KERN_FP4, KERN_SCALE_E8M0};
	enum { ROWS = 700, D = 48, INTER = 64 };
	static const uint32_t counts[] = {1, 2, 7, 8, 97, 350};
	struct moe m;
	float *h, *y, *gh, *gy;

	make_moe(&m, &fp4, ROWS, D, INTER, 0);
	h = kt_floats(ROWS * TOPK * INTER);
	y = kt_floats(ROWS * D);
	gh = kt_floats(ROWS * TOPK * INTER);
	gy = kt_floats(ROWS * D);
	for (int i = -1; i < (int)ARRAY_LEN(counts); i++) {
		struct kt_config *c = &kt_all[kt_count - 1 - (i > 0 ? (unsigned)i % 3 : 0)];
		uint32_t n = i < 0 ? ROWS : counts[i], first = kt_below(ROWS - n + 1);
		struct kern_moe_up_args up = {.rows = n,
			.topk = TOPK,
			.experts = EXPERTS,
			.inter = INTER,
			.x = m.x + first * D,
			.ids = m.ids + first * TOPK,
			.weights = m.weights + first * TOPK,
			.w1 = m.p1,
			.w3 = m.p3,
			.limit = 2,
			.h = i < 0 ? h : gh,
			.act = KERN_ACT_FP8,
			.scale_pow2 = true};
		struct kern_moe_down_args down = {.rows = n,
			.topk = TOPK,
			.experts = EXPERTS,
			.inter = INTER,
			.h = up.h,
			.ids = up.ids,
			.w2 = m.p2,
			.d = D,
			.y = i < 0 ? y : gy,
			.act = KERN_ACT_FP8,
			.scale_pow2 = true};

		assert_int_equal(c->ops.moe_up(&up, &c->ctx), 0);
		assert_int_equal(c->ops.moe_down(&down, &c->ctx), 0);
		if (i < 0)
			continue;
		kt_same("moe_up", gh, h + first * TOPK * INTER, n * TOPK * INTER * sizeof(float));
		kt_same("moe_down", gy, y + first * D, n * D * sizeof(float));
	}
	kt_free_all();
}

static void test_moe_refuses_bad_ids_and_shapes(void **state)
{
	static const struct kind bf16 = {KERN_BF16, 0};
	struct moe m;

	make_moe(&m, &bf16, 2, 16, 16, 0);
	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		float *h = kt_floats(2 * TOPK * 16);
		struct kern_moe_up_args up = {.rows = 2,
			.topk = TOPK,
			.experts = EXPERTS,
			.inter = 16,
			.x = m.x,
			.ids = m.ids,
			.weights = m.weights,
			.w1 = m.p1,
			.w3 = m.p3,
			.limit = 2,
			.h = h};

		m.ids[4] = EXPERTS;
		assert_int_equal(c->ops.moe_up(&up, &c->ctx), -EINVAL);
		m.ids[4] = 0;
		up.inter = 15;
		assert_int_equal(c->ops.moe_up(&up, &c->ctx), -EINVAL);
		assert_true(isnan(h[0]));
	}
	kt_free_all();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_linear_every_type_and_boundary_size),
		cmocka_unit_test(test_linear_rounds_activations_as_asked),
		cmocka_unit_test(test_linear_slices_share_amax),
		cmocka_unit_test(test_linear_rows_do_not_depend_on_company),
		cmocka_unit_test(test_linear_several_outputs_share_x),
		cmocka_unit_test(test_linear_nan_stays_in_its_row),
		cmocka_unit_test(test_linear_grouped_is_block_diagonal),
		cmocka_unit_test(test_moe_matches_loops),
		cmocka_unit_test(test_moe_sliced_by_intermediate_dim_adds_up),
		cmocka_unit_test(test_moe_rows_do_not_depend_on_company),
		cmocka_unit_test(test_moe_refuses_bad_ids_and_shapes),
	};

	return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
