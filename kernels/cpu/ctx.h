/*
 * What an op on the CPU runs with: a pool of threads and a scratch arena, both made before the
 * first step. It is the `stream` of every CPU op. One context serves one caller at a time; several
 * contexts in a process are independent.
 */
#ifndef KERNELS_CPU_CTX_H
#define KERNELS_CPU_CTX_H

#include "kernels/cpu/pool.h"
#include "shm/util.h"

/* What bounds the scratch: shapes of the model and of a step, never the length of a prompt. */
struct kern_cpu_limits {
	uint32_t max_tokens;  /* rows of a step */
	uint32_t heads;       /* of this rank */
	uint32_t index_heads; /* 0: no indexer */
	uint32_t topk;        /* index_topk; 0: no indexer */
	uint32_t world;       /* workers whose lists index_merge joins, >= 1 */
	uint32_t max_k;       /* longest row of any weight, 4 * hidden_size included */
	uint32_t experts, experts_per_token;
};

struct kern_cpu_ctx {
	struct kern_threads *threads;
	unsigned n; /* threads, the caller included */
	/* multiply-adds below which an op stays in the caller: waking a sleeper costs more */
	size_t serial_work;
	char *scratch; /* 64-byte aligned */
	size_t scratch_bytes;
};

/* Bytes of scratch for n threads; start-up prints it. */
size_t kern_cpu_scratch_bytes(const struct kern_cpu_limits *l, unsigned n);

/*
 * Makes a context of n threads (the caller is one of them: n = 1 makes none) that spin at most
 * spin_ns for the next op before they sleep. Returns 0, -ENOMEM or -EAGAIN.
 */
int kern_cpu_ctx_init(struct kern_cpu_ctx *c, const struct kern_cpu_limits *l, unsigned n,
	uint64_t spin_ns) MUST_CHECK;
void kern_cpu_ctx_free(struct kern_cpu_ctx *c);

#endif
