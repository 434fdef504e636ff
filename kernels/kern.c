/* What a caller computes once for a step, and sizes. */
#include "kernels/kern.h"

#include <math.h>

#include "kernels/layout.h"

size_t kern_kv_page_bytes(enum kern_dtype format)
{
	return KERN_PAGE * kern_kv_row_bytes(format);
}

size_t kern_index_page_bytes(enum kern_dtype format)
{
	return KERN_PAGE * (kern_index_value_bytes(format) + kern_index_scale_bytes(format));
}

size_t kern_compress_floats(uint32_t ratio, uint32_t dim)
{
	return ratio == 4 ? (size_t)8 * 2 * 2 * dim : (size_t)128 * 2 * dim;
}

static uint32_t rows_of(const struct kern_seq *s, uint32_t ratio)
{
	return ratio == 1 ? s->n : kern_finished(s, ratio);
}

uint32_t kern_rows_count(const struct kern_batch *b, uint32_t ratio)
{
	uint32_t n = 0;

	for (uint32_t q = 0; q < b->nseq; q++)
		n += rows_of(&b->seqs[q], ratio);
	return n;
}

void kern_rows_fill(const struct kern_batch *b, struct kern_rows *rows)
{
	rows->n = 0;
	for (uint32_t q = 0; q < b->nseq; q++) {
		const struct kern_seq *s = &b->seqs[q];
		uint32_t first = s->pos0 / rows->ratio, n = rows_of(s, rows->ratio);

		for (uint32_t i = 0; i < n; i++) {
			rows->seq[rows->n] = q;
			rows->index[rows->n] = first + i;
			rows->pos[rows->n++] = (first + i) * rows->ratio;
		}
	}
}

/* Dim whose wavelength fits `turns` into the original context (model.md 4). */
static double yarn_dim(const struct kern_rope_desc *d, double turns)
{
	return KERN_ROPE * log(d->original / (2 * M_PI * turns)) / (2 * log(d->base));
}

void kern_rope_theta(const struct kern_rope_desc *d, float theta[32])
{
	double low = 0, high = 0;

	if (d->factor > 0) {
		low = fmax(0, floor(yarn_dim(d, d->beta_fast)));
		high = fmin(KERN_ROPE - 1, ceil(yarn_dim(d, d->beta_slow)));
		if (low == high)
			high += 0.001;
	}
	for (int i = 0; i < KERN_ROPE / 2; i++) {
		float t = 1.0f / (float)pow(d->base, 2.0 * i / KERN_ROPE);

		if (d->factor > 0) {
			float s = 1.0f - (float)fmin(1, fmax(0, (i - low) / (high - low)));

			t = t / (float)d->factor * (1.0f - s) + t * s;
		}
		theta[i] = t;
	}
}
