/*
 * Experts: against double loops, sliced and with experts missing; equal bits for every variant,
 * thread count and number of rows.
 */
#include <math.h>

#include "tests/kern/kt.h"

struct kind {
	enum kern_dtype dtype;
	enum kern_scale scale;
};

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
		cmocka_unit_test(test_moe_matches_loops),
		cmocka_unit_test(test_moe_sliced_by_intermediate_dim_adds_up),
		cmocka_unit_test(test_moe_rows_do_not_depend_on_company),
		cmocka_unit_test(test_moe_refuses_bad_ids_and_shapes),
	};

	return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
