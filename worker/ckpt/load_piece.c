#include "worker/ckpt/load_piece.h"

#include <string.h>

static struct load_part make_part(const struct ckpt_view *view, uint64_t first, uint64_t rows,
	uint64_t row_bytes, uint64_t stride)
{
	struct load_part p = {view->file, view->offset + first, rows, row_bytes, stride};

	if (row_bytes == stride) {
		p.rows = 1;
		p.row_bytes = p.stride = rows * row_bytes;
	}
	return p;
}

struct load_part load_part_data(const struct ckpt *ck, const struct plan_item *it)
{
	uint64_t stride = ckpt_elem_bytes(it->elem, it->all_cols);

	return make_part(&ck->entries[it->entry].data,
		it->row0 * stride + ckpt_elem_bytes(it->elem, it->col0), it->rows, it->row_bytes,
		stride);
}

struct load_part load_part_scales(const struct ckpt *ck, const struct plan_item *it)
{
	uint64_t stride = ckpt_scale_bytes(it->scale, it->scale_all_cols);

	return make_part(&ck->entries[it->entry].scales,
		it->scale_row0 * stride + ckpt_scale_bytes(it->scale, it->scale_col0),
		it->scale_rows, ckpt_scale_bytes(it->scale, it->scale_cols), stride);
}

struct load_piece load_piece_at(const struct load_part *part, uint64_t at, uint64_t chunk_bytes)
{
	uint64_t row = at / part->row_bytes, in = at % part->row_bytes, n;
	struct load_piece p = {.at = at, .rows = 1, .stride = part->stride};

	p.offset = part->offset + row * part->stride + in;
	if (part->rows == 1 || part->row_bytes >= LOAD_WIDE_BYTES) {
		n = MIN(chunk_bytes, part->row_bytes - in);
	} else { /* at is a multiple of row_bytes here: narrow pieces are whole rows */
		n = part->row_bytes;
		if (chunk_bytes > n)
			p.rows = MIN(part->rows - row, (chunk_bytes - n) / part->stride + 1);
	}
	p.row_bytes = n;
	p.span = (p.rows - 1) * part->stride + n;
	return p;
}

void load_piece_gather(const struct load_piece *p, const void *span, void *slice)
{
	const uint8_t *from = span;
	uint8_t *to = (uint8_t *)slice + p->at;

	for (uint64_t i = 0; i < p->rows; i++)
		memcpy(to + i * p->row_bytes, from + i * p->stride, p->row_bytes);
}
