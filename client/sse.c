#include "client/sse.h"

#include <stdlib.h>
#include <string.h>

void sse_fini(struct sse *sse)
{
	free(sse->line);
	free(sse->data);
	memset(sse, 0, sizeof(*sse));
}

/* Appends, and keeps a NUL behind the end. */
static int append(char **buf, size_t *len, size_t *cap, const char *bytes, size_t n)
{
	if (n > SSE_EVENT_MAX - *len)
		return -EMSGSIZE;
	if (*len + n + 1 > *cap) {
		size_t want = MAX(2 * *cap, *len + n + 64);
		char *bigger = realloc(*buf, want);

		if (!bigger)
			return -ENOMEM;
		*buf = bigger;
		*cap = want;
	}
	if (n)
		memcpy(*buf + *len, bytes, n);
	*len += n;
	(*buf)[*len] = '\0';
	return 0;
}

/* A complete line: a field, a comment, or the blank one that ends an event. */
static int take_line(
	struct sse *s, int (*event)(void *user, const char *data, size_t len), void *user)
{
	const char *line = s->line, *value;
	size_t len = s->line_len;
	int ret = 0;

	s->line_len = 0;
	if (!s->past_start && len >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) {
		line += 3; /* a byte order mark may precede the first line */
		len -= 3;
	}
	s->past_start = true;
	if (len == 0) {
		if (!s->has_data)
			return 0;
		ret = event(user, s->data, s->data_len);
		s->has_data = false;
		s->data_len = 0;
		return ret;
	}
	if (len < 4 || memcmp(line, "data", 4) != 0 || (len > 4 && line[4] != ':'))
		return 0;
	value = line + MIN(len, (size_t)5);
	len -= (size_t)(value - line);
	if (len > 0 && *value == ' ') {
		value++;
		len--;
	}
	if (s->has_data)
		ret = append(&s->data, &s->data_len, &s->data_cap, "\n", 1);
	if (ret == 0)
		ret = append(&s->data, &s->data_len, &s->data_cap, value, len);
	s->has_data = true;
	return ret;
}

int sse_feed(struct sse *s, const char *bytes, size_t n,
	int (*event)(void *user, const char *data, size_t len), void *user)
{
	const char *end = bytes + n;
	int ret;

	while (bytes < end) {
		size_t run = 0, left = (size_t)(end - bytes);

		if (s->after_cr && *bytes == '\n') { /* CR LF is one line end, even split in two */
			s->after_cr = false;
			bytes++;
			continue;
		}
		s->after_cr = false;
		while (run < left && bytes[run] != '\n' && bytes[run] != '\r')
			run++;
		ret = append(&s->line, &s->line_len, &s->line_cap, bytes, run);
		if (ret < 0)
			return ret;
		bytes += run;
		if (bytes == end)
			break;
		s->after_cr = *bytes++ == '\r';
		ret = take_line(s, event, user);
		if (ret != 0)
			return ret;
	}
	return 0;
}
