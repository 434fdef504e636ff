#include "tests/unit/sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

uint32_t sim_rand(struct sim_rng *r, uint32_t below)
{
	r->state ^= r->state << 13;
	r->state ^= r->state >> 7;
	r->state ^= r->state << 17;
	return (uint32_t)((r->state >> 11) % below);
}

uint64_t sim_seed(const char *test)
{
	const char *text = getenv("TEST_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : mono_now() | 1;

	print_message("%s: TEST_SEED=%llu\n", test, (unsigned long long)seed);
	return seed;
}

void sim_init(struct sim *sim, struct sched *s)
{
	int c;

	*sim = (struct sim){.sched = s, .vocab = s->config.vocab};
	assert_true(s->config.max_sequences <= SIM_SLOTS);
	for (c = 0; c < PAGE__COUNT; c++) {
		sim->busy[c] = calloc(s->pages.cls[c].count + 1, 1);
		sim->owner[c] = calloc(s->pages.cls[c].count + 1, sizeof(uint64_t));
	}
}

static void free_step(struct sim_step *st)
{
	uint32_t i;

	for (i = 0; i < st->n; i++)
		free(st->entries[i].tokens);
	free(st->entries);
	free(st->pages);
	*st = (struct sim_step){0};
}

void sim_fini(struct sim *sim)
{
	int c, i;

	for (; sim->count > 0; sim->count--)
		free_step(&sim->steps[sim->head++ % SIM_STEPS]);
	for (c = 0; c < PAGE__COUNT; c++) {
		free(sim->busy[c]);
		free(sim->owner[c]);
		for (i = 0; i < SIM_SLOTS; i++)
			free(sim->slots[i].ids[c]);
	}
}

static void copy_entry(struct sim_entry *to, const struct sched_entry *e)
{
	const struct sched_seq *q = e->seq;

	assert_non_null(q);
	assert_true(e->n >= 1);
	*to = (struct sim_entry){.e = *e};
	to->tokens = calloc(e->n, sizeof(uint32_t));
	if (q->prompt_logprobs)
		assert_int_equal(!!(e->flags & SEQ_PROMPT_LOGPROBS), e->pos < q->prompt_len);
	if (e->flags & SEQ_PREV) {
		assert_int_equal(e->n, 1);
	} else {
		assert_true(e->pos + e->n <= sched_known(q));
		memcpy(to->tokens, q->tokens + e->pos, e->n * sizeof(uint32_t));
	}
	if (e->ban_stops) {
		to->banned = q->stops;
		to->banned_n = q->stop_n;
	}
}

void sim_before_plan(struct sim *sim)
{
	const struct pages *p = &sim->sched->pages;
	uint32_t i;
	int c;

	for (c = 0; c < PAGE__COUNT; c++)
		for (i = 0; i < p->cls[c].count; i++)
			sim->busy[c][i] = p->cls[c].refs[i] > 0;
}

/* A granted page was nobody's when planning began: so none let go in this very step either. */
static void check_grants(struct sim *sim, const struct sched_plan *plan, struct sim_step *st)
{
	const struct pages *p = &sim->sched->pages;
	uint32_t i, k, at = 0;
	int c;

	st->pages = calloc(plan->page_n + 1, sizeof(uint32_t));
	if (plan->page_n)
		memcpy(st->pages, plan->pages, plan->page_n * sizeof(uint32_t));
	for (i = 0; i < plan->n; i++) {
		const struct sched_entry *e = &plan->entries[i];

		assert_int_equal(e->page_off, at);
		for (c = 0; c < PAGE__COUNT; c++) {
			for (k = 0; k < e->page_n[c]; k++, at++) {
				uint32_t id = plan->pages[at];

				assert_true(id < p->cls[c].count);
				assert_false(sim->busy[c][id]);
				sim->busy[c][id] = 1;
			}
		}
	}
	assert_int_equal(plan->page_n, at);
	for (c = 0; c < PAGE__COUNT; c++)
		assert_true(
			(uint64_t)p->cls[c].free_n + p->cls[c].limbo_n >= sim->sched->promised[c]);
}

void sim_take_plan(struct sim *sim, const struct sched_plan *plan)
{
	struct sim_step *st = &sim->steps[(sim->head + sim->count) % SIM_STEPS];
	uint32_t i, tokens = 0;
	bool seen[SIM_SLOTS] = {0};

	assert_true(sim->count < SIM_STEPS);
	assert_true(plan->n >= 1);
	*st = (struct sim_step){.step = plan->step, .n = plan->n};
	st->entries = calloc(plan->n, sizeof(*st->entries));
	for (i = 0; i < plan->n; i++) {
		const struct sched_entry *e = &plan->entries[i];

		assert_true(e->slot < sim->sched->config.max_sequences);
		assert_false(seen[e->slot]); /* one entry a slot */
		seen[e->slot] = true;
		copy_entry(&st->entries[i], e);
		tokens += e->n;
	}
	assert_int_equal(tokens, plan->tokens);
	assert_true(tokens <= sim->sched->config.step_tokens);
	check_grants(sim, plan, st);
	sim->count++;
}

/* Page tables as a worker would keep them; every query position finds its window and entries. */
static void run_tables(
	struct sim *sim, struct sim_slot *slot, const struct sched_entry *e, const uint32_t *pages)
{
	const struct pages *p = &sim->sched->pages;
	uint64_t end = e->pos + e->n, i, window = e->pos >= 127 ? e->pos - 127 : 0;
	int c;

	slot->raw_first += e->raw_release;
	for (c = 0; c < PAGE__COUNT; c++) {
		slot->ids[c] = realloc(slot->ids[c], (slot->end[c] + e->page_n[c] + 1) * 4);
		for (i = 0; i < e->page_n[c]; i++, pages++) {
			slot->ids[c][slot->end[c]++] = *pages;
			sim->owner[c][*pages] = slot->epoch;
		}
		if (p->cls[c].tokens_per_page == 0)
			assert_int_equal(slot->end[c], 0);
		else /* enough for the last position, and not one page too many */
			assert_int_equal(slot->end[c], DIV_UP(end, p->cls[c].tokens_per_page));
		for (i = c == PAGE_RAW ? slot->raw_first : 0; i < slot->end[c]; i++)
			assert_int_equal(sim->owner[c][slot->ids[c][i]], slot->epoch);
	}
	assert_int_equal(slot->raw_first, window / p->cls[PAGE_RAW].tokens_per_page);
}

static void begin_sequence(struct sim *sim, struct sim_slot *slot)
{
	slot->used = true;
	slot->pos = 0;
	slot->hash = FAKE_HASH0;
	slot->has_sample = false;
	slot->raw_first = 0;
	memset(slot->end, 0, sizeof(slot->end));
	slot->epoch = ++sim->epoch;
}

static void run_entry(struct sim *sim, const struct sim_step *st, const struct sim_entry *se,
	struct msg_token *out, uint32_t *n)
{
	const struct sched_entry *e = &se->e;
	struct sim_slot *slot = &sim->slots[e->slot];
	uint32_t i;

	if (e->flags & SEQ_FIRST)
		begin_sequence(sim, slot);
	assert_true(slot->used);
	assert_int_equal(slot->pos, e->pos);
	if (e->flags & SEQ_PREV) {
		assert_true(slot->has_sample); /* by its last entry */
		se->tokens[0] = slot->sampled;
	}
	run_tables(sim, slot, e, st->pages + e->page_off);
	for (i = 0; i < e->n; i++)
		slot->hash = fake_hash(slot->hash, se->tokens[i]);
	slot->pos += e->n;
	for (i = 0; i < e->n && (e->flags & SEQ_PROMPT_LOGPROBS); i++)
		if (e->pos + i > 0)
			out[(*n)++] = (struct msg_token){.slot = e->slot,
				.pos = e->pos + i,
				.token = se->tokens[i],
				.flags = MSG_TOKEN_PROMPT};
	slot->has_sample = (e->flags & SEQ_SAMPLE) != 0;
	if (slot->has_sample) {
		slot->sampled = fake_token(slot->hash, 0, sim->vocab, se->banned, se->banned_n);
		out[(*n)++] = (struct msg_token){
			.slot = e->slot, .pos = slot->pos, .token = slot->sampled};
	}
	if (e->flags & SEQ_LAST)
		slot->used = false;
}

void sim_run(struct sim *sim)
{
	struct sim_step *st = &sim->steps[sim->head % SIM_STEPS];
	uint32_t i, most = 0;
	struct msg_result result = {0};
	struct msg_hdr hdr = {.type = MSG_RESULT, .step = st->step};
	struct msg_result_view view = {.hdr = &hdr, .result = &result};
	struct msg_token *tokens;
	struct errbuf err = {{0}, 0};
	int r;

	assert_true(sim->count > 0);
	for (i = 0; i < st->n; i++)
		most += st->entries[i].e.n + 2;
	tokens = calloc(most, sizeof(*tokens));
	for (i = 0; i < st->n; i++)
		run_entry(sim, st, &st->entries[i], tokens, &result.ntoken);
	view.tokens = tokens;
	free_step(st);
	sim->head++;
	sim->count--;
	r = sched_result(sim->sched, &view, &err);
	if (r < 0)
		fail_msg("%s", err.text);
	free(tokens);
}
