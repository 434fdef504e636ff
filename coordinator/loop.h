/*
 * loop.h: the daemon's one thread and one blocking call. The only file that touches io_uring is
 * loop.c (kernel >= 6.1); everything else sees completions as callbacks from loop_run().
 *
 * Objects that wait for something embed a `struct loop_event` and keep it alive until its callback
 * has run for the last time or loop_cancel() has returned its final callback (-ECANCELED).
 */
#ifndef COORDINATOR_LOOP_H
#define COORDINATOR_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/clock.h"
#include "shm/util.h"

struct loop;
struct loop_event;

/*
 * res: what the operation returned (>= 0 or -errno). `more`: further completions will follow (a
 * multishot operation is still armed); when false the event is idle and may be freed or re-armed.
 */
typedef void (*loop_fn)(struct loop_event *ev, int res, bool more);

struct loop_event {
	loop_fn fn;
	void *user;
	/* private to loop.c */
	struct loop *loop;
	uint32_t state;
	uint32_t op;
	void *next;
};

/* Fails with -ENOSYS and a sentence naming the kernel found and needed where io_uring is too old.
 */
int loop_new(uint32_t entries, struct loop **ret_loop, struct errbuf *err) MUST_CHECK;
struct loop *loop_free(struct loop *loop);

/* Runs until loop_stop(). Returns 0 or -errno of the ring itself. */
int loop_run(struct loop *loop) MUST_CHECK;
void loop_stop(struct loop *loop);
mono_ns_t loop_now(const struct loop *loop); /* time at the start of this turn */

/* Multishot poll: fn is called with the poll mask each time fd becomes ready. */
int loop_poll(struct loop *loop, struct loop_event *ev, int fd, uint32_t mask) MUST_CHECK;
int loop_accept(struct loop *loop, struct loop_event *ev, int listen_fd) MUST_CHECK;
/* One send of buf, which stays valid until the callback; partial sends are the caller's to go on.
 */
int loop_send(
	struct loop *loop, struct loop_event *ev, int fd, const void *buf, size_t len) MUST_CHECK;
void loop_cancel(struct loop *loop, struct loop_event *ev);

/* Timers: any number, cheap to move. fn gets res 0 when due. `when` is absolute. */
struct loop_timer {
	void (*fn)(struct loop_timer *t, void *user);
	void *user;
	mono_ns_t when; /* 0: idle */
	uint32_t heap_index;
};
void loop_timer_set(struct loop *loop, struct loop_timer *t, mono_ns_t when);
void loop_timer_stop(struct loop *loop, struct loop_timer *t);

/* Called once at the end of every turn, after all completions: batches what the turn produced. */
struct loop_hook {
	void (*fn)(void *user);
	void *user;
	struct loop_hook *next;
};
void loop_at_turn_end(struct loop *loop, struct loop_hook *hook);

/*
 * Work that could hold the loop up (tokenising a megabyte): run(user) on a pool thread, then
 * done(user) on the loop's thread. loop_work_queue never blocks.
 */
struct loop_work {
	void (*run)(void *user);
	void (*done)(void *user);
	void *user;
	struct loop_work *next;
};
int loop_work_start(struct loop *loop, uint32_t threads) MUST_CHECK;
void loop_work_queue(struct loop *loop, struct loop_work *w);

#endif
