/*
 * work.h: the loop's pool of threads: takes struct loop_work, runs them in order, hands them back
 * through an eventfd. Knows nothing of the ring; loop.c polls work_fd() and calls work_reap().
 * Users see loop.h.
 */
#ifndef COORDINATOR_WORK_H
#define COORDINATOR_WORK_H

#include "coordinator/loop.h"

struct work_pool;

/* threads >= 1. -errno when a thread or the eventfd cannot be made. */
int work_new(uint32_t threads, struct work_pool **ret_pool) MUST_CHECK;
/* Waits for work that has begun; drops the rest. Accepts NULL, returns NULL. */
struct work_pool *work_free(struct work_pool *pool);

/* Becomes readable when something is done. */
int work_fd(const struct work_pool *pool);
void work_queue(struct work_pool *pool, struct loop_work *w);
/* Calls done() of all that is done, in the caller's thread. */
void work_reap(struct work_pool *pool);

#endif
