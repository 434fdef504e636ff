#include "shm/utf8.h"

size_t utf8_char(const char *text, size_t len)
{
	const uint8_t *s = (const uint8_t *)text;
	uint32_t code, least;
	size_t n, i;

	if (!len)
		return 0;
	if (s[0] < 0x80)
		return 1;
	if (s[0] >= 0xc2 && s[0] < 0xe0) {
		n = 2;
		code = s[0] & 0x1f;
		least = 0x80;
	} else if (s[0] >= 0xe0 && s[0] < 0xf0) {
		n = 3;
		code = s[0] & 0x0f;
		least = 0x800;
	} else if (s[0] >= 0xf0 && s[0] < 0xf5) {
		n = 4;
		code = s[0] & 0x07;
		least = 0x10000;
	} else {
		return 0;
	}
	if (len < n)
		return 0;
	for (i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (s[i] & 0x3f);
	}
	if (code < least || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
		return 0;
	return n;
}

size_t utf8_fit(const char *text, size_t len, size_t max)
{
	size_t at, n;

	if (len <= max)
		return len;
	for (at = max; at > 0 && max - at < 3; at--) {
		n = utf8_char(text + at - 1, len - at + 1);
		if (n > 0)
			return at - 1 + n > max ? at - 1 : max;
	}
	return max;
}

bool utf8_valid(const char *text, size_t len)
{
	size_t at = 0, n;

	while (at < len) {
		n = utf8_char(text + at, len - at);
		if (!n)
			return false;
		at += n;
	}
	return true;
}
