#include "tests/unit/sched_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/sched_impl.h"

const uint32_t world_stops[2] = {3, 11};

struct client *client_of(struct sched_seq *q)
{
	return CONTAINER_OF(q, struct client, q);
}

void end_client(struct client *c, enum end end)
{
	assert_int_equal(c->end, END_NONE);
	c->end = end;
	c->w->live--;
	c->w->ended[end]++;
}

static void on_tokens(void *user, struct sched_seq *q, const struct msg_token *tokens, size_t n,
	const struct msg_alt *alts)
{
	struct client *c = client_of(q);
	struct world *w = user;
	size_t i;

	(void)alts;
	assert_int_equal(c->end, END_NONE);
	assert_true(n >= 1);
	for (i = 0; i < n; i++) {
		const uint32_t *banned = c->received < q->min_tokens ? world_stops : NULL;

		if (tokens[i].flags & MSG_TOKEN_PROMPT) {
			assert_int_equal(tokens[i].pos, c->reported);
			assert_int_equal(tokens[i].token, q->tokens[c->reported]);
			c->reported++;
			continue;
		}
		if (q->prompt_logprobs)
			assert_int_equal(c->reported, q->prompt_len);
		assert_int_equal(tokens[i].pos, q->prompt_len + c->received);
		assert_int_equal(tokens[i].token,
			fake_token(c->hash, 0, w->s.config.vocab, banned, banned ? q->stop_n : 0));
		c->hash = fake_hash(c->hash, tokens[i].token);
		c->received++;
		assert_true(c->received <= q->max_tokens);
	}
	if (c->cancel_at && c->received >= c->cancel_at) {
		sched_cancel(&w->s, q);
		end_client(c, END_CANCELLED);
	}
}

static void on_prefill(void *user, struct sched_seq *q, uint64_t done, uint64_t total)
{
	(void)user;
	assert_int_equal(client_of(q)->end, END_NONE);
	assert_int_equal(total, q->prompt_len);
	assert_true(done >= 1 && done <= total);
}

static bool has_stop(const struct client *c)
{
	uint32_t last = c->q.tokens[c->q.prompt_len + c->received - 1], i;

	for (i = 0; i < c->q.stop_n; i++)
		if (c->q.stops[i] == last)
			return true;
	return false;
}

static void on_finish(
	void *user, struct sched_seq *q, enum engine_finish reason, int status, const char *text)
{
	struct client *c = client_of(q);
	struct world *w = user;

	switch (reason) {
	case ENGINE_STOP_TOKEN:
		assert_true(has_stop(c) && c->received > q->min_tokens);
		end_client(c, END_STOP);
		return;
	case ENGINE_LENGTH:
		assert_int_equal(c->received, q->max_tokens);
		if (q->prompt_logprobs)
			assert_int_equal(c->reported, q->prompt_len);
		end_client(c, END_LENGTH);
		return;
	default:
		assert_int_equal(status, 503);
		assert_non_null(text);
		assert_true(w->may_fail);
		end_client(c, END_FAILED);
	}
}

void world_init(
	struct world *w, const struct sched_config *config, uint64_t seed, uint32_t queue_limit)
{
	const struct sched_ops ops = {on_tokens, on_prefill, on_finish, w};
	struct errbuf err;

	*w = (struct world){.rng = {seed | 1}, .now = NS_PER_S};
	sched_init(&w->s, &ops, queue_limit, 100 * NS_PER_S);
	assert_int_equal(sched_open(&w->s, config, &err), 0);
	sim_init(&w->sim, &w->s);
}

void forget_clients(struct world *w, bool all)
{
	struct client **at = &w->all;

	while (*at) {
		struct client *c = *at;

		if (c->end == END_NONE && !all) {
			at = &c->next;
			continue;
		}
		*at = c->next;
		free(c->q.tokens);
		free(c);
	}
}

static void never_lost(void *user, struct sched_seq *q)
{
	(void)user;
	(void)q;
	fail_msg("a sequence was left running");
}

void world_fini(struct world *w)
{
	assert_int_equal(w->live, 0);
	assert_true(sched_idle(&w->s));
	assert_true(pages_idle(&w->s.pages));
	assert_int_equal(w->s.slot_free, w->s.config.max_sequences);
	forget_clients(w, true);
	sim_fini(&w->sim);
	sched_close(&w->s, never_lost, NULL);
	sched_fini(&w->s);
}

struct client *add_client(struct world *w, uint64_t prompt_len, uint64_t max_tokens)
{
	struct client *c = calloc(1, sizeof(*c));
	uint64_t i;

	c->w = w;
	c->id = ++w->ids;
	c->hash = FAKE_HASH0;
	c->reported = 1;
	c->q.tokens = calloc(prompt_len, sizeof(uint32_t));
	c->q.token_cap = prompt_len;
	c->q.prompt_len = prompt_len;
	c->q.max_tokens = max_tokens;
	for (i = 0; i < prompt_len; i++) {
		c->q.tokens[i] = sim_rand(&w->rng, w->s.config.vocab);
		c->hash = fake_hash(c->hash, c->q.tokens[i]);
	}
	return c;
}

int submit(struct world *w, struct client *c)
{
	struct errbuf err;
	int r = sched_submit(&w->s, &c->q, w->now, &err);

	if (r < 0) {
		free(c->q.tokens);
		free(c);
		return r;
	}
	c->next = w->all;
	w->all = c;
	w->live++;
	return 0;
}

/* A step that is not full has left nobody out who could run. */
static void check_all_served(const struct world *w, const struct sched_plan *plan)
{
	const struct sched_list *lists[] = {&w->s.prefill, &w->s.decode};
	size_t i;

	if (plan->tokens == w->s.config.step_tokens || w->s.config.max_step_bytes < 1 << 20 ||
		w->s.config.max_reply_bytes < 1 << 20)
		return;
	for (i = 0; i < ARRAY_LEN(lists); i++) {
		struct sched_seq *q = lists[i]->head;

		for (; q; q = q->next)
			assert_int_equal(client_of(q)->last_step, plan->step);
	}
}

bool plan(struct world *w)
{
	const struct sched_plan *plan;
	uint32_t i;

	/* pages of who gives way are free for this very step, in which it has no part */
	sched_make_room(&w->s, w->now);
	sim_before_plan(&w->sim);
	plan = sched_plan(&w->s, w->now);
	if (!plan)
		return false;
	sim_take_plan(&w->sim, plan);
	for (i = 0; i < plan->n; i++)
		client_of(plan->entries[i].seq)->last_step = plan->step;
	check_all_served(w, plan);
	return true;
}

void drain(struct world *w)
{
	uint64_t turns = 0;

	while (w->live > 0) {
		bool planned = plan(w);

		assert_true(planned || w->sim.count > 0);
		if (!planned || sim_rand(&w->rng, 2))
			sim_run(&w->sim);
		assert_true(++turns < 10000000);
	}
	while (w->sim.count > 0)
		sim_run(&w->sim);
}

const struct sched_config usual = {
	.max_sequences = 8,
	.step_tokens = 256,
	.depth = 2,
	.ahead = SCHED_AHEAD,
	.vocab = 100,
	.max_step_bytes = 1 << 20,
	.max_reply_bytes = 1 << 20,
	.classes = {{64, 400, 1}, {256, 100, 1}, {8192, 20, 1}},
};
