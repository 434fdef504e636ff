/*
 * sched_world.h: a client of the scheduler that knows what each sequence must be answered, and the
 * simulated workers (sim.h) that answer. Shared by the tests of the scheduler.
 */
#ifndef TESTS_UNIT_SCHED_WORLD_H
#define TESTS_UNIT_SCHED_WORLD_H

#include "tests/unit/sim.h"

enum end { END_NONE, END_STOP, END_LENGTH, END_FAILED, END_CANCELLED };

struct client {
	struct sched_seq q;
	struct world *w;
	uint32_t id;
	uint64_t hash;      /* of prompt and what was received */
	uint64_t received;  /* generated tokens */
	uint64_t reported;  /* next prompt position to be reported */
	uint64_t cancel_at; /* cancel in the callback when that many are received; 0: never */
	uint64_t last_step; /* in which it had an entry */
	enum end end;
	struct client *next;
};

struct world {
	struct sched s;
	struct sim sim;
	struct sim_rng rng;
	mono_ns_t now;
	struct client *all;
	uint32_t ids, live;
	uint64_t ended[8];
	bool may_fail;
};

extern const uint32_t world_stops[2];
extern const struct sched_config usual; /* a small world with plenty of room */

struct client *client_of(struct sched_seq *q);
void end_client(struct client *c, enum end end);
void world_init(
	struct world *w, const struct sched_config *config, uint64_t seed, uint32_t queue_limit);
/* Nothing may run any more; every page and slot must be back. */
void world_fini(struct world *w);
void forget_clients(struct world *w, bool all);
struct client *add_client(struct world *w, uint64_t prompt_len, uint64_t max_tokens);
/* Frees the client when it is refused. */
int submit(struct world *w, struct client *c);
/* Plans a step and shows it to the workers. False: there was nothing to plan. */
bool plan(struct world *w);
/* Plans and runs until nothing is left; at every turn something must be possible. */
void drain(struct world *w);

#endif
