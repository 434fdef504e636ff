/*
 * http_harness.h: a live HTTP server in a thread of the test, on a Unix socket in a directory of
 * its own, with a small application behind it, and a raw client. Waiting is for events under a
 * lock, with a long deadline that only a failure reaches.
 *
 *	/echo           200, the request's body; x-method, x-path, x-query say what was understood
 *	/hold           never answers; counts on_gone
 *	/later          answers when the test says so (harness_release)
 *	/later/nowatch  the same, but does not ask to be told when the client goes
 *	/stream?N       streams N writes of "data: i\n\n" in one turn, and ends
 *	/drip?N         streams one write a turn, N turns
 *	/pause?MS       streams "before ", and "after" so many milliseconds later
 *	/flood          streams 64 KB writes until 8 MB wait, then waits to hear of the client's end
 *	/abort          begins a stream and breaks it off
 *	/big?N          200 with N bytes
 *	/error          422 by http_respond_error()
 *	/none           204
 *	/headers        tries to add bad headers and says what came of it
 */
#ifndef TESTS_HTTP_HARNESS_H
#define TESTS_HTTP_HARNESS_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/http.h"
#include "coordinator/listen.h"
#include "coordinator/loop.h"

struct pending;

/* What the test may look at, under the lock. */
struct harness_counts {
	uint32_t connections, requests, refused, gone, held, drained, turns;
	int refused_status; /* the last */
	size_t backlog;     /* the most that /flood saw waiting */
	bool done;          /* the thread has ended */
};

struct harness {
	char dir[64], path[96];
	struct listen_set listen;
	struct loop *loop;
	struct http_server *server;
	struct http_limits limits;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t change;
	struct harness_counts counts;
	int bell; /* eventfd: a call waits */
	struct loop_event bell_event;
	struct loop_hook hook;
	void (*call)(struct harness *h, void *arg);
	void *call_arg;
	struct pending *pending; /* /later */
	struct loop_timer drip;  /* of all /drip */
	int ready;               /* of starting: 0 not yet, 1, -errno */
};

/* Zero fields of limits take generous defaults. tcp: listen on 127.0.0.1 instead. */
struct harness *harness_start(const struct http_limits *limits, bool tcp);
void harness_stop(struct harness *h);

/* Runs fn on the loop's thread and waits for it. */
void harness_call(struct harness *h, void (*fn)(struct harness *h, void *arg), void *arg);
/* Answers everything /later holds. */
void harness_release(struct harness *h);
/* Waits until the counter (a field of counts) is at least, or exactly, n. */
void harness_wait_min(struct harness *h, const uint32_t *counter, uint32_t n);
void harness_wait(struct harness *h, const uint32_t *counter, uint32_t n);
struct harness_counts harness_counts(struct harness *h);
/* Whatever happened before: all connections end, and then the server serves one. */
void harness_expect_healthy(struct harness *h);

/* A raw client: blocking, with a receive timeout that fails the test. */
int client_connect(struct harness *h);
/* The same in two steps. */
int client_socket(struct harness *h);
void client_connect_with(struct harness *h, int fd);
void client_send(int fd, const char *text);
void client_send_bytes(int fd, const void *data, size_t len);
/* Reads to the end of input (a reset counts as the end). The caller frees. */
char *client_read_all(int fd, size_t *ret_len);
/*
 * Reads exactly one answer with Content-Length or chunks; ret_body (may be NULL) gets the decoded
 * body, the caller frees. Returns the status; 0 at the end of input.
 */
int client_read_answer(int fd, char **ret_head, char **ret_body, size_t *ret_len);
/* One answer whose status and body must be these (body NULL: any). */
void client_expect(int fd, int status, const char *body);
/* Nothing more comes: the server has closed. */
void client_expect_end(int fd);

#define REQUEST(method, target) method " " target " HTTP/1.1\r\nHost: h\r\n"
#define GET(target)             REQUEST("GET", target) "\r\n"

#endif
