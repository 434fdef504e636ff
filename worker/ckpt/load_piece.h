/*
 * load_piece.h: how a slice of a tensor becomes reads. Pure arithmetic; load.c runs it.
 *
 *	whole rows    |=======|=======|====     one range: cut into chunks, read into place
 *	wide columns  ..===.....===.....===     each row's part is a read of its own, into place
 *	narrow ones   ..=.....=.....=.....=     rows read as one span into a bounce buffer, then
 *	                                        gathered: fewer, larger reads
 */
#ifndef WORKER_CKPT_LOAD_PIECE_H
#define WORKER_CKPT_LOAD_PIECE_H

#include <stdbool.h>

#include "worker/ckpt/plan.h"

/* From this many bytes on, a row's part is worth a read of its own: at 16 KB the cost of one more
 * read (about a microsecond) is small against copying it. */
enum { LOAD_WIDE_BYTES = 16384 };

/* The data or the scales of an item, as they lie in a file. */
struct load_part {
	uint32_t file;
	uint64_t offset;    /* of the slice's first byte */
	uint64_t rows;      /* a slice of whole rows is one long row */
	uint64_t row_bytes; /* of the slice */
	uint64_t stride;    /* from row to row in the file */
};

/* One read. */
struct load_piece {
	uint64_t offset, span;            /* in the file */
	uint64_t at;                      /* in the slice, of its first byte */
	uint64_t rows, row_bytes, stride; /* what of the span belongs to the slice */
};

struct load_part load_part_data(const struct ckpt *ck, const struct plan_item *it);
struct load_part load_part_scales(const struct ckpt *ck, const struct plan_item *it);

/* The read for the slice's bytes from `at` on; at is below the slice's size. */
struct load_piece load_piece_at(const struct load_part *part, uint64_t at, uint64_t chunk_bytes);

static inline uint64_t load_piece_bytes(const struct load_piece *p)
{
	return p->rows * p->row_bytes;
}

/* Must it be gathered from the span? */
static inline bool load_piece_is_narrow(const struct load_piece *p)
{
	return p->rows > 1;
}

/* Gathers a piece: `span` holds p->span bytes, `slice` is where the whole slice begins. */
void load_piece_gather(const struct load_piece *p, const void *span, void *slice);

#endif
