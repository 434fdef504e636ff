#include "kernels/weight.h"

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

size_t kern_weight_bytes(const struct kern_weight_desc *d)
{
	return data_bytes(d) + scale_bytes(d);
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
	memset(storage, 0, kern_weight_bytes(d));
	return 0;
}

/* Copies one row into its lane of the group; refuses NaN codes. Returns the column, or -1. */
static int64_t pack_row(struct kern_weight *w, uint32_t n, const uint8_t *raw)
{
	size_t group = (size_t)(n / KERN_GROUP) * w->k, lane = n % KERN_GROUP;

	switch (w->dtype) {
	case KERN_F32:
		for (uint32_t k = 0; k < w->k; k++)
			memcpy((float *)w->data + (group + k) * KERN_GROUP + lane, raw + 4 * k, 4);
		break;
	case KERN_F16:
	case KERN_BF16:
		for (uint32_t k = 0; k < w->k; k++)
			memcpy((uint16_t *)w->data + (group + k) * KERN_GROUP + lane, raw + 2 * k,
				2);
		break;
	case KERN_FP8:
		for (uint32_t k = 0; k < w->k; k++) {
			if ((raw[k] & 0x7f) == 0x7f)
				return k;
			((uint8_t *)w->data)[(group + k) * KERN_GROUP + lane] = raw[k];
		}
		break;
	default:
		for (uint32_t k = 0; k < w->k / 2; k++)
			((uint8_t *)w->data)[(group / 2 + k) * KERN_GROUP + lane] = raw[k];
	}
	return -1;
}

/* The scales of one row; returns the block whose scale is bad, or -1. */
static int64_t pack_scales(struct kern_weight *w, uint32_t n, const uint8_t *raw)
{
	size_t group = (size_t)(n / KERN_GROUP) * w->nblk, lane = n % KERN_GROUP;

	for (uint32_t b = 0; b < w->nblk; b++) {
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

int kern_weight_pack(struct kern_weight *w, uint32_t first, uint32_t rows, const void *raw,
	size_t raw_stride, const void *scales, size_t scale_stride, struct errbuf *err)
{
	uint32_t unit = w->dtype == KERN_FP8 ? 128 : 1; /* rows of a scale block */
	size_t elem = w->scale_kind == KERN_SCALE_F32 ? sizeof(float) : 1;
	int64_t at;

	for (uint32_t i = 0; i < rows; i++) {
		uint32_t n = first + i, row = w->row0 + n;

		at = pack_row(w, n, (const uint8_t *)raw + i * raw_stride);
		if (at >= 0)
			return err_set(err, -EBADMSG, EXIT_DATA_ERR, "fp8 NaN at row %u, column %u",
				row, w->col0 + (uint32_t)at);
		if (!w->nblk)
			continue;
		at = pack_scales(w, n,
			(const uint8_t *)scales +
				(row / unit - (w->row0 + first) / unit) * scale_stride * elem);
		if (at >= 0)
			return err_set(err, -EBADMSG, EXIT_DATA_ERR,
				"scale of row %u, block %u is NaN, too large or not positive", row,
				w->col0 / w->block + (uint32_t)at);
	}
	return 0;
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
