/*
 * The arithmetic that every CPU variant shares, so that their bits agree: explicit fused
 * multiply-adds, one exponential, one order of reduction.
 */
#ifndef KERNELS_CPU_MATH_H
#define KERNELS_CPU_MATH_H

#include <math.h>
#include <stdint.h>

#include "kernels/dtype.h"

#define KERN_LANES 16

static inline float kern_fma(float a, float b, float c)
{
	return __builtin_fmaf(a, b, c);
}

/* Constants of kern_expf; the vector form uses the same. */
#define KERN_EXP_LO     (-104.0f)
#define KERN_EXP_HI     89.0f
#define KERN_EXP_MAGIC  0x1.8p23f
#define KERN_EXP_LOG2E  0x1.715476p+0f
#define KERN_EXP_LN2_HI 0x1.62e400p-1f
#define KERN_EXP_LN2_LO 0x1.7f7d1cp-20f
#define KERN_EXP_C7     0x1.a01a02p-13f
#define KERN_EXP_C6     0x1.6c16c2p-10f
#define KERN_EXP_C5     0x1.111112p-7f
#define KERN_EXP_C4     0x1.555556p-5f
#define KERN_EXP_C3     0x1.555556p-3f

/* e^x within 2 ulp; e^-inf = 0, overflow gives infinity, NaN stays NaN. No branches, so that
 * compilers vectorise it without changing a bit. */
static inline float kern_expf(float x)
{
	float t, n, r, p;
	int32_t i, half;

	x = x < KERN_EXP_LO ? KERN_EXP_LO : x;
	x = x > KERN_EXP_HI ? KERN_EXP_HI : x;
	t = kern_fma(x, KERN_EXP_LOG2E, KERN_EXP_MAGIC);
	n = t - KERN_EXP_MAGIC;
	r = kern_fma(n, -KERN_EXP_LN2_HI, x);
	r = kern_fma(n, -KERN_EXP_LN2_LO, r);
	p = kern_fma(KERN_EXP_C7, r, KERN_EXP_C6);
	p = kern_fma(p, r, KERN_EXP_C5);
	p = kern_fma(p, r, KERN_EXP_C4);
	p = kern_fma(p, r, KERN_EXP_C3);
	p = kern_fma(p, r, 0.5f);
	p = kern_fma(p, r, 1.0f);
	p = kern_fma(p, r, 1.0f);
	/* times 2^n in two steps: n reaches -150 and 128 */
	i = (int32_t)(kern_bits(t) - kern_bits(KERN_EXP_MAGIC));
	half = i >> 1;
	return p * kern_float((uint32_t)(half + 127) << 23) *
	       kern_float((uint32_t)(i - half + 127) << 23);
}

static inline float kern_sigmoid(float x)
{
	return 1.0f / (1.0f + kern_expf(-x));
}

/* Sum of 16 lanes: halves onto halves. */
static inline float kern_sum16(const float *lane)
{
	float s8[8], s4[4];

	for (int l = 0; l < 8; l++)
		s8[l] = lane[l] + lane[l + 8];
	for (int l = 0; l < 4; l++)
		s4[l] = s8[l] + s8[l + 4];
	return (s4[0] + s4[2]) + (s4[1] + s4[3]);
}

/* Dot product in 16 lanes: lane l sums the terms of index l mod 16, ascending, in one fma chain. */
static inline float kern_dot16(const float *a, const float *b, size_t n)
{
	float lane[KERN_LANES] = {0};
	size_t i = 0;

	for (; i + KERN_LANES <= n; i += KERN_LANES)
		for (int l = 0; l < KERN_LANES; l++)
			lane[l] = kern_fma(a[i + l], b[i + l], lane[l]);
	for (int l = 0; i + l < n; l++)
		lane[l] = kern_fma(a[i + l], b[i + l], lane[l]);
	return kern_sum16(lane);
}

/* 1 / sqrt(mean(x^2) + eps) */
static inline float kern_rms_scale(const float *x, size_t n, float eps)
{
	return 1.0f / sqrtf(kern_dot16(x, x, n) / (float)n + eps);
}

/* Largest magnitude, NaN left out: of the bits, whose order is that of the values, since a maximum
 * of integers may be taken in any order, so that compilers vectorise it. */
static inline float kern_amax(const float *x, size_t n)
{
	uint32_t m = 0;

	for (size_t i = 0; i < n; i++) {
		uint32_t v = kern_bits(x[i]) & 0x7fffffff;

		v &= 0u - (uint32_t)(v <= 0x7f800000);
		m = v > m ? v : m;
	}
	return kern_float(m);
}

#endif
