/*
 * link.h: plans become messages in the step ring, replies become checked results. It speaks
 * shm/msg.h over shm/chan.h for one generation of workers and keeps no state of sequences. It never
 * blocks; waiting is the loop's.
 *
 * A worker's bytes are input: each message is copied out of the shared memory, then checked, then
 * believed. Whatever is wrong with one of them loses the group (-EBADMSG): a worker that lied once
 * is not asked again.
 *
 * Order of calls: open, (room, send | receive | sleep, wake)*, stop, close.
 */
#ifndef COORDINATOR_LINK_H
#define COORDINATOR_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/sched.h"
#include "shm/chan.h"
#include "shm/msg.h"

struct link {
	struct chan_coord chan;
	uint64_t max_step_bytes;  /* of a MSG_STEP: what link_room() makes sure of */
	uint64_t max_reply_bytes; /* of a MSG_RESULT */
	void *room;               /* where the next message goes, while reserved */
	uint8_t *reply;           /* max_reply_bytes */
	bool full;                /* the last link_room() found the ring full */
	uint64_t steps_sent, results;
};

/* Returning < 0 (with err) ends the receiving and is passed on. */
struct link_ops {
	int (*on_result)(void *user, const struct msg_result_view *view, struct errbuf *err);
	void *user;
};

/* The group must outlive the link. -ENOMEM, -EINVAL. */
int link_open(struct link *l, struct seg_group *group) MUST_CHECK;
void link_close(struct link *l);

/*
 * Is there room for any step? 0; -EAGAIN: workers are behind, link_sleep() will wait for room;
 * -EPIPE, -EBADMSG with err: the group is lost.
 */
int link_room(struct link *l, struct errbuf *err) MUST_CHECK;

/* Writes the step into the room found and rings the workers. */
void link_send(struct link *l, const struct sched_plan *plan);

/* Tells the workers to finish. -EAGAIN when there is no room even for that. */
int link_stop(struct link *l) MUST_CHECK;

/*
 * Takes all replies there are. 0; -EBADMSG with err for a reply that is not in order; -ECOMM with
 * err when a worker says that it could not run a step; what on_result returned.
 */
int link_receive(struct link *l, const struct link_ops *ops, struct errbuf *err) MUST_CHECK;

/* Before the loop sleeps: true when it may; false: replies (or room) are there already. */
bool link_sleep(struct link *l) MUST_CHECK;
/* The bell has rung. */
void link_wake(struct link *l);

/* Counts of the message for a plan, for tests and for sizing. */
void link_count(const struct sched_plan *plan, struct msg_step *ret_counts);

#endif
