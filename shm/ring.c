#include "config.h"

#include "shm/ring.h"

#include <assert.h>
#include <string.h>

#include "shm/fault.h"
#include "shm/line.h"
#include "shm/sum.h"

/* bytes that ring_warm() gives and wants at most: more would push out other things */
#define WARM_MAX 8192

_Static_assert(sizeof(struct ring_record) == 16, "a record's payload begins on 16 bytes");
_Static_assert(sizeof(struct ring_head) == 2 * RING_LINE, "head: a line for each");
_Static_assert(sizeof(struct ring_tail) == RING_LINE, "a tail has a cache line of its own");

static uint32_t record_sum(uint64_t number, uint32_t bytes, const void *payload, size_t n)
{
	uint64_t sum = sum_bytes(payload, n, number * SUM_MULTIPLIER ^ bytes);

	return (uint32_t)(sum ^ sum >> 32);
}

static uint64_t record_span(uint64_t payload_bytes)
{
	return RING_LINE + (payload_bytes > RING_INLINE ? ALIGN_UP(payload_bytes, RING_LINE) : 0);
}

static struct ring_record *record_at(const struct ring_data *data, uint64_t pos)
{
	return (struct ring_record *)(data->base + (pos & (data->bytes - 1)));
}

/* Where a payload is written; a short one is moved into the first line when it is complete. */
static uint8_t *room_of(struct ring_record *rec)
{
	return (uint8_t *)rec + RING_LINE;
}

static const uint8_t *payload_of(const struct ring_record *rec, uint32_t bytes)
{
	return (const uint8_t *)rec + (bytes > RING_INLINE ? RING_LINE : sizeof(*rec));
}

static int check_data(const struct ring_data *data)
{
	if (!data->base || (uintptr_t)data->base % RING_LINE)
		return -EINVAL;
	if (data->bytes < RING_BYTES_MIN || data->bytes > RING_BYTES_MAX)
		return -EINVAL;
	return data->bytes & (data->bytes - 1) ? -EINVAL : 0;
}

int ring_writer_init(struct ring_writer *w, const struct ring_data *data, struct ring_head *head,
	const struct ring_tail *const *tails, uint32_t readers)
{
	int r = check_data(data);
	uint32_t i;

	if (r < 0)
		return r;
	if (!readers || readers > RING_READERS_MAX)
		return -EINVAL;
	memset(w, 0, sizeof(*w));
	w->data = *data;
	w->head = head;
	for (i = 0; i < readers; i++)
		w->tails[i] = tails[i];
	w->readers = readers;
	w->limit = data->bytes;
	atomic_store_explicit(&record_at(data, 0)->mark, 0, memory_order_relaxed);
	return 0;
}

int ring_reader_init(struct ring_reader *r, const struct ring_data *data,
	const struct ring_head *head, struct ring_tail *tail)
{
	int ret = check_data(data);

	if (ret < 0)
		return ret;
	memset(r, 0, sizeof(*r));
	r->data = *data;
	r->head = head;
	r->tail = tail;
	return 0;
}

/* ---- the writer ---- */

/* A tail may only be where it was, or further on, at a record's beginning, and not past the head.
 */
static bool tail_possible(const struct ring_writer *w, uint32_t i, uint64_t tail)
{
	return tail >= w->seen[i] && tail <= w->pos && tail % RING_LINE == 0;
}

/* Looks at all tails; moves the limit. -EPIPE when the slowest of them will not move again. */
static int look_at_tails(struct ring_writer *w, uint64_t need)
{
	uint64_t slowest = w->pos;
	bool gone = false;
	uint32_t i;

	for (i = 0; i < w->readers; i++) {
		/* closed before pos: a reader stores pos, then closed */
		uint32_t closed = atomic_load_explicit(&w->tails[i]->closed, memory_order_acquire);
		uint64_t tail = atomic_load_explicit(&w->tails[i]->pos, memory_order_acquire);

		if (!tail_possible(w, i, tail))
			return -EBADMSG;
		w->seen[i] = tail;
		if (closed && w->pos + need > tail + w->data.bytes)
			gone = true;
		if (tail < slowest)
			slowest = tail;
	}
	w->limit = slowest + w->data.bytes;
	if (w->pos + need <= w->limit)
		return 0;
	return gone ? -EPIPE : -EAGAIN;
}

/* Bytes to pad so that the room for a payload is contiguous, that of a short one, too. */
static uint64_t pad_before(const struct ring_writer *w, uint64_t payload_bytes)
{
	uint64_t left = w->data.bytes - (w->pos & (w->data.bytes - 1));
	uint64_t room = RING_LINE + ALIGN_UP(payload_bytes, RING_LINE);

	return w->data.mirrored || room <= left ? 0 : left;
}

/* What a record takes of the ring: padding, itself, and the line that shows that none follows yet.
 */
static uint64_t record_need(uint64_t pad, uint64_t span)
{
	return pad + span + RING_LINE;
}

int ring_reserve(struct ring_writer *w, size_t bytes, void **ret_payload)
{
	uint64_t span, pad;
	int r;

	if (bytes > ring_record_max(w->data.bytes))
		return -EMSGSIZE;
	span = record_span(bytes);
	pad = pad_before(w, bytes);
	if (w->pos + record_need(pad, span) > w->limit) {
		r = look_at_tails(w, record_need(pad, span));
		if (r < 0)
			return r;
	}
	w->pad = pad;
	w->reserved = bytes;
	*ret_payload = room_of(record_at(&w->data, w->pos + pad));
	return 0;
}

/* Word by word: that is how the caller has just written them, perhaps. */
static void move_inline(uint8_t *to, const uint8_t *from, size_t bytes)
{
	for (; bytes >= 8; bytes -= 8, to += 8, from += 8)
		memcpy(to, from, 8);
	for (; bytes > 0; bytes--)
		*to++ = *from++;
}

static void publish(struct ring_record *rec, uint64_t number, uint32_t bytes, uint32_t sum)
{
	atomic_store_explicit(&rec->bytes, bytes, memory_order_relaxed);
	atomic_store_explicit(&rec->sum, sum, memory_order_relaxed);
	atomic_store_explicit(&rec->mark, RING_MARK(number), memory_order_release);
}

void ring_commit(struct ring_writer *w, size_t bytes)
{
	struct ring_record *pad = w->pad ? record_at(&w->data, w->pos) : NULL;
	struct ring_record *rec = record_at(&w->data, w->pos + w->pad);
	uint64_t number = w->number + (pad ? 2 : 1);
	uint32_t sum;

	assert(bytes <= w->reserved);
	/* comes while the sum is made, which for a short record is too quick: a reader that
	 * watches the line would only take it back once more */
	if (bytes > RING_INLINE)
		line_want(rec);
	FAULT_POINT("ring.push.mid");
	sum = record_sum(number, (uint32_t)bytes, room_of(rec), bytes);
	w->last_span = record_span(bytes);
	w->pos += w->pad + w->last_span;
	w->number = number;
	w->reserved = w->pad = 0;
	FAULT_POINT("ring.push.publish");
	if (bytes <= RING_INLINE)
		move_inline((uint8_t *)rec + sizeof(*rec), room_of(rec), bytes);
	atomic_store_explicit(&record_at(&w->data, w->pos)->mark, 0, memory_order_relaxed);
	publish(rec, number, (uint32_t)bytes, sum);
	/* nobody looks at the record before it has seen the padding */
	if (pad)
		publish(pad, number - 1, RING_PAD, record_sum(number - 1, RING_PAD, NULL, 0));
	atomic_store_explicit(&w->head->pos, w->pos, memory_order_relaxed);
	FAULT_POINT("ring.push.done");
}

void ring_warm(const struct ring_writer *w)
{
	uint64_t at, end = MIN(w->last_span, WARM_MAX);
	uint64_t last = w->pos - w->last_span;

	/* not the record's first line, which the readers have by now */
	for (at = RING_LINE; at < end; at += RING_LINE)
		line_give(record_at(&w->data, last + at));
	/* not the line at pos: readers watch it, and would take it back at once */
	for (at = RING_LINE; at <= end; at += RING_LINE)
		line_want(record_at(&w->data, w->pos + at));
}

int ring_push(struct ring_writer *w, const void *payload, size_t bytes)
{
	void *at;
	int r = ring_reserve(w, bytes, &at);

	if (r < 0)
		return r;
	if (bytes)
		memcpy(at, payload, bytes);
	ring_commit(w, bytes);
	return 0;
}

void ring_close_writer(struct ring_writer *w)
{
	atomic_store_explicit(&w->head->closed, 1, memory_order_release);
}

bool ring_writable(const struct ring_writer *w, size_t bytes)
{
	/* a copy, so that asking changes nothing */
	struct ring_writer probe = *w;
	uint64_t span = record_span(bytes);

	if (bytes > ring_record_max(w->data.bytes))
		return true;
	return look_at_tails(&probe, record_need(pad_before(w, bytes), span)) != -EAGAIN;
}

uint64_t ring_writer_backlog(const struct ring_writer *w)
{
	uint64_t published = atomic_load_explicit(&w->head->pos, memory_order_relaxed), most = 0;
	uint32_t i;

	for (i = 0; i < w->readers; i++) {
		uint64_t tail = atomic_load_explicit(&w->tails[i]->pos, memory_order_acquire);

		if (tail <= published && published - tail > most)
			most = published - tail;
	}
	return most;
}

/* ---- a reader ---- */

/* A record's header as it was when read: each word is read once. */
struct found {
	uint64_t number, span;
	uint32_t bytes, sum;
	const uint8_t *payload;
};

/* The mark at the reader's position: 1 when the next record is there; -EAGAIN, -EPIPE, -EBADMSG. */
static int look_at_mark(const struct ring_reader *r, const struct ring_record *rec)
{
	uint64_t mark = atomic_load_explicit(&rec->mark, memory_order_acquire);

	if (!mark) {
		if (!atomic_load_explicit(&r->head->closed, memory_order_acquire))
			return -EAGAIN;
		/* closed after the last record: one that was missed above is seen now */
		mark = atomic_load_explicit(&rec->mark, memory_order_acquire);
		if (!mark)
			return -EPIPE;
	}
	return mark == RING_MARK(r->number + 1) ? 1 : -EBADMSG;
}

/* Steps over padding and copies the next record's header, checked for room, not for its sum. */
static int next_record(struct ring_reader *r, struct found *ret)
{
	for (;;) {
		struct ring_record *rec = record_at(&r->data, r->pos);
		uint64_t left = r->data.bytes - (r->pos & (r->data.bytes - 1));
		int ret_mark = look_at_mark(r, rec);
		struct found f;

		if (ret_mark < 0)
			return ret_mark;
		f.number = r->number + 1;
		f.bytes = atomic_load_explicit(&rec->bytes, memory_order_relaxed);
		f.sum = atomic_load_explicit(&rec->sum, memory_order_relaxed);
		f.payload = payload_of(rec, f.bytes);
		if (f.bytes != RING_PAD) {
			if (f.bytes > ring_record_max(r->data.bytes))
				return -EBADMSG;
			f.span = record_span(f.bytes);
			if (!r->data.mirrored && f.span > left)
				return -EBADMSG;
			*ret = f;
			return 0;
		}
		/* at the beginning there is nothing to skip, and padding for ever would hold us
		 * here */
		if (left == r->data.bytes || f.sum != record_sum(f.number, RING_PAD, NULL, 0))
			return -EBADMSG;
		r->number++;
		r->pos += left;
	}
}

static bool sum_right(const struct found *f, const void *payload)
{
	return f->sum == record_sum(f->number, f->bytes, payload, f->bytes);
}

int ring_peek(struct ring_reader *r, const void **ret_payload, size_t *ret_bytes)
{
	struct found f;
	int ret = next_record(r, &f);

	if (ret < 0)
		return ret;
	if (!r->next && !sum_right(&f, f.payload))
		return -EBADMSG;
	r->next = r->pos + f.span;
	*ret_payload = f.payload;
	*ret_bytes = f.bytes;
	FAULT_POINT("ring.pop.mid");
	return 0;
}

void ring_release(struct ring_reader *r)
{
	if (!r->next)
		return;
	r->pos = r->next;
	r->next = 0;
	r->number++;
	FAULT_POINT("ring.pop.release");
	atomic_store_explicit(&r->tail->pos, r->pos, memory_order_release);
}

int ring_pop(struct ring_reader *r, void *buf, size_t cap, size_t *ret_bytes)
{
	struct found f;
	int ret = next_record(r, &f);

	if (ret < 0)
		return ret;
	if (f.bytes > cap) {
		*ret_bytes = f.bytes;
		return -EMSGSIZE;
	}
	if (f.bytes)
		memcpy(buf, f.payload, f.bytes);
	if (!sum_right(&f, buf))
		return -EBADMSG;
	r->next = r->pos + f.span;
	ring_release(r);
	*ret_bytes = f.bytes;
	return 0;
}

bool ring_readable(const struct ring_reader *r)
{
	return look_at_mark(r, record_at(&r->data, r->pos)) != -EAGAIN;
}

void ring_close_reader(struct ring_reader *r)
{
	atomic_store_explicit(&r->tail->closed, 1, memory_order_release);
}

uint64_t ring_reader_backlog(const struct ring_reader *r)
{
	uint64_t head = atomic_load_explicit(&r->head->pos, memory_order_relaxed);
	uint64_t backlog = head - r->pos;

	return backlog > r->data.bytes ? 0 : backlog;
}
