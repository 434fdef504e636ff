#include "coordinator/loop.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "coordinator/loop_check.h"
#include "coordinator/timer.h"
#include "coordinator/work.h"

/*
 * The loop's operations, declared once: the submissions, and what the ring is allowed to do at all.
 *	name, opcode, multishot, how to fill a submission for `ev`
 */
#define LOOP_OPS(X)                                                                                \
	X(POLL, IORING_OP_POLL_ADD, true, io_uring_prep_poll_multishot(sqe, ev->fd, ev->mask))     \
	X(ACCEPT, IORING_OP_ACCEPT, true,                                                          \
		io_uring_prep_multishot_accept(sqe, ev->fd, NULL, NULL, SOCK_CLOEXEC))             \
	X(SEND, IORING_OP_SEND, false,                                                             \
		io_uring_prep_send(sqe, ev->fd, ev->buf, ev->len, MSG_NOSIGNAL))                   \
	X(CANCEL, IORING_OP_ASYNC_CANCEL, false, io_uring_prep_cancel(sqe, ev, 0))

enum loop_op {
#define X(name, opcode, multi, prep) OP_##name,
	LOOP_OPS(X)
#undef X
		OP__COUNT
};

static const struct {
	uint8_t opcode;
	bool multishot;
} ops[] = {
#define X(name, opcode, multi, prep) [OP_##name] = {opcode, multi},
	LOOP_OPS(X)
#undef X
};

/*
 * An event is on the todo list in WANTED, DROPPED and, until its cancellation is submitted, ENDING.
 *
 *	IDLE ─ poll, accept, send ─▶ WANTED ─ submitted ─▶ ARMED ─ last completion ─▶ IDLE
 *	                               │ cancel              │ cancel
 *	                               ▼                     ▼
 *	                            DROPPED ─▶ IDLE        ENDING ─ last completion ─▶ IDLE
 *
 * ARMED goes back to WANTED when the kernel ends a multishot that nobody cancelled.
 */
enum event_state { EV_IDLE, EV_WANTED, EV_ARMED, EV_DROPPED, EV_ENDING };

struct loop {
	struct io_uring ring;
	mono_ns_t now;
	struct loop_event *todo, **todo_end;
	uint32_t armed; /* operations the kernel has */
	bool stop, again, settled, in_timers;
	struct timer_heap timers;
	struct loop_hook *hooks;
	struct work_pool *work;
	struct loop_event work_event;
};

static void todo_append(struct loop *loop, struct loop_event *ev)
{
	ev->next = NULL;
	ev->prev = loop->todo ? CONTAINER_OF(loop->todo_end, struct loop_event, next) : NULL;
	*loop->todo_end = ev;
	loop->todo_end = &ev->next;
}

static bool todo_has(const struct loop *loop, const struct loop_event *ev)
{
	return ev->prev || loop->todo == ev;
}

static void todo_remove(struct loop *loop, struct loop_event *ev)
{
	if (ev->prev)
		ev->prev->next = ev->next;
	else
		loop->todo = ev->next;
	if (ev->next)
		ev->next->prev = ev->prev;
	else
		loop->todo_end = ev->prev ? &ev->prev->next : &loop->todo;
	ev->next = ev->prev = NULL;
}

static struct io_uring_sqe *get_sqe(struct loop *loop)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&loop->ring);

	if (!sqe) {
		/* more than `entries` in one turn: make room; what fails here fails in the wait too
		 */
		(void)io_uring_submit(&loop->ring);
		sqe = io_uring_get_sqe(&loop->ring);
	}
	return sqe;
}

static void fill_sqe(struct io_uring_sqe *sqe, struct loop_event *ev, enum loop_op op)
{
	switch (op) {
#define X(name, opcode, multi, prep)                                                               \
	case OP_##name:                                                                            \
		prep;                                                                              \
		break;
		LOOP_OPS(X)
#undef X
	case OP__COUNT:
		break;
	}
	/* a cancellation's own result is of no interest: its target's last completion is */
	io_uring_sqe_set_data(sqe, op == OP_CANCEL ? NULL : ev);
}

/* Turns the todo list into submissions; without room for all, the rest waits for the next turn. */
static void fill_submissions(struct loop *loop)
{
	struct io_uring_sqe *sqe;
	struct loop_event *ev;

	while ((ev = loop->todo)) {
		if (ev->state == EV_DROPPED) {
			todo_remove(loop, ev);
			ev->state = EV_IDLE;
			ev->fn(ev, -ECANCELED, false);
			loop_again(loop); /* what the callback did is for this turn's hooks */
			continue;
		}
		sqe = get_sqe(loop);
		if (!sqe) {
			loop_again(loop);
			return;
		}
		todo_remove(loop, ev);
		if (ev->state == EV_WANTED) {
			fill_sqe(sqe, ev, ev->op);
			ev->state = EV_ARMED;
			loop->armed++;
		} else {
			fill_sqe(sqe, ev, OP_CANCEL);
		}
	}
}

static void complete(struct loop *loop, const struct io_uring_cqe *cqe)
{
	struct loop_event *ev = io_uring_cqe_get_data(cqe);
	bool more = cqe->flags & IORING_CQE_F_MORE;
	int res = cqe->res;

	if (!ev)
		return;
	if (!more)
		loop->armed--;
	if (ev->state == EV_ENDING || loop->settled) {
		if (ev->op == OP_ACCEPT && res >= 0)
			close(res);
		if (more)
			return;
		if (todo_has(loop, ev))
			todo_remove(loop, ev);
		ev->state = EV_IDLE;
		if (!loop->settled)
			ev->fn(ev, ev->op == OP_SEND ? res : -ECANCELED, false);
	} else if (more) {
		ev->fn(ev, res, true);
	} else if (ops[ev->op].multishot && res >= 0) {
		/* the kernel had no room for a completion and ended it: not the owner's affair */
		ev->state = EV_WANTED;
		todo_append(loop, ev);
		ev->fn(ev, res, true);
	} else {
		ev->state = EV_IDLE;
		ev->fn(ev, res, false);
	}
}

static void complete_all(struct loop *loop)
{
	struct io_uring_cqe *cqe;
	unsigned head, n = 0;

	io_uring_for_each_cqe(&loop->ring, head, cqe)
	{
		complete(loop, cqe);
		n++;
	}
	io_uring_cq_advance(&loop->ring, n);
}

/* Submits all there is and blocks until something completes or a timer is due. */
static int submit_and_wait(struct loop *loop)
{
	struct loop_timer *first = loop->timers.root;
	struct __kernel_timespec ts, *timeout = NULL;
	struct io_uring_cqe *cqe;
	mono_ns_t now, wait = 0;
	int r;

	if (first && !loop->again) {
		now = mono_now();
		wait = first->when > now ? first->when - now : 0;
		ts = (struct __kernel_timespec){.tv_sec = (int64_t)(wait / NS_PER_S),
			.tv_nsec = (long long)(wait % NS_PER_S)};
		timeout = &ts;
	}
	if (loop->again || loop->stop || (timeout && wait == 0))
		r = io_uring_submit_and_get_events(&loop->ring);
	else
		r = io_uring_submit_and_wait_timeout(&loop->ring, &cqe, 1, timeout, NULL);
	loop->again = false;
	/* EBUSY, EAGAIN: completions or memory are short; collecting what is there makes room */
	if (r == -ETIME || r == -EINTR || r == -EBUSY || r == -EAGAIN)
		return 0;
	return MIN(r, 0);
}

static void run_timers(struct loop *loop)
{
	struct loop_timer *t;

	loop->in_timers = true;
	while ((t = loop->timers.root) && t->when <= loop->now) {
		timer_remove(&loop->timers, t);
		if (t->due > t->when) {
			t->when = t->due;
			timer_insert(&loop->timers, t);
			continue;
		}
		t->when = 0;
		t->fn(t, t->user);
	}
	loop->in_timers = false;
}

static void run_hooks(struct loop *loop)
{
	struct loop_hook *hook, *next;

	for (hook = loop->hooks; hook; hook = next) {
		next = hook->next;
		hook->fn(hook->user);
	}
}

int loop_run(struct loop *loop)
{
	int r = 0;

	while (!loop->stop && r == 0) {
		fill_submissions(loop);
		r = submit_and_wait(loop);
		loop->now = mono_now();
		complete_all(loop);
		run_timers(loop);
		run_hooks(loop);
	}
	loop->stop = false;
	return r;
}

void loop_stop(struct loop *loop)
{
	loop->stop = true;
}

mono_ns_t loop_now(const struct loop *loop)
{
	return loop->now;
}

static int want(struct loop *loop, struct loop_event *ev, enum loop_op op)
{
	if (loop->settled)
		return 0;
	ev->op = (uint8_t)op;
	ev->state = EV_WANTED;
	todo_append(loop, ev);
	return 0;
}

int loop_poll(struct loop *loop, struct loop_event *ev, int fd, uint32_t mask)
{
	if (ev->state != EV_IDLE)
		return -EBUSY;
	ev->fd = fd;
	ev->mask = mask;
	return want(loop, ev, OP_POLL);
}

int loop_accept(struct loop *loop, struct loop_event *ev, int listen_fd)
{
	if (ev->state != EV_IDLE)
		return -EBUSY;
	ev->fd = listen_fd;
	return want(loop, ev, OP_ACCEPT);
}

int loop_send(struct loop *loop, struct loop_event *ev, int fd, const void *buf, size_t len)
{
	if (ev->state != EV_IDLE)
		return -EBUSY;
	ev->fd = fd;
	ev->buf = buf;
	ev->len = len;
	return want(loop, ev, OP_SEND);
}

void loop_cancel(struct loop *loop, struct loop_event *ev)
{
	if (loop->settled)
		return;
	if (ev->state == EV_WANTED) {
		ev->state = EV_DROPPED;
	} else if (ev->state == EV_ARMED) {
		ev->state = EV_ENDING;
		todo_append(loop, ev);
	}
}

bool loop_is_idle(const struct loop_event *ev)
{
	return ev->state == EV_IDLE;
}

void loop_timer_set(struct loop *loop, struct loop_timer *t, mono_ns_t when)
{
	/* one that sets itself to a time that has passed must not keep run_timers() from ending */
	t->due = MAX(when, loop->in_timers ? loop->now + 1 : 1);
	if (t->when && t->due >= t->when)
		return; /* put off */
	if (t->when)
		timer_remove(&loop->timers, t);
	t->when = t->due;
	timer_insert(&loop->timers, t);
}

void loop_timer_stop(struct loop *loop, struct loop_timer *t)
{
	if (t->when)
		timer_remove(&loop->timers, t);
	t->when = 0;
}

void loop_at_turn_end(struct loop *loop, struct loop_hook *hook)
{
	struct loop_hook **at = &loop->hooks;

	while (*at)
		at = &(*at)->next;
	hook->next = NULL;
	*at = hook;
}

void loop_hook_remove(struct loop *loop, struct loop_hook *hook)
{
	struct loop_hook **at = &loop->hooks;

	while (*at && *at != hook)
		at = &(*at)->next;
	if (*at)
		*at = hook->next;
}

void loop_again(struct loop *loop)
{
	loop->again = true;
}

static void on_work_done(struct loop_event *ev, int res, bool more)
{
	struct loop *loop = ev->user;

	if (res >= 0)
		work_reap(loop->work);
}

int loop_work_start(struct loop *loop, uint32_t threads)
{
	int r = work_new(threads, &loop->work);

	if (r < 0)
		return r;
	loop->work_event = (struct loop_event){.fn = on_work_done, .user = loop};
	return loop_poll(loop, &loop->work_event, work_fd(loop->work), POLLIN);
}

void loop_work_queue(struct loop *loop, struct loop_work *w)
{
	if (!loop->settled)
		work_queue(loop->work, w);
}

static int read_sysctl_disabled(void)
{
	FILE *f = fopen("/proc/sys/kernel/io_uring_disabled", "re");
	int value = -1;

	if (f) {
		if (fscanf(f, "%d", &value) != 1)
			value = -1;
		fclose(f);
	}
	return value;
}

/* liburing 2.3 declares helpers for the two registrations we need but does not export them. */
static int ring_register(struct io_uring *ring, unsigned op, void *arg, unsigned n)
{
	return syscall(SYS_io_uring_register, ring->ring_fd, op, arg, n) < 0 ? -errno : 0;
}

/*
 * From here on the ring does what is in LOOP_OPS and nothing else, whoever gets hold of it: no
 * files opened, no registrations. A seccomp filter would not see what goes through a ring.
 */
static int restrict_ring(struct io_uring *ring)
{
	struct io_uring_restriction res[OP__COUNT + 1] = {0};

	for (int i = 0; i < OP__COUNT; i++) {
		res[i].opcode = IORING_RESTRICTION_SQE_OP;
		res[i].sqe_op = ops[i].opcode;
	}
	res[OP__COUNT].opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED;
	res[OP__COUNT].sqe_flags = 0;
	return ring_register(ring, IORING_REGISTER_RESTRICTIONS, res, ARRAY_LEN(res));
}

static int open_ring(
	struct io_uring *ring, uint32_t entries, const char *release, struct errbuf *err)
{
	/*
	 * SINGLE_ISSUER, DEFER_TASKRUN: completions are made when this thread asks for them, in one
	 * batch, and never interrupt it (COOP_TASKRUN would be the weaker form of the same).
	 * CQSIZE: thousands of connections may become ready in one turn; an overflow loses nothing
	 * but ends multishots. SUBMIT_ALL: one bad submission does not hold up those behind it.
	 * R_DISABLED: until the restrictions stand.
	 */
	struct io_uring_params p = {
		.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
			 IORING_SETUP_CQSIZE | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_CLAMP |
			 IORING_SETUP_R_DISABLED,
		.cq_entries = entries * 16,
	};
	int r = io_uring_queue_init_params(entries, ring, &p);

	if (r < 0)
		return loop_explain_setup(r, read_sysctl_disabled(), release, err);
	r = restrict_ring(ring);
	if (r == 0)
		r = ring_register(ring, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
	if (r < 0) {
		io_uring_queue_exit(ring);
		return err_set(err, r, EXIT_OS_ERR,
			"cannot restrict the io_uring ring to its own operations on kernel %s: %s",
			release, strerror(-r));
	}
	return 0;
}

int loop_new(uint32_t entries, struct loop **ret_loop, struct errbuf *err)
{
	struct utsname uts;
	struct loop *loop;
	int r;

	if (uname(&uts) < 0)
		return err_set(err, -errno, EXIT_OS_ERR, "uname: %s", strerror(errno));
	r = loop_check_kernel(uts.release, err);
	if (r < 0)
		return r;
	loop = calloc(1, sizeof(*loop));
	if (!loop)
		return err_set(err, -ENOMEM, EXIT_OS_ERR, "no memory for the event loop");
	r = open_ring(&loop->ring, entries, uts.release, err);
	if (r < 0) {
		free(loop);
		return r;
	}
	loop->todo_end = &loop->todo;
	loop->now = mono_now();
	*ret_loop = loop;
	return 0;
}

void loop_settle(struct loop *loop)
{
	struct __kernel_timespec second = {.tv_sec = 1};
	struct io_uring_sqe *sqe;
	struct io_uring_cqe *cqe;
	int r = 0;

	if (loop->settled)
		return;
	loop->settled = true;
	while (loop->todo) {
		struct loop_event *ev = loop->todo;

		todo_remove(loop, ev);
		ev->state = EV_IDLE;
	}
	sqe = get_sqe(loop);
	if (sqe) {
		io_uring_prep_cancel64(sqe, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
		io_uring_sqe_set_data(sqe, NULL);
	}
	/* cancelling does not block; the timeout is only against a kernel that forgets one */
	while (loop->armed > 0 && (r >= 0 || r == -EINTR || r == -EAGAIN || r == -EBUSY)) {
		r = io_uring_submit_and_wait_timeout(&loop->ring, &cqe, 1, &second, NULL);
		complete_all(loop);
	}
	loop->work = work_free(loop->work);
}

struct loop *loop_free(struct loop *loop)
{
	if (!loop)
		return NULL;
	loop_settle(loop);
	io_uring_queue_exit(&loop->ring);
	free(loop);
	return NULL;
}
