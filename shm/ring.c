#include "config.h"

#include "shm/ring.h"

#include <assert.h>
#include <string.h>

#include "shm/fault.h"
#include "shm/sum.h"

_Static_assert(sizeof(struct ring_record) == RING_ALIGN, "a record's payload begins on 16 bytes");
_Static_assert(sizeof(struct ring_head) == RING_LINE, "the head has a cache line of its own");
_Static_assert(sizeof(struct ring_tail) == RING_LINE, "a tail has a cache line of its own");

static uint32_t record_sum(const struct ring_record *rec, const void *payload, size_t bytes)
{
	uint64_t sum = sum_bytes(payload, bytes, rec->number * SUM_MULTIPLIER ^ rec->bytes);

	return (uint32_t)(sum ^ sum >> 32);
}

static uint64_t record_span(uint64_t payload_bytes)
{
	return ALIGN_UP(sizeof(struct ring_record) + payload_bytes, RING_ALIGN);
}

static int check_data(const struct ring_data *data)
{
	if (!data->base || (uintptr_t)data->base % RING_ALIGN)
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
	return tail >= w->seen[i] && tail <= w->pos && tail % RING_ALIGN == 0;
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

/* Bytes to pad so that a record of `span` bytes is contiguous. */
static uint64_t pad_before(const struct ring_writer *w, uint64_t span)
{
	uint64_t left = w->data.bytes - (w->pos & (w->data.bytes - 1));

	return w->data.mirrored || span <= left ? 0 : left;
}

static void *record_at(const struct ring_data *data, uint64_t pos)
{
	return data->base + (pos & (data->bytes - 1));
}

static void write_pad(struct ring_writer *w, uint64_t pad)
{
	struct ring_record rec = {.number = w->number + 1, .bytes = RING_PAD};

	rec.sum = record_sum(&rec, NULL, 0);
	memcpy(record_at(&w->data, w->pos), &rec, sizeof(rec));
	w->number++;
	w->pos += pad;
}

int ring_reserve(struct ring_writer *w, size_t bytes, void **ret_payload)
{
	uint64_t span, pad;
	int r;

	if (bytes > ring_record_max(w->data.bytes))
		return -EMSGSIZE;
	span = record_span(bytes);
	pad = pad_before(w, span);
	if (w->pos + pad + span > w->limit) {
		r = look_at_tails(w, pad + span);
		if (r < 0)
			return r;
	}
	/* The padding is published together with the record that needed it; a reservation that is
	 * dropped leaves it in place, private to the writer. */
	if (pad)
		write_pad(w, pad);
	w->reserved = bytes;
	*ret_payload = (uint8_t *)record_at(&w->data, w->pos) + sizeof(struct ring_record);
	return 0;
}

void ring_commit(struct ring_writer *w, size_t bytes)
{
	struct ring_record rec = {.number = w->number + 1, .bytes = (uint32_t)bytes};
	uint8_t *at = record_at(&w->data, w->pos);

	assert(bytes <= w->reserved);
	FAULT_POINT("ring.push.mid");
	rec.sum = record_sum(&rec, at + sizeof(rec), bytes);
	memcpy(at, &rec, sizeof(rec));
	w->number++;
	w->pos += record_span(bytes);
	w->reserved = 0;
	FAULT_POINT("ring.push.publish");
	atomic_store_explicit(&w->head->pos, w->pos, memory_order_release);
	FAULT_POINT("ring.push.done");
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
	return look_at_tails(&probe, pad_before(w, span) + span) != -EAGAIN;
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

/* How many bytes there are to read, or -EAGAIN, -EPIPE, -EBADMSG. */
static int64_t readable_bytes(struct ring_reader *r)
{
	uint32_t closed;

	if (r->seen == r->pos) {
		/* closed before pos: the writer stores pos, then closed */
		closed = atomic_load_explicit(&r->head->closed, memory_order_acquire);
		r->seen = atomic_load_explicit(&r->head->pos, memory_order_acquire);
		if (r->seen == r->pos)
			return closed ? -EPIPE : -EAGAIN;
	}
	if (r->seen - r->pos > r->data.bytes || r->seen % RING_ALIGN)
		return -EBADMSG;
	return (int64_t)(r->seen - r->pos);
}

/* Steps over padding and copies the next record's header, checked for room, not for its sum. */
static int next_record(struct ring_reader *r, struct ring_record *ret_rec)
{
	struct ring_record rec;

	for (;;) {
		int64_t there = readable_bytes(r);
		uint64_t left = r->data.bytes - (r->pos & (r->data.bytes - 1));

		if (there < 0)
			return (int)there;
		memcpy(&rec, record_at(&r->data, r->pos), sizeof(rec));
		if (rec.number != r->number + 1)
			return -EBADMSG;
		if (rec.bytes != RING_PAD) {
			if (rec.bytes > ring_record_max(r->data.bytes) ||
				record_span(rec.bytes) > (uint64_t)there)
				return -EBADMSG;
			if (!r->data.mirrored && record_span(rec.bytes) > left)
				return -EBADMSG;
			*ret_rec = rec;
			return 0;
		}
		if (left > (uint64_t)there || rec.sum != record_sum(&rec, NULL, 0))
			return -EBADMSG;
		r->number++;
		r->pos += left;
	}
}

int ring_peek(struct ring_reader *r, const void **ret_payload, size_t *ret_bytes)
{
	struct ring_record rec;
	const uint8_t *payload;
	int ret = next_record(r, &rec);

	if (ret < 0)
		return ret;
	payload = (const uint8_t *)record_at(&r->data, r->pos) + sizeof(rec);
	if (!r->next && rec.sum != record_sum(&rec, payload, rec.bytes))
		return -EBADMSG;
	r->next = r->pos + record_span(rec.bytes);
	*ret_payload = payload;
	*ret_bytes = rec.bytes;
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
	struct ring_record rec;
	int ret = next_record(r, &rec);

	if (ret < 0)
		return ret;
	if (rec.bytes > cap) {
		*ret_bytes = rec.bytes;
		return -EMSGSIZE;
	}
	if (rec.bytes)
		memcpy(buf, (const uint8_t *)record_at(&r->data, r->pos) + sizeof(rec), rec.bytes);
	if (rec.sum != record_sum(&rec, buf, rec.bytes))
		return -EBADMSG;
	r->next = r->pos + record_span(rec.bytes);
	ring_release(r);
	*ret_bytes = rec.bytes;
	return 0;
}

bool ring_readable(const struct ring_reader *r)
{
	if (r->seen != r->pos)
		return true;
	return atomic_load_explicit(&r->head->closed, memory_order_acquire) ||
	       atomic_load_explicit(&r->head->pos, memory_order_acquire) != r->pos;
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
