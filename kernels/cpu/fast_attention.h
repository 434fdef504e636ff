/*
 * What the vector code of attention shares: a thread's scratch, what is asked for ahead, sums of 16
 * vectors; and the path for few heads (fast_attention_few.c).
 */
#ifndef KERNELS_CPU_FAST_ATTENTION_H
#define KERNELS_CPU_FAST_ATTENTION_H

#include "kernels/cpu/run.h"
#include "kernels/cpu/vec.h"

enum {
	HEADS = 4, /* heads x keys of a register tile of scores */
	KEYS = 4,
	COLUMNS = 4, /* vectors of an output tile */
	/* floats from one decoded key to the next: an odd number of cache lines, or a column of all
	 * keys would fall into few sets of the L1 cache */
	KEY_LD = KERN_HEAD + 16
};

/*
 * Keys lie anywhere in the pools, so those of the group after the next are asked for while a group
 * is scored, a line now and then: all at once would fill the buffers that other loads need. A tile
 * of scores asks for two keys in each half of its way, `step` bytes at a time.
 */
struct ahead {
	const char *key[4];
	size_t step;
};

/* What the nth of `tiles` tiles of heads asks for of the n keys at; `here` is at hand already. */
VEC_INLINE void look_ahead(struct ahead *a, const uint8_t *const *at, uint32_t n, uint32_t tile,
	uint32_t tiles, const void *here)
{
	const uint8_t *none = here;

	for (uint32_t i = 0; i < 4; i++)
		a->key[i] = (const char *)none;
	if (tiles == 1) {
		for (uint32_t i = 0; i < MIN(n, 4u); i++)
			a->key[i] = (const char *)at[i];
	} else if (tile < 2) {
		a->key[0] = (const char *)(2 * tile < n ? at[2 * tile] : none);
		a->key[2] = (const char *)(2 * tile + 1 < n ? at[2 * tile + 1] : none);
	}
}

/* A thread's scratch. */
struct lane {
	float *keys;               /* [KERN_KEY_TILE][KEY_LD]; of few heads the queries */
	float *p;                  /* [heads][KERN_KEY_TILE] scores, then weights */
	float *out;                /* [heads][512] */
	float *max, *sum, *shrink; /* [heads] */
};

#ifdef __AVX512F__

/* Which quads of 16 lanes hold indices 0-3, 4-7, 8-11, 12-15 of what was summed: in order, or as
 * few heads have them. */
enum quads { QUADS_IN_ORDER, QUADS_0213 };

enum fold { FOLD_ADD, FOLD_MAX };

VEC_INLINE __m512 fold_2(enum fold fold, __m512 a, __m512 b)
{
	return fold == FOLD_ADD ? _mm512_add_ps(a, b) : _mm512_max_ps(a, b);
}

/*
 * The lanes of 16 vectors at once: lane 4 b + i of the result is the sum of a[4 i + b], as
 * kern_sum16() adds halves onto halves, or the greatest of them (without NaN). Both constants.
 */
VEC_INLINE __m512 fold_16(enum fold fold, const __m512 a[16], enum quads quads)
{
	__m512 x[8], y[4], z[2];

#pragma GCC unroll 8
	for (int i = 0; i < 8; i++)
		x[i] = quads == QUADS_IN_ORDER
			       ? fold_2(fold, _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x44),
					 _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xee))
			       : fold_2(fold, _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88),
					 _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xdd));
#pragma GCC unroll 4
	for (int i = 0; i < 4; i++)
		y[i] = fold_2(fold, _mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0x88),
			_mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0xdd));
	for (int i = 0; i < 2; i++)
		z[i] = fold_2(fold, _mm512_shuffle_ps(y[2 * i], y[2 * i + 1], 0x44),
			_mm512_shuffle_ps(y[2 * i], y[2 * i + 1], 0xee));
	return fold_2(
		fold, _mm512_shuffle_ps(z[0], z[1], 0x88), _mm512_shuffle_ps(z[0], z[1], 0xdd));
}

VEC_INLINE __m512 sums_of_16(const __m512 a[16], enum quads quads)
{
	return fold_16(FOLD_ADD, a, quads);
}

#endif

/* ---- few heads: only where attention_is_few() says so
 * -------------------------------------------- */

enum { ATTENTION_FEW = 8 };

/*
 * A decoded copy of a key pays off for more heads than a tile has, and for fewer of them where the
 * rows around it, of the same sequence, have just read the same keys.
 */
#ifdef __AVX512F__
static inline bool attention_is_few(const struct kern_attention_args *a, uint32_t heads)
{
	bool alone = a->batch->ntok == a->batch->nseq;

	return heads <= (alone ? ATTENTION_FEW : HEADS) &&
	       (a->format == KERN_BF16 || a->format == KERN_F32);
}
#else
#define attention_is_few(a, heads) false /* and so no call remains */
#endif

/* q[heads][512] in the order that the scores take it, in l->keys. */
const float *KERN_FN(attention_few_queries)(
	enum kern_dtype format, const float *q, uint32_t heads, struct lane *l);
/* Scores of all heads with the n keys of a tile into l->p. */
void KERN_FN(attention_few_scores)(enum kern_dtype format, float scale, const float *q,
	uint32_t heads, const uint8_t *const *at, uint32_t n, const struct lane *l);
/* l->out = l->out * shrink + sum of l->p times keys. */
void KERN_FN(attention_few_outputs)(enum kern_dtype format, struct lane *l, uint32_t heads,
	const uint8_t *const *at, uint32_t n);
/* After the last tile: the columns of l->out in their order. */
void KERN_FN(attention_few_finish)(enum kern_dtype format, struct lane *l, uint32_t heads);

#endif
