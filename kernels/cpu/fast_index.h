/*
 * What the vector code of index scores shares: keys widened to f32, tiles of heads, and the path
 * for rows that share their keys with no other row (fast_index_few.c).
 */
#ifndef KERNELS_CPU_FAST_INDEX_H
#define KERNELS_CPU_FAST_INDEX_H

#include "kernels/cpu/index.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/topk.h"

/* to[128][ld]: the 16 keys of a block of a page, as kern_index_decode() decodes them. */
VEC_INLINE void index_widen(
	enum kern_dtype format, void *page, uint32_t block, float *to, size_t ld)
{
	struct kern_index_at at = kern_index_at(page, format, block * KERN_INDEX_BLOCK);
	struct v16_pair x;
	v16 s = v16_set1(1);

	if (format == KERN_FP8)
		s = v16_load((const float *)at.scale);
	for (int k = 0; k < KERN_INDEX; k += 2, to += 2 * ld) {
		if (format == KERN_F32) {
			x.lo = v16_load((const float *)at.value);
			x.hi = v16_load((const float *)at.value + KERN_INDEX_BLOCK);
			at.value += 2 * sizeof(float) * KERN_INDEX_BLOCK;
		} else if (format == KERN_BF16) {
			x = v16_bf16_pair(at.value);
			at.value += 2 * sizeof(uint16_t) * KERN_INDEX_BLOCK;
		} else if (format == KERN_FP8) {
			x = v16_e4m3_pair(at.value);
			x.lo = v16_mul(v16_mul(x.lo, v16_set1(V16_E4M3_UNIT)), s);
			x.hi = v16_mul(v16_mul(x.hi, v16_set1(V16_E4M3_UNIT)), s);
			at.value += 2 * KERN_INDEX_BLOCK;
		} else {
			if (k % 32 == 0)
				s = v16_e8m0(at.scale + k / 32 * KERN_INDEX_BLOCK);
			x = v16_e2m1(at.value);
			x.lo = v16_mul(x.lo, s);
			x.hi = v16_mul(x.hi, s);
			at.value += KERN_INDEX_BLOCK;
		}
		v16_store(to, x.lo);
		v16_store(to + ld, x.hi);
	}
}

/* A row that sees at most k entries takes all of this rank's, unscored. */
static inline void index_take_all(const struct kern_index_select_args *a, uint32_t row)
{
	uint32_t sees = kern_visible(a->index.batch->row_pos[row], 4), n = 0;
	int32_t *entries = a->entries + (size_t)row * a->k;

	for (uint32_t e = 0; e < sees; e += KERN_PAGE)
		if (kern_index_mine(&a->index, e / KERN_PAGE))
			for (uint32_t i = e; i < MIN(sees, e + KERN_PAGE); i++)
				entries[n++] = (int32_t)i;
	a->count[row] = n;
	for (; n < a->k; n++)
		entries[n] = -1;
	if (a->values)
		memset(a->values + (size_t)row * a->k, 0, a->k * sizeof(float));
	if (a->nan)
		a->nan[row] = 0;
}

static inline void index_put_row(
	const struct kern_index_select_args *a, uint32_t row, struct kern_topk *t)
{
	size_t at = (size_t)row * a->k;

	a->count[row] = KERN_FN(topk_finish)(t, a->entries + at, a->values ? a->values + at : NULL);
	if (a->nan)
		a->nan[row] = t->nan;
}

/* A thread's scratch of the path for single rows, in cache lines of its own. */
struct index_lane {
	_Alignas(64) float *panel; /* [2][128][16]: a strip, widened */
	float *weights;            /* [heads] of a row, scaled */
	void *memory[2];           /* of `open` */
	struct open_row {          /* rows that other threads work on, too: the first, the last */
		bool is;
		uint32_t row;
		struct kern_topk top;
	} open[2];
};

/* Scratch for as many threads; NULL when the limits were too small. */
struct index_lane *KERN_FN(index_lanes)(
	struct kern_arena *arena, const struct kern_index_select_args *a, unsigned n);

/* index_select of rows [row, row + rows), no two of the same sequence. */
void KERN_FN(index_select_few)(const struct kern_index_select_args *a, uint32_t row, uint32_t rows,
	struct index_lane *lanes, struct kern_cpu_ctx *c);

#endif
