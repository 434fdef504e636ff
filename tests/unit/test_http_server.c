/* The server alive: answers, keep-alive, pipelining, bodies, streams, refusals, limits. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/log.h"
#include "tests/unit/http_harness.h"

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

static void test_answer_has_the_headers_it_should(void **state)
{
	int fd = client_connect(*state);
	char *head, *body, uid[64];

	client_send(fd, REQUEST("POST", "/echo/%C3%A4?a=b") "x-request-id: me-1\r\n"
							    "Content-Length: 2\r\n\r\nhi");
	assert_int_equal(client_read_answer(fd, &head, &body, NULL), 200);
	assert_string_equal(body, "hi");
	assert_non_null(strstr(head, "\r\nDate: "));
	assert_non_null(strstr(head, " GMT\r\n"));
	assert_non_null(strstr(head, "\r\nContent-Type: text/plain\r\n"));
	assert_non_null(strstr(head, "\r\nContent-Length: 2\r\n"));
	assert_non_null(strstr(head, "\r\nx-request-id: me-1\r\n"));
	assert_non_null(strstr(head, "\r\nConnection: keep-alive\r\n"));
	assert_non_null(strstr(head, "\r\nx-method: POST\r\n"));
	assert_non_null(strstr(head, "\r\nx-path: /echo/\xc3\xa4\r\n"));
	assert_non_null(strstr(head, "\r\nx-query: a=b\r\n"));
	snprintf(uid, sizeof(uid), "\r\nx-peer: unix pid %d uid ", (int)getpid());
	assert_non_null(strstr(head, uid));
	snprintf(uid, sizeof(uid), "\r\nx-uid: %d\r\n", (int)getuid());
	assert_non_null(strstr(head, uid));
	free(head);
	free(body);
	/* an id that is unfit is replaced */
	client_send(fd, REQUEST("GET", "/echo") "x-request-id: two words\r\n\r\n");
	assert_int_equal(client_read_answer(fd, &head, NULL, NULL), 200);
	assert_non_null(strstr(head, "\r\nx-request-id: req-"));
	free(head);
	close(fd);
}

static void test_keep_alive_serves_many_requests(void **state)
{
	int fd = client_connect(*state);

	for (int i = 0; i < 200; i++) {
		client_send(fd, REQUEST("POST", "/echo") "Content-Length: 3\r\n\r\nabc");
		client_expect(fd, 200, "abc");
	}
	assert_int_equal(harness_counts(*state).connections, 1);
	client_send(fd, REQUEST("GET", "/echo") "Connection: close\r\n\r\n");
	client_expect(fd, 200, "");
	client_expect_end(fd);
	close(fd);
}

static void test_pipelined_requests_are_answered_in_order(void **state)
{
	struct harness *h = *state;
	int fd = client_connect(h);
	char text[8192];
	size_t n = 0;

	/* a late answer first: the quick ones behind it have to wait */
	n += (size_t)sprintf(text + n, "%s", GET("/later"));
	for (int i = 0; i < 50; i++)
		n += (size_t)sprintf(
			text + n, REQUEST("POST", "/echo") "Content-Length: 4\r\n\r\n%04d", i);
	client_send(fd, text);
	harness_wait(h, &h->counts.held, 1);
	assert_int_equal(harness_counts(h).requests, 1);
	harness_release(h);
	client_expect(fd, 200, "late");
	for (int i = 0; i < 50; i++) {
		sprintf(text, "%04d", i);
		client_expect(fd, 200, text);
	}
	close(fd);
}

static void test_pipelined_behind_a_close_is_not_run(void **state)
{
	struct harness *h = *state;
	int fd = client_connect(h);

	client_send(fd, REQUEST("GET", "/echo") "Connection: close\r\n\r\n" GET("/echo"));
	client_expect(fd, 200, "");
	client_expect_end(fd);
	assert_int_equal(harness_counts(h).requests, 1);
	close(fd);
}

static void test_head_answers_as_get_without_body(void **state)
{
	int fd = client_connect(*state);
	char *all;

	client_send(fd,
		REQUEST("HEAD", "/big?12345") "\r\n" REQUEST("HEAD", "/stream?3") "\r\n" REQUEST(
			"HEAD", "/nowhere") "Connection: close\r\n\r\n");
	all = client_read_all(fd, NULL);
	assert_non_null(strstr(all, "Content-Length: 12345\r\n"));
	assert_non_null(strstr(all, "Transfer-Encoding: chunked\r\n"));
	assert_non_null(strstr(all, "404"));
	assert_null(strstr(all, "data:"));
	assert_null(strstr(all, "abcde"));
	assert_null(strstr(all, "{"));
	assert_string_equal(all + strlen(all) - 4, "\r\n\r\n");
	free(all);
	close(fd);
}

static void test_204_has_no_body_and_no_length(void **state)
{
	int fd = client_connect(*state);
	char *head;

	client_send(fd, GET("/none"));
	assert_int_equal(client_read_answer(fd, &head, NULL, NULL), 204);
	assert_null(strstr(head, "Content-Length"));
	client_send(fd, GET("/echo"));
	client_expect(fd, 200, "");
	free(head);
	close(fd);
}

static void test_http10_closes_and_streams_without_chunks(void **state)
{
	int fd = client_connect(*state);
	char *all;

	client_send(fd, "GET /stream?2 HTTP/1.0\r\n\r\n");
	all = client_read_all(fd, NULL);
	assert_non_null(strstr(all, "\r\nConnection: close\r\n"));
	assert_null(strstr(all, "chunked"));
	assert_non_null(strstr(all, "\r\n\r\ndata: 0\n\ndata: 1\n\ndata: [DONE]\n\n"));
	free(all);
	close(fd);
	fd = client_connect(*state);
	client_send(fd, "GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
	client_expect(fd, 200, "");
	client_send(fd, "GET /echo HTTP/1.0\r\n\r\n");
	client_expect(fd, 200, "");
	client_expect_end(fd);
	close(fd);
}

static void test_continue_is_sent_when_asked_for(void **state)
{
	int fd = client_connect(*state);
	char text[64];

	client_send(
		fd, REQUEST("POST", "/echo") "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n");
	assert_int_equal(recv(fd, text, 25, MSG_WAITALL), 25);
	assert_memory_equal(text, "HTTP/1.1 100 Continue\r\n\r\n", 25);
	client_send(fd, "hello");
	client_expect(fd, 200, "hello");
	/* not when the body is already there, nor before a refusal */
	client_send(
		fd, REQUEST("POST", "/echo") "Expect: 100-continue\r\nContent-Length: 2\r\n\r\nhi");
	assert_int_equal(recv(fd, text, 12, MSG_WAITALL), 12);
	assert_memory_equal(text, "HTTP/1.1 200", 12);
	close(fd);
	fd = client_connect(*state);
	client_send(fd, REQUEST("POST", "/echo") "Expect: 100-continue\r\n"
						 "Content-Length: 99999999\r\n\r\n");
	assert_int_equal(recv(fd, text, 12, MSG_WAITALL), 12);
	assert_memory_equal(text, "HTTP/1.1 413", 12);
	close(fd);
}

/* 1 MB and a bit, in pieces whose sizes have nothing to do with anything, both framings. */
static void test_large_bodies_in_odd_pieces_arrive_whole(void **state)
{
	enum { LEN = (1 << 20) + 12345 };
	char *data = malloc(LEN), *body, head[128];
	int fd = client_connect(*state);
	size_t len;

	for (size_t i = 0; i < LEN; i++)
		data[i] = (char)(i * 2654435761u >> 13);
	snprintf(head, sizeof(head), REQUEST("POST", "/echo") "Content-Length: %d\r\n\r\n", LEN);
	client_send(fd, head);
	for (size_t at = 0, step = 1; at < LEN; at += step, step = step * 7 % 70001 + 1)
		client_send_bytes(fd, data + at, MIN(step, LEN - at));
	assert_int_equal(client_read_answer(fd, NULL, &body, &len), 200);
	assert_int_equal(len, LEN);
	assert_memory_equal(body, data, LEN);
	free(body);
	client_send(fd, REQUEST("POST", "/echo") "Transfer-Encoding: chunked\r\n\r\n");
	for (size_t at = 0, step = 1; at < LEN; at += step, step = step * 5 % 40009 + 1) {
		step = MIN(step, LEN - at);
		client_send_bytes(fd, head, (size_t)sprintf(head, "%zx\r\n", step));
		client_send_bytes(fd, data + at, step);
		client_send(fd, "\r\n");
	}
	client_send(fd, "0\r\n\r\n");
	assert_int_equal(client_read_answer(fd, NULL, &body, &len), 200);
	assert_int_equal(len, LEN);
	assert_memory_equal(body, data, LEN);
	free(body);
	free(data);
	close(fd);
}

static void test_streams_arrive_in_order_and_end(void **state)
{
	int fd = client_connect(*state);
	char *body, *at;

	client_send(fd, GET("/stream?1000"));
	assert_int_equal(client_read_answer(fd, NULL, &body, NULL), 200);
	at = body;
	for (int i = 0; i < 1000; i++) {
		char want[32];
		int n = sprintf(want, "data: %d\n\n", i);

		assert_memory_equal(at, want, n);
		at += n;
	}
	assert_string_equal(at, "data: [DONE]\n\n");
	free(body);
	client_send(fd, GET("/drip?5"));
	client_expect(fd, 200, "5,4,3,2,1,");
	close(fd);
}

static void test_abort_closes_without_the_last_chunk(void **state)
{
	int fd = client_connect(*state);
	char *all;

	client_send(fd, GET("/abort"));
	all = client_read_all(fd, NULL);
	assert_non_null(strstr(all, "4\r\nhalf\r\n"));
	assert_null(strstr(all, "0\r\n\r\n"));
	free(all);
	close(fd);
}

static void test_errors_are_openai_json(void **state)
{
	int fd = client_connect(*state);

	client_send(fd, GET("/error"));
	client_expect(fd, 422,
		"{\"error\":{\"message\":\"n must be \\\"1\\\", not ?"
		"??\","
		"\"type\":\"invalid_request_error\",\"param\":\"n\",\"code\":null}}");
	client_send(fd, GET("/nowhere"));
	client_expect(fd, 404,
		"{\"error\":{\"message\":\"no /nowhere\",\"type\":\"invalid_request_error\","
		"\"param\":null,\"code\":\"not_found\"}}");
	client_send(fd, GET("/headers"));
	client_expect(fd, 200, "ok");
	close(fd);
}

static void test_refusals_are_answered_and_closed(void **state)
{
	static const struct {
		const char *sent;
		int status;
	} rows[] = {
		{"nonsense\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\n\r\n", 400},
		{REQUEST("POST", "/") "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
			400},
		{REQUEST("POST", "/") "Transfer-Encoding: gzip\r\n\r\n", 501},
		{REQUEST("POST", "/") "Content-Length: 99999999\r\n\r\n", 413},
		{"GET / HTTP/3.0\r\n\r\n", 505},
	};
	struct harness *h = *state;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		int fd = client_connect(h);
		char *head, *body;

		client_send(fd, rows[i].sent);
		assert_int_equal(client_read_answer(fd, &head, &body, NULL), rows[i].status);
		assert_int_equal(harness_counts(h).refused, i + 1);
		assert_int_equal(harness_counts(h).refused_status, rows[i].status);
		assert_non_null(strstr(head, "\r\nConnection: close\r\n"));
		assert_non_null(strstr(head, "\r\nContent-Type: application/json\r\n"));
		assert_non_null(strstr(head, "\r\nx-request-id: req-"));
		assert_memory_equal(body, "{\"error\":{\"message\":\"", 21);
		client_expect_end(fd);
		free(head);
		free(body);
		close(fd);
	}
	assert_int_equal(harness_counts(h).requests, 0);
}

/* The client sends on long after it was refused, and must still get to read why. */
static void refused_while_sending(struct harness *h)
{
	enum { LEN = 70 << 20 }; /* more than the default of api.max_body, written in one go */
	int fd = client_connect(h);
	char *junk = calloc(1, LEN), head[128], *all;

	snprintf(head, sizeof(head), REQUEST("POST", "/echo") "Content-Length: %d\r\n\r\n", LEN);
	client_send(fd, head);
	client_send_bytes(fd, junk, LEN);
	assert_int_equal(shutdown(fd, SHUT_WR), 0);
	all = client_read_all(fd, NULL);
	assert_memory_equal(all, "HTTP/1.1 413", 12);
	assert_non_null(strstr(all, "api.max_body"));
	free(all);
	free(junk);
	close(fd);
}

static void test_a_refused_upload_can_still_read_why(void **state)
{
	struct harness *tcp = harness_start(NULL, true);

	refused_while_sending(*state);
	refused_while_sending(tcp);
	harness_stop(tcp);
}

static void test_tcp_serves_and_names_its_peer(void **state)
{
	struct harness *h = harness_start(NULL, true);
	int fd = client_connect(h);
	struct sockaddr_in me;
	socklen_t len = sizeof(me);
	char *head, want[64];

	assert_int_equal(getsockname(fd, (struct sockaddr *)&me, &len), 0);
	client_send(fd, GET("/echo"));
	assert_int_equal(client_read_answer(fd, &head, NULL, NULL), 200);
	snprintf(want, sizeof(want), "\r\nx-peer: 127.0.0.1:%d\r\n", ntohs(me.sin_port));
	assert_non_null(strstr(head, want));
	assert_non_null(strstr(head, "\r\nx-uid: -1\r\n"));
	free(head);
	close(fd);
	harness_stop(h);
}

/* What it has, it has read: the time that the server takes is not its. */
static void test_a_client_that_waits_for_more_is_not_cut_off(void **state)
{
	struct http_limits limits = {.write_timeout = 20 * NS_PER_MS};
	struct harness *h = harness_start(&limits, false);
	int fd = client_connect(h);

	(void)state;
	client_send(fd, GET("/pause?100"));
	client_expect(fd, 200, "before after");
	client_send(fd, GET("/pause?100"));
	client_expect(fd, 200, "before after");
	assert_int_equal(harness_counts(h).gone, 0);
	close(fd);
	harness_stop(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, start, stop)
		T(test_answer_has_the_headers_it_should),
		T(test_keep_alive_serves_many_requests),
		T(test_pipelined_requests_are_answered_in_order),
		T(test_pipelined_behind_a_close_is_not_run),
		T(test_head_answers_as_get_without_body),
		T(test_204_has_no_body_and_no_length),
		T(test_http10_closes_and_streams_without_chunks),
		T(test_continue_is_sent_when_asked_for),
		T(test_large_bodies_in_odd_pieces_arrive_whole),
		T(test_streams_arrive_in_order_and_end),
		T(test_abort_closes_without_the_last_chunk),
		T(test_errors_are_openai_json),
		T(test_refusals_are_answered_and_closed),
		T(test_a_refused_upload_can_still_read_why),
		T(test_tcp_serves_and_names_its_peer),
		cmocka_unit_test(test_a_client_that_waits_for_more_is_not_cut_off),
	};

	log_set_level(CONF_LEVEL_WARNING);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
