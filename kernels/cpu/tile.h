/*
 * The register tile of products and of index scores: rows times a panel whose columns lie side by
 * side, one chain of fused multiply-adds over ascending k for every output.
 */
#ifndef KERNELS_CPU_TILE_H
#define KERNELS_CPU_TILE_H

#include "kernels/cpu/vec.h"
#include "kernels/weight.h"

/* acc[mr][VEC_NV] += x[mr][kn] panel; mr is a constant. */
VEC_INLINE void product_tile(const int mr, const float *const *x, uint32_t kn, const float *panel,
	v16 acc[VEC_MR][VEC_NV])
{
	for (uint32_t k = 0; k < kn; k++, panel += VEC_NV * KERN_GROUP) {
		v16 c[VEC_NV];

#pragma GCC unroll 4
		for (int v = 0; v < VEC_NV; v++)
			c[v] = v16_load(panel + v * KERN_GROUP);
#pragma GCC unroll 8
		for (int i = 0; i < mr; i++) {
			v16 b = v16_set1(x[i][k]);

#pragma GCC unroll 4
			for (int v = 0; v < VEC_NV; v++)
				acc[i][v] = v16_fma(b, c[v], acc[i][v]);
		}
	}
}

#endif
