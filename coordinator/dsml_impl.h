/* dsml_impl.h: what dsml.c (text and blocks) and dsml_call.c (one call) share. Not for others. */
#ifndef COORDINATOR_DSML_IMPL_H
#define COORDINATOR_DSML_IMPL_H

#include <string.h>

#include "coordinator/dsml.h"

#define DSML_BAR        "｜DSML｜"
#define DSML_CALL_CLOSE "</" DSML_BAR "invoke>"
#define DSML_LEN(s)     (sizeof(s) - 1)

/* Bytes that are looked at; what is taken is passed over. */
struct view {
	const char *p, *end;
};

static inline size_t view_left(const struct view *v)
{
	return (size_t)(v->end - v->p);
}

static inline void view_skip_space(struct view *v)
{
	while (v->p < v->end && (*v->p == ' ' || *v->p == '\n' || *v->p == '\t' || *v->p == '\r'))
		v->p++;
}

static inline bool view_take(struct view *v, const char *text, size_t len)
{
	if (view_left(v) < len || memcmp(v->p, text, len) != 0)
		return false;
	v->p += len;
	return true;
}

/* Is all that is left the beginning of text, and less than it? */
static inline bool view_begins(const struct view *v, const char *text, size_t len)
{
	return view_left(v) < len && memcmp(v->p, text, view_left(v)) == 0;
}

/* How many of the last bytes may be the beginning of text. */
static inline size_t view_begun(const struct view *v, const char *text, size_t len)
{
	size_t n = MIN(view_left(v), len - 1);

	while (n && memcmp(v->end - n, text, n) != 0)
		n--;
	return n;
}

const char *view_find(const struct view *v, const char *text, size_t len);

/*
 * Reads on in a call, from d->at up to `end`, which is its closing (closed) or the end of what has
 * come. 1: the call is complete and handed over; 0: more text is needed; -EINVAL: it is none;
 * -ENOMEM, or what the sink returned. d->at is where it got to, d->from too once it has begun to
 * hand over.
 */
int dsml_call_read(struct dsml *d, const char *end, bool closed) MUST_CHECK;
void dsml_call_begin(struct dsml_call *c);
void dsml_call_fini(struct dsml_call *c);

#endif
