/* One row's norm, rotation and Hadamard transform, shared by the ops and by the fused ones. */
#ifndef KERNELS_CPU_ROTATE_H
#define KERNELS_CPU_ROTATE_H

#include <stdbool.h>

#include "kernels/cpu/math.h"
#ifdef __AVX2__
#include "kernels/cpu/vec.h"
#endif
#include "kernels/kern.h"

/* y = x / rms(x) * w; w NULL: no weight. y may be x. */
static inline void kern_norm_row(const float *x, const float *w, uint32_t d, float eps, float *y)
{
	float s = kern_rms_scale(x, d, eps);

	if (w)
		for (uint32_t i = 0; i < d; i++)
			y[i] = x[i] * s * w[i];
	else
		for (uint32_t i = 0; i < d; i++)
			y[i] = x[i] * s;
}

/*
 * Rotates the 32 pairs of x[64] by cs[64] = cos, sin, ...; y may be x.
 *
 * Real and imaginary parts are computed apart: GCC 12 turns an interleaved a*c - b*s, a*s + b*c
 * into vfmaddsub, which rounds once instead of twice, -ffp-contract=off or not. The vector form
 * changes a sign and adds.
 */
static inline void kern_rotate_row(const float *x, const float *cs, bool inverse, float *y)
{
#ifdef __AVX2__
	v16 flip = inverse ? v16_odd() : v16_even();

	for (int i = 0; i < KERN_ROPE; i += KERN_LANES)
		v16_store(y + i, v16_rotate(v16_load(x + i), v16_load(cs + i), flip));
#else
	enum { PAIRS = KERN_ROPE / 2 };
	float a[PAIRS], b[PAIRS], co[PAIRS], si[PAIRS], re[PAIRS], im[PAIRS];

	for (int i = 0; i < PAIRS; i++) {
		a[i] = x[2 * i];
		b[i] = x[2 * i + 1];
		co[i] = cs[2 * i];
		si[i] = inverse ? -cs[2 * i + 1] : cs[2 * i + 1];
	}
	for (int i = 0; i < PAIRS; i++)
		re[i] = a[i] * co[i] - b[i] * si[i];
	for (int i = 0; i < PAIRS; i++)
		im[i] = a[i] * si[i] + b[i] * co[i];
	for (int i = 0; i < PAIRS; i++) {
		y[2 * i] = re[i];
		y[2 * i + 1] = im[i];
	}
#endif
}

/* The normalised 128-point Walsh-Hadamard transform: strides 1, 2, .. 64, then the scale. */
static inline void kern_hadamard_row(const float *x, float *y)
{
	float t[KERN_INDEX];

	memcpy(t, x, sizeof(t));
	for (uint32_t h = 1; h < KERN_INDEX; h *= 2)
		for (uint32_t i = 0; i < KERN_INDEX; i += 2 * h)
			for (uint32_t j = i; j < i + h; j++) {
				float a = t[j], b = t[j + h];

				t[j] = a + b;
				t[j + h] = a - b;
			}
	for (uint32_t i = 0; i < KERN_INDEX; i++)
		y[i] = t[i] * 0x1.6a09e6p-4f; /* 128^-1/2 */
}

#endif
