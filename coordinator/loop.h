/*
 * loop.h: the daemon's one thread and one blocking call. The only file that touches io_uring is
 * loop.c (kernel >= 6.1); everything else sees completions as callbacks from loop_run().
 *
 * Objects that wait for something embed a `struct loop_event` and keep it alive until its callback
 * has run for the last time (`more` is false) or, after loop_run() has returned for good, until
 * loop_settle() or loop_free().
 *
 * One thread: loop_new() and everything else here is called by the thread that calls loop_run();
 * the kernel refuses others. Callbacks come from loop_run(), never from inside loop_poll() and the
 * like. A turn: wait, completions, timers, turn-end hooks, then one submission of all that the turn
 * asked for.
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
 * poll or accept is still armed); when false the event is idle and may be freed or used again, also
 * from inside this callback.
 */
typedef void (*loop_fn)(struct loop_event *ev, int res, bool more);

/* Zeroed and with fn set (user is the owner's to use), it is idle. */
struct loop_event {
	loop_fn fn;
	void *user;
	/* private to loop.c */
	struct loop_event *next, *prev;
	const void *buf;
	size_t len;
	int fd;
	uint32_t mask;
	uint8_t op;
	uint8_t state;
};

/*
 * `entries`: submissions batched at a time (a power of two; more than that still works). Fails with
 * -ENOSYS or -EPERM and a sentence that names the kernel found and needed, or the switch that has
 * io_uring disabled.
 */
int loop_new(uint32_t entries, struct loop **ret_loop, struct errbuf *err) MUST_CHECK;
/* Settles, stops the work threads, frees. Accepts NULL, returns NULL. */
struct loop *loop_free(struct loop *loop);

/* Runs until loop_stop(). Returns 0 or -errno of the ring itself. */
int loop_run(struct loop *loop) MUST_CHECK;
/* Ends loop_run() after this turn; may be called before it as well. */
void loop_stop(struct loop *loop);
mono_ns_t loop_now(const struct loop *loop); /* time at the start of this turn */

/*
 * The end of the loop, after loop_run() has returned for the last time: cancels whatever is still
 * armed and waits until the kernel has let go of every file and buffer. No callback runs, accepted
 * connections are closed, and later calls for events do nothing. Waits for the work that pool
 * threads have begun, drops the rest, and ends the threads. Owners of events and of work may then
 * be freed in any order. loop_free() does it too.
 */
void loop_settle(struct loop *loop);

/*
 * Multishot poll (poll(2) masks; POLLHUP and POLLERR always come). fn gets the mask each time
 * something WAKES the file: read or write until -EAGAIN, there is no reminder (and now and then a
 * call with nothing new). The loop re-arms by itself where the kernel ended the multishot; `more`
 * is false only with an error (res < 0). Cancel before you close the file: the kernel holds it
 * while it is polled.
 *
 * These three return 0, or -EBUSY when the event is not idle.
 */
int loop_poll(struct loop *loop, struct loop_event *ev, int fd, uint32_t mask) MUST_CHECK;
/*
 * Multishot accept: fn gets each new connection (blocking, close-on-exec) as res. After an error
 * such as -EMFILE `more` is false; arm it again when there is hope.
 */
int loop_accept(struct loop *loop, struct loop_event *ev, int listen_fd) MUST_CHECK;
/*
 * One send of buf, which stays valid until the callback; partial sends are the caller's to go on.
 * It waits in the kernel for room. A vanished peer is -EPIPE or -ECONNRESET, never a signal.
 */
int loop_send(
	struct loop *loop, struct loop_event *ev, int fd, const void *buf, size_t len) MUST_CHECK;
/*
 * Ends an event: fn runs exactly once more, from a later point of the loop, with `more` false and
 * -ECANCELED (a send that had got through by then reports its bytes). Nothing happens to an idle
 * event or one already being cancelled.
 */
void loop_cancel(struct loop *loop, struct loop_event *ev);
bool loop_is_idle(const struct loop_event *ev);

/*
 * Timers: any number, cheap to move, setting one cannot fail. fn runs once when the time has come,
 * in order of time; the timer is idle by then and may be set again or freed. Zeroed with fn and
 * user set, it is idle. `when` is absolute; a time in the past is due in this or the next turn.
 */
struct loop_timer {
	void (*fn)(struct loop_timer *t, void *user);
	void *user;
	mono_ns_t when; /* 0: idle; never later than `due` */
	/* private to loop.c: when it is to fire. One that is put off again and again is not moved
	 * each time: it is looked at when it would have fired before. */
	mono_ns_t due;
	/* private to timer.c: a pairing heap threaded through the timers themselves */
	struct loop_timer *child, *next, *prev;
};
void loop_timer_set(struct loop *loop, struct loop_timer *t, mono_ns_t when);
void loop_timer_stop(struct loop *loop, struct loop_timer *t);

/*
 * Called at the end of every turn, after all completions and timers, in order of registration, for
 * as long as the loop lives or until loop_hook_remove(): batches what the turn produced.
 */
struct loop_hook {
	void (*fn)(void *user);
	void *user;
	struct loop_hook *next;
};
void loop_at_turn_end(struct loop *loop, struct loop_hook *hook);
void loop_hook_remove(struct loop *loop, struct loop_hook *hook);
/*
 * The next turn does not sleep: what is ready is collected and the hooks run again. For a hook that
 * leaves work behind, or one that may have been fed after its call in this turn.
 */
void loop_again(struct loop *loop);

/*
 * Work that could hold the loop up (tokenising a megabyte): run(user) on a pool thread, then
 * done(user) on the loop's thread. loop_work_queue never blocks. Work starts in the order queued.
 * Signals are blocked in the threads. There is no way to take work back; what has not begun when
 * the loop is freed is dropped, and its done() never runs.
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
