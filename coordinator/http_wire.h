/*
 * http_wire.h: the one place that knows which HTTP parser library is linked (llhttp, or http_parser
 * where only that is packaged). Bytes in, slices out; decides nothing about limits or meaning, that
 * is http_parse.c.
 */
#ifndef COORDINATOR_HTTP_WIRE_H
#define COORDINATOR_HTTP_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config.h"

#ifdef HAVE_LLHTTP
#include <llhttp.h>
#else
#include <http_parser.h>
#endif

#include "shm/util.h"

#define HTTP_WIRE_NO_LENGTH UINT64_MAX

struct http_slice {
	char *at;
	size_t len;
};

struct http_wire_header {
	struct http_slice name, value;
};

/* What a head says; slices point into it. */
struct http_wire_head {
	const char *method;
	struct http_slice target;
	struct http_wire_header *headers; /* the caller's */
	size_t header_count, header_cap;  /* those beyond the cap are not kept */
	unsigned major, minor;
	uint64_t content_length; /* or HTTP_WIRE_NO_LENGTH */
	bool chunked, keep_alive;
	bool done; /* the message has no body */
};

struct http_wire {
#ifdef HAVE_LLHTTP
	llhttp_t parser;
#else
	http_parser parser;
#endif
	struct http_wire_head *head; /* while in http_wire_head() */
	int (*on_body)(void *user, const char *data, size_t len);
	void *user;
	bool done;
};

/*
 * Parses a whole head, from the method to the empty line. Returns 0, or -EBADMSG; ret_head then
 * holds what was understood before the fault, and http_wire_error() says it.
 */
int http_wire_head(
	struct http_wire *w, char *data, size_t len, struct http_wire_head *ret_head) MUST_CHECK;

/*
 * Goes on with the body. on_body gets its bytes, without chunk framing; it returns 0, or non-zero
 * to stop. Returns 1 when the message is complete, 0 when it wants more, -EBADMSG. ret_used is the
 * number of bytes that belonged to this message.
 */
int http_wire_body(struct http_wire *w, const char *data, size_t len, size_t *ret_used) MUST_CHECK;

const char *http_wire_error(const struct http_wire *w);

#endif
