/* Admission and the building of a step. */
#include <assert.h>
#include <stdlib.h>

#include "coordinator/sched_impl.h"

/* What a step has left while it is being planned. */
struct room {
	uint32_t tokens;
	uint64_t bytes, reply_bytes;
};

/* One entry as it would be with n tokens. */
struct draft {
	uint64_t pos, end; /* positions pos .. end-1 */
	bool prev, sample, last, reports;
	uint64_t report_first;
	uint32_t report_n;
	uint64_t raw_first; /* first raw page of the window */
	uint64_t take[PAGE__COUNT];
	uint64_t bytes, reply_bytes;
};

/*
 * Raw pages a sequence must be able to claim so that it can always take one more token: the pages
 * that window + 1 consecutive rows may touch, counting the one just released, which is in limbo.
 */
static uint64_t raw_entitlement(const struct sched *s)
{
	return (SCHED_WINDOW - 1) / s->pages.cls[PAGE_RAW].tokens_per_page + 2;
}

/* Raw pages to promise to a sequence that holds `live` of them, had `end` ever, and is at `fed`; of
 * `total` in its life. sched_impl.h draws it. */
static uint64_t raw_promise(
	const struct sched *s, uint64_t total, uint64_t live, uint64_t end, uint64_t fed)
{
	uint64_t full = raw_entitlement(s), want = full > live ? full - live : 0;

	if (want == 0 && fed == end * s->pages.cls[PAGE_RAW].tokens_per_page)
		want = 1; /* its next token begins a page */
	return MIN(want, total - end);
}

/* ---- admission ---- */

/* For so many of its positions; of raw pages, whose window slides, what any number can need. */
static uint64_t initial_promise(
	const struct sched *s, const struct sched_seq *q, enum page_class cls, uint64_t positions)
{
	if (cls != PAGE_RAW)
		return pages_for(&s->pages, cls, positions);
	return MIN(pages_for(&s->pages, cls, sched_positions(q)), raw_entitlement(s));
}

int sched_check_fits(const struct sched *s, const struct sched_seq *q, struct errbuf *err)
{
	uint64_t positions = sched_positions(q), need, step, reply;
	int c;

	for (c = 0; c < PAGE__COUNT; c++) {
		need = initial_promise(s, q, c, positions);
		if (need > s->pages.cls[c].count)
			return err_set(err, -E2BIG, 0,
				"%llu tokens of prompt and answer do not fit the cache, which "
				"holds %llu",
				(unsigned long long)(q->prompt_len + q->max_tokens),
				(unsigned long long)sched_max_positions(s));
	}
	step = SCHED_STEP_FIXED + SCHED_ENTRY_FIXED + q->bias_n * sizeof(struct msg_bias) +
	       (q->stop_n + 2 + PAGE__COUNT * 2) * sizeof(uint32_t);
	reply = SCHED_REPLY_FIXED + 2 * sizeof(struct msg_token) +
		(q->sampling.logprobs + q->sampling.prompt_logprobs) * sizeof(struct msg_alt);
	if (step > s->config.max_step_bytes || reply > s->config.max_reply_bytes)
		return err_set(err, -E2BIG, 0,
			"%u biases and %u stop tokens do not fit the step ring", q->bias_n,
			q->stop_n);
	return 0;
}

uint64_t sched_max_positions(const struct sched *s)
{
	uint64_t most = UINT64_MAX;
	int c;

	if (!s->open)
		return 0;
	for (c = 0; c < PAGE__COUNT; c++) {
		const struct pages_class *cls = &s->pages.cls[c];

		if (cls->tokens_per_page == 0)
			continue;
		if (c == PAGE_RAW && cls->count >= raw_entitlement(s))
			continue; /* the window slides on for ever */
		most = MIN(most, (uint64_t)cls->count * cls->tokens_per_page);
	}
	return most;
}

static int table_init(const struct sched *s, struct sched_seq *q, enum page_class cls)
{
	struct sched_table *t = &q->pages[cls];
	uint64_t most = pages_for(&s->pages, cls, sched_positions(q)), cap = 1;

	if (most == 0)
		return 0;
	if (cls == PAGE_RAW)
		most = MIN(most,
			(SCHED_WINDOW + s->config.step_tokens) / s->pages.cls[cls].tokens_per_page +
				3);
	while (cap < most)
		cap *= 2;
	t->ids = malloc(cap * sizeof(*t->ids));
	if (!t->ids)
		return -ENOMEM;
	t->cap = (uint32_t)cap;
	return 0;
}

static int tables_init(const struct sched *s, struct sched_seq *q)
{
	int c, r = 0;

	for (c = 0; c < PAGE__COUNT && r == 0; c++)
		r = table_init(s, q, c);
	for (c = 0; c < PAGE__COUNT && r < 0; c++) {
		free(q->pages[c].ids);
		q->pages[c] = (struct sched_table){0};
	}
	return r;
}

static bool admit_one(struct sched *s, struct sched_seq *q, mono_ns_t now)
{
	uint64_t positions = sched_ahead(s, q, sched_known(q));
	int c;

	if (s->slot_free == 0)
		return false;
	for (c = 0; c < PAGE__COUNT; c++) {
		const struct pages_class *cls = &s->pages.cls[c];

		if (initial_promise(s, q, c, positions) + s->promised[c] >
			(uint64_t)cls->free_n + cls->limbo_n)
			return false;
	}
	if (tables_init(s, q) < 0)
		return false; /* no memory: it waits, and the queue's time limit bounds that */
	for (c = 0; c < PAGE__COUNT; c++)
		sched_promise(s, q, c, initial_promise(s, q, c, positions));
	q->assured = positions;
	if (q->order == 0)
		q->order = ++s->admitted;
	q->slot = s->slots[--s->slot_free];
	q->first = true;
	if (q->started_ns == 0)
		q->started_ns = now;
	queue_remove(&s->queue, &q->item);
	sched_move(s, q, SCHED_PREFILL);
	return true;
}

/* Could it run besides these? As admit_one() finds it while nothing else has pages. */
static bool fits_beside(
	const struct sched *s, const struct sched_seq *q, const struct engine_fit *fit)
{
	uint64_t positions = sched_ahead(s, q, sched_known(q));
	int c;

	if (fit->run >= s->config.max_sequences)
		return false;
	for (c = 0; c < PAGE__COUNT; c++)
		if (initial_promise(s, q, c, positions) + fit->pages[c] > s->pages.cls[c].count)
			return false;
	return true;
}

bool sched_fit(const struct sched *s, const struct sched_seq *q, struct engine_fit *fit)
{
	int c;

	if (!s->open)
		return true;
	/* none overtakes: once one waits, so do all after it */
	if (fit->wait > 0 || !fits_beside(s, q, fit)) {
		if (fit->wait >= s->queue.limit)
			return false;
		fit->wait++;
		return true;
	}
	fit->run++;
	for (c = 0; c < PAGE__COUNT; c++)
		fit->pages[c] += initial_promise(s, q, c, sched_ahead(s, q, sched_known(q)));
	return true;
}

void sched_admit(struct sched *s, mono_ns_t now)
{
	struct queue_item *item;

	if (!s->open)
		return;
	while ((item = queue_peek(&s->queue)))
		if (!admit_one(s, CONTAINER_OF(item, struct sched_seq, item), now))
			return; /* none overtakes the head of the line */
}

/* ---- one entry ---- */

static void draft_reports(struct draft *d, const struct sched_seq *q)
{
	uint64_t first = MAX(d->pos, 1ull);

	d->reports = q->prompt_logprobs && d->pos < q->prompt_len;
	if (!d->reports || d->end <= first)
		return;
	d->report_first = first;
	d->report_n = (uint32_t)(d->end - first);
}

static struct draft draft_entry(const struct sched *s, const struct sched_seq *q, uint32_t n)
{
	const uint32_t per_page = s->pages.cls[PAGE_RAW].tokens_per_page;
	const uint64_t known = sched_known(q);
	struct draft d = {.pos = q->fed, .end = q->fed + n};
	int c;

	d.prev = d.pos >= known;
	d.sample = d.end >= known && q->max_tokens > 0;
	d.last = d.end == sched_positions(q);
	d.raw_first = d.pos >= SCHED_WINDOW ? (d.pos - SCHED_WINDOW + 1) / per_page : 0;
	draft_reports(&d, q);
	for (c = 0; c < PAGE__COUNT; c++)
		d.take[c] = pages_for(&s->pages, c, d.end) - q->pages[c].end;
	d.bytes = SCHED_ENTRY_FIXED + n * sizeof(uint32_t) +
		  (d.take[PAGE_RAW] + d.take[PAGE_CSA] + d.take[PAGE_HCA]) * sizeof(uint32_t);
	if (d.sample) {
		d.bytes += q->bias_n * sizeof(struct msg_bias) + q->stop_n * sizeof(uint32_t);
		d.reply_bytes +=
			sizeof(struct msg_token) + q->sampling.logprobs * sizeof(struct msg_alt);
	}
	d.reply_bytes += d.report_n * (sizeof(struct msg_token) +
					      q->sampling.prompt_logprobs * sizeof(struct msg_alt));
	return d;
}

/* Pages that the sequence has or may claim; of raw ones, ever. */
static uint64_t assured_pages(const struct sched *s, const struct sched_seq *q, enum page_class cls)
{
	return pages_for(&s->pages, cls, cls == PAGE_RAW ? sched_positions(q) : q->assured);
}

/*
 * Enough pages? Those taken now come from the free ones that are promised to no sequence still to
 * be looked at in this step; and what is free or in limbo afterwards covers all promises, so that
 * the next step can be planned the same way. sched_impl.h draws it.
 */
static bool draft_has_pages(const struct sched *s, const struct sched_seq *q, const struct draft *d)
{
	int c;

	for (c = 0; c < PAGE__COUNT; c++) {
		const struct pages_class *cls = &s->pages.cls[c];
		const struct sched_table *t = &q->pages[c];
		uint64_t end = t->end + d->take[c], total, promise, left;
		uint64_t first = c == PAGE_RAW ? MAX(d->raw_first, t->first) : t->first;

		if (d->take[c] + s->due[c] > cls->free_n)
			return false;
		if (d->last)
			continue; /* everything goes back */
		total = assured_pages(s, q, c);
		promise = c == PAGE_RAW ? raw_promise(s, total, end - first, end, d->end)
					: total - end;
		left = cls->free_n + cls->limbo_n + (first - t->first) - d->take[c];
		if (s->promised[c] - t->promised + promise > left)
			return false;
	}
	return true;
}

static bool draft_fits(const struct sched *s, const struct sched_seq *q, const struct draft *d,
	const struct room *room)
{
	return d->bytes <= room->bytes && d->reply_bytes <= room->reply_bytes &&
	       draft_has_pages(s, q, d);
}

static int plan_reserve_pages(struct sched_plan *plan, uint64_t more)
{
	uint64_t cap = plan->page_cap;
	uint32_t *pages;

	if (plan->page_n + more <= cap)
		return 0;
	cap = MAX(cap * 2, plan->page_n + more);
	pages = realloc(plan->pages, cap * sizeof(*pages));
	if (!pages)
		return -ENOMEM;
	plan->pages = pages;
	plan->page_cap = (uint32_t)cap;
	return 0;
}

/* Moves the pages: released ones off the front, taken ones to the end, and the promise anew. */
static void take_pages(struct sched *s, struct sched_plan *plan, struct sched_entry *e,
	struct sched_seq *q, const struct draft *d)
{
	struct sched_table *raw = &q->pages[PAGE_RAW];
	uint64_t total;
	int c;

	for (; raw->first < d->raw_first; raw->first++, e->raw_release++)
		pages_unref(&s->pages, PAGE_RAW, raw->ids[raw->first & (raw->cap - 1)]);
	for (c = 0; c < PAGE__COUNT; c++) {
		struct sched_table *t = &q->pages[c];

		for (e->page_n[c] = 0; e->page_n[c] < d->take[c]; e->page_n[c]++) {
			int64_t id = pages_grant(&s->pages, c);

			assert(id >= 0); /* draft_has_pages() counted them */
			t->ids[t->end++ & (t->cap - 1)] = (uint32_t)id;
			plan->pages[plan->page_n++] = (uint32_t)id;
		}
		total = assured_pages(s, q, c);
		sched_promise(s, q, c,
			c == PAGE_RAW ? raw_promise(s, total, t->end - t->first, t->end, d->end)
				      : total - t->end);
	}
}

static void fill_entry(
	struct sched_entry *e, struct sched_seq *q, const struct draft *d, uint32_t page_off)
{
	*e = (struct sched_entry){
		.seq = q,
		.slot = q->slot,
		.pos = d->pos,
		.n = (uint32_t)(d->end - d->pos),
		.page_off = page_off,
		.ban_stops = d->sample && d->end - q->prompt_len < q->min_tokens,
		.report_first = d->report_first,
		.report_n = d->report_n,
		.alts = q->sampling.logprobs,
		.prompt_alts = q->sampling.prompt_logprobs,
	};
	e->flags = (q->first ? SEQ_FIRST : 0) | (d->sample ? SEQ_SAMPLE : 0) |
		   (d->prev ? SEQ_PREV : 0) | (d->reports ? SEQ_PROMPT_LOGPROBS : 0) |
		   (d->last ? SEQ_LAST : 0);
}

/* Adds up to `want` tokens of the sequence to the plan. Returns how many. */
static uint32_t plan_seq(struct sched *s, struct sched_plan *plan, struct sched_seq *q,
	uint32_t want, struct room *room)
{
	struct sched_entry *e = &plan->entries[plan->n];
	uint32_t n = MIN(want, room->tokens);
	struct draft d = {0};
	int c;

	if (q->prompt_logprobs && q->fed < q->prompt_len)
		n = (uint32_t)MIN(
			(uint64_t)n, q->prompt_len - q->fed); /* what is reported is prompt */
	for (c = 0; c < PAGE__COUNT; c++)
		s->due[c] -= q->pages[c].promised;
	for (; n > 0; n /= 2) {
		d = draft_entry(s, q, n);
		if (draft_fits(s, q, &d, room))
			break;
	}
	if (n == 0 || plan_reserve_pages(
			      plan, d.take[PAGE_RAW] + d.take[PAGE_CSA] + d.take[PAGE_HCA]) < 0)
		return 0;
	fill_entry(e, q, &d, plan->page_n);
	take_pages(s, plan, e, q, &d);
	plan->n++;
	plan->tokens += n;
	room->tokens -= n;
	room->bytes -= d.bytes;
	room->reply_bytes -= d.reply_bytes;
	q->first = false;
	q->fed = d.end;
	if (d.last) {
		sched_release(s, q);
		sched_move(s, q, SCHED_ENDING);
	} else if (q->fed >= sched_known(q)) {
		sched_move(s, q, SCHED_DECODE); /* to the end of the line */
	}
	return n;
}

/* ---- a step ---- */

/* One token each, in turns: who is served goes to the end of the line. */
static void plan_decodes(struct sched *s, struct sched_plan *plan, struct room *room)
{
	uint32_t count = s->decode.count;

	while (count-- > 0 && room->tokens > 0) {
		struct sched_seq *q = s->decode.head;

		if (plan_seq(s, plan, q, 1, room) == 0)
			return;
	}
}

/*
 * Prompts share what is left. Each in its turn may take an equal part of it, at least a quantum;
 * what short ones leave over goes to the first ones in a second round, by widening the parts
 * beforehand: `part` is the level to which the room fills when each takes MIN(its rest, part).
 */
static uint32_t fair_part(const struct sched *s, uint32_t tokens)
{
	uint64_t left = tokens, part = 0;
	uint32_t open = s->prefill.count;

	while (open > 0 && left / open > 0) {
		const struct sched_seq *q;
		uint64_t more = left / open, used = 0;
		uint32_t still = 0;

		for (q = s->prefill.head; q; q = q->next) {
			uint64_t rest = sched_known(q) - q->fed;

			if (rest <= part)
				continue;
			used += MIN(rest - part, more);
			still += rest > part + more;
		}
		part += more;
		left -= used;
		open = still;
	}
	return (uint32_t)MAX(part, (uint64_t)SCHED_QUANTUM);
}

static uint32_t plan_prefills(struct sched *s, struct sched_plan *plan, struct room *room)
{
	uint32_t part = fair_part(s, room->tokens), count = s->prefill.count, served = 0;
	struct sched_seq *q, *next;

	for (q = s->prefill.head; q && count > 0 && room->tokens > 0; q = next, count--) {
		uint64_t rest = sched_known(q) - q->fed;

		next = q->next;
		served += plan_seq(s, plan, q, (uint32_t)MIN(rest, (uint64_t)part), room);
	}
	return served;
}

const struct sched_plan *sched_plan(struct sched *s, mono_ns_t now)
{
	struct sched_plan *plan = &s->plans[(s->step + 1) % SCHED_DEPTH_MAX];
	struct room room = {.tokens = s->config.step_tokens,
		.bytes = s->config.max_step_bytes - SCHED_STEP_FIXED,
		.reply_bytes = s->config.max_reply_bytes - SCHED_REPLY_FIXED};
	uint32_t kept = 0, prompts;
	int c;

	if (!s->open || s->inflight >= s->config.depth)
		return NULL;
	sched_make_room(s, now);
	pages_settle(&s->pages);
	sched_admit(s, now);
	for (c = 0; c < PAGE__COUNT; c++)
		s->due[c] = s->promised[c];
	plan->n = plan->tokens = plan->page_n = 0;
	prompts = s->prefill.count;
	if (prompts > 0 && s->prefill_starved)
		kept = MIN((uint32_t)SCHED_QUANTUM, MAX(1u, room.tokens / 4));
	room.tokens -= kept;
	plan_decodes(s, plan, &room);
	room.tokens += kept;
	s->prefill_starved = plan_prefills(s, plan, &room) == 0 && prompts > 0;
	if (plan->n == 0)
		return NULL;
	plan->step = ++s->step;
	s->inflight++;
	s->counts.steps++;
	s->counts.last_batch = plan->n;
	s->counts.last_tokens = plan->tokens;
	return plan;
}

const struct sched_plan *sched_oldest(const struct sched *s)
{
	return s->inflight ? &s->plans[(s->step - s->inflight + 1) % SCHED_DEPTH_MAX] : NULL;
}
