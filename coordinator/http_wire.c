#include "coordinator/http_wire.h"

#include <errno.h>
#include <string.h>

#ifdef HAVE_LLHTTP
typedef llhttp_t parser_t;
typedef llhttp_settings_t settings_t;
#define STOP HPE_USER
#else
typedef http_parser parser_t;
typedef http_parser_settings settings_t;
#define STOP 1
#endif

/* The library hands the head over in whole pieces because it is given whole. */
static int on_url(parser_t *p, const char *at, size_t len)
{
	struct http_wire *w = p->data;

	w->head->target = (struct http_slice){(char *)(uintptr_t)at, len};
	return 0;
}

static int on_field(parser_t *p, const char *at, size_t len)
{
	struct http_wire *w = p->data;
	struct http_wire_head *h = w->head;

	if (h && h->header_count < h->header_cap)
		h->headers[h->header_count] =
			(struct http_wire_header){.name = {(char *)(uintptr_t)at, len}};
	return 0; /* without a head: trailers, which nobody asked for */
}

static int on_value(parser_t *p, const char *at, size_t len)
{
	struct http_wire *w = p->data;
	struct http_wire_head *h = w->head;

	if (h && h->header_count < h->header_cap)
		h->headers[h->header_count].value = (struct http_slice){(char *)(uintptr_t)at, len};
	if (h)
		h->header_count++;
	return 0;
}

static int on_headers_complete(parser_t *p)
{
	struct http_wire *w = p->data;
	struct http_wire_head *h = w->head;

	h->chunked = p->flags & F_CHUNKED;
#ifdef HAVE_LLHTTP
	h->keep_alive = llhttp_should_keep_alive(p);
	h->content_length = p->flags & F_CONTENT_LENGTH ? p->content_length : HTTP_WIRE_NO_LENGTH;
#else
	h->keep_alive = http_should_keep_alive(p);
	h->content_length = p->flags & F_CONTENTLENGTH ? p->content_length : HTTP_WIRE_NO_LENGTH;
#endif
	return 0;
}

static int on_body(parser_t *p, const char *at, size_t len)
{
	struct http_wire *w = p->data;

	return w->on_body(w->user, at, len) ? STOP : 0;
}

static int on_message_complete(parser_t *p)
{
	struct http_wire *w = p->data;

	w->done = true;
#ifdef HAVE_LLHTTP
	return HPE_PAUSED;
#else
	http_parser_pause(p, 1);
	return 0;
#endif
}

static const settings_t settings = {
	.on_url = on_url,
	.on_header_field = on_field,
	.on_header_value = on_value,
	.on_headers_complete = on_headers_complete,
	.on_body = on_body,
	.on_message_complete = on_message_complete,
};

/* Bytes used, or -EBADMSG. The pause at the end of a message is not an error. */
static ssize_t execute(struct http_wire *w, const char *data, size_t len)
{
#ifdef HAVE_LLHTTP
	enum llhttp_errno e = llhttp_execute(&w->parser, data, len);

	if (e == HPE_OK)
		return (ssize_t)len;
	return w->done ? llhttp_get_error_pos(&w->parser) - data : -EBADMSG;
#else
	size_t used = http_parser_execute(&w->parser, &settings, data, len);

	return HTTP_PARSER_ERRNO(&w->parser) == HPE_OK || w->done ? (ssize_t)used : -EBADMSG;
#endif
}

static const char *method_name(const parser_t *p)
{
#ifdef HAVE_LLHTTP
	return llhttp_method_name((llhttp_method_t)p->method);
#else
	return http_method_str((enum http_method)p->method);
#endif
}

int http_wire_head(struct http_wire *w, char *data, size_t len, struct http_wire_head *ret_head)
{
	struct http_wire_head *h = ret_head;
	ssize_t used;

#ifdef HAVE_LLHTTP
	llhttp_init(&w->parser, HTTP_REQUEST, &settings);
#else
	http_parser_init(&w->parser, HTTP_REQUEST);
#endif
	w->parser.data = w;
	w->done = false;
	w->head = h;
	used = execute(w, data, len);
	w->head = NULL;
	h->method = method_name(&w->parser);
	h->major = w->parser.http_major;
	h->minor = w->parser.http_minor;
	h->done = w->done;
	/* an end of the head elsewhere than where we saw it would make two requests of one */
	return used == (ssize_t)len ? 0 : -EBADMSG;
}

int http_wire_body(struct http_wire *w, const char *data, size_t len, size_t *ret_used)
{
	ssize_t used = execute(w, data, len);

	if (used < 0)
		return (int)used;
	*ret_used = (size_t)used;
	return w->done;
}

const char *http_wire_error(const struct http_wire *w)
{
#ifdef HAVE_LLHTTP
	const char *reason = llhttp_get_error_reason(&w->parser);

	return reason && *reason ? reason : "malformed";
#else
	return http_errno_description(HTTP_PARSER_ERRNO(&w->parser));
#endif
}
