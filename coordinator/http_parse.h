/*
 * http_parse.h: bytes of a connection to one request at a time. A function of the bytes alone, in
 * whatever pieces they come: no sockets, no clock, no logging. Limits and refusals are decided
 * here; the grammar is the library's (http_wire.h).
 *
 * Stricter than the library: lines end with CRLF, no folded headers, no control characters, Host
 * exactly once in HTTP/1.1, one way to say how long the body is.
 *
 * Order of calls: http_parse_init(); http_parse_feed() until DONE or REFUSED; after DONE, when the
 * request is no longer needed, http_parse_reset() and on with the bytes not used;
 * http_parse_fini().
 */
#ifndef COORDINATOR_HTTP_PARSE_H
#define COORDINATOR_HTTP_PARSE_H

#include "coordinator/http.h"
#include "coordinator/http_wire.h"

enum {
	HTTP_MAX_REQUEST_LINE = 8192, /* without its CRLF; more is 414 */
	HTTP_MAX_HEAD = 32768,        /* from the method to the empty line, with it; more is 431 */
	HTTP_MAX_HEADERS = 100,       /* more is 431 */
	HTTP_MAX_BLANK = 64,          /* bytes of empty lines before a request */
	/* Chunk framing and trailers may be this many bytes plus 8 times the body. */
	HTTP_MAX_FRAMING = 16384,
};

enum http_parse_state {
	HTTP_PARSE_IDLE, /* not a byte of a request yet */
	HTTP_PARSE_HEAD,
	HTTP_PARSE_BODY,
	HTTP_PARSE_DONE,    /* req is complete */
	HTTP_PARSE_REFUSED, /* status and message say why; the connection cannot go on */
};

struct http_parse {
	enum http_parse_state state;
	size_t max_body;

	/* DONE; method, path and the like also from BODY on. id, arrived and peer are not set here
	 */
	struct http_request req;
	bool keep_alive, is_head, is_http10;
	bool expect_continue; /* in BODY: the client waits for a 100; cleared by the caller */

	/* REFUSED */
	int status;
	const char *code;
	char message[200];

	/* private */
	struct http_wire wire;
	char *head; /* raw bytes; once complete, cut into NUL-terminated strings in place */
	size_t head_len, head_cap;
	size_t blank, line_len, lines;
	char last;
	struct http_header *headers;
	char *body;
	size_t body_len, body_cap, body_raw;
	uint64_t content_length;
};

void http_parse_init(struct http_parse *p, size_t max_body);
void http_parse_fini(struct http_parse *p);

/*
 * Takes bytes up to the end of one request; ret_used says how many. Returns the state. In DONE it
 * takes nothing; in REFUSED it takes and forgets all.
 */
enum http_parse_state http_parse_feed(
	struct http_parse *p, const char *data, size_t len, size_t *ret_used);

/* Forgets the request and frees its memory, ready for the next. */
void http_parse_reset(struct http_parse *p);
/* Frees the body alone. */
void http_parse_drop_body(struct http_parse *p);

/* Puts it in REFUSED, for reasons found elsewhere (a timeout, the end of the input). */
void http_parse_refuse(struct http_parse *p, int status, const char *code, const char *fmt, ...)
	PRINTF_LIKE(4, 5);

#endif
