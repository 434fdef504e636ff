/* Conversions: exhaustively decoded, encoded against a search by distance, scales by rule. */
#include <math.h>

#include "tests/kern/kt.h"

static void test_decode_every_code_matches_arithmetic(void **state)
{
	for (int c = 0; c < 256; c++) {
		double want = kt_e4m3((uint8_t)c);

		if (isnan(want))
			assert_true(isnan(kern_from_e4m3((uint8_t)c)));
		else
			assert_true(kern_from_e4m3((uint8_t)c) == want);
		assert_true(kern_from_e8m0((uint8_t)c) == ldexp(1, c - 127) || c == 255);
	}
	for (int c = 0; c < 16; c++)
		assert_true(kern_from_e2m1((uint8_t)c) == kt_e2m1((uint8_t)c));
	for (uint32_t h = 0; h < 65536; h++) {
		int e = h >> 10 & 31, m = h & 1023;
		double v = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
		float f = kern_from_f16((uint16_t)h);

		if (e == 31)
			assert_true(m ? isnan(f) : isinf(f));
		else
			assert_true(f == (h & 0x8000 ? -v : v));
	}
}

/* The nearest code by distance; of two equally near the even one. */
static uint8_t nearest(double a, double (*value)(uint8_t), int top)
{
	int best = 0;

	if (a >= value((uint8_t)top))
		return (uint8_t)top;
	for (int c = 0; c <= top; c++) {
		double d = fabs(value((uint8_t)c) - a), b = fabs(value((uint8_t)best) - a);

		if (d < b || (d == b && c % 2 == 0))
			best = c;
	}
	return (uint8_t)best;
}

static void check_e4m3(float f)
{
	uint8_t want = nearest(fabs((double)f), kt_e4m3, 0x7e), got = kern_to_e4m3(f);

	if ((got & 0x7f) != want || (got >> 7) != (signbit(f) != 0))
		fail_msg("e4m3 of %.9g is %02x, should be %02x", (double)f, got, want);
	if (kern_bits(kern_round_e4m3(f)) != kern_bits(kern_from_e4m3(got)))
		fail_msg("%.9g rounded to e4m3 is %.9g, not what its code means", (double)f,
			(double)kern_round_e4m3(f));
}

static void check_e2m1(float f)
{
	uint8_t want = nearest(fabs((double)f), kt_e2m1, 7), got = kern_to_e2m1(f);

	if ((got & 7) != want || (got >> 3) != (signbit(f) != 0))
		fail_msg("e2m1 of %.9g is %x, should be %x", (double)f, got, want);
}

static void test_encode_boundaries_round_to_even_and_saturate(void **state)
{
	static const float odd[] = {1e-12f, 448, 449, 463, 464, 465, 480, 1e6f, FLT_MAX, INFINITY,
		0, 0x1p-10f, 0x1p-9f, 0x1.8p-9f, 0x1p-7f, 0x1p-6f, 0x1p-149f, 6, 5, 7, 0.25f,
		0.75f};

	for (int c = 0; c < 0x7e; c++) {
		float mid = (float)((kt_e4m3((uint8_t)c) + kt_e4m3((uint8_t)(c + 1))) / 2);

		check_e4m3(mid);
		check_e4m3(nextafterf(mid, INFINITY));
		check_e4m3(nextafterf(mid, 0));
		check_e4m3((float)kt_e4m3((uint8_t)c));
		check_e4m3(-mid);
	}
	for (int c = 0; c < 7; c++) {
		float mid = (float)((kt_e2m1((uint8_t)c) + kt_e2m1((uint8_t)(c + 1))) / 2);

		check_e2m1(mid);
		check_e2m1(nextafterf(mid, INFINITY));
		check_e2m1(nextafterf(mid, 0));
		check_e2m1((float)kt_e2m1((uint8_t)c));
		check_e2m1(-mid);
	}
	for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
		check_e4m3(odd[i]);
		check_e4m3(-odd[i]);
		check_e2m1(odd[i]);
		check_e2m1(-odd[i]);
	}
	for (int i = 0; i < 200000; i++) {
		float f = kern_float((uint32_t)kt_random());

		if (f == f) {
			check_e2m1(f);
			check_e4m3(f);
		}
		assert_true((kern_to_e4m3(f) & 0x7f) != 0x7f);
	}
	assert_int_equal(kern_to_e4m3(NAN), 0);
	assert_int_equal(kern_to_e4m3(-NAN), 0);
	assert_int_equal(kern_bits(kern_round_e4m3(NAN)), 0);
	assert_int_equal(kern_bits(kern_round_e4m3(-NAN)), 0);
	assert_int_equal(kern_to_e2m1(NAN), 0);
}

static void test_bf16_every_value_and_tie(void **state)
{
	for (uint32_t h = 0; h < 65536; h++) {
		float f = kern_from_bf16((uint16_t)h);

		if (isnan(f)) {
			assert_true(isnan(kern_from_bf16(kern_to_bf16(f))));
			continue;
		}
		assert_int_equal(kern_to_bf16(f), h);
		if (isinf(f))
			continue;
		/* halfway to the next: to the even one; just beside it: to the nearer */
		assert_int_equal(kern_to_bf16(kern_float(h << 16 | 0x8000)), h + (h & 1));
		assert_int_equal(kern_to_bf16(kern_float(h << 16 | 0x7fff)), h);
		assert_int_equal(kern_to_bf16(kern_float(h << 16 | 0x8001)), h + 1);
	}
	assert_true(isnan(kern_from_bf16(kern_to_bf16(kern_float(0x7f800001)))));
}

/* failures 37: what is not a power of two is rounded up before it is packed; 0, inf, NaN by rule */
static void test_e8m0_rounds_up_and_has_rules(void **state)
{
	static const struct {
		float scale;
		uint8_t byte;
	} rule[] = {{0.75f, 127}, {1.0f, 127}, {1.5f, 128}, {3.1f, 129}, {0, 0}, {0x1p-127f, 0},
		{0x1p127f, 254}, {INFINITY, 254}, {FLT_MAX, 254}, {NAN, 0}, {-1, 0}, {0x1p-149f, 0},
		{0x1.00001p-127f, 1}, {0x1p-126f, 1}, {0x1.000002p-126f, 2}, {1.9f, 128},
		{2.0f, 128}};

	for (size_t i = 0; i < ARRAY_LEN(rule); i++)
		if (kern_to_e8m0(rule[i].scale) != rule[i].byte)
			fail_msg("E8M0 of %g is %u, should be %u", (double)rule[i].scale,
				kern_to_e8m0(rule[i].scale), rule[i].byte);
	for (int b = 0; b < 255; b++)
		assert_int_equal(kern_to_e8m0(kern_from_e8m0((uint8_t)b)), b);
}

/* failures 38: the scale is rounded first; the same one encodes and decodes */
static void test_block_scales_cover_amax_and_bound_error(void **state)
{
	for (int i = 0; i < 20000; i++) {
		float amax = fabsf(kern_float((uint32_t)kt_random()));
		double s;

		if (amax != amax)
			continue;
		s = ldexp(1, kern_fp4_scale_e8m0(amax) - 127);
		if (amax <= FLT_MAX)
			assert_true(fmax(amax, 6 * 0x1p-126) <= 6 * s);
		assert_true(fmax(amax, 6 * 0x1p-126) > 6 * s / 2 || amax > FLT_MAX);
		s = ldexp(1, kern_fp8_scale_e8m0(amax) - 127);
		if (amax <= FLT_MAX)
			assert_true(fmax(amax, 1e-4f) <= 448 * s);
		assert_true(fmax(amax, 1e-4f) > 448 * s / 2 || amax > FLT_MAX);
	}
	for (int i = 0; i < 20000; i++) {
		float x = kt_normal() * 30, amax = fabsf(x) * kt_uniform(1, 8);
		float s = kern_from_e8m0(kern_fp8_scale_e8m0(amax));
		float back = kern_from_e4m3(kern_to_e4m3(x / s)) * s;

		assert_true(fabsf(back - x) <= fabsf(x) * 0x1p-4f);
	}
}

static void test_e8m0_check_finds_nan_bytes(void **state)
{
	uint8_t s[5] = {0, 254, 255, 127, 255};
	size_t first = 99;

	assert_int_equal(kern_e8m0_check(s, 2, &first), 0);
	assert_int_equal(first, 99);
	assert_int_equal(kern_e8m0_check(s, 5, &first), 2);
	assert_int_equal(first, 2);
}

static int pack_one(enum kern_dtype dtype, enum kern_scale kind, uint8_t code, const void *scale)
{
	struct kern_weight_desc d = {dtype, kind, 1, 256, 0, 0};
	uint8_t raw[256];
	struct kern_weight w;
	struct errbuf err = {0};
	int rc;

	memset(raw, 0x11, sizeof(raw));
	raw[77] = code;
	assert_int_equal(kern_weight_init(&w, &d, kt_new(kern_weight_bytes(&d)), &err), 0);
	rc = kern_weight_pack(&w, 0, 1, raw, 256, scale, 8, &err);
	assert_true((rc != 0) == (err.text[0] != 0));
	kt_free_all();
	return rc;
}

/* failures 40, 41: NaN codes and NaN scales never get in */
static void test_pack_refuses_nan_and_overflow(void **state)
{
	uint8_t ok[8] = {127, 127, 127, 127, 127, 127, 127, 127}, nan[8], big[8];
	float f[2] = {1, 0.3f}, zero[2] = {1, 0}, inf[2] = {1, INFINITY};

	memcpy(nan, ok, 8);
	memcpy(big, ok, 8);
	nan[1] = 255;
	memset(big, 254, 8);
	assert_int_equal(pack_one(KERN_FP8, KERN_SCALE_E8M0, 0x7e, ok), 0);
	assert_int_equal(pack_one(KERN_FP8, KERN_SCALE_E8M0, 0x7f, ok), -EBADMSG);
	assert_int_equal(pack_one(KERN_FP8, KERN_SCALE_E8M0, 0xff, ok), -EBADMSG);
	assert_int_equal(pack_one(KERN_FP8, KERN_SCALE_E8M0, 0, nan), -EBADMSG);
	assert_int_equal(pack_one(KERN_FP8, KERN_SCALE_E8M0, 0x7e, big), -EBADMSG);
	assert_int_equal(pack_one(KERN_FP8, KERN_SCALE_E8M0, 0, big), -EBADMSG);
	memset(big, 119 + 127, 8);
	assert_int_equal(pack_one(KERN_FP8, KERN_SCALE_E8M0, 0x7e, big), 0);
	memset(big, 125 + 127, 8);
	assert_int_equal(pack_one(KERN_FP4, KERN_SCALE_E8M0, 0x77, big), 0);
	memset(big, 126 + 127, 8);
	assert_int_equal(pack_one(KERN_FP4, KERN_SCALE_E8M0, 0x77, big), -EBADMSG);
	assert_int_equal(pack_one(KERN_FP8, KERN_SCALE_F32, 0x7e, f), 0);
	assert_int_equal(pack_one(KERN_FP8, KERN_SCALE_F32, 0, zero), -EBADMSG);
	assert_int_equal(pack_one(KERN_FP8, KERN_SCALE_F32, 0, inf), -EBADMSG);
	assert_int_equal(pack_one(KERN_FP4, KERN_SCALE_E8M0, 0xff, ok), 0);
	assert_int_equal(pack_one(KERN_FP4, KERN_SCALE_E8M0, 0, nan), -EBADMSG);
}

/* Rows in whole groups, which are turned in registers, equal rows that come one at a time. */
static void test_pack_of_groups_equals_pack_of_rows(void **state)
{
	static const enum kern_dtype types[] = {KERN_F32, KERN_F16, KERN_BF16, KERN_FP8, KERN_FP4};
	static const uint8_t size2[] = {8, 4, 4, 2, 1}; /* bytes of two elements */

	for (int i = 0; i < 200; i++) {
		int t = i % 5;
		bool scaled = types[t] == KERN_FP8 || types[t] == KERN_FP4;
		uint32_t n = 1 + kt_below(70), k = 2 * (1 + kt_below(i % 2 ? 40 : 2000));
		uint32_t row0 = kt_below(300), pad = kt_below(9), nblk = k / 32 + 2;
		struct kern_weight_desc d = {.dtype = types[t],
			.scale = scaled ? KERN_SCALE_E8M0 : KERN_SCALE_NONE,
			.n = n,
			.k = k,
			.row0 = row0};
		size_t stride = k * size2[t] / 2 + pad, bytes = kern_weight_bytes(&d);
		uint8_t *raw = kt_new(n * stride), *scale = kt_new((size_t)n * nblk);
		uint32_t unit = types[t] == KERN_FP8 ? 128 : 1;
		struct kern_weight w[2];
		struct errbuf err;

		for (size_t j = 0; j < n * stride; j++) {
			raw[j] = (uint8_t)kt_random();
			if (types[t] == KERN_FP8 && (raw[j] & 0x7f) == 0x7f)
				raw[j] = 0;
		}
		for (size_t j = 0; j < (size_t)n * nblk; j++)
			scale[j] = (uint8_t)kt_below(247); /* the greatest of FP8 */
		for (int j = 0; j < 2; j++) {
			void *storage = kt_new(bytes);

			memset(storage, j ? 0x5a : 0xa5, bytes);
			assert_int_equal(kern_weight_init(&w[j], &d, storage, &err), 0);
		}
		assert_int_equal(kern_weight_pack(&w[0], 0, n, raw, stride, scale, nblk, &err), 0);
		for (uint32_t r = n; r-- > 0;) {
			size_t block = (row0 + r) / unit - row0 / unit;

			assert_int_equal(kern_weight_pack(&w[1], r, 1, raw + r * stride, stride,
						 scale + block * nblk, nblk, &err),
				0);
		}
		assert_memory_equal(w[0].data, w[1].data, bytes);
		kt_free_all();
	}
}

/* The refusal names the row and column wherever the bad code lies. */
static void test_pack_of_groups_names_what_it_refuses(void **state)
{
	enum { N = 48, K = 200, NBLK = 8 };
	struct kern_weight_desc d = {KERN_FP8, KERN_SCALE_E8M0, N, K, 128, 256};

	for (int i = 0; i < 100; i++) {
		uint32_t row = kt_below(N), col = kt_below(K);
		uint8_t *raw = kt_new(N * K), *scale = kt_new(N * NBLK);
		char want[64];
		struct errbuf err = {0};
		struct kern_weight w;

		memset(scale, 127, N * NBLK);
		memset(raw, 0x7e, N * K);
		assert_int_equal(kern_weight_init(&w, &d, kt_new(kern_weight_bytes(&d)), &err), 0);
		assert_int_equal(kern_weight_pack(&w, 0, N, raw, K, scale, NBLK, &err), 0);
		raw[row * K + col] = i % 2 ? 0x7f : 0xff;
		assert_int_equal(kern_weight_pack(&w, 0, N, raw, K, scale, NBLK, &err), -EBADMSG);
		snprintf(want, sizeof(want), "fp8 NaN at row %u, column %u", 128 + row, 256 + col);
		assert_string_equal(err.text, want);
		kt_free_all();
	}
	d = (struct kern_weight_desc){KERN_FP4, KERN_SCALE_E8M0, N, 3200, 0, 0};
	for (int i = 0; i < 20; i++) {
		uint32_t row = kt_below(N), block = kt_below(100);
		uint8_t *raw = kt_new(N * 1600), *scale = kt_new(N * 100);
		char want[64];
		struct errbuf err = {0};
		struct kern_weight w;

		memset(scale, 252, N * 100);
		memset(raw, 0xff, N * 1600);
		assert_int_equal(kern_weight_init(&w, &d, kt_new(kern_weight_bytes(&d)), &err), 0);
		assert_int_equal(kern_weight_pack(&w, 0, N, raw, 1600, scale, 100, &err), 0);
		scale[row * 100 + block] = (uint8_t)(253 + kt_below(3));
		assert_int_equal(kern_weight_pack(&w, 0, N, raw, 1600, scale, 100, &err), -EBADMSG);
		snprintf(want, sizeof(want), "scale of row %u, block %u is NaN", row, block);
		assert_memory_equal(err.text, want, strlen(want));
		kt_free_all();
	}
}

static void test_init_refuses_what_does_not_fit(void **state)
{
	static const struct kern_weight_desc bad[] = {
		{KERN_FP8, KERN_SCALE_NONE, 16, 16, 0, 0},
		{KERN_BF16, KERN_SCALE_E8M0, 16, 16, 0, 0},
		{KERN_FP4, KERN_SCALE_F32, 16, 16, 0, 0},
		{KERN_FP4, KERN_SCALE_E8M0, 16, 15, 0, 0},
		{KERN_FP4, KERN_SCALE_E8M0, 16, 16, 0, 1},
		{KERN_F32, KERN_SCALE_NONE, 0, 16, 0, 0},
		{KERN_F32, KERN_SCALE_NONE, 16, 0, 0, 0},
	};
	struct kern_weight w;
	struct errbuf err;
	char storage[64];

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(kern_weight_init(&w, &bad[i], storage, &err), -EINVAL);
}

/* failures 41: an fp4 block with scale bytes 110 and 127 side by side keeps both exactly */
static void test_pack_every_kind_widens_exactly(void **state)
{
	static const struct {
		enum kern_dtype dtype;
		enum kern_scale scale;
	} kind[] = {{KERN_F32, KERN_SCALE_NONE}, {KERN_F16, KERN_SCALE_NONE},
		{KERN_BF16, KERN_SCALE_NONE}, {KERN_FP8, KERN_SCALE_E8M0},
		{KERN_FP8, KERN_SCALE_F32}, {KERN_FP4, KERN_SCALE_E8M0}};
	static const uint32_t shape[][4] = {{1, 2, 0, 0}, {17, 66, 64, 32}, {64, 256, 96, 320},
		{130, 130, 127, 126}, {33, 30, 200, 250}};

	for (size_t i = 0; i < ARRAY_LEN(kind); i++)
		for (size_t s = 0; s < ARRAY_LEN(shape); s++) {
			struct kt_weight t = kt_weight(kind[i].dtype, kind[i].scale, shape[s][0],
				shape[s][1], shape[s][2], shape[s][3]);

			for (uint32_t n = 0; n < t.w.n; n++)
				for (uint32_t k = 0; k < t.w.k; k++)
					assert_true(kern_weight_get(&t.w, n, k) ==
						    t.value[(size_t)n * t.w.k + k]);
			kt_free_all();
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_decode_every_code_matches_arithmetic),
		cmocka_unit_test(test_encode_boundaries_round_to_even_and_saturate),
		cmocka_unit_test(test_bf16_every_value_and_tie),
		cmocka_unit_test(test_e8m0_rounds_up_and_has_rules),
		cmocka_unit_test(test_block_scales_cover_amax_and_bound_error),
		cmocka_unit_test(test_e8m0_check_finds_nan_bytes),
		cmocka_unit_test(test_pack_refuses_nan_and_overflow),
		cmocka_unit_test(test_pack_of_groups_equals_pack_of_rows),
		cmocka_unit_test(test_pack_of_groups_names_what_it_refuses),
		cmocka_unit_test(test_init_refuses_what_does_not_fit),
		cmocka_unit_test(test_pack_every_kind_widens_exactly),
	};

	return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
