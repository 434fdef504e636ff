#include "worker/ckpt/dummy.h"

#include <math.h>
#include <string.h>

/* The finaliser of SplitMix64 (Steele, Lea, Flood 2014) over key + counter. */
static inline uint64_t noise(uint64_t key, uint64_t counter)
{
	uint64_t z = key + counter * 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

static uint64_t key_of(const struct plan_item *it, uint64_t seed)
{
	uint64_t key = noise(seed, (uint64_t)it->kind + 1);

	key = noise(key, (uint64_t)(it->layer + 2));
	return noise(key, (uint64_t)(it->expert + 2));
}

/* Random bytes of a slice whose elements are bytes or halves, each byte masked. */
static void fill_bytes(const struct plan_item *it, uint64_t key, uint8_t mask, uint8_t *out)
{
	uint64_t all_row_bytes = ckpt_elem_bytes(it->elem, it->all_cols);
	uint64_t first = ckpt_elem_bytes(it->elem, it->col0);

	for (uint64_t i = 0; i < it->rows; i++) {
		uint64_t at = (it->row0 + i) * all_row_bytes + first;
		uint64_t word = noise(key, at >> 3);

		for (uint64_t j = 0; j < it->row_bytes; j++, at++) {
			if ((at & 7) == 0)
				word = noise(key, at >> 3);
			*out++ = (uint8_t)(word >> (at & 7) * 8) & mask;
		}
	}
}

static uint16_t bf16_of(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u)); /* never NaN here; round to nearest even */
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* center +- half, uniform. */
static void fill_real(
	const struct plan_item *it, uint64_t key, float center, float half, uint8_t *out)
{
	for (uint64_t i = 0; i < it->rows; i++) {
		uint64_t at = (it->row0 + i) * it->all_cols + it->col0;

		for (uint64_t j = 0; j < it->cols; j++, at++) {
			float unit = (float)(int32_t)(noise(key, at) >> 32) * 0x1p-31f;
			float f = center + half * unit;
			uint16_t b = bf16_of(f);

			if (it->elem == CKPT_F32)
				memcpy(out, &f, sizeof(f));
			else
				memcpy(out, &b, sizeof(b));
			out += it->elem == CKPT_F32 ? sizeof(f) : sizeof(b);
		}
	}
}

/* Rows of distinct expert ids: neighbours, from a random start. */
static void fill_ids(
	const struct model_config *cfg, const struct plan_item *it, uint64_t key, uint8_t *out)
{
	for (uint64_t i = 0; i < it->rows; i++) {
		uint64_t start = noise(key, it->row0 + i) % cfg->experts;

		for (uint64_t j = 0; j < it->cols; j++, out += sizeof(int64_t)) {
			int64_t id = (int64_t)((start + j) % cfg->experts);

			memcpy(out, &id, sizeof(id));
		}
	}
}

/* One power of two for all: values of this rms become rms 1/sqrt(cols). */
static void fill_scales(const struct plan_item *it, double rms, uint8_t *out)
{
	long e = 127 - lrint(log2(rms * sqrt((double)it->all_cols)));

	memset(out, (int)MIN(MAX(e, 1L), 254L), it->scale_bytes);
}

void dummy_fill(const struct model_config *cfg, const struct plan_item *it, uint64_t seed,
	void *data, void *scales)
{
	uint64_t key = key_of(it, seed);
	enum tensor_init init = tensor_row(it->kind)->init;

	switch (it->elem) {
	case CKPT_F8_E4M3:
		/* Without the exponent's top bit values stay below 2, of rms 0.62, never NaN. */
		fill_bytes(it, key, 0xbf, data);
		fill_scales(it, 0.62, scales);
		return;
	case CKPT_F4_E2M1:
		fill_bytes(it, key, 0xff, data); /* all 16 values: rms 2.93 */
		fill_scales(it, 2.93, scales);
		return;
	case CKPT_I64:
	case CKPT_I32:
		fill_ids(cfg, it, key, data);
		return;
	default:
		break;
	}
	if (init == TENSOR_INIT_NORM)
		fill_real(it, key, 1, 0.25F, data);
	else if (init == TENSOR_INIT_UNIT)
		fill_real(it, key, 0, 1, data);
	else
		fill_real(it, key, 0, sqrtf(3.0F / (float)it->all_cols), data);
}
