/*
 * Index scores over paged keys in every format, and selection: against loops, against the chain it
 * covers, and over shards.
 */
#include <math.h>

#include "kernels/layout.h"
#include "tests/kern/kt.h"

static const enum kern_dtype KEYS[] = {KERN_F32, KERN_BF16, KERN_FP8, KERN_FP4};

/* A batch with keys stored and queries made. */
struct index {
	struct kt_batch b;
	uint32_t heads;
	struct kern_index_args a;
	float *keys; /* [sequence][entry][128] as stored, decoded; entry stride `most` */
	uint32_t most;
};

static void make_index(struct index *x, uint32_t nseq, const uint32_t *pos0, const uint32_t *len,
	uint32_t heads, enum kern_dtype format)
{
	float *w;

	*x = (struct index){.b = kt_batch(nseq, pos0, len), .heads = heads};
	for (uint32_t q = 0; q < nseq; q++)
		x->most = MAX(x->most, (pos0[q] + len[q]) / 4);
	x->a = (struct kern_index_args){.heads = heads,
		.ldw = heads + 1,
		.scale = 0.03f,
		.format = format,
		.share = {0, 1}};
	x->a.pool = kt_pool(kern_index_page_bytes(format), x->b.pages[KERN_CSA]);
	x->a.q = kt_normals((size_t)x->b.b.ntok * heads * 128, 1);
	x->a.weights = w = kt_normals((size_t)x->b.b.ntok * (heads + 1), 1);
	for (uint32_t i = 0; i < 3 && i < x->b.b.ntok; i++) /* rows whose scores are mostly 0 */
		for (uint32_t h = 0; h <= heads; h++)
			w[kt_below(x->b.b.ntok) * (heads + 1) + h] = h ? 0 : 1;
	x->keys = kt_floats((size_t)nseq * x->most * 128 + 1);
	for (uint32_t q = 0; q < nseq; q++)
		for (uint32_t e = 0; e < (pos0[q] + len[q]) / 4; e++) {
			const struct kern_seq *s = &x->b.seqs[q];
			char *page = (char *)x->a.pool.base +
				     s->pages[KERN_CSA][e / 64] * x->a.pool.stride;
			struct kern_index_at at = kern_index_at(page, format, e % 64);
			float k[128];

			kt_fill(k, 128, 1);
			kern_index_encode(format, at, k);
			kern_index_decode(format, at, x->keys + ((size_t)q * x->most + e) * 128);
		}
}

static double plain_score(const struct index *x, uint32_t t, uint32_t e)
{
	const float *k = x->keys + ((size_t)x->b.b.row_seq[t] * x->most + e) * 128;
	double s = 0;

	for (uint32_t h = 0; h < x->heads; h++) {
		double dot = 0;

		for (int i = 0; i < 128; i++)
			dot += (double)x->a.q[((size_t)t * x->heads + h) * 128 + i] * k[i];
		s += (double)x->a.weights[t * x->a.ldw + h] * x->a.scale * fmax(dot, 0);
	}
	return s;
}

static const uint32_t POS0[] = {0, 250, 1020, 2, 4000, 255}, LEN[] = {20, 8, 17, 1, 1, 1};

/* failures 8, 9, 27: shuffled pages, every format, heads that fill no tile */
static void test_index_score_matches_loop(void **state)
{
	static const uint32_t heads[] = {1, 5, 8, 19};

	for (size_t f = 0; f < ARRAY_LEN(KEYS); f++)
		for (size_t h = 0; h < ARRAY_LEN(heads); h++) {
			struct index x;
			uint32_t first, count, rows, row0;
			float *base = NULL;
			double *want;

			make_index(&x, ARRAY_LEN(POS0), POS0, LEN, heads[h], KEYS[f]);
			first = h % 2 ? 64 : 0;
			count = 100 + kt_below(200);
			row0 = kt_below(5);
			rows = x.b.b.ntok - row0 - kt_below(3);
			want = kt_new(8 * rows * count);
			for (uint32_t r = 0; r < rows; r++)
				for (uint32_t i = 0; i < count; i++) {
					uint32_t t = row0 + r, e = first + i;
					bool sees = e < (x.b.b.row_pos[t] + 1) / 4 &&
						    (h != 1 || e / 64 % 2 == 1);

					want[r * count + i] = sees ? plain_score(&x, t, e) : NAN;
				}
			if (h == 1)
				x.a.share = (struct kern_share){1, 2};
			x.a.batch = &x.b.b;
			for (struct kt_config *c = kt_all; c < kt_end; c++) {
				float *s = kt_floats(rows * count);
				struct kern_index_score_args a = {x.a, row0, rows, first, count, s};

				assert_int_equal(c->ops.index_score(&a, &c->ctx), 0);
				if (!base)
					kt_close("index_score", base = s, want, rows * count, 2e-5,
						1e-5);
				for (uint32_t i = 0; i < rows * count; i++)
					assert_true(
						base[i] != base[i]
							? s[i] != s[i]
							: kern_bits(s[i]) == kern_bits(base[i]));
				a.first = first + 1;
				assert_int_equal(c->ops.index_score(&a, &c->ctx), -EINVAL);
				a.first = first;
				a.rows = x.b.b.ntok - row0 + 1;
				assert_int_equal(c->ops.index_score(&a, &c->ctx), -EINVAL);
			}
			kt_free_all();
		}
}

/* The chain: all scores, then topk of what each row sees. */
static void chain(struct kt_config *c, const struct kern_index_select_args *a, int32_t *entries,
	float *values, uint32_t *count, uint32_t *nan)
{
	const struct kern_batch *b = a->index.batch;
	uint32_t most = 0, *n = kt_new(4 * b->ntok);
	float *s;

	for (uint32_t t = 0; t < b->ntok; t++) {
		n[t] = (b->row_pos[t] + 1) / 4;
		most = MAX(most, n[t]);
	}
	s = kt_floats((size_t)b->ntok * most + 1);
	struct kern_index_score_args sc = {a->index, 0, b->ntok, 0, most, s};
	struct kern_topk_args tk = {b->ntok, a->k, s, most, n, 0, entries, values, count, nan};

	assert_int_equal(c->ops.index_score(&sc, &c->ctx), 0);
	assert_int_equal(c->ops.topk(&tk, &c->ctx), 0);
}

static void test_index_select_equals_its_chain(void **state)
{
	static const uint32_t ks[] = {1, 16, 63, 250, 512};

	for (size_t f = 0; f < ARRAY_LEN(KEYS); f++)
		for (size_t i = 0; i < ARRAY_LEN(ks); i++) {
			struct index x;
			uint32_t k = ks[i], rows;
			int32_t *base = NULL;
			float *base_v = NULL;

			make_index(&x, ARRAY_LEN(POS0), POS0, LEN, 8, KEYS[f]);
			x.a.batch = &x.b.b;
			rows = x.b.b.ntok;
			for (struct kt_config *c = kt_all; c < kt_end; c++) {
				int32_t *e = kt_new(4 * rows * k), *e2 = kt_new(4 * rows * k);
				float *v = kt_floats(rows * k), *v2 = kt_floats(rows * k);
				uint32_t *n = kt_new(4 * rows), *n2 = kt_new(4 * rows);
				uint32_t *nan = kt_new(4 * rows), *nan2 = kt_new(4 * rows);
				struct kern_index_select_args a = {x.a, k, e, v, n, nan};

				assert_int_equal(c->ops.index_select(&a, &c->ctx), 0);
				chain(c, &a, e2, v2, n2, nan2);
				kt_same("entries", e, e2, 4 * rows * k);
				kt_same("count", n, n2, 4 * rows);
				kt_same("nan", nan, nan2, 4 * rows);
				for (uint32_t t = 0; t < rows; t++) {
					uint32_t sees = (x.b.b.row_pos[t] + 1) / 4;

					if (sees > k) /* fewer are taken unscored */
						kt_same("values", v + t * k, v2 + t * k, 4 * k);
					assert_int_equal(n[t], MIN(sees, k));
				}
				if (base) {
					kt_same(c->variant, e, base, 4 * rows * k);
					kt_same(c->variant, v, base_v, 4 * rows * k);
				}
				base = e;
				base_v = v;
			}
			kt_free_all();
		}
}

/*
 * Many sequences of one row each, of any length: threads share out their strips of keys, so rows
 * are cut anywhere, and by several threads. With shards too, and heads that fill no tile.
 */
static void test_index_select_of_single_rows_is_the_reference(void **state)
{
	static const uint32_t heads[] = {1, 3, 4, 8, 13}, ks[] = {1, 64, 300, 512};

	for (size_t f = 0; f < ARRAY_LEN(KEYS); f++)
		for (size_t h = 0; h < ARRAY_LEN(heads); h++) {
			uint32_t rows = 1 + kt_below(12), k = ks[kt_below(ARRAY_LEN(ks))];
			uint32_t pos0[12], len[12], world = 1 + kt_below(3);
			int32_t *base = NULL;
			float *base_v = NULL;
			uint32_t *base_n = NULL, *base_nan = NULL;
			struct index x;

			for (uint32_t q = 0; q < rows; q++) {
				pos0[q] = kt_below(kt_below(4) ? 3000 : 9000);
				len[q] = 1;
			}
			make_index(&x, rows, pos0, len, heads[h], KEYS[f]);
			x.a.batch = &x.b.b;
			x.a.share = (struct kern_share){kt_below(world), world};
			for (struct kt_config *c = kt_all; c < kt_end; c++) {
				int32_t *e = kt_new(4 * rows * k);
				float *v = kt_floats(rows * k);
				uint32_t *n = kt_new(4 * rows), *nan = kt_new(4 * rows);
				struct kern_index_select_args a = {x.a, k, e, v, n, nan};

				assert_int_equal(c->ops.index_select(&a, &c->ctx), 0);
				if (base) {
					kt_same(c->variant, e, base, 4 * rows * k);
					kt_same(c->variant, v, base_v, 4 * rows * k);
					kt_same(c->variant, n, base_n, 4 * rows);
					kt_same(c->variant, nan, base_nan, 4 * rows);
				}
				base = e;
				base_v = v;
				base_n = n;
				base_nan = nan;
			}
			kt_free_all();
		}
}

/* failures 9, 11, 13: 100k tokens, many chunks of entries, every page at its own place */
static void test_index_select_long_context_equals_its_chain(void **state)
{
	static const uint32_t pos0[] = {100000, 20000}, len[] = {1, 1};
	uint32_t k = 512, rows = 2;
	struct index x;
	int32_t *base = NULL;

	make_index(&x, 2, pos0, len, 1, KERN_FP4);
	x.a.batch = &x.b.b;
	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		int32_t *e = kt_new(4 * rows * k), *e2 = kt_new(4 * rows * k);
		float *v = kt_floats(rows * k), *v2 = kt_floats(rows * k);
		uint32_t n[2], n2[2], nan[2];
		struct kern_index_select_args a = {x.a, k, e, v, n, NULL};

		assert_int_equal(c->ops.index_select(&a, &c->ctx), 0);
		if (c == kt_end - 1) { /* the whole chain in one go */
			chain(c, &a, e2, v2, n2, nan);
			kt_same("entries", e, e2, 4 * rows * k);
			kt_same("values", v, v2, 4 * rows * k);
		}
		if (base)
			kt_same(c->variant, e, base, 4 * rows * k);
		base = e;
	}
	kt_free_all();
}

/* failures 24: shards of the pages, merged, select what one worker selects */
static void test_index_select_shards_merge_to_the_whole(void **state)
{
	for (uint32_t world = 2; world <= 4; world += 2) {
		struct index x;
		uint32_t k = 40, rows;
		struct kt_config *c = &kt_all[kt_count - 1];
		int32_t *whole, *lists, *merged;
		uint32_t *n, *counts, *got;
		float *values;

		make_index(&x, ARRAY_LEN(POS0), POS0, LEN, 8, KERN_BF16);
		x.a.batch = &x.b.b;
		rows = x.b.b.ntok;
		whole = kt_new(4 * rows * k);
		merged = kt_new(4 * rows * k);
		lists = kt_new(4 * world * rows * k);
		n = kt_new(4 * rows);
		got = kt_new(4 * rows);
		counts = kt_new(4 * world * rows);
		values = kt_floats(world * rows * k);
		struct kern_index_select_args a = {x.a, k, whole, NULL, n, NULL};
		struct kern_index_merge_args m = {
			rows, k, world, lists, values, counts, merged, got};

		assert_int_equal(c->ops.index_select(&a, &c->ctx), 0);
		for (uint32_t w = 0; w < world; w++) {
			a.index.share = (struct kern_share){w, world};
			a.entries = lists + w * rows * k;
			a.values = values + w * rows * k;
			a.count = counts + w * rows;
			assert_int_equal(c->ops.index_select(&a, &c->ctx), 0);
		}
		assert_int_equal(c->ops.index_merge(&m, &c->ctx), 0);
		kt_same("entries", merged, whole, 4 * rows * k);
		kt_same("count", got, n, 4 * rows);
		kt_free_all();
	}
}

/* Row by row, alone, as part of a chunk, in any company: the same selection and score bits. */
static void test_index_select_does_not_depend_on_company(void **state)
{
	static const uint32_t pos0[] = {900, 0, 2000}, len[] = {70, 300, 1};
	uint32_t k = 50, rows;
	struct index x;
	int32_t *all;
	float *v;
	uint32_t *n;

	make_index(&x, 3, pos0, len, 8, KERN_FP8);
	x.a.batch = &x.b.b;
	rows = x.b.b.ntok;
	all = kt_new(4 * rows * k);
	v = kt_floats(rows * k);
	n = kt_new(4 * rows);
	struct kern_index_select_args a = {x.a, k, all, v, n, NULL};

	assert_int_equal(kt_all[kt_count - 1].ops.index_select(&a, &kt_all[kt_count - 1].ctx), 0);
	for (int i = 0; i < 30; i++) {
		uint32_t q = kt_below(3), first = kt_below(len[q]);
		uint32_t m = 1 + kt_below(MIN(len[q] - first, 40)), t = x.b.seqs[q].row0 + first;
		struct kt_batch part = kt_part(&x.b, q, first, m);
		struct kt_config *c = &kt_all[kt_below(kt_count)];
		int32_t *e = kt_new(4 * m * k);
		float *pv = kt_floats(m * k);
		uint32_t *pn = kt_new(4 * m);
		struct kern_index_select_args p = {x.a, k, e, pv, pn, NULL};

		p.index.batch = &part.b;
		p.index.q += (size_t)t * x.heads * 128;
		p.index.weights += t * x.a.ldw;
		assert_int_equal(c->ops.index_select(&p, &c->ctx), 0);
		kt_same("entries", e, all + t * k, 4 * m * k);
		kt_same("values", pv, v + t * k, 4 * m * k);
		kt_same("count", pn, n + t, 4 * m);
	}
	kt_free_all();
}

/* failures 17: keys that are NaN are never chosen, and are counted */
static void test_index_select_leaves_nan_out(void **state)
{
	static const uint32_t pos0 = 1999, len = 1;
	struct index x;

	make_index(&x, 1, &pos0, &len, 8, KERN_F32);
	x.a.batch = &x.b.b;
	for (uint32_t e = 0; e < 500; e += 3) {
		char *page = (char *)x.a.pool.base +
			     x.b.seqs[0].pages[KERN_CSA][e / 64] * x.a.pool.stride;

		((float *)kern_index_at(page, KERN_F32, e % 64).value)[e % 128 * 16] = NAN;
	}
	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		int32_t e[400];
		uint32_t n, nan;
		struct kern_index_select_args a = {x.a, 400, e, NULL, &n, &nan};

		assert_int_equal(c->ops.index_select(&a, &c->ctx), 0);
		assert_int_equal(nan, 167);
		assert_int_equal(n, 333);
		for (uint32_t i = 0; i < 400; i++)
			assert_true(i < n ? e[i] % 3 != 0 : e[i] == -1);
	}
	kt_free_all();
}

/* failures 19: nothing to see anywhere */
static void test_index_select_without_entries_is_empty(void **state)
{
	static const uint32_t pos0[] = {0, 1, 2}, len[] = {1, 1, 1};
	struct index x;

	make_index(&x, 3, pos0, len, 4, KERN_BF16);
	x.a.batch = &x.b.b;
	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		int32_t e[3 * 16];
		uint32_t n[3] = {9, 9, 9};
		struct kern_index_select_args a = {x.a, 16, e, NULL, n, NULL};

		assert_int_equal(c->ops.index_select(&a, &c->ctx), 0);
		for (int i = 0; i < 48; i++)
			assert_int_equal(e[i], -1);
		assert_true(!n[0] && !n[1] && !n[2]);
	}
	kt_free_all();
}

static void test_index_select_refuses_short_tables(void **state)
{
	struct index x;
	uint32_t rows;

	make_index(&x, ARRAY_LEN(POS0), POS0, LEN, 4, KERN_BF16);
	x.a.batch = &x.b.b;
	rows = x.b.b.ntok;
	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		int32_t *e = kt_new(4 * rows * 16);
		uint32_t *n = kt_new(4 * rows);
		struct kern_index_select_args a = {x.a, 16, e, NULL, n, NULL};

		x.b.seqs[4].page_n[KERN_CSA]--;
		assert_int_equal(c->ops.index_select(&a, &c->ctx), -EINVAL);
		x.b.seqs[4].page_n[KERN_CSA]++;
		a.index.format = KERN_F16;
		assert_int_equal(c->ops.index_select(&a, &c->ctx), -EINVAL);
		a.index.format = KERN_BF16;
		a.index.share = (struct kern_share){2, 2};
		assert_int_equal(c->ops.index_select(&a, &c->ctx), -EINVAL);
	}
	kt_free_all();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_index_score_matches_loop),
		cmocka_unit_test(test_index_select_equals_its_chain),
		cmocka_unit_test(test_index_select_of_single_rows_is_the_reference),
		cmocka_unit_test(test_index_select_long_context_equals_its_chain),
		cmocka_unit_test(test_index_select_shards_merge_to_the_whole),
		cmocka_unit_test(test_index_select_does_not_depend_on_company),
		cmocka_unit_test(test_index_select_leaves_nan_out),
		cmocka_unit_test(test_index_select_without_entries_is_empty),
		cmocka_unit_test(test_index_select_refuses_short_tables),
	};

	return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
