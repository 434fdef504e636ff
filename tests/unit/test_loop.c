/* The loop as its users see it: polls, accepts, sends, cancellations, timers, hooks. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/loop.h"
#include "coordinator/signal.h"

/* An event that writes down what it saw and stops the loop after `want` calls. */
struct probe {
	struct loop_event ev;
	struct loop *loop;
	int calls, last_res, want;
	bool last_more, accept, cancel_at_first;
	int fds[64];
};

static void on_probe(struct loop_event *ev, int res, bool more)
{
	struct probe *p = CONTAINER_OF(ev, struct probe, ev);

	if (p->accept && res >= 0)
		p->fds[p->calls] = res;
	p->calls++;
	p->last_res = res;
	p->last_more = more;
	assert_int_equal(loop_is_idle(ev), !more);
	if (p->cancel_at_first && more)
		loop_cancel(p->loop, ev);
	if (p->calls == p->want)
		loop_stop(p->loop);
}

static int setup(void **state)
{
	struct errbuf err = {0};
	struct loop *loop;

	if (loop_new(16, &loop, &err) < 0) {
		print_error("%s\n", err.text);
		return -1;
	}
	*state = loop;
	return 0;
}

static int teardown(void **state)
{
	*state = loop_free(*state);
	return 0;
}

static struct probe probe(struct loop *loop, int want)
{
	return (struct probe){.ev.fn = on_probe, .loop = loop, .want = want};
}

static void test_poll_reports_every_wakeup(void **state)
{
	struct loop *loop = *state;
	struct probe p = probe(loop, 1);
	int fd = eventfd(0, EFD_NONBLOCK);
	eventfd_t v;

	assert_int_equal(loop_poll(loop, &p.ev, fd, POLLIN), 0);
	assert_int_equal(loop_poll(loop, &p.ev, fd, POLLIN), -EBUSY);
	for (int i = 1; i <= 500; i++) {
		p.want = i;
		eventfd_write(fd, 1);
		assert_int_equal(loop_run(loop), 0);
		assert_int_equal(p.calls, i);
		assert_int_equal(p.last_res, POLLIN);
		assert_true(p.last_more);
		assert_int_equal(eventfd_read(fd, &v), 0);
	}
	loop_settle(loop); /* the events go with this frame */
	close(fd);
}

static void test_cancel_gives_one_last_ecanceled(void **state)
{
	struct loop *loop = *state;
	struct probe p = probe(loop, 2);
	int fd = eventfd(1, EFD_NONBLOCK);

	/* from inside its own callback */
	p.cancel_at_first = true;
	assert_int_equal(loop_poll(loop, &p.ev, fd, POLLIN), 0);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(p.calls, 2);
	assert_int_equal(p.last_res, -ECANCELED);
	assert_false(p.last_more);
	assert_true(loop_is_idle(&p.ev));

	/* before it was ever submitted; twice is once */
	p = probe(loop, 1);
	assert_int_equal(loop_poll(loop, &p.ev, fd, POLLIN), 0);
	loop_cancel(loop, &p.ev);
	loop_cancel(loop, &p.ev);
	assert_int_equal(p.calls, 0);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(p.calls, 1);
	assert_int_equal(p.last_res, -ECANCELED);

	/* idle: nothing */
	loop_cancel(loop, &p.ev);
	loop_stop(loop);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(p.calls, 1);
	close(fd);
}

/* Two events of one turn: the first one's callback cancels the other, whose own is in the batch. */
struct rival {
	struct loop_event ev;
	struct loop *loop;
	struct rival *other;
	int calls, cancelled;
};

static void on_rival(struct loop_event *ev, int res, bool more)
{
	struct rival *r = CONTAINER_OF(ev, struct rival, ev);

	if (res == -ECANCELED) {
		assert_false(more);
		r->cancelled++;
		loop_stop(r->loop);
		return;
	}
	r->calls++;
	loop_cancel(r->loop, &r->other->ev);
}

static void test_cancel_hides_completions_already_collected(void **state)
{
	struct loop *loop = *state;
	struct rival a = {.ev.fn = on_rival, .loop = loop}, b = a;
	int fds[2] = {eventfd(1, EFD_NONBLOCK), eventfd(1, EFD_NONBLOCK)};

	a.other = &b;
	b.other = &a;
	assert_int_equal(loop_poll(loop, &a.ev, fds[0], POLLIN), 0);
	assert_int_equal(loop_poll(loop, &b.ev, fds[1], POLLIN), 0);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(a.calls + b.calls, 1);
	assert_int_equal(a.cancelled + b.cancelled, 1);
	loop_settle(loop); /* the events go with this frame */
	close(fds[0]);
	close(fds[1]);
}

static int listen_somewhere(struct sockaddr_un *addr)
{
	socklen_t len = sizeof(*addr);
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	*addr = (struct sockaddr_un){.sun_family = AF_UNIX};
	assert_int_equal(bind(fd, (struct sockaddr *)addr, sizeof(addr->sun_family)), 0);
	assert_int_equal(listen(fd, 64), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)addr, &len), 0);
	return fd;
}

static int connect_to(const struct sockaddr_un *addr)
{
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	/* an autobound abstract name: NUL and five digits */
	assert_int_equal(connect(fd, (const struct sockaddr *)addr, sizeof(sa_family_t) + 6), 0);
	return fd;
}

static void test_accept_takes_all_and_stops_when_cancelled(void **state)
{
	enum { N = 50 };
	struct loop *loop = *state;
	struct probe p = probe(loop, N);
	struct sockaddr_un addr;
	int listener = listen_somewhere(&addr), clients[N];

	p.accept = true;
	assert_int_equal(loop_accept(loop, &p.ev, listener), 0);
	for (int i = 0; i < N; i++)
		clients[i] = connect_to(&addr);
	assert_int_equal(loop_run(loop), 0);
	for (int i = 0; i < N; i++) {
		assert_int_equal(write(clients[i], "x", 1), 1);
		close(clients[i]);
	}
	for (int i = 0; i < N; i++) {
		char c;

		assert_int_equal(read(p.fds[i], &c, 1), 1);
		close(p.fds[i]);
	}
	p.want = N + 1;
	loop_cancel(loop, &p.ev);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(p.last_res, -ECANCELED);
	close(listener);
}

static void test_send_to_a_closed_peer_is_epipe_without_a_signal(void **state)
{
	struct loop *loop = *state;
	struct probe p = probe(loop, 1);
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	close(fds[1]);
	assert_int_equal(loop_send(loop, &p.ev, fds[0], "hello", 5), 0);
	assert_int_equal(loop_run(loop), 0); /* SIGPIPE would end the test */
	assert_int_equal(p.last_res, -EPIPE);
	assert_false(p.last_more);
	close(fds[0]);
}

static void on_drain(struct loop_timer *t, void *user)
{
	static char sink[1 << 16];
	int *fd = user;

	/* on the test's own end: make room for the waiting send */
	while (recv(*fd, sink, sizeof(sink), MSG_DONTWAIT) > 0)
		;
}

static void test_send_waits_for_room_and_can_be_cancelled(void **state)
{
	struct loop *loop = *state;
	struct probe p = probe(loop, 1);
	static char big[1 << 22];
	struct loop_timer drain = {.fn = on_drain};
	int fds[2], n;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	while ((n = (int)send(fds[0], big, sizeof(big), MSG_DONTWAIT)) > 0)
		;
	assert_int_equal(errno, EAGAIN);
	/* full: it waits until the timer has read the other end */
	drain.user = &fds[1];
	loop_timer_set(loop, &drain, mono_now() + NS_PER_MS);
	assert_int_equal(loop_send(loop, &p.ev, fds[0], "hello", 5), 0);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(p.last_res, 5);

	while ((n = (int)send(fds[0], big, sizeof(big), MSG_DONTWAIT)) > 0)
		;
	p = probe(loop, 1);
	assert_int_equal(loop_send(loop, &p.ev, fds[0], "hello", 5), 0);
	loop_stop(loop);
	assert_int_equal(loop_run(loop), 0);
	loop_cancel(loop, &p.ev);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(p.last_res, -ECANCELED);
	close(fds[0]);
	close(fds[1]);
}

struct hooked {
	struct loop_hook hook;
	struct loop *loop;
	int calls, again, stop_at;
};

static void on_turn_end(void *user)
{
	struct hooked *h = user;

	h->calls++;
	if (h->again-- > 0)
		loop_again(h->loop);
	if (h->calls == h->stop_at)
		loop_stop(h->loop);
}

struct ticker {
	struct loop_timer t;
	struct loop *loop;
	mono_ns_t due, *last;
	int *left, again;
};

static void on_tick(struct loop_timer *t, void *user)
{
	struct ticker *k = user;

	assert_int_equal(t->when, 0);
	assert_true(loop_now(k->loop) >= k->due);
	assert_true(k->due >= *k->last);
	*k->last = k->due;
	if (k->again-- > 0) {
		k->due = loop_now(k->loop);
		loop_timer_set(k->loop, t, k->due); /* overdue already: must not spin in place */
		return;
	}
	if (--*k->left == 0)
		loop_stop(k->loop);
}

static void test_timers_fire_in_order_and_not_early(void **state)
{
	enum { N = 300 };
	struct loop *loop = *state;
	struct ticker k[N];
	mono_ns_t start = mono_now(), last = 0;
	int left = N - 1;

	for (int i = 0; i < N; i++) {
		k[i] = (struct ticker){.t = {.fn = on_tick, .user = &k[i]},
			.loop = loop,
			.last = &last,
			.left = &left,
			.due = start + (mono_ns_t)((i * 7919) % N) * 20 * NS_PER_US};
		/* then put forward, or off */
		loop_timer_set(loop, &k[i].t, i % 2 ? start + NS_PER_S : start);
		loop_timer_set(loop, &k[i].t, k[i].due);
	}
	loop_timer_stop(loop, &k[4].t);
	loop_timer_stop(loop, &k[4].t);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(left, 0);

	/* one that keeps setting itself to the past gets its call once a turn, beside all others */
	struct hooked h = {.hook.fn = on_turn_end, .hook.user = &h, .loop = loop};

	loop_at_turn_end(loop, &h.hook);
	left = 1;
	k[0].again = 100;
	k[0].due = loop_now(loop);
	loop_timer_set(loop, &k[0].t, 0); /* long ago */
	assert_int_equal(loop_run(loop), 0);
	assert_true(h.calls >= 100);
	loop_hook_remove(loop, &h.hook);
}

static void test_hooks_run_each_turn_and_again_does_not_sleep(void **state)
{
	struct loop *loop = *state;
	struct hooked a = {.hook.fn = on_turn_end, .loop = loop}, b = a;

	a.hook.user = &a;
	b.hook.user = &b;
	a.again = 10;
	b.stop_at = 11; /* nothing else would ever wake this loop */
	loop_at_turn_end(loop, &a.hook);
	loop_at_turn_end(loop, &b.hook);
	loop_again(loop);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(a.calls, 11);
	assert_int_equal(b.calls, 11);
	loop_hook_remove(loop, &a.hook);
	loop_hook_remove(loop, &a.hook);
	b.stop_at = 12;
	loop_again(loop);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(a.calls, 11);
	assert_int_equal(b.calls, 12);
}

static int signals_seen[2];

static void on_signal(void *user, int signo)
{
	signals_seen[signo == SIGHUP]++;
	if (signals_seen[0] && signals_seen[1])
		loop_stop(user);
}

static void test_signals_arrive_as_events(void **state)
{
	struct loop *loop = *state;
	struct signal_watch w = {.fn = on_signal, .user = loop};
	const int signos[] = {SIGUSR1, SIGHUP};

	assert_int_equal(signal_watch(loop, &w, signos, 2), 0);
	kill(getpid(), SIGUSR1);
	kill(getpid(), SIGHUP);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(signals_seen[0], 1);
	assert_int_equal(signals_seen[1], 1);
	loop_settle(loop);
	signal_unwatch(&w);
}

/* Everything still armed: the kernel must let go of it all, also of a buffer being sent. */
static void test_settle_lets_go_of_everything(void **state)
{
	struct loop *loop = *state;
	struct probe poll_p = probe(loop, 0), accept_p = poll_p, send_p = poll_p, wanted_p = poll_p;
	struct sockaddr_un addr;
	int listener = listen_somewhere(&addr), fds[2], client;
	size_t len = 1 << 20;
	char *buf = malloc(len);

	memset(buf, 'a', len);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	while (send(fds[0], buf, len, MSG_DONTWAIT) > 0)
		;
	assert_int_equal(loop_poll(loop, &poll_p.ev, fds[1], POLLHUP), 0);
	assert_int_equal(loop_accept(loop, &accept_p.ev, listener), 0);
	assert_int_equal(loop_send(loop, &send_p.ev, fds[0], buf, len), 0);
	loop_again(loop);
	struct hooked h = {.hook.fn = on_turn_end, .hook.user = &h, .loop = loop, .stop_at = 1};
	loop_at_turn_end(loop, &h.hook);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(loop_poll(loop, &wanted_p.ev, fds[1], POLLHUP), 0);
	client = connect_to(&addr); /* accepted or not, it must not leak */

	loop_settle(loop);
	free(buf);
	assert_int_equal(poll_p.calls + send_p.calls + wanted_p.calls, 0);
	loop_cancel(loop, &poll_p.ev);
	close(listener);
	for (char c; recv(client, &c, 1, 0) > 0;)
		fail();
	close(client);
	close(fds[0]);
	assert_int_equal(shutdown(fds[1], SHUT_WR), 0);
	close(fds[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		T(test_poll_reports_every_wakeup),
		T(test_cancel_gives_one_last_ecanceled),
		T(test_cancel_hides_completions_already_collected),
		T(test_accept_takes_all_and_stops_when_cancelled),
		T(test_send_to_a_closed_peer_is_epipe_without_a_signal),
		T(test_send_waits_for_room_and_can_be_cancelled),
		T(test_timers_fire_in_order_and_not_early),
		T(test_hooks_run_each_turn_and_again_does_not_sleep),
		T(test_signals_arrive_as_events),
		T(test_settle_lets_go_of_everything),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
