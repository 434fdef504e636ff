/* Rounding of activations before a product (model.md 8). */
#ifndef KERNELS_CPU_ACT_H
#define KERNELS_CPU_ACT_H

#include "kernels/cpu/math.h"
#include "kernels/weight.h"
#include "kernels/kern.h"

/* What act means for products with this weight. */
static inline enum kern_act kern_act_of(enum kern_act act, const struct kern_weight *w)
{
	if (act == KERN_ACT_FP8 && w->dtype != KERN_FP8 && w->dtype != KERN_FP4)
		return KERN_ACT_BF16;
	return act;
}

/* Global 128-groups a slice of k columns from col0 touches. */
static inline uint32_t kern_act_groups(uint32_t k, uint32_t col0)
{
	return (col0 % 128 + k + 127) / 128;
}

/* y = x rounded. amax: of the groups, or NULL to take it from x. y may be x. */
static inline void kern_act_round(const float *x, uint32_t k, uint32_t col0, enum kern_act act,
	bool pow2, const float *amax, float *y)
{
	uint32_t end;

	if (act == KERN_ACT_F32) {
		memmove(y, x, k * sizeof(float));
		return;
	}
	if (act == KERN_ACT_BF16) {
		for (uint32_t i = 0; i < k; i++)
			y[i] = kern_from_bf16(kern_to_bf16(x[i]));
		return;
	}
	for (uint32_t at = 0, g = 0; at < k; at = end, g++) {
		float m, s;

		end = MIN(k, at + 128 - (col0 + at) % 128);
		m = amax ? amax[g] : kern_amax(x + at, end - at);
		s = kern_fp8_scale(m);
		if (pow2)
			s = kern_from_e8m0(kern_to_e8m0(s));
		for (uint32_t i = at; i < end; i++)
			y[i] = kern_round_e4m3(x[i] / s) * s;
	}
}

#endif
