/*
 * text.h: how things look: aligned tables, sizes and times for people, model text on a terminal.
 */
#ifndef CLIENT_TEXT_H
#define CLIENT_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "shm/util.h"

enum { TEXT_SHORT = 32, TEXT_COLS_MAX = 16 };

/* "22.4 MiB", "512 B" */
const char *text_bytes(uint64_t bytes, char out[TEXT_SHORT]);
/* "1,234,567" */
const char *text_count(uint64_t n, char out[TEXT_SHORT]);
/* "1.23 s", "4.5 ms", "2 h 13 min" */
const char *text_seconds(double seconds, char out[TEXT_SHORT]);

/* Rows of cells, printed with columns as wide as their widest cell. */
struct text_table {
	uint32_t cols;
	uint32_t right; /* bit i: column i is aligned to the right */
	char **cells;
	size_t n, cap;
	bool failed; /* out of memory: text_table_print() says so */
};
void text_table_init(struct text_table *t, uint32_t cols, uint32_t right);
PRINTF_LIKE(2, 3)
void text_table_add(struct text_table *t, const char *fmt, ...);
/* Prints with `indent` spaces before each row, and empties the table. Returns 0 or -ENOMEM. */
int text_table_print(struct text_table *t, FILE *out, int indent);

/*
 * Prints what a model wrote. On a terminal control characters other than tab and newline are
 * shown as U+FFFD: text must not move the cursor or change the title.
 */
void text_put(FILE *out, const char *bytes, size_t n, bool terminal);

#endif
