/* Exact top-k on adversarial rows, and the merge of shards, against a full sort. */
#include <math.h>

#include "kernels/cpu/math.h"
#include "tests/kern/kt.h"

static int rank_order(const void *a, const void *b)
{
	const struct pick {
		float v;
		uint32_t e;
	} *x = a, *y = b;

	if (x->v != y->v)
		return x->v > y->v ? -1 : 1;
	return x->e < y->e ? -1 : 1;
}

static int by_entry(const void *a, const void *b)
{
	return *(const int32_t *)a < *(const int32_t *)b ? -1 : 1;
}

/* Entries by a full sort, ascending, -1 up to k. Returns how many. */
static uint32_t plain_topk(
	const float *row, uint32_t n, uint32_t first, uint32_t k, int32_t *out, uint32_t *nan)
{
	struct pick {
		float v;
		uint32_t e;
	} *p = malloc((n + 1) * sizeof(*p));
	uint32_t m = 0;

	*nan = 0;
	for (uint32_t i = 0; i < n; i++)
		if (row[i] == row[i])
			p[m++] = (struct pick){row[i], first + i};
		else
			++*nan;
	qsort(p, m, sizeof(*p), rank_order);
	m = MIN(m, k);
	for (uint32_t i = 0; i < k; i++)
		out[i] = i < m ? (int32_t)p[i].e : -1;
	qsort(out, m, sizeof(*out), by_entry);
	free(p);
	return m;
}

enum shape {
	RANDOM,
	EQUAL,
	RISING,
	FALLING,
	TIED,
	THREE,
	ZEROS,
	SOME_NAN,
	MOST_NAN,
	ALL_NAN,
	INFS,
	NEIGHBOURS,
	BITS,
	SHAPES
};

static void fill_row(float *x, uint32_t n, enum shape shape)
{
	for (uint32_t i = 0; i < n; i++)
		switch (shape) {
		case EQUAL:
			x[i] = -1.25f;
			break;
		case RISING:
			x[i] = (float)i - 7000;
			break;
		case FALLING:
			x[i] = 0.25f - (float)i;
			break;
		case TIED: /* 9407 of 16448 tied, the rest random */
			x[i] = kt_below(16448) < 9407 ? 1.0f : kt_normal() + 1;
			break;
		case THREE:
			x[i] = (float)kt_below(3) - 1;
			break;
		case ZEROS: /* -0 counts as +0 */
			x[i] = kt_below(2) ? 0.0f : -0.0f;
			break;
		case SOME_NAN:
			x[i] = kt_below(100) ? kt_normal() : NAN;
			break;
		case MOST_NAN:
			x[i] = kt_below(100) ? NAN : kt_normal();
			break;
		case ALL_NAN:
			x[i] = kt_below(2) ? NAN : -NAN;
			break;
		case INFS:
			x[i] = kt_below(3) ? kt_normal() : kt_below(2) ? INFINITY : -INFINITY;
			break;
		case NEIGHBOURS: /* a few thousand floats that lie side by side */
			x[i] = kern_float(0x3f800000 - 1000 + kt_below(4000));
			break;
		case BITS: /* every exponent alike, subnormals, infinities and NaN among them */
			x[i] = kern_float((uint32_t)kt_random());
			break;
		default:
			x[i] = kt_normal();
		}
}

static void check_topk(const float *x, size_t ld, const uint32_t *n, uint32_t rows, uint32_t k)
{
	int32_t *want = kt_new(4 * k * rows);
	uint32_t *counts = kt_new(4 * rows), *nans = kt_new(4 * rows), first = kt_below(1000);

	for (uint32_t r = 0; r < rows; r++)
		counts[r] = plain_topk(x + r * ld, n[r], first, k, want + r * k, &nans[r]);
	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		int32_t *e = kt_new(4 * k * rows);
		uint32_t *got = kt_new(4 * rows), *nan = kt_new(4 * rows);
		float *v = kt_floats(k * rows);
		struct kern_topk_args a = {rows, k, x, ld, n, first, e, v, got, nan};

		assert_int_equal(c->ops.topk(&a, &c->ctx), 0);
		kt_same("count", got, counts, 4 * rows);
		kt_same("nan", nan, nans, 4 * rows);
		kt_same("entries", e, want, 4 * k * rows);
		for (uint32_t r = 0; r < rows; r++)
			for (uint32_t i = 0; i < k; i++) {
				float s = i < counts[r] ? x[r * ld + e[r * k + i] - first] : 0;

				assert_true(v[r * k + i] == s);
				assert_true(s != 0 || !signbit(v[r * k + i]));
			}
	}
}

/* failures 16, 17 */
static void test_topk_adversarial_rows_match_a_full_sort(void **state)
{
	static const uint32_t ks[] = {1, 16, 512, 1024, 2048};

	for (size_t i = 0; i < ARRAY_LEN(ks); i++)
		for (int shape = 0; shape < SHAPES; shape++) {
			uint32_t k = ks[i], n[] = {0, 1, k - 1, k, k + 1, 2049, 5000, 16448, 0};
			uint32_t rows = ARRAY_LEN(n), most = 16448;
			float *x;

			if (k == 512 && (shape == THREE || shape == RANDOM || shape == RISING))
				n[8] = most = 32768;
			x = kt_floats((size_t)rows * most);
			for (uint32_t r = 0; r < rows; r++)
				fill_row(x + (size_t)r * most, n[r], (enum shape)shape);
			check_topk(x, most, n, rows, k);
			kt_free_all();
		}
}

static void test_topk_random_small_rows_match_a_full_sort(void **state)
{
	for (int i = 0; i < 60; i++) {
		uint32_t rows = 1 + kt_below(40), ld = 1 + kt_below(300), k = 1 + kt_below(100);
		uint32_t *n = kt_new(4 * rows);
		float *x = kt_floats(rows * ld);

		for (uint32_t r = 0; r < rows; r++) {
			n[r] = kt_below(ld + 1);
			fill_row(x + r * ld, n[r], (enum shape)kt_below(SHAPES));
		}
		check_topk(x, ld, n, rows, k);
		kt_free_all();
	}
}

/* The lists of W ranks, merged, are the list of one; ties across ranks go to the lower entry. */
static void test_index_merge_equals_one_worker(void **state)
{
	for (int i = 0; i < 40; i++) {
		uint32_t world = 1 + kt_below(8), rows = 1 + kt_below(9), n = 1 + kt_below(2000);
		uint32_t k = 1 + kt_below(300);
		float *x = kt_floats(rows * n), *values = kt_floats(world * rows * k);
		int32_t *entries = kt_new(4 * world * rows * k), *want = kt_new(4 * rows * k);
		uint32_t *counts = kt_new(4 * world * rows), *total = kt_new(4 * rows), nan;

		for (uint32_t r = 0; r < rows; r++) {
			fill_row(x + r * n, n, (enum shape)kt_below(SHAPES));
			total[r] = plain_topk(x + r * n, n, 0, k, want + r * k, &nan);
			for (uint32_t w = 0; w < world; w++) {
				float *mine = malloc(n * 4);
				size_t at = w * rows + r;

				for (uint32_t e = 0; e < n; e++)
					mine[e] = e / 64 % world == w ? x[r * n + e] : NAN;
				counts[at] = plain_topk(mine, n, 0, k, entries + at * k, &nan);
				for (uint32_t j = 0; j < counts[at]; j++)
					values[at * k + j] = mine[entries[at * k + j]] + 0.0f;
				free(mine);
			}
		}
		for (struct kt_config *c = kt_all; c < kt_end; c++) {
			int32_t *e = kt_new(4 * rows * k);
			uint32_t *got = kt_new(4 * rows);
			struct kern_index_merge_args a = {
				rows, k, world, entries, values, counts, e, got};

			assert_int_equal(c->ops.index_merge(&a, &c->ctx), 0);
			kt_same("count", got, total, 4 * rows);
			kt_same("entries", e, want, 4 * rows * k);
			counts[0] += k + 1;
			assert_int_equal(c->ops.index_merge(&a, &c->ctx), -EINVAL);
			counts[0] -= k + 1;
		}
		kt_free_all();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_topk_adversarial_rows_match_a_full_sort),
		cmocka_unit_test(test_topk_random_small_rows_match_a_full_sort),
		cmocka_unit_test(test_index_merge_equals_one_worker),
	};

	return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
