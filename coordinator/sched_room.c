/* Room for sequences that outgrow what was promised to them. */
#include <assert.h>

#include "coordinator/sched_impl.h"

uint64_t sched_ahead(const struct sched *s, const struct sched_seq *q, uint64_t position)
{
	return MIN(sched_positions(q), position + s->config.ahead);
}

/* Promises the compressed pages up to so many positions, if they are promised to no one yet. */
static bool assure(struct sched *s, struct sched_seq *q, uint64_t positions)
{
	uint64_t more[PAGE__COUNT] = {0};
	int c;

	for (c = PAGE_CSA; c < PAGE__COUNT; c++) {
		const struct pages_class *cls = &s->pages.cls[c];

		more[c] = pages_for(&s->pages, c, positions) - pages_for(&s->pages, c, q->assured);
		if (s->promised[c] + more[c] > (uint64_t)cls->free_n + cls->limbo_n)
			return false;
	}
	for (c = PAGE_CSA; c < PAGE__COUNT; c++)
		sched_promise(s, q, c, q->pages[c].promised + more[c]);
	q->assured = positions;
	return true;
}

/* A sequence whose next token lies beyond what was promised to it, or NULL. */
static struct sched_seq *outgrown(const struct sched *s)
{
	struct sched_seq *q = s->decode.head;

	while (q && q->fed < q->assured)
		q = q->next;
	return q;
}

/* Of those that run, the one that was admitted last. */
static struct sched_seq *youngest(const struct sched *s)
{
	const struct sched_list *lists[] = {&s->prefill, &s->decode};
	struct sched_seq *q, *last = NULL;
	size_t i;

	for (i = 0; i < ARRAY_LEN(lists); i++)
		for (q = lists[i]->head; q; q = q->next)
			if (!last || q->order > last->order)
				last = q;
	return last;
}

void sched_make_room(struct sched *s, mono_ns_t now)
{
	struct sched_seq *q, *last;

	while ((q = outgrown(s))) {
		if (assure(s, q, sched_ahead(s, q, q->fed)) || assure(s, q, q->fed + 1))
			continue;
		last = youngest(s);
		assert(s->prefill.count + s->decode.count > 1); /* one alone fits */
		sched_forget(s, last);
		sched_resubmit(s, last, now);
		s->counts.preempted++;
	}
}
