/*
 * Caches: layouts read back through addressing of the test's own, every format; fused stores
 * against their chains; compressors against loops, however the tokens are cut into steps.
 */
#include <math.h>

#include "kernels/layout.h"
#include "tests/kern/kt.h"

static const enum kern_dtype KV[] = {KERN_F32, KERN_BF16, KERN_FP8};
static const enum kern_dtype KEYS[] = {KERN_F32, KERN_BF16, KERN_FP8, KERN_FP4};

static float bf16_at(const uint8_t *p)
{
	uint16_t h;

	memcpy(&h, p, 2);
	return kern_float((uint32_t)h << 16);
}

static float f32_at(const uint8_t *p)
{
	float f;

	memcpy(&f, p, 4);
	return f;
}

/* Dim i of row `slot`, by the byte offsets of model.md 6. */
static double kv_value(enum kern_dtype f, const uint8_t *page, uint32_t slot, uint32_t i)
{
	const uint8_t *row;

	if (f == KERN_F32)
		return f32_at(page + slot * 2048 + 4 * i);
	if (f == KERN_BF16)
		return bf16_at(page + slot * 1024 + 2 * i);
	row = page + slot * 584;
	if (i >= 448)
		return bf16_at(row + 448 + 2 * (i - 448));
	return kt_e4m3(row[i]) * ldexp(1, row[576 + i / 64] - 127);
}

/* Blocks of 16 keys, dims outermost. */
static double key_value(enum kern_dtype f, const uint8_t *page, uint32_t slot, uint32_t i)
{
	uint32_t block = slot / 16, lane = slot % 16;
	uint8_t b;

	if (f == KERN_F32)
		return f32_at(page + ((block * 128 + i) * 16 + lane) * 4);
	if (f == KERN_BF16)
		return bf16_at(page + (((block * 64 + i / 2) * 16 + lane) * 2 + i % 2) * 2);
	if (f == KERN_FP8)
		return kt_e4m3(page[(block * 128 + i) * 16 + lane]) *
		       f32_at(page + 64 * 128 + slot * 4);
	b = page[(block * 64 + i / 2) * 16 + lane];
	return kt_e2m1(i % 2 ? b >> 4 : b & 15) *
	       ldexp(1, page[64 * 64 + (block * 4 + i / 32) * 16 + lane] - 127);
}

/* How far a stored value may be from what was stored, given its block's amax. */
static double bound(enum kern_dtype f, double x, double amax)
{
	if (f == KERN_F32)
		return 0;
	if (f == KERN_BF16)
		return fabs(x) * 0x1p-8;
	if (f == KERN_FP8) /* half a step of 3 bits, or of the subnormals, at twice amax / 448 */
		return fmax(fabs(x) * 0x1p-4, amax / 448 * 2 * 0x1p-10) + 1e-9;
	return fmax(fabs(x) * 0.25, amax / 6 * 2 * 0.25) + 1e-30;
}

static double amax_of(const float *x, uint32_t n)
{
	double m = 0;

	for (uint32_t i = 0; i < n; i++)
		m = fmax(m, fabs(x[i]));
	return m;
}

static void test_page_sizes_are_the_documented_ones(void **state)
{
	assert_int_equal(kern_kv_page_bytes(KERN_F32), 64 * 2048);
	assert_int_equal(kern_kv_page_bytes(KERN_BF16), 64 * 1024);
	assert_int_equal(kern_kv_page_bytes(KERN_FP8), 64 * 584);
	assert_int_equal(kern_kv_page_bytes(KERN_FP4), 0);
	assert_int_equal(kern_index_page_bytes(KERN_F32), 64 * 512);
	assert_int_equal(kern_index_page_bytes(KERN_BF16), 64 * 256);
	assert_int_equal(kern_index_page_bytes(KERN_FP8), 64 * 132);
	assert_int_equal(kern_index_page_bytes(KERN_FP4), 64 * 68);
}

/* A batch with sequences at and around page boundaries. */
static struct kt_batch ragged(void)
{
	static const uint32_t pos0[] = {0, 60, 127, 4090, 300, 8190, 1, 0},
			      len[] = {1, 70, 130, 9, 4, 1000, 2, 257};

	return kt_batch(ARRAY_LEN(pos0), pos0, len);
}

static enum kern_class class_of(uint32_t ratio)
{
	return ratio == 1 ? KERN_RAW : ratio == 4 ? KERN_CSA : KERN_HCA;
}

static const uint8_t *page_of(const struct kt_batch *b, const struct kern_rows *r, uint32_t i,
	const struct kern_pool *pool)
{
	const struct kern_seq *s = &b->seqs[r->seq[i]];
	uint32_t page = r->index[i] / 64 - (r->ratio == 1 ? s->raw_first : 0);

	return (const uint8_t *)pool->base + s->pages[class_of(r->ratio)][page] * pool->stride;
}

static void test_rows_of_a_batch_are_its_entries(void **state)
{
	struct kt_batch b = ragged();

	for (uint32_t ratio = 1; ratio <= 128; ratio *= ratio == 1 ? 4 : 32) {
		struct kern_rows r = kt_rows(&b, ratio);
		uint32_t n = 0;

		for (uint32_t t = 0; t < b.b.ntok; t++) {
			uint32_t pos = b.b.row_pos[t];

			if ((pos + 1) % ratio)
				continue;
			assert_int_equal(r.seq[n], b.b.row_seq[t]);
			assert_int_equal(r.index[n], pos / ratio);
			assert_int_equal(r.pos[n], pos / ratio * ratio);
			n++;
		}
		assert_int_equal(n, r.n);
	}
	kt_free_all();
}

/* failures 8: all slots of every format, partly filled pages, nothing written besides */
static void test_kv_put_round_trips_every_slot(void **state)
{
	for (size_t f = 0; f < ARRAY_LEN(KV); f++)
		for (uint32_t ratio = 1; ratio <= 128; ratio *= ratio == 1 ? 4 : 32) {
			struct kt_batch b = ragged();
			struct kern_rows r = kt_rows(&b, ratio);
			size_t bytes = kern_kv_page_bytes(KV[f]);
			uint32_t pages = b.pages[class_of(ratio)];
			float *x = kt_normals(r.n * 512, 2);
			struct kern_pool first = {0};

			memset(x, 0, 512 * 4);
			for (struct kt_config *c = kt_all; c < kt_end; c++) {
				struct kern_pool pool = kt_pool(bytes, pages);
				struct kern_kv_put_args a = {&b.b, &r, x, KV[f], pool};

				assert_int_equal(c->ops.kv_put(&a, &c->ctx), 0);
				if (first.base) {
					kt_same(c->variant, pool.base, first.base,
						pages * pool.stride);
					continue;
				}
				first = pool;
				for (uint32_t i = 0; i < r.n; i++)
					for (uint32_t k = 0; k < 512; k++) {
						double want = x[i * 512 + k];
						double got =
							kv_value(KV[f], page_of(&b, &r, i, &pool),
								r.index[i] % 64, k);
						double am = amax_of(x + i * 512 + k / 64 * 64, 64);
						enum kern_dtype as = KV[f] == KERN_FP8 && k >= 448
									     ? KERN_BF16
									     : KV[f];

						if (!(fabs(got - want) <= bound(as, want, am)))
							fail_msg("row %u dim %u: %g, stored %g", i,
								k, got, want);
					}
			}
			kt_free_all();
		}
}

static void test_index_put_round_trips_every_slot(void **state)
{
	for (size_t f = 0; f < ARRAY_LEN(KEYS); f++) {
		struct kt_batch b = ragged();
		struct kern_rows r = kt_rows(&b, 4);
		size_t bytes = kern_index_page_bytes(KEYS[f]);
		float *x = kt_normals(r.n * 128, 2);
		struct kern_pool first = {0};
		uint32_t block = KEYS[f] == KERN_FP4 ? 32 : 128;

		memset(x, 0, 128 * 4);
		for (struct kt_config *c = kt_all; c < kt_end; c++) {
			struct kern_pool pool = kt_pool(bytes, b.pages[KERN_CSA]);
			struct kern_index_put_args a = {&b.b, &r, x, KEYS[f], pool};

			assert_int_equal(c->ops.index_put(&a, &c->ctx), 0);
			if (first.base) {
				kt_same(c->variant, pool.base, first.base,
					b.pages[KERN_CSA] * pool.stride);
				continue;
			}
			first = pool;
			for (uint32_t i = 0; i < r.n; i++)
				for (uint32_t k = 0; k < 128; k++) {
					double want = x[i * 128 + k];
					double got = key_value(KEYS[f], page_of(&b, &r, i, &pool),
						r.index[i] % 64, k);
					double am = amax_of(x + i * 128 + k / block * block, block);

					if (!(fabs(got - want) <= bound(KEYS[f], want, am)))
						fail_msg("format %d row %u dim %u: %g, stored %g",
							KEYS[f], i, k, got, want);
				}
		}
		kt_free_all();
	}
}

/* Out of a page as runs of bytes in the order of dims, and into another at any slot. */
static void test_index_keys_move_between_pages(void **state)
{
	for (size_t f = 0; f < ARRAY_LEN(KEYS); f++) {
		size_t bytes = kern_index_page_bytes(KEYS[f]);
		size_t values = kern_index_value_bytes(KEYS[f]);
		uint8_t *page = kt_new(bytes), *other = kt_new(bytes), *again = kt_new(bytes);

		for (size_t i = 0; i < bytes; i++)
			page[i] = (uint8_t)kt_random();
		for (uint32_t i = 0; i < 64; i++) {
			uint8_t *value = kt_new(values), *scale = kt_new(4);
			uint32_t to = (i * 29 + 5) % 64;

			kern_index_read(KEYS[f], kern_index_at(page, KEYS[f], i), value, scale);
			for (uint32_t k = 0; k < 128; k++) {
				double want = key_value(KEYS[f], page, i, k), got;

				if (KEYS[f] == KERN_F32)
					got = f32_at(value + 4 * k);
				else if (KEYS[f] == KERN_BF16)
					got = bf16_at(value + 2 * k);
				else if (KEYS[f] == KERN_FP8)
					got = kt_e4m3(value[k]) * f32_at(scale);
				else
					got = kt_e2m1(value[k / 2] >> 4 * (k % 2) & 15) *
					      ldexp(1, scale[k / 32] - 127);
				assert_true(got == want || (got != got && want != want));
			}
			kern_index_write(KEYS[f], kern_index_at(other, KEYS[f], to), value, scale);
			kern_index_read(KEYS[f], kern_index_at(other, KEYS[f], to), value, scale);
			kern_index_write(KEYS[f], kern_index_at(again, KEYS[f], i), value, scale);
		}
		kt_same("page", again, page, bytes);
		kt_free_all();
	}
}

/* failures 37, 40: zeros, tiny, huge, infinite and NaN values leave no NaN in fp8 and fp4 pages */
static void test_put_leaves_no_nan_bytes(void **state)
{
	static const float odd[] = {0, -0.0f, 1e-12f, -1e-12f, 448, -449, 1e6f, 0x1p-126f,
		0x1p-149f, FLT_MAX, -FLT_MAX, INFINITY, -INFINITY, NAN};
	static const uint32_t pos0 = 0, len = 256;
	struct kt_batch b = kt_batch(1, &pos0, &len);
	struct kern_rows r = kt_rows(&b, 4), raw = kt_rows(&b, 1);
	float *x = kt_floats(256 * 512);

	for (int i = 0; i < 256 * 512; i++)
		x[i] = odd[kt_below(ARRAY_LEN(odd) - i / 512 % 4)];
	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		for (size_t f = 2; f < ARRAY_LEN(KEYS); f++) {
			struct kern_pool pool =
				kt_pool(kern_index_page_bytes(KEYS[f]), b.pages[KERN_CSA]);
			struct kern_index_put_args a = {&b.b, &r, x, KEYS[f], pool};

			assert_int_equal(c->ops.index_put(&a, &c->ctx), 0);
			for (uint32_t i = 0; i < r.n; i++)
				for (uint32_t k = 0; k < 128; k++)
					assert_true(isfinite(key_value(KEYS[f],
						page_of(&b, &r, i, &pool), r.index[i] % 64, k)));
		}
		{
			struct kern_pool pool =
				kt_pool(kern_kv_page_bytes(KERN_FP8), b.pages[KERN_RAW]);
			struct kern_kv_put_args a = {&b.b, &raw, x, KERN_FP8, pool};

			assert_int_equal(c->ops.kv_put(&a, &c->ctx), 0);
			for (uint32_t i = 0; i < raw.n; i++)
				for (uint32_t k = 0; k < 448; k++)
					assert_true(isfinite(kv_value(
						KERN_FP8, page_of(&b, &raw, i, &pool), i % 64, k)));
		}
	}
	kt_free_all();
}

static void test_put_refuses_missing_pages_and_formats(void **state)
{
	static const uint32_t pos0 = 60, len = 10;
	struct kt_batch b = kt_batch(1, &pos0, &len);
	struct kern_rows r = kt_rows(&b, 1), e = kt_rows(&b, 4);
	struct kern_pool pool = kt_pool(kern_kv_page_bytes(KERN_F32), 2);
	float *x = kt_normals(10 * 512, 1);

	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		struct kern_kv_put_args a = {&b.b, &r, x, KERN_FP4, pool};
		struct kern_index_put_args i = {&b.b, &e, x, KERN_F16, pool};

		assert_int_equal(c->ops.kv_put(&a, &c->ctx), -EINVAL);
		assert_int_equal(c->ops.index_put(&i, &c->ctx), -EINVAL);
		a.format = KERN_F32;
		b.seqs[0].page_n[KERN_RAW] = 1;
		assert_int_equal(c->ops.kv_put(&a, &c->ctx), -EINVAL);
		b.seqs[0].page_n[KERN_RAW] = 2;
		b.seqs[0].raw_first = 1;
		assert_int_equal(c->ops.kv_put(&a, &c->ctx), -EINVAL);
		b.seqs[0].raw_first = 0;
		assert_true(isnan(*(float *)pool.base)); /* nothing was written */
	}
	kt_free_all();
}

/* The rounding of qat, by search: nearest code at the smallest covering power of two. */
static double plain_round(
	double x, double amax, double floor, double max, double (*value)(uint8_t), int top)
{
	double s = ldexp(1, -127), best = 0, dist = INFINITY;

	while (s * max < fmax(amax, floor))
		s *= 2;
	for (int c = 0; c <= top; c++) {
		double d = fabs(value((uint8_t)c) - fabs(x) / s);

		if (d < dist || (d == dist && c % 2 == 0)) {
			dist = d;
			best = value((uint8_t)c);
		}
	}
	return (x < 0 ? -best : best) * s;
}

static void test_qat_rounds_to_nearest_and_is_idempotent(void **state)
{
	for (int kind = 0; kind < 2; kind++) {
		uint32_t rows = 5, dim = kind ? 128 : 512, block = kind ? 32 : 64;
		float *x = kt_normals(rows * dim, 1), *base = NULL;
		double *want = kt_new(8 * rows * dim);

		for (uint32_t i = 0; i < dim; i++)
			x[i] *= ldexpf(1, (int)(i / block) * 9 - 30);
		for (uint32_t i = 0; i < rows * dim; i++) {
			double am = amax_of(x + i / block * block, block);

			want[i] = x[i];
			if (kind)
				want[i] = plain_round(x[i], am, 6 * 0x1p-126, 6, kt_e2m1, 7);
			else if (i % 512 < 448)
				want[i] = plain_round(x[i], am, 1e-4f, 448, kt_e4m3, 0x7e);
		}
		for (struct kt_config *c = kt_all; c < kt_end; c++) {
			float *y = kt_floats(rows * dim), *z = kt_floats(rows * dim);
			struct kern_qat_args a = {rows, kind ? KERN_QAT_INDEX : KERN_QAT_KV, x, y};

			assert_int_equal(c->ops.qat(&a, &c->ctx), 0);
			kt_close("qat", y, want, rows * dim, 0, 0);
			a.x = y;
			a.y = z;
			assert_int_equal(c->ops.qat(&a, &c->ctx), 0);
			kt_same("twice", z, y, rows * dim * 4);
			a.x = a.y = memcpy(z, x, rows * dim * 4);
			assert_int_equal(c->ops.qat(&a, &c->ctx), 0);
			kt_same("in place", z, y, rows * dim * 4);
			base = y;
		}
		(void)base;
		kt_free_all();
	}
}

/* Runs the chain that a fused store covers, into pool. */
static void kv_chain(struct kt_config *c, const struct kern_kv_store_args *a, struct kern_pool pool)
{
	uint32_t n = a->put.rows->n;
	float *y = kt_floats(n * 512);
	struct kern_rmsnorm_args norm = {n, 512, a->put.x, 512, a->w, a->eps, y, 512};
	struct kern_rope_args rope = {n, 1, 512, a->cs, false, y, y};
	struct kern_qat_args qat = {n, KERN_QAT_KV, y, y};
	struct kern_kv_put_args put = a->put;

	put.x = y;
	put.pool = pool;
	assert_int_equal(c->ops.rmsnorm(&norm, &c->ctx), 0);
	assert_int_equal(c->ops.rope(&rope, &c->ctx), 0);
	if (a->qat)
		assert_int_equal(c->ops.qat(&qat, &c->ctx), 0);
	assert_int_equal(c->ops.kv_put(&put, &c->ctx), 0);
}

static void index_chain(
	struct kt_config *c, const struct kern_index_store_args *a, struct kern_pool pool)
{
	uint32_t n = a->put.rows->n;
	float *y = kt_floats(n * 128);
	struct kern_rmsnorm_args norm = {n, 128, a->put.x, 128, a->w, a->eps, y, 128};
	struct kern_rope_args rope = {n, 1, 128, a->cs, false, y, y};
	struct kern_hadamard_args had = {n, y, y};
	struct kern_qat_args qat = {n, KERN_QAT_INDEX, y, y};
	struct kern_index_put_args put = a->put;

	put.x = y;
	put.pool = pool;
	assert_int_equal(c->ops.rmsnorm(&norm, &c->ctx), 0);
	assert_int_equal(c->ops.rope(&rope, &c->ctx), 0);
	assert_int_equal(c->ops.hadamard(&had, &c->ctx), 0);
	if (a->qat)
		assert_int_equal(c->ops.qat(&qat, &c->ctx), 0);
	assert_int_equal(c->ops.index_put(&put, &c->ctx), 0);
}

static void test_kv_store_equals_its_chain_and_a_loop(void **state)
{
	for (size_t f = 0; f < ARRAY_LEN(KV); f++)
		for (int qat = 0; qat < 2; qat++)
			for (uint32_t ratio = 1; ratio <= 4; ratio *= 4) {
				struct kt_batch b = ragged();
				struct kern_rows r = kt_rows(&b, ratio);
				uint32_t pages = b.pages[class_of(ratio)];
				size_t bytes = kern_kv_page_bytes(KV[f]);
				struct kern_pool first = {0};
				struct kern_kv_store_args a = {
					{&b.b, &r, NULL, KV[f], first}, NULL, 1e-6f, NULL, qat};

				a.put.x = kt_normals(r.n * 512, 3);
				a.w = kt_normals(512, 1);
				a.cs = kt_cs(r.n);
				for (struct kt_config *c = kt_all; c < kt_end; c++) {
					struct kern_pool chain = kt_pool(bytes, pages);

					a.put.pool = kt_pool(bytes, pages);
					assert_int_equal(c->ops.kv_store(&a, &c->ctx), 0);
					kv_chain(c, &a, chain);
					kt_same("chain", a.put.pool.base, chain.base,
						pages * chain.stride);
					if (first.base)
						kt_same(c->variant, chain.base, first.base,
							pages * chain.stride);
					first = chain;
				}
				for (uint32_t i = 0; i < r.n && KV[f] == KERN_F32 && !qat; i++) {
					double x[512], s = 0;

					for (int k = 0; k < 512; k++)
						s += (double)a.put.x[i * 512 + k] *
						     a.put.x[i * 512 + k];
					for (int k = 0; k < 512; k++)
						x[k] = a.put.x[i * 512 + k] / sqrt(s / 512 + 1e-6) *
						       a.w[k];
					kt_rotate(x + 448, a.cs + 64 * i, false);
					for (uint32_t k = 0; k < 512; k++)
						assert_true(fabs(x[k] - kv_value(KERN_F32,
										page_of(&b, &r, i,
											&first),
										r.index[i] % 64,
										k)) < 1e-5);
				}
				kt_free_all();
			}
}

static void test_index_store_equals_its_chain(void **state)
{
	for (size_t f = 0; f < ARRAY_LEN(KEYS); f++)
		for (int qat = 0; qat < 2; qat++) {
			struct kt_batch b = ragged();
			struct kern_rows r = kt_rows(&b, 4);
			size_t bytes = kern_index_page_bytes(KEYS[f]);
			struct kern_pool first = {0};
			struct kern_index_store_args a = {
				{&b.b, &r, NULL, KEYS[f], first}, NULL, 1e-6f, NULL, qat};

			a.put.x = kt_normals(r.n * 128, 3);
			a.w = kt_normals(128, 1);
			a.cs = kt_cs(r.n);
			for (struct kt_config *c = kt_all; c < kt_end; c++) {
				struct kern_pool chain = kt_pool(bytes, b.pages[KERN_CSA]);

				a.put.pool = kt_pool(bytes, b.pages[KERN_CSA]);
				assert_int_equal(c->ops.index_store(&a, &c->ctx), 0);
				index_chain(c, &a, chain);
				kt_same("chain", a.put.pool.base, chain.base,
					b.pages[KERN_CSA] * chain.stride);
				if (first.base)
					kt_same(c->variant, chain.base, first.base,
						b.pages[KERN_CSA] * chain.stride);
				first = chain;
			}
			kt_free_all();
		}
}

static void test_index_query_equals_its_chain(void **state)
{
	for (int qat = 0; qat < 2; qat++) {
		uint32_t rows = 11, heads = 8;
		size_t n = rows * heads * 128;
		float *x = kt_normals(n, 1), *cs = kt_cs(rows), *base = NULL;

		for (struct kt_config *c = kt_all; c < kt_end; c++) {
			float *q = memcpy(kt_floats(n), x, n * 4), *y = kt_floats(n);
			struct kern_index_query_args a = {rows, heads, cs, qat, q};
			struct kern_rope_args rope = {rows, heads, 128, cs, false, x, y};
			struct kern_hadamard_args had = {rows * heads, y, y};
			struct kern_qat_args round = {rows * heads, KERN_QAT_INDEX, y, y};

			assert_int_equal(c->ops.index_query(&a, &c->ctx), 0);
			assert_int_equal(c->ops.rope(&rope, &c->ctx), 0);
			assert_int_equal(c->ops.hadamard(&had, &c->ctx), 0);
			if (qat)
				assert_int_equal(c->ops.qat(&round, &c->ctx), 0);
			kt_same("chain", q, y, n * 4);
			if (base)
				kt_same(c->variant, q, base, n * 4);
			base = q;
		}
		kt_free_all();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_page_sizes_are_the_documented_ones),
		cmocka_unit_test(test_rows_of_a_batch_are_its_entries),
		cmocka_unit_test(test_kv_put_round_trips_every_slot),
		cmocka_unit_test(test_index_put_round_trips_every_slot),
		cmocka_unit_test(test_index_keys_move_between_pages),
		cmocka_unit_test(test_put_leaves_no_nan_bytes),
		cmocka_unit_test(test_put_refuses_missing_pages_and_formats),
		cmocka_unit_test(test_qat_rounds_to_nearest_and_is_idempotent),
		cmocka_unit_test(test_kv_store_equals_its_chain_and_a_loop),
		cmocka_unit_test(test_index_store_equals_its_chain),
		cmocka_unit_test(test_index_query_equals_its_chain),
	};

	return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
