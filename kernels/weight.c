#include "kernels/weight.h"

#include <immintrin.h>
#include <stdbool.h>

static uint32_t block_of(enum kern_dtype dtype)
{
	return dtype == KERN_FP8 ? 128 : dtype == KERN_FP4 ? 32 : 0;
}

static uint32_t blocks_of(const struct kern_weight_desc *d)
{
	uint32_t block = block_of(d->dtype);

	return block ? DIV_UP(d->col0 % block + d->k, block) : 0;
}

static size_t data_bytes(const struct kern_weight_desc *d)
{
	static const uint8_t bits[] = {
#define X(name, bits, text) bits,
		KERN_DTYPES(X)
#undef X
	};
	size_t n = ALIGN_UP((size_t)d->n, KERN_GROUP);

	return ALIGN_UP(n * d->k * bits[d->dtype] / 8, (size_t)64);
}

static size_t scale_bytes(const struct kern_weight_desc *d)
{
	size_t n = ALIGN_UP((size_t)d->n, KERN_GROUP) * blocks_of(d);

	return ALIGN_UP(d->dtype == KERN_FP8 ? n * sizeof(float) : n, (size_t)64);
}

/* What packing moves as one: an element, or the two of a byte. */
static size_t unit_bytes(enum kern_dtype dtype)
{
	return dtype == KERN_F32 ? 4 : dtype == KERN_F16 || dtype == KERN_BF16 ? 2 : 1;
}

static size_t unit_count(const struct kern_weight *w)
{
	return w->dtype == KERN_FP4 ? w->k / 2 : w->k;
}

size_t kern_weight_bytes(const struct kern_weight_desc *d)
{
	return data_bytes(d) + scale_bytes(d);
}

/* The last group where rows are missing, and what alignment adds: no row will be packed there. */
static void zero_padding(struct kern_weight *w, const struct kern_weight_desc *d)
{
	size_t full = d->n / KERN_GROUP * KERN_GROUP;
	size_t at = full * unit_count(w) * unit_bytes(w->dtype);
	size_t scale = full * w->nblk * (d->dtype == KERN_FP8 ? sizeof(float) : 1);

	memset((char *)w->data + at, 0, data_bytes(d) - at);
	if (w->scale)
		memset((char *)w->scale + scale, 0, scale_bytes(d) - scale);
}

int kern_weight_init(
	struct kern_weight *w, const struct kern_weight_desc *d, void *storage, struct errbuf *err)
{
	bool scaled = d->scale != KERN_SCALE_NONE;

	if ((unsigned)d->dtype >= KERN_DTYPE__COUNT || !d->n || !d->k)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"weight of %u x %u, type %d: not a shape or type", d->n, d->k, d->dtype);
	if (scaled != (block_of(d->dtype) != 0) ||
		(d->dtype == KERN_FP4 && d->scale != KERN_SCALE_E8M0))
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"scale kind %d does not go with weight type %d", d->scale, d->dtype);
	if (d->dtype == KERN_FP4 && (d->k % 2 || d->col0 % 2))
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"fp4 columns %u..+%u cut a byte in two; both must be even", d->col0, d->k);
	*w = (struct kern_weight){
		.dtype = d->dtype,
		.n = d->n,
		.k = d->k,
		.row0 = d->row0,
		.col0 = d->col0,
		.nblk = blocks_of(d),
		.block = block_of(d->dtype),
		.scale_kind = d->scale,
		.data = storage,
		.scale = scaled ? (char *)storage + data_bytes(d) : NULL,
	};
	zero_padding(w, d);
	return 0;
}

/* Copies one row into its lane of the group, from a unit on. */
static void pack_lane(struct kern_weight *w, uint32_t n, size_t from, const uint8_t *raw)
{
	size_t units = unit_count(w), bytes = unit_bytes(w->dtype), lane = n % KERN_GROUP;
	uint8_t *to = (uint8_t *)w->data + (size_t)(n / KERN_GROUP) * units * KERN_GROUP * bytes;

	for (size_t u = from; u < units; u++)
		memcpy(to + (u * KERN_GROUP + lane) * bytes, raw + u * bytes, bytes);
}

/* The first NaN code of an FP8 row, or -1. */
static int64_t nan_of_row(const struct kern_weight *w, const uint8_t *raw)
{
	for (uint32_t k = 0; w->dtype == KERN_FP8 && k < w->k; k++)
		if ((raw[k] & 0x7f) == 0x7f)
			return k;
	return -1;
}

/*
 * TURN(n, bits) transposes n x n units of `bits` bits, in n registers: interleaving the first half
 * of the registers with the second rotates the bits of an element's index by one, and log2(n) such
 * rotations swap its row and column.
 */
#define TURN(n, bits)                                                                              \
	static inline void turn_##bits(__m128i r[n])                                               \
	{                                                                                          \
		_Pragma("GCC unroll 4") for (int stage = 1; stage < (n); stage *= 2)               \
		{                                                                                  \
			__m128i t[n];                                                              \
                                                                                                   \
			_Pragma("GCC unroll 8") for (int i = 0; i < (n) / 2; i++)                  \
			{                                                                          \
				t[2 * i] = _mm_unpacklo_epi##bits(r[i], r[i + (n) / 2]);           \
				t[2 * i + 1] = _mm_unpackhi_epi##bits(r[i], r[i + (n) / 2]);       \
			}                                                                          \
			memcpy(r, t, sizeof(t));                                                   \
		}                                                                                  \
	}
TURN(16, 8)
TURN(8, 16)
TURN(4, 32)

enum { LINE = 64 };

/*
 * LANES(n, bits): a line of 16 rows into 16 lanes, in squares of n x n.
 */
#define LANES(n, bits)                                                                             \
	static void lanes_##bits(uint8_t rows[KERN_GROUP][LINE], size_t width, uint8_t *to)        \
	{                                                                                          \
		for (size_t at = 0; at < width; at += 16) {                                        \
			for (size_t row = 0; row < KERN_GROUP; row += (n)) {                       \
				__m128i r[n];                                                      \
                                                                                                   \
				_Pragma("GCC unroll 16") for (size_t i = 0; i < (n); i++) r[i] =   \
					_mm_load_si128((const __m128i *)(rows[row + i] + at));     \
				turn_##bits(r);                                                    \
				_Pragma("GCC unroll 16") for (size_t i = 0; i < (n); i++)          \
					_mm_store_si128(                                           \
						(__m128i *)(to + at * KERN_GROUP +                 \
							    (i * KERN_GROUP + row) * (bits) / 8),  \
						r[i]);                                             \
			}                                                                          \
		}                                                                                  \
	}
LANES(16, 8)
LANES(8, 16)
LANES(4, 32)

/* The first width bytes of 16 rows, a multiple of a register. */
static void turn_line(uint8_t rows[KERN_GROUP][LINE], size_t width, size_t bytes, uint8_t *to)
{
	if (bytes == 1)
		lanes_8(rows, width, to);
	else if (bytes == 2)
		lanes_16(rows, width, to);
	else
		lanes_32(rows, width, to);
}

/* Are all bytes of the tile fit, where x - most above 0 (saturating) tells one that is not? */
static bool tile_has_above(uint8_t rows[KERN_GROUP][LINE], uint8_t mask, uint8_t most)
{
	__m128i m = _mm_set1_epi8((char)mask), top = _mm_set1_epi8((char)most);
	__m128i bad = _mm_setzero_si128();

	for (size_t i = 0; i < KERN_GROUP * LINE; i += 16) {
		__m128i x = _mm_load_si128((const __m128i *)(rows[0] + i));

		bad = _mm_or_si128(bad, _mm_subs_epu8(_mm_and_si128(x, m), top));
	}
	return _mm_movemask_epi8(_mm_cmpeq_epi8(bad, _mm_setzero_si128())) != 0xffff;
}

/*
 * LINES(bits): as turn_line(), the lines in registers of their own size: unpacking turns the
 * squares of all quarters at once, four times whatever the unit, and the quarters are then brought
 * together by column. The next group is fetched meanwhile, for 16 rows in turn are more than a core
 * foresees, and so is what the next line is written to. Returns false, and stores nothing, where
 * tile_has_above() would say so.
 */
#define LINES(bits)                                                                                \
	__attribute__((target("avx512f,avx512bw,prfchw"))) static bool turn_line_avx512_##bits(    \
		const uint8_t *raw, size_t stride, size_t width, uint8_t mask, uint8_t most,       \
		uint8_t *to)                                                                       \
	{                                                                                          \
		__m512i r[KERN_GROUP], t[KERN_GROUP], bad = _mm512_setzero_si512();                \
		__m512i m = _mm512_set1_epi8((char)mask), top = _mm512_set1_epi8((char)most);      \
		__mmask64 there = ~(__mmask64)0 >> (LINE - width);                                 \
                                                                                                   \
		_Pragma("GCC unroll 16") for (int i = 0; i < KERN_GROUP; i++)                      \
		{                                                                                  \
			_mm_prefetch(raw + (size_t)(i + KERN_GROUP) * stride, _MM_HINT_T0);        \
			__builtin_prefetch(to + (size_t)(i + KERN_GROUP) * LINE, 1);               \
			r[i] = _mm512_maskz_loadu_epi8(there, raw + (size_t)i * stride);           \
			bad = _mm512_or_si512(                                                     \
				bad, _mm512_subs_epu8(_mm512_and_si512(r[i], m), top));            \
		}                                                                                  \
		if (_mm512_test_epi8_mask(bad, bad))                                               \
			return false;                                                              \
		_Pragma("GCC unroll 4") for (int stage = 0; stage < 4; stage++)                    \
		{                                                                                  \
			_Pragma("GCC unroll 8") for (int i = 0; i < 8; i++)                        \
			{                                                                          \
				t[2 * i] = _mm512_unpacklo_epi##bits(r[i], r[i + 8]);              \
				t[2 * i + 1] = _mm512_unpackhi_epi##bits(r[i], r[i + 8]);          \
			}                                                                          \
			memcpy(r, t, sizeof(r));                                                   \
		}                                                                                  \
		_Pragma("GCC unroll 4") for (size_t i = 0; i < 4; i++)                             \
			store_quarters(r + 4 * i, width, to + i * LINE);                           \
		return true;                                                                       \
	}

/* Lanes 0 of four registers are a line, lanes 1 one that lies four lines behind, and so on. */
__attribute__((target("avx512f,avx512bw"), always_inline)) static inline void store_quarters(
	const __m512i r[4], size_t width, uint8_t *at)
{
	__m512i lo0 = _mm512_shuffle_i32x4(r[0], r[1], 0x44);
	__m512i hi0 = _mm512_shuffle_i32x4(r[0], r[1], 0xee);
	__m512i lo1 = _mm512_shuffle_i32x4(r[2], r[3], 0x44);
	__m512i hi1 = _mm512_shuffle_i32x4(r[2], r[3], 0xee);

	_mm512_storeu_si512(at, _mm512_shuffle_i32x4(lo0, lo1, 0x88));
	if (width > 16)
		_mm512_storeu_si512(at + 4 * LINE, _mm512_shuffle_i32x4(lo0, lo1, 0xdd));
	if (width > 32)
		_mm512_storeu_si512(at + 8 * LINE, _mm512_shuffle_i32x4(hi0, hi1, 0x88));
	if (width > 48)
		_mm512_storeu_si512(at + 12 * LINE, _mm512_shuffle_i32x4(hi0, hi1, 0xdd));
}
LINES(8)
LINES(16)
LINES(32)

/* The first `end` bytes of 16 rows, as turn_group(). */
static size_t turn_group_avx512(const uint8_t *raw, size_t stride, size_t end, size_t bytes,
	uint8_t mask, uint8_t most, uint8_t *to)
{
	bool (*turn)(const uint8_t *, size_t, size_t, uint8_t, uint8_t, uint8_t *) =
		bytes == 1   ? turn_line_avx512_8
		: bytes == 2 ? turn_line_avx512_16
			     : turn_line_avx512_32;

	for (size_t at = 0; at < end; at += LINE)
		if (!turn(raw + at, stride, MIN(end - at, (size_t)LINE), mask, most,
			    to + at * KERN_GROUP))
			return at;
	return end;
}

static size_t turn_group_plain(const uint8_t *raw, size_t stride, size_t end, size_t bytes,
	uint8_t mask, uint8_t most, uint8_t *to)
{
	_Alignas(LINE) uint8_t rows[KERN_GROUP][LINE] = {0};
	size_t width;

	for (size_t at = 0; at < end; at += width) {
		width = MIN(end - at, (size_t)LINE);
		for (size_t i = 0; i < KERN_GROUP; i++) {
			_mm_prefetch(raw + (i + KERN_GROUP) * stride + at, _MM_HINT_T0);
			if (width == LINE)
				memcpy(rows[i], raw + i * stride + at, LINE);
			else
				memcpy(rows[i], raw + i * stride + at, width);
		}
		/* what a shorter line leaves of the one before has been found good */
		if (most != 255 && tile_has_above(rows, mask, most))
			return at;
		turn_line(rows, width, bytes, to + at * KERN_GROUP);
	}
	return end;
}

/*
 * Interleaves 16 rows of `units` units into *to and returns how many it did: those in whole
 * registers. Rows are often a power of two apart and then share the sets of the first cache, so
 * that a line is taken whole when it is there. Stops in front of a line with a byte whose bits
 * under mask exceed most (255: none does).
 */
static size_t turn_group(const uint8_t *raw, size_t stride, size_t units, size_t bytes,
	uint8_t mask, uint8_t most, uint8_t *to)
{
	size_t end = units * bytes / 16 * 16;

	if (__builtin_cpu_supports("avx512bw"))
		return turn_group_avx512(raw, stride, end, bytes, mask, most, to) / bytes;
	return turn_group_plain(raw, stride, end, bytes, mask, most, to) / bytes;
}

/* The scales of one row from a block on; returns the block whose scale is bad, or -1. */
static int64_t pack_scales(struct kern_weight *w, uint32_t n, uint32_t from, const uint8_t *raw)
{
	size_t group = (size_t)(n / KERN_GROUP) * w->nblk, lane = n % KERN_GROUP;

	for (uint32_t b = from; b < w->nblk; b++) {
		size_t at = (group + b) * KERN_GROUP + lane;
		float s;

		if (w->scale_kind == KERN_SCALE_E8M0)
			s = raw[b] == 255 ? NAN : kern_from_e8m0(raw[b]);
		else
			memcpy(&s, raw + 4 * (size_t)b, sizeof(s));
		/* the largest code times the scale must be finite */
		if (!(s > 0 && s <= (w->dtype == KERN_FP8 ? 0x1p119f : 0x1p125f)))
			return b;
		if (w->dtype == KERN_FP8)
			((float *)w->scale)[at] = s;
		else
			((uint8_t *)w->scale)[at] = raw[b];
	}
	return -1;
}

/* Rows to pack, and where their scales lie. */
struct raw_rows {
	uint32_t first;
	const uint8_t *data, *scales;
	size_t stride, scale_stride; /* bytes */
};

static const uint8_t *scales_of(const struct kern_weight *w, const struct raw_rows *raw, uint32_t n)
{
	uint32_t unit = w->dtype == KERN_FP8 ? 128 : 1; /* rows of a scale block */
	uint32_t blocks = (w->row0 + n) / unit - (w->row0 + raw->first) / unit;

	return raw->scales + blocks * raw->scale_stride;
}

/*
 * Rows n .. n + rows of one group: the first `units` units and `blocks` blocks of scales are there
 * already. Says which row and column is bad.
 */
static int pack_rest(struct kern_weight *w, const struct raw_rows *raw, uint32_t n, uint32_t rows,
	size_t units, uint32_t blocks, struct errbuf *err)
{
	for (; rows--; n++) {
		const uint8_t *data = raw->data + (n - raw->first) * raw->stride;
		int64_t at = -1;

		if (units < unit_count(w)) {
			at = nan_of_row(w, data);
			pack_lane(w, n, units, data);
		}
		if (at >= 0)
			return err_set(err, -EBADMSG, EXIT_DATA_ERR, "fp8 NaN at row %u, column %u",
				w->row0 + n, w->col0 + (uint32_t)at);
		if (blocks < w->nblk)
			at = pack_scales(w, n, blocks, scales_of(w, raw, n));
		if (at >= 0)
			return err_set(err, -EBADMSG, EXIT_DATA_ERR,
				"scale of row %u, block %u is NaN, too large or not positive",
				w->row0 + n, w->col0 / w->block + (uint32_t)at);
	}
	return 0;
}

/* A whole group of 16 rows. */
static int pack_group(
	struct kern_weight *w, const struct raw_rows *raw, uint32_t n, struct errbuf *err)
{
	size_t bytes = unit_bytes(w->dtype), units = unit_count(w), done, group = n / KERN_GROUP;
	uint32_t blocks = 0;

	done = turn_group(raw->data + (n - raw->first) * raw->stride, raw->stride, units, bytes,
		0x7f, w->dtype == KERN_FP8 ? 0x7e : 255,
		(uint8_t *)w->data + group * units * KERN_GROUP * bytes);
	/* 2^125, the greatest scale of FP4, is byte 252 */
	if (w->dtype == KERN_FP4)
		blocks = (uint32_t)turn_group(scales_of(w, raw, n), raw->scale_stride, w->nblk, 1,
			255, 252, (uint8_t *)w->scale + group * w->nblk * KERN_GROUP);
	return pack_rest(w, raw, n, KERN_GROUP, done, blocks, err);
}

int kern_weight_pack(struct kern_weight *w, uint32_t first, uint32_t rows, const void *raw,
	size_t raw_stride, const void *scales, size_t scale_stride, struct errbuf *err)
{
	size_t elem = w->scale_kind == KERN_SCALE_F32 ? sizeof(float) : 1;
	struct raw_rows all = {first, raw, scales, raw_stride, scale_stride * elem};
	int ret = 0;

	for (uint32_t n = first, end = first + rows, step; n < end && ret == 0; n += step) {
		step = MIN(KERN_GROUP - n % KERN_GROUP, end - n);
		if (step == KERN_GROUP)
			ret = pack_group(w, &all, n, err);
		else
			ret = pack_rest(w, &all, n, step, 0, 0, err);
	}
	return ret;
}

size_t kern_e8m0_check(const uint8_t *scale, size_t n, size_t *ret_first)
{
	size_t bad = 0;

	for (size_t i = 0; i < n; i++)
		if (scale[i] == 255 && !bad++)
			*ret_first = i;
	return bad;
}

float kern_weight_get(const struct kern_weight *w, uint32_t n, uint32_t k)
{
	size_t group = n / KERN_GROUP, lane = n % KERN_GROUP;
	size_t at = (group * w->k + k) * KERN_GROUP + lane, sat;
	uint8_t byte;

	switch (w->dtype) {
	case KERN_F32:
		return ((const float *)w->data)[at];
	case KERN_F16:
		return kern_from_f16(((const uint16_t *)w->data)[at]);
	case KERN_BF16:
		return kern_from_bf16(((const uint16_t *)w->data)[at]);
	default:
		break;
	}
	sat = (group * w->nblk + kern_weight_block(w, k)) * KERN_GROUP + lane;
	if (w->dtype == KERN_FP8)
		return kern_from_e4m3(((const uint8_t *)w->data)[at]) *
		       ((const float *)w->scale)[sat];
	byte = ((const uint8_t *)w->data)[((group * w->k + k) / 2) * KERN_GROUP + lane];
	return kern_from_e2m1(k % 2 ? byte >> 4 : byte & 15) *
	       kern_from_e8m0(((const uint8_t *)w->scale)[sat]);
}
