/*
 * engine_impl.h: what the files of the engine share: engine.c (life, requests), engine_run.c
 * (steps), engine_status.c (/status). Nobody else includes it.
 */
#ifndef COORDINATOR_ENGINE_IMPL_H
#define COORDINATOR_ENGINE_IMPL_H

#include "coordinator/engine.h"
#include "coordinator/link.h"
#include "coordinator/loop.h"
#include "coordinator/place.h"
#include "coordinator/sched.h"
#include "coordinator/sup.h"

struct engine_seq {
	struct sched_seq q;
	struct engine *engine;
	struct engine_seq_ops ops;
	void *user;
	bool cancelled; /* in one of its own callbacks: freed when that returns */
	char id[132];
};

struct engine {
	struct loop *loop;
	struct conf *conf; /* "auto" resolved; frozen into each generation's segment */
	struct place_plan *plan;
	struct engine_hooks hooks;
	char *worker_path;
	struct sched sched;
	struct link link;
	struct sup sup;
	bool linked; /* the link and the scheduler are open */
	struct engine_limits limits;
	uint32_t step_tokens;
	enum engine_health health; /* as last told to on_health */

	bool draining, drained;
	void (*on_idle)(void *user);
	void *idle_user;
	void (*on_stopped)(void *user);
	void *stopped_user;

	struct engine_seq *current; /* whose callback is running */
	char lost_why[256];
	struct loop_hook turn_end;
	struct loop_timer receive_timer, expire_timer;
	struct engine_token *scratch; /* tokens of one callback */
	size_t scratch_cap;

	struct {
		uint64_t steps, run_ns, comm_ns, last_run_ns; /* as rank 0 reports */
		uint64_t handoffs, handoff_ns; /* steps sent to idle workers: there and back */
		uint64_t idle_step;            /* the last of them, if it is in flight, else 0 */
		mono_ns_t idle_sent_ns;
	} timing;
};

static inline struct engine_seq *engine_seq_of(struct sched_seq *q)
{
	return CONTAINER_OF(q, struct engine_seq, q);
}

void engine_seq_free(struct engine_seq *seq);
/* Ends a sequence: on_finish, then it is freed. sched has forgotten it. */
void engine_end(struct engine *e, struct engine_seq *seq, enum engine_finish reason,
	int http_status, const char *text);

/* engine_run.c: the scheduler's and the supervisor's callbacks. */
extern const struct sched_ops engine_sched_ops; /* user is filled in by engine_new() */
int engine_open_run(struct engine *e, struct seg_group *group, const struct worker_capacity *caps,
	struct errbuf *err) MUST_CHECK;
void engine_close_run(struct engine *e, const char *why);
void engine_receive(struct engine *e);
void engine_turn_end(void *user);
void engine_expire(struct engine *e);

#endif
