#include "coordinator/http_answer.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ID_MAX 128

static const struct {
	int status;
	const char *phrase;
} phrases[] = {
	{200, "OK"},
	{202, "Accepted"},
	{204, "No Content"},
	{304, "Not Modified"},
	{400, "Bad Request"},
	{401, "Unauthorized"},
	{403, "Forbidden"},
	{404, "Not Found"},
	{405, "Method Not Allowed"},
	{408, "Request Timeout"},
	{409, "Conflict"},
	{411, "Length Required"},
	{413, "Content Too Large"},
	{414, "URI Too Long"},
	{415, "Unsupported Media Type"},
	{417, "Expectation Failed"},
	{422, "Unprocessable Content"},
	{429, "Too Many Requests"},
	{431, "Request Header Fields Too Large"},
	{500, "Internal Server Error"},
	{501, "Not Implemented"},
	{503, "Service Unavailable"},
	{504, "Gateway Timeout"},
	{505, "HTTP Version Not Supported"},
};

static const char *phrase_of(int status)
{
	for (size_t i = 0; i < ARRAY_LEN(phrases); i++)
		if (phrases[i].status == status)
			return phrases[i].phrase;
	return "Status"; /* clients read the number */
}

const char *http_answer_id(const struct http_request *req)
{
	const char *id = http_header_get(req, "x-request-id");
	size_t len = id ? strlen(id) : 0;

	if (len == 0 || len > ID_MAX)
		return NULL;
	for (size_t i = 0; i < len; i++)
		if (!isgraph((unsigned char)id[i]))
			return NULL;
	return id;
}

/* Queues bytes; a connection that cannot have its answer whole gets none of it any more. */
static void put(struct http_conn *c, const void *data, size_t len)
{
	if (c->state != CONN_CLOSED && stream_write(&c->out, data, len) < 0)
		conn_close(c);
}

int http_answer_continue(struct http_conn *c)
{
	static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
	int r = stream_write(&c->out, text, sizeof(text) - 1);

	if (r == 0)
		stream_flush(&c->out);
	return r;
}

const char *http_header_get(const struct http_request *req, const char *lower_name)
{
	for (size_t i = 0; i < req->header_count; i++)
		if (strcmp(req->headers[i].name, lower_name) == 0)
			return req->headers[i].value;
	return NULL;
}

const struct http_request *http_request(const struct http_exchange *x)
{
	return &conn_of(x)->parse.req;
}

int http_add_header(struct http_exchange *x, const char *name, const char *value)
{
	size_t n = strlen(name), v = strlen(value), need = n + v + 4;
	struct stream_buf *b = &x->headers;

	assert(x->state == EXCHANGE_OPEN);
	if (n == 0 || b->len + need > CONN_HEADER_BYTES)
		return n ? -E2BIG : -EINVAL;
	for (size_t i = 0; i < n; i++)
		if (!isgraph((unsigned char)name[i]) || name[i] == ':')
			return -EINVAL;
	for (size_t i = 0; i < v; i++)
		if (iscntrl((unsigned char)value[i]))
			return -EINVAL;
	if (!b->data) {
		b->data = malloc(CONN_HEADER_BYTES + 1);
		if (!b->data)
			return -ENOMEM;
	}
	b->len += (size_t)sprintf(b->data + b->len, "%s: %s\r\n", name, value);
	return 0;
}

/* content_length < 0: not known beforehand. */
static void put_head(struct http_exchange *x, int status, const char *type, int64_t content_length)
{
	struct http_conn *c = conn_of(x);
	char head[768], date[40], length[48] = "";
	time_t now = time(NULL);
	struct tm tm;
	int n;

	assert(x->state == EXCHANGE_OPEN);
	x->status = status;
	x->no_body |= status == 204 || status == 304;
	x->chunked = content_length < 0 && !c->parse.is_http10;
	if (c->server->draining || c->eof || (content_length < 0 && !x->chunked))
		c->close_after = true;
	gmtime_r(&now, &tm);
	strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", &tm);
	if (x->chunked)
		snprintf(length, sizeof(length), "Transfer-Encoding: chunked\r\n");
	else if (content_length >= 0 && status != 204)
		snprintf(length, sizeof(length), "Content-Length: %lld\r\n",
			(long long)content_length);
	n = snprintf(head, sizeof(head),
		"HTTP/1.1 %d %s\r\nDate: %s\r\n%s%.200s%s%sx-request-id: %s\r\nConnection: %s\r\n",
		status, phrase_of(status), date, type ? "Content-Type: " : "", type ? type : "",
		type ? "\r\n" : "", length, c->parse.req.id,
		c->close_after ? "close" : "keep-alive");
	assert(n > 0 && (size_t)n < sizeof(head));
	put(c, head, (size_t)n);
	put(c, x->headers.data, x->headers.len);
	put(c, "\r\n", 2);
}

void http_respond(
	struct http_exchange *x, int status, const char *content_type, const void *body, size_t len)
{
	put_head(x, status, content_type, (int64_t)len);
	if (!x->no_body) {
		put(conn_of(x), body, len);
		x->body_bytes = len;
	}
	conn_answered(conn_of(x));
}

void http_stream_begin(struct http_exchange *x, int status, const char *content_type)
{
	put_head(x, status, content_type, -1);
	x->state = EXCHANGE_STREAMING;
	conn_touch(conn_of(x));
}

/* The size of a chunk, in hex, as it goes before it: once for each token of each stream. */
static void put_chunk_size(struct http_conn *c, size_t len)
{
	char line[2 * sizeof(len) + 2], *at = line + sizeof(line);

	*--at = '\n';
	*--at = '\r';
	for (; len > 0; len >>= 4)
		*--at = "0123456789abcdef"[len & 15];
	put(c, at, (size_t)(line + sizeof(line) - at));
}

size_t http_stream_write(struct http_exchange *x, const void *data, size_t len)
{
	struct http_conn *c = conn_of(x);

	assert(x->state == EXCHANGE_STREAMING);
	if (len == 0 || x->no_body || c->state == CONN_CLOSED)
		return stream_waiting(&c->out); /* a chunk of 0 would be the end */
	if (x->chunked)
		put_chunk_size(c, len);
	put(c, data, len);
	if (x->chunked)
		put(c, "\r\n", 2);
	x->body_bytes += len;
	conn_touch(c);
	return stream_waiting(&c->out);
}

void http_stream_end(struct http_exchange *x)
{
	assert(x->state == EXCHANGE_STREAMING);
	if (x->chunked && !x->no_body)
		put(conn_of(x), "0\r\n\r\n", 5);
	conn_answered(conn_of(x));
}

void http_stream_abort(struct http_exchange *x)
{
	assert(x->state == EXCHANGE_STREAMING);
	conn_of(x)->close_after = true;
	conn_answered(conn_of(x));
}

void http_watch(struct http_exchange *x, void (*on_gone)(void *user), void *user)
{
	x->on_gone = on_gone;
	x->user = user;
	if (conn_of(x)->state == CONN_CLOSED)
		conn_touch(conn_of(x));
}

void http_drop_body(struct http_exchange *x)
{
	http_parse_drop_body(&conn_of(x)->parse);
	conn_charge_body(conn_of(x));
}

/* A string that may quote a client's bytes: what is not UTF-8 is shown as '?'. */
static json_t *text_json(char *text)
{
	json_t *j = json_string(text);

	for (char *s = text; !j && *s; s++)
		if ((unsigned char)*s >= 0x80)
			*s = '?';
	return j ? j : json_string(text);
}

void http_respond_error(struct http_exchange *x, int status, const char *type, const char *param,
	const char *code, const char *fmt, ...)
{
	char text[2048], param_text[256], *body;
	va_list ap;
	json_t *j;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	snprintf(param_text, sizeof(param_text), "%s", param ? param : "");
	j = json_pack("{s:{s:o,s:s,s:o,s:s?}}", "error", "message", text_json(text), "type", type,
		"param", param ? text_json(param_text) : json_null(), "code", code);
	body = j ? json_dumps(j, JSON_COMPACT) : NULL;
	json_decref(j);
	if (body)
		http_respond(x, status, "application/json", body, strlen(body));
	else
		http_respond(x, status, NULL, "", 0); /* no memory even for saying so */
	free(body);
}
