/*
 * load_piece.h: how a slice of a tensor is cut into pieces of whole rows, and where the bytes of a
 * piece lie in a file. Pure arithmetic; load.c hands pieces out, load_read.c reads them.
 *
 *	whole rows    |=======|=======|====     one range
 *	narrow ones   ..=.....=.....=.....=     one range, with what lies between: reading past is
 *	                                        cheaper than many small reads
 *	far apart     ..===.........===.....    each row's part is a read of its own
 */
#ifndef WORKER_CKPT_LOAD_PIECE_H
#define WORKER_CKPT_LOAD_PIECE_H

#include <stdbool.h>

#include "worker/ckpt/plan.h"

enum {
	/* Pieces are multiples of the rows that weights interleave, so that no two share a group.
	 */
	LOAD_ROWS = 16,
	/* Parts of rows so far apart are read one by one: the cost of one more read, about a
	 * microsecond, is small against copying this. */
	LOAD_GAP_BYTES = 16384,
};

/* The data or the scales of some rows, as they lie in a file. */
struct load_span {
	uint32_t file;
	uint64_t offset; /* of the first byte */
	uint64_t rows;   /* 0: there are no scales */
	uint64_t row_bytes, stride;
};

/* Rows of an item for one piece of about chunk_bytes: a multiple of LOAD_ROWS, or all there are. */
uint64_t load_piece_rows(const struct plan_item *it, uint64_t chunk_bytes);

/* n rows of an item from `first` on, as an item of its own. */
struct plan_item load_piece_part(const struct plan_item *it, uint64_t first, uint64_t n);

/*
 * Bytes of data and scales that rows first .. first + n add to those before them. Pieces may share
 * a row of scales, which then counts once, so that an item's pieces add up to the item.
 */
uint64_t load_piece_bytes(const struct plan_item *it, uint64_t first, uint64_t n);

struct load_span load_span_data(const struct ckpt *ck, const struct plan_item *part);
struct load_span load_span_scales(const struct ckpt *ck, const struct plan_item *part);

/* From the first byte to the last. */
static inline uint64_t load_span_bytes(const struct load_span *s)
{
	return s->rows ? (s->rows - 1) * s->stride + s->row_bytes : 0;
}

/* Is each row a read of its own? */
static inline bool load_span_is_sparse(const struct load_span *s)
{
	return s->rows > 1 && s->stride - s->row_bytes >= LOAD_GAP_BYTES;
}

#endif
