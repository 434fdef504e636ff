/*
 * sched_impl.h: what the files of the scheduler share: sched.c (lists and life), sched_plan.c (what
 * runs in a step), sched_room.c (who gives way), sched_result.c (what came of it). Nobody else
 * includes it but their tests.
 */
#ifndef COORDINATOR_SCHED_IMPL_H
#define COORDINATOR_SCHED_IMPL_H

#include "coordinator/sched.h"

/* Bytes of messages, padding included, besides the arrays (see shm/msg.h). */
#define SCHED_STEP_FIXED  (sizeof(struct msg_hdr) + sizeof(struct msg_step) + 64)
#define SCHED_ENTRY_FIXED (sizeof(struct msg_seq) + sizeof(struct msg_sample) + 64)
#define SCHED_REPLY_FIXED (sizeof(struct msg_hdr) + sizeof(struct msg_result) + 64)

/* Positions a sequence feeds in its life: its last sampled token is never an input. */
static inline uint64_t sched_positions(const struct sched_seq *q)
{
	return q->prompt_len + (q->max_tokens > 0 ? q->max_tokens - 1 : 0);
}

void sched_move(struct sched *s, struct sched_seq *q, enum sched_state state);
void sched_promise(struct sched *s, struct sched_seq *q, enum page_class cls, uint64_t pages);
void sched_release(struct sched *s, struct sched_seq *q);
void sched_forget(struct sched *s, struct sched_seq *q);

/* -E2BIG with err when pools or messages could not hold the sequence even alone. */
int sched_check_fits(
	const struct sched *s, const struct sched_seq *q, struct errbuf *err) MUST_CHECK;
/* Positions to promise to a sequence that is at `position`. */
uint64_t sched_ahead(const struct sched *s, const struct sched_seq *q, uint64_t position);
/* Before a step: promises more to those that need it, and ends the last ones admitted if need be,
 * to be resubmitted. Done twice it does nothing more. */
void sched_make_room(struct sched *s, mono_ns_t now);
/* Gives slots to the head of the queue as long as it fits. */
void sched_admit(struct sched *s, mono_ns_t now);

#endif
