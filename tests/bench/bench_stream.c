/*
 * What a streamed event costs the daemon's thread: S streams, each with one small write a turn (as
 * in decoding: one token for each sequence of a step), read by another thread over Unix sockets.
 *
 *	bench_stream [EVENTS]
 */
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "shm/log.h"
#include "tests/unit/http_harness.h"

static void thread_cpu_ns(struct harness *h, void *ret_ns)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	*(uint64_t *)ret_ns = (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
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

static void measure(int streams, long events)
{
	struct harness *h = harness_start(NULL, false);
	int *fd = calloc((size_t)streams, sizeof(*fd));
	uint64_t before, after;
	mono_ns_t start;
	char request[128];
	size_t bytes;

	for (int i = 0; i < streams; i++)
		fd[i] = client_connect(h);
	harness_call(h, thread_cpu_ns, &before);
	start = mono_now();
	snprintf(request, sizeof(request), REQUEST("GET", "/drip?%ld") "Connection: close\r\n\r\n",
		events);
	for (int i = 0; i < streams; i++)
		client_send(fd[i], request);
	bytes = read_all(fd, streams);
	harness_call(h, thread_cpu_ns, &after);
	printf("%7d streams: %6.2f us of the thread per event, %8.0f events/s, %zu bytes\n",
		streams, (double)(after - before) / (double)streams / (double)events / NS_PER_US,
		(double)streams * (double)events * NS_PER_S / (double)(mono_now() - start), bytes);
	for (int i = 0; i < streams; i++)
		close(fd[i]);
	free(fd);
	harness_stop(h);
}

int main(int argc, char **argv)
{
	static const int streams[] = {1, 8, 64, 256};
	long events = argc > 1 ? strtol(argv[1], NULL, 10) : 100000;

	log_set_level(CONF_LEVEL_WARNING);
	for (size_t i = 0; i < ARRAY_LEN(streams); i++)
		measure(streams[i], MAX(1, events / streams[i]));
	return 0;
}
