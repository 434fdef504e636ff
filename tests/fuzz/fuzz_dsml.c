/*
 * A completion as the input, after one byte of options: taken apart at once and byte by byte it
 * must give the same, and content that holds no call must come out whole.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/dsml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen {
	struct outbuf text;
	int last;
	size_t plain;
	bool calls;
};

static int see(void *arg, const struct dsml_event *e)
{
	struct seen *s = arg;

	if (e->kind >= DSML_CALL)
		s->calls = true;
	else
		s->plain += e->len;
	if (e->kind == DSML_CALL || s->last != (int)e->kind)
		outbuf_printf(&s->text, "[%d %u]", e->kind, e->kind >= DSML_CALL ? e->index : 0);
	outbuf_add(&s->text, e->text, e->len);
	s->last = (int)e->kind;
	return 0;
}

static void take_apart(const uint8_t *data, size_t size, size_t step, int options, struct seen *s)
{
	struct dsml d;

	*s = (struct seen){.last = -1};
	dsml_init(&d, options & 1, !(options & 2), options & 8 ? (size_t)options >> 4 : DSML_WHOLE,
		see, s);
	for (size_t at = 0, n; at < size; at += n) {
		n = size - at < step ? size - at : step;
		if (dsml_push(&d, (const char *)data + at, n) < 0)
			abort();
	}
	if (dsml_finish(&d, options & 4) < 0)
		abort();
	dsml_fini(&d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct seen once, bytes;
	int options;

	if (!size)
		return 0;
	options = data[0];
	take_apart(data + 1, size - 1, size, options, &once);
	take_apart(data + 1, size - 1, 1, options, &bytes);
	if (once.text.len != bytes.text.len ||
		(once.text.len && memcmp(once.text.data, bytes.text.data, once.text.len) != 0))
		abort();
	/* Only </think> and, where the model was cut, unfinished markup may be missing. */
	if (!once.calls && !(options & 4) && once.plain + 8 < size - 1)
		abort();
	outbuf_fini(&once.text);
	outbuf_fini(&bytes.text);
	return 0;
}
