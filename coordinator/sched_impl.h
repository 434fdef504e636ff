/*
 * sched_impl.h: what the files of the scheduler share: sched.c (lists and life), sched_plan.c (what
 * runs in a step), sched_room.c (who gives way), sched_result.c (what came of it). Nobody else
 * includes it but their tests.
 *
 * PROMISES. The pages of one class, in the counters of struct sched and struct pages:
 *
 *	 held by sequences   limbo_n                free_n
 *	├──────────────────┼──────────┼─────────────────────────────────────┤  count
 *	  unref ──────────▶  settle ─▶
 *	                   ├──────────────────────┼─────────────────────────┤
 *	                          promised           free for admissions,
 *	                                             longer chunks, more promises
 *
 * promised: what sequences may still claim without asking, the sum of their tables' promised; which
 * pages is open. Between two steps promised <= free_n + limbo_n: what is in limbo settles before
 * the next step takes any. Inside a step it does not, so what the step takes comes from free_n, and
 * leaves there what is due: promised to the sequences whose turn in this step is still to come
 * (due begins as promised, and each sequence takes its own off as its turn begins). A draft needs
 * both: take + due <= free_n, and promised with its new promise <= free_n + limbo_n after it.
 *
 * What a sequence is promised depends on the class:
 *
 *	compressed  assured: positions whose pages it has or may claim; promised is what it lacks
 *	            of them. When fed reaches assured, sched_make_room() raises it by `ahead`.
 *	raw         pages fall off the front as the window slides, and a window with the next row
 *	            touches at most 3 pages of 64 (raw_entitlement()). It is promised what it lacks
 *	            of 3; if nothing, 1 when its next token begins a page.
 *
 * A prompt of 200 tokens, max_tokens 4,000, ahead 1,024, alone in 400 raw pages of 64 tokens and
 * 100 CSA pages of 256. Of the tables, first..end and promised; test_sched repeats it:
 *
 *	after       raw         limbo free   CSA        free  assured
 *	admission   0..0   + 3    0   400    0..0  + 5   100    1224   200 + ahead
 *	the prompt  0..4   + 0    0   396    0..1  + 4    99    1224   one more than promised
 *	201 tokens  1..4   + 0    1   396    0..1  + 4    99    1224   page 0 left the window
 *	256         2..4   + 1    1   397    0..1  + 4    99    1224   so did 1: it covers the + 1
 *	257         2..5   + 0    0   397    0..2  + 3    98    1224   it settled, 4 is claimed
 *	1,224       17..20 + 0    0   397    0..5  + 0    95    1224
 *	1,225       17..20 + 0    0   397    0..5  + 4    95    2248   room was made before
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
