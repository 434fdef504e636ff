#include "client/verify.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <nettle/base16.h>
#include <nettle/sha2.h>

#include "worker/ckpt/values.h"

enum { READ_BYTES = 1 << 20 };

/* ---- elements ------------------------------------------------------------------------------ */

static double of_f16(uint16_t u)
{
	int e = u >> 10 & 31, m = u & 1023;
	double x = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);

	return u >> 15 ? -x : x;
}

/* e4m3fn: exponent bias 7, no infinities; only 0x7f and 0xff are NaN. */
static double of_e4m3(uint8_t u)
{
	int e = u >> 3 & 15, m = u & 7;
	double x = (u & 0x7f) == 0x7f ? NAN : e ? ldexp(8 + m, e - 10) : ldexp(m, -9);

	return u >> 7 ? -x : x;
}

static double of_e2m1(uint8_t nibble)
{
	static const double magnitude[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

	return nibble >> 3 & 1 ? -magnitude[nibble & 7] : magnitude[nibble & 7];
}

double verify_value(enum ckpt_elem elem, const uint8_t *row, uint64_t col)
{
	uint32_t bits;
	uint16_t half;
	int64_t wide;
	int32_t narrow;
	float f;

	switch (elem) {
	case CKPT_F32:
		memcpy(&f, row + 4 * col, 4);
		return f;
	case CKPT_BF16:
		memcpy(&half, row + 2 * col, 2);
		bits = (uint32_t)half << 16;
		memcpy(&f, &bits, 4);
		return f;
	case CKPT_F16:
		memcpy(&half, row + 2 * col, 2);
		return of_f16(half);
	case CKPT_F8_E4M3:
		return of_e4m3(row[col]);
	case CKPT_F4_E2M1:
		return of_e2m1(col & 1 ? row[col / 2] >> 4 : row[col / 2] & 15);
	case CKPT_I64:
		memcpy(&wide, row + 8 * col, 8);
		return (double)wide;
	case CKPT_I32:
		memcpy(&narrow, row + 4 * col, 4);
		return narrow;
	case CKPT_ELEM__COUNT:
		break;
	}
	return NAN;
}

double verify_scale(enum ckpt_scale scale, const uint8_t *scales, uint64_t index)
{
	float f;

	if (scale == CKPT_SCALE_E8M0)
		return scales[index] == 255 ? NAN : ldexp(1, scales[index] - 127);
	if (scale == CKPT_SCALE_F32) {
		memcpy(&f, scales + 4 * index, 4);
		return f;
	}
	return 1;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static int read_range(const struct ckpt *ck, const struct ckpt_view *v, uint64_t at, void *out,
	uint64_t n, const struct ckpt_entry *e, struct errbuf *err)
{
	const struct ckpt_file *file = &ck->files[v->file];
	char name[TENSOR_NAME_MAX] = "its bytes";
	uint64_t got = 0;

	if (e)
		tensor_name(e->kind, e->layer, e->expert, name);
	while (got < n) {
		ssize_t r = pread(
			file->fd, (uint8_t *)out + got, n - got, (off_t)(v->offset + at + got));

		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0) {
			int error = r < 0 ? errno : ENODATA;

			return err_set(err, -error, r < 0 ? EXIT_OS_ERR : EXIT_DATA_ERR,
				"%s/%s: reading %s at byte %" PRIu64 ": %s", ck->dir, file->name,
				name, v->offset + at + got,
				r < 0 ? strerror(error) : "the file ends there");
		}
		got += (uint64_t)r;
	}
	return 0;
}

static void add_value(struct verify_stats *s, double x)
{
	if (isnan(x)) {
		s->nan++;
	} else if (isinf(x)) {
		s->inf++;
	} else {
		s->min = fmin(s->min, x);
		s->max = fmax(s->max, x);
	}
}

/* A row of the whole tensor: block by block, so that each scale is widened once. */
static void add_row(const struct ckpt *ck, const struct ckpt_entry *e, const uint8_t *row,
	uint64_t r, const uint8_t *scales, struct verify_stats *s)
{
	struct tensor_block b = tensor_block(&ck->cfg, e->elem);
	uint64_t width = e->scale == CKPT_SCALE_NONE ? e->shape.cols : b.cols;
	uint64_t blocks = DIV_UP(e->shape.cols, width);

	for (uint64_t k = 0; k < blocks; k++) {
		double scale = verify_scale(e->scale, scales, r / b.rows * blocks + k);
		uint64_t end = MIN((k + 1) * width, e->shape.cols);

		for (uint64_t c = k * width; c < end; c++)
			add_value(s, scale * verify_value(e->elem, row, c));
	}
	s->n += e->shape.cols;
	if (e->kind == TENSOR_GATE_TID2EID)
		s->bad += values_bad_ids(
				  e->elem, row, 1, (uint32_t)e->shape.cols, ck->cfg.experts) == 0;
}

static uint64_t count_bad_scales(enum ckpt_scale scale, const uint8_t *scales, uint64_t n)
{
	uint64_t bad = 0, each = ckpt_scale_bytes(scale, 1);

	for (uint64_t i = 0; i < n; i++)
		bad += values_bad_scale(scale, scales + i * each, 1) == 0;
	return bad;
}

int verify_entry(const struct ckpt *ck, const struct ckpt_entry *e, struct verify_stats *ret_stats,
	struct errbuf *err)
{
	struct verify_stats s = {.min = INFINITY, .max = -INFINITY};
	uint64_t row_bytes = ckpt_elem_bytes(e->elem, e->shape.cols);
	uint64_t rows = MAX(READ_BYTES / row_bytes, (uint64_t)1), n;
	struct tensor_shape scale_shape = ckpt_scale_shape(&ck->cfg, e);
	uint8_t *data = malloc(rows * row_bytes), *scales = malloc(e->scales.bytes + 1);
	int ret = 0;

	if (!data || !scales)
		ret = err_set(err, -ENOMEM, EXIT_OS_ERR, "no memory to read a tensor");
	if (ret == 0 && e->scales.bytes)
		ret = read_range(ck, &e->scales, 0, scales, e->scales.bytes, e, err);
	if (ret == 0)
		s.bad = count_bad_scales(e->scale, scales, scale_shape.rows * scale_shape.cols);
	for (uint64_t r = 0; r < e->shape.rows && ret == 0; r += n) {
		n = MIN(rows, e->shape.rows - r);
		ret = read_range(ck, &e->data, r * row_bytes, data, n * row_bytes, e, err);
		for (uint64_t i = 0; i < n && ret == 0; i++)
			add_row(ck, e, data + i * row_bytes, r + i, scales, &s);
	}
	free(data);
	free(scales);
	if (ret == 0)
		*ret_stats = s;
	return ret;
}

void verify_join(struct verify_stats *a, const struct verify_stats *b)
{
	a->n += b->n;
	a->min = fmin(a->min, b->min);
	a->max = fmax(a->max, b->max);
	a->nan += b->nan;
	a->inf += b->inf;
	a->bad += b->bad;
}

int verify_hash(const struct ckpt *ck, size_t file, char out[VERIFY_HEX], struct errbuf *err)
{
	struct ckpt_view all = {(uint32_t)file, 0, ck->files[file].bytes};
	uint8_t *buf = malloc(READ_BYTES);
	uint8_t digest[SHA256_DIGEST_SIZE];
	struct sha256_ctx s;
	int ret = buf ? 0 : err_set(err, -ENOMEM, EXIT_OS_ERR, "no memory to read a file");

	sha256_init(&s);
	for (uint64_t at = 0; at < all.bytes && ret == 0;) {
		uint64_t n = MIN((uint64_t)READ_BYTES, all.bytes - at);

		ret = read_range(ck, &all, at, buf, n, NULL, err);
		if (ret == 0)
			sha256_update(&s, n, buf);
		at += n;
	}
	free(buf);
	if (ret < 0)
		return ret;
	sha256_digest(&s, sizeof(digest), digest);
	base16_encode_update(out, sizeof(digest), digest);
	out[2 * sizeof(digest)] = '\0';
	return 0;
}
