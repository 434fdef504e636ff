/*
 * The register tile of products and of index scores: rows times groups of a panel whose columns are
 * read in order, one chain of fused multiply-adds over ascending k for every output.
 */
#ifndef KERNELS_CPU_TILE_H
#define KERNELS_CPU_TILE_H

#include "kernels/cpu/vec.h"
#include "kernels/weight.h"

/*
 * What will be read next, asked for while a tile is worked on: two stretches, so many bytes for
 * each column of the tile. A stretch that has no next points at something at hand, with step 0.
 */
struct tile_ahead {
	const char *at[2];
	size_t step;
};

/*
 * acc[mr][nv] += x[mr][kn] times kn columns of nv groups of 16: a group's columns are `across`
 * floats apart, groups `apart`. mr, nv and across are constants.
 */
VEC_INLINE void product_tile(const int mr, const int nv, const float *const *x, uint32_t kn,
	const float *panel, const int across, size_t apart, const struct tile_ahead *next,
	v16 acc[][VEC_NV])
{
	const char *first = next->at[0], *second = next->at[1];

	for (uint32_t k = 0; k < kn; k++, panel += across) {
		v16 c[VEC_NV];

		_mm_prefetch(first, _MM_HINT_T1);
		_mm_prefetch(second, _MM_HINT_T1);
		first += next->step;
		second += next->step;

#pragma GCC unroll 4
		for (int v = 0; v < nv; v++)
			c[v] = v16_load(panel + v * apart);
#pragma GCC unroll 12
		for (int i = 0; i < mr; i++) {
			v16 b = v16_set1(x[i][k]);

#pragma GCC unroll 4
			for (int v = 0; v < nv; v++)
				acc[i][v] = v16_fma(b, c[v], acc[i][v]);
		}
	}
}

#endif
