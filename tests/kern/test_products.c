/*
 * Dense products: every weight type, slice and rounding against double loops; equal
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

/*
 * Nearest e4m3 value of x / s, times s. The quotient is one of floats, as in the model's
 * definition: where it comes to lie half-way between two values, the exact one need not.
 */
static float plain_fp8(float x, float s)
{
	float quotient = x / s;
	double a = fabs((double)quotient), best = 0, dist = INFINITY;

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
		double amax = 1e-4;
		float s;

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
			for (s = 0x1p-60f; s * 448 < (float)amax;)
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

/* y = x W by the contract: each weight scaled first, one chain of fmaf. */
static void plain_chain(const float *x, uint32_t rows, const struct kern_weight *w, float *y)
{
	for (uint32_t t = 0; t < rows; t++)
		for (uint32_t o = 0; o < w->n; o++) {
			float sum = 0;

			for (uint32_t i = 0; i < w->k; i++)
				sum = fmaf(x[(size_t)t * w->k + i], kern_weight_get(w, o, i), sum);
			y[(size_t)t * w->n + o] = sum;
		}
}

/* x[rows][k] times w, not rounded, as a configuration has it. */
static float *linear_by(
	struct kt_config *c, const struct kern_weight *w, const float *x, uint32_t rows)
{
	float *y = kt_floats((size_t)rows * w->n);
	struct kern_linear_args a = {.rows = rows,
		.n = 1,
		.x = x,
		.ldx = w->k,
		.act = KERN_ACT_F32,
		.out = {{w, y, w->n}}};

	assert_int_equal(c->ops.linear(&a, &c->ctx), 0);
	return y;
}

/* Scales 2^lo .. 2^hi, a new one for every block. */
static void set_scales(struct kern_weight *w, int lo, int hi)
{
	size_t n = (size_t)DIV_UP(w->n, KERN_GROUP) * w->nblk * KERN_GROUP;

	for (size_t i = 0; i < n; i++) {
		int e = lo + (int)kt_below((uint32_t)(hi - lo + 1));

		if (i / KERN_GROUP / w->nblk * KERN_GROUP + i % KERN_GROUP >= w->n)
			continue; /* an output that is not there keeps its 0 */
		if (w->dtype == KERN_FP8)
			((float *)w->scale)[i] = ldexpf(1, e);
		else
			((uint8_t *)w->scale)[i] = (uint8_t)(e + 127);
	}
}

/*
 * Sums kept in units of a block's scale: the same bits as the chain of scaled weights wherever
 * numbers lie, at the ends of f32's range, too, where sums are subnormal or infinite and the
 * variants have to notice. Activations 2^x_lo .. 2^x_hi, zeros among them; scales 2^s_lo .. 2^s_hi.
 */
static void test_linear_extreme_scales_and_activations(void **state)
{
	static const struct {
		int x_lo, x_hi, s_lo, s_hi;
	} ranges[] = {{-3, 3, -8, 0}, {-20, 10, -40, 40}, {0, 0, -127, -120}, {0, 0, -127, 100},
		{-60, -40, -70, -60}, {-100, -80, -40, -30}, {-149, -140, -2, 3},
		{-149, 100, -5, 5}, {100, 127, -10, 5}, {110, 127, -100, 1}, {0, 10, 110, 118},
		{-110, -100, 90, 118}, {-40, -20, -90, 30}, {-10, 30, -60, 90}};
	static const uint32_t sizes[] = {15, 16, 17, 64, 65, 127, 128, 129, 130, 255, 256, 257};

	for (size_t r = 0; r < ARRAY_LEN(ranges); r++)
		for (int pass = 0; pass < 8; pass++) {
			enum kern_dtype dtype = pass % 2 ? KERN_FP4 : KERN_FP8;
			uint32_t n = sizes[kt_below(ARRAY_LEN(sizes))], rows = 1 + kt_below(7);
			uint32_t k = sizes[kt_below(ARRAY_LEN(sizes))], col0 = 2 * kt_below(70);
			struct kt_weight w;
			float *x, *want;

			if (dtype == KERN_FP4)
				k = ALIGN_UP(k, 2u);
			w = kt_weight(dtype, KERN_SCALE_E8M0, n, k, kt_below(200), col0);
			set_scales(&w.w, ranges[r].s_lo, ranges[r].s_hi);
			x = kt_floats((size_t)rows * k);
			want = kt_floats((size_t)rows * n);
			for (size_t i = 0; i < (size_t)rows * k; i++) {
				int e = ranges[r].x_lo +
					(int)kt_below(
						(uint32_t)(ranges[r].x_hi - ranges[r].x_lo + 1));

				x[i] = kt_below(8) ? ldexpf(kt_uniform(-2, 2), e) : 0;
			}
			if (kt_below(6) == 0) /* nothing, or something that is no number */
				x[kt_below(rows * k)] = kt_below(2) ? INFINITY : NAN;
			else if (kt_below(6) == 0)
				memset(x, 0, sizeof(float) * k);
			plain_chain(x, rows, &w.w, want);
			for (struct kt_config *c = kt_all; c < kt_end; c++) {
				float *y = linear_by(c, &w.w, x, rows);

				for (size_t i = 0; i < (size_t)rows * n; i++)
					if (isnan(want[i]) && isnan(y[i]))
						y[i] = want[i]; /* its bits are no one's promise */
				kt_same(c->variant, y, want, (size_t)rows * n * sizeof(float));
			}
			kt_free_all();
		}
}

/* FP8 of n x k whose codes have an exponent, but for one in `every` (0: none; 1: all of them). */
static struct kern_weight with_subnormals(uint32_t n, uint32_t k, uint32_t col0, uint32_t every)
{
	struct kern_weight_desc d = {KERN_FP8, KERN_SCALE_E8M0, n, k, 0, col0};
	uint32_t blocks = DIV_UP(col0 % 128 + k, 128u) * DIV_UP(n, 128u);
	uint8_t *raw = kt_new((size_t)n * k), *scales = kt_new(blocks);
	struct kern_weight w;
	struct errbuf err;

	for (size_t i = 0; i < (size_t)n * k; i++) {
		uint8_t sign = (uint8_t)(kt_below(2) << 7);

		if (every && !kt_below(every))
			raw[i] = sign | (uint8_t)kt_below(8);
		else
			raw[i] = sign | (uint8_t)(8 + kt_below(0x7f - 8));
	}
	for (uint32_t i = 0; i < blocks; i++)
		scales[i] = (uint8_t)(120 + kt_below(10));
	assert_int_equal(kern_weight_init(&w, &d, kt_new(kern_weight_bytes(&d)), &err), 0);
	if (kern_weight_pack(&w, 0, n, raw, k, scales, DIV_UP(col0 % 128 + k, 128u), &err))
		fail_msg("%s", err.text);
	return w;
}

/*
 * Codes without a leading one are rare in weights, and widened apart where many are widened at
 * once: none, one somewhere, and nothing else give the bits of the chain.
 */
static void test_linear_fp8_subnormals_wherever_they_lie(void **state)
{
	static const uint32_t sizes[] = {3, 4, 5, 15, 16, 17, 64, 65, 127, 128, 130, 257};
	static const uint32_t every[] = {0, 1, 2, 64, 1000};

	for (size_t e = 0; e < ARRAY_LEN(every); e++)
		for (int pass = 0; pass < 12; pass++) {
			uint32_t n = sizes[kt_below(ARRAY_LEN(sizes))], rows = 1 + kt_below(14);
			uint32_t k = sizes[kt_below(ARRAY_LEN(sizes))];
			struct kern_weight w = with_subnormals(n, k, kt_below(130), every[e]);
			float *x = kt_normals((size_t)rows * k, 1);
			float *want = kt_floats((size_t)rows * n);

			plain_chain(x, rows, &w, want);
			for (struct kt_config *c = kt_all; c < kt_end; c++) {
				float *y = linear_by(c, &w, x, rows);

				kt_same(c->variant, y, want, (size_t)rows * n * sizeof(float));
			}
			kt_free_all();
		}
}

/* A sum that has underflowed to -0 keeps its sign by what is added: -0 times 1, but not +0. */
static void test_linear_fp8_zeros_keep_their_signs(void **state)
{
	enum { N = 16, K = 8 };
	uint8_t raw[N * K], scale = 127;
	struct kern_weight_desc d = {KERN_FP8, KERN_SCALE_E8M0, N, K, 0, 0};
	float x[K] = {-0x1p-149f, 1, 1, 1, 1, 1, 1, 1};
	struct kern_weight w;
	struct errbuf err;

	for (int i = 0; i < N * K; i++) /* of output o, columns from o / 2 + 1 on are +0 */
		raw[i] = i % K == 0 ? 0x08 : i % K <= i / K / 2 ? 0x80 : 0;
	assert_int_equal(kern_weight_init(&w, &d, kt_new(kern_weight_bytes(&d)), &err), 0);
	assert_int_equal(kern_weight_pack(&w, 0, N, raw, K, &scale, 1, &err), 0);
	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		float *y = linear_by(c, &w, x, 1);

		for (int o = 0; o < N; o++)
			assert_true(y[o] == 0 && !signbit(y[o]) == (o / 2 < K - 1));
	}
	kt_free_all();
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_linear_every_type_and_boundary_size),
		cmocka_unit_test(test_linear_rounds_activations_as_asked),
		cmocka_unit_test(test_linear_extreme_scales_and_activations),
		cmocka_unit_test(test_linear_fp8_subnormals_wherever_they_lie),
		cmocka_unit_test(test_linear_fp8_zeros_keep_their_signs),
		cmocka_unit_test(test_linear_slices_share_amax),
		cmocka_unit_test(test_linear_rows_do_not_depend_on_company),
		cmocka_unit_test(test_linear_several_outputs_share_x),
		cmocka_unit_test(test_linear_nan_stays_in_its_row),
		cmocka_unit_test(test_linear_grouped_is_block_diagonal),
	};

	return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
