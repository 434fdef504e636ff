/*
 * Vector code: attention of few heads. A decoded copy of a key, written to the L2 cache and read
 * back, would cost more than they do: scores and outputs each decode the key in registers, with the
 * same operations in the same order. Only with AVX-512; other variants never come here.
 */
#include "kernels/cpu/fast_attention.h"
#include "kernels/layout.h"

enum { FEW = ATTENTION_FEW };

#ifdef __AVX512F__

/*
 * Columns v .. v+15 of an encoded key. Those of bf16 in quads 0, 2, 1, 3: of 16 columns in both
 * halves of a vector one shuffle within its quads widens a half of each.
 */
VEC_INLINE __m512 key_columns(enum kern_dtype format, const uint8_t *at, int v)
{
	const __m512i low = _mm512_set_epi64(0x0f0e80800d0c8080, 0x0b0a808009088080,
		0x0f0e80800d0c8080, 0x0b0a808009088080, 0x0706808005048080, 0x0302808001008080,
		0x0706808005048080, 0x0302808001008080);
	__m512i u;

	if (format == KERN_F32)
		return _mm512_loadu_ps((const float *)at + v);
	u = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(at + 2 * v)));
	return _mm512_castsi512_ps(_mm512_shuffle_epi8(u, low));
}

VEC_INLINE enum quads quads_of(enum kern_dtype format)
{
	return format == KERN_F32 ? QUADS_IN_ORDER : QUADS_0213;
}

/* Scores of 8 heads x 2 keys: acc[8 k + 4 (h % 2) + h / 2], so that a head's two lie together. */
VEC_INLINE void direct_scores_8(enum kern_dtype format, const float *q, const uint8_t *const k[2],
	const char *const next[2], size_t step, float scale, float *const p[FEW])
{
	__m512 acc[16], s;

#pragma GCC unroll 16
	for (int i = 0; i < 16; i++)
		acc[i] = _mm512_setzero_ps();
	for (int v = 0; v < KERN_HEAD; v += KERN_LANES) {
		__m512 x = key_columns(format, k[0], v), y = key_columns(format, k[1], v);
		const char *ahead = next[v >= KERN_HEAD / 2];

		_mm_prefetch(ahead + (size_t)(v / KERN_LANES % 16) * step, _MM_HINT_T0);
#pragma GCC unroll 8
		for (int h = 0; h < FEW; h++) {
			__m512 a = _mm512_loadu_ps(q + h * KERN_HEAD + v);
			__m512 *sum = &acc[8 * (h % 2) + h / 2];

			/* loaded once: with a load in each multiply-add those would be the limit */
			__asm__("" : "+v"(a));
			sum[0] = _mm512_fmadd_ps(a, x, sum[0]);
			sum[4] = _mm512_fmadd_ps(a, y, sum[4]);
		}
	}
	s = _mm512_mul_ps(sums_of_16(acc, quads_of(format)), _mm512_set1_ps(scale));
#pragma GCC unroll 4
	for (int h = 0; h < FEW; h += 2) {
		__m128 two = _mm512_castps512_ps128(
			_mm512_maskz_compress_ps((__mmask16)(15u << 2 * h), s));

		_mm_storel_pi((__m64 *)p[h], two);
		_mm_storeh_pi((__m64 *)p[h + 1], two);
	}
}

/* Scores of 4 heads x 4 keys, laid out as in score_tile(). */
VEC_INLINE void direct_scores_4(enum kern_dtype format, const float *q,
	const uint8_t *const k[KEYS], const struct ahead *next, float scale, float *const p[HEADS])
{
	__m512 acc[16], s;

#pragma GCC unroll 16
	for (int i = 0; i < 16; i++)
		acc[i] = _mm512_setzero_ps();
	for (int v = 0; v < KERN_HEAD; v += KERN_LANES) {
		const char *const *ahead = next->key + (v >= KERN_HEAD / 2 ? 2 : 0);
		size_t at = (size_t)(v / KERN_LANES % 16) * next->step;

		_mm_prefetch(ahead[0] + at, _MM_HINT_T0);
		_mm_prefetch(ahead[1] + at, _MM_HINT_T0);
#pragma GCC unroll 4
		for (int i = 0; i < KEYS; i++) {
			__m512 x = key_columns(format, k[i], v);

#pragma GCC unroll 4
			for (int b = 0; b < HEADS; b++)
				acc[4 * i + b] = _mm512_fmadd_ps(
					_mm512_loadu_ps(q + b * KERN_HEAD + v), x, acc[4 * i + b]);
		}
	}
	s = _mm512_mul_ps(sums_of_16(acc, quads_of(format)), _mm512_set1_ps(scale));
	_mm_storeu_ps(p[0], _mm512_extractf32x4_ps(s, 0));
	_mm_storeu_ps(p[1], _mm512_extractf32x4_ps(s, 1));
	_mm_storeu_ps(p[2], _mm512_extractf32x4_ps(s, 2));
	_mm_storeu_ps(p[3], _mm512_extractf32x4_ps(s, 3));
}

/* Scores of all heads <= FEW with the tile's n keys; what is written beyond them is not used. */
VEC_INLINE void direct_scores(enum kern_dtype format, float scale, const float *q, uint32_t heads,
	const uint8_t *const *at, uint32_t n, const struct lane *l)
{
	struct ahead next = {.step = DIV_UP(kern_kv_row_bytes(format), (size_t)16)};
	uint32_t each = heads > HEADS ? 2 : KEYS, width = heads > HEADS ? FEW : HEADS;
	float *to[FEW], spare[KEYS];

	for (uint32_t j = 0; j < n; j += each) {
		uint32_t from = MIN(j + 2 * KEYS, n);
		const uint8_t *k[KEYS];

		for (uint32_t i = 0; i < each; i++)
			k[i] = at[MIN(j + i, n - 1)];
		for (uint32_t h = 0; h < width; h++)
			to[h] = h < heads ? l->p + (size_t)h * KERN_KEY_TILE + j : spare;
		look_ahead(&next, at + from, MIN(n - from, each), 0, 1, q);
		if (heads > HEADS)
			direct_scores_8(format, q, k, next.key, next.step, scale, to);
		else
			direct_scores_4(format, q, k, &next, scale, to);
	}
}

/*
 * out[nh heads][32 nb columns] as output_tile() has it. Of bf16, two columns a lane: the even ones
 * of 32 in one vector and the odd ones in the next, which direct_finish() puts in order.
 */
VEC_INLINE void direct_output_tile(enum kern_dtype format, struct lane *l, uint32_t h, const int nh,
	const int nb, int at, const uint8_t *const *keys, uint32_t n)
{
	const __m512i high = _mm512_set1_epi32((int)0xffff0000);
	__m512 acc[FEW][4];

#pragma GCC unroll 8
	for (int b = 0; b < nh; b++)
#pragma GCC unroll 4
		for (int v = 0; v < 2 * nb; v++)
			acc[b][v] = _mm512_mul_ps(
				_mm512_loadu_ps(l->out + (h + b) * KERN_HEAD + at + v * KERN_LANES),
				_mm512_set1_ps(l->shrink[h + b]));
	for (uint32_t j = 0; j < n; j++) {
		const float *p = l->p + (size_t)h * KERN_KEY_TILE + j;
		__m512 x[4];

#pragma GCC unroll 2
		for (int i = 0; i < nb; i++)
			if (format == KERN_BF16) {
				__m512i u = _mm512_loadu_si512(keys[j] + 2 * (at + 32 * i));

				x[2 * i] = _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
				x[2 * i + 1] = _mm512_castsi512_ps(_mm512_and_si512(u, high));
			} else {
				const float *k = (const float *)keys[j] + at + 32 * i;

				x[2 * i] = _mm512_loadu_ps(k);
				x[2 * i + 1] = _mm512_loadu_ps(k + KERN_LANES);
			}
#pragma GCC unroll 8
		for (int b = 0; b < nh; b++) {
			__m512 w = _mm512_set1_ps(p[(size_t)b * KERN_KEY_TILE]);

#pragma GCC unroll 4
			for (int v = 0; v < 2 * nb; v++)
				acc[b][v] = _mm512_fmadd_ps(w, x[v], acc[b][v]);
		}
	}
#pragma GCC unroll 8
	for (int b = 0; b < nh; b++)
#pragma GCC unroll 4
		for (int v = 0; v < 2 * nb; v++)
			_mm512_storeu_ps(
				l->out + (h + b) * KERN_HEAD + at + v * KERN_LANES, acc[b][v]);
}

VEC_INLINE void direct_outputs(enum kern_dtype format, struct lane *l, uint32_t heads,
	const uint8_t *const *keys, uint32_t n)
{
	for (int at = 0; at < KERN_HEAD; at += 64) {
		uint32_t h = 0;

		if (heads == FEW) {
			direct_output_tile(format, l, 0, FEW, 1, at, keys, n);
			direct_output_tile(format, l, 0, FEW, 1, at + 32, keys, n);
			continue;
		}
		for (; h + HEADS <= heads; h += HEADS)
			direct_output_tile(format, l, h, HEADS, 2, at, keys, n);
		for (; h < heads; h++)
			direct_output_tile(format, l, h, 1, 2, at, keys, n);
	}
}

/* Puts the columns of bf16 outputs in order. */
static void direct_finish(struct lane *l, uint32_t heads)
{
	const __m512i low =
		_mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
	const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));

	for (size_t i = 0; i < (size_t)heads * KERN_HEAD; i += 32) {
		__m512 even = _mm512_loadu_ps(l->out + i), odd = _mm512_loadu_ps(l->out + i + 16);

		_mm512_storeu_ps(l->out + i, _mm512_permutex2var_ps(even, low, odd));
		_mm512_storeu_ps(l->out + i + 16, _mm512_permutex2var_ps(even, high, odd));
	}
}

const float *KERN_FN(attention_few_queries)(
	enum kern_dtype format, const float *q, uint32_t heads, struct lane *l)
{
	uint32_t width = heads > HEADS ? FEW : HEADS; /* heads that are not there repeat the last */

	for (uint32_t h = 0; h < width; h++) {
		const float *from = q + (size_t)MIN(h, heads - 1) * KERN_HEAD;
		float *to = l->keys + (size_t)h * KERN_HEAD;

		for (int v = 0; v < KERN_HEAD; v += KERN_LANES) {
			__m512 x = _mm512_loadu_ps(from + v);

			if (format == KERN_BF16)
				x = _mm512_shuffle_f32x4(x, x, 0xd8);
			_mm512_storeu_ps(to + v, x);
		}
	}
	return l->keys;
}

void KERN_FN(attention_few_scores)(enum kern_dtype format, float scale, const float *q,
	uint32_t heads, const uint8_t *const *at, uint32_t n, const struct lane *l)
{
	if (format == KERN_BF16)
		direct_scores(KERN_BF16, scale, q, heads, at, n, l);
	else
		direct_scores(KERN_F32, scale, q, heads, at, n, l);
}

void KERN_FN(attention_few_outputs)(enum kern_dtype format, struct lane *l, uint32_t heads,
	const uint8_t *const *at, uint32_t n)
{
	if (format == KERN_BF16)
		direct_outputs(KERN_BF16, l, heads, at, n);
	else
		direct_outputs(KERN_F32, l, heads, at, n);
}

void KERN_FN(attention_few_finish)(enum kern_dtype format, struct lane *l, uint32_t heads)
{
	if (format == KERN_BF16)
		direct_finish(l, heads);
}

#endif
