#include "worker/ckpt/values.h"

#include <math.h>
#include <string.h>

int64_t values_bad_scale(enum ckpt_scale scale, const void *data, uint64_t n)
{
	const uint8_t *bytes = data, *at;
	float f;

	if (scale == CKPT_SCALE_E8M0) {
		at = memchr(bytes, 255, n);
		return at ? at - bytes : -1;
	}
	if (scale == CKPT_SCALE_F32) {
		for (uint64_t i = 0; i < n; i++) {
			memcpy(&f, bytes + i * sizeof(f), sizeof(f));
			if (!isfinite(f) || f < 0)
				return (int64_t)i;
		}
	}
	return -1;
}

static int64_t id_at(enum ckpt_elem elem, const uint8_t *bytes, uint64_t i)
{
	int64_t wide;
	int32_t narrow;

	if (elem == CKPT_I64) {
		memcpy(&wide, bytes + i * sizeof(wide), sizeof(wide));
		return wide;
	}
	memcpy(&narrow, bytes + i * sizeof(narrow), sizeof(narrow));
	return narrow;
}

int64_t values_bad_ids(
	enum ckpt_elem elem, const void *data, uint64_t rows, uint32_t k, uint32_t experts)
{
	int64_t ids[MODEL_TOPK_EXPERTS_MAX];

	for (uint64_t r = 0; r < rows; r++) {
		for (uint32_t i = 0; i < k; i++) {
			ids[i] = id_at(elem, data, r * k + i);
			if (ids[i] < 0 || ids[i] >= experts)
				return (int64_t)r;
			for (uint32_t j = 0; j < i; j++)
				if (ids[j] == ids[i])
					return (int64_t)r;
		}
	}
	return -1;
}
