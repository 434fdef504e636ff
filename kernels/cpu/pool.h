/*
 * A small thread pool with fixed partitions. kern_threads_run() calls f(arg, i) once for each
 * i < n, thread i always index i, the caller being thread 0, and returns when all have. No work
 * stealing, no queues: what a thread does is a function of its index, so results cannot depend on
 * timing. Idle threads spin for a bounded time, then sleep. Several pools live side by side; a
 * pool has one caller at a time.
 */
#ifndef KERNELS_CPU_POOL_H
#define KERNELS_CPU_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "shm/util.h"

struct kern_threads;

/* Starts n - 1 threads, with all signals blocked; they inherit the caller's affinity. A wait spins
 * for spin_ns at most, for less after waits in which that was in vain, and not at all with 0.
 * Returns 0, -ENOMEM or pthread_create's error. */
int kern_threads_new(unsigned n, uint64_t spin_ns, struct kern_threads **ret_pool) MUST_CHECK;
void kern_threads_free(struct kern_threads *p);

void kern_threads_run(struct kern_threads *p, void (*f)(void *arg, unsigned i), void *arg);

/* Part i of n of the range 0 .. total, in whole units (the last may be cut). */
struct kern_part {
	size_t begin, end;
};

static inline struct kern_part kern_part(size_t total, size_t unit, unsigned i, unsigned n)
{
	size_t units = DIV_UP(total, unit);
	struct kern_part p = {units * i / n * unit, units * (i + 1) / n * unit};

	p.begin = MIN(p.begin, total);
	p.end = MIN(p.end, total);
	return p;
}

#endif
