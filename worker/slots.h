/*
 * slots.h: what a rank remembers of each sequence between steps. A slot is given to a sequence by
 * the coordinator; here it is position, page tables, history and compressor rows.
 *
 *   slot s   pos          tokens it holds; the next one's position
 *            pages[c]     page ids: raw from page raw_first on, CSA and HCA from their first
 *            history      [pos] token ids: penalties, export
 *            prev         token sampled last (SEQ_PREV)
 *            tail         [d] normed hidden row of position pos-1, when prompt log-probabilities
 *                         are being reported: the next chunk's first token is judged by it
 *   and per compressed layer the rows of the unfinished block (kern_compress_args.state).
 *
 * All arrays are reserved once and touched when used.
 */
#ifndef WORKER_SLOTS_H
#define WORKER_SLOTS_H

#include "worker/shape.h"

struct slot {
	bool used, has_prev, has_tail;
	uint32_t prev;
	uint64_t pos;
	uint32_t raw_first;
	uint32_t page_n[PAGE__COUNT];
	uint32_t *pages[PAGE__COUNT]; /* [slots.page_cap[c]] */
	uint32_t *history;            /* [slots.context] */
	float *tail;                  /* [d] */
};

/* Compressor rows of all slots in one layer. */
struct slot_rows {
	float *base; /* slot s: base + s * stride; NULL: the layer has none */
	size_t stride;
};

struct slots {
	uint32_t n;
	uint64_t context;
	uint32_t page_cap[PAGE__COUNT];
	struct slot *slot;       /* [n] */
	struct slot_rows *comp;  /* [layers] of attention's compressor */
	struct slot_rows *index; /* [layers] of the indexer's */
	unsigned char *arena;
	size_t arena_bytes, slot_bytes; /* of all; of one slot */
};

/* Bytes slots_open() reserves for sh->sequences slots of `context` tokens; arithmetic only. */
uint64_t slots_bytes(const struct shape *sh, uint64_t context);

int slots_open(const struct shape *sh, uint64_t context, struct slots *ret_slots,
	struct errbuf *err) MUST_CHECK;
void slots_close(struct slots *s);

/* Forgets a sequence. */
void slot_clear(struct slot *s);

/*
 * What a step asks of a slot, in numbers: drops `release` raw pages from the front, appends
 * page_n[] ids (raw first, then CSA, then HCA). slot_check_pages says whether the slot can then
 * hold positions pos .. pos+n-1 with their window; -EBADMSG with err. slot_take_pages does it.
 */
int slot_check_pages(const struct slots *s, const struct slot *slot, uint32_t window, uint64_t pos,
	uint32_t n, uint32_t release, const uint32_t page_n[PAGE__COUNT],
	const bool class_used[PAGE__COUNT], struct errbuf *err) MUST_CHECK;
void slot_take_pages(struct slot *slot, uint32_t release, const uint32_t *pages,
	const uint32_t page_n[PAGE__COUNT]);

#endif
