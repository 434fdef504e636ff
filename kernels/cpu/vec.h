/*
 * Sixteen floats at a time, for the vector code of the fast variants: one register with AVX-512,
 * two with AVX2. Every operation rounds as its scalar form in math.h does, lane by lane, so that
 * code written with these has the reference's bits.
 */
#ifndef KERNELS_CPU_VEC_H
#define KERNELS_CPU_VEC_H

#include <immintrin.h>

#include "kernels/cpu/math.h"

#define VEC_INLINE static inline __attribute__((always_inline))

#ifdef __AVX512F__

/* Register tiles: rows x groups of a product, groups of a product of one row, rows of a product of
 * fewer groups. */
enum { VEC_MR = 6, VEC_NV = 4, VEC_NV1 = 8, VEC_MR_NARROW = 12 };
#define VEC_WIDE 1

typedef __m512 v16;

VEC_INLINE v16 v16_load(const float *p)
{
	return _mm512_loadu_ps(p);
}

VEC_INLINE void v16_store(float *p, v16 v)
{
	_mm512_storeu_ps(p, v);
}

/* The first n <= 16 lanes; others read as 0 and are not written. */
VEC_INLINE v16 v16_load_n(const float *p, unsigned n)
{
	return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}

VEC_INLINE void v16_store_n(float *p, v16 v, unsigned n)
{
	_mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), v);
}

VEC_INLINE v16 v16_set1(float f)
{
	return _mm512_set1_ps(f);
}

VEC_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
	return _mm512_fmadd_ps(a, b, c);
}

VEC_INLINE v16 v16_mul(v16 a, v16 b)
{
	return _mm512_mul_ps(a, b);
}

VEC_INLINE v16 v16_add(v16 a, v16 b)
{
	return _mm512_add_ps(a, b);
}

VEC_INLINE v16 v16_sub(v16 a, v16 b)
{
	return _mm512_sub_ps(a, b);
}

VEC_INLINE v16 v16_div(v16 a, v16 b)
{
	return _mm512_div_ps(a, b);
}

/* a > b ? a : b, so b where either is NaN; and the same with <. */
VEC_INLINE v16 v16_max(v16 a, v16 b)
{
	return _mm512_max_ps(a, b);
}

VEC_INLINE v16 v16_min(v16 a, v16 b)
{
	return _mm512_min_ps(a, b);
}

/*
 * Eight pairs (a, b) rotated by eight (cos, sin): a cos - b sin, a sin + b cos. flip: v16_odd() or
 * v16_even(), the lanes whose second term changes its sign.
 */
VEC_INLINE v16 v16_rotate(v16 x, v16 cs, v16 flip)
{
	v16 own = _mm512_mul_ps(x, _mm512_moveldup_ps(cs));
	v16 other = _mm512_mul_ps(_mm512_permute_ps(x, 0xb1), _mm512_movehdup_ps(cs));

	return _mm512_add_ps(own, _mm512_xor_ps(other, flip));
}

/* Of four quads: element i of each in all its places; quad i in all places. i is a constant. */
#define v16_spread(x, i) _mm512_permute_ps((x), (i)*0x55)
#define v16_quad(x, i)   _mm512_shuffle_f32x4((x), (x), (i)*0x55)

VEC_INLINE v16 v16_even(void)
{
	return _mm512_castsi512_ps(_mm512_set1_epi64(0x80000000));
}

VEC_INLINE v16 v16_odd(void)
{
	return _mm512_castsi512_ps(_mm512_set1_epi64((long long)0x8000000000000000));
}

VEC_INLINE v16 v16_bf16(const uint16_t *p)
{
	__m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));

	return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}

struct v16_pair {
	v16 lo, hi;
};

/* 16 pairs of bf16: their first ones, and their second ones. */
VEC_INLINE struct v16_pair v16_bf16_pair(const uint8_t *p)
{
	__m512i u = _mm512_loadu_si512(p), hi = _mm512_set1_epi32((int)0xffff0000);

	return (struct v16_pair){_mm512_castsi512_ps(_mm512_slli_epi32(u, 16)),
		_mm512_castsi512_ps(_mm512_and_si512(u, hi))};
}

VEC_INLINE v16 v16_f16(const uint16_t *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

/*
 * e4m3 is f16 with a bias of 7 instead of 15: sign-extend, move the other bits into place, clear
 * the second copy of the sign. The result is 2^-8 of the value; V16_E4M3_UNIT makes up for it.
 */
#define V16_E4M3_UNIT 256.0f

VEC_INLINE v16 v16_e4m3(const uint8_t *p)
{
	__m256i u = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));

	u = _mm256_and_si256(_mm256_slli_epi16(u, 7), _mm256_set1_epi16((short)0xbf80));
	return _mm512_cvtph_ps(u);
}

/* 32 bytes: 16 codes and the next 16. */
VEC_INLINE struct v16_pair v16_e4m3_pair(const uint8_t *p)
{
	__m512i u = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));

	u = _mm512_and_si512(_mm512_slli_epi16(u, 7), _mm512_set1_epi16((short)0xbf80));
	return (struct v16_pair){_mm512_cvtph_ps(_mm512_castsi512_si256(u)),
		_mm512_cvtph_ps(_mm512_extracti64x4_epi64(u, 1))};
}

#if defined(__GFNI__) && defined(__AVX512VBMI__)
#define VEC_GFNI 1
enum { VEC_E4M3_STEP = 4 }; /* columns of e4m3 codes, 16 bytes each, that are widened together */

/* Where eeee is 0 there is no leading one: 2 |x| - 2^-14, with the sign of x, is the value. */
VEC_INLINE __m512 v16_e4m3_subnormal_(__m512 x)
{
	const __m512i sign = _mm512_set1_epi32((int)0x80000000),
		      eeee = _mm512_set1_epi32(0x07800000);
	__m512i u = _mm512_castps_si512(x);
	__m512 y = _mm512_mask_fmsub_ps(_mm512_abs_ps(x), _mm512_testn_epi32_mask(u, eeee),
		_mm512_set1_ps(2), _mm512_set1_ps(0x1p-14f));

	return _mm512_castsi512_ps(/* u & sign | y */
		_mm512_ternarylogic_epi32(u, sign, _mm512_castps_si512(y), 0xea));
}

/*
 * 64 codes, columns 0 to 3 of 16 outputs. s eeee mmm are bits of the upper half of an f32:
 *
 *	code   s eee|e mmm                 1 100 1 011 = -(1 + 3/8) 2^2
 *	first  s 0111 eee                  1 0111 100     byte 3: bits 7 6 5 4 and 0111
 *	second e mmm 0000                  1 011 0000     byte 2: bits 3 2 1 0
 *	f32    s 0111eeee mmm0...          -(1 + 3/8) 2^(121 - 127), 2^-8 of the value
 *
 * A product of bits takes eight codes at once by a matrix of eight rows: row i of it says which
 * bits of the code are added up to bit 7 - i of the result, here one or none, and to that the
 * constant 0x38, which is 0111 in its place. First and second bytes are then brought together to
 * halves, two columns side by side in the lane of their output: the even one is moved up, the odd
 * one is there. A code with eeee = 0 has no leading one; rare among weights, it costs a branch.
 */
VEC_INLINE void v16_e4m3_step(const uint8_t *p, v16 c[VEC_E4M3_STEP])
{
/* a lane's bytes: outputs o .. o+3 of columns 0 and 1, then of 2 and 3 */
#define LANE(o)                                                                                    \
	(o), (o) + 16, (o) + 1, (o) + 17, (o) + 2, (o) + 18, (o) + 3, (o) + 19, (o) + 32,          \
		(o) + 48, (o) + 33, (o) + 49, (o) + 34, (o) + 50, (o) + 35, (o) + 51
	static const _Alignas(64) uint8_t by_output[64] = {LANE(0), LANE(4), LANE(8), LANE(12)};
#undef LANE
	/* row 0 in the lowest byte */
	const __m512i first = _mm512_set1_epi64(0x1020400000000080);
	const __m512i second = _mm512_set1_epi64(0x0000000001020408);
	const __m512i high = _mm512_set1_epi32((int)0xffff0000);
	__m512i codes = _mm512_loadu_si512(p);
	__m512i u = _mm512_permutexvar_epi8(_mm512_load_si512(by_output), codes);
	__m512i hi = _mm512_gf2p8affine_epi64_epi8(u, first, 0x38);
	__m512i lo = _mm512_gf2p8affine_epi64_epi8(u, second, 0);
	__m512i c01 = _mm512_unpacklo_epi8(lo, hi), c23 = _mm512_unpackhi_epi8(lo, hi);

	c[0] = _mm512_castsi512_ps(_mm512_slli_epi32(c01, 16));
	c[1] = _mm512_castsi512_ps(_mm512_and_si512(c01, high));
	c[2] = _mm512_castsi512_ps(_mm512_slli_epi32(c23, 16));
	c[3] = _mm512_castsi512_ps(_mm512_and_si512(c23, high));
	if (__builtin_expect(_mm512_testn_epi8_mask(codes, _mm512_set1_epi8(0x78)) != 0, 0))
		for (int i = 0; i < VEC_E4M3_STEP; i++)
			c[i] = v16_e4m3_subnormal_(c[i]);
}
#endif

/* 16 bytes of two e2m1 each. */
VEC_INLINE struct v16_pair v16_e2m1(const uint8_t *p)
{
	const __m512 table = _mm512_setr_ps(
		0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
	__m512i u = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));

	return (struct v16_pair){_mm512_permutexvar_ps(u, table), /* looks at 4 bits only */
		_mm512_permutexvar_ps(_mm512_srli_epi32(u, 4), table)};
}

VEC_INLINE v16 v16_e8m0(const uint8_t *p)
{
	__m512i u = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));

	return _mm512_castsi512_ps(
		_mm512_max_epu32(_mm512_slli_epi32(u, 23), _mm512_set1_epi32(0x00400000)));
}

/* a / b of powers of two, where all three are normal. */
VEC_INLINE v16 v16_pow2_ratio(v16 a, v16 b)
{
	__m512i d = _mm512_sub_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b));

	return _mm512_castsi512_ps(_mm512_add_epi32(d, _mm512_set1_epi32(0x3f800000)));
}

/* kern_expf() of each lane. */
VEC_INLINE v16 v16_exp2_scale(v16 p, v16 t)
{
	__m512i i = _mm512_sub_epi32(
		_mm512_castps_si512(t), _mm512_castps_si512(v16_set1(KERN_EXP_MAGIC)));
	__m512i half = _mm512_srai_epi32(i, 1), bias = _mm512_set1_epi32(127);
	__m512i a = _mm512_slli_epi32(_mm512_add_epi32(half, bias), 23);
	__m512i b = _mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(i, half), bias), 23);

	return v16_mul(v16_mul(p, _mm512_castsi512_ps(a)), _mm512_castsi512_ps(b));
}

#else /* AVX2 */

enum { VEC_MR = 6, VEC_NV = 1, VEC_NV1 = 4, VEC_MR_NARROW = 6 };
#define VEC_WIDE 0

typedef struct {
	__m256 a, b;
} v16;

VEC_INLINE v16 v16_load(const float *p)
{
	return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

VEC_INLINE void v16_store(float *p, v16 v)
{
	_mm256_storeu_ps(p, v.a);
	_mm256_storeu_ps(p + 8, v.b);
}

VEC_INLINE __m256i v16_mask_(int n)
{
	return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

VEC_INLINE v16 v16_load_n(const float *p, unsigned n)
{
	return (v16){_mm256_maskload_ps(p, v16_mask_((int)n)),
		_mm256_maskload_ps(p + 8, v16_mask_((int)n - 8))};
}

VEC_INLINE void v16_store_n(float *p, v16 v, unsigned n)
{
	_mm256_maskstore_ps(p, v16_mask_((int)n), v.a);
	_mm256_maskstore_ps(p + 8, v16_mask_((int)n - 8), v.b);
}

VEC_INLINE v16 v16_set1(float f)
{
	return (v16){_mm256_set1_ps(f), _mm256_set1_ps(f)};
}

VEC_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
	return (v16){_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b)};
}

VEC_INLINE v16 v16_mul(v16 a, v16 b)
{
	return (v16){_mm256_mul_ps(a.a, b.a), _mm256_mul_ps(a.b, b.b)};
}

VEC_INLINE v16 v16_add(v16 a, v16 b)
{
	return (v16){_mm256_add_ps(a.a, b.a), _mm256_add_ps(a.b, b.b)};
}

VEC_INLINE v16 v16_sub(v16 a, v16 b)
{
	return (v16){_mm256_sub_ps(a.a, b.a), _mm256_sub_ps(a.b, b.b)};
}

VEC_INLINE v16 v16_div(v16 a, v16 b)
{
	return (v16){_mm256_div_ps(a.a, b.a), _mm256_div_ps(a.b, b.b)};
}

VEC_INLINE v16 v16_max(v16 a, v16 b)
{
	return (v16){_mm256_max_ps(a.a, b.a), _mm256_max_ps(a.b, b.b)};
}

VEC_INLINE v16 v16_min(v16 a, v16 b)
{
	return (v16){_mm256_min_ps(a.a, b.a), _mm256_min_ps(a.b, b.b)};
}

VEC_INLINE __m256 v8_rotate_(__m256 x, __m256 cs, __m256 flip)
{
	__m256 own = _mm256_mul_ps(x, _mm256_moveldup_ps(cs));
	__m256 other = _mm256_mul_ps(_mm256_permute_ps(x, 0xb1), _mm256_movehdup_ps(cs));

	return _mm256_add_ps(own, _mm256_xor_ps(other, flip));
}

VEC_INLINE v16 v16_rotate(v16 x, v16 cs, v16 flip)
{
	return (v16){v8_rotate_(x.a, cs.a, flip.a), v8_rotate_(x.b, cs.b, flip.b)};
}

VEC_INLINE v16 v16_quad_(__m256 x, int high)
{
	__m256 q = high ? _mm256_permute2f128_ps(x, x, 0x11) : _mm256_permute2f128_ps(x, x, 0);

	return (v16){q, q};
}

#define v16_spread(x, i)                                                                           \
	((v16){_mm256_permute_ps((x).a, (i)*0x55), _mm256_permute_ps((x).b, (i)*0x55)})
#define v16_quad(x, i) v16_quad_((i) < 2 ? (x).a : (x).b, (i) % 2)

VEC_INLINE v16 v16_even(void)
{
	__m256 m = _mm256_castsi256_ps(_mm256_set1_epi64x(0x80000000));

	return (v16){m, m};
}

VEC_INLINE v16 v16_odd(void)
{
	__m256 m = _mm256_castsi256_ps(_mm256_set1_epi64x((long long)0x8000000000000000));

	return (v16){m, m};
}

VEC_INLINE __m256 v8_bf16_(const uint16_t *p)
{
	__m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));

	return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
}

VEC_INLINE v16 v16_bf16(const uint16_t *p)
{
	return (v16){v8_bf16_(p), v8_bf16_(p + 8)};
}

struct v16_pair {
	v16 lo, hi;
};

VEC_INLINE struct v16_pair v16_bf16_pair(const uint8_t *p)
{
	__m256i a = _mm256_loadu_si256((const __m256i *)p);
	__m256i b = _mm256_loadu_si256((const __m256i *)(p + 32));
	__m256i hi = _mm256_set1_epi32((int)0xffff0000);

	return (struct v16_pair){{_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
					 _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))},
		{_mm256_castsi256_ps(_mm256_and_si256(a, hi)),
			_mm256_castsi256_ps(_mm256_and_si256(b, hi))}};
}

VEC_INLINE v16 v16_f16(const uint16_t *p)
{
	return (v16){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
		_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}

#define V16_E4M3_UNIT  256.0f /* as above */

VEC_INLINE v16 v16_e4m3(const uint8_t *p)
{
	__m256i u = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));

	u = _mm256_and_si256(_mm256_slli_epi16(u, 7), _mm256_set1_epi16((short)0xbf80));
	return (v16){_mm256_cvtph_ps(_mm256_castsi256_si128(u)),
		_mm256_cvtph_ps(_mm256_extracti128_si256(u, 1))};
}

VEC_INLINE struct v16_pair v16_e4m3_pair(const uint8_t *p)
{
	return (struct v16_pair){v16_e4m3(p), v16_e4m3(p + 16)};
}

/* Magnitude by table, sign by shift, of the low nibble of each word. */
VEC_INLINE __m256 v8_e2m1_(__m256i u)
{
	const __m256 table = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
	__m256i sign = _mm256_slli_epi32(_mm256_and_si256(u, _mm256_set1_epi32(8)), 28);

	return _mm256_or_ps(_mm256_permutevar8x32_ps(table, u), _mm256_castsi256_ps(sign));
}

VEC_INLINE struct v16_pair v16_e2m1(const uint8_t *p)
{
	__m256i a = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
	__m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8)));

	return (struct v16_pair){{v8_e2m1_(a), v8_e2m1_(b)},
		{v8_e2m1_(_mm256_srli_epi32(a, 4)), v8_e2m1_(_mm256_srli_epi32(b, 4))}};
}

VEC_INLINE __m256 v8_e8m0_(const uint8_t *p)
{
	__m256i u = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));

	return _mm256_castsi256_ps(
		_mm256_max_epu32(_mm256_slli_epi32(u, 23), _mm256_set1_epi32(0x00400000)));
}

VEC_INLINE v16 v16_e8m0(const uint8_t *p)
{
	return (v16){v8_e8m0_(p), v8_e8m0_(p + 8)};
}

VEC_INLINE __m256 v8_pow2_ratio_(__m256 a, __m256 b)
{
	__m256i d = _mm256_sub_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b));

	return _mm256_castsi256_ps(_mm256_add_epi32(d, _mm256_set1_epi32(0x3f800000)));
}

VEC_INLINE v16 v16_pow2_ratio(v16 a, v16 b)
{
	return (v16){v8_pow2_ratio_(a.a, b.a), v8_pow2_ratio_(a.b, b.b)};
}

VEC_INLINE __m256 v8_exp2_scale_(__m256 p, __m256 t)
{
	__m256i i = _mm256_sub_epi32(
		_mm256_castps_si256(t), _mm256_castps_si256(_mm256_set1_ps(KERN_EXP_MAGIC)));
	__m256i half = _mm256_srai_epi32(i, 1), bias = _mm256_set1_epi32(127);
	__m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
	__m256i b = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(i, half), bias), 23);

	return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
}

VEC_INLINE v16 v16_exp2_scale(v16 p, v16 t)
{
	return (v16){v8_exp2_scale_(p.a, t.a), v8_exp2_scale_(p.b, t.b)};
}

#endif

#ifndef VEC_GFNI
enum { VEC_E4M3_STEP = 2 };

VEC_INLINE void v16_e4m3_step(const uint8_t *p, v16 c[VEC_E4M3_STEP])
{
	struct v16_pair x = v16_e4m3_pair(p);

	c[0] = x.lo;
	c[1] = x.hi;
}
#endif

/* kern_expf() of each lane, operation by operation. */
VEC_INLINE v16 v16_exp(v16 x)
{
	v16 t, n, r, p;

	/* the constant first: max and min return the second operand where a lane is NaN */
	x = v16_max(v16_set1(KERN_EXP_LO), x);
	x = v16_min(v16_set1(KERN_EXP_HI), x);
	t = v16_fma(x, v16_set1(KERN_EXP_LOG2E), v16_set1(KERN_EXP_MAGIC));
	n = v16_sub(t, v16_set1(KERN_EXP_MAGIC));
	r = v16_fma(n, v16_set1(-KERN_EXP_LN2_HI), x);
	r = v16_fma(n, v16_set1(-KERN_EXP_LN2_LO), r);
	p = v16_fma(v16_set1(KERN_EXP_C7), r, v16_set1(KERN_EXP_C6));
	p = v16_fma(p, r, v16_set1(KERN_EXP_C5));
	p = v16_fma(p, r, v16_set1(KERN_EXP_C4));
	p = v16_fma(p, r, v16_set1(KERN_EXP_C3));
	p = v16_fma(p, r, v16_set1(0.5f));
	p = v16_fma(p, r, v16_set1(1.0f));
	p = v16_fma(p, r, v16_set1(1.0f));
	return v16_exp2_scale(p, t);
}

/* kern_sum16() */
VEC_INLINE float v16_sum(v16 v)
{
	float lane[KERN_LANES];

	v16_store(lane, v);
	return kern_sum16(lane);
}

#endif
