#include "coordinator/stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* An idle connection keeps no more than this for its next answer. */
#define KEEP_BYTES 16384

static void release(struct stream_buf *b)
{
	free(b->data);
	*b = (struct stream_buf){0};
}

static void send_rest(struct stream *s)
{
	/* the event is idle here, which is all that loop_send() asks */
	if (loop_send(s->loop, &s->event, s->fd, s->flying.data + s->flown,
		    s->flying.len - s->flown) < 0)
		s->flying.len = s->flown = 0;
}

static void on_event(struct loop_event *ev, int res, bool more)
{
	struct stream *s = CONTAINER_OF(ev, struct stream, event);

	if (res >= 0) {
		s->flown += (size_t)res;
		if (s->flown < s->flying.len && !s->cancelled)
			send_rest(s);
		else
			s->flying.len = s->flown = 0;
		if (s->flying.cap > KEEP_BYTES && s->flying.len == 0)
			release(&s->flying);
	} else {
		s->flying.len = s->flown = 0;
	}
	s->on_sent(s, res, !stream_in_flight(s));
}

void stream_init(struct stream *s, struct loop *loop, int fd,
	void (*on_sent)(struct stream *s, int res, bool idle))
{
	*s = (struct stream){.loop = loop, .fd = fd, .on_sent = on_sent, .event.fn = on_event};
}

void stream_fini(struct stream *s)
{
	release(&s->flying);
	release(&s->queued);
}

int stream_write(struct stream *s, const void *data, size_t len)
{
	struct stream_buf *b = &s->queued;
	size_t cap = b->cap ? b->cap : 1024;
	char *grown;

	if (len == 0)
		return 0;
	if (len > SIZE_MAX / 4 - b->len)
		return -ENOMEM;
	if (len > b->cap - b->len) {
		while (cap < b->len + len)
			cap *= 2;
		grown = realloc(b->data, cap);
		if (!grown)
			return -ENOMEM;
		b->data = grown;
		b->cap = cap;
	}
	memcpy(b->data + b->len, data, len);
	b->len += len;
	return 0;
}

void stream_flush(struct stream *s)
{
	struct stream_buf t;

	if (stream_in_flight(s) || s->cancelled || s->queued.len == 0)
		return;
	t = s->flying;
	s->flying = s->queued;
	s->queued = t;
	s->queued.len = 0;
	s->flown = 0;
	send_rest(s);
}

size_t stream_waiting(const struct stream *s)
{
	return s->flying.len - s->flown + s->queued.len;
}

bool stream_in_flight(const struct stream *s)
{
	return !loop_is_idle(&s->event);
}

void stream_cancel(struct stream *s)
{
	s->cancelled = true;
	s->queued.len = 0;
	loop_cancel(s->loop, &s->event);
}
