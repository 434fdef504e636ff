/*
 * scratch.h: how much memory a rank takes for the buffers of a step, whatever is in it. Arithmetic
 * only: what rank.c allocates, and what `heddle inspect` shows without a worker.
 */
#ifndef WORKER_SCRATCH_H
#define WORKER_SCRATCH_H

#include "kernels/cpu/ctx.h"
#include "worker/shape.h"

/* The bounds of the kernels' own scratch. */
struct kern_cpu_limits scratch_limits(const struct shape *sh);

/* Bytes with so many compute threads: worker_capacity.scratch_bytes. */
uint64_t scratch_bytes(const struct shape *sh, uint32_t threads);

#endif
