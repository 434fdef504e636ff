/*
 * chan.h: rings and bells of a group joined: what the coordinator's link and a worker's step loop
 * call. Adds no state of its own to the segments.
 *
 *	coordinator                                       worker
 *	chan_step_reserve, chan_step_commit   ──step──▶   chan_step_next, chan_step_done
 *	chan_reply_pop                        ◀─reply──   chan_reply_reserve, chan_reply_commit
 *	chan_sleep, io_uring, chan_wake       ◀─state──   chan_notify
 *
 * The coordinator never blocks; a worker's waits end with the group (seg_group_alive). Each end
 * belongs to one thread.
 */
#ifndef SHM_CHAN_H
#define SHM_CHAN_H

#include "shm/seg.h"

struct chan_coord {
	struct seg_group *group;
	struct ring_writer step;
	struct ring_reader replies[SEG_WORKERS_MAX];
	const struct bell_armed *armed[SEG_WORKERS_MAX];
	bool owes_bell[SEG_WORKERS_MAX]; /* room was made in its reply ring; not rung for yet */
};

struct chan_worker {
	struct seg_group *group;
	struct ring_reader step;
	struct ring_writer reply;
	struct bell_how how;
};

/* ---- the coordinator ---- */

/* The group must outlive the channel. */
int chan_coord_init(struct chan_coord *c, struct seg_group *group) MUST_CHECK;

/* As ring_reserve(); -EAGAIN: sleep for BELL_SPACE. */
int chan_step_reserve(struct chan_coord *c, size_t bytes, void **ret_payload) MUST_CHECK;
/* Publishes, and wakes the workers that sleep. */
void chan_step_commit(struct chan_coord *c, size_t bytes);

/*
 * Copies the next reply of a worker. As ring_pop(). A worker that waits for room is told when its
 * ring is empty, not at each reply: go on until this returns something other than 0.
 */
int chan_reply_pop(
	struct chan_coord *c, uint32_t rank, void *buf, size_t cap, size_t *ret_bytes) MUST_CHECK;

/*
 * Before sleeping on group->bell_fd: arms for replies and changes of state, and for room in the
 * step ring of `space_bytes` (0: does not wait for room). Returns true when it may sleep. False:
 * something is there already; it is disarmed, go and look. States of slots are not looked at here:
 * read them after this call and before sleeping.
 */
bool chan_sleep(struct chan_coord *c, size_t space_bytes) MUST_CHECK;
/* Awake: disarms and empties the eventfd. */
void chan_wake(struct chan_coord *c);

/* ---- a worker ---- */

/* spin_ns: fabric.spin, resolved. check_ns: liveness checks, 0: 100 ms. */
int chan_worker_init(struct chan_worker *c, struct seg_group *group, uint64_t spin_ns,
	uint64_t check_ns) MUST_CHECK;

/*
 * Waits for the next step record. 0; -ETIMEDOUT at the deadline (0: none); -EPIPE when the
 * coordinator is gone, the group is lost or the ring is closed; -EBADMSG.
 */
int chan_step_next(struct chan_worker *c, mono_ns_t deadline, const void **ret_payload,
	size_t *ret_bytes) MUST_CHECK;
/* Releases the record. */
void chan_step_done(struct chan_worker *c);

/* Room for a reply; waits while the coordinator is behind. As chan_step_next(), and -EMSGSIZE. */
int chan_reply_reserve(
	struct chan_worker *c, size_t bytes, mono_ns_t deadline, void **ret_payload) MUST_CHECK;
/* Publishes, and wakes the coordinator when it sleeps. */
void chan_reply_commit(struct chan_worker *c, size_t bytes);

/* Wakes the coordinator when it sleeps: after a change of the slot's state. Needs only the group,
 * so that it can be called before chan_worker_init(). */
void chan_notify(struct seg_group *group);

#endif
