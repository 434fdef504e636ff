/*
 * timer.h: the loop's timers in order of time: a pairing heap threaded through struct loop_timer,
 * so that setting one allocates nothing. Knows no clock and calls nobody. Users see loop.h.
 *
 * Inserting is O(1), removing and moving are O(log n) amortised.
 */
#ifndef COORDINATOR_TIMER_H
#define COORDINATOR_TIMER_H

#include "coordinator/loop.h"

/* The earliest timer, or NULL. Zeroed, it is empty. */
struct timer_heap {
	struct loop_timer *root;
};

/* t is not in a heap; t->when is set. */
void timer_insert(struct timer_heap *h, struct loop_timer *t);
/* t is in h. */
void timer_remove(struct timer_heap *h, struct loop_timer *t);

#endif
