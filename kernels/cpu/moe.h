/* What the variants of moe_up and moe_down share: checks and the activation. */
#ifndef KERNELS_CPU_MOE_H
#define KERNELS_CPU_MOE_H

#include "kernels/cpu/math.h"
#include "kernels/kern.h"

/* silu(min(g, L)) * clamp(u, -L, L) * weight; the gate is clamped from above only. NaN stays. */
static inline float kern_swiglu(float g, float u, float limit, float weight)
{
	g = g > limit ? limit : g;
	u = u > limit ? limit : u;
	u = u < -limit ? -limit : u;
	return g / (1.0f + kern_expf(-g)) * u * weight;
}

/* Longest input row of the weights here; 0 when there are none. */
static inline uint32_t kern_moe_up_k(const struct kern_moe_up_args *a)
{
	uint32_t k = a->shared_w1 ? a->shared_w1->k : 0;

	for (uint32_t e = 0; e < a->experts; e++)
		if (a->w1[e])
			k = MAX(k, a->w1[e]->k);
	return k;
}

static inline uint32_t kern_moe_down_k(const struct kern_moe_down_args *a)
{
	return MAX(a->inter, a->shared_w2 ? a->shared_w2->k : 0);
}

static inline int kern_moe_ids_check(const uint32_t *ids, size_t n, uint32_t experts)
{
	for (size_t i = 0; i < n; i++)
		if (ids[i] >= experts)
			return -EINVAL;
	return 0;
}

static inline int kern_moe_up_check(const struct kern_moe_up_args *a)
{
	uint32_t k = kern_moe_up_k(a);

	for (uint32_t e = 0; e < a->experts; e++)
		if (!a->w1[e] != !a->w3[e] ||
			(a->w1[e] && (a->w1[e]->n != a->inter || a->w3[e]->n != a->inter ||
					     a->w1[e]->k != k || a->w3[e]->k != k)))
			return -EINVAL;
	if (!a->shared_w1 != !a->shared_w3 ||
		(a->shared_w1 && (a->shared_w1->n != a->shared_w3->n || a->shared_w1->k != k ||
					 a->shared_w3->k != k)))
		return -EINVAL;
	return kern_moe_ids_check(a->ids, (size_t)a->rows * a->topk, a->experts);
}

static inline int kern_moe_down_check(const struct kern_moe_down_args *a)
{
	for (uint32_t e = 0; e < a->experts; e++)
		if (a->w2[e] && (a->w2[e]->n != a->d || a->w2[e]->k != a->inter))
			return -EINVAL;
	if (a->shared_w2 && a->shared_w2->n != a->d)
		return -EINVAL;
	return kern_moe_ids_check(a->ids, (size_t)a->rows * a->topk, a->experts);
}

#endif
