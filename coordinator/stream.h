/*
 * stream.h: bytes on their way to one client. Whatever is written in a turn is gathered and leaves
 * in one send; what does not fit the socket waits here, and the writer is told how much that is.
 * Knows nothing of HTTP.
 */
#ifndef COORDINATOR_STREAM_H
#define COORDINATOR_STREAM_H

#include "coordinator/loop.h"

struct stream_buf {
	char *data;
	size_t len, cap;
};

struct stream {
	struct loop *loop;
	int fd;
	/*
	 * Called after each send: res is the bytes sent or -errno. `idle`: nothing is in flight any
	 * more, so the stream may be freed; false when the rest was sent after it.
	 */
	void (*on_sent)(struct stream *s, int res, bool idle);
	/* private */
	struct loop_event event;
	struct stream_buf flying, queued; /* one is with the kernel while the other grows */
	size_t flown;                     /* of flying */
	bool cancelled;
};

void stream_init(struct stream *s, struct loop *loop, int fd,
	void (*on_sent)(struct stream *s, int res, bool idle));
/* Frees the buffers; nothing may be in flight. */
void stream_fini(struct stream *s);

/* Copies bytes to the queue. 0 or -ENOMEM. */
int stream_write(struct stream *s, const void *data, size_t len) MUST_CHECK;
/* Sends what is queued, unless a send is in flight (its end goes on with the rest). */
void stream_flush(struct stream *s);
/* Bytes that the kernel has not taken yet. */
size_t stream_waiting(const struct stream *s);
bool stream_in_flight(const struct stream *s);
/* For good: drops what waits and cancels the send; on_sent comes once more if one was in flight. */
void stream_cancel(struct stream *s);

#endif
