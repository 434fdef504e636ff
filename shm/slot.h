/*
 * slot.h: what a worker says of itself: state, progress, capacity, why it failed. It lies in the
 * worker's own segment and has one writer, the worker; the coordinator and the peers read it.
 *
 * The worker changes the state last, with release; what a state promises (capacity: READY, error:
 * FAILED) is written before it. Readers see it through the functions here, which copy and check:
 * bytes of a worker are input. After a change of state the worker rings the coordinator
 * (chan_notify()); progress needs no bell, the coordinator looks at it by a timer.
 */
#ifndef SHM_SLOT_H
#define SHM_SLOT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "shm/clock.h"
#include "shm/msg.h"
#include "shm/util.h"

/* X(name, "what it means"). The states only move forward; FAILED and STOPPED are last. */
#define WORKER_STATES(X)                                                                           \
	X(STARTING, "starting", "has not touched its segment yet, or sets up its device")          \
	X(LOADING, "loading", "reads its shard of the checkpoint")                                 \
	X(READY, "ready", "runs steps; its capacity is known")                                     \
	X(FAILED, "failed", "cannot go on; its error says why; the group is lost")                 \
	X(STOPPED, "stopped", "finished in order")

#define X(name, text, doc) WORKER_##name,
enum worker_state { WORKER_STATES(X) WORKER__STATES };
#undef X

/* X(name, text): where in a step the worker is. */
#define WORKER_STAGES(X)                                                                           \
	X(IDLE, "idle")                                                                            \
	X(LOAD, "load")                                                                            \
	X(EMBED, "embed")                                                                          \
	X(LAYER, "layer")                                                                          \
	X(HEAD, "head")                                                                            \
	X(SAMPLE, "sample")                                                                        \
	X(REPLY, "reply")

#define X(name, text) STAGE_##name,
enum worker_stage { WORKER_STAGES(X) STAGE__COUNT };
#undef X

/* What the coordinator may use of a worker: written once, before READY. */
struct worker_capacity {
	struct page_class_info classes[PAGE__COUNT];
	uint64_t max_context;   /* tokens of a sequence */
	uint64_t bytes_per_seq; /* state of one slot outside the pages (compressor rows) */
	uint64_t weights_bytes; /* of this shard, in memory */
	uint64_t pool_bytes;    /* all pages */
	uint64_t scratch_bytes; /* activations and workspaces */
	uint32_t max_sequences; /* slots 0 .. max_sequences-1 */
	uint32_t vocab;         /* token ids 0 .. vocab-1 */
	uint32_t step_tokens;   /* new tokens in a step this worker advises; also its largest */
	uint32_t threads;       /* compute threads */
	char dims[256];         /* the model in a line, for people */
	char numerics[128];     /* formats and kernels in use, for people */
};

struct worker_error {
	int32_t error;     /* -errno */
	int32_t exit_code; /* sysexits code the worker ends with, 0: none in particular */
	char text[512];    /* one sentence */
};

/* Writer of every field: the worker that owns the segment. */
struct worker_slot {
	_Alignas(64) _Atomic uint32_t state; /* enum worker_state */
	_Atomic int32_t pid;                 /* 0 until it has attached */
	_Atomic uint64_t generation;         /* of the segment it attached to */
	_Atomic uint64_t state_ns;           /* mono_now() of the last change of state */

	_Alignas(64) _Atomic uint64_t progress; /* grows by one at each sign of life in its work */
	_Atomic uint64_t progress_ns;           /* mono_now() of the last one */
	_Atomic uint64_t step;                  /* step it is at, 0 before the first */
	_Atomic uint32_t stage;                 /* enum worker_stage */
	_Atomic uint32_t layer;                 /* within STAGE_LAYER */
	_Atomic uint64_t load_done_bytes, load_total_bytes;

	_Alignas(64) struct worker_capacity capacity; /* plain: fixed once READY */
	struct worker_error error;                    /* plain: fixed once FAILED */
};

/* ---- the worker's side ---- */

/* First: pid and generation. */
void slot_begin(struct worker_slot *slot, uint64_t generation);
void slot_set_state(struct worker_slot *slot, enum worker_state state);
/* Capacity, then READY. */
void slot_set_ready(struct worker_slot *slot, const struct worker_capacity *capacity);
/* Error, then FAILED. The sentence is err's. */
void slot_set_failed(struct worker_slot *slot, int error, const struct errbuf *err);
/* A sign of life: about to do this. Cheap (three relaxed stores and a clock read). */
void slot_beat(struct worker_slot *slot, uint64_t step, enum worker_stage stage, uint32_t layer);
void slot_load(struct worker_slot *slot, uint64_t done_bytes, uint64_t total_bytes);

/* ---- the readers' side ---- */

/* A snapshot of everything that changes. */
struct slot_view {
	enum worker_state state;
	pid_t pid;
	uint64_t generation, state_ns;
	uint64_t progress, progress_ns, step;
	enum worker_stage stage;
	uint32_t layer;
	uint64_t load_done_bytes, load_total_bytes;
};

/* -EBADMSG when state or stage is none of ours; the view is then untouched. */
int slot_read(const struct worker_slot *slot, struct slot_view *ret_view) MUST_CHECK;
/* The state alone (acquire); WORKER_FAILED when the word is none of ours. */
enum worker_state slot_state(const struct worker_slot *slot);
/*
 * Copy of the capacity of a READY worker, checked for what the scheduler builds on: at least one
 * sequence, token, context position and raw page, class sizes that do not overflow, strings that
 * end. -EAGAIN when it is not READY; -EBADMSG with err.
 */
int slot_read_capacity(const struct worker_slot *slot, struct worker_capacity *ret_capacity,
	struct errbuf *err) MUST_CHECK;
/* Why a FAILED worker failed, made safe to print. -EAGAIN when it has not failed. */
int slot_read_error(const struct worker_slot *slot, struct worker_error *ret_error) MUST_CHECK;

const char *slot_state_name(enum worker_state state);
const char *slot_stage_name(enum worker_stage stage);

#endif
