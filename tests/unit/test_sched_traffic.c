#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/sched_world.h"

/* Random worlds, random traffic: sequences come, are cancelled, expire, lose their workers; and
 * each must get exactly its tokens, every page must come back. */
static struct sched_config random_config(struct sim_rng *r)
{
	static const uint32_t raw_sizes[] = {64, 64, 64, 1, 7, 128, 200};
	struct sched_config c = usual;
	uint32_t entitled;

	c.max_sequences = 1 + sim_rand(r, SIM_SLOTS);
	c.step_tokens = 1 + sim_rand(r, sim_rand(r, 2) ? 16 : 600);
	c.depth = 1 + sim_rand(r, 3);
	c.ahead = 1 + sim_rand(r, sim_rand(r, 2) ? 20 : 1000);
	c.vocab = 20 + sim_rand(r, 100);
	c.max_step_bytes = sim_rand(r, 4) ? 1 << 20 : 2000 + sim_rand(r, 4000);
	c.max_reply_bytes = sim_rand(r, 4) ? 1 << 20 : 400 + sim_rand(r, 4000);
	c.classes[PAGE_RAW].tokens_per_page = raw_sizes[sim_rand(r, ARRAY_LEN(raw_sizes))];
	entitled = 127 / c.classes[PAGE_RAW].tokens_per_page + 2;
	/* from the bare minimum for one sequence to plenty for all */
	c.classes[PAGE_RAW].count = entitled + sim_rand(r, entitled * c.max_sequences * 2);
	c.classes[PAGE_CSA] = (struct page_class_info){256, 8 + sim_rand(r, 100), 1};
	c.classes[PAGE_HCA] = (struct page_class_info){8192, 1 + sim_rand(r, 20), 1};
	if (sim_rand(r, 3) == 0) /* answers outgrow what they were promised */
		c.classes[PAGE_CSA] = (struct page_class_info){16, 128 + sim_rand(r, 20), 1};
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
		w, 1 + sim_rand(r, lens[sim_rand(r, 4)]), sim_rand(r, sim_rand(r, 4) ? 30 : 600));

	c->q.prompt_logprobs = sim_rand(r, 5) == 0;
	if (c->q.max_tokens == 0)
		c->q.prompt_logprobs = true;
	if (c->q.prompt_logprobs && sim_rand(r, 2))
		c->q.sampling.prompt_logprobs = 3;
	if (sim_rand(r, 2)) {
		c->q.stops = world_stops;
		c->q.stop_n = ARRAY_LEN(world_stops);
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

/* Returns how often a sequence gave way to another. */
static uint64_t one_world(uint64_t seed, uint32_t requests)
{
	struct sim_rng rng = {seed | 1};
	struct sched_config config = random_config(&rng);
	uint64_t preempted;
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
	preempted = w.s.counts.preempted;
	world_fini(&w);
	return preempted;
}

static void test_random_traffic_gives_every_sequence_its_tokens(void **state)
{
	uint64_t seed = sim_seed(__func__);
	struct sim_rng rng = {seed | 1};
	uint64_t preempted = 0;
	int i;

	(void)state;
	for (i = 0; i < 60; i++) {
		uint64_t world = ((uint64_t)sim_rand(&rng, UINT32_MAX) << 20) | 1;

		preempted += one_world(world, 200);
	}
	assert_true(preempted > 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_traffic_gives_every_sequence_its_tokens),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
