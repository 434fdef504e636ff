#include "coordinator/http_parse.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "coordinator/http_head.h"

static int on_body(void *user, const char *data, size_t len);

void http_parse_init(struct http_parse *p, size_t max_body)
{
	*p = (struct http_parse){.max_body = max_body};
	p->wire.on_body = on_body;
	p->wire.user = p;
}

void http_parse_drop_body(struct http_parse *p)
{
	free(p->body);
	p->body = NULL;
	p->body_cap = 0;
	p->req.body = "";
	p->req.body_len = 0;
}

void http_parse_fini(struct http_parse *p)
{
	http_parse_drop_body(p);
	free(p->head);
	free(p->headers);
	p->head = NULL;
	p->headers = NULL;
}

void http_parse_reset(struct http_parse *p)
{
	size_t max_body = p->max_body;

	http_parse_fini(p);
	http_parse_init(p, max_body);
}

void http_parse_refuse(struct http_parse *p, int status, const char *code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(p->message, sizeof(p->message), fmt, ap);
	va_end(ap);
	p->status = status;
	p->code = code;
	p->state = HTTP_PARSE_REFUSED;
}

/* Grows *buf to hold `need` bytes, by doubling, never above `max`. */
static int reserve(char **buf, size_t *cap, size_t need, size_t max)
{
	size_t n = MIN(MAX(MAX(*cap * 2, need), 1024), max);
	char *grown;

	if (need <= *cap)
		return 0;
	grown = realloc(*buf, n);
	if (!grown)
		return -ENOMEM;
	*buf = grown;
	*cap = n;
	return 0;
}

static int on_body(void *user, const char *data, size_t len)
{
	struct http_parse *p = user;
	/* what it can grow to: the announced length is trusted no further than bytes have come */
	size_t max = MIN(p->content_length, p->max_body) + 1;

	if (len > p->max_body - p->body_len) {
		http_parse_refuse(p, 413, "body_too_large",
			"the body is larger than api.max_body (%zu bytes)", p->max_body);
		return -E2BIG;
	}
	if (reserve(&p->body, &p->body_cap, p->body_len + len + 1, max) < 0) {
		http_parse_refuse(p, 503, "out_of_memory", "no memory for the request's body");
		return -ENOMEM;
	}
	memcpy(p->body + p->body_len, data, len);
	p->body_len += len;
	p->body[p->body_len] = '\0';
	return 0;
}

/*
 * Looks at one byte of the head. 0: go on, 1: it was the last, -1: refused. The library would let
 * pass much of what is refused here, and its limits are not ours.
 */
static int scan_head(struct http_parse *p, char c)
{
	char last = p->last;

	p->last = c;
	if (c == '\n') {
		if (last != '\r')
			goto bad_line;
		p->lines++;
		if (p->line_len == 0)
			return 1;
		p->line_len = 0;
		return 0;
	}
	if (last == '\r')
		goto bad_line;
	if (c == '\r')
		return 0;
	if (p->lines == 0 && (c == '\t' || (c == ' ' && last == ' '))) {
		http_parse_refuse(p, 400, "bad_request",
			"the request line must be METHOD TARGET VERSION with one space between");
		return -1;
	}
	if (((unsigned char)c < 0x20 && c != '\t') || c == 0x7f) {
		http_parse_refuse(p, 400, "bad_request",
			"control character 0x%02x in the head of the request", (unsigned char)c);
		return -1;
	}
	if (p->line_len++ == 0 && p->lines > 0) {
		if (c == ' ' || c == '\t') {
			http_parse_refuse(
				p, 400, "bad_request", "folded header lines are not accepted");
			return -1;
		}
		if (p->lines > HTTP_MAX_HEADERS) {
			http_parse_refuse(p, 431, "headers_too_large", "more than %d header lines",
				HTTP_MAX_HEADERS);
			return -1;
		}
	}
	if (p->lines == 0 && p->line_len > HTTP_MAX_REQUEST_LINE) {
		http_parse_refuse(p, 414, "uri_too_long",
			"the request line is longer than %d bytes", HTTP_MAX_REQUEST_LINE);
		return -1;
	}
	return 0;

bad_line:
	http_parse_refuse(p, 400, "bad_request", "lines of the head must end with CR LF");
	return -1;
}

static void finish(struct http_parse *p)
{
	p->req.body = p->body ? p->body : "";
	p->req.body_len = p->body_len;
	p->state = HTTP_PARSE_DONE;
}

/* The head is whole: understand it, and go on to the body if there is one. */
static void end_head(struct http_parse *p)
{
	struct http_wire_header raw[HTTP_MAX_HEADERS];
	struct http_wire_head h = {.headers = raw, .header_cap = HTTP_MAX_HEADERS};
	int r = http_wire_head(&p->wire, p->head, p->head_len, &h);

	if (http_head_check(p, &h, r == 0) < 0)
		return;
	p->headers = calloc(MAX(h.header_count, 1), sizeof(*p->headers));
	if (!p->headers) {
		http_parse_refuse(p, 503, "out_of_memory", "no memory for the request's headers");
		return;
	}
	if (http_head_take(p, &h) < 0)
		return;
	p->content_length = h.content_length;
	if (h.content_length != HTTP_WIRE_NO_LENGTH && h.content_length > p->max_body)
		http_parse_refuse(p, 413, "body_too_large",
			"the body has %llu bytes; api.max_body is %zu",
			(unsigned long long)h.content_length, p->max_body);
	else if (h.done)
		finish(p);
	else
		p->state = HTTP_PARSE_BODY;
}

static size_t feed_head(struct http_parse *p, const char *data, size_t len)
{
	size_t i = 0, from;
	int r = 0;

	/* some clients end a body with an extra CRLF */
	for (; i < len && p->head_len == 0 && (data[i] == '\r' || data[i] == '\n'); i++)
		if (++p->blank > HTTP_MAX_BLANK) {
			http_parse_refuse(p, 400, "bad_request", "empty lines, but no request");
			return len;
		}
	if (i == len)
		return len;
	p->state = HTTP_PARSE_HEAD;
	for (from = i; i < len && r == 0; i++) {
		if (p->head_len + (i - from) == HTTP_MAX_HEAD) {
			http_parse_refuse(p, 431, "headers_too_large",
				"the head of the request is larger than %d bytes", HTTP_MAX_HEAD);
			return len;
		}
		r = scan_head(p, data[i]);
	}
	if (r < 0)
		return len;
	if (reserve(&p->head, &p->head_cap, p->head_len + (i - from), HTTP_MAX_HEAD) < 0) {
		http_parse_refuse(p, 503, "out_of_memory", "no memory for the request's head");
		return len;
	}
	memcpy(p->head + p->head_len, data + from, i - from);
	p->head_len += i - from;
	if (r > 0)
		end_head(p);
	return i;
}

static size_t feed_body(struct http_parse *p, const char *data, size_t len)
{
	size_t used = len;
	int r = http_wire_body(&p->wire, data, len, &used);

	if (p->state == HTTP_PARSE_REFUSED)
		return len;
	if (r < 0) {
		http_parse_refuse(p, 400, "bad_request", "malformed chunked body: %s",
			http_wire_error(&p->wire));
		return len;
	}
	p->body_raw += used;
	if (p->body_raw - p->body_len > HTTP_MAX_FRAMING + 8 * p->body_len) {
		http_parse_refuse(p, 400, "bad_request",
			"the chunked body is mostly framing: %zu bytes for %zu", p->body_raw,
			p->body_len);
		return len;
	}
	if (r > 0)
		finish(p);
	return used;
}

enum http_parse_state http_parse_feed(
	struct http_parse *p, const char *data, size_t len, size_t *ret_used)
{
	size_t used = 0;

	if (p->state <= HTTP_PARSE_HEAD)
		used = feed_head(p, data, len);
	if (p->state == HTTP_PARSE_BODY && used < len)
		used += feed_body(p, data + used, len - used);
	*ret_used = p->state == HTTP_PARSE_REFUSED ? len : used;
	return p->state;
}
