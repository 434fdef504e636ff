/*
 * What comes before the first layer: rows of a part of the embedding table, the sum of all parts,
 * and a row's four streams. All of it copies, so all of it is compared by bits.
 */
#include "tests/kern/kt.h"

/* A table[n] of any numbers but NaN, raw in `raw`, every kind of zero among them. */
static void make_table(enum kern_dtype dtype, size_t n, void *raw, float *value)
{
	for (size_t i = 0; i < n; i++) {
		uint16_t half = i % 7 == 1 ? 0 : i % 7 == 2 ? 0x8000 : (uint16_t)kt_random();

		half &= 0xbfff; /* an exponent's top bit: neither NaN nor infinite */
		value[i] = dtype == KERN_F16 ? kern_from_f16(half) : kern_from_bf16(half);
		if (dtype == KERN_F32)
			((float *)raw)[i] = value[i];
		else
			((uint16_t *)raw)[i] = half;
	}
}

/* Every part of a vocabulary, among rows that are NaN: a row is its token's, or -0. */
static void embed_parts(const struct kt_config *c, enum kern_dtype dtype, uint32_t d, uint32_t rows)
{
	enum { V = 9 };
	size_t row_bytes = d * (dtype == KERN_F32 ? sizeof(float) : sizeof(uint16_t));
	float *value = kt_floats(V * d), *want = kt_floats(rows * d);
	char *whole = kt_new(V * row_bytes);
	uint32_t *tokens = kt_new(rows * sizeof(*tokens));

	make_table(dtype, V * d, whole, value);
	for (uint32_t row0 = 0; row0 <= V; row0++)
		for (uint32_t n = 0; n <= V - row0; n++) {
			char *around = kt_new((n + 2) * row_bytes), *table = around + row_bytes;
			float *x = kt_floats(rows * d);
			struct kern_embed_args a = {rows, d, V, row0, n, tokens, table, dtype, x};

			kt_poison(around, (n + 2) * row_bytes);
			memcpy(table, whole + row0 * row_bytes, n * row_bytes);
			for (uint32_t t = 0; t < rows; t++) {
				/* all of them in order, those at the part's ends included */
				uint32_t v = tokens[t] = rows < V ? kt_below(V) : t % V;

				for (uint32_t i = 0; i < d; i++)
					want[t * d + i] = v >= row0 && v < row0 + n
								  ? value[v * d + i]
								  : -0.0F;
			}
			assert_int_equal(c->ops.embed(&a, (void *)&c->ctx), 0);
			kt_same("embed", x, want, rows * d * sizeof(float));
		}
	kt_free_all();
}

static void test_embed_gives_rows_of_its_part_and_negative_zeros(void **state)
{
	static const enum kern_dtype types[] = {KERN_F32, KERN_F16, KERN_BF16};
	static const uint32_t dims[] = {1, 16, 37};

	for (struct kt_config *c = kt_all; c < kt_end; c++)
		for (size_t i = 0; i < ARRAY_LEN(types); i++)
			for (size_t k = 0; k < ARRAY_LEN(dims); k++) {
				embed_parts(c, types[i], dims[k], 1);
				embed_parts(c, types[i], dims[k], 9);
				embed_parts(c, types[i], dims[k], 64 + kt_below(600));
			}
}

/* Parts of 1, 2, 4 and 8 ranks added by rank number, as the all-reduce does: the whole's bits. */
static void test_embed_parts_sum_up_to_the_whole(void **state)
{
	enum { V = 64, D = 33, T = 130 };
	float *value = kt_floats(V * D), *whole = kt_floats(T * D);
	uint16_t *table = kt_new(V * D * sizeof(*table));
	uint32_t *tokens = kt_new(T * sizeof(*tokens));
	struct kt_config *c = kt_all;
	struct kern_embed_args a = {T, D, V, 0, V, tokens, table, KERN_BF16, whole};

	make_table(KERN_BF16, V * D, table, value);
	for (uint32_t t = 0; t < T; t++)
		tokens[t] = t < V ? t : kt_below(V);
	assert_int_equal(c->ops.embed(&a, &c->ctx), 0);
	for (uint32_t t = 0; t < T; t++)
		kt_same("row", whole + t * D, value + tokens[t] * D, D * sizeof(float));
	for (uint32_t world = 2; world <= 8; world *= 2) {
		float *sum = kt_floats(T * D), *part = kt_floats(T * D);

		for (uint32_t rank = 0; rank < world; rank++) {
			a.n = V / world;
			a.row0 = rank * a.n;
			a.table = table + a.row0 * D;
			a.x = rank ? part : sum;
			assert_int_equal(c->ops.embed(&a, &c->ctx), 0);
			for (uint32_t i = 0; rank && i < T * D; i++)
				sum[i] += part[i];
		}
		kt_same("sum of the parts", sum, whole, T * D * sizeof(float));
	}
	kt_free_all();
}

static void test_embed_refuses_what_is_out_of_range(void **state)
{
	enum { V = 9, D = 4, T = 2 };
	float table[V * D] = {0}, x[T * D];
	uint32_t tokens[T] = {0, V - 1};

	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		const struct kern_embed_args good = {T, D, V, 0, V, tokens, table, KERN_F32, x};
		struct kern_embed_args a = good;

		assert_int_equal(c->ops.embed(&a, &c->ctx), 0);
		a.vocab = a.n = V - 1; /* the last token is none */
		assert_int_equal(c->ops.embed(&a, &c->ctx), -EINVAL);
		a = good;
		a.row0 = 1; /* part of it lies behind the vocabulary */
		assert_int_equal(c->ops.embed(&a, &c->ctx), -EINVAL);
		a.row0 = UINT32_MAX;
		assert_int_equal(c->ops.embed(&a, &c->ctx), -EINVAL);
		a = good;
		a.dtype = KERN_FP8;
		assert_int_equal(c->ops.embed(&a, &c->ctx), -EINVAL);
	}
}

static void test_hc_expand_copies_a_row_into_four_streams(void **state)
{
	static const uint32_t counts[] = {1, 3, 16, 64, 193};
	static const uint32_t dims[] = {1, 17, 64, 1000};

	for (size_t k = 0; k < ARRAY_LEN(dims); k++)
		for (size_t r = 0; r < ARRAY_LEN(counts); r++) {
			uint32_t d = dims[k], rows = counts[r];
			float *x = kt_normals(rows * d, 1);

			for (struct kt_config *c = kt_all; c < kt_end; c++) {
				float *y = kt_floats(rows * 4 * d);
				struct kern_hc_expand_args a = {rows, d, x, y};

				assert_int_equal(c->ops.hc_expand(&a, &c->ctx), 0);
				for (uint32_t i = 0; i < rows * 4; i++)
					kt_same("stream", y + i * d, x + i / 4 * d,
						d * sizeof(float));
			}
			kt_free_all();
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_embed_gives_rows_of_its_part_and_negative_zeros),
		cmocka_unit_test(test_embed_parts_sum_up_to_the_whole),
		cmocka_unit_test(test_embed_refuses_what_is_out_of_range),
		cmocka_unit_test(test_hc_expand_copies_a_row_into_four_streams),
	};

	return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
