/*
 * Element types and their conversions, bit by bit: bf16, f16, e4m3fn, e2m1 and E8M0 scales.
 *
 * Everything here is exact or rounds to nearest, ties to even. Encoders never make a NaN byte:
 *   e4m3fn  saturates at +-448, NaN becomes +0
 *   e2m1    saturates at +-6,   NaN becomes +0
 *   E8M0    rounds UP to a power of two; 0, negatives and NaN give byte 0 (2^-127), infinity and
 *           whatever exceeds 2^127 give byte 254. Byte 255 is a NaN: loaders refuse it.
 * bf16 keeps NaN (quiet) and infinities. A scale is rounded first and then used both to encode and
 * to decode.
 */
#ifndef KERNELS_DTYPE_H
#define KERNELS_DTYPE_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* X(name, bits an element, "name in files") */
#define KERN_DTYPES(X)                                                                             \
	X(F32, 32, "F32")                                                                          \
	X(F16, 16, "F16")                                                                          \
	X(BF16, 16, "BF16")                                                                        \
	X(FP8, 8, "F8_E4M3")                                                                       \
	X(FP4, 4, "FP4")

#define X(name, bits, text) KERN_##name,
enum kern_dtype { KERN_DTYPES(X) KERN_DTYPE__COUNT };
#undef X

#define KERN_FP8_MAX 448.0f
#define KERN_FP4_MAX 6.0f

static inline uint32_t kern_bits(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

static inline float kern_float(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

static inline float kern_from_bf16(uint16_t h)
{
	return kern_float((uint32_t)h << 16);
}

static inline uint16_t kern_to_bf16(float f)
{
	uint32_t u = kern_bits(f);

	if ((u & 0x7fffffff) > 0x7f800000)
		return (uint16_t)((u >> 16) | 0x40);
	return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

static inline float kern_from_f16(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023;

	if (e == 31)
		return kern_float(sign | 0x7f800000 | m << 13);
	if (e == 0)
		return kern_float(sign | kern_bits((float)m * 0x1p-24f));
	return kern_float(sign | (e + 112) << 23 | m << 13);
}

/* A byte 0x7f or 0xff is a NaN; weights and caches never hold one. */
static inline float kern_from_e4m3(uint8_t b)
{
	uint32_t sign = (uint32_t)(b & 0x80) << 24, e = (b >> 3) & 15, m = b & 7;

	if ((b & 0x7f) == 0x7f)
		return kern_float(sign | 0x7fc00000);
	if (e == 0)
		return kern_float(sign | kern_bits((float)m * 0x1p-9f));
	return kern_float(sign | (e + 120) << 23 | m << 20);
}

static inline uint8_t kern_to_e4m3(float f)
{
	uint32_t u = kern_bits(f), sign = u >> 24 & 0x80, a = u & 0x7fffffff;

	if (a > 0x7f800000)
		return 0;
	if (a >= 0x43e00000) /* 448 */
		return (uint8_t)(sign | 0x7e);
	if (a < 0x3c800000) { /* below 2^-6: multiples of 2^-9; the sum rounds to even */
		float r = kern_float(a) + 0x1p14f;

		return (uint8_t)(sign | (kern_bits(r) - kern_bits(0x1p14f)));
	}
	a += 0x7ffff + (a >> 20 & 1);
	return (uint8_t)(sign | ((a >> 20) - (120 << 3)));
}

/* kern_from_e4m3(kern_to_e4m3(f)), without branches and unsigned comparisons, so that compilers
 * vectorise it. */
static inline float kern_round_e4m3(float f)
{
	uint32_t u = kern_bits(f);
	uint32_t up = ((u & 0x7fffffff) + 0x7ffff + (u >> 20 & 1)) & 0xfff00000;
	int32_t a = (int32_t)(u & 0x7fffffff), r = (int32_t)up;
	float few = kern_float((uint32_t)a) + 0x1p14f; /* below 2^-6: multiples of 2^-9 */

	few -= 0x1p14f;
	r = a < 0x3c800000 ? (int32_t)kern_bits(few) : r;
	r = a < 0x43e00000 ? r : 0x43e00000;
	r |= (int32_t)(u & 0x80000000);
	r &= -(int32_t)(a <= 0x7f800000); /* NaN: 0 */
	return kern_float((uint32_t)r);
}

static inline float kern_from_e2m1(uint8_t nibble)
{
	static const float value[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
	float v = value[nibble & 7];

	return nibble & 8 ? -v : v;
}

static inline uint8_t kern_to_e2m1(float f)
{
	uint8_t sign = kern_bits(f) >> 31 ? 8 : 0;
	float a = fabsf(f);
	uint8_t m;

	if (f != f)
		return 0;
	/* boundaries halfway between neighbours; a tie goes to the even code */
	m = (uint8_t)((a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
		      (a >= 3.5f) + (a > 5.0f));
	return sign | m;
}

static inline float kern_from_e8m0(uint8_t b)
{
	return b ? kern_float((uint32_t)b << 23) : 0x1p-127f;
}

/* The byte of the smallest power of two >= s. */
static inline uint8_t kern_to_e8m0(float s)
{
	uint32_t u = kern_bits(s);

	if (!(s > 0x1p-127f))
		return 0;
	if (s > 0x1p127f)
		return 254;
	if (u < 0x00800000)
		return 1;
	return (uint8_t)((u + 0x7fffff) >> 23);
}

/*
 * Scales of stored and simulated blocks, from a block's amax (not NaN; infinity counts as
 * FLT_MAX). Powers of two: the smallest with amax <= scale * max; else amax / max rounded to f32.
 */
static inline float kern_fp8_scale(float amax)
{
	return fmaxf(fminf(amax, FLT_MAX), 1e-4f) / KERN_FP8_MAX;
}

static inline uint8_t kern_fp8_scale_e8m0(float amax)
{
	return kern_to_e8m0(kern_fp8_scale(amax));
}

static inline uint8_t kern_fp4_scale_e8m0(float amax)
{
	return kern_to_e8m0(fmaxf(fminf(amax, FLT_MAX), 6 * 0x1p-126f) / KERN_FP4_MAX);
}

#endif
