/*
 * state.h: a sequence's state as bytes, and back. One walk over everything a sequence owns counts,
 * saves or loads, so that the three cannot disagree.
 *
 *   header      magic, version, size, fingerprint, position, previous token, checksum
 *   history     [pos] token ids
 *   tail        [d] f32, if there is one
 *   raw rows    each layer: rows max(0, pos-window+1) .. pos-1, as stored
 *   open rows   each compressed layer: (v, g) of the unfinished block, for ratio 4 also of the
 *               block before; then the same of the indexer's compressor
 *   entries     each compressed layer: its pos / ratio finished entries; CSA: their index keys,
 *               page by page values, then scales, each in the order of dims
 *
 * The bytes are a function of the sequence alone (not of slot, pages, chunking or what lay in
 * memory before), the same on every rank, and only a rank with the same fingerprint takes them:
 * same checkpoint, shapes, formats, numerics and world.
 *
 * The seam for snapshots: entries and raw rows are walked page by page, so a snapshot that keeps
 * page references instead of bytes replaces walk_raw() and walk_entries() alone.
 *
 * The functions are those of rank.h: rank_export, rank_import_pages, rank_import.
 */
#ifndef WORKER_STATE_H
#define WORKER_STATE_H

#include "worker/rank.h"

#define STATE_MAGIC   0x3174617473646c68ull /* "hldstat1" */
#define STATE_VERSION 1

enum state_flags { STATE_PREV = 1, STATE_TAIL = 2, STATE__ALL = 3 };

struct state_hdr {
	uint64_t magic;
	uint32_t version, flags;
	uint64_t bytes; /* of the whole blob */
	uint64_t fingerprint;
	uint64_t pos;
	uint32_t prev, pad;
	uint64_t sum; /* state_sum() */
};

/* Checksum of a blob of at least a header, its own field taken as 0. */
uint64_t state_sum(const void *blob, size_t bytes);

/* Of everything a state's meaning depends on. Needs shape and weights. */
uint64_t state_fingerprint(const struct rank *r);

#endif
