/*
 * Attention against a two-pass softmax in double over keys read through addressing of the test's
 * own; equal bits for every variant, thread count, chunk and company.
 */
#include <math.h>

#include "kernels/layout.h"
#include "tests/kern/kt.h"

static const enum kern_dtype KV[] = {KERN_F32, KERN_BF16, KERN_FP8};

struct attention {
	struct kt_batch b;
	struct kern_attention_args a;
	struct kern_pool raw, entries;
	float *key[2]; /* decoded raw rows, entries: [sequence][index][512] */
	uint32_t most;
};

/* Fills pages with random rows and keeps what a reader must see. */
static void fill_pool(
	struct attention *x, enum kern_class c, struct kern_pool *pool, float *key, uint32_t ratio)
{
	for (uint32_t q = 0; q < x->b.b.nseq; q++) {
		const struct kern_seq *s = &x->b.seqs[q];
		uint32_t first = c == KERN_RAW ? s->raw_first * 64 : 0;

		for (uint32_t i = first; i < (s->pos0 + s->n) / ratio; i++) {
			char *page =
				(char *)pool->base + s->pages[c][(i - first) / 64] * pool->stride;
			uint8_t *row =
				(uint8_t *)page + i % 64 * (kern_kv_page_bytes(x->a.format) / 64);
			float k[512];

			kt_fill(k, 512, 1);
			kern_kv_encode(x->a.format, row, k);
			kern_kv_decode(x->a.format, row, key + ((size_t)q * x->most + i) * 512);
		}
	}
}

static void make_attention(struct attention *x, uint32_t nseq, const uint32_t *pos0,
	const uint32_t *len, uint32_t heads, enum kern_dtype format, uint32_t ratio, uint32_t k)
{
	enum kern_class c = ratio == 128 ? KERN_HCA : KERN_CSA;
	size_t bytes = kern_kv_page_bytes(format);
	int32_t *sel;

	*x = (struct attention){.b = kt_batch(nseq, pos0, len)};
	x->a = (struct kern_attention_args){
		.heads = heads, .scale = 0.0441941738f, .format = format, .ratio = ratio, .k = k};
	for (uint32_t q = 0; q < nseq; q++)
		x->most = MAX(x->most, pos0[q] + len[q]);
	x->a.raw = kt_pool(bytes, x->b.pages[KERN_RAW]);
	x->key[0] = kt_floats((size_t)nseq * x->most * 512);
	fill_pool(x, KERN_RAW, &x->a.raw, x->key[0], 1);
	if (ratio) {
		x->a.entries = kt_pool(bytes, x->b.pages[c]);
		x->key[1] = kt_floats((size_t)nseq * x->most * 512);
		fill_pool(x, c, &x->a.entries, x->key[1], ratio);
	}
	x->a.q = kt_normals((size_t)x->b.b.ntok * heads * 512, 1);
	x->a.sink = kt_normals(heads, 2);
	if (!k)
		return;
	sel = kt_new(4 * k * x->b.b.ntok);
	for (uint32_t t = 0; t < x->b.b.ntok; t++) {
		uint32_t sees = (x->b.b.row_pos[t] + 1) / ratio, n = 0;

		for (uint32_t e = 0; e < sees && n < k; e++)
			if (kt_below(sees) < k)
				sel[t * k + n++] = (int32_t)e;
		while (n < k) /* padding, and what is out of range */
			sel[t * k + n++] = t % 3 ? -1 : (int32_t)(sees + kt_below(5));
	}
	x->a.selected = sel;
}

/* One head of one row in double; adds the entries' probabilities to mass[k] where there is a list.
 */
static void plain_attention(
	const struct attention *x, uint32_t t, uint32_t h, double *o, double *mass)
{
	uint32_t q = x->b.b.row_seq[t], pos = x->b.b.row_pos[t], n = 0, sees;
	const float *qv = x->a.q + ((size_t)t * x->a.heads + h) * 512;
	const float **keys = malloc(sizeof(*keys) * (x->most * 2 + 1));
	double *s = malloc(sizeof(*s) * (x->most * 2 + 1)), max = x->a.sink[h], sum;

	sees = x->a.ratio ? (pos + 1) / x->a.ratio : 0;
	for (uint32_t p = pos > 127 ? pos - 127 : 0; p <= pos; p++)
		keys[n++] = x->key[0] + ((size_t)q * x->most + p) * 512;
	for (uint32_t i = 0; i < (x->a.selected ? x->a.k : sees); i++) {
		uint32_t e = x->a.selected ? (uint32_t)x->a.selected[t * x->a.k + i] : i;

		if (e < sees)
			keys[n++] = x->key[1] + ((size_t)q * x->most + e) * 512;
	}
	for (uint32_t j = 0; j < n; j++) {
		s[j] = 0;
		for (int i = 0; i < 512; i++)
			s[j] += (double)qv[i] * keys[j][i];
		s[j] *= x->a.scale;
		max = fmax(max, s[j]);
	}
	sum = exp(x->a.sink[h] - max);
	for (uint32_t j = 0; j < n; j++)
		sum += s[j] = exp(s[j] - max);
	for (int i = 0; i < 512; i++) {
		o[i] = 0;
		for (uint32_t j = 0; j < n; j++)
			o[i] += s[j] / sum * keys[j][i];
	}
	for (uint32_t i = 0, j = MIN(pos + 1, 128u); x->a.selected && i < x->a.k; i++)
		if ((uint32_t)x->a.selected[t * x->a.k + i] < sees)
			mass[i] += s[j++] / sum;
	free(keys);
	free(s);
}

static void check_attention(struct attention *x)
{
	uint32_t rows = x->b.b.ntok, heads = x->a.heads;
	size_t n = (size_t)rows * heads * 512;
	size_t listed = (size_t)rows * (x->a.selected ? x->a.k : 0);
	double *want = kt_new(8 * n), *want_mass = kt_new(8 * (listed + 1));
	float *base = NULL, *base_mass = NULL, *mass;

	memset(want_mass, 0, 8 * listed);
	for (uint32_t t = 0; t < rows; t++)
		for (uint32_t h = 0; h < heads; h++)
			plain_attention(x, t, h, want + ((size_t)t * heads + h) * 512,
				want_mass + (size_t)t * x->a.k);
	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		x->a.batch = &x->b.b;
		x->a.o = kt_floats(n);
		assert_int_equal(c->ops.attention(&x->a, &c->ctx), 0);
		if (!base)
			kt_close("attention", base = x->a.o, want, n, 5e-6, 1e-5);
		kt_same(c->variant, x->a.o, base, n * 4);
		mass = kt_floats(listed + 1);
		if (!listed)
			continue;
		assert_int_equal(c->ops.attention_mass(
					 &(struct kern_attention_mass_args){&x->a, mass}, &c->ctx),
			0);
		if (!base_mass)
			kt_close("mass", base_mass = mass, want_mass, listed, 5e-6, 1e-5);
		kt_same(c->variant, mass, base_mass, listed * 4);
	}
	/* in place */
	x->a.o = (float *)x->a.q;
	assert_int_equal(kt_all[kt_count - 1].ops.attention(&x->a, &kt_all[kt_count - 1].ctx), 0);
	kt_same("in place", x->a.o, base, n * 4);
}

/* One row of every sequence, as in decode: kernels may take another path. */
static void test_attention_of_lone_rows(void **state)
{
	static const uint32_t pos0[] = {0, 62, 127, 700, 2100}, len[] = {1, 1, 1, 1, 1};
	static const uint32_t heads[] = {2, 4, 5, 8, 9, 12}, ks[] = {0, 1, 131};

	for (size_t f = 0; f < ARRAY_LEN(KV); f++)
		for (size_t h = 0; h < ARRAY_LEN(heads); h++) {
			uint32_t k = ks[h % ARRAY_LEN(ks)];
			struct attention x;

			make_attention(
				&x, ARRAY_LEN(pos0), pos0, len, heads[h], KV[f], k ? 4 : 128, k);
			check_attention(&x);
			kt_free_all();
		}
}

static void test_attention_window_at_boundaries(void **state)
{
	static const uint32_t pos0[] = {0, 62, 126, 190, 500}, len[] = {2, 4, 4, 2, 1};
	static const uint32_t heads[] = {1, 3, 4, 5, 7, 8, 9, 17};

	for (size_t f = 0; f < ARRAY_LEN(KV); f++)
		for (size_t h = 0; h < ARRAY_LEN(heads); h++) {
			struct attention x;

			make_attention(&x, ARRAY_LEN(pos0), pos0, len, heads[h], KV[f], 0, 0);
			check_attention(&x);
			kt_free_all();
		}
}

static void test_attention_all_visible_entries(void **state)
{
	static const uint32_t pos0[] = {0, 127, 1000, 3, 16500}, len[] = {2, 2, 3, 1, 1};

	for (size_t f = 0; f < ARRAY_LEN(KV); f++)
		for (uint32_t ratio = 4; ratio <= 128; ratio *= 32) {
			struct attention x;

			make_attention(&x, ratio == 4 ? 4 : 5, pos0, len, 6, KV[f], ratio, 0);
			check_attention(&x);
			kt_free_all();
		}
}

/* failures 18, 20, 21: padded lists, entries out of range, rows with none */
static void test_attention_selected_entries(void **state)
{
	static const uint32_t pos0[] = {0, 255, 1000, 3, 2047}, len[] = {5, 2, 3, 1, 2};
	static const uint32_t ks[] = {1, 16, 130, 512};

	for (size_t f = 0; f < ARRAY_LEN(KV); f++)
		for (size_t k = 0; k < ARRAY_LEN(ks); k++) {
			struct attention x;

			make_attention(&x, ARRAY_LEN(pos0), pos0, len, 5, KV[f], 4, ks[k]);
			check_attention(&x);
			kt_free_all();
		}
}

/* A row alone, in any chunk, among other sequences: the same bits. */
static void test_attention_does_not_depend_on_company(void **state)
{
	static const uint32_t pos0[] = {900, 0, 127}, len[] = {40, 200, 1};
	struct attention x;
	uint32_t heads = 8;
	float *all;

	make_attention(&x, 3, pos0, len, heads, KERN_BF16, 4, 64);
	x.a.batch = &x.b.b;
	x.a.o = all = kt_floats((size_t)x.b.b.ntok * heads * 512);
	assert_int_equal(kt_all[kt_count - 1].ops.attention(&x.a, &kt_all[kt_count - 1].ctx), 0);
	for (int i = 0; i < 25; i++) {
		uint32_t q = kt_below(3), first = kt_below(len[q]);
		uint32_t n = 1 + kt_below(MIN(len[q] - first, 12)), t = x.b.seqs[q].row0 + first;
		struct kt_batch part = kt_part(&x.b, q, first, n);
		struct kt_config *c = &kt_all[kt_below(kt_count)];
		struct kern_attention_args a = x.a;

		a.batch = &part.b;
		a.q += (size_t)t * heads * 512;
		a.selected += t * a.k;
		a.o = kt_floats((size_t)n * heads * 512);
		assert_int_equal(c->ops.attention(&a, &c->ctx), 0);
		kt_same("part", a.o, all + (size_t)t * heads * 512, (size_t)n * heads * 2048);
	}
	kt_free_all();
}

/* Extremes of the softmax: great scores, a sink that takes all, none, or is infinite. */
static void test_attention_extreme_scores_stay_finite(void **state)
{
	static const uint32_t pos0 = 200, len = 4;
	static const float sinks[] = {0, 1e30f, -1e30f, -INFINITY};

	for (size_t i = 0; i < ARRAY_LEN(sinks); i++) {
		struct attention x;

		make_attention(&x, 1, &pos0, &len, 4, KERN_F32, 4, 0);
		for (int h = 0; h < 4; h++)
			((float *)x.a.sink)[h] = sinks[i];
		for (size_t k = 0; k < 4 * 4 * 512; k++)
			((float *)x.a.q)[k] *= 40;
		x.a.batch = &x.b.b;
		for (struct kt_config *c = kt_all; c < kt_end; c++) {
			x.a.o = kt_floats(4 * 4 * 512);
			assert_int_equal(c->ops.attention(&x.a, &c->ctx), 0);
			for (size_t k = 0; k < 4 * 4 * 512; k++)
				assert_true(isfinite(x.a.o[k]) && (i != 1 || x.a.o[k] == 0));
		}
		kt_free_all();
	}
}

/* A NaN key reaches the rows that see it and no others. */
static void test_attention_nan_key_spoils_its_rows_only(void **state)
{
	static const uint32_t pos0[] = {0, 0}, len[] = {10, 10};
	struct attention x;
	const struct kern_seq *s;

	make_attention(&x, 2, pos0, len, 3, KERN_F32, 0, 0);
	s = &x.b.seqs[1];
	((float *)((char *)x.a.raw.base + s->pages[KERN_RAW][0] * x.a.raw.stride))[6 * 512] = NAN;
	x.a.batch = &x.b.b;
	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		x.a.o = kt_floats(20 * 3 * 512);
		assert_int_equal(c->ops.attention(&x.a, &c->ctx), 0);
		for (uint32_t t = 0; t < 20; t++)
			for (uint32_t i = 0; i < 3 * 512; i++)
				assert_int_equal(!!isnan(x.a.o[t * 3 * 512 + i]), t >= 16);
	}
	kt_free_all();
}

static void test_attention_refuses_missing_pages(void **state)
{
	static const uint32_t pos0 = 300, len = 10;
	struct attention x;

	make_attention(&x, 1, &pos0, &len, 2, KERN_F32, 4, 0);
	x.a.batch = &x.b.b;
	x.a.o = kt_floats(10 * 2 * 512);
	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		x.b.seqs[0].page_n[KERN_RAW]--;
		assert_int_equal(c->ops.attention(&x.a, &c->ctx), -EINVAL);
		x.b.seqs[0].page_n[KERN_RAW]++;
		x.b.seqs[0].raw_first++;
		assert_int_equal(c->ops.attention(&x.a, &c->ctx), -EINVAL);
		x.b.seqs[0].raw_first--;
		x.b.seqs[0].page_n[KERN_CSA]--;
		assert_int_equal(c->ops.attention(&x.a, &c->ctx), -EINVAL);
		x.b.seqs[0].page_n[KERN_CSA]++;
		x.a.ratio = 8;
		assert_int_equal(c->ops.attention(&x.a, &c->ctx), -EINVAL);
		x.a.ratio = 4;
		assert_true(isnan(x.a.o[0]));
	}
	kt_free_all();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_attention_of_lone_rows),
		cmocka_unit_test(test_attention_window_at_boundaries),
		cmocka_unit_test(test_attention_all_visible_entries),
		cmocka_unit_test(test_attention_selected_entries),
		cmocka_unit_test(test_attention_does_not_depend_on_company),
		cmocka_unit_test(test_attention_extreme_scores_stay_finite),
		cmocka_unit_test(test_attention_nan_key_spoils_its_rows_only),
		cmocka_unit_test(test_attention_refuses_missing_pages),
	};

	return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
