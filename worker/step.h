/*
 * step.h: one step from message to answer: checks it against what the rank knows, brings the slots
 * up to date, runs the forward pass and the head, writes the result. The functions are those of
 * rank.h (rank_step, rank_reply_bytes); this header has the check alone, for tests.
 */
#ifndef WORKER_STEP_H
#define WORKER_STEP_H

#include "worker/rank.h"

/* 0, or -EBADMSG with err naming the sequence and the field. Changes nothing. */
int step_check(
	const struct rank *r, const struct msg_step_view *step, struct errbuf *err) MUST_CHECK;

#endif
