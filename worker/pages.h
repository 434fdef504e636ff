/*
 * pages.h: the page pools of a rank: how many pages of each class fit (pure arithmetic) and where
 * a layer's part of them lies. Which sequence owns which page is the coordinator's business; the
 * pools are memory and nothing else.
 *
 * One page id is valid in all layers of its class, so a class is one array per layer and kind:
 *
 *     raw KV     [layers][count]     64 rows       CSA KV   [csa layers][count]  64 entries
 *     HCA KV     [hca layers][count] 64 entries    CSA keys [csa layers][count]  64 index keys
 *
 * reserved as address space and touched only when a page is first written.
 */
#ifndef WORKER_PAGES_H
#define WORKER_PAGES_H

#include <stdbool.h>

#include "shm/msg.h"

#define PAGE_ROWS 64 /* rows, entries or keys on a page; kernels assume it too */

/* What the plan is made from. A class with bytes_per_page 0 is not used by the model. */
struct pages_need {
	uint64_t bytes_per_page[PAGE__COUNT]; /* over all layers */
	uint32_t window;                      /* raw rows a query sees, itself included */
	uint32_t sequences;                   /* that may run at the same time */
	uint32_t step_tokens;
	uint64_t context;  /* tokens of one sequence */
	bool context_auto; /* context may be lowered to what fits */
	uint64_t memory;   /* bytes for pages */
	bool memory_auto;  /* memory is the machine's, not the user's: wording only */
};

struct pages_plan {
	struct page_class_info class[PAGE__COUNT];
	uint64_t context; /* <= need.context */
	uint64_t bytes;   /* of all pages */
};

/* Tokens a page of a class covers: PAGE_ROWS x {1, 4, 128}. */
uint32_t pages_tokens(enum page_class c);
/* Pages of class c that cover a sequence of `tokens` tokens (raw: from its first token). */
uint64_t pages_for(enum page_class c, uint64_t tokens);

/*
 * Divides need.memory: raw pages get what all sequences can use at the same time, up to half of
 * it; the compressed classes share the rest in proportion to their full need, and never get more
 * than that. -ENOSPC with err (78) when not even one sequence of need.context tokens fits.
 */
int pages_make_plan(
	const struct pages_need *need, struct pages_plan *ret_plan, struct errbuf *err) MUST_CHECK;

/* Kinds of pool: a class's KV, and the index keys of PAGE_CSA. */
enum pool_kind { POOL_RAW, POOL_CSA, POOL_HCA, POOL_KEYS, POOL__COUNT };

struct pool {
	unsigned char *base;  /* NULL when empty */
	uint64_t page_bytes;  /* of one page in one layer */
	uint64_t layer_bytes; /* count x page_bytes */
	uint32_t layers, count;
};

struct pools {
	struct pool pool[POOL__COUNT];
};

/* Reserves the pools. Zeroed memory; -ENOMEM with err. */
int pools_open(const struct pages_plan *plan, const uint32_t layers[POOL__COUNT],
	const uint64_t page_bytes[POOL__COUNT], struct pools *ret_pools,
	struct errbuf *err) MUST_CHECK;
void pools_close(struct pools *p);

/* Page 0 of the nth layer of a kind. */
static inline unsigned char *pool_layer(const struct pool *p, uint32_t nth)
{
	return p->base + nth * p->layer_bytes;
}

#endif
