#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/sim.h"

/* ---- a client of the scheduler, which knows what each sequence must answer ---- */

enum end { END_NONE, END_STOP, END_LENGTH, END_FAILED, END_CANCELLED };

struct client {
	struct sched_seq q;
	struct world *w;
	uint32_t id;
	uint64_t hash;      /* of prompt and what was received */
	uint64_t received;  /* generated tokens */
	uint64_t reported;  /* next prompt position to be reported */
	uint64_t cancel_at; /* cancel in the callback when that many are received; 0: never */
	uint64_t last_step; /* in which it had an entry */
	enum end end;
	struct client *next;
};

struct world {
	struct sched s;
	struct sim sim;
	struct sim_rng rng;
	mono_ns_t now;
	struct client *all;
	uint32_t ids, live;
	uint64_t ended[8];
	bool may_fail;
};

static const uint32_t stops[] = {3, 11};

static struct client *client_of(struct sched_seq *q)
{
	return CONTAINER_OF(q, struct client, q);
}

static void end_client(struct client *c, enum end end)
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
		const uint32_t *banned = c->received < q->min_tokens ? stops : NULL;

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

static void world_init(
	struct world *w, const struct sched_config *config, uint64_t seed, uint32_t queue_limit)
{
	const struct sched_ops ops = {on_tokens, on_prefill, on_finish, w};
	struct errbuf err;

	*w = (struct world){.rng = {seed | 1}, .now = NS_PER_S};
	sched_init(&w->s, &ops, queue_limit, 100 * NS_PER_S);
	assert_int_equal(sched_open(&w->s, config, &err), 0);
	sim_init(&w->sim, &w->s);
}

static void forget_clients(struct world *w, bool all)
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

static void world_fini(struct world *w)
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

static struct client *add_client(struct world *w, uint64_t prompt_len, uint64_t max_tokens)
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

static int submit(struct world *w, struct client *c)
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

static bool plan(struct world *w)
{
	const struct sched_plan *plan;
	uint32_t i;

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

/* Plans and runs until nothing is left; at every turn something must be possible. */
static void drain(struct world *w)
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

static const struct sched_config usual = {
	.max_sequences = 8,
	.step_tokens = 256,
	.depth = 2,
	.vocab = 100,
	.max_step_bytes = 1 << 20,
	.max_reply_bytes = 1 << 20,
	.classes = {{64, 400, 1}, {256, 100, 1}, {8192, 20, 1}},
};

/* ---- random traffic ---- */

static struct sched_config random_config(struct sim_rng *r)
{
	static const uint32_t raw_sizes[] = {64, 64, 64, 1, 7, 128, 200};
	struct sched_config c = usual;
	uint32_t entitled;

	c.max_sequences = 1 + sim_rand(r, SIM_SLOTS);
	c.step_tokens = 1 + sim_rand(r, sim_rand(r, 2) ? 16 : 600);
	c.depth = 1 + sim_rand(r, 3);
	c.vocab = 20 + sim_rand(r, 100);
	c.max_step_bytes = sim_rand(r, 4) ? 1 << 20 : 2000 + sim_rand(r, 4000);
	c.max_reply_bytes = sim_rand(r, 4) ? 1 << 20 : 400 + sim_rand(r, 4000);
	c.classes[PAGE_RAW].tokens_per_page = raw_sizes[sim_rand(r, ARRAY_LEN(raw_sizes))];
	entitled = 127 / c.classes[PAGE_RAW].tokens_per_page + 2;
	/* from the bare minimum for one sequence to plenty for all */
	c.classes[PAGE_RAW].count = entitled + sim_rand(r, entitled * c.max_sequences * 2);
	c.classes[PAGE_CSA] = (struct page_class_info){256, 8 + sim_rand(r, 100), 1};
	c.classes[PAGE_HCA] = (struct page_class_info){8192, 1 + sim_rand(r, 20), 1};
	if (sim_rand(r, 5) == 0)
		c.classes[PAGE_CSA] = (struct page_class_info){0};
	if (sim_rand(r, 5) == 0)
		c.classes[PAGE_HCA] = (struct page_class_info){0};
	return c;
}

static void random_request(struct world *w)
{
	static const uint32_t lens[] = {5, 70, 300, 1800};
	struct sim_rng *r = &w->rng;
	struct client *c = add_client(
		w, 1 + sim_rand(r, lens[sim_rand(r, 4)]), sim_rand(r, sim_rand(r, 4) ? 30 : 200));

	c->q.prompt_logprobs = sim_rand(r, 5) == 0;
	if (c->q.max_tokens == 0)
		c->q.prompt_logprobs = true;
	if (c->q.prompt_logprobs && sim_rand(r, 2))
		c->q.sampling.prompt_logprobs = 3;
	if (sim_rand(r, 2)) {
		c->q.stops = stops;
		c->q.stop_n = ARRAY_LEN(stops);
		c->q.min_tokens = sim_rand(r, 3) ? 0 : sim_rand(r, 20);
	}
	if (sim_rand(r, 8) == 0)
		c->cancel_at = 1 + sim_rand(r, 10);
	(void)submit(w, c); /* full or too big: refused, which is one of the things to try */
}

static void cancel_one(struct world *w)
{
	struct client *c = w->all;
	uint32_t skip = sim_rand(&w->rng, 8);

	for (; c; c = c->next) {
		if (c->end != END_NONE || skip-- > 0)
			continue;
		sched_cancel(&w->s, &c->q);
		end_client(c, END_CANCELLED);
		return;
	}
}

static void lost_decide(void *user, struct sched_seq *q)
{
	struct world *w = user;

	if (sim_rand(&w->rng, 2))
		sched_resubmit(&w->s, q, w->now);
	else
		end_client(client_of(q), END_FAILED);
}

static void lose_group(struct world *w)
{
	struct sched_config config = w->s.config;
	struct errbuf err;

	sched_close(&w->s, lost_decide, w);
	sim_fini(&w->sim);
	assert_int_equal(sched_open(&w->s, &config, &err), 0);
	sim_init(&w->sim, &w->s);
}

static void one_world(uint64_t seed, uint32_t requests)
{
	struct sim_rng rng = {seed | 1};
	struct sched_config config = random_config(&rng);
	struct world w;

	world_init(&w, &config, rng.state, 16 + sim_rand(&rng, 100));
	w.may_fail = true;
	while (w.ids < requests) {
		switch (sim_rand(&w.rng, 12)) {
		case 0:
		case 1:
			random_request(&w);
			break;
		case 2:
			if (sim_rand(&w.rng, 4) == 0)
				cancel_one(&w);
			break;
		case 3:
			w.now += sim_rand(&w.rng, 1000) * NS_PER_MS;
			(void)sched_expire(&w.s, w.now);
			if (sim_rand(&w.rng, 300) == 0)
				lose_group(&w);
			forget_clients(&w, false);
			break;
		case 4:
		case 5:
		case 6:
		case 7:
			plan(&w);
			break;
		default:
			if (w.sim.count > 0)
				sim_run(&w.sim);
		}
	}
	drain(&w);
	assert_true(w.ended[END_LENGTH] > 0);
	world_fini(&w);
}

static void test_random_traffic_gives_every_sequence_its_tokens(void **state)
{
	uint64_t seed = sim_seed(__func__);
	struct sim_rng rng = {seed | 1};
	int i;

	(void)state;
	for (i = 0; i < 60; i++) {
		uint64_t world = ((uint64_t)sim_rand(&rng, UINT32_MAX) << 20) | 1;

		one_world(world, 200);
	}
}

/* ---- chosen cases ---- */

static void test_long_prompt_does_not_hold_up_decodes(void **state)
{
	struct sched_config config = usual;
	struct world w;
	struct client *longest, *streams[4];
	uint64_t steps = 0;
	size_t i;

	(void)state;
	config.classes[PAGE_CSA].count = 1000;
	world_init(&w, &config, 7, 100);
	for (i = 0; i < ARRAY_LEN(streams); i++) {
		streams[i] = add_client(&w, 10, 500);
		assert_int_equal(submit(&w, streams[i]), 0);
	}
	assert_true(plan(&w));
	sim_run(&w.sim);
	longest = add_client(&w, 100000, 4);
	assert_int_equal(submit(&w, longest), 0);
	while (longest->q.fed < 100000) {
		assert_true(plan(&w));
		steps++;
		/* every stream has its token, and the prompt has all the rest */
		for (i = 0; i < ARRAY_LEN(streams); i++)
			assert_true(streams[i]->end != END_NONE ||
				    streams[i]->q.state != SCHED_DECODE ||
				    streams[i]->last_step == w.s.step);
		if (longest->q.fed < 100000)
			assert_int_equal(w.s.counts.last_tokens, config.step_tokens);
		sim_run(&w.sim);
	}
	assert_int_equal(steps, DIV_UP(100000, config.step_tokens - 4));
	drain(&w);
	world_fini(&w);
}

static void test_short_prompts_pass_a_long_one(void **state)
{
	struct sched_config config = usual;
	struct world w;
	struct client *longest, *shorts[3];
	size_t i;

	(void)state;
	world_init(&w, &config, 7, 100);
	longest = add_client(&w, 20000, 4);
	assert_int_equal(submit(&w, longest), 0);
	assert_true(plan(&w));
	sim_run(&w.sim);
	for (i = 0; i < ARRAY_LEN(shorts); i++) {
		shorts[i] = add_client(&w, 60, 4);
		assert_int_equal(submit(&w, shorts[i]), 0);
	}
	assert_true(plan(&w)); /* 256 shared by four: the short ones fit whole */
	for (i = 0; i < ARRAY_LEN(shorts); i++)
		assert_int_equal(shorts[i]->q.fed, 60);
	assert_int_equal(longest->q.fed, 256 + 256 - 3 * 60);
	drain(&w);
	world_fini(&w);
}

static void test_more_decodes_than_step_tokens_take_turns(void **state)
{
	struct sched_config config = usual;
	struct world w;
	struct client *c[8], *late;
	uint64_t seen[8] = {0}, step;
	size_t i;

	(void)state;
	config.step_tokens = 3;
	config.max_sequences = 9;
	world_init(&w, &config, 9, 100);
	for (i = 0; i < ARRAY_LEN(c); i++) {
		c[i] = add_client(&w, 1, 300);
		assert_int_equal(submit(&w, c[i]), 0);
	}
	for (step = 0; step < 30; step++) {
		assert_true(plan(&w));
		sim_run(&w.sim);
	}
	late = add_client(&w, 9, 3);
	assert_int_equal(submit(&w, late), 0);
	for (step = 0; step < 60; step++) {
		assert_true(plan(&w));
		sim_run(&w.sim);
		for (i = 0; i < ARRAY_LEN(c); i++) {
			if (c[i]->last_step == w.s.step)
				seen[i] = w.s.step;
			assert_true(seen[i] == 0 || w.s.step - seen[i] <= 6);
		}
	}
	assert_int_equal(late->end, END_LENGTH); /* it was not starved by those that ran */
	drain(&w);
	world_fini(&w);
}

static void test_step_of_one_token_starves_nobody(void **state)
{
	struct sched_config config = usual;
	struct world w;
	struct client *a, *b;
	int i;

	(void)state;
	config.step_tokens = 1;
	world_init(&w, &config, 3, 100);
	a = add_client(&w, 1, 200);
	assert_int_equal(submit(&w, a), 0);
	assert_true(plan(&w));
	b = add_client(&w, 20, 200);
	assert_int_equal(submit(&w, b), 0);
	sim_run(&w.sim);
	for (i = 0; i < 100; i++) {
		assert_true(plan(&w));
		sim_run(&w.sim);
	}
	assert_true(b->received > 10 && a->received > 10);
	drain(&w);
	world_fini(&w);
}

static void test_next_step_runs_before_the_last_came_back(void **state)
{
	struct world w;
	struct client *c;

	(void)state;
	world_init(&w, &usual, 5, 100);
	c = add_client(&w, 5, 4);
	assert_int_equal(submit(&w, c), 0);
	assert_true(plan(&w));
	assert_true(plan(&w)); /* on the token of the previous sample */
	assert_int_equal(w.sim.steps[1].entries[0].e.flags, SEQ_SAMPLE | SEQ_PREV);
	assert_false(plan(&w)); /* two are in flight */
	sim_run(&w.sim);
	assert_int_equal(c->received, 1);
	assert_true(plan(&w));
	sim_run(&w.sim);
	assert_true(plan(&w)); /* the fourth and last sample */
	assert_int_equal(w.sim.steps[3].entries[0].e.flags, SEQ_SAMPLE | SEQ_PREV | SEQ_LAST);
	sim_run(&w.sim);
	assert_false(plan(&w));
	sim_run(&w.sim);
	assert_int_equal(c->end, END_LENGTH);
	world_fini(&w);
}

static void test_tokens_past_a_stop_are_dropped(void **state)
{
	static const uint32_t all[100] = {0};
	uint32_t *every = malloc(sizeof(all)), i;
	struct world w;
	struct client *c;

	(void)state;
	for (i = 0; i < 100; i++)
		every[i] = i;
	world_init(&w, &usual, 5, 100);
	c = add_client(&w, 5, 40);
	c->q.stops = every;
	c->q.stop_n = 100;
	assert_int_equal(submit(&w, c), 0);
	assert_true(plan(&w));
	assert_true(plan(&w));
	sim_run(&w.sim);
	assert_int_equal(c->end, END_STOP);
	assert_int_equal(c->received, 1);
	sim_run(&w.sim);
	assert_int_equal(c->received, 1);
	assert_int_equal(w.s.counts.dropped_tokens, 1);
	world_fini(&w);
	free(every);
}

static void test_cancel_frees_slot_and_pages_within_one_step(void **state)
{
	struct sched_config config = usual;
	struct world w;
	struct client *a, *b;

	(void)state;
	config.max_sequences = 1;
	world_init(&w, &config, 5, 100);
	a = add_client(&w, 1000, 40);
	assert_int_equal(submit(&w, a), 0);
	assert_true(plan(&w));
	b = add_client(&w, 10, 4);
	assert_int_equal(submit(&w, b), 0);
	assert_true(plan(&w));
	sched_cancel(&w.s, &a->q);
	end_client(a, END_CANCELLED);
	assert_true(pages_idle(&w.s.pages));
	sim_run(&w.sim);
	assert_true(plan(&w));
	assert_int_equal(w.sim.steps[2].entries[0].e.flags & SEQ_FIRST, SEQ_FIRST);
	drain(&w);
	assert_int_equal(b->end, END_LENGTH);
	world_fini(&w);
}

static void test_head_of_the_line_is_not_overtaken(void **state)
{
	struct sched_config config = usual;
	struct world w;
	struct client *a, *big, *small;

	(void)state;
	config.classes[PAGE_CSA].count = 10;
	world_init(&w, &config, 5, 100);
	a = add_client(&w, 1000, 40);
	big = add_client(&w, 2000, 100);
	small = add_client(&w, 10, 4);
	assert_int_equal(submit(&w, a), 0);
	assert_int_equal(submit(&w, big), 0);
	assert_int_equal(submit(&w, small), 0);
	assert_true(plan(&w));
	assert_int_equal(big->q.state, SCHED_WAITING);
	assert_int_equal(small->q.state, SCHED_WAITING);
	drain(&w);
	world_fini(&w);
}

static void test_submit_full_queue_returns_eagain(void **state)
{
	struct sched_config config = usual;
	struct world w;
	int i;

	(void)state;
	config.max_sequences = 2;
	world_init(&w, &config, 5, 3);
	for (i = 0; i < 5; i++) /* two run, three wait, though no step was planned in between */
		assert_int_equal(submit(&w, add_client(&w, 10, 4)), 0);
	assert_int_equal(submit(&w, add_client(&w, 10, 4)), -EAGAIN);
	assert_int_equal(sched_waiting(&w.s), 3);
	drain(&w);
	world_fini(&w);
}

static void test_submit_larger_than_the_pools_returns_e2big(void **state)
{
	struct sched_config config = usual;
	struct world w;

	(void)state;
	config.classes[PAGE_CSA].count = 4; /* 1024 positions */
	world_init(&w, &config, 5, 3);
	assert_int_equal(sched_max_positions(&w.s), 1024);
	assert_int_equal(submit(&w, add_client(&w, 1000, 26)), -E2BIG);
	assert_int_equal(submit(&w, add_client(&w, 1000, 25)), 0);
	drain(&w);
	world_fini(&w);
}

static void test_expiry_answers_503_and_says_when_to_come_back(void **state)
{
	struct sched_config config = usual;
	struct world w;
	struct client *a, *b;

	(void)state;
	config.max_sequences = 1;
	world_init(&w, &config, 5, 10);
	w.may_fail = true;
	a = add_client(&w, 10, 4);
	b = add_client(&w, 10, 4);
	assert_int_equal(submit(&w, a), 0);
	assert_int_equal(submit(&w, b), 0);
	assert_true(plan(&w));
	assert_int_equal(sched_expire(&w.s, w.now), w.now + 100 * NS_PER_S);
	assert_int_equal(sched_expire(&w.s, w.now + 100 * NS_PER_S - 1), w.now + 100 * NS_PER_S);
	assert_int_equal(b->end, END_NONE);
	assert_int_equal(sched_expire(&w.s, w.now + 100 * NS_PER_S), 0);
	assert_int_equal(b->end, END_FAILED);
	drain(&w);
	assert_int_equal(a->end, END_LENGTH);
	world_fini(&w);
}

/* ---- results that do not answer their step ---- */

struct forged {
	struct msg_hdr hdr;
	struct msg_result result;
	struct msg_token token;
	struct msg_alt alt;
	struct msg_result_view view;
};

static void forge(struct forged *f, const struct client *c)
{
	*f = (struct forged){.hdr = {.type = MSG_RESULT, .step = 1},
		.result = {.ntoken = 1, .nalt = 1},
		.token = {.slot = c->q.slot, .token = 1, .pos = 10, .alt_n = 1}};
	f->view = (struct msg_result_view){&f->hdr, &f->result, &f->token, &f->alt};
}

static void test_result_that_answers_wrongly_is_refused_whole(void **state)
{
	struct world w;
	struct client *c;
	struct forged f;
	struct errbuf err;
	size_t i;

	(void)state;
	world_init(&w, &usual, 5, 10);
	c = add_client(&w, 10, 4);
	c->q.sampling.logprobs = 1;
	assert_int_equal(submit(&w, c), 0);
	assert_true(plan(&w));
	for (i = 0; i < 8; i++) {
		forge(&f, c);
		switch (i) {
		case 0:
			f.hdr.step = 2;
			break;
		case 1:
			f.result.ntoken = 0;
			break;
		case 2:
			f.token.slot++;
			break;
		case 3:
			f.token.pos = 9;
			break;
		case 4:
			f.token.token = usual.vocab;
			break;
		case 5:
			f.token.flags = MSG_TOKEN_PROMPT;
			break;
		case 6:
			f.token.alt_n = 2;
			break;
		default:
			f.alt.token = usual.vocab;
		}
		assert_int_equal(sched_result(&w.s, &f.view, &err), -EBADMSG);
		assert_int_equal(c->received, 0);
		assert_int_equal(w.s.inflight, 1);
	}
	drain(&w);
	assert_int_equal(c->end, END_LENGTH);
	world_fini(&w);
}

static void fail_finish(
	void *user, struct sched_seq *q, enum engine_finish reason, int status, const char *text)
{
	(void)user;
	assert_int_equal(reason, ENGINE_FAILED);
	assert_int_equal(status, 500);
	assert_non_null(strstr(text, "NaN"));
	end_client(client_of(q), END_FAILED);
}

static void test_nan_fails_its_own_request_only(void **state)
{
	struct world w;
	struct client *c, *other;
	struct forged f;
	struct msg_token two[2];
	struct errbuf err;

	(void)state;
	world_init(&w, &usual, 5, 10);
	w.s.ops.on_finish = fail_finish;
	c = add_client(&w, 10, 4);
	other = add_client(&w, 10, 4);
	assert_int_equal(submit(&w, c), 0);
	assert_int_equal(submit(&w, other), 0);
	assert_true(plan(&w));
	forge(&f, c);
	f.token.alt_n = 0;
	two[0] = two[1] = f.token;
	two[0].flags = MSG_TOKEN_NAN;
	two[1].slot = other->q.slot;
	two[1].token = fake_token(other->hash, 0, usual.vocab, NULL, 0);
	f.result.ntoken = 2;
	f.view.tokens = two;
	assert_int_equal(sched_result(&w.s, &f.view, &err), 0);
	assert_int_equal(c->end, END_FAILED);
	assert_int_equal(other->received, 1);
	sched_cancel(&w.s, &other->q);
	end_client(other, END_CANCELLED);
	world_fini(&w);
}

static void test_open_refuses_nonsense_capacity(void **state)
{
	struct sched_config bad[5];
	const struct sched_ops ops = {0};
	struct sched s;
	struct errbuf err;
	size_t i;

	(void)state;
	for (i = 0; i < ARRAY_LEN(bad); i++)
		bad[i] = usual;
	bad[0].vocab = 0;
	bad[1].max_sequences = 0;
	bad[2].classes[PAGE_RAW].tokens_per_page = 0;
	bad[3].classes[PAGE_HCA].count = UINT32_MAX;
	bad[4].max_reply_bytes = 10;
	sched_init(&s, &ops, 10, NS_PER_S);
	for (i = 0; i < ARRAY_LEN(bad); i++) {
		assert_int_equal(sched_open(&s, &bad[i], &err), -EINVAL);
		assert_false(s.open);
	}
	sched_fini(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_traffic_gives_every_sequence_its_tokens),
		cmocka_unit_test(test_long_prompt_does_not_hold_up_decodes),
		cmocka_unit_test(test_short_prompts_pass_a_long_one),
		cmocka_unit_test(test_more_decodes_than_step_tokens_take_turns),
		cmocka_unit_test(test_step_of_one_token_starves_nobody),
		cmocka_unit_test(test_next_step_runs_before_the_last_came_back),
		cmocka_unit_test(test_tokens_past_a_stop_are_dropped),
		cmocka_unit_test(test_cancel_frees_slot_and_pages_within_one_step),
		cmocka_unit_test(test_head_of_the_line_is_not_overtaken),
		cmocka_unit_test(test_submit_full_queue_returns_eagain),
		cmocka_unit_test(test_submit_larger_than_the_pools_returns_e2big),
		cmocka_unit_test(test_expiry_answers_503_and_says_when_to_come_back),
		cmocka_unit_test(test_result_that_answers_wrongly_is_refused_whole),
		cmocka_unit_test(test_nan_fails_its_own_request_only),
		cmocka_unit_test(test_open_refuses_nonsense_capacity),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
