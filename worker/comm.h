/*
 * comm.h: collectives between the ranks of one model, behind a table so that the forward pass does
 * not know what carries them (shared memory now: comm_shm.h; a device library later).
 *
 * Every rank calls the same collectives in the same order with the same sizes. Results do not
 * depend on timing: sums are taken by rank number, 0 first. With world = 1 every call is a no-op.
 *
 * Errors are final: after -ETIMEDOUT (a peer is silent), -ECONNABORTED (the owner says to stop) or
 * -EPROTO (peers disagree on what is being done) the communicator only returns that error again.
 */
#ifndef WORKER_COMM_H
#define WORKER_COMM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "shm/util.h"

#define COMM_WORLD_MAX 64

struct comm;

struct comm_ops {
	int (*all_reduce_f32)(struct comm *c, float *x, size_t n);
	int (*all_gather)(struct comm *c, const void *mine, size_t bytes, void *ret_all);
	int (*broadcast)(struct comm *c, uint32_t root, void *buf, size_t bytes);
};

struct comm {
	const struct comm_ops *ops; /* NULL is allowed when world is 1 */
	uint32_t rank, world;
	uint64_t busy_ns; /* time spent inside collectives since the owner last cleared it */
};

/* x[n] becomes, on every rank, ((x of rank 0 + x of rank 1) + x of rank 2) ... Same bits on all. */
static inline MUST_CHECK int comm_all_reduce_f32(struct comm *c, float *x, size_t n)
{
	return c->world == 1 || n == 0 ? 0 : c->ops->all_reduce_f32(c, x, n);
}

/*
 * Every rank gives `bytes` bytes; ret_all receives world x bytes, in rank order. A rank that does
 * not need them passes NULL. ret_all must not overlap mine, except where it holds the rank's own
 * part (mine == ret_all + rank * bytes).
 */
static inline MUST_CHECK int comm_all_gather(
	struct comm *c, const void *mine, size_t bytes, void *ret_all)
{
	if (c->world > 1 && bytes > 0)
		return c->ops->all_gather(c, mine, bytes, ret_all);
	if (ret_all && ret_all != mine)
		memcpy(ret_all, mine, bytes);
	return 0;
}

/* buf[bytes] of rank `root` is copied into buf of the others. */
static inline MUST_CHECK int comm_broadcast(struct comm *c, uint32_t root, void *buf, size_t bytes)
{
	return c->world == 1 || bytes == 0 ? 0 : c->ops->broadcast(c, root, buf, bytes);
}

#endif
