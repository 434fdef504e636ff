/*
 * bench_stream: what a streamed event costs the daemon's thread, beside the bare thing. S streams,
 * each with one small write a turn (as in decoding: one token for each sequence of a step), read by
 * another thread over Unix sockets.
 *
 *	daemon   the HTTP server on its loop: chunk, buffer, timers, io_uring
 *	bare     as many bytes to as many sockets: a send for each, all of a turn in one submission
 *
 * Both in turn, several times; CPU time of the sending thread, medians, and the median of the
 * turns' ratios. A stream has so few events that its socket never fills, however slow the reader
 * is: the daemon would send several at once then, and the bare way would wait. Where streams are
 * few, a turn is many rounds of them, for a round is then less than a millisecond. What a request
 * costs besides is taken off: streams of one event are measured, too, and of the bare way the
 * events after the first count.
 *
 * Senders stay on one CPU and the reader on another. Left to the scheduler, which moves a woken
 * thread to its waker's CPU or not, the ratio went from 1.0 to 1.7 with one stream.
 */
#include "config.h"

#include <liburing.h>
#include <sched.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "shm/log.h"
#include "tests/bench/bench.h"
#include "tests/bench/report.h"
#include "tests/unit/http_harness.h"

#define STREAMS_MAX  256
#define TURNS        21
#define EVENTS       200 /* of a stream */
#define TURN_STREAMS 64  /* of a turn, at least, one after the other or at once */
#define EVENT_BYTES  9   /* of a chunk of /drip with three digits and a comma, and of a bare send */

static uint64_t thread_cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

enum cpu { CPU_SENDER, CPU_READER };

/* The first or second of the CPUs allowed; where there is one, it serves for both. */
static void pin(enum cpu which)
{
	static cpu_set_t allowed;
	cpu_set_t one;
	int cpu = -1;

	if (CPU_COUNT(&allowed) == 0)
		assert_int_equal(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
	for (int n = (int)which % CPU_COUNT(&allowed); n >= 0; n--)
		do
			cpu++;
		while (!CPU_ISSET(cpu, &allowed));
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
}

/* What the harness counts for tests in each turn is not the daemon's. */
static void harness_settle(struct harness *h, void *arg)
{
	pin(CPU_SENDER);
	loop_hook_remove(h->loop, &h->hook);
}

static void harness_cpu_ns(struct harness *h, void *ret_ns)
{
	*(uint64_t *)ret_ns = thread_cpu_ns();
}

/* Rounds of so many streams that make a turn. */
static int rounds_of(int streams)
{
	return MAX(TURN_STREAMS / streams, 1);
}

/* Reads from all until each has closed; returns the bytes. */
static size_t read_all(const int *fd, int n)
{
	static char buf[65536];
	struct epoll_event ev[64];
	int ep = epoll_create1(EPOLL_CLOEXEC), open_n = n;
	size_t bytes = 0;

	for (int i = 0; i < n; i++) {
		ev[0] = (struct epoll_event){.events = EPOLLIN, .data.fd = fd[i]};
		assert_int_equal(epoll_ctl(ep, EPOLL_CTL_ADD, fd[i], &ev[0]), 0);
	}
	while (open_n > 0) {
		int ready = epoll_wait(ep, ev, (int)ARRAY_LEN(ev), -1);

		for (int i = 0; i < ready; i++) {
			ssize_t got = recv(ev[i].data.fd, buf, sizeof(buf), 0);

			if (got > 0) {
				bytes += (size_t)got;
			} else {
				epoll_ctl(ep, EPOLL_CTL_DEL, ev[i].data.fd, NULL);
				open_n--;
			}
		}
	}
	close(ep);
	return bytes;
}

/* ---- the daemon's way ---- */

/* CPU time of all streams, requests and all. */
static uint64_t streams_ns(struct harness *h, int streams, int events)
{
	uint64_t before, after;
	int fd[STREAMS_MAX] = {0};
	char request[128];

	for (int i = 0; i < streams; i++)
		fd[i] = client_connect(h);
	harness_call(h, harness_cpu_ns, &before);
	snprintf(request, sizeof(request), REQUEST("GET", "/drip?%d") "Connection: close\r\n\r\n",
		events);
	for (int i = 0; i < streams; i++)
		client_send(fd[i], request);
	assert_true(read_all(fd, streams) > (size_t)streams * (size_t)events);
	harness_call(h, harness_cpu_ns, &after);
	for (int i = 0; i < streams; i++)
		close(fd[i]);
	return after - before;
}

static double daemon_us(struct harness *h, int streams)
{
	uint64_t one = 0, all = 0;
	int rounds = rounds_of(streams);

	for (int i = 0; i < rounds; i++) {
		one += streams_ns(h, streams, 1);
		all += streams_ns(h, streams, EVENTS);
	}
	return all < one ? 0 : (double)(all - one) / NS_PER_US / streams / (EVENTS - 1) / rounds;
}

/* ---- the bare way ---- */

struct bare {
	int fd[STREAMS_MAX], streams;
	uint64_t cpu_ns;
};

static void send_turn(struct io_uring *ring, const struct bare *b)
{
	static const char text[EVENT_BYTES + 1] = "4\r\n123,\r\n";
	struct io_uring_cqe *cqe;
	unsigned head, n = 0;

	for (int i = 0; i < b->streams; i++) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

		io_uring_prep_send(sqe, b->fd[i], text, EVENT_BYTES, MSG_NOSIGNAL);
	}
	assert_true(io_uring_submit_and_wait(ring, (unsigned)b->streams) >= 0);
	io_uring_for_each_cqe(ring, head, cqe)
	{
		assert_int_equal(cqe->res, EVENT_BYTES);
		n++;
	}
	assert_int_equal(n, b->streams);
	io_uring_cq_advance(ring, n);
}

static void *run_bare(void *user)
{
	struct bare *b = user;
	struct io_uring ring;
	struct io_uring_params p = {
		.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
	uint64_t before;

	pin(CPU_SENDER);
	assert_int_equal(io_uring_queue_init_params(STREAMS_MAX, &ring, &p), 0);
	send_turn(&ring, b);
	before = thread_cpu_ns();
	for (int i = 1; i < EVENTS; i++)
		send_turn(&ring, b);
	b->cpu_ns = thread_cpu_ns() - before;
	for (int i = 0; i < b->streams; i++)
		close(b->fd[i]);
	io_uring_queue_exit(&ring);
	return NULL;
}

static uint64_t bare_ns(int streams)
{
	struct bare b = {.streams = streams};
	int fd[STREAMS_MAX] = {0}, pair[2];
	pthread_t thread;

	for (int i = 0; i < streams; i++) {
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
		fd[i] = pair[0];
		b.fd[i] = pair[1];
	}
	assert_int_equal(pthread_create(&thread, NULL, run_bare, &b), 0);
	assert_int_equal(read_all(fd, streams), streams * EVENTS * EVENT_BYTES);
	pthread_join(thread, NULL);
	for (int i = 0; i < streams; i++)
		close(fd[i]);
	return b.cpu_ns;
}

static double bare_us(int streams)
{
	uint64_t all = 0;
	int rounds = rounds_of(streams);

	for (int i = 0; i < rounds; i++)
		all += bare_ns(streams);
	return (double)all / NS_PER_US / streams / (EVENTS - 1) / rounds;
}

/* ---- the table ---- */

static void measure(struct report *r, struct harness *h, int streams)
{
	double daemon[TURNS], bare[TURNS];
	char what[64];

	for (int turn = 0; turn < TURNS; turn++) {
		daemon[turn] = daemon_us(h, streams);
		bare[turn] = bare_us(streams);
	}
	snprintf(what, sizeof(what), "an event, %d stream%s", streams, streams == 1 ? "" : "s");
	report_add(r, &(struct report_row){.what = what,
			      .value = report_median(daemon, TURNS),
			      .unit = "us",
			      .beside = "a bare batched send",
			      .beside_value = report_median(bare, TURNS),
			      .ratio = report_paired(daemon, bare, TURNS),
			      .most = 1.3});
}

int main(int argc, char **argv)
{
	static const int streams[] = {1, 8, 64, STREAMS_MAX};
	struct harness *h;
	struct report r;

	(void)bench_args(argc, argv, 0, "");
	bench_on_harness();
	log_set_level(CONF_LEVEL_WARNING);
	h = harness_start(NULL, false);
	pin(CPU_READER);
	harness_call(h, harness_settle, NULL);
	report_open(&r, "stream", "A streamed event, CPU time of the sending thread");
	for (size_t i = 0; i < ARRAY_LEN(streams); i++)
		measure(&r, h, streams[i]);
	harness_stop(h);
	return report_close(&r);
}
