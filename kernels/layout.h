/*
 * Where things lie in pages, and how they are encoded. Writers and readers of every variant and
 * of the tests' live caches go through these functions; nothing else knows a layout.
 *
 *   attention rows, one after another in a page of 64
 *     F32   512 f32
 *     BF16  512 bf16
 *     FP8   448 e4m3 | 64 bf16 | 7 E8M0 scales of groups of 64 | 1 byte 0      = 584 bytes
 *   index keys, a page of 64 in 4 blocks of 16, dims outermost in a block: one load gives a dim of
 *   16 keys, one in each lane of the vector that will hold their scores
 *     F32   [4][128][16] f32
 *     BF16  [4][64][16][2] bf16, two dims side by side
 *     FP8   [4][128][16] e4m3, then [64] f32 scales
 *     FP4   [4][64][16] bytes (two e2m1, the even dim low), then [4][4][16] E8M0 scales of groups
 *           of 32 dims
 */
#ifndef KERNELS_LAYOUT_H
#define KERNELS_LAYOUT_H

#include "kernels/cpu/math.h"
#include "kernels/kern.h"

enum { KERN_KV_FP8_ROW = 584, KERN_KV_FP8_ROPE = 448, KERN_KV_FP8_SCALE = 576 };

static inline size_t kern_kv_row_bytes(enum kern_dtype format)
{
	switch (format) {
	case KERN_F32:
		return KERN_HEAD * sizeof(float);
	case KERN_BF16:
		return KERN_HEAD * sizeof(uint16_t);
	case KERN_FP8:
		return KERN_KV_FP8_ROW;
	default:
		return 0;
	}
}

/* Bytes of a key's values and of its scales in an index page. */
static inline size_t kern_index_value_bytes(enum kern_dtype format)
{
	switch (format) {
	case KERN_F32:
		return KERN_INDEX * sizeof(float);
	case KERN_BF16:
		return KERN_INDEX * sizeof(uint16_t);
	case KERN_FP8:
		return KERN_INDEX;
	case KERN_FP4:
		return KERN_INDEX / 2;
	default:
		return 0;
	}
}

static inline size_t kern_index_scale_bytes(enum kern_dtype format)
{
	return format == KERN_FP8 || format == KERN_FP4 ? 4 : 0;
}

enum { KERN_INDEX_BLOCK = 16 }; /* keys whose dims lie side by side */

/* Bytes of a key's values that lie together: an f32, two bf16, an e4m3, two e2m1; and of its
 * scales: an f32, an E8M0. The next ones follow after those of the other keys of the block. */
static inline size_t kern_index_value_unit(enum kern_dtype format)
{
	return format == KERN_F32 || format == KERN_BF16 ? 4 : 1;
}

static inline size_t kern_index_scale_unit(enum kern_dtype format)
{
	return format == KERN_FP8 ? 4 : 1;
}

/* One index key in its page: its first units. */
struct kern_index_at {
	uint8_t *value, *scale; /* scale: NULL when the format has none */
};

static inline struct kern_index_at kern_index_at(void *page, enum kern_dtype format, uint32_t slot)
{
	size_t v = kern_index_value_bytes(format), s = kern_index_scale_bytes(format);
	uint32_t lane = slot % KERN_INDEX_BLOCK, first = slot - lane;
	uint8_t *p = page;

	return (struct kern_index_at){p + first * v + lane * kern_index_value_unit(format),
		s ? p + KERN_PAGE * v + first * s + lane * kern_index_scale_unit(format) : NULL};
}

/* n units, a and b bytes from one to the next. */
static inline void kern_copy_units(
	uint8_t *to, size_t a, const uint8_t *from, size_t b, size_t unit, size_t n)
{
	if (unit == 4)
		for (size_t i = 0; i < n; i++)
			memcpy(to + i * a, from + i * b, 4);
	else
		for (size_t i = 0; i < n; i++)
			to[i * a] = from[i * b];
}

/*
 * A key's values and scales out of its page, and into it, each as one run of bytes in the order of
 * dims: kern_index_value_bytes() and kern_index_scale_bytes() of them. What a state holds.
 */
static inline void kern_index_read(
	enum kern_dtype format, struct kern_index_at at, uint8_t *value, uint8_t *scale)
{
	size_t v = kern_index_value_unit(format), s = kern_index_scale_unit(format);

	kern_copy_units(
		value, v, at.value, v * KERN_INDEX_BLOCK, v, kern_index_value_bytes(format) / v);
	if (at.scale)
		kern_copy_units(scale, s, at.scale, s * KERN_INDEX_BLOCK, s,
			kern_index_scale_bytes(format) / s);
}

static inline void kern_index_write(
	enum kern_dtype format, struct kern_index_at at, const uint8_t *value, const uint8_t *scale)
{
	size_t v = kern_index_value_unit(format), s = kern_index_scale_unit(format);

	kern_copy_units(
		at.value, v * KERN_INDEX_BLOCK, value, v, v, kern_index_value_bytes(format) / v);
	if (at.scale)
		kern_copy_units(at.scale, s * KERN_INDEX_BLOCK, scale, s, s,
			kern_index_scale_bytes(format) / s);
}

static inline void *kern_kv_at(void *page, enum kern_dtype format, uint32_t slot)
{
	return (uint8_t *)page + slot * kern_kv_row_bytes(format);
}

/* The page that holds `index` of a sequence (position or entry); NULL when its table lacks it. */
static inline void *kern_page(
	const struct kern_pool *pool, const struct kern_seq *s, enum kern_class c, uint32_t index)
{
	uint32_t page = index / KERN_PAGE - (c == KERN_RAW ? s->raw_first : 0);

	if (page >= s->page_n[c])
		return NULL;
	return (char *)pool->base + s->pages[c][page] * pool->stride;
}

/* ---- encoders and decoders ---- */

/* n values, n a multiple of the group; codes and one scale byte a group. */
static inline void kern_encode_e4m3(const float *x, uint32_t n, float scale, uint8_t *code)
{
	for (uint32_t i = 0; i < n; i++)
		code[i] = kern_to_e4m3(x[i] / scale);
}

static inline void kern_put_f32(uint8_t *p, float f)
{
	memcpy(p, &f, sizeof(f));
}

static inline float kern_get_f32(const uint8_t *p)
{
	float f;

	memcpy(&f, p, sizeof(f));
	return f;
}

static inline void kern_put_bf16(uint8_t *p, const float *x, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint16_t h = kern_to_bf16(x[i]);

		memcpy(p + 2 * i, &h, 2);
	}
}

static inline void kern_get_bf16(const uint8_t *p, float *x, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint16_t h;

		memcpy(&h, p + 2 * i, 2);
		x[i] = kern_from_bf16(h);
	}
}

static inline void kern_kv_encode(enum kern_dtype format, uint8_t *p, const float *x)
{
	if (format == KERN_F32) {
		memcpy(p, x, KERN_HEAD * sizeof(float));
		return;
	}
	if (format == KERN_BF16) {
		kern_put_bf16(p, x, KERN_HEAD);
		return;
	}
	for (uint32_t g = 0; g < 7; g++) {
		uint8_t s = kern_fp8_scale_e8m0(kern_amax(x + 64 * g, 64));

		kern_encode_e4m3(x + 64 * g, 64, kern_from_e8m0(s), p + 64 * g);
		p[KERN_KV_FP8_SCALE + g] = s;
	}
	p[KERN_KV_FP8_SCALE + 7] = 0;
	kern_put_bf16(p + KERN_KV_FP8_ROPE, x + KERN_NOPE, KERN_ROPE);
}

static inline void kern_kv_decode(enum kern_dtype format, const uint8_t *p, float *x)
{
	if (format == KERN_F32) {
		memcpy(x, p, KERN_HEAD * sizeof(float));
		return;
	}
	if (format == KERN_BF16) {
		kern_get_bf16(p, x, KERN_HEAD);
		return;
	}
	for (uint32_t g = 0; g < 7; g++) {
		float s = kern_from_e8m0(p[KERN_KV_FP8_SCALE + g]);

		for (uint32_t i = 64 * g; i < 64 * g + 64; i++)
			x[i] = kern_from_e4m3(p[i]) * s;
	}
	kern_get_bf16(p + KERN_KV_FP8_ROPE, x + KERN_NOPE, KERN_ROPE);
}

static inline void kern_index_encode(
	enum kern_dtype format, struct kern_index_at at, const float *x)
{
	uint8_t value[KERN_INDEX * sizeof(float)], scale[4];
	float s;

	switch (format) {
	case KERN_F32:
		memcpy(value, x, KERN_INDEX * sizeof(float));
		break;
	case KERN_BF16:
		kern_put_bf16(value, x, KERN_INDEX);
		break;
	case KERN_FP8:
		s = kern_fp8_scale(kern_amax(x, KERN_INDEX));
		kern_encode_e4m3(x, KERN_INDEX, s, value);
		kern_put_f32(scale, s);
		break;
	default:
		for (uint32_t g = 0; g < 4; g++) {
			scale[g] = kern_fp4_scale_e8m0(kern_amax(x + 32 * g, 32));
			s = kern_from_e8m0(scale[g]);
			for (uint32_t i = 32 * g; i < 32 * g + 32; i += 2)
				value[i / 2] = (uint8_t)(kern_to_e2m1(x[i] / s) |
							 kern_to_e2m1(x[i + 1] / s) << 4);
		}
	}
	kern_index_write(format, at, value, scale);
}

static inline void kern_index_decode(enum kern_dtype format, struct kern_index_at at, float *x)
{
	uint8_t value[KERN_INDEX * sizeof(float)], scale[4];
	float s;

	kern_index_read(format, at, value, scale);
	switch (format) {
	case KERN_F32:
		memcpy(x, value, KERN_INDEX * sizeof(float));
		return;
	case KERN_BF16:
		kern_get_bf16(value, x, KERN_INDEX);
		return;
	case KERN_FP8:
		s = kern_get_f32(scale);
		for (uint32_t i = 0; i < KERN_INDEX; i++)
			x[i] = kern_from_e4m3(value[i]) * s;
		return;
	default:
		for (uint32_t i = 0; i < KERN_INDEX; i += 2) {
			s = kern_from_e8m0(scale[i / 32]);
			x[i] = kern_from_e2m1(value[i / 2] & 15) * s;
			x[i + 1] = kern_from_e2m1(value[i / 2] >> 4) * s;
		}
	}
}

/* The rounding of qat: what encoding and decoding would leave. */
static inline void kern_qat_kv(float *x)
{
	for (uint32_t g = 0; g < 7; g++) {
		float s = kern_from_e8m0(kern_fp8_scale_e8m0(kern_amax(x + 64 * g, 64)));

		for (uint32_t i = 64 * g; i < 64 * g + 64; i++)
			x[i] = kern_round_e4m3(x[i] / s) * s;
	}
}

static inline void kern_qat_index(float *x)
{
	for (uint32_t g = 0; g < 4; g++) {
		float s = kern_from_e8m0(kern_fp4_scale_e8m0(kern_amax(x + 32 * g, 32)));

		for (uint32_t i = 32 * g; i < 32 * g + 32; i++)
			x[i] = kern_from_e2m1(kern_to_e2m1(x[i] / s)) * s;
	}
}

#endif
