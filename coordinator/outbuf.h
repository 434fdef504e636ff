/*
 * outbuf.h: a growing buffer of bytes that answers are written into, with the few JSON writers they
 * need. Numbers and strings come out as JSON; commas and brackets are the caller's.
 *
 * Running out of memory is remembered instead of returned: write on, and ask outbuf_ok() once at
 * the end. Zero-initialise; free with outbuf_fini(). Not for several threads at once.
 */
#ifndef COORDINATOR_OUTBUF_H
#define COORDINATOR_OUTBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/utf8.h"
#include "shm/util.h"

struct outbuf {
	char *data; /* NULL until the first byte; not NUL-terminated */
	size_t len, cap;
	bool failed; /* memory ran out; what was written since is lost */
};

void outbuf_fini(struct outbuf *b);
/* Empties it and keeps the memory. */
void outbuf_clear(struct outbuf *b);
static inline bool outbuf_ok(const struct outbuf *b)
{
	return !b->failed;
}

void outbuf_add(struct outbuf *b, const void *data, size_t len);
void outbuf_puts(struct outbuf *b, const char *text);
void outbuf_uint(struct outbuf *b, uint64_t value);
void outbuf_printf(struct outbuf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Appends what `from` holds; its failure becomes b's. */
void outbuf_join(struct outbuf *b, const struct outbuf *from);

/*
 * "text" with JSON's escapes. Bytes that are not UTF-8 become U+FFFD each, so that the result is
 * valid JSON whatever is put in.
 */
void outbuf_json_string(struct outbuf *b, const char *text, size_t len);
/* A real as a JSON number that reads back as the same float; -9999.0 for what JSON cannot say. */
void outbuf_json_float(struct outbuf *b, float value);

#endif
