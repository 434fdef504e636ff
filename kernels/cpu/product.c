/*
 * The vector core of all products: rows of activations times groups of 16 outputs, every output
 * one chain of fused multiply-adds over ascending k, whatever the tile.
 *
 *   few rows    weights are widened in registers and used at once, like a GEMV; where all numbers
 *               keep away from the ends of f32's range, codes are used bare, and what a block's
 *               scale would have done to each of them is done to the sums (product_bare())
 *   many rows   a panel of KERN_PANEL_K columns x up to VEC_NV groups is widened once into the L1
 *               cache and used for every row, more of them at a time where it is narrow; partial
 *               sums wait in scratch between panels; f32 weights are a panel as they lie
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
	const uint8_t *p = w->data;

	return p + ((size_t)group * w->k + k) * kern_product_column(dtype);
}

/* Columns that are widened together, where so many are left. */
VEC_INLINE int product_step(enum kern_dtype dtype)
{
	return dtype == KERN_FP8 ? VEC_E4M3_STEP : dtype == KERN_FP4 ? 2 : 1;
}

/* One step of columns; with bare, codes without their scale. */
VEC_INLINE void product_widen_step(
	enum kern_dtype dtype, const bool bare, const uint8_t *p, v16 scale, v16 c[VEC_E4M3_STEP])
{
	if (dtype == KERN_FP4) {
		struct v16_pair x = v16_e2m1(p);

		c[0] = x.lo;
		c[1] = x.hi;
	} else {
		v16_e4m3_step(p, c);
	}
	for (int s = 0; !bare && s < product_step(dtype); s++)
		c[s] = v16_mul(c[s], scale);
}

/* One column of a group; not for FP4, whose columns are even in number. */
VEC_INLINE v16 product_widen(enum kern_dtype dtype, const bool bare, const uint8_t *p, v16 scale)
{
	switch (dtype) {
	case KERN_F32:
		return v16_load((const float *)p);
	case KERN_F16:
		return v16_f16((const uint16_t *)p);
	case KERN_BF16:
		return v16_bf16((const uint16_t *)p);
	default:
		return bare ? v16_e4m3(p) : v16_mul(v16_e4m3(p), scale);
	}
}

/* A tile's stretches are this short together: the hardware does not see them coming. */
enum { PRODUCT_SHORT_BYTES = 32768 };

/* acc[mr][nv] += the step of columns from j on; moves p on. */
VEC_INLINE void product_step_columns(enum kern_dtype dtype, const bool bare, const int mr,
	const int nv, uint32_t j, const v16 scale[VEC_NV1], const float *const *x,
	const uint8_t *p[VEC_NV1], v16 acc[VEC_MR][VEC_NV1])
{
#pragma GCC unroll 8
	for (int v = 0; v < nv; v++) {
		v16 c[VEC_E4M3_STEP];

		product_widen_step(dtype, bare, p[v], scale[v], c);
		p[v] += product_step(dtype) * kern_product_column(dtype);
#pragma GCC unroll 8
		for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
			for (int s = 0; s < product_step(dtype); s++)
				acc[i][v] = v16_fma(v16_set1(x[i][j + s]), c[s], acc[i][v]);
	}
}

/* What to ask for while a tile is worked on: so many bytes on for each line of its groups. */
struct product_ahead {
	const uint8_t *at;
	size_t step;
};

/* acc[mr][nv] += columns k .. k+run-1 of one scale block; moves p and ahead on. */
VEC_INLINE void product_columns(enum kern_dtype dtype, const bool bare, const int mr, const int nv,
	uint32_t k, uint32_t run, const v16 scale[VEC_NV1], const float *const *x,
	struct product_ahead *ahead, const uint8_t *p[VEC_NV1], v16 acc[VEC_MR][VEC_NV1])
{
	const int line = 64 / (int)kern_product_column(dtype), step = product_step(dtype);
	uint32_t j = k;

	if (step > 1) {
		for (; j + line <= k + run; j += line, ahead->at += ahead->step)
#pragma GCC unroll 4
			for (int at = 0; at < line; at += step) {
				/* in the time of a line nv lines are asked for, spread over its
				 * steps */
#pragma GCC unroll 8
				for (int v = 0; v < nv; v++)
					if (v * line / nv / step * step == at)
						_mm_prefetch(ahead->at + 64 * v, _MM_HINT_T0);
				product_step_columns(dtype, bare, mr, nv, j + at, scale, x, p, acc);
			}
		for (; j + step <= k + run; j += step)
			product_step_columns(dtype, bare, mr, nv, j, scale, x, p, acc);
	}
	if (dtype == KERN_FP4)
		return;
	for (; j < k + run; j++)
#pragma GCC unroll 8
		for (int v = 0; v < nv; v++) {
			v16 c = product_widen(dtype, bare, p[v], scale[v]);

			p[v] += kern_product_column(dtype);
#pragma GCC unroll 8
			for (int i = 0; i < mr; i++)
				acc[i][v] = v16_fma(v16_set1(x[i][j]), c, acc[i][v]);
		}
}

/*
 * mr rows x nv groups of the `left` to come from compressed weights, all of k. dtype, bare, mr, nv
 * are constants. bare (product_bare() says when): sums are kept in units of the scale of the block
 * at hand.
 */
VEC_INLINE void product_direct(enum kern_dtype dtype, const bool bare, const int mr, const int nv,
	const struct kern_weight *w, uint32_t group, uint32_t left, const float *const *x, float *y,
	size_t ldy, const uint8_t *next)
{
	v16 acc[VEC_MR][VEC_NV1], scale[VEC_NV1];
	const uint8_t *p[VEC_NV1];
	struct product_ahead ahead = {product_at(dtype, w, group, 0), 0};

	/* the next tile, or what is read after this product */
	if (left > (uint32_t)nv)
		next = product_at(dtype, w, group + nv, 0);
	if (next && kern_product_column(dtype) * w->k * nv <= PRODUCT_SHORT_BYTES)
		ahead = (struct product_ahead){next, (size_t)64 * nv};

#pragma GCC unroll 8
	for (int i = 0; i < mr; i++)
#pragma GCC unroll 8
		for (int v = 0; v < nv; v++)
			acc[i][v] = v16_set1(0);
#pragma GCC unroll 8
	for (int v = 0; v < nv; v++) {
		p[v] = product_at(dtype, w, group + v, 0);
		scale[v] = v16_set1(1.0f);
	}
	for (uint32_t k = 0, run; k < w->k; k += run) {
		run = product_run(w, k, w->k);
#pragma GCC unroll 8
		for (int v = 0; v < nv; v++) {
			v16 unit = product_scale(w, group + v, k);

			if (bare && k) {
				v16 ratio = v16_pow2_ratio(scale[v], unit);

#pragma GCC unroll 8
				for (int i = 0; i < mr; i++)
					acc[i][v] = v16_mul(acc[i][v], ratio);
			}
			scale[v] = unit;
		}
		product_columns(dtype, bare, mr, nv, k, run, scale, x, &ahead, p, acc);
	}
#pragma GCC unroll 8
	for (int i = 0; i < mr; i++)
#pragma GCC unroll 8
		for (int v = 0; v < nv; v++) {
			uint32_t rest = w->n - (group + v) * KERN_GROUP;

			if (bare)
				acc[i][v] = v16_mul(acc[i][v], scale[v]);
			v16_store_n(y + i * ldy + v * KERN_GROUP, acc[i][v],
				MIN(rest, (uint32_t)KERN_GROUP));
		}
}

/* Binary exponents of magnitudes that are not 0; an infinity or a NaN counts as 128. */
struct product_range {
	int min, max;
};

/* Of all activations. */
static struct product_range product_range_of_x(uint32_t rows, uint32_t k, const float *const *x)
{
	/* of the bits; one less than the least, because 0 - 1 is the greatest and drops out */
	uint32_t below = UINT32_MAX, most = 0;

	for (uint32_t i = 0; i < rows; i++)
		for (uint32_t j = 0; j < k; j++) {
			uint32_t u = kern_bits(x[i][j]) & 0x7fffffff;

			most = MAX(most, u);
			below = MIN(below, u - 1);
		}
	if (!most)
		return (struct product_range){0, 0};
	return (struct product_range){(int)((below + 1) >> 23) - 127, (int)(most >> 23) - 127};
}

/* Of the scales of some groups, powers of two; outputs that are not there have none. */
static struct product_range product_range_of_scales(
	const struct kern_weight *w, uint32_t group, uint32_t groups)
{
	size_t at = (size_t)group * w->nblk * KERN_GROUP;
	size_t n = (size_t)groups * w->nblk * KERN_GROUP, tail = 0;
	uint32_t lanes = w->n % KERN_GROUP, least = UINT32_MAX, most = 0;
	const float *f32 = (const float *)w->scale + at;
	const uint8_t *e8m0 = (const uint8_t *)w->scale + at;
	uint8_t least8 = UINT8_MAX, most8 = 0;

	if (lanes && (group + groups) * KERN_GROUP > w->n)
		tail = (size_t)w->nblk * KERN_GROUP;
	if (w->dtype == KERN_FP8) {
		for (size_t i = 0; i < n - tail; i++) {
			least = MIN(least, kern_bits(f32[i]));
			most = MAX(most, kern_bits(f32[i]));
		}
	} else {
		for (size_t i = 0; i < n - tail; i++) {
			least8 = MIN(least8, e8m0[i]);
			most8 = MAX(most8, e8m0[i]);
		}
		least = (uint32_t)least8 << 23;
		most = (uint32_t)most8 << 23;
	}
	for (size_t i = n - tail; i < n; i++)
		if (i % KERN_GROUP < lanes) {
			uint32_t u =
				w->dtype == KERN_FP8 ? kern_bits(f32[i]) : (uint32_t)e8m0[i] << 23;

			least = MIN(least, u);
			most = MAX(most, u);
		}
	return (struct product_range){(int)(least >> 23) - 127, (int)(most >> 23) - 127};
}

/*
 * May these sums be kept in units of the block's scale instead of scaling every weight? With scales
 * that are powers of two, fma(x, c s, sum) = s fma(x, c, sum / s), and going over to the next block
 * is exact, too, wherever a number of unbounded exponent would be rounded to the one we have:
 *
 *   below   every sum is a multiple of q = ulp(least x) * (the codes' unit) * (least scale),
 * rounded or not. If q is no less than 2^-149, in units of 1 and of the greatest scale, nothing is
 * rounded for being small. above   |sum| < 2 k (greatest x) (greatest code) (greatest scale) has to
 * fit, in units of 1 and of the least scale. Infinities and NaNs fail here.
 */
static bool product_bare(const struct kern_weight *w, uint32_t group, uint32_t groups,
	uint32_t rows, const float *const *x)
{
	/* codes: multiples of 2^-9 below 2^9, and of 2^-1 below 2^3; in registers, 2^-unit of it */
	int code_min = w->dtype == KERN_FP8 ? -9 : -1, code_max = w->dtype == KERN_FP8 ? 9 : 3;
	int unit = w->dtype == KERN_FP8 ? 8 : 0, terms = 32 - __builtin_clz(w->k), least, most;
	struct product_range s, r;

	if (w->scale_kind != KERN_SCALE_E8M0)
		return false;
	s = product_range_of_scales(w, group, groups);
	r = product_range_of_x(rows, w->k, x);
	least = r.min - 23 + code_min + s.min;
	most = r.max + 1 + terms + code_max + s.max + 1;
	return s.min >= -126 && s.max - s.min <= 126 && least >= -149 &&
	       least - (s.max + unit) >= -149 && most <= 127 && most - (s.min + unit) <= 127;
}

/* Few rows: picks the constants. */
#define PRODUCT_ROWS(dtype, bare, nv)                                                              \
	switch (rows) {                                                                            \
	case 1:                                                                                    \
		product_direct(dtype, bare, 1, nv, w, group, left, x, y, ldy, next);               \
		break;                                                                             \
	case 2:                                                                                    \
		product_direct(dtype, bare, 2, nv, w, group, left, x, y, ldy, next);               \
		break;                                                                             \
	case 3:                                                                                    \
		product_direct(dtype, bare, 3, nv, w, group, left, x, y, ldy, next);               \
		break;                                                                             \
	case 4:                                                                                    \
		product_direct(dtype, bare, 4, nv, w, group, left, x, y, ldy, next);               \
		break;                                                                             \
	case 5:                                                                                    \
		product_direct(dtype, bare, 5, nv, w, group, left, x, y, ldy, next);               \
		break;                                                                             \
	default:                                                                                   \
		product_direct(dtype, bare, 6, nv, w, group, left, x, y, ldy, next);               \
	}

/* The widest tile of few rows for `left` groups; returns the groups done. */
#define PRODUCT_FEW(name, dtype, bare)                                                             \
	static uint32_t product_few_##name(const struct kern_weight *w, uint32_t group,            \
		uint32_t left, uint32_t rows, const float *const *x, float *y, size_t ldy,         \
		const uint8_t *next)                                                               \
	{                                                                                          \
		if (rows == 1 && left >= VEC_NV1) {                                                \
			product_direct(dtype, bare, 1, VEC_NV1, w, group, left, x, y, ldy, next);  \
			return VEC_NV1;                                                            \
		}                                                                                  \
		if (rows == 1 && left >= 4 && VEC_NV1 > 4) {                                       \
			product_direct(dtype, bare, 1, 4, w, group, left, x, y, ldy, next);        \
			return 4;                                                                  \
		}                                                                                  \
		if (rows == 1 && left >= 2) {                                                      \
			product_direct(dtype, bare, 1, 2, w, group, left, x, y, ldy, next);        \
			return 2;                                                                  \
		}                                                                                  \
		if (left >= VEC_NV && VEC_NV > 1) {                                                \
			PRODUCT_ROWS(dtype, bare, VEC_NV)                                          \
			return VEC_NV;                                                             \
		}                                                                                  \
		PRODUCT_ROWS(dtype, bare, 1)                                                       \
		return 1;                                                                          \
	}

PRODUCT_FEW(F32, KERN_F32, false)
PRODUCT_FEW(F16, KERN_F16, false)
PRODUCT_FEW(BF16, KERN_BF16, false)
PRODUCT_FEW(FP8, KERN_FP8, false)
PRODUCT_FEW(FP4, KERN_FP4, false)
PRODUCT_FEW(FP8_bare, KERN_FP8, true)
PRODUCT_FEW(FP4_bare, KERN_FP4, true)

typedef uint32_t product_few_fn(const struct kern_weight *w, uint32_t group, uint32_t left,
	uint32_t rows, const float *const *x, float *y, size_t ldy, const uint8_t *next);

VEC_INLINE void product_few(const struct kern_weight *w, uint32_t group, uint32_t groups,
	uint32_t rows, const float *const *x, float *y, size_t ldy, const uint8_t *next)
{
	static product_few_fn *const few[] = {product_few_F32, product_few_F16, product_few_BF16,
		product_few_FP8, product_few_FP4};
	product_few_fn *f = few[w->dtype];

	if (product_step(w->dtype) > 1 && product_bare(w, group, groups, rows, x))
		f = w->dtype == KERN_FP8 ? product_few_FP8_bare : product_few_FP4_bare;
	for (uint32_t g = 0; g < groups;)
		g += f(w, group + g, groups - g, rows, x, y + g * KERN_GROUP, ldy, next);
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
		for (const int step = product_step(dtype); step > 1 && j + step <= k + run;
			j += step, p += step * kern_product_column(dtype)) {
			v16 c[VEC_E4M3_STEP];

			product_widen_step(dtype, false, p, scale, c);
			for (int s = 0; s < step; s++)
				v16_store(panel + (j + s) * ld, c[s]);
		}
		for (; dtype != KERN_FP4 && j < k + run; j++, p += kern_product_column(dtype))
			v16_store(panel + j * ld, product_widen(dtype, false, p, scale));
	}
}

/* Widens columns k0 .. k0+kn-1 of nv groups into panel[kn][nv * 16]; not for F32, which is one. */
static void product_panel(const struct kern_weight *w, uint32_t group, uint32_t nv, uint32_t k0,
	uint32_t kn, float *panel)
{
	size_t ld = (size_t)nv * KERN_GROUP;

	for (uint32_t v = 0; v < nv; v++) {
		float *to = panel + v * KERN_GROUP;

		switch (w->dtype) {
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
	bool in_place;  /* w is of the weight itself: [nv][kn][16], groups `apart` floats apart; */
	const float *w; /* else [kn][nv * 16] */
	size_t apart;
	float *sums; /* [rows][nv * 16] between panels */
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
	p->ahead_step = kern_product_column(w->dtype);
	for (uint32_t v = 0; v < nv; v++)
		p->ahead[v] = (const char *)product_at(w->dtype, w, group + v, k0);
}

/* y[mr][n] or sums[mr][nv * 16] = (sums +) x[mr] panel; the tile-th tile of rows, from row t on. */
VEC_INLINE void product_tile_sums(const int mr, const int nv, const bool in_place,
	const struct product_panel *p, const float *const *x, uint32_t t, uint32_t tile)
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
	product_tile(mr, nv, x, p->kn, p->w, in_place ? KERN_GROUP : nv * KERN_GROUP,
		in_place ? p->apart : KERN_GROUP, &next, acc);
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

#define PRODUCT_TILE(mr, nv, in_place)                                                             \
	case mr:                                                                                   \
		product_tile_sums(mr, nv, in_place, p, at, t, t / most);                           \
		break;

/* All rows times a panel, `many` of them at a time. */
#define PRODUCT_TILES(name, many, ...)                                                             \
	static void product_tiles_##name(const struct product_panel *p, const float *const *x)     \
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

#define PRODUCT_TILE_6(nv, in_place)                                                               \
	PRODUCT_TILE(1, nv, in_place)                                                              \
	PRODUCT_TILE(2, nv, in_place)                                                              \
	PRODUCT_TILE(3, nv, in_place)                                                              \
	PRODUCT_TILE(4, nv, in_place) PRODUCT_TILE(5, nv, in_place) PRODUCT_TILE(6, nv, in_place)
#if VEC_WIDE
#define PRODUCT_TILE_NARROW(nv, in_place)                                                          \
	PRODUCT_TILE_6(nv, in_place)                                                               \
	PRODUCT_TILE(7, nv, in_place)                                                              \
	PRODUCT_TILE(8, nv, in_place)                                                              \
	PRODUCT_TILE(9, nv, in_place)                                                              \
	PRODUCT_TILE(10, nv, in_place)                                                             \
	PRODUCT_TILE(11, nv, in_place)                                                             \
	PRODUCT_TILE(12, nv, in_place)
#else
#define PRODUCT_TILE_NARROW PRODUCT_TILE_6
#endif

PRODUCT_TILES(1, VEC_MR_NARROW, PRODUCT_TILE_NARROW(1, false))
PRODUCT_TILES(1_in_place, VEC_MR_NARROW, PRODUCT_TILE_NARROW(1, true))
#if VEC_WIDE
PRODUCT_TILES(2, VEC_MR_NARROW, PRODUCT_TILE_NARROW(2, false))
PRODUCT_TILES(2_in_place, VEC_MR_NARROW, PRODUCT_TILE_NARROW(2, true))
PRODUCT_TILES(4, VEC_MR, PRODUCT_TILE_6(4, false))
PRODUCT_TILES(4_in_place, VEC_MR, PRODUCT_TILE_6(4, true))
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
		(p->in_place ? product_tiles_4_in_place : product_tiles_4)(p, x);
		return;
	}
	if (p->nv == 2) {
		(p->in_place ? product_tiles_2_in_place : product_tiles_2)(p, x);
		return;
	}
#endif
	(p->in_place ? product_tiles_1_in_place : product_tiles_1)(p, x);
}

void KERN_FN(product)(const struct kern_weight *w, uint32_t group, uint32_t groups, uint32_t rows,
	const float *const *x, float *y, size_t ldy, const uint8_t *next, float *panel)
{
	struct product_panel p = {.rows = rows,
		.in_place = w->dtype == KERN_F32,
		.w = panel,
		.apart = (size_t)w->k * KERN_GROUP,
		.sums = panel + KERN_PANEL_BYTES / sizeof(float),
		.ldy = ldy};

	if (rows <= VEC_MR) {
		product_few(w, group, groups, rows, x, y, ldy, next);
		return;
	}
	for (uint32_t g = 0; g < groups; g += p.nv) {
		p.nv = product_width(groups - g);
		p.n = MIN(p.nv * KERN_GROUP, w->n - (group + g) * KERN_GROUP);
		p.y = y + g * KERN_GROUP;
		for (p.k0 = 0; p.k0 < w->k; p.k0 += p.kn) {
			uint32_t after = g + p.nv;

			p.kn = MIN(w->k - p.k0, (uint32_t)KERN_PANEL_K);
			p.last = p.k0 + p.kn == w->k;
			p.ahead_n = 0;
			if (!p.last)
				product_look_ahead(&p, w, group + g, p.nv, p.k0 + p.kn);
			else if (after < groups)
				product_look_ahead(
					&p, w, group + after, product_width(groups - after), 0);
			if (p.in_place)
				p.w = (const float *)product_at(KERN_F32, w, group + g, p.k0);
			else
				product_panel(w, group + g, p.nv, p.k0, p.kn, panel);
			product_tiles(&p, x);
		}
	}
}
