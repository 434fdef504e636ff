/*
 * The vector core of all products: rows of activations times groups of 16 outputs, every output
 * one chain of fused multiply-adds over ascending k, whatever the tile.
 *
 *   few rows    weights are widened in registers and used at once: memory-bound, like a GEMV
 *   many rows   a panel of KERN_PANEL_K columns x up to VEC_NV groups is widened once into the L1
 *               cache and used for every row, more of them at a time where it is narrow; partial
 *               sums wait in scratch between panels
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
	uint32_t k0, uint32_t kn, size_t ld, float *panel)
{
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

/* Widens columns k0 .. k0+kn-1 of nv groups into panel[kn][nv * 16]. */
static void product_panel(const struct kern_weight *w, uint32_t group, uint32_t nv, uint32_t k0,
	uint32_t kn, float *panel)
{
	size_t ld = (size_t)nv * KERN_GROUP;

	for (uint32_t v = 0; v < nv; v++) {
		float *to = panel + v * KERN_GROUP;

		switch (w->dtype) {
		case KERN_F32:
			product_panel_of(KERN_F32, w, group + v, k0, kn, ld, to);
			break;
		case KERN_F16:
			product_panel_of(KERN_F16, w, group + v, k0, kn, ld, to);
			break;
		case KERN_BF16:
			product_panel_of(KERN_BF16, w, group + v, k0, kn, ld, to);
			break;
		case KERN_FP8:
			product_panel_of(KERN_FP8, w, group + v, k0, kn, ld, to);
			break;
		default:
			product_panel_of(KERN_FP4, w, group + v, k0, kn, ld, to);
		}
	}
}

/* A panel at work: rows x nv groups, and where its outputs go. */
struct product_panel {
	uint32_t k0, kn, rows, nv;
	bool last;      /* of its outputs: sums go to y */
	uint32_t n;     /* outputs that are there */
	const float *w; /* [kn][nv * 16] */
	float *sums;    /* [rows][nv * 16] between panels */
	float *y;
	size_t ldy;
	/* the panel after it: its stretches are too short for the hardware to see where they lead
	 */
	const char *ahead[VEC_NV];
	uint32_t ahead_n;
	size_t ahead_step;
};

static void product_look_ahead(struct product_panel *p, const struct kern_weight *w, uint32_t group,
	uint32_t nv, uint32_t k0)
{
	p->ahead_n = nv;
	p->ahead_step = w->dtype == KERN_FP4 ? 8 : product_step(w->dtype);
	for (uint32_t v = 0; v < nv; v++)
		p->ahead[v] = (const char *)product_at(w->dtype, w, group + v, k0);
}

/* y[mr][n] or sums[mr][nv * 16] = (sums +) x[mr] panel; the tile-th tile of rows, from row t on. */
VEC_INLINE void product_tile_sums(const int mr, const int nv, const struct product_panel *p,
	const float *const *x, uint32_t t, uint32_t tile)
{
	struct tile_ahead next = {{(const char *)p->w, (const char *)p->w}, 0};
	float *sums = p->sums + (size_t)t * nv * KERN_GROUP;
	v16 acc[VEC_MR_NARROW][VEC_NV];

	for (uint32_t i = 0; i < 2; i++)
		if (2 * tile + i < p->ahead_n) {
			next.at[i] = p->ahead[2 * tile + i];
			next.step = p->ahead_step;
		}
#pragma GCC unroll 12
	for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
		for (int v = 0; v < nv; v++)
			acc[i][v] = p->k0 ? v16_load(sums + (i * nv + v) * 16) : v16_set1(0);
	product_tile(mr, nv, x, p->kn, p->w, &next, acc);
#pragma GCC unroll 12
	for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
		for (int v = 0; v < nv; v++) {
			uint32_t left = p->n - MIN(p->n, (uint32_t)v * KERN_GROUP);

			if (p->last)
				v16_store_n(p->y + (t + i) * p->ldy + v * KERN_GROUP, acc[i][v],
					MIN(left, (uint32_t)KERN_GROUP));
			else
				v16_store(sums + (i * nv + v) * 16, acc[i][v]);
		}
}

#define PRODUCT_TILE(mr, nv)                                                                       \
	case mr:                                                                                   \
		product_tile_sums(mr, nv, p, at, t, t / most);                                     \
		break;

/* All rows times a panel of nv groups, `many` of them at a time. */
#define PRODUCT_TILES(nv, many, ...)                                                               \
	static void product_tiles_##nv(const struct product_panel *p, const float *const *x)       \
	{                                                                                          \
		enum { most = many };                                                              \
                                                                                                   \
		for (uint32_t t = 0; t < p->rows; t += most) {                                     \
			const float *at[most];                                                     \
                                                                                                   \
			for (uint32_t i = 0; i < most; i++)                                        \
				at[i] = x[MIN(t + i, p->rows - 1)] + p->k0;                        \
			switch (MIN(p->rows - t, (uint32_t)most)) {                                \
				__VA_ARGS__                                                        \
			}                                                                          \
		}                                                                                  \
	}

#define PRODUCT_TILE_6(nv)                                                                         \
	PRODUCT_TILE(1, nv)                                                                        \
	PRODUCT_TILE(2, nv)                                                                        \
	PRODUCT_TILE(3, nv) PRODUCT_TILE(4, nv) PRODUCT_TILE(5, nv) PRODUCT_TILE(6, nv)
#define PRODUCT_TILE_12(nv)                                                                        \
	PRODUCT_TILE_6(nv)                                                                         \
	PRODUCT_TILE(7, nv)                                                                        \
	PRODUCT_TILE(8, nv)                                                                        \
	PRODUCT_TILE(9, nv) PRODUCT_TILE(10, nv) PRODUCT_TILE(11, nv) PRODUCT_TILE(12, nv)

#if VEC_WIDE
PRODUCT_TILES(1, VEC_MR_NARROW, PRODUCT_TILE_12(1))
PRODUCT_TILES(2, VEC_MR_NARROW, PRODUCT_TILE_12(2))
PRODUCT_TILES(4, VEC_MR, PRODUCT_TILE_6(4))
#else
PRODUCT_TILES(1, VEC_MR_NARROW, PRODUCT_TILE_6(1))
#endif

/* Groups of the next panel: as many as a tile takes, fewer at the end. */
static uint32_t product_width(uint32_t left)
{
	return VEC_NV >= 4 && left >= 4 ? 4 : VEC_NV >= 2 && left >= 2 ? 2 : 1;
}

static void product_tiles(const struct product_panel *p, const float *const *x)
{
#if VEC_WIDE
	if (p->nv == 4) {
		product_tiles_4(p, x);
		return;
	}
	if (p->nv == 2) {
		product_tiles_2(p, x);
		return;
	}
#endif
	product_tiles_1(p, x);
}

void KERN_FN(product)(const struct kern_weight *w, uint32_t group, uint32_t groups, uint32_t rows,
	const float *const *x, float *y, size_t ldy, float *panel)
{
	struct product_panel p = {.rows = rows,
		.w = panel,
		.sums = panel + KERN_PANEL_BYTES / sizeof(float),
		.ldy = ldy};

	if (rows <= VEC_MR) {
		product_few(w, group, groups, rows, x, y, ldy);
		return;
	}
	for (uint32_t g = 0; g < groups; g += p.nv) {
		p.nv = product_width(groups - g);
		p.n = MIN(p.nv * KERN_GROUP, w->n - (group + g) * KERN_GROUP);
		p.y = y + g * KERN_GROUP;
		for (p.k0 = 0; p.k0 < w->k; p.k0 += p.kn) {
			uint32_t next = g + p.nv;

			p.kn = MIN(w->k - p.k0, (uint32_t)KERN_PANEL_K);
			p.last = p.k0 + p.kn == w->k;
			p.ahead_n = 0;
			if (!p.last)
				product_look_ahead(&p, w, group + g, p.nv, p.k0 + p.kn);
			else if (next < groups)
				product_look_ahead(
					&p, w, group + next, product_width(groups - next), 0);
			product_panel(w, group + g, p.nv, p.k0, p.kn, panel);
			product_tiles(&p, x);
		}
	}
}
