#include "worker/ckpt/load_piece.h"

uint64_t load_piece_rows(const struct plan_item *it, uint64_t chunk_bytes)
{
	uint64_t stride = ckpt_elem_bytes(it->elem, it->all_cols), rows;

	if (stride - it->row_bytes >= LOAD_GAP_BYTES)
		stride = it->row_bytes;
	rows = chunk_bytes / MAX(stride, (uint64_t)1) / LOAD_ROWS * LOAD_ROWS;
	return MIN(MAX(rows, (uint64_t)LOAD_ROWS), it->rows);
}

/* Rows of scales that the first n rows of an item touch. */
static uint64_t scale_rows(const struct plan_item *it, uint64_t n)
{
	return it->scale_bytes && n ? DIV_UP(it->row0 + n, it->block.rows) - it->scale_row0 : 0;
}

struct plan_item load_piece_part(const struct plan_item *it, uint64_t first, uint64_t n)
{
	struct plan_item part = *it;

	part.row0 += first;
	part.rows = n;
	part.bytes = n * it->row_bytes;
	if (it->scale_bytes) {
		part.scale_row0 = part.row0 / it->block.rows;
		part.scale_rows = DIV_UP(part.row0 + n, it->block.rows) - part.scale_row0;
		part.scale_bytes = part.scale_rows * ckpt_scale_bytes(it->scale, it->scale_cols);
	}
	return part;
}

uint64_t load_piece_bytes(const struct plan_item *it, uint64_t first, uint64_t n)
{
	return n * it->row_bytes + (scale_rows(it, first + n) - scale_rows(it, first)) *
					   ckpt_scale_bytes(it->scale, it->scale_cols);
}

struct load_span load_span_data(const struct ckpt *ck, const struct plan_item *part)
{
	const struct ckpt_view *view = &ck->entries[part->entry].data;
	uint64_t stride = ckpt_elem_bytes(part->elem, part->all_cols);

	return (struct load_span){
		.file = view->file,
		.offset = view->offset + part->row0 * stride +
			  ckpt_elem_bytes(part->elem, part->col0),
		.rows = part->rows,
		.row_bytes = part->row_bytes,
		.stride = stride,
	};
}

struct load_span load_span_scales(const struct ckpt *ck, const struct plan_item *part)
{
	const struct ckpt_view *view = &ck->entries[part->entry].scales;
	uint64_t stride = ckpt_scale_bytes(part->scale, part->scale_all_cols);

	if (!part->scale_bytes)
		return (struct load_span){0};
	return (struct load_span){
		.file = view->file,
		.offset = view->offset + part->scale_row0 * stride +
			  ckpt_scale_bytes(part->scale, part->scale_col0),
		.rows = part->scale_rows,
		.row_bytes = ckpt_scale_bytes(part->scale, part->scale_cols),
		.stride = stride,
	};
}
