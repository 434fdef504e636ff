/*
 * load.h: reads a worker's shard. Several threads take pieces of whole rows, in the order in which
 * they lie in the files, several ahead of what they work on, and hand each to the caller while it
 * is still in the core's cache. load=dummy makes weights up instead.
 *
 * What is in the page cache is used there, in a mapping. Else a file is read past it (O_DIRECT,
 * io_uring), which costs less and leaves to others what they have in it; but for what other workers
 * read as well, which the page cache brings from the device once.
 *
 * Blocks until all is done; its threads are made and joined inside. No logging. While it runs it
 * has the process's SIGBUS (load_file.h); the caller must not block the signal.
 */
#ifndef WORKER_CKPT_LOAD_H
#define WORKER_CKPT_LOAD_H

#include <stdint.h>

#include "worker/ckpt/plan.h"

enum load_direct {
	LOAD_DIRECT_AUTO, /* O_DIRECT for a file less than half in the page cache */
	LOAD_DIRECT_OFF,
	LOAD_DIRECT_ON, /* wherever the file system can; for tests and measurements */
};

struct load_opts {
	uint32_t threads;     /* that read and hand out; 0: 1; at most 16 are used */
	uint32_t depth;       /* pieces ahead, all threads together; 0: 8 for each thread */
	uint32_t chunk_bytes; /* of a piece, about; 0: 1 MB */
	enum load_direct direct;
	uint64_t dummy_seed; /* load=dummy */
};

/* Rows of an item's slice as they lie in a buffer. */
struct load_rows {
	const struct plan_item *item;
	uint64_t first, n;     /* a multiple of LOAD_ROWS, rows of the slice */
	const uint8_t *data;   /* item->row_bytes of row `first`; not aligned */
	size_t stride;         /* bytes to the next row */
	const uint8_t *scales; /* of the scale row that covers row `first`; NULL without */
	size_t scale_stride;   /* bytes to the next one */
};

struct load_ops {
	/*
	 * Takes rows; the buffers are good until it returns. Called by several threads at once,
	 * never with the same rows twice, in no promised order. Scales and expert ids are checked;
	 * data and scales may lie in a mapping of the file, and change if another writes to it.
	 * Non-zero (-errno, with err filled) ends the load.
	 */
	int (*rows)(void *user, const struct load_rows *rows, struct errbuf *err);
	/* After every piece: bytes of the plan that have been taken. One call at a time, but from
	 * any of the threads. Non-zero ends the load. May be NULL. */
	int (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes);
	void *user;
};

/* What a load did, for one log line and for measurements. */
struct load_stats {
	uint64_t read_bytes; /* from files, what was read past included */
	uint64_t reads;
	uint32_t direct_files;
	uint32_t fixed_buffers; /* 1: registered buffers in use */
};

/*
 * Loads every item of a plan. opts may be NULL. Refuses an E8M0 scale of 255 or a scale that is not
 * finite, and expert ids in tid2eid that are out of range or twice in a row. Errors name file,
 * tensor and offset: -EIO, -EINVAL (65), -ECANCELED (progress), whatever rows() returned. On
 * failure no read is in flight any more. ret_stats may be NULL.
 */
int load_run(const struct ckpt *ck, const struct plan *plan, const struct load_opts *opts,
	const struct load_ops *ops, struct load_stats *ret_stats, struct errbuf *err) MUST_CHECK;

#endif
