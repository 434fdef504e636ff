#include <math.h>

#include "tests/kern/kt.h"

static void shuffle(uint32_t *x, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t j = i + kt_below(n - i), t = x[i];

		x[i] = x[j];
		x[j] = t;
	}
}

static uint32_t *permutation(uint32_t n)
{
	uint32_t *p = kt_new(n * sizeof(*p));

	for (uint32_t i = 0; i < n; i++)
		p[i] = i;
	shuffle(p, n);
	return p;
}

/* Positions and owners of the rows. */
static void fill_rows(struct kt_batch *k)
{
	uint32_t *seq = kt_new(k->b.ntok * sizeof(*seq)), *pos = kt_new(k->b.ntok * sizeof(*pos));

	for (uint32_t q = 0; q < k->b.nseq; q++)
		for (uint32_t i = 0; i < k->seqs[q].n; i++) {
			seq[k->seqs[q].row0 + i] = q;
			pos[k->seqs[q].row0 + i] = k->seqs[q].pos0 + i;
		}
	k->b.row_seq = seq;
	k->b.row_pos = pos;
	k->b.seqs = k->seqs;
}

struct kt_batch kt_batch(uint32_t n, const uint32_t *pos0, const uint32_t *len)
{
	struct kt_batch k = {.b.nseq = n, .slots = n + 2};
	uint32_t *slots = permutation(k.slots), *ids[KERN_CLASS__COUNT];
	uint32_t used[KERN_CLASS__COUNT] = {0};

	k.seqs = kt_new(n * sizeof(*k.seqs));
	for (uint32_t q = 0; q < n; q++) {
		uint32_t end = pos0[q] + len[q];
		struct kern_seq s = {
			.row0 = k.b.ntok, .n = len[q], .pos0 = pos0[q], .slot = slots[q]};

		s.raw_first = pos0[q] < 127 ? 0 : (pos0[q] - 127) / 64;
		s.page_n[KERN_RAW] = (end + 63) / 64 - s.raw_first;
		s.page_n[KERN_CSA] = (end / 4 + 63) / 64;
		s.page_n[KERN_HCA] = (end / 128 + 63) / 64;
		for (int c = 0; c < KERN_CLASS__COUNT; c++)
			k.pages[c] += s.page_n[c];
		k.b.ntok += len[q];
		k.seqs[q] = s;
	}
	for (int c = 0; c < KERN_CLASS__COUNT; c++)
		ids[c] = permutation(k.pages[c]);
	for (uint32_t q = 0; q < n; q++)
		for (int c = 0; c < KERN_CLASS__COUNT; c++) {
			k.seqs[q].pages[c] = ids[c] + used[c];
			used[c] += k.seqs[q].page_n[c];
		}
	fill_rows(&k);
	return k;
}

struct kt_batch kt_part(const struct kt_batch *b, uint32_t q, uint32_t first, uint32_t n)
{
	struct kt_batch k = *b;

	k.b.ntok = n;
	k.b.nseq = 1;
	k.seqs = kt_new(sizeof(*k.seqs));
	k.seqs[0] = b->seqs[q];
	k.seqs[0].row0 = 0;
	k.seqs[0].pos0 += first;
	k.seqs[0].n = n;
	fill_rows(&k);
	return k;
}

struct kern_rows kt_rows(const struct kt_batch *b, uint32_t ratio)
{
	uint32_t n = kern_rows_count(&b->b, ratio);
	struct kern_rows r = {.ratio = ratio};

	r.seq = kt_new(n * 4);
	r.index = kt_new(n * 4);
	r.pos = kt_new(n * 4);
	kern_rows_fill(&b->b, &r);
	assert_int_equal(r.n, n);
	return r;
}

struct kern_pool kt_pool(size_t page_bytes, uint32_t pages)
{
	size_t stride = (page_bytes + 3) / 4 * 4 + 32;

	return (struct kern_pool){kt_new(pages * stride), stride};
}

float *kt_cs(uint32_t rows)
{
	float *cs = kt_floats(rows * 64);

	for (uint32_t i = 0; i < rows * 32; i++) {
		float a = kt_uniform(-4, 4);

		cs[2 * i] = cosf(a);
		cs[2 * i + 1] = sinf(a);
	}
	return cs;
}

void kt_rotate(double *x, const float *cs, bool inverse)
{
	for (int i = 0; i < 64; i += 2) {
		double a = x[i], b = x[i + 1], s = inverse ? -cs[i + 1] : cs[i + 1];

		x[i] = a * cs[i] - b * s;
		x[i + 1] = a * s + b * cs[i];
	}
}
