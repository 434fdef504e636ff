#include "coordinator/queue.h"

void queue_init(struct queue *q, uint32_t limit, mono_ns_t timeout_ns)
{
	*q = (struct queue){.limit = limit, .timeout_ns = timeout_ns};
}

uint32_t queue_new(const struct queue *q)
{
	return q->count - q->in_front;
}

int queue_push(struct queue *q, struct queue_item *item, mono_ns_t now)
{
	if (queue_new(q) >= q->limit)
		return -EAGAIN;
	*item = (struct queue_item){.prev = q->tail, .since = now, .queued = true};
	if (q->tail)
		q->tail->next = item;
	else
		q->head = item;
	q->tail = item;
	q->count++;
	return 0;
}

void queue_push_front(struct queue *q, struct queue_item *item, mono_ns_t now)
{
	*item = (struct queue_item){
		.next = q->head, .since = now, .queued = true, .in_front = true};
	if (q->head)
		q->head->prev = item;
	else
		q->tail = item;
	q->head = item;
	q->count++;
	q->in_front++;
}

void queue_remove(struct queue *q, struct queue_item *item)
{
	if (!item->queued)
		return;
	if (item->prev)
		item->prev->next = item->next;
	else
		q->head = item->next;
	if (item->next)
		item->next->prev = item->prev;
	else
		q->tail = item->prev;
	q->in_front -= item->in_front;
	q->count--;
	*item = (struct queue_item){.since = item->since};
}

struct queue_item *queue_peek(const struct queue *q)
{
	return q->head;
}

/* Items joined in order of time; those in front do not expire, so the first other is to be next. */
static struct queue_item *next_to_expire(const struct queue *q)
{
	struct queue_item *item = q->head;

	while (item && item->in_front)
		item = item->next;
	return item;
}

struct queue_item *queue_expired(const struct queue *q, mono_ns_t now)
{
	struct queue_item *item = next_to_expire(q);

	return item && now >= item->since + q->timeout_ns ? item : NULL;
}

mono_ns_t queue_deadline(const struct queue *q)
{
	struct queue_item *item = next_to_expire(q);

	return item ? item->since + q->timeout_ns : 0;
}

mono_ns_t queue_oldest(const struct queue *q)
{
	const struct queue_item *item = q->head;
	mono_ns_t since = item ? item->since : 0;

	/* later in front is first, later at the end is last */
	while (item && item->in_front) {
		item = item->next;
		if (item)
			since = MIN(since, item->since);
	}
	return since;
}
