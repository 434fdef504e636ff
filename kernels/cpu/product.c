/*
 * The vector core of all products: rows of activations times groups of 16 outputs, every output
 * one chain of fused multiply-adds over ascending k, whatever the tile.
 *
 *   few rows    weights are widened in registers and used at once: memory-bound, like a GEMV
 *   many rows   a panel of KERN_PANEL_K columns x VEC_NV groups is widened once into the L1 cache
 *               and used for every row; partial sums wait in scratch between
 *               panels
 *
 * Storing and reloading a partial sum does not change it, so both paths give the same bits.
 */
#include "kernels/cpu/product.h"

#include "kernels/cpu/tile.h"

/* Columns from k on that share a scale block (all of them without scales), at most max. */
VEC_INLINE uint32_t product_run(const struct kern_weight *w, uint32_t k, uint32_t max)
{
	uint32_t end = MIN(w->k, k + max);

	if (w->block)
		end = MIN(end, k + w->block - (w->col0 + k) % w->block);
	return end - k;
}

/* The scales of a group's 16 outputs at column k, V16_E4M3_UNIT included; kern_weight_pack() has
 * seen to it that this does not overflow. */
VEC_INLINE v16 product_scale(const struct kern_weight *w, uint32_t group, uint32_t k)
{
	size_t at;

	if (!w->block)
		return v16_set1(1.0f);
	at = ((size_t)group * w->nblk + kern_weight_block(w, k)) * KERN_GROUP;
	if (w->dtype == KERN_FP8)
		return v16_mul(v16_load((const float *)w->scale + at), v16_set1(V16_E4M3_UNIT));
	return v16_e8m0((const uint8_t *)w->scale + at);
}

/* Where a group's column k begins. */
VEC_INLINE const uint8_t *product_at(
	enum kern_dtype dtype, const struct kern_weight *w, uint32_t group, uint32_t k)
{
	size_t i = ((size_t)group * w->k + k) * KERN_GROUP;
	const uint8_t *p = w->data;

	return p + (dtype == KERN_F32          ? 4 * i
			   : dtype == KERN_FP8 ? i
			   : dtype == KERN_FP4 ? i / 2
					       : 2 * i);
}

/* Bytes from one column to the next (FP4: to the next pair). */
VEC_INLINE size_t product_step(enum kern_dtype dtype)
{
	return dtype == KERN_F32 ? 64 : dtype == KERN_FP8 || dtype == KERN_FP4 ? 16 : 32;
}

/* Types that are widened two columns at a time, where two are left. */
VEC_INLINE bool product_pairs(enum kern_dtype dtype)
{
	return dtype == KERN_FP8 || dtype == KERN_FP4;
}

VEC_INLINE struct v16_pair product_widen_pair(enum kern_dtype dtype, const uint8_t *p, v16 scale)
{
	struct v16_pair c = dtype == KERN_FP4 ? v16_e2m1(p) : v16_e4m3_pair(p);

	return (struct v16_pair){v16_mul(c.lo, scale), v16_mul(c.hi, scale)};
}

/* One column of a group; not for FP4, whose columns are even in number. */
VEC_INLINE v16 product_widen(enum kern_dtype dtype, const uint8_t *p, v16 scale)
{
	switch (dtype) {
	case KERN_F32:
		return v16_load((const float *)p);
	case KERN_F16:
		return v16_f16((const uint16_t *)p);
	case KERN_BF16:
		return v16_bf16((const uint16_t *)p);
	default:
		return v16_mul(v16_e4m3(p), scale);
	}
}

/* acc[mr][nv] += columns k .. k+run-1 of one scale block; moves p on. */
VEC_INLINE void product_columns(enum kern_dtype dtype, const int mr, const int nv, uint32_t k,
	uint32_t run, const v16 scale[VEC_NV1], const float *const *x, const uint8_t *p[VEC_NV1],
	v16 acc[VEC_MR][VEC_NV1])
{
	uint32_t j = k;

	if (product_pairs(dtype))
		for (; j + 2 <= k + run; j += 2)
#pragma GCC unroll 8
			for (int v = 0; v < nv; v++) {
				struct v16_pair c = product_widen_pair(dtype, p[v], scale[v]);

				p[v] += dtype == KERN_FP4 ? 16 : 32;
#pragma GCC unroll 8
				for (int i = 0; i < mr; i++) {
					acc[i][v] = v16_fma(v16_set1(x[i][j]), c.lo, acc[i][v]);
					acc[i][v] = v16_fma(v16_set1(x[i][j + 1]), c.hi, acc[i][v]);
				}
			}
	if (dtype == KERN_FP4)
		return;
	for (; j < k + run; j++)
#pragma GCC unroll 8
		for (int v = 0; v < nv; v++) {
			v16 c = product_widen(dtype, p[v], scale[v]);

			p[v] += product_step(dtype);
#pragma GCC unroll 8
			for (int i = 0; i < mr; i++)
				acc[i][v] = v16_fma(v16_set1(x[i][j]), c, acc[i][v]);
		}
}

/* mr rows x nv groups from compressed weights, all of k. dtype, mr, nv are constants. */
VEC_INLINE void product_direct(enum kern_dtype dtype, const int mr, const int nv,
	const struct kern_weight *w, uint32_t group, const float *const *x, float *y, size_t ldy)
{
	v16 acc[VEC_MR][VEC_NV1], scale[VEC_NV1];
	const uint8_t *p[VEC_NV1];

#pragma GCC unroll 8
	for (int i = 0; i < mr; i++)
#pragma GCC unroll 8
		for (int v = 0; v < nv; v++)
			acc[i][v] = v16_set1(0);
#pragma GCC unroll 8
	for (int v = 0; v < nv; v++)
		p[v] = product_at(dtype, w, group + v, 0);
	for (uint32_t k = 0, run; k < w->k; k += run) {
		run = product_run(w, k, w->k);
#pragma GCC unroll 8
		for (int v = 0; v < nv; v++)
			scale[v] = product_scale(w, group + v, k);
		product_columns(dtype, mr, nv, k, run, scale, x, p, acc);
	}
#pragma GCC unroll 8
	for (int i = 0; i < mr; i++)
#pragma GCC unroll 8
		for (int v = 0; v < nv; v++) {
			uint32_t left = w->n - (group + v) * KERN_GROUP;

			v16_store_n(y + i * ldy + v * KERN_GROUP, acc[i][v],
				MIN(left, (uint32_t)KERN_GROUP));
		}
}

/* Few rows: picks the constants. */
#define PRODUCT_ROWS(dtype, nv)                                                                    \
	switch (rows) {                                                                            \
	case 1:                                                                                    \
		product_direct(dtype, 1, nv, w, group, x, y, ldy);                                 \
		break;                                                                             \
	case 2:                                                                                    \
		product_direct(dtype, 2, nv, w, group, x, y, ldy);                                 \
		break;                                                                             \
	case 3:                                                                                    \
		product_direct(dtype, 3, nv, w, group, x, y, ldy);                                 \
		break;                                                                             \
	case 4:                                                                                    \
		product_direct(dtype, 4, nv, w, group, x, y, ldy);                                 \
		break;                                                                             \
	case 5:                                                                                    \
		product_direct(dtype, 5, nv, w, group, x, y, ldy);                                 \
		break;                                                                             \
	default:                                                                                   \
		product_direct(dtype, 6, nv, w, group, x, y, ldy);                                 \
	}

/* The widest tile of few rows for `left` groups; returns the groups done. */
#define PRODUCT_FEW(name, dtype)                                                                   \
	static uint32_t product_few_##name(const struct kern_weight *w, uint32_t group,            \
		uint32_t left, uint32_t rows, const float *const *x, float *y, size_t ldy)         \
	{                                                                                          \
		if (rows == 1 && left >= VEC_NV1) {                                                \
			product_direct(dtype, 1, VEC_NV1, w, group, x, y, ldy);                    \
			return VEC_NV1;                                                            \
		}                                                                                  \
		if (rows == 1 && left >= 4 && VEC_NV1 > 4) {                                       \
			product_direct(dtype, 1, 4, w, group, x, y, ldy);                          \
			return 4;                                                                  \
		}                                                                                  \
		if (rows == 1 && left >= 2) {                                                      \
			product_direct(dtype, 1, 2, w, group, x, y, ldy);                          \
			return 2;                                                                  \
		}                                                                                  \
		if (left >= VEC_NV && VEC_NV > 1) {                                                \
			PRODUCT_ROWS(dtype, VEC_NV)                                                \
			return VEC_NV;                                                             \
		}                                                                                  \
		PRODUCT_ROWS(dtype, 1)                                                             \
		return 1;                                                                          \
	}

PRODUCT_FEW(F32, KERN_F32)
PRODUCT_FEW(F16, KERN_F16)
PRODUCT_FEW(BF16, KERN_BF16)
PRODUCT_FEW(FP8, KERN_FP8)
PRODUCT_FEW(FP4, KERN_FP4)

VEC_INLINE void product_few(const struct kern_weight *w, uint32_t group, uint32_t groups,
	uint32_t rows, const float *const *x, float *y, size_t ldy)
{
	static uint32_t (*const few[])(const struct kern_weight *, uint32_t, uint32_t, uint32_t,
		const float *const *, float *, size_t) = {product_few_F32, product_few_F16,
		product_few_BF16, product_few_FP8, product_few_FP4};

	for (uint32_t g = 0; g < groups;)
		g += few[w->dtype](w, group + g, groups - g, rows, x, y + g * KERN_GROUP, ldy);
}

/* ---- many rows ---- */

VEC_INLINE void product_panel_of(enum kern_dtype dtype, const struct kern_weight *w, uint32_t group,
	uint32_t k0, uint32_t kn, float *panel)
{
	const size_t ld = VEC_NV * KERN_GROUP;
	const uint8_t *p = product_at(dtype, w, group, k0);

	for (uint32_t k = 0, run; k < kn; k += run) {
		v16 scale = product_scale(w, group, k0 + k);
		uint32_t j = k;

		run = MIN(product_run(w, k0 + k, kn), kn - k);
		if (product_pairs(dtype))
			for (; j + 2 <= k + run; j += 2, p += dtype == KERN_FP4 ? 16 : 32) {
				struct v16_pair c = product_widen_pair(dtype, p, scale);

				v16_store(panel + j * ld, c.lo);
				v16_store(panel + (j + 1) * ld, c.hi);
			}
		for (; dtype != KERN_FP4 && j < k + run; j++, p += product_step(dtype))
			v16_store(panel + j * ld, product_widen(dtype, p, scale));
	}
}

/* Widens columns k0 .. k0+kn-1 of up to VEC_NV groups into panel[kn][VEC_NV * 16]; groups that are
 * not there are zeros. */
static void product_panel(const struct kern_weight *w, uint32_t group, uint32_t groups, uint32_t k0,
	uint32_t kn, float *panel)
{
	for (uint32_t v = 0; v < VEC_NV; v++) {
		float *to = panel + v * KERN_GROUP;

		if (v >= groups) {
			for (uint32_t k = 0; k < kn; k++)
				v16_store(to + k * VEC_NV * KERN_GROUP, v16_set1(0));
			continue;
		}
		switch (w->dtype) {
		case KERN_F32:
			product_panel_of(KERN_F32, w, group + v, k0, kn, to);
			break;
		case KERN_F16:
			product_panel_of(KERN_F16, w, group + v, k0, kn, to);
			break;
		case KERN_BF16:
			product_panel_of(KERN_BF16, w, group + v, k0, kn, to);
			break;
		case KERN_FP8:
			product_panel_of(KERN_FP8, w, group + v, k0, kn, to);
			break;
		default:
			product_panel_of(KERN_FP4, w, group + v, k0, kn, to);
		}
	}
}

/* sums[mr][VEC_NV * 16] (+)= x[mr] panel */
VEC_INLINE void product_tile_sums(const int mr, const float *const *x, uint32_t kn,
	const float *panel, bool first, float *sums)
{
	v16 acc[VEC_MR][VEC_NV];

#pragma GCC unroll 8
	for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
		for (int v = 0; v < VEC_NV; v++)
			acc[i][v] = first ? v16_set1(0) : v16_load(sums + (i * VEC_NV + v) * 16);
	product_tile(mr, x, kn, panel, acc);
#pragma GCC unroll 8
	for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
		for (int v = 0; v < VEC_NV; v++)
			v16_store(sums + (i * VEC_NV + v) * 16, acc[i][v]);
}

static void product_tiles(uint32_t rows, const float *const *x, uint32_t k0, uint32_t kn,
	const float *panel, float *sums)
{
	const float *at[VEC_MR];

	for (uint32_t t = 0; t < rows; t += VEC_MR) {
		float *to = sums + (size_t)t * VEC_NV * KERN_GROUP;

		for (uint32_t i = 0; i < VEC_MR; i++)
			at[i] = x[MIN(t + i, rows - 1)] + k0;
		switch (MIN(rows - t, (uint32_t)VEC_MR)) {
		case 1:
			product_tile_sums(1, at, kn, panel, !k0, to);
			break;
		case 2:
			product_tile_sums(2, at, kn, panel, !k0, to);
			break;
		case 3:
			product_tile_sums(3, at, kn, panel, !k0, to);
			break;
		case 4:
			product_tile_sums(4, at, kn, panel, !k0, to);
			break;
		case 5:
			product_tile_sums(5, at, kn, panel, !k0, to);
			break;
		default:
			product_tile_sums(6, at, kn, panel, !k0, to);
		}
	}
}

void KERN_FN(product)(const struct kern_weight *w, uint32_t group, uint32_t groups, uint32_t rows,
	const float *const *x, float *y, size_t ldy, float *panel)
{
	const size_t ld = VEC_NV * KERN_GROUP;
	float *sums = panel + KERN_PANEL_BYTES / sizeof(float);

	if (rows <= VEC_MR) {
		product_few(w, group, groups, rows, x, y, ldy);
		return;
	}
	for (uint32_t g = 0; g < groups; g += VEC_NV) {
		uint32_t ng = MIN(groups - g, (uint32_t)VEC_NV);
		uint32_t n = MIN(ng * KERN_GROUP, w->n - (group + g) * KERN_GROUP);

		for (uint32_t k = 0, kn; k < w->k; k += kn) {
			kn = MIN(w->k - k, (uint32_t)KERN_PANEL_K);
			product_panel(w, group + g, ng, k, kn, panel);
			product_tiles(rows, x, k, kn, panel, sums);
		}
		for (uint32_t t = 0; t < rows; t++)
			memcpy(y + t * ldy + g * KERN_GROUP, sums + t * ld, n * sizeof(float));
	}
}
