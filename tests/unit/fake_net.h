/*
 * fake_net.h: the parts of coordinator/loop.h and coordinator/http.h that the API uses, without
 * sockets or time: tests say when time passes, when a pool thread gets to its work and when a
 * client goes away, and look at every byte of the answer. A use of an exchange that is over fails
 * the test.
 */
#ifndef TESTS_FAKE_NET_H
#define TESTS_FAKE_NET_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "coordinator/http.h"
#include "coordinator/loop.h"
#include "coordinator/outbuf.h"

struct loop *fake_loop_new(void);
struct loop *fake_loop_free(struct loop *loop);
void fake_loop_advance(struct loop *loop, mono_ns_t ns); /* timers that come due are run */
size_t fake_loop_queued(const struct loop *loop);        /* work that waits for a thread */
void fake_loop_work(struct loop *loop);                  /* runs all of it, each with its done() */
/* CPU time of the last fake_loop_work(): on the pool's threads, and on the loop's. */
void fake_loop_cost(const struct loop *loop, double *ret_run_s, double *ret_done_s);

enum fake_end { FAKE_OPEN, FAKE_RESPONDED, FAKE_STREAM_ENDED, FAKE_STREAM_ABORTED, FAKE_GONE };

struct http_exchange {
	struct http_request req;
	char *body_copy;
	struct http_header req_headers[4];
	enum fake_end end;
	int status; /* 0: nothing sent yet */
	bool streaming;
	char headers[2048]; /* "name: value\n" of the answer */
	struct outbuf out;  /* body */
	size_t waiting;     /* what http_stream_write() answers, on top of the bytes themselves */
	bool body_dropped;
	void (*on_gone)(void *user);
	void *gone_user;
};

/* A request; body and content type may be NULL. Free with fake_exchange_free(). */
struct http_exchange *fake_exchange_new(const char *method, const char *path,
	const char *content_type, const char *body, size_t len);
void fake_exchange_free(struct http_exchange *x);
/* The client goes away: on_gone runs if a watch is set. */
void fake_exchange_gone(struct http_exchange *x);
bool fake_exchange_has(const struct http_exchange *x, const char *header_line);
/* The body as JSON; fails the test when it is none. Caller owns it. */
json_t *fake_exchange_json(const struct http_exchange *x);

#endif
