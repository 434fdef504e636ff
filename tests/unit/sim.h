/*
 * sim.h: a make-believe worker group for tests of the scheduler. It sees plans only (as bytes in a
 * ring would be seen), keeps its own page tables and token histories, checks every rule of
 * shm/msg.h, and answers with tokens that are a function of the history it was fed.
 */
#ifndef TESTS_UNIT_SIM_H
#define TESTS_UNIT_SIM_H

#include "coordinator/sched.h"
#include "tests/proc/fake_model.h"

#define SIM_SLOTS 64
#define SIM_STEPS 8

/* Pseudo-random numbers with a printed seed. */
struct sim_rng {
	uint64_t state;
};
uint32_t sim_rand(struct sim_rng *r, uint32_t below);
uint64_t sim_seed(const char *test); /* from TEST_SEED or the clock; printed */

struct sim_slot {
	bool used;
	uint64_t pos, hash;
	bool has_sample;
	uint32_t sampled; /* in its last entry */
	uint64_t raw_first, end[PAGE__COUNT];
	uint32_t *ids[PAGE__COUNT]; /* every page ever appended */
	uint64_t epoch;
};

struct sim_entry {
	struct sched_entry e;
	uint32_t *tokens; /* e.n */
	uint32_t banned_n;
	const uint32_t *banned;
};

struct sim_step {
	uint64_t step;
	uint32_t n;
	struct sim_entry *entries;
	uint32_t *pages;
};

struct sim {
	struct sched *sched;
	uint32_t vocab;
	struct sim_slot slots[SIM_SLOTS];
	struct sim_step steps[SIM_STEPS]; /* ring: head .. head+count-1 */
	uint32_t head, count;
	uint64_t epoch;               /* counts sequences begun */
	uint8_t *busy[PAGE__COUNT];   /* page was held by someone when planning began */
	uint64_t *owner[PAGE__COUNT]; /* epoch of the sequence it was last granted to */
};

void sim_init(struct sim *sim, struct sched *s);
void sim_fini(struct sim *sim);
/* Before sched_plan(): remembers which pages are held. */
void sim_before_plan(struct sim *sim);
/* A plan was made: check it against the rules and keep a copy of what a message would hold. */
void sim_take_plan(struct sim *sim, const struct sched_plan *plan);
/* Run the oldest step and hand its result to the scheduler. */
void sim_run(struct sim *sim);

#endif
