#include "shm/escape.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "shm/util.h"
#include "shm/utf8.h"

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* Control characters are U+0000 to U+001F and U+007F to U+009F; the latter take two bytes. */
static bool is_control(const uint8_t *at, size_t len)
{
	return *at < 0x20 || *at == 0x7f || (len == 2 && *at == 0xc2 && at[1] < 0xa0);
}

/* The letter of the short escapes that C and JSON share. */
static char short_escape(uint8_t c)
{
	switch (c) {
	case '\n':
		return 'n';
	case '\t':
		return 't';
	case '\r':
		return 'r';
	default:
		return 0;
	}
}

/* One character, len bytes, or a byte that is none, len 0, as text; the number of its bytes. */
static size_t escape_one(char out[8], const uint8_t *at, size_t len, bool json)
{
	char letter = short_escape(*at);
	int n;

	if (len == 0 && json)
		n = snprintf(out, 8, "%s", REPLACEMENT);
	else if (len == 0)
		n = snprintf(out, 8, "\\x%02x", *at);
	else if (json && (*at == '"' || *at == '\\'))
		n = snprintf(out, 8, "\\%c", *at);
	else if (!is_control(at, len))
		n = snprintf(out, 8, "%.*s", (int)len, (const char *)at);
	else if (letter)
		n = snprintf(out, 8, "\\%c", letter);
	else
		n = snprintf(
			out, 8, json || len == 2 ? "\\u%04x" : "\\x%02x", (unsigned)at[len - 1]);
	return (size_t)n;
}

static size_t escape(char *out, size_t cap, const char *text, bool json)
{
	const uint8_t *at = (const uint8_t *)text;
	size_t left = strlen(text), used = 0, len, n;
	char one[8];

	for (; left > 0; at += MAX(len, 1u), left -= MAX(len, 1u)) {
		len = utf8_char((const char *)at, left);
		n = escape_one(one, at, len, json);
		if (used + n >= cap)
			break;
		memcpy(out + used, one, n);
		used += n;
	}
	out[used] = '\0';
	return used;
}

size_t escape_line(char *out, size_t cap, const char *text)
{
	return escape(out, cap, text, false);
}

void escape_print(FILE *out, const char *before, const char *text)
{
	char line[4096];

	(void)escape_line(line, sizeof(line), text);
	fprintf(out, "%s%s\n", before, line);
}

size_t escape_json(char *out, size_t cap, const char *text)
{
	return escape(out, cap, text, true);
}
