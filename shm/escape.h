/*
 * escape.h: text that quotes what somebody sent or wrote, on its way to a terminal, a log or a JSON
 * string. What comes out is one line of valid UTF-8 that moves no cursor, whatever went in; valid
 * text without control characters comes out as it was. For people and log readers only: a backslash
 * of the text's own is not told from one put here. Pure; any thread.
 *
 * What writes into out ends it with NUL, cuts where out is full, never inside a character or an
 * escape, and returns the length. cap is at least 1.
 */
#ifndef SHM_ESCAPE_H
#define SHM_ESCAPE_H

#include <stddef.h>
#include <stdio.h>

/* For people: \n, \t, \r, \x1b; \u009b, a control character of two bytes; \xff, no character. */
size_t escape_line(char *out, size_t cap, const char *text);

/* Prints `before` as it is, then text by escape_line(), cut at 4095 bytes, and a newline. All that
 * a program of ours says of an error goes this way. */
void escape_print(FILE *out, const char *before, const char *text);

/* The inside of a JSON string: control characters as JSON escapes them, U+FFFD for a byte that is
 * no character. */
size_t escape_json(char *out, size_t cap, const char *text);

#endif
