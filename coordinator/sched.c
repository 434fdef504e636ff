#include "coordinator/sched.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/sched_impl.h"

/* ---- lists ---- */

static struct sched_list *list_of(struct sched *s, enum sched_state state)
{
	switch (state) {
	case SCHED_PREFILL:
		return &s->prefill;
	case SCHED_DECODE:
		return &s->decode;
	case SCHED_ENDING:
		return &s->ending;
	default:
		return NULL;
	}
}

/* Puts the sequence at the end of the list of its new state. */
void sched_move(struct sched *s, struct sched_seq *q, enum sched_state state)
{
	struct sched_list *from = list_of(s, q->state), *to = list_of(s, state);

	if (from) {
		*(q->prev ? &q->prev->next : &from->head) = q->next;
		*(q->next ? &q->next->prev : &from->tail) = q->prev;
		from->count--;
	}
	q->prev = q->next = NULL;
	q->state = state;
	if (!to)
		return;
	q->prev = to->tail;
	*(to->tail ? &to->tail->next : &to->head) = q;
	to->tail = q;
	to->count++;
}

/* ---- page tables ---- */

void sched_promise(struct sched *s, struct sched_seq *q, enum page_class cls, uint64_t pages)
{
	s->promised[cls] -= q->pages[cls].promised;
	q->pages[cls].promised = (uint32_t)pages;
	s->promised[cls] += pages;
}

/* Gives back the pages first .. end-1 of a table, the promise and the slot. */
void sched_release(struct sched *s, struct sched_seq *q)
{
	int c;

	for (c = 0; c < PAGE__COUNT; c++) {
		struct sched_table *t = &q->pages[c];

		for (; t->first < t->end; t->first++)
			pages_unref(&s->pages, c, t->ids[t->first & (t->cap - 1)]);
		sched_promise(s, q, c, 0);
		free(t->ids);
		*t = (struct sched_table){0};
	}
	s->slots[s->slot_free++] = q->slot;
}

static bool holds_slot(const struct sched_seq *q)
{
	return q->state == SCHED_PREFILL || q->state == SCHED_DECODE;
}

/* Takes the sequence out of everything: lists, slot, pages, queue, steps in flight. */
void sched_forget(struct sched *s, struct sched_seq *q)
{
	uint32_t i, k;

	for (k = 0; k < s->inflight; k++) {
		struct sched_plan *plan = &s->plans[(s->step - k) % SCHED_DEPTH_MAX];

		for (i = 0; i < plan->n; i++)
			if (plan->entries[i].seq == q)
				plan->entries[i].seq = NULL;
	}
	if (holds_slot(q))
		sched_release(s, q);
	queue_remove(&s->queue, &q->item);
	sched_move(s, q, SCHED_IDLE);
}

/* ---- life ---- */

void sched_init(struct sched *s, const struct sched_ops *ops, uint32_t queue_limit,
	mono_ns_t queue_timeout_ns)
{
	*s = (struct sched){.ops = *ops};
	queue_init(&s->queue, queue_limit, queue_timeout_ns);
}

static void free_world(struct sched *s)
{
	int i;

	for (i = 0; i < SCHED_DEPTH_MAX; i++) {
		free(s->plans[i].entries);
		free(s->plans[i].pages);
		s->plans[i] = (struct sched_plan){0};
	}
	free(s->slots);
	s->slots = NULL;
	s->slot_free = 0;
	pages_fini(&s->pages);
}

void sched_fini(struct sched *s)
{
	assert(!s->open && s->queue.count == 0);
	free_world(s);
}

static int check_config(const struct sched_config *c, struct errbuf *err)
{
	if (c->max_sequences == 0 || c->step_tokens == 0 || c->vocab == 0 || c->depth == 0 ||
		c->depth > SCHED_DEPTH_MAX)
		return err_set(err, -EINVAL, EXIT_SOFTWARE_ERR,
			"the workers report nothing to schedule on: %u sequences, %u tokens a "
			"step, vocabulary %u",
			c->max_sequences, c->step_tokens, c->vocab);
	if (c->max_step_bytes < SCHED_STEP_FIXED + SCHED_ENTRY_FIXED ||
		c->max_reply_bytes < SCHED_REPLY_FIXED + sizeof(struct msg_token))
		return err_set(err, -EINVAL, EXIT_CONFIG_ERR,
			"the rings are too small for a step of one token");
	return 0;
}

/* What the new workers could never hold must not block the queue for ever. */
static void drop_unfit(struct sched *s)
{
	struct queue_item *item = queue_peek(&s->queue), *next;
	struct errbuf err;

	for (; item; item = next) {
		struct sched_seq *q = CONTAINER_OF(item, struct sched_seq, item);

		next = item->next;
		if (sched_check_fits(s, q, &err) == 0)
			continue;
		sched_forget(s, q);
		s->counts.failed++;
		s->ops.on_finish(s->ops.user, q, ENGINE_FAILED, 503, err.text);
		next = queue_peek(&s->queue); /* the callback may have changed the line */
	}
}

int sched_open(struct sched *s, const struct sched_config *config, struct errbuf *err)
{
	uint32_t i;
	int r;

	assert(!s->open && config->ahead > 0);
	r = check_config(config, err);
	if (r < 0)
		return r;
	r = pages_init(&s->pages, config->classes, err);
	if (r < 0)
		return r;
	s->config = *config;
	s->slots = malloc(config->max_sequences * sizeof(*s->slots));
	r = s->slots ? 0 : -ENOMEM;
	for (i = 0; i < SCHED_DEPTH_MAX && r == 0; i++) {
		s->plans[i].entries = calloc(config->max_sequences, sizeof(struct sched_entry));
		if (!s->plans[i].entries)
			r = -ENOMEM;
	}
	if (r < 0) {
		free_world(s);
		return err_set(
			err, r, EXIT_OS_ERR, "no memory for %u sequences", config->max_sequences);
	}
	for (i = 0; i < config->max_sequences; i++)
		s->slots[i] = config->max_sequences - 1 - i;
	s->slot_free = config->max_sequences;
	s->step = 0;
	s->inflight = 0;
	s->prefill_starved = false;
	s->open = true;
	drop_unfit(s);
	return 0;
}

void sched_close(struct sched *s, void (*lost)(void *user, struct sched_seq *seq), void *user)
{
	struct sched_list *lists[] = {&s->ending, &s->decode, &s->prefill};
	size_t i;

	if (!s->open)
		return;
	for (i = 0; i < ARRAY_LEN(lists); i++) {
		struct sched_seq *q;

		while ((q = lists[i]->head)) {
			sched_forget(s, q);
			lost(user, q);
		}
	}
	s->open = false;
	s->inflight = 0;
	free_world(s);
}

/* ---- arriving and leaving ---- */

int sched_submit(struct sched *s, struct sched_seq *q, mono_ns_t now, struct errbuf *err)
{
	int r = s->open ? sched_check_fits(s, q, err) : 0;

	if (r < 0)
		return r;
	if (queue_new(&s->queue) >= s->queue.limit)
		sched_admit(s, now);
	r = queue_push(&s->queue, &q->item, now);
	if (r < 0)
		return err_set(err, r, 0, "%u requests are waiting already", queue_new(&s->queue));
	q->queued_ns = now;
	q->state = SCHED_WAITING;
	return 0;
}

void sched_resubmit(struct sched *s, struct sched_seq *q, mono_ns_t now)
{
	q->fed = q->done = 0;
	queue_push_front(&s->queue, &q->item, now);
	q->state = SCHED_WAITING;
}

void sched_cancel(struct sched *s, struct sched_seq *q)
{
	if (q->state == SCHED_IDLE)
		return;
	sched_forget(s, q);
	s->counts.cancelled++;
}

mono_ns_t sched_expire(struct sched *s, mono_ns_t now)
{
	struct queue_item *item;
	char text[128];

	while ((item = queue_expired(&s->queue, now))) {
		struct sched_seq *q = CONTAINER_OF(item, struct sched_seq, item);

		snprintf(text, sizeof(text),
			"the request waited %.1f s for a place, the limit is %.1f s "
			"(schedule.queue_timeout)",
			(double)(now - item->since) / 1e9, (double)s->queue.timeout_ns / 1e9);
		sched_forget(s, q);
		s->counts.expired++;
		s->ops.on_finish(s->ops.user, q, ENGINE_FAILED, 503, text);
	}
	return queue_deadline(&s->queue);
}

uint32_t sched_running(const struct sched *s)
{
	return s->prefill.count + s->decode.count + s->ending.count;
}

uint32_t sched_waiting(const struct sched *s)
{
	return s->queue.count;
}

bool sched_idle(const struct sched *s)
{
	return sched_running(s) == 0 && s->queue.count == 0 && s->inflight == 0;
}
