/*
 * load.h: reads a worker's shard. io_uring reads, several in flight, only the bytes of the slice
 * (whole rows where a slice is narrow: reading past is cheaper than many small reads), straight
 * into the place the caller names. load=dummy makes weights up instead.
 *
 * Blocks the calling thread; one io_uring of its own, made and torn down inside. No logging.
 * Callbacks run on the calling thread.
 */
#ifndef WORKER_CKPT_LOAD_H
#define WORKER_CKPT_LOAD_H

#include <stdint.h>

#include "worker/ckpt/plan.h"

enum load_direct {
	LOAD_DIRECT_AUTO, /* O_DIRECT for a file that is not in the page cache and larger than
			     half the memory (cached buffered reads are several times faster) */
	LOAD_DIRECT_OFF,
	LOAD_DIRECT_ON, /* wherever the file system can; for tests and measurements */
};

struct load_opts {
	uint32_t depth;       /* reads in flight; 0: 8 */
	uint32_t chunk_bytes; /* of one read, a multiple of 4096; 0: 2 MB */
	enum load_direct direct;
	uint64_t dummy_seed; /* load=dummy */
};

struct load_ops {
	/*
	 * Where an item's slice goes: item->bytes bytes at *ret_data and item->scale_bytes at
	 * *ret_scales (not asked for when 0), writable until done() has returned for it; at least
	 * 8-aligned. Called once for each item, in no promised order, before it is read. Non-zero
	 * (-errno, with err filled) ends the load.
	 */
	int (*place)(void *user, const struct plan_item *item, void **ret_data, void **ret_scales,
		struct errbuf *err);
	/* The slice lies there: contiguous, row-major; scales checked. Non-zero ends the load. May
	 * be NULL. */
	int (*done)(void *user, const struct plan_item *item, void *data, void *scales,
		struct errbuf *err);
	/* After every chunk: bytes of the plan that have arrived. Non-zero ends the load. May be
	 * NULL. */
	int (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes);
	void *user;
};

/* What a load did, for one log line and for measurements. */
struct load_stats {
	uint64_t read_bytes; /* from files, rows read past included */
	uint64_t reads;
	uint32_t direct_files;
	uint32_t fixed_buffers; /* 1: registered buffers in use */
};

/*
 * Loads every item of a plan. opts may be NULL. Refuses an E8M0 scale of 255 or a scale that is not
 * finite, and expert ids in tid2eid that are out of range or twice in a row. Errors name file,
 * tensor and offset: -EIO, -EINVAL (65), -ECANCELED (progress), whatever place/done returned. On
 * failure no read is in flight any more. ret_stats may be NULL.
 */
int load_run(const struct ckpt *ck, const struct plan *plan, const struct load_opts *opts,
	const struct load_ops *ops, struct load_stats *ret_stats, struct errbuf *err) MUST_CHECK;

#endif
