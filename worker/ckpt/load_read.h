/*
 * load_read.h: a thread's reads. Pieces are begun in order, several ahead, and ended in the same
 * order; in between the device works on them. Part of load.c.
 *
 *	begin   past the page cache: an io_uring read into a buffer of the piece's own
 *	        through it: the kernel is told that the range will be needed
 *	end     waits for the one; shows the other where the file is mapped, or copies it out into
 *	        a buffer that all share, so that it stays in this core's cache until its rows have
 *	        been rearranged
 *	release gives back what was mapped
 *
 * Shown as mapped is only what may change while it is looked at without harm, when another process
 * writes to the file: numbers, also those of large scales, which who packs them checks once more.
 * Ids are checked first and used then, so they are copied; so are small scales, which costs less.
 *
 * Made, used and closed by one thread.
 */
#ifndef WORKER_CKPT_LOAD_READ_H
#define WORKER_CKPT_LOAD_READ_H

#include "worker/ckpt/load_file.h"
#include "worker/ckpt/load_piece.h"

struct load_reader;

struct load_reader_opts {
	const struct ckpt *ck;
	struct load_file *files;
	uint32_t depth;                   /* pieces begun and not ended, at most */
	uint64_t span_bytes, scale_bytes; /* of the largest piece */
	bool any_direct;                  /* else no ring is made */
};

/* -ENOMEM; what io_uring says; err is filled. */
int load_reader_open(const struct load_reader_opts *opts, struct load_reader **ret_reader,
	struct errbuf *err) MUST_CHECK;
/* Waits for reads in flight: none outlives the call. Adds to *stats. NULL is fine. */
void load_reader_close(struct load_reader *r, struct load_stats *stats);

/* Pieces begun and not ended. */
uint32_t load_reader_count(const struct load_reader *r);

/*
 * Begins the rows `first` .. of an item. direct: past the page cache, where the file can. There
 * must be room (count < depth).
 */
void load_reader_begin(struct load_reader *r, const struct plan_item *item, uint64_t first,
	uint64_t rows, bool direct);

/*
 * Ends the piece begun first; there must be one. What *ret_rows points to is good until it is
 * released. -EIO, -ENODATA and so on, err names file, tensor and offset; the piece is then gone.
 */
int load_reader_end(struct load_reader *r, struct load_rows *ret_rows, struct plan_item *ret_part,
	struct errbuf *err) MUST_CHECK;

/*
 * Gives back the piece ended last. -EIO, -ENODATA, with err as above, where the file behind it went
 * away while it was used: what was seen of it may have been zeros.
 */
int load_reader_release(struct load_reader *r, struct errbuf *err) MUST_CHECK;

#endif
