#include "coordinator/outbuf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void outbuf_fini(struct outbuf *b)
{
	free(b->data);
	*b = (struct outbuf){0};
}

void outbuf_clear(struct outbuf *b)
{
	b->len = 0;
}

/* Room for len more bytes, or NULL. */
static char *outbuf_room(struct outbuf *b, size_t len)
{
	size_t cap = b->cap ? b->cap : 256;
	char *data;

	if (b->failed)
		return NULL;
	if (b->cap - b->len >= len)
		return b->data + b->len;
	while (cap - b->len < len) {
		if (cap > SIZE_MAX / 2)
			goto fail;
		cap *= 2;
	}
	data = realloc(b->data, cap);
	if (!data)
		goto fail;
	b->data = data;
	b->cap = cap;
	return b->data + b->len;
fail:
	b->failed = true;
	return NULL;
}

void outbuf_add(struct outbuf *b, const void *data, size_t len)
{
	char *to;

	if (!len)
		return;
	to = outbuf_room(b, len);
	if (!to)
		return;
	memcpy(to, data, len);
	b->len += len;
}

void outbuf_puts(struct outbuf *b, const char *text)
{
	outbuf_add(b, text, strlen(text));
}

void outbuf_join(struct outbuf *b, const struct outbuf *from)
{
	b->failed |= from->failed;
	outbuf_add(b, from->data, from->len);
}

void outbuf_uint(struct outbuf *b, uint64_t value)
{
	char text[20], *at = text + sizeof(text);

	do
		*--at = (char)('0' + value % 10);
	while (value /= 10);
	outbuf_add(b, at, (size_t)(text + sizeof(text) - at));
}

void outbuf_printf(struct outbuf *b, const char *fmt, ...)
{
	char small[256], *to = small;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(small, sizeof(small), fmt, ap);
	va_end(ap);
	if (n < 0) {
		b->failed = true;
		return;
	}
	if ((size_t)n < sizeof(small)) {
		outbuf_add(b, small, (size_t)n);
		return;
	}
	to = outbuf_room(b, (size_t)n + 1);
	if (!to)
		return;
	va_start(ap, fmt);
	vsnprintf(to, (size_t)n + 1, fmt, ap);
	va_end(ap);
	b->len += (size_t)n;
}

/* The escape of one byte below 0x80 that needs one, or NULL. */
static const char *outbuf_escape(uint8_t c, char small[8])
{
	switch (c) {
	case '"':
		return "\\\"";
	case '\\':
		return "\\\\";
	case '\n':
		return "\\n";
	case '\r':
		return "\\r";
	case '\t':
		return "\\t";
	default:
		break;
	}
	if (c >= 0x20 && c != 0x7f)
		return NULL;
	snprintf(small, 8, "\\u%04x", c);
	return small;
}

void outbuf_json_string(struct outbuf *b, const char *text, size_t len)
{
	size_t at = 0, plain = 0, n;
	const char *escape;
	char small[8];

	outbuf_add(b, "\"", 1);
	while (at < len) {
		n = utf8_char(text + at, len - at);
		escape = !n       ? "\xef\xbf\xbd"
			 : n == 1 ? outbuf_escape((uint8_t)text[at], small)
				  : NULL;
		if (!escape) {
			at += n;
			continue;
		}
		outbuf_add(b, text + plain, at - plain);
		outbuf_puts(b, escape);
		plain = ++at;
	}
	outbuf_add(b, text + plain, at - plain);
	outbuf_add(b, "\"", 1);
}

void outbuf_json_float(struct outbuf *b, float value)
{
	char text[40];

	if (!isfinite(value) || value < -9999.0f)
		value = -9999.0f;
	snprintf(text, sizeof(text), "%.9g", (double)value);
	outbuf_puts(b, text);
	if (!strpbrk(text, ".e"))
		outbuf_puts(b, ".0");
}
