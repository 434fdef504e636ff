/*
 * Compressors: pools finished blocks per dim and saves rows for later blocks.
 *
 * Saved rows of a slot are a ring by position: [ring][2][width], v then g (ape added), ring = 8
 * for ratio 4 (the block before and the unfinished one), 128 for ratio 128. Rows of this step are
 * read from v and g, older ones from the ring; the ring is written after all pooling.
 */
#include "kernels/cpu/run.h"
#include "kernels/cpu/math.h"

enum { MAX_POOL = 128, LANES = 64 };

static uint32_t ring_of(uint32_t ratio)
{
	return ratio == 4 ? 8 : 128;
}

static uint32_t width_of(const struct kern_compress_args *a)
{
	return a->ratio == 4 ? 2 * a->dim : a->dim;
}

/* Logit and value of LANES dims from `col` on, of one position. */
static void load_row(const struct kern_compress_args *a, const struct kern_seq *s, uint32_t pos,
	uint32_t col, float *v, float *g)
{
	uint32_t width = width_of(a);

	if (pos < s->pos0) {
		const float *saved = a->state + s->slot * a->stride +
				     (size_t)(pos % ring_of(a->ratio)) * 2 * width;

		memcpy(v, saved + col, LANES * sizeof(float));
		memcpy(g, saved + width + col, LANES * sizeof(float));
	} else {
		size_t row = s->row0 + (pos - s->pos0);
		const float *ape = a->ape + (size_t)(pos % a->ratio) * width + col;

		memcpy(v, a->v + row * a->ldv + col, LANES * sizeof(float));
		for (uint32_t i = 0; i < LANES; i++)
			g[i] = a->g[row * a->ldg + col + i] + ape[i];
	}
}

/* Softmax over the pooled rows, positions ascending (ratio 4: series A of the block before, then
 * series B), of LANES dims from `dim` on. */
static void pool_entry(const struct kern_compress_args *a, uint32_t i, uint32_t dim, float *v,
	float *g, float *out)
{
	const struct kern_seq *s = &a->batch->seqs[a->rows->seq[i]];
	uint32_t first = a->rows->index[i] * a->ratio, n = 0;
	float max[LANES], sum[LANES], acc[LANES];

	if (a->ratio == 4)
		for (uint32_t p = first; first && p < first + 4; p++, n++)
			load_row(a, s, p - 4, dim, v + n * LANES, g + n * LANES);
	for (uint32_t p = first; p < first + a->ratio; p++, n++)
		load_row(a, s, p, a->ratio == 4 ? a->dim + dim : dim, v + n * LANES, g + n * LANES);
	for (uint32_t l = 0; l < LANES; l++) {
		max[l] = -INFINITY;
		sum[l] = acc[l] = 0;
	}
	for (uint32_t r = 0; r < n; r++)
		for (uint32_t l = 0; l < LANES; l++)
			max[l] = g[r * LANES + l] > max[l] ? g[r * LANES + l] : max[l];
	for (uint32_t r = 0; r < n; r++)
		for (uint32_t l = 0; l < LANES; l++) {
			float e = kern_expf(g[r * LANES + l] - max[l]);

			sum[l] += e;
			acc[l] = kern_fma(e, v[r * LANES + l], acc[l]);
		}
	for (uint32_t l = 0; l < LANES; l++)
		out[l] = acc[l] / sum[l];
}

static void pool_part(const void *job, struct kern_cpu_ctx *c, unsigned part, unsigned n)
{
	const struct kern_compress_args *a = job;
	uint32_t blocks = a->dim / LANES;
	struct kern_part p = kern_part((size_t)a->rows->n * blocks, 1, part, n);
	float v[MAX_POOL * LANES], g[MAX_POOL * LANES];

	for (size_t i = p.begin; i < p.end; i++) {
		uint32_t row = (uint32_t)(i / blocks), dim = (uint32_t)(i % blocks) * LANES;

		pool_entry(a, row, dim, v, g, a->out + (size_t)row * a->dim + dim);
	}
}

/* Saves the last ring rows of each sequence, g with its ape. */
static void save_part(const void *job, struct kern_cpu_ctx *c, unsigned part, unsigned n)
{
	const struct kern_compress_args *a = job;
	uint32_t ring = ring_of(a->ratio), width = width_of(a);
	struct kern_part p = kern_part(width, LANES, part, n);

	for (uint32_t q = 0; q < a->batch->nseq; q++) {
		const struct kern_seq *s = &a->batch->seqs[q];
		uint32_t end = s->pos0 + s->n, from = s->n > ring ? end - ring : s->pos0;

		for (uint32_t pos = from; pos < end; pos++) {
			float *saved =
				a->state + s->slot * a->stride + (size_t)(pos % ring) * 2 * width;

			for (size_t col = p.begin; col < p.end; col += LANES)
				load_row(
					a, s, pos, (uint32_t)col, saved + col, saved + width + col);
		}
	}
}

int KERN_FN(compress)(const struct kern_compress_args *a, void *stream)
{
	if ((a->ratio != 4 && a->ratio != 128) || !a->dim || a->dim % LANES ||
		a->rows->ratio != a->ratio)
		return -EINVAL;
	kern_run(stream, (size_t)a->rows->n * a->dim * a->ratio * 4, pool_part, a);
	kern_run(stream, (size_t)a->batch->ntok * width_of(a) * 2, save_part, a);
	return 0;
}
