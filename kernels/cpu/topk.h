/*
 * Streaming exact top-k in bounded memory. Candidates arrive in ascending entry order and stay in
 * it, so that ties need no second key: of equal scores the earlier one is kept. A buffer holds at
 * most KERN_TOPK_CAP(k) candidates; when it is full it is cut back to the best k, and from then on
 * only greater scores than the k-th may enter (an equal one would lose its tie).
 */
#ifndef KERNELS_CPU_TOPK_H
#define KERNELS_CPU_TOPK_H

#include <stdbool.h>

#include "kernels/cpu/run.h"

struct kern_topk {
	float *v;    /* [cap] */
	uint32_t *e; /* [cap] */
	uint32_t n, k, cap;
	float floor; /* once cut: what a newcomer must exceed */
	bool cut;
	uint32_t nan;
};

static inline void kern_topk_init(struct kern_topk *t, void *memory, uint32_t k)
{
	uint32_t cap = (uint32_t)KERN_TOPK_CAP(k);

	*t = (struct kern_topk){.v = memory, .k = k, .cap = cap};
	t->e = (uint32_t *)(t->v + cap);
}

/* Cuts the candidates back to the best k. */
void KERN_FN(topk_cut)(struct kern_topk *t);

/* Pushes v[n], of entries first, first + 1 ..; 16 at a time looked at where the CPU can. */
void KERN_FN(topk_push_all)(struct kern_topk *t, const float *v, uint32_t n, uint32_t first);

/* Adds the candidates of a list whose entries all come after those of t; cuts both where they must
 * be. Nothing is pushed to t any more. */
void KERN_FN(topk_append)(struct kern_topk *t, struct kern_topk *after);

/* Cuts, and writes entries ascending, -1 up to k; values may be NULL. Returns the count. */
uint32_t KERN_FN(topk_finish)(struct kern_topk *t, int32_t *entries, float *values);

static inline void kern_topk_push(struct kern_topk *t, float v, uint32_t e)
{
	if (v != v) {
		t->nan++;
		return;
	}
	if (t->cut && !(v > t->floor))
		return;
	if (t->n == t->cap) {
		KERN_FN(topk_cut)(t);
		if (!(v > t->floor))
			return;
	}
	t->v[t->n] = v + 0.0f; /* -0 becomes +0 */
	t->e[t->n++] = e;
}

#endif
