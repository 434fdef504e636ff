/*
 * What a parser made of some bytes, as text, so that two ways of feeding it can be compared: by
 * tests/unit/test_http_parse.c and tests/fuzz/fuzz_http.c.
 */
#ifndef TESTS_HTTP_DESCRIBE_H
#define TESTS_HTTP_DESCRIBE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/http_parse.h"

static inline void describe_request(FILE *out, const struct http_parse *p)
{
	const struct http_request *q = &p->req;

	if (p->state == HTTP_PARSE_REFUSED) {
		fprintf(out, "refused %d %s\n", p->status, p->message);
		return;
	}
	if (p->state != HTTP_PARSE_DONE) {
		fprintf(out, "%s\n",
			p->state == HTTP_PARSE_IDLE   ? "idle"
			: p->state == HTTP_PARSE_HEAD ? "head"
						      : "body");
		return;
	}
	fprintf(out, "%s%s %s ?%s%s%s%s\n", q->method, p->is_head ? "(HEAD)" : "", q->path,
		q->query, p->keep_alive ? "" : " close", p->is_http10 ? " 1.0" : "",
		p->expect_continue ? " expect" : "");
	for (size_t i = 0; i < q->header_count; i++)
		fprintf(out, "%s=%s\n", q->headers[i].name, q->headers[i].value);
	fprintf(out, "[%zu]", q->body_len);
	fwrite(q->body, 1, q->body_len, out);
	fprintf(out, "%s\n", q->body[q->body_len] == '\0' ? "" : " NOT TERMINATED");
}

/*
 * Parses all of data as a connection would, fed in pieces whose ends are at `ends` (ascending; the
 * last is len). Returns the description of all requests; the caller frees it. Each piece is a heap
 * block of its exact size, so that a sanitizer sees a read beyond it.
 */
static inline char *describe_fed(
	const char *data, const size_t *ends, size_t n_ends, size_t max_body)
{
	struct http_parse p;
	char *text = NULL, *piece;
	size_t len, used, at, from = 0, text_len;
	FILE *out = open_memstream(&text, &text_len);

	http_parse_init(&p, max_body);
	for (size_t i = 0; i < n_ends; from = ends[i++]) {
		len = ends[i] - from;
		piece = malloc(len ? len : 1);
		memcpy(piece, data + from, len);
		for (at = 0; at < len; at += used) {
			http_parse_feed(&p, piece + at, len - at, &used);
			if (used > len - at)
				abort();
			if (p.state == HTTP_PARSE_DONE) {
				describe_request(out, &p);
				http_parse_reset(&p);
			} else if (used != len - at) {
				abort(); /* only the end of a request leaves bytes over */
			}
		}
		free(piece);
	}
	describe_request(out, &p);
	http_parse_fini(&p);
	fclose(out);
	return text;
}

#endif
