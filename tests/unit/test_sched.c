#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/sched_world.h"

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

/*
 * Answers of which nobody said how long they may be: each might fill the cache. They run side by
 * side for as long as there are pages, and then the last to come gives way.
 */
static void test_answers_without_a_limit_run_side_by_side(void **state)
{
	struct sched_config config = usual;
	struct client *c[3];
	struct world w;

	(void)state;
	config.classes[PAGE_CSA].count = 16; /* 4096 positions */
	world_init(&w, &config, 5, 100);
	for (int i = 0; i < 3; i++) {
		c[i] = add_client(&w, 100 + (uint64_t)i, 3990);
		assert_int_equal(submit(&w, c[i]), 0);
	}
	assert_true(plan(&w));
	for (int i = 0; i < 3; i++)
		assert_int_not_equal(c[i]->q.state, SCHED_WAITING);
	while (w.live > 0) {
		bool planned = plan(&w);

		if (c[0]->end == END_NONE)
			assert_int_not_equal(c[0]->q.state, SCHED_WAITING);
		if (!planned || w.sim.count == config.depth)
			sim_run(&w.sim);
	}
	drain(&w);
	for (int i = 0; i < 3; i++)
		assert_int_equal(c[i]->end, END_LENGTH);
	/* who came back gets on by about what it was promised before it gives way again */
	assert_in_range(w.s.counts.preempted, 2, 3 * 3990 / config.ahead);
	world_fini(&w);
}

/* The example of sched_impl.h. */
static void test_promises_are_as_drawn(void **state)
{
	static const struct {
		uint64_t fed, raw_first, raw_end, raw_promised, limbo, raw_free;
		uint64_t csa_end, csa_promised, csa_free, assured;
	} rows[] = {
		{200, 0, 4, 0, 0, 396, 1, 4, 99, 1224},
		{201, 1, 4, 0, 1, 396, 1, 4, 99, 1224},
		{256, 2, 4, 1, 1, 397, 1, 4, 99, 1224},
		{257, 2, 5, 0, 0, 397, 2, 3, 98, 1224},
		{1224, 17, 20, 0, 0, 397, 5, 0, 95, 1224},
		{1225, 17, 20, 0, 0, 397, 5, 4, 95, 2248},
	};
	struct world w;
	struct client *c;
	size_t i;

	(void)state;
	world_init(&w, &usual, 7, 100);
	c = add_client(&w, 200, 4000);
	assert_int_equal(submit(&w, c), 0);
	for (i = 0; i < ARRAY_LEN(rows); i++) {
		const struct sched_table *raw = &c->q.pages[PAGE_RAW], *csa = &c->q.pages[PAGE_CSA];

		while (c->q.fed < rows[i].fed) {
			if (w.s.inflight > 0)
				sim_run(&w.sim);
			assert_true(plan(&w));
		}
		assert_int_equal(c->q.fed, rows[i].fed);
		assert_int_equal(raw->first, rows[i].raw_first);
		assert_int_equal(raw->end, rows[i].raw_end);
		assert_int_equal(raw->promised, rows[i].raw_promised);
		assert_int_equal(w.s.pages.cls[PAGE_RAW].limbo_n, rows[i].limbo);
		assert_int_equal(w.s.pages.cls[PAGE_RAW].free_n, rows[i].raw_free);
		assert_int_equal(csa->end, rows[i].csa_end);
		assert_int_equal(csa->promised, rows[i].csa_promised);
		assert_int_equal(w.s.pages.cls[PAGE_CSA].free_n, rows[i].csa_free);
		assert_int_equal(c->q.assured, rows[i].assured);
	}
	sim_run(&w.sim);
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

static void test_what_gave_way_takes_no_place_in_the_queue(void **state)
{
	struct sched_config config = usual;
	struct world w;
	int i;

	(void)state;
	config.classes[PAGE_CSA].count = 16; /* 4096 positions */
	world_init(&w, &config, 5, 1);
	for (i = 0; i < 3; i++)
		assert_int_equal(submit(&w, add_client(&w, 100, 3990)), 0);
	while (sched_waiting(&w.s) < 2 || w.s.counts.preempted < 2) {
		assert_true(plan(&w));
		sim_run(&w.sim);
	}
	assert_int_equal(sched_waiting(&w.s), 2);
	assert_int_equal(submit(&w, add_client(&w, 10, 4)), 0);
	assert_int_equal(submit(&w, add_client(&w, 10, 4)), -EAGAIN);
	assert_int_equal(sched_waiting(&w.s), 3);
	drain(&w);
	world_fini(&w);
}

/* What sched_fit() says of an idle scheduler is what sched_submit() does to it. */
static void test_fit_says_how_many_an_idle_scheduler_takes(void **state)
{
	struct sim_rng rng = {sim_seed("test_sched") | 1};
	uint64_t by_pages = 0, by_slots = 0;
	int round;

	(void)state;
	for (round = 0; round < 300; round++) {
		struct sched_config config = usual;
		struct engine_fit fit = {0};
		struct client *c = NULL;
		struct world w;
		uint32_t limit = 1 + sim_rand(&rng, 12), longest = 1 + sim_rand(&rng, 12000);
		bool fits = true;

		config.max_sequences = 1 + sim_rand(&rng, 12);
		world_init(&w, &config, 5, limit);
		while (fits) {
			c = add_client(&w, 1 + sim_rand(&rng, longest), 1 + sim_rand(&rng, 90));
			fits = sched_fit(&w.s, &c->q, &fit);
			if ((submit(&w, c) == 0) != fits)
				fail_msg("sequence %u of round %d", fit.run + fit.wait, round);
		}
		assert_int_equal(fit.wait, limit);
		assert_int_equal(sched_waiting(&w.s), limit);
		assert_int_equal(sched_running(&w.s), fit.run);
		by_slots += fit.run == config.max_sequences;
		by_pages += fit.run < config.max_sequences;
		for (c = w.all; c; c = c->next) {
			sched_cancel(&w.s, &c->q);
			end_client(c, END_CANCELLED);
		}
		world_fini(&w);
	}
	assert_true(by_slots > 10 && by_pages > 10);
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
		cmocka_unit_test(test_long_prompt_does_not_hold_up_decodes),
		cmocka_unit_test(test_short_prompts_pass_a_long_one),
		cmocka_unit_test(test_more_decodes_than_step_tokens_take_turns),
		cmocka_unit_test(test_step_of_one_token_starves_nobody),
		cmocka_unit_test(test_next_step_runs_before_the_last_came_back),
		cmocka_unit_test(test_tokens_past_a_stop_are_dropped),
		cmocka_unit_test(test_cancel_frees_slot_and_pages_within_one_step),
		cmocka_unit_test(test_head_of_the_line_is_not_overtaken),
		cmocka_unit_test(test_answers_without_a_limit_run_side_by_side),
		cmocka_unit_test(test_promises_are_as_drawn),
		cmocka_unit_test(test_submit_full_queue_returns_eagain),
		cmocka_unit_test(test_what_gave_way_takes_no_place_in_the_queue),
		cmocka_unit_test(test_fit_says_how_many_an_idle_scheduler_takes),
		cmocka_unit_test(test_submit_larger_than_the_pools_returns_e2big),
		cmocka_unit_test(test_expiry_answers_503_and_says_when_to_come_back),
		cmocka_unit_test(test_result_that_answers_wrongly_is_refused_whole),
		cmocka_unit_test(test_nan_fails_its_own_request_only),
		cmocka_unit_test(test_open_refuses_nonsense_capacity),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
