/*
 * queue.h: requests that wait for a slot: first come, first served, bounded in number and in time.
 *
 * An intrusive list: the item is embedded in what waits and owned by the caller. No clock of its
 * own, no I/O, no allocation.
 */
#ifndef COORDINATOR_QUEUE_H
#define COORDINATOR_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/clock.h"
#include "shm/util.h"

struct queue_item {
	struct queue_item *prev, *next;
	mono_ns_t since; /* when it joined */
	bool queued;
	bool in_front; /* put there by queue_push_front: does not expire */
};

struct queue {
	struct queue_item *head, *tail;
	uint32_t count;
	uint32_t in_front;    /* of them, put there by queue_push_front */
	uint32_t limit;       /* items that may wait, besides those in front */
	mono_ns_t timeout_ns; /* an item that has waited this long has expired */
};

void queue_init(struct queue *q, uint32_t limit, mono_ns_t timeout_ns);

/* Items that the limit counts: those in front were let in once. */
uint32_t queue_new(const struct queue *q);

/* Joins at the end. -EAGAIN when queue_new() is `limit` already. */
int queue_push(struct queue *q, struct queue_item *item, mono_ns_t now) MUST_CHECK;

/* Joins at the front, whatever the limit and without a time limit: for what ran before and must
 * run again. */
void queue_push_front(struct queue *q, struct queue_item *item, mono_ns_t now);

/* Leaves, from anywhere. Does nothing when the item is not queued. */
void queue_remove(struct queue *q, struct queue_item *item);

/* The first in line, or NULL. Stays in the queue. */
struct queue_item *queue_peek(const struct queue *q);

/* When the one that waits longest joined, those in front too; 0 when none waits. */
mono_ns_t queue_oldest(const struct queue *q);

/* The longest waiting item that can expire, if it has, else NULL. Stays in the queue. */
struct queue_item *queue_expired(const struct queue *q, mono_ns_t now);

/* When the next item expires; 0 when none will. */
mono_ns_t queue_deadline(const struct queue *q);

#endif
