/*
 * Where things lie in pages, and how they are encoded. Writers and readers of every variant and
 * of the tests' live caches go through these functions; nothing else knows a layout.
 *
 *   attention rows, one after another in a page of 64
 *     F32   512 f32
 *     BF16  512 bf16
 *     FP8   448 e4m3 | 64 bf16 | 7 E8M0 scales of groups of 64 | 1 byte 0      = 584 bytes
 *   index keys, a page of 64
 *     F32   64 x 128 f32
 *     BF16  64 x 128 bf16
 *     FP8   64 x 128 e4m3, then 64 f32 scales
 *     FP4   64 x 64 bytes (two e2m1, low nibble first), then 64 x 4 E8M0 scales of groups of 32
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

/* One index key in its page. */
struct kern_index_at {
	uint8_t *value, *scale; /* scale: NULL when the format has none */
};

static inline struct kern_index_at kern_index_at(void *page, enum kern_dtype format, uint32_t slot)
{
	size_t v = kern_index_value_bytes(format), s = kern_index_scale_bytes(format);
	uint8_t *p = page;

	return (struct kern_index_at){p + slot * v, s ? p + KERN_PAGE * v + slot * s : NULL};
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
	float s;

	switch (format) {
	case KERN_F32:
		memcpy(at.value, x, KERN_INDEX * sizeof(float));
		return;
	case KERN_BF16:
		kern_put_bf16(at.value, x, KERN_INDEX);
		return;
	case KERN_FP8:
		s = kern_fp8_scale(kern_amax(x, KERN_INDEX));
		kern_encode_e4m3(x, KERN_INDEX, s, at.value);
		kern_put_f32(at.scale, s);
		return;
	default:
		for (uint32_t g = 0; g < 4; g++) {
			at.scale[g] = kern_fp4_scale_e8m0(kern_amax(x + 32 * g, 32));
			s = kern_from_e8m0(at.scale[g]);
			for (uint32_t i = 32 * g; i < 32 * g + 32; i += 2)
				at.value[i / 2] = (uint8_t)(kern_to_e2m1(x[i] / s) |
							    kern_to_e2m1(x[i + 1] / s) << 4);
		}
	}
}

static inline void kern_index_decode(enum kern_dtype format, struct kern_index_at at, float *x)
{
	float s;

	switch (format) {
	case KERN_F32:
		memcpy(x, at.value, KERN_INDEX * sizeof(float));
		return;
	case KERN_BF16:
		kern_get_bf16(at.value, x, KERN_INDEX);
		return;
	case KERN_FP8:
		s = kern_get_f32(at.scale);
		for (uint32_t i = 0; i < KERN_INDEX; i++)
			x[i] = kern_from_e4m3(at.value[i]) * s;
		return;
	default:
		for (uint32_t i = 0; i < KERN_INDEX; i += 2) {
			s = kern_from_e8m0(at.scale[i / 32]);
			x[i] = kern_from_e2m1(at.value[i / 2] & 15) * s;
			x[i + 1] = kern_from_e2m1(at.value[i / 2] >> 4) * s;
		}
	}
}

/* The rounding of qat: what encoding and decoding would leave. */
static inline void kern_qat_kv(float *x)
{
	for (uint32_t g = 0; g < 7; g++) {
		float s = kern_from_e8m0(kern_fp8_scale_e8m0(kern_amax(x + 64 * g, 64)));

		for (uint32_t i = 64 * g; i < 64 * g + 64; i++)
			x[i] = kern_from_e4m3(kern_to_e4m3(x[i] / s)) * s;
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
