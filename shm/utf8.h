/*
 * utf8.h: is this text? Pure; any thread.
 */
#ifndef SHM_UTF8_H
#define SHM_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Length in bytes (1..4) of the UTF-8 character at text, 0 when the bytes there are none: overlong,
 * a surrogate, above U+10FFFF, cut off.
 */
size_t utf8_char(const char *text, size_t len);
/*
 * Bytes of text to keep where there is room for max: all len, or max less what would be a part of a
 * character. Of bytes that are no characters, max.
 */
size_t utf8_fit(const char *text, size_t len, size_t max);
bool utf8_valid(const char *text, size_t len);

#endif
