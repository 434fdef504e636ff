/*
 * A sentence that quotes what somebody sent or wrote is still one line of valid UTF-8: control
 * characters and bytes that are no character (one cut at the end of a quotation, say) become '?'.
 */
#ifndef COORDINATOR_ONE_LINE_H
#define COORDINATOR_ONE_LINE_H

#include <string.h>

#include "shm/utf8.h"

static inline void one_line(char *text)
{
	size_t left = strlen(text), n;

	for (; left; text += n, left -= n) {
		n = utf8_char(text, left);
		if (n == 0 || (unsigned char)*text < 0x20 || *text == 0x7f) {
			*text = '?';
			n = 1;
		}
	}
}

#endif
