/*
 * Inside CPU ops: running a piece of work on the context's threads and cutting the scratch arena.
 * Not for callers of ops.
 *
 * The same op sources are compiled once for each variant; KERN_FN(op) is the name in this one.
 */
#ifndef KERNELS_CPU_RUN_H
#define KERNELS_CPU_RUN_H

#include "kernels/cpu/ctx.h"
#include "kernels/cpu/variant.h"
#include "kernels/kern.h"

/* Sizes of blocks and tiles. No result depends on them, except KERN_KEY_TILE (README.md). */
enum {
	KERN_ROW_BLOCK = 192, /* rows of activations a product works on at a time */
	KERN_PANEL_K = 128,   /* columns of a widened panel */
	KERN_PANEL_N = 64,    /* outputs of a widened panel */
	KERN_PANEL_BYTES = 128 * 64 * 4,
	KERN_PRODUCT_BYTES = KERN_PANEL_BYTES + 192 * 64 * 4, /* a panel and its sums */
	KERN_KEY_TILE = 128,                                  /* keys of one softmax tile */
	KERN_SELECT_ROWS = 16,                                /* query rows scored together */
	KERN_SELECT_CHUNK = 4096,       /* entries scored before they compete */
	KERN_SERIAL_SPINNING = 1 << 15, /* kern_cpu_ctx.serial_work: a microsecond or two, */
	KERN_SERIAL_SLEEPING = 1 << 19  /* and some 20, for threads that spin or sleep */
};

/* Candidates a top-k keeps before it prunes. */
#define KERN_TOPK_CAP(k) ((size_t)(k) + MAX((size_t)(k), (size_t)1024))

#ifndef KERN_PREFIX
#define KERN_PREFIX kern_cpu_
#endif
#define KERN_CAT_(a, b) a##b
#define KERN_CAT(a, b)  KERN_CAT_(a, b)
#define KERN_FN(op)     KERN_CAT(KERN_PREFIX, op)

/* Part i of n of an op's work. */
typedef void (*kern_body_fn)(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n);

struct kern_call {
	kern_body_fn body;
	const void *job;
	struct kern_cpu_ctx *c;
};

static inline void kern_call_part(void *arg, unsigned i)
{
	const struct kern_call *call = arg;

	call->body(call->job, call->c, i, call->c->n);
}

/* Runs body on all threads, or in the caller alone when `work` multiply-adds are too few. */
static inline void kern_run(struct kern_cpu_ctx *c, size_t work, kern_body_fn body, const void *job)
{
	struct kern_call call = {body, job, c};

	if (c->n == 1 || work < c->serial_work)
		body(job, c, 0, 1);
	else
		kern_threads_run(c->threads, kern_call_part, &call);
}

/* The scratch arena as a bump allocator; get() returns NULL when the limits were too small. */
struct kern_arena {
	char *at, *end;
};

static inline struct kern_arena kern_arena(const struct kern_cpu_ctx *c)
{
	return (struct kern_arena){c->scratch, c->scratch + c->scratch_bytes};
}

static inline void *kern_arena_get(struct kern_arena *a, size_t bytes)
{
	char *p = a->at;

	bytes = ALIGN_UP(bytes, (size_t)64);
	if ((size_t)(a->end - p) < bytes)
		return NULL;
	a->at = p + bytes;
	return p;
}

#endif
