/* Connections that end, stall, pile up: clients that go in every phase, limits, timeouts, drain. */
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/log.h"
#include "tests/unit/http_harness.h"

/* Enough for 1000 connections, both ends; few enough to run out of on purpose. */
enum { MAX_FILES = 2200 };

static int start(void **state)
{
	*state = harness_start(NULL, false);
	return 0;
}

static int stop(void **state)
{
	harness_stop(*state);
	return 0;
}

static void test_client_gone_before_its_request_is_whole(void **state)
{
	static const char request[] = REQUEST("POST", "/echo") "Content-Length: 10\r\n\r\n01234567";
	struct harness *h = *state;

	/* after each byte, the last two of the body never sent */
	for (size_t n = 0; n < sizeof(request); n++) {
		int fd = client_connect(h);

		client_send_bytes(fd, request, n);
		close(fd);
	}
	harness_expect_healthy(h);
	assert_int_equal(harness_counts(h).requests, 1); /* harness_expect_healthy()'s own */
	assert_int_equal(harness_counts(h).gone, 0);
}

static void test_client_gone_while_queued_is_noticed_once(void **state)
{
	struct harness *h = *state;
	enum { N = 20 };
	int fd[N];

	for (int i = 0; i < N; i++) {
		fd[i] = client_connect(h);
		client_send(fd[i], GET("/hold"));
	}
	harness_wait(h, &h->counts.held, N);
	for (int i = 0; i < N; i++) {
		close(fd[i]);
		harness_wait(h, &h->counts.gone, (uint32_t)i + 1);
	}
	harness_expect_healthy(h);
	assert_int_equal(harness_counts(h).gone, N);
}

static void test_client_gone_while_streaming_is_noticed_once(void **state)
{
	struct harness *h = *state;
	char c[64];
	int fd = client_connect(h);

	client_send(fd, GET("/drip?1000000000"));
	assert_true(recv(fd, c, sizeof(c), 0) > 0);
	close(fd);
	harness_wait(h, &h->counts.gone, 1);
	harness_expect_healthy(h);
	assert_int_equal(harness_counts(h).gone, 1);
}

/* A pipelined request behind it must not hide that the client went. */
static void test_client_gone_with_unread_input_is_noticed(void **state)
{
	struct harness *h = *state;
	int fd = client_connect(h);

	client_send(fd, GET("/hold") GET("/echo"));
	harness_wait(h, &h->counts.held, 1);
	client_send(fd, GET("/echo"));
	close(fd);
	harness_wait(h, &h->counts.gone, 1);
	harness_expect_healthy(h);
}

static void test_client_gone_before_a_late_answer_without_watch(void **state)
{
	struct harness *h = *state;
	int fd = client_connect(h);

	client_send(fd, GET("/later/nowatch"));
	harness_wait(h, &h->counts.held, 1);
	close(fd);
	/* the exchange stays valid until it is answered: the connection is still counted */
	int other = client_connect(h);
	client_send(other, GET("/echo"));
	client_expect(other, 200, "");
	close(other);
	harness_wait(h, &h->counts.connections, 1);
	harness_release(h);
	harness_expect_healthy(h);
	assert_int_equal(harness_counts(h).gone, 0);
}

static void test_half_closed_client_still_gets_its_answer(void **state)
{
	struct harness *h = *state;
	int fd = client_connect(h);
	char *all;

	client_send(fd, GET("/later"));
	assert_int_equal(shutdown(fd, SHUT_WR), 0);
	harness_wait(h, &h->counts.held, 1);
	harness_release(h);
	all = client_read_all(fd, NULL);
	assert_non_null(strstr(all, "\r\n\r\nlate"));
	free(all);
	close(fd);

	fd = client_connect(h);
	client_send(fd, GET("/drip?300"));
	assert_int_equal(shutdown(fd, SHUT_WR), 0);
	all = client_read_all(fd, NULL);
	assert_non_null(strstr(all, "0\r\n\r\n"));
	free(all);
	close(fd);
	harness_expect_healthy(h);
	assert_int_equal(harness_counts(h).gone, 0);
}

static void test_half_closed_in_the_middle_is_told_so(void **state)
{
	struct harness *h = *state;
	int fd = client_connect(h);
	char *all;

	client_send(fd, REQUEST("POST", "/echo") "Content-Length: 10\r\n\r\n0123");
	assert_int_equal(shutdown(fd, SHUT_WR), 0);
	all = client_read_all(fd, NULL);
	assert_memory_equal(all, "HTTP/1.1 400", 12);
	assert_non_null(strstr(all, "incomplete_request"));
	free(all);
	close(fd);
	harness_expect_healthy(h);
}

static void test_a_half_closed_client_that_then_goes_is_noticed(void **state)
{
	struct harness *h = *state;
	int fd = client_connect(h);

	client_send(fd, GET("/hold"));
	assert_int_equal(shutdown(fd, SHUT_WR), 0);
	harness_wait(h, &h->counts.held, 1);
	close(fd);
	harness_wait(h, &h->counts.gone, 1);
	harness_expect_healthy(h);
}

static void test_over_tcp_a_client_that_closes_is_gone_before_anything_is_sent(void **state)
{
	struct harness *h = harness_start(NULL, true);
	int fd = client_connect(h), half = client_connect(h);
	char *all;

	client_send(fd, GET("/hold"));
	harness_wait(h, &h->counts.held, 1);
	close(fd);
	harness_wait(h, &h->counts.gone, 1);
	client_send(half, GET("/hold"));
	assert_int_equal(shutdown(half, SHUT_WR), 0); /* the same, for all the server can know */
	harness_wait(h, &h->counts.gone, 2);
	client_expect_end(half);
	close(half);
	/* what is answered at once still gets its answer */
	half = client_connect(h);
	client_send(half, GET("/big?100000"));
	assert_int_equal(shutdown(half, SHUT_WR), 0);
	all = client_read_all(half, NULL);
	assert_memory_equal(all, "HTTP/1.1 200", 12);
	assert_non_null(strstr(all, "Content-Length: 100000"));
	free(all);
	close(half);
	harness_expect_healthy(h);
	harness_stop(h);
	(void)state;
}

static void test_slow_heads_and_stalled_bodies_get_408(void **state)
{
	struct http_limits limits = {.header_timeout = 50 * NS_PER_MS};
	struct harness *h = harness_start(&limits, false);
	int silent = client_connect(h), head = client_connect(h), body = client_connect(h);
	int drip = client_connect(h);
	static const char slow[] = "GET /echo HTTP/1.1\r\nX-Slow: ";

	client_send(head, "GET /ec");
	client_send(body, REQUEST("POST", "/echo") "Content-Length: 10\r\n\r\n012");
	/* a byte now and then does not prolong the head's time */
	client_send(drip, slow);
	for (struct pollfd p = {.fd = drip, .events = POLLIN}; poll(&p, 1, 5) == 0;)
		client_send(drip, "s");
	client_expect(drip, 408, NULL);
	client_expect(head, 408, NULL);
	client_expect(body, 408, NULL);
	client_expect_end(head);
	client_expect_end(body);
	client_expect_end(drip);
	client_expect_end(silent); /* who asked nothing is told nothing */
	assert_int_equal(harness_counts(h).refused, 3);
	close(silent);
	close(head);
	close(body);
	close(drip);
	harness_expect_healthy(h);
	harness_stop(h);
}

static void test_a_client_that_does_not_read_is_cut_off(void **state)
{
	struct http_limits limits = {.write_timeout = 50 * NS_PER_MS};
	struct harness *h = harness_start(&limits, false);
	int fd = client_connect(h);

	client_send(fd, GET("/flood"));
	harness_wait(h, &h->counts.gone, 1);
	assert_true(harness_counts(h).backlog >= 8 << 20);
	close(fd);
	/* the same with a whole body */
	fd = client_connect(h);
	client_send(fd, GET("/big?9000000"));
	harness_wait(h, &h->counts.connections, 1);
	harness_wait(h, &h->counts.connections, 0);
	close(fd);
	harness_expect_healthy(h);
	assert_int_equal(harness_counts(h).gone, 1);
	harness_stop(h);
}

static void test_a_slow_reader_gets_all_of_a_large_answer(void **state)
{
	struct harness *h = *state;
	int fd = client_connect(h);
	size_t len;
	char *body;

	client_send(fd, GET("/big?9000001"));
	harness_wait(h, &h->counts.requests, 1);
	assert_int_equal(client_read_answer(fd, NULL, &body, &len), 200);
	assert_int_equal(len, 9000001);
	for (size_t i = 0; i < len; i++)
		if (body[i] != (char)('a' + i % 26))
			fail_msg("byte %zu is wrong", i);
	free(body);
	client_send(fd, GET("/echo"));
	client_expect(fd, 200, "");
	close(fd);
}

static void test_a_thousand_connections_are_served(void **state)
{
	struct harness *h = *state;
	enum { N = 1000 };
	int *fd = calloc(N, sizeof(*fd));

	for (int i = 0; i < N; i++)
		fd[i] = client_connect(h);
	harness_wait(h, &h->counts.connections, N);
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < N; i++)
			client_send(fd[i], round ? GET("/later") : GET("/stream?3"));
		if (round) {
			harness_wait(h, &h->counts.held, N);
			harness_release(h);
		}
		for (int i = 0; i < N; i++)
			client_expect(fd[i], 200,
				round ? "late"
				      : "data: 0\n\ndata: 1\n\ndata: 2\n\ndata: [DONE]\n\n");
	}
	for (int i = 0; i < N; i++)
		close(fd[i]);
	free(fd);
	harness_expect_healthy(h);
}

static void on_drained(void *user)
{
	struct harness *h = user;

	pthread_mutex_lock(&h->lock);
	h->counts.drained++;
	pthread_cond_broadcast(&h->change);
	pthread_mutex_unlock(&h->lock);
}

static void do_drain(struct harness *h, void *arg)
{
	http_server_drain(h->server, on_drained, h);
}

static void test_drain_lets_the_running_finish_and_the_idle_go(void **state)
{
	struct harness *h = *state;
	int idle = client_connect(h), later = client_connect(h), drip = client_connect(h), late;
	char *head;

	client_send(idle, GET("/echo"));
	client_expect(idle, 200, "");
	client_send(later, GET("/later"));
	client_send(drip, GET("/drip?2000"));
	harness_wait(h, &h->counts.held, 2);
	harness_call(h, do_drain, NULL);
	client_expect_end(idle);
	late = client_connect(h); /* the kernel queues it; nobody accepts */
	assert_int_equal(client_read_answer(drip, NULL, NULL, NULL), 200);
	client_expect_end(drip);
	close(drip);
	assert_int_equal(harness_counts(h).drained, 0);
	harness_release(h);
	assert_int_equal(client_read_answer(later, &head, NULL, NULL), 200);
	assert_non_null(strstr(head, "\r\nConnection: close\r\n"));
	free(head);
	client_expect_end(later);
	close(later);
	harness_wait(h, &h->counts.drained, 1);
	close(late);
	close(idle);
}

static void test_drain_of_an_idle_server_is_at_once(void **state)
{
	struct harness *h = *state;

	harness_call(h, do_drain, NULL);
	harness_wait(h, &h->counts.drained, 1);
}

static void do_ask_and_drain(struct harness *h, void *arg)
{
	const int *fd = arg;

	client_send(fd[0], GET("/echo"));
	client_send(fd[1], "\r\n");
	do_drain(h, NULL);
}

/*
 * It was asked before, and is told, though the loop reads it only after the drain began; blank
 * lines are no question.
 */
static void test_drain_answers_a_request_on_its_way(void **state)
{
	struct harness *h = *state;
	int fd[2];

	for (int i = 0; i < 2; i++) {
		fd[i] = client_connect(h);
		client_send(fd[i], GET("/echo"));
		client_expect(fd[i], 200, "");
	}
	harness_call(h, do_ask_and_drain, fd);
	client_expect(fd[0], 200, "");
	for (int i = 0; i < 2; i++) {
		client_expect_end(fd[i]);
		close(fd[i]);
	}
	harness_wait(h, &h->counts.drained, 1);
}

static void do_refuse_parts(struct harness *h, void *arg)
{
	http_server_refuse_parts(h->server, "unavailable", "the server is shutting down");
}

static void do_nothing(struct harness *h, void *arg)
{
}

/* Until the server has taken all that was sent to it. */
static void wait_read(struct harness *h, int fd)
{
	int unread;

	do {
		harness_call(h, do_nothing, NULL);
		assert_int_equal(ioctl(fd, SIOCOUTQ, &unread), 0);
	} while (unread > 0);
}

/* The drain waits for a request that has come in part, but not for ever: then it is told so. */
static void test_requests_that_came_in_part_can_be_refused(void **state)
{
	static const char *const parts[] = {"GET /ec", REQUEST("POST", "/echo"),
		REQUEST("POST", "/echo") "Content-Length: 9\r\n\r\nabc",
		REQUEST("POST", "/echo") "Transfer-Encoding: chunked\r\n\r\n5\r\nabc"};
	struct harness *h = *state;
	int fd[ARRAY_LEN(parts)], whole = client_connect(h);
	char *head, *body;

	client_send(whole, GET("/later"));
	harness_wait(h, &h->counts.held, 1);
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		fd[i] = client_connect(h);
		client_send(fd[i], GET("/echo"));
		client_expect(fd[i], 200, "");
		client_send(fd[i], parts[i]);
	}
	harness_call(h, do_drain, NULL);
	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		wait_read(h, fd[i]);
	assert_int_equal(harness_counts(h).drained, 0);
	harness_call(h, do_refuse_parts, NULL);
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		assert_int_equal(client_read_answer(fd[i], &head, &body, NULL), 503);
		assert_non_null(strstr(head, "\r\nConnection: close\r\n"));
		assert_non_null(strstr(head, "\r\nretry-after: 5\r\n"));
		assert_non_null(strstr(body, "\"the server is shutting down\""));
		free(head);
		free(body);
		client_expect_end(fd[i]);
		close(fd[i]);
	}
	assert_int_equal(harness_counts(h).drained, 0);
	harness_release(h);
	client_expect(whole, 200, NULL);
	close(whole);
	harness_wait(h, &h->counts.drained, 1);
}

static void do_limits(struct harness *h, void *arg)
{
	http_server_set_limits(h->server, arg);
}

static void test_new_limits_hold_for_open_connections(void **state)
{
	struct harness *h = *state;
	struct http_limits small = h->limits;
	int fd = client_connect(h);

	client_send(fd, REQUEST("POST", "/echo") "Content-Length: 11\r\n\r\n0123456789a");
	client_expect(fd, 200, "0123456789a");
	small.max_body = 10;
	harness_call(h, do_limits, &small);
	client_send(fd, REQUEST("POST", "/echo") "Content-Length: 10\r\n\r\n0123456789");
	client_expect(fd, 200, "0123456789");
	client_send(fd, REQUEST("POST", "/echo") "Content-Length: 11\r\n\r\n");
	client_expect(fd, 413, NULL);
	close(fd);
}

/* Stopped in the middle of everything: nothing leaks (the sanitizers watch), nobody is called. */
static void test_stop_with_everything_open_is_clean(void **state)
{
	struct harness *h = *state;
	static const char *const sent[] = {"", "GET /",
		REQUEST("POST", "/") "Content-Length: 9\r\n\r\n1", GET("/hold"),
		GET("/later/nowatch"), GET("/flood"), GET("/echo"), "junk\r\n\r\n"};
	int fd[ARRAY_LEN(sent)];

	for (size_t i = 0; i < ARRAY_LEN(sent); i++) {
		fd[i] = client_connect(h);
		client_send(fd[i], sent[i]);
	}
	harness_wait(h, &h->counts.held, 3);
	harness_wait_min(h, &h->counts.requests, 4);
	harness_stop(h);
	for (size_t i = 0; i < ARRAY_LEN(sent); i++) {
		free(client_read_all(fd[i], NULL));
		close(fd[i]);
	}
	*state = harness_start(NULL, false); /* for the teardown */
}

static void do_log_level(struct harness *h, void *level)
{
	log_set_level((enum conf_level)(intptr_t)level);
}

/* Out of descriptors: nobody is lost, and it goes on as soon as there are some. */
static void test_accepting_resumes_when_descriptors_are_back(void **state)
{
	struct harness *h = *state;
	static int taken[MAX_FILES];
	int fd = client_socket(h), n = 0;
	struct pollfd p = {.fd = fd, .events = POLLIN};

	harness_call(h, do_log_level, (void *)(intptr_t)CONF_LEVEL_ERROR); /* it warns */
	while ((taken[n] = dup(fd)) >= 0)
		n++;
	client_connect_with(h, fd);
	client_send(fd, GET("/echo"));
	assert_int_equal(poll(&p, 1, 20), 0);
	assert_int_equal(harness_counts(h).connections, 0);
	while (n > 0)
		close(taken[--n]);
	client_expect(fd, 200, "");
	close(fd);
	harness_call(h, do_log_level, (void *)(intptr_t)CONF_LEVEL_WARNING);
	harness_expect_healthy(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, start, stop)
		T(test_client_gone_before_its_request_is_whole),
		T(test_client_gone_while_queued_is_noticed_once),
		T(test_client_gone_while_streaming_is_noticed_once),
		T(test_client_gone_with_unread_input_is_noticed),
		T(test_client_gone_before_a_late_answer_without_watch),
		T(test_half_closed_client_still_gets_its_answer),
		T(test_half_closed_in_the_middle_is_told_so),
		T(test_a_half_closed_client_that_then_goes_is_noticed),
		T(test_over_tcp_a_client_that_closes_is_gone_before_anything_is_sent),
		cmocka_unit_test(test_slow_heads_and_stalled_bodies_get_408),
		cmocka_unit_test(test_a_client_that_does_not_read_is_cut_off),
		T(test_a_slow_reader_gets_all_of_a_large_answer),
		T(test_a_thousand_connections_are_served),
		T(test_drain_lets_the_running_finish_and_the_idle_go),
		T(test_drain_of_an_idle_server_is_at_once),
		T(test_drain_answers_a_request_on_its_way),
		T(test_requests_that_came_in_part_can_be_refused),
		T(test_new_limits_hold_for_open_connections),
		T(test_stop_with_everything_open_is_clean),
		T(test_accepting_resumes_when_descriptors_are_back),
	};
	struct rlimit files;

	log_set_level(CONF_LEVEL_WARNING);
	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = MIN(files.rlim_max, MAX_FILES);
		if (files.rlim_cur < MAX_FILES || setrlimit(RLIMIT_NOFILE, &files) < 0) {
			printf("needs %d open files\n", MAX_FILES);
			return 77;
		}
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
