/*
 * stats.h: counters of a worker, written only by its step thread, read by anyone at any time.
 * Single values are never torn; a snapshot is not a consistent cut of several.
 *
 * TO ADD A COUNTER: one row here; it appears in /status by its name.
 */
#ifndef SHM_STATS_H
#define SHM_STATS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* X(name, "what it counts") */
#define STATS_COUNTERS(X)                                                                          \
	X(steps, "steps run")                                                                      \
	X(tokens, "tokens run, prompt and generated")                                              \
	X(prompt_tokens, "tokens run, but those sampled before")                                   \
	X(samples, "tokens sampled (rank 0)")                                                      \
	X(run_ns, "time in steps")                                                                 \
	X(comm_ns, "of which in collectives, waiting included")                                    \
	X(comm_wait_ns, "of which waiting for peers")                                              \
	X(comm_bytes, "bytes this worker put into collectives")                                    \
	X(wait_ns, "time waiting for a step")                                                      \
	X(nan_rows, "rows of logits that held a NaN")                                              \
	X(load_ns, "time to load the shard")

struct worker_stats {
#define X(name, doc) _Atomic uint64_t name;
	STATS_COUNTERS(X)
#undef X
} __attribute__((aligned(64)));

/* A snapshot, with names for printing. */
struct stats_row {
	const char *name, *doc;
	uint64_t value;
};
#define X(name, doc) +1
enum { STATS__COUNT = 0 STATS_COUNTERS(X) };
#undef X
void stats_read(const struct worker_stats *s, struct stats_row ret_rows[STATS__COUNT]);

/* Owner only: a load and a store, no locked instruction. */
#define stats_add(s, name, amount)                                                                 \
	atomic_store_explicit(&(s)->name,                                                          \
		atomic_load_explicit(&(s)->name, memory_order_relaxed) + (uint64_t)(amount),       \
		memory_order_relaxed)
#define stats_get(s, name) atomic_load_explicit(&(s)->name, memory_order_relaxed)

#endif
