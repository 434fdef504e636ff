/*
 * sse.h: server-sent events from bytes as they arrive, in pieces of any size. Only `data` matters
 * here: comments and other fields are skipped. (The field rules are those of the WHATWG HTML
 * standard, "Server-sent events".)
 */
#ifndef CLIENT_SSE_H
#define CLIENT_SSE_H

#include <stdbool.h>
#include <stddef.h>

#include "shm/util.h"

enum { SSE_EVENT_MAX = 64 << 20 };

struct sse {
	char *line; /* the line that has begun */
	size_t line_len, line_cap;
	char *data; /* the event's data so far */
	size_t data_len, data_cap;
	bool has_data, after_cr, past_start;
};

/* All zero is an empty parser. */
void sse_fini(struct sse *sse);

/*
 * Takes n bytes; calls event() with each event's data (NUL-terminated as well), whose non-zero
 * result ends the call and is returned. -EMSGSIZE for an event over SSE_EVENT_MAX; -ENOMEM.
 */
int sse_feed(struct sse *sse, const char *bytes, size_t n,
	int (*event)(void *user, const char *data, size_t len), void *user) MUST_CHECK;

#endif
