/*
 * Compressors against a loop over all positions, and the same bits however the tokens are cut into
 * steps and whatever runs beside them.
 */
#include <math.h>

#include "tests/kern/kt.h"

/* Entry e of a whole sequence, dim by dim, in double. */
static void plain_entry(const float *v, const float *g, const float *ape, uint32_t ratio,
	uint32_t dim, uint32_t e, double *out)
{
	uint32_t width = ratio == 4 ? 2 * dim : dim;

	for (uint32_t i = 0; i < dim; i++) {
		double max = -INFINITY, sum = 0, acc = 0;

		for (int pass = 0; pass < 2; pass++)
			for (uint32_t t = 0; t < (ratio == 4 ? 8 : ratio); t++) {
				/* ratio 4: rows 0..3 are series A of the block before */
				bool before = ratio == 4 && t < 4;
				uint32_t col = ratio == 4 && !before ? dim + i : i;
				uint32_t in = ratio == 4 ? t % 4 : t,
					 pos = (e - before) * ratio + in;
				double logit;

				if (before && !e)
					continue;
				logit = (float)(g[(size_t)pos * width + col] +
						ape[in * width + col]);
				if (!pass) {
					max = fmax(max, logit);
					continue;
				}
				sum += exp(logit - max);
				acc += exp(logit - max) * v[(size_t)pos * width + col];
			}
		out[i] = acc / sum;
	}
}

/* Feeds positions 0 .. total-1 in steps of the given sizes; entries land in out. */
static void feed(struct kt_config *c, const struct kt_batch *whole, uint32_t ratio, uint32_t dim,
	const float *v, const float *g, const float *ape, const uint32_t *steps, float *state,
	float *out)
{
	uint32_t width = ratio == 4 ? 2 * dim : dim, total = whole->seqs[0].n;
	size_t stride = kern_compress_floats(ratio, dim) + 16;

	for (uint32_t at = 0, i = 0; at < total; i++) {
		uint32_t n = MIN(steps[i % 4], total - at);
		struct kt_batch b = kt_part(whole, 0, at, n);
		struct kern_rows r = kt_rows(&b, ratio);
		struct kern_compress_args a = {&b.b, ratio, dim, v + (size_t)at * width,
			g + (size_t)at * width, width, width, ape, state, stride, &r,
			out + (size_t)(at / ratio) * dim};

		assert_int_equal(c->ops.compress(&a, &c->ctx), 0);
		at += n;
	}
}

/* failures 3, 5, 7: one prefill, single steps and odd chunks give the same entries */
static void test_compress_any_cut_gives_the_same_bits(void **state)
{
	static const uint32_t cuts[][4] = {
		{100000, 1, 1, 1}, {1, 1, 1, 1}, {3, 5, 4, 1}, {128, 127, 129, 2}, {7, 300, 1, 64}};
	static const uint32_t totals[] = {1, 3, 4, 5, 8, 127, 128, 129, 255, 256, 257, 300};

	for (uint32_t ratio = 4; ratio <= 128; ratio *= 32)
		for (size_t k = 0; k < ARRAY_LEN(totals); k++) {
			uint32_t zero = 0, total = totals[k], dim = k % 2 ? 128 : 512;
			uint32_t width = ratio == 4 ? 2 * dim : dim, n = total / ratio;
			struct kt_batch b = kt_batch(1, &zero, &total);
			float *v = kt_normals(total * width, 1), *g = kt_normals(total * width, 2);
			float *ape = kt_normals(ratio * width, 1), *base = NULL;
			double *want = kt_new(8 * n * dim + 8);
			size_t floats = (kern_compress_floats(ratio, dim) + 16) * b.slots;

			for (uint32_t e = 0; e < n; e++)
				plain_entry(v, g, ape, ratio, dim, e, want + e * dim);
			for (size_t s = 0; s < ARRAY_LEN(cuts); s++) {
				struct kt_config *c = &kt_all[s % kt_count];
				float *out = kt_floats(n * dim);

				/* what a slot held before must not matter: poison is NaN */
				feed(c, &b, ratio, dim, v, g, ape, cuts[s], kt_floats(floats), out);
				if (!base)
					kt_close("compress", base = out, want, n * dim, 2e-6, 2e-6);
				kt_same(c->variant, out, base, n * dim * 4);
			}
			kt_free_all();
		}
}

/* Several sequences in one step, slots shuffled, against each alone. */
static void test_compress_sequences_do_not_mix(void **state)
{
	static const uint32_t pos0[] = {0, 0, 0}, len[] = {129, 14, 256};

	for (uint32_t ratio = 4; ratio <= 128; ratio *= 32) {
		uint32_t dim = 128, width = ratio == 4 ? 256 : 128;
		struct kt_batch b = kt_batch(3, pos0, len);
		struct kern_rows r = kt_rows(&b, ratio);
		size_t ld = width + 8, stride = kern_compress_floats(ratio, dim) + 16;
		float *v = kt_normals(b.b.ntok * ld, 1), *g = kt_normals(b.b.ntok * ld, 2);
		float *ape = kt_normals(ratio * width, 1), *base = NULL, *saved = NULL;

		for (struct kt_config *c = kt_all; c < kt_end; c++) {
			float *st = kt_floats(stride * b.slots), *out = kt_floats(r.n * dim);
			struct kern_compress_args a = {
				&b.b, ratio, dim, v, g, ld, ld, ape, st, stride, &r, out};

			assert_int_equal(c->ops.compress(&a, &c->ctx), 0);
			for (uint32_t i = 0; i < r.n; i++) {
				const struct kern_seq *s = &b.seqs[r.seq[i]];
				float *sv = kt_floats(s->n * width), *sg = kt_floats(s->n * width);
				double *want = kt_new(8 * dim);

				for (uint32_t t = 0; t < s->n; t++) {
					memcpy(sv + t * width, v + (s->row0 + t) * ld, width * 4);
					memcpy(sg + t * width, g + (s->row0 + t) * ld, width * 4);
				}
				plain_entry(sv, sg, ape, ratio, dim, r.index[i], want);
				if (!base)
					kt_close("entry", out + i * dim, want, dim, 2e-6, 2e-6);
			}
			if (base) {
				kt_same(c->variant, out, base, r.n * dim * 4);
				kt_same("saved rows", st, saved, stride * b.slots * 4);
			}
			base = out;
			saved = st;
			a.ratio = 8;
			assert_int_equal(c->ops.compress(&a, &c->ctx), -EINVAL);
		}
		kt_free_all();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_compress_any_cut_gives_the_same_bits),
		cmocka_unit_test(test_compress_sequences_do_not_mix),
	};

	return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
