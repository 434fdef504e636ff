/*
 * engine_world.h: the engine with real processes: fake workers (fake_worker.c) that are told to
 * die, hang, stop, lie or refuse, and clients that know what they must be answered. A case runs the
 * loop until what it waits for has happened.
 */
#ifndef TESTS_PROC_ENGINE_WORLD_H
#define TESTS_PROC_ENGINE_WORLD_H

#include "coordinator/engine_impl.h"

#define VOCAB       4096
#define FIRST       64

#define CLIENTS_MAX 40

struct world {
	struct loop *loop;
	struct engine *engine;
	struct conf conf;
	char dir[64];
	bool (*done)(struct world *w);
	struct loop_hook hook;
	struct loop_timer patience;
	bool timed_out;
	/* what was told */
	uint32_t readies, restartings, for_good, refusals, idles, stops;
	int refused_code;
	char refused_text[600], why[600];
};

struct client {
	struct world *w;
	struct engine_seq *seq;
	uint64_t hash, received, max_tokens, reported, prompt_len;
	uint64_t cancel_at;
	uint32_t finishes, prefills;
	enum engine_finish reason;
	int http_status;
	char text[600];
};

/* Engine and loop, not started; engine, loop and no child are left after end(). */
void begin(struct world *w, uint32_t workers);
/* With FAKE_FAULT, unless it is NULL. */
void start(struct world *w, uint32_t workers, const char *fault);
void start_ready(struct world *w, uint32_t workers, const char *fault);
void end(struct world *w);
/* Runs the loop until done(); fails after half a minute. */
void run_until(struct world *w, bool (*done)(struct world *w), const char *what);
/* cmocka set-up: no FAKE_ variable is left from the case before. */
int clear_env(void **state);

extern struct client clients[CLIENTS_MAX];
extern uint32_t client_n; /* of them are used by all_finished() */
int ask(struct world *w, struct client *c, uint32_t prompt_len, uint64_t max_tokens);
/* clients[0], to its end. */
void ask_one(struct world *w, uint32_t prompt_len, uint64_t max_tokens);
void assert_answered(const struct client *c);
void assert_lost(const struct client *c, const char *why);

/* For run_until(). */
bool is_ready(struct world *w);
bool is_ready_again(struct world *w);
bool is_over(struct world *w); /* refused, or failed for good */
bool is_stopped(struct world *w);
bool all_finished(struct world *w);
extern uint64_t wait_step;
bool step_reached(struct world *w); /* wait_step was planned */
void on_stopped(void *user);        /* for engine_stop() */

#endif
