/*
 * sup.h: the life of the worker group: check first, spawn, wait until all are ready, watch, and
 * when one is lost take the whole group down and build it anew. It owns the segments and the
 * processes; what runs on them is the engine's.
 *
 *	IDLE ─▶ CHECKING ─▶ STARTING ─▶ READY ─▶ STOPPING ─▶ STOPPED
 *	           │           │  ▲       │          ▲ stop, from anywhere
 *	           │           ▼  │       ▼
 *	        refused     TEARDOWN ◀────┘   abort, SIGKILL, wait, close the segments
 *	                       │  └─▶ BACKOFF (100 ms, doubling) ─▶ STARTING, next generation
 *	                       └────▶ FAILED   refused, or too many restarts
 *
 * A worker is lost when it exits, says FAILED, sends what it should not, or makes no progress for
 * fabric.progress_timeout while it has work or loads. Idle workers make none; of them only those
 * that are stopped (SIGSTOP, a debugger) count as silent.
 *
 * Before the group has been ready once, a worker that ends by itself is a refusal: its exit code
 * and sentence go to on_refused() and nothing is tried again (but exit code 69 says "I lost my
 * peers", which is no refusal). After that, and for deaths by signal, the group is restarted,
 * max_restarts times without a served request in between.
 *
 * All on the loop's thread, which must be the main thread (spawn.h).
 */
#ifndef COORDINATOR_SUP_H
#define COORDINATOR_SUP_H

#include <stdbool.h>

#include "coordinator/loop.h"
#include "coordinator/place.h"
#include "coordinator/preflight.h"
#include "coordinator/spawn.h"
#include "shm/seg.h"
#include "shm/slot.h"

#define SUP_REPLY_RING_BYTES (4u << 20)
#define SUP_COMM_BYTES       (512u * 1024 + 4096) /* a worker's collective area: worker/comm_shm.h */
#define SUP_STOP_GRACE_NS    (5 * NS_PER_S)
#define SUP_BACKOFF_MIN_NS   (100 * NS_PER_MS)
#define SUP_BACKOFF_MAX_NS   (10 * NS_PER_S)

enum sup_state {
	SUP_IDLE,
	SUP_CHECKING,
	SUP_STARTING,
	SUP_READY,
	SUP_TEARDOWN,
	SUP_BACKOFF,
	SUP_STOPPING,
	SUP_STOPPED,
	SUP_FAILED
};

struct sup_ops {
	/* All are ready. Returning < 0 (with err) refuses or loses the group. */
	int (*on_ready)(void *user, struct seg_group *group, const struct worker_capacity *caps,
		struct errbuf *err);
	void (*on_bell)(void *user);                  /* READY: replies, room, a slot's state */
	void (*on_lost)(void *user, const char *why); /* was READY; segments are still mapped */
	void (*on_state)(void *user, enum sup_state state, const char *why);
	void (*on_refused)(void *user, int exit_code, const char *text);
	void (*on_stopped)(void *user);
	bool (*has_work)(void *user); /* steps are in flight */
	void *user;
};

struct sup_worker {
	struct sup *sup;
	struct spawn_child child;
	struct loop_event exit_event;
	bool alive;           /* not reaped */
	bool polled;          /* exit_event is armed */
	int status;           /* wait status, when it has been reaped */
	bool ended_by_itself; /* before we killed the group */
	uint64_t progress;    /* when last looked at */
	mono_ns_t seen_ns;    /* last sign of life */
};

struct sup {
	struct loop *loop;
	struct sup_ops ops;
	const struct conf *conf; /* resolved; what is frozen into the segment */
	const struct place_plan *plan;
	const char *worker_path;
	mono_ns_t progress_timeout_ns;
	int64_t max_restarts;

	enum sup_state state;
	bool ever_ready, stop_wanted;
	bool draining;          /* a group lost now is not built anew */
	bool killed;            /* this generation was sent SIGKILL */
	mono_ns_t watch_due_ns; /* when the workers are looked at next */
	uint32_t failures;      /* group losses since the last served request */
	uint64_t restarts;      /* in all */
	uint64_t generation;
	mono_ns_t ready_ns; /* when it last became ready */
	char why[512];      /* the group was lost for; without pids, for clients see it */
	int refuse_code;    /* of a spawn or capacity that cannot work; 0: none */

	struct preflight check;
	struct loop_event check_event;
	bool checking, check_polled;
	struct loop_event bell_event;
	bool bell_polled;
	struct loop_timer timer; /* check timeout, watching, backoff or grace, by state */
	struct seg_group *group;
	struct worker_capacity *caps; /* by rank, when READY */
	struct sup_worker workers[SEG_WORKERS_MAX];
};

/* conf, plan and worker_path stay the caller's and must outlive it. 0 or -ENOMEM. */
int sup_init(struct sup *s, struct loop *loop, const struct conf *conf,
	const struct place_plan *plan, const char *worker_path,
	const struct sup_ops *ops) MUST_CHECK;
/* After loop_settle(): kills and reaps what is left. */
void sup_fini(struct sup *s);

int sup_start(struct sup *s, struct errbuf *err) MUST_CHECK;
/* READY workers have been told (MSG_STOP) and get SUP_STOP_GRACE_NS; others are killed. */
void sup_stop(struct sup *s);
/* The daemon finishes what runs and stops: from now on a loss is final. */
void sup_drain(struct sup *s);
/* A loss now, or the one whose teardown goes on, is followed by another generation. */
bool sup_restarts(const struct sup *s);
/* The engine found the group broken (a reply that lies, a step that failed). */
void sup_lose(struct sup *s, const char *why);
/* A request was served: restarts count from 0 again. */
void sup_served(struct sup *s);
void sup_set_limits(struct sup *s, mono_ns_t progress_timeout_ns, int64_t max_restarts);
/* Work came or went: deadlines count from now on. */
void sup_touch(struct sup *s);
/* Looks at the workers' states; call after the bell was armed, before sleeping. */
void sup_look(struct sup *s);

const char *sup_state_name(enum sup_state state);

#endif
