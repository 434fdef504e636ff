/* Rotations: angles, heads, the Hadamard transform, against loops in double. */
#include <math.h>

#include "tests/kern/kt.h"

/* The first configuration gives the base; the others must have its bits. */
#define SAME_OR_FIRST(what, base, got, bytes)                                                      \
	do {                                                                                       \
		if (base)                                                                          \
			kt_same(what, got, base, bytes);                                           \
		else                                                                               \
			base = got;                                                                \
	} while (0)

static double plain_rms(const float *x, uint32_t d, double eps)
{
	double s = 0;

	for (uint32_t i = 0; i < d; i++)
		s += (double)x[i] * x[i];
	return 1 / sqrt(s / d + eps);
}

static void test_rope_theta_follows_yarn(void **state)
{
	struct kern_rope_desc plain = {.base = 10000};
	struct kern_rope_desc yarn = {160000, 16, 65536, 32, 1};
	float t[32];
	double low = floor(64 * log(65536 / (64 * M_PI)) / (2 * log(160000.0)));
	double high = ceil(64 * log(65536 / (2 * M_PI)) / (2 * log(160000.0)));

	kern_rope_theta(&plain, t);
	for (int i = 0; i < 32; i++)
		assert_true(fabs(t[i] / pow(10000, -i / 32.0) - 1) < 2e-7);
	kern_rope_theta(&yarn, t);
	for (int i = 0; i < 32; i++) {
		double r = fmin(1, fmax(0, (i - low) / (high - low)));
		double want = pow(160000, -i / 32.0) * (r / 16 + 1 - r);

		assert_true(fabs(t[i] / want - 1) < 5e-7);
	}
	assert_true(t[0] == 1.0f); /* fast dims stay, slow ones are divided by the factor */
	assert_true(fabs(t[31] * 16 / pow(160000, -31 / 32.0) - 1) < 2e-7);
}

/* Angles are rounded to fp32 before cos and sin (model.md 4). */
static void test_rope_angles_are_fp32(void **state)
{
	static const uint32_t pos[] = {0, 1, 127, 1000, 65535, 262143, 1048575};
	struct kern_rope_desc d = {.base = 10000};
	float theta[32], cs[ARRAY_LEN(pos) * 64];
	struct kern_rope_angles_args a = {ARRAY_LEN(pos), pos, theta, cs};

	kern_rope_theta(&d, theta);
	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		assert_int_equal(c->ops.rope_angles(&a, &c->ctx), 0);
		for (size_t t = 0; t < ARRAY_LEN(pos); t++)
			for (int i = 0; i < 32; i++) {
				volatile float angle = (float)pos[t] * theta[i];

				assert_true(fabs(cs[t * 64 + 2 * i] - cos((double)angle)) < 1e-7);
				assert_true(
					fabs(cs[t * 64 + 2 * i + 1] - sin((double)angle)) < 1e-7);
			}
	}
}

static void test_rope_forward_inverse_and_in_place(void **state)
{
	for (uint32_t rows = 1; rows < 70; rows += 33)
		for (uint32_t dim = 128; dim <= 512; dim += 384) {
			uint32_t heads = 3;
			size_t n = (size_t)rows * heads * dim;
			float *x = kt_normals(n, 1), *cs = kt_cs(rows), *b[2] = {0};
			double *want = kt_new(8 * n);

			for (struct kt_config *c = kt_all; c < kt_end; c++)
				for (int inv = 0; inv < 2; inv++) {
					float *y = kt_floats(n);
					struct kern_rope_args a = {rows, heads, dim, cs, inv, x, y};

					assert_int_equal(c->ops.rope(&a, &c->ctx), 0);
					if (!b[inv]) {
						for (size_t i = 0; i < n; i++)
							want[i] = x[i];
						for (uint32_t r = 0; r < rows * heads; r++)
							kt_rotate(want + r * dim + dim - 64,
								cs + r / heads * 64, inv);
						kt_close("rope", y, want, n, 1e-6, 1e-6);
					}
					SAME_OR_FIRST(c->variant, b[inv], y, n * 4);
					a.x = a.y = memcpy(kt_floats(n), x, n * 4);
					assert_int_equal(c->ops.rope(&a, &c->ctx), 0);
					kt_same("in place", a.y, b[inv], n * 4);
				}
			kt_free_all();
		}
}

static void test_hadamard_matches_matrix_and_is_its_own_inverse(void **state)
{
	uint32_t rows = 37;
	size_t n = rows * 128;
	float *x = kt_normals(n, 1), *base = NULL;
	double *want = kt_new(8 * n), *back = kt_new(8 * n);

	for (size_t r = 0; r < rows; r++)
		for (int i = 0; i < 128; i++) {
			want[r * 128 + i] = 0;
			back[r * 128 + i] = x[r * 128 + i];
			for (int j = 0; j < 128; j++)
				want[r * 128 + i] += x[r * 128 + j] / sqrt(128) *
						     (__builtin_parity(i & j) ? -1 : 1);
		}
	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		float *y = kt_floats(n);
		struct kern_hadamard_args a = {rows, x, y};

		assert_int_equal(c->ops.hadamard(&a, &c->ctx), 0);
		if (!base)
			kt_close("hadamard", y, want, n, 1e-6, 1e-6);
		SAME_OR_FIRST(c->variant, base, y, n * 4);
		a.x = a.y = memcpy(kt_floats(n), y, n * 4);
		assert_int_equal(c->ops.hadamard(&a, &c->ctx), 0); /* in place */
		kt_close("twice", a.y, back, n, 1e-6, 1e-6);
	}
	kt_free_all();
}

static void test_q_norm_rope_equals_its_chain(void **state)
{
	for (uint32_t rows = 1; rows < 40; rows += 19) {
		uint32_t heads = 5, dim = 512;
		size_t n = (size_t)rows * heads * dim;
		float *x = kt_normals(n, 3), *cs = kt_cs(rows), *base = NULL;
		double *want = kt_new(8 * n);

		for (uint32_t r = 0; r < rows * heads; r++) {
			double s = plain_rms(x + r * dim, dim, 1e-6);

			for (uint32_t i = 0; i < dim; i++)
				want[r * dim + i] = x[r * dim + i] * s;
			kt_rotate(want + r * dim + dim - 64, cs + r / heads * 64, false);
		}
		for (struct kt_config *c = kt_all; c < kt_end; c++) {
			float *y = memcpy(kt_floats(n), x, n * 4), *z = kt_floats(n);
			struct kern_q_norm_rope_args a = {rows, heads, dim, 1e-6f, cs, y};
			struct kern_rmsnorm_args nn = {
				rows * heads, dim, x, dim, NULL, 1e-6f, z, dim};
			struct kern_rope_args rr = {rows, heads, dim, cs, false, z, z};

			assert_int_equal(c->ops.q_norm_rope(&a, &c->ctx), 0);
			assert_int_equal(c->ops.rmsnorm(&nn, &c->ctx), 0);
			assert_int_equal(c->ops.rope(&rr, &c->ctx), 0);
			kt_same("rmsnorm, rope", z, y, n * 4);
			if (!base)
				kt_close("q_norm_rope", y, want, n, 1e-6, 1e-6);
			SAME_OR_FIRST(c->variant, base, y, n * 4);
		}
		kt_free_all();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rope_theta_follows_yarn),
		cmocka_unit_test(test_rope_angles_are_fp32),
		cmocka_unit_test(test_rope_forward_inverse_and_in_place),
		cmocka_unit_test(test_hadamard_matches_matrix_and_is_its_own_inverse),
		cmocka_unit_test(test_q_norm_rope_equals_its_chain),
	};

	return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
