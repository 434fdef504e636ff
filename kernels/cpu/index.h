/* What the variants of index_score and index_select share: checks and addressing. */
#ifndef KERNELS_CPU_INDEX_H
#define KERNELS_CPU_INDEX_H

#include "kernels/kern.h"
#include "kernels/layout.h"

/* Every visible entry of every row must have its page. */
static inline int kern_index_check(const struct kern_index_args *x)
{
	if (!kern_index_value_bytes(x->format) || !x->share.world ||
		x->share.rank >= x->share.world || !x->heads)
		return -EINVAL;
	for (uint32_t q = 0; q < x->batch->nseq; q++) {
		const struct kern_seq *s = &x->batch->seqs[q];

		if ((uint64_t)s->page_n[KERN_CSA] * KERN_PAGE < (s->pos0 + s->n) / 4)
			return -EINVAL;
	}
	return 0;
}

static inline int kern_index_score_check(const struct kern_index_score_args *a)
{
	if (a->first % KERN_PAGE || a->row0 > a->index.batch->ntok ||
		a->rows > a->index.batch->ntok - a->row0)
		return -EINVAL;
	return kern_index_check(&a->index);
}

/* Whether this rank scores a page of a sequence. */
static inline bool kern_index_mine(const struct kern_index_args *x, uint32_t page)
{
	return kern_share_rank(page, x->share.world) == x->share.rank;
}

/* The page of a sequence's entries; it exists, kern_index_check() has seen to it. */
static inline void *kern_index_page(
	const struct kern_index_args *x, const struct kern_seq *s, uint32_t page)
{
	return (char *)x->pool.base + s->pages[KERN_CSA][page] * x->pool.stride;
}

#endif
