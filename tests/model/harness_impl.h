/* The inside of the harness, shared by its files: harness.c (ranks, runs), harness_step.c (pages,
 * messages, state), harness_out.c (what is kept of a run). */
#ifndef TESTS_MODEL_HARNESS_IMPL_H
#define TESTS_MODEL_HARNESS_IMPL_H

#include <stdatomic.h>

#include "tests/model/harness.h"
#include "worker/comm_shm.h"
#include "worker/rank_impl.h"
#include "worker/state.h"

struct harness_slot {
	uint64_t pos, raw_first;
	uint32_t n[PAGE__COUNT];
	uint32_t *pages[PAGE__COUNT];
	uint32_t sampled; /* last sampled token */
};

struct harness_shared {
	struct bell_word flag;
	struct bell_armed armed;
};

struct harness {
	uint32_t world, layers;
	struct conf conf;
	struct rank *ranks[COMM_WORLD_MAX];
	struct worker_capacity capacity;

	struct comm_shm comms[COMM_WORLD_MAX];
	struct harness_shared *shared;
	unsigned char *areas;
	_Atomic int give_up; /* a rank has failed: the others stop waiting for it */

	struct harness_slot *slots;        /* [max_sequences] */
	uint32_t *free_pages[PAGE__COUNT]; /* stacks */
	uint32_t free_n[PAGE__COUNT];
	bool poison;
	uint64_t steps;

	void (*on_beat)(void *user); /* rank_hooks.on_beat of all ranks; gets the harness */

	void *reply; /* of the last step */
	size_t reply_cap;
	struct harness_part *parts; /* of the running step, for the hooks */
	uint32_t part_n;
};

/* Calls f once for each rank, in parallel; the first failure, with its sentence. */
int harness_on_all(struct harness *h,
	int (*f)(struct harness *h, uint32_t rank, void *arg, struct errbuf *err), void *arg,
	struct errbuf *err) MUST_CHECK;

void harness_pages_open(struct harness *h, uint64_t seed);
void harness_pages_close(struct harness *h);

/* Appends a part's tokens, from position pos on, to its out: before the step, whose hooks then
 * find their places. */
void harness_out_begin(struct harness_out *out, uint64_t pos, const uint32_t *tokens, uint32_t n);
void harness_out_hooks(struct harness *h, struct rank_hooks *ret_hooks);

#endif
