#include "coordinator/http_head.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

static bool is_name(const struct http_slice *s, const char *name)
{
	return s->len == strlen(name) && strncasecmp(s->at, name, s->len) == 0;
}

/* The characters of a header's name (RFC 9110, 5.6.2); a space before the colon is a classic. */
static bool is_token(const struct http_slice *s)
{
	for (size_t i = 0; i < s->len; i++)
		if (!isalnum((unsigned char)s->at[i]) && !strchr("!#$%&'*+-.^_`|~", s->at[i]))
			return false;
	return s->len > 0;
}

static struct http_slice trim(struct http_slice s)
{
	while (s.len && (s.at[0] == ' ' || s.at[0] == '\t')) {
		s.at++;
		s.len--;
	}
	while (s.len && (s.at[s.len - 1] == ' ' || s.at[s.len - 1] == '\t'))
		s.len--;
	return s;
}

struct framing {
	size_t lengths, codings, hosts;
	bool only_chunked, bad_name, bad_expect;
};

static struct framing look_at(struct http_parse *p, const struct http_wire_head *h)
{
	struct framing f = {.only_chunked = true};
	size_t n = MIN(h->header_count, h->header_cap);

	for (size_t i = 0; i < n; i++) {
		const struct http_slice *name = &h->headers[i].name;
		struct http_slice value = trim(h->headers[i].value);

		if (!is_token(name)) {
			f.bad_name = true;
		} else if (is_name(name, "content-length")) {
			f.lengths++;
		} else if (is_name(name, "transfer-encoding")) {
			f.codings++;
			f.only_chunked &= is_name(&value, "chunked");
		} else if (is_name(name, "host")) {
			f.hosts++;
		} else if (is_name(name, "expect")) {
			p->expect_continue = is_name(&value, "100-continue");
			f.bad_expect |= !p->expect_continue;
		}
	}
	return f;
}

#define REFUSE(p, status, code, ...)                                                               \
	do {                                                                                       \
		http_parse_refuse(p, status, code, __VA_ARGS__);                                   \
		return -EBADMSG;                                                                   \
	} while (0)

int http_head_check(struct http_parse *p, const struct http_wire_head *h, bool well_formed)
{
	struct framing f = look_at(p, h);

	if (h->major != 1 && h->major != 0)
		REFUSE(p, 505, "version_not_supported", "HTTP/%u.%u is not spoken here: use 1.1",
			h->major, h->minor);
	/* two readings of one body's length are how one request is smuggled inside another */
	if (f.lengths && f.codings)
		REFUSE(p, 400, "bad_request",
			"both Content-Length and Transfer-Encoding: the body's length is unclear");
	if (f.lengths > 1 || f.codings > 1)
		REFUSE(p, 400, "bad_request", "%s is given more than once",
			f.codings > 1 ? "Transfer-Encoding" : "Content-Length");
	if (f.codings && !f.only_chunked)
		REFUSE(p, 501, "not_implemented",
			"of the transfer codings only 'chunked' is understood");
	if (f.bad_name)
		REFUSE(p, 400, "bad_request", "malformed header name");
	if (!well_formed)
		REFUSE(p, 400, "bad_request", "malformed request: %s", http_wire_error(&p->wire));
	if (h->major != 1)
		REFUSE(p, 505, "version_not_supported", "HTTP/0.9 is not spoken here: use 1.1");
	/* the library may be built to read anything of that length here */
	if (strncmp(h->target.at + h->target.len, " HTTP/", 6) != 0)
		REFUSE(p, 400, "bad_request", "malformed request: invalid HTTP version");
	if (h->chunked != (f.codings == 1) ||
		(h->content_length != HTTP_WIRE_NO_LENGTH) != (f.lengths == 1))
		REFUSE(p, 400, "bad_request", "the body's length is unclear");
	if (h->minor == 0 && f.codings)
		REFUSE(p, 400, "bad_request", "HTTP/1.0 has no transfer codings");
	if (f.hosts > 1 || (f.hosts == 0 && h->minor > 0))
		REFUSE(p, 400, "bad_request", "a request needs one Host header; this has %zu",
			f.hosts);
	if (f.bad_expect)
		REFUSE(p, 417, "expectation_failed",
			"of the expectations only '100-continue' can be met");
	if (strcmp(h->method, "CONNECT") == 0)
		REFUSE(p, 501, "not_implemented", "this is no proxy: CONNECT is not understood");
	return 0;
}

static char *terminate(struct http_slice s)
{
	s.at[s.len] = '\0'; /* over the blank, colon or CR that ended it */
	return s.at;
}

static int hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* In place. -EBADMSG for a broken escape or one for NUL, which would cut the path short. */
static int percent_decode(char *s)
{
	char *out = s;
	int high, low;

	for (; *s; s++) {
		if (*s != '%') {
			*out++ = *s;
			continue;
		}
		high = hex(s[1]);
		low = high < 0 ? -1 : hex(s[2]);
		if (low < 0 || (high | low) == 0)
			return -EBADMSG;
		*out++ = (char)(high << 4 | low);
		s += 2;
	}
	*out = '\0';
	return 0;
}

/* "/path?query", "http://host/path?query" or, for OPTIONS, "*". */
static int take_target(struct http_parse *p, struct http_slice target)
{
	char *path = terminate(target), *mark, *authority;

	if (strchr(path, '#'))
		return -EBADMSG; /* fragments stay at home */
	p->req.query = "";
	mark = strchr(path, '?');
	if (mark) {
		*mark = '\0';
		p->req.query = mark + 1;
	}
	p->req.path = path;
	if (strcmp(path, "*") == 0)
		return strcmp(p->req.method, "OPTIONS") == 0 ? 0 : -EBADMSG;
	authority = path[0] == '/' ? NULL : strstr(path, "://");
	if (authority) {
		path = strchr(authority + 3, '/');
		p->req.path = path ? path : "/";
	}
	if (path && percent_decode(path) < 0)
		return -EBADMSG;
	return p->req.path[0] == '/' ? 0 : -EBADMSG;
}

int http_head_take(struct http_parse *p, const struct http_wire_head *h)
{
	p->is_head = strcmp(h->method, "HEAD") == 0;
	p->is_http10 = h->minor == 0;
	p->keep_alive = h->keep_alive;
	if (h->done || p->is_http10)
		p->expect_continue = false;
	p->req.method = p->is_head ? "GET" : h->method;
	p->req.body = "";
	for (size_t i = 0; i < h->header_count; i++) {
		struct http_slice value = trim(h->headers[i].value);
		char *name = terminate(h->headers[i].name);

		for (char *c = name; *c; c++)
			*c = (char)tolower((unsigned char)*c);
		p->headers[i].name = name;
		/* the library places an empty value after its line, where the next name is */
		p->headers[i].value = value.len ? terminate(value) : "";
	}
	p->req.headers = p->headers;
	p->req.header_count = h->header_count;
	if (take_target(p, h->target) < 0)
		REFUSE(p, 400, "bad_request",
			"the request's target is not a path, or has a broken %%-escape");
	return 0;
}
