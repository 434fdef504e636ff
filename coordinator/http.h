/*
 * http.h: what the API sees of HTTP. One `struct http_exchange` is one request and its answer; the
 * connection (conn.c) owns it and frees it. Nothing here knows JSON, models or workers.
 *
 * Order of calls: the server hands a complete, syntactically valid request to `on_request`. The
 * handler answers at once or later, from the loop's thread, by exactly one of
 *   - http_respond(): a whole body, or
 *   - http_stream_begin(), http_stream_write() any number of times, http_stream_end().
 * If the client goes away first, `on_gone` (set by the handler with http_watch()) is called once;
 * after it, or after respond/end/abort, the exchange pointer is dead. A handler that sets no watch
 * keeps a valid exchange whatever the client does, and still has to answer it.
 *
 * Everything here happens on the loop's thread. None of these functions calls back into the
 * handler: on_gone comes from the loop's turn-end hook.
 */
#ifndef COORDINATOR_HTTP_H
#define COORDINATOR_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "shm/clock.h"
#include "shm/util.h"

struct http_exchange;
struct http_server;
struct loop;

struct http_header {
	const char *name; /* lower case, NUL-terminated */
	const char *value;
};

/* A request as received. Valid until the exchange ends; the body is NUL-terminated after body_len.
 */
struct http_request {
	const char *method; /* "GET"; HEAD is shown as GET, and the body of the answer left out */
	const char *path;   /* percent-decoded path without the query */
	const char *query;  /* after '?', or "" */
	const struct http_header *headers;
	size_t header_count;
	const char *body;
	size_t body_len;
	const char *id; /* x-request-id of the client (printable, <= 128), else one made here */
	mono_ns_t arrived;
	pid_t peer_pid; /* SO_PEERCRED; -1 on TCP */
	uid_t peer_uid;
	const char *peer; /* for the log: "unix pid 4711 uid 1000" or "127.0.0.1:4711" */
};

#define HTTP_RETRY_503 "5" /* seconds, in the retry-after of every 503 */

const char *http_header_get(const struct http_request *req, const char *lower_name);
const struct http_request *http_request(const struct http_exchange *x);
/* Frees the body once the handler has taken what it needs, long before a long answer is over. */
void http_drop_body(struct http_exchange *x);

/* Adds a header to the answer, before respond/stream_begin. Control characters are refused. */
int http_add_header(struct http_exchange *x, const char *name, const char *value) MUST_CHECK;

/* Answers with a whole body (copied). Content-Length, Date, x-request-id, Connection are added. */
void http_respond(struct http_exchange *x, int status, const char *content_type, const void *body,
	size_t len);

/* Starts a chunked answer (connection: close for HTTP/1.0 clients). */
void http_stream_begin(struct http_exchange *x, int status, const char *content_type);

/*
 * Queues bytes (copied) of the streamed body. Writes of one loop turn leave in one send. Returns
 * the bytes now waiting for the client, so that a producer may slow down. A client that reads
 * nothing for api.write_timeout is dropped (on_gone).
 */
size_t http_stream_write(struct http_exchange *x, const void *data, size_t len);
void http_stream_end(struct http_exchange *x);

/* Breaks a streamed answer off: whatever is queued is sent, then the connection closes
 * unterminated. */
void http_stream_abort(struct http_exchange *x);

/*
 * Called once when the client goes away before the answer is complete. On a Unix socket
 * half-closing is not going away. On TCP it is: a client that closes looks the same until something
 * is sent to it, and that may be minutes of work for nobody.
 */
void http_watch(struct http_exchange *x, void (*on_gone)(void *user), void *user);

/*
 * The error body every failed request gets, also those that HTTP itself refuses (408, 413, 431,
 * ...): OpenAI's {"error":{"message","type","param","code"}}. param and code may be NULL.
 */
void http_respond_error(struct http_exchange *x, int status, const char *type, const char *param,
	const char *code, const char *fmt, ...) PRINTF_LIKE(6, 7);

struct http_limits {
	size_t max_body;
	uint32_t max_connections;
	mono_ns_t header_timeout, write_timeout;
};

struct http_server_ops {
	void (*on_request)(void *user, struct http_exchange *x);
	/* What came is no request (its status: 400, 408, 413, 431, ...), and has its answer. NULL:
	 * nobody counts. */
	void (*on_refused)(void *user, int status);
	void *user;
};

/*
 * A server over listening sockets (coordinator/listen.h). It owns its connections, not the sockets.
 * http_server_drain() stops accepting and closes idle connections; `on_idle` fires when none is
 * left. http_server_refuse_parts() ends waiting for requests that have come in part: each gets 503.
 *
 * http_server_free(): after loop_run() has returned for good, before or after loop_settle(); cuts
 * the connections that are left, without calling on_gone.
 */
int http_server_new(struct loop *loop, const struct http_limits *limits,
	const struct http_server_ops *ops, struct http_server **ret_server) MUST_CHECK;
int http_server_add_listener(struct http_server *s, int listen_fd, bool is_unix) MUST_CHECK;
void http_server_set_limits(struct http_server *s, const struct http_limits *limits);
void http_server_drain(struct http_server *s, void (*on_idle)(void *user), void *user);
void http_server_refuse_parts(struct http_server *s, const char *code, const char *message);
uint32_t http_server_connections(const struct http_server *s);
struct http_server *http_server_free(struct http_server *s);

#endif
