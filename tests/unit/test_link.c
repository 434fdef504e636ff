/* The link against a group of two workers played by this process, one thread, step by step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/link.h"
#include "tests/unit/sim.h"

#define WORLD 2

struct bench {
	struct seg_group coord;
	struct seg_group workers[WORLD];
	struct chan_worker chans[WORLD];
	struct link link;
	struct sched s;
	bool may_fail; /* a flipped bit may say NaN */
	uint32_t finished, received;
	uint32_t last_token;
};

static void on_tokens(void *user, struct sched_seq *q, const struct msg_token *tokens, size_t n,
	const struct msg_alt *alts)
{
	struct bench *b = user;

	(void)q;
	(void)alts;
	b->received += (uint32_t)n;
	b->last_token = tokens[n - 1].token;
}

static void on_finish(
	void *user, struct sched_seq *q, enum engine_finish reason, int status, const char *text)
{
	struct bench *b = user;

	(void)q;
	(void)status;
	(void)text;
	assert_true(b->may_fail || reason == ENGINE_LENGTH);
	b->finished++;
}

static void attach(struct bench *b, uint32_t rank)
{
	int worker_fds[WORLD];
	struct errbuf err = {{0}, 0};
	uint32_t i;

	for (i = 0; i < WORLD; i++)
		worker_fds[i] = dup(b->coord.workers[i].fd);
	if (seg_group_attach_fds(&b->workers[rank], rank, dup(b->coord.coord.fd),
		    dup(b->coord.bell_fd), worker_fds, &err) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(chan_worker_init(&b->chans[rank], &b->workers[rank], 0, 0), 0);
}

static int setup(void **state)
{
	static struct conf conf;
	const struct seg_geometry geometry = {.generation = 1,
		.workers = WORLD,
		.step_ring_bytes = 65536,
		.reply_ring_bytes = 65536};
	struct bench *b = calloc(1, sizeof(*b));
	const struct sched_ops ops = {on_tokens, NULL, on_finish, b};
	struct sched_config config = {.max_sequences = 4,
		.ahead = SCHED_AHEAD,
		.step_tokens = 100,
		.depth = 2,
		.vocab = 1000,
		.classes = {{64, 100, 1}, {256, 1000, 1}, {8192, 20, 1}}};
	struct errbuf err = {{0}, 0};
	uint32_t rank;

	assert_int_equal(seg_group_create(&b->coord, &geometry, &conf, &err), 0);
	for (rank = 0; rank < WORLD; rank++)
		attach(b, rank);
	assert_int_equal(link_open(&b->link, &b->coord), 0);
	config.max_step_bytes = b->link.max_step_bytes;
	config.max_reply_bytes = b->link.max_reply_bytes;
	sched_init(&b->s, &ops, 10, NS_PER_S);
	assert_int_equal(sched_open(&b->s, &config, &err), 0);
	*state = b;
	return 0;
}

static void forget(void *user, struct sched_seq *q)
{
	(void)user;
	(void)q;
}

static int teardown(void **state)
{
	struct bench *b = *state;
	uint32_t rank;

	sched_close(&b->s, forget, NULL);
	sched_fini(&b->s);
	link_close(&b->link);
	for (rank = 0; rank < WORLD; rank++)
		seg_group_close(&b->workers[rank]);
	seg_group_close(&b->coord);
	free(b);
	return 0;
}

static void submit(struct bench *b, struct sched_seq *q, uint32_t prompt_len)
{
	struct errbuf err;
	uint32_t i;

	q->tokens = calloc(prompt_len, sizeof(uint32_t));
	q->token_cap = q->prompt_len = prompt_len;
	for (i = 0; i < prompt_len; i++)
		q->tokens[i] = 100 + i;
	assert_int_equal(sched_submit(&b->s, q, NS_PER_S, &err), 0);
}

static void drop(struct bench *b, struct sched_seq *q)
{
	sched_cancel(&b->s, q);
	free(q->tokens);
}

static const struct sched_plan *send(struct bench *b)
{
	const struct sched_plan *plan;
	struct errbuf err;

	assert_int_equal(link_room(&b->link, &err), 0);
	plan = sched_plan(&b->s, NS_PER_S);
	assert_non_null(plan);
	link_send(&b->link, plan);
	return plan;
}

/* What a worker reads; the record stays until chan_step_done(). */
static struct msg_step_view read_step(struct bench *b, uint32_t rank)
{
	struct msg_step_view view;
	const void *msg;
	size_t bytes;
	struct errbuf err = {{0}, 0};

	assert_int_equal(
		chan_step_next(&b->chans[rank], mono_now() + 5 * NS_PER_S, &msg, &bytes), 0);
	if (msg_step_parse(msg, bytes, &view, &err) < 0)
		fail_msg("%s", err.text);
	return view;
}

static void push_reply(struct bench *b, uint32_t rank, const void *bytes, size_t n)
{
	void *at;

	assert_int_equal(chan_reply_reserve(&b->chans[rank], n, mono_now() + 5 * NS_PER_S, &at), 0);
	memcpy(at, bytes, n);
	chan_reply_commit(&b->chans[rank], n);
}

static void push_result(struct bench *b, uint64_t step, const struct msg_token *tokens, uint32_t n)
{
	static _Alignas(8) uint8_t buf[4096];
	const struct msg_result counts = {.ntoken = n};
	struct msg_result_view view;
	int64_t bytes = msg_result_layout(buf, sizeof(buf), &counts, step, &view);

	assert_true(bytes > 0);
	memcpy((void *)view.tokens, tokens, n * sizeof(*tokens));
	push_reply(b, 0, buf, (size_t)bytes);
}

static int take_result(void *user, const struct msg_result_view *view, struct errbuf *err)
{
	struct bench *b = user;

	return sched_result(&b->s, view, err);
}

static int receive(struct bench *b, struct errbuf *err)
{
	const struct link_ops ops = {take_result, b};

	return link_receive(&b->link, &ops, err);
}

static void test_step_reaches_every_worker_as_planned(void **state)
{
	static const uint32_t stops[] = {7, 9};
	static const struct msg_bias bias[] = {{5, 1.5f}, {6, -2.0f}, {8, 100.0f}};
	struct bench *b = *state;
	struct sched_seq plain = {.max_tokens = 3}, rich = {.max_tokens = 5,
							    .min_tokens = 2,
							    .stops = stops,
							    .stop_n = 2,
							    .bias = bias,
							    .bias_n = 3,
							    .prompt_logprobs = true,
							    .sampling = {.seed = 42, .top_k = 3}};
	const struct sched_plan *plan;
	uint32_t rank;

	submit(b, &plain, 10);
	submit(b, &rich, 70);
	plan = send(b);
	for (rank = 0; rank < WORLD; rank++) {
		struct msg_step_view v = read_step(b, rank);
		const struct msg_sample *s = &v.samples[v.seqs[1].sample];

		assert_int_equal(v.hdr->step, plan->step);
		assert_int_equal(v.step->nseq, 2);
		assert_int_equal(v.seqs[0].flags, SEQ_FIRST | SEQ_SAMPLE);
		assert_int_equal(v.seqs[0].n, 10);
		assert_int_equal(v.tokens[v.seqs[0].token_off + 9], 109);
		assert_int_equal(v.seqs[0].page_n[PAGE_RAW], 1);
		assert_int_equal(v.seqs[1].flags, SEQ_FIRST | SEQ_SAMPLE | SEQ_PROMPT_LOGPROBS);
		assert_int_equal(v.seqs[1].page_n[PAGE_RAW], 2);
		assert_int_equal(v.seqs[1].page_off, 3); /* behind one page of each class */
		assert_memory_equal(v.pages, plan->pages, plan->page_n * sizeof(uint32_t));
		assert_int_equal(s->seed, 42);
		assert_int_equal(s->top_k, 3);
		assert_int_equal(s->prompt_len, 70);
		assert_int_equal(s->banned_n, 2);
		assert_memory_equal(v.tokens + s->banned_off, stops, sizeof(stops));
		assert_int_equal(s->bias_n, 3);
		assert_memory_equal(v.biases + s->bias_off, bias, sizeof(bias));
		chan_step_done(&b->chans[rank]);
	}
	drop(b, &plain);
	drop(b, &rich);
}

static void test_result_comes_back_to_its_sequence(void **state)
{
	struct bench *b = *state;
	struct sched_seq q = {.max_tokens = 1};
	struct msg_token token = {.token = 77, .pos = 10};
	struct errbuf err = {{0}, 0};

	submit(b, &q, 10);
	assert_true(link_sleep(&b->link));
	send(b);
	token.slot = read_step(b, 0).seqs[0].slot;
	push_result(b, 1, &token, 1);
	assert_false(link_sleep(&b->link)); /* it is there already */
	link_wake(&b->link);
	assert_int_equal(receive(b, &err), 0);
	assert_int_equal(b->received, 1);
	assert_int_equal(b->last_token, 77);
	assert_int_equal(b->finished, 1);
	assert_true(sched_idle(&b->s));
	drop(b, &q);
}

static void expect_broken(struct bench *b, int error, const char *why)
{
	struct errbuf err = {{0}, 0};

	assert_int_equal(receive(b, &err), error);
	if (!strstr(err.text, why))
		fail_msg("\"%s\" does not say \"%s\"", err.text, why);
	assert_int_equal(b->received, 0);
}

static void test_reply_that_is_no_message_is_refused(void **state)
{
	struct bench *b = *state;
	struct sched_seq q = {.max_tokens = 1};
	uint8_t junk[100];

	submit(b, &q, 10);
	send(b);
	memset(junk, 0x5a, sizeof(junk));
	push_reply(b, 0, junk, sizeof(junk));
	expect_broken(b, -EBADMSG, "worker 0 sent what it should not");
	drop(b, &q);
}

static void test_result_of_another_step_is_refused(void **state)
{
	struct bench *b = *state;
	struct sched_seq q = {.max_tokens = 1};
	struct msg_token token = {.token = 77, .pos = 10};

	submit(b, &q, 10);
	send(b);
	push_result(b, 2, &token, 1);
	expect_broken(b, -EBADMSG, "result of step 2, expected that of step 1");
	drop(b, &q);
}

static void test_result_nobody_asked_for_is_refused(void **state)
{
	struct bench *b = *state;
	struct msg_token token = {.token = 77, .pos = 10};

	push_result(b, 1, &token, 1);
	expect_broken(b, -EBADMSG, "result of step 1");
}

static void test_result_of_a_higher_rank_is_refused(void **state)
{
	struct bench *b = *state;
	_Alignas(8) uint8_t buf[256];
	const struct msg_result counts = {0};
	struct msg_result_view view;
	int64_t bytes = msg_result_layout(buf, sizeof(buf), &counts, 1, &view);

	push_reply(b, 1, buf, (size_t)bytes);
	expect_broken(b, -EBADMSG, "worker 1 sent what it should not: a message RESULT");
}

static void test_failed_step_is_told_in_the_workers_words(void **state)
{
	struct bench *b = *state;
	_Alignas(8) uint8_t buf[512];
	int64_t bytes = msg_failed_build(buf, sizeof(buf), 3, ENOMEM, "no pages for the queen");

	push_reply(b, 1, buf, (size_t)bytes);
	expect_broken(b, -ECOMM, "worker 1 could not run a step: no pages for the queen");
}

/* Mutated results: refused or harmless, never a crash or a token out of range. */
static void test_random_damage_is_refused_or_harmless(void **state)
{
	struct bench *b = *state;
	struct sim_rng r = {sim_seed(__func__) | 1};
	struct sched_seq q = {.max_tokens = 100000};
	_Alignas(8) uint8_t buf[512];
	uint32_t i, k, refused = 0;

	b->may_fail = true;
	submit(b, &q, 10);
	for (i = 0; i < 20000; i++) {
		const struct msg_result counts = {.ntoken = 1};
		const struct sched_plan *plan = sched_oldest(&b->s);
		struct msg_result_view view;
		struct errbuf err;
		int64_t bytes;

		if (q.state == SCHED_IDLE) {
			q.generated = q.fed = q.done = 0;
			assert_int_equal(sched_submit(&b->s, &q, NS_PER_S, &err), 0);
		}
		if (!plan)
			plan = sched_plan(&b->s, NS_PER_S);
		bytes = msg_result_layout(buf, sizeof(buf), &counts, plan->step, &view);
		*(struct msg_token *)view.tokens = (struct msg_token){
			.pos = plan->entries[0].pos + plan->entries[0].n, .token = 5};
		for (k = sim_rand(&r, 3); k > 0; k--)
			buf[sim_rand(&r, (uint32_t)bytes)] = (uint8_t)sim_rand(&r, 256);
		push_reply(b, 0, buf, (size_t)bytes);
		b->last_token = 0;
		if (receive(b, &err) < 0)
			refused++;
		assert_true(b->last_token < 1000);
	}
	assert_true(refused > 1000 && refused < 19000);
	drop(b, &q);
}

static void test_full_ring_waits_for_the_slowest_worker(void **state)
{
	struct bench *b = *state;
	struct sched_seq q = {.max_tokens = 50000};
	struct errbuf err = {{0}, 0};
	uint32_t sent = 0;

	submit(b, &q, 10);
	while (link_room(&b->link, &err) == 0) {
		const struct sched_plan *plan = sched_plan(&b->s, NS_PER_S);
		struct msg_token token;

		link_send(&b->link, plan);
		token = (struct msg_token){.slot = plan->entries[0].slot,
			.token = 1,
			.pos = plan->entries[0].pos + plan->entries[0].n};
		(void)read_step(b, 0); /* rank 0 keeps up, rank 1 does not read at all */
		chan_step_done(&b->chans[0]);
		push_result(b, plan->step, &token, 1);
		assert_int_equal(receive(b, &err), 0);
		assert_true(++sent < 10000);
	}
	assert_true(sent > 10);
	assert_int_equal(link_room(&b->link, &err), -EAGAIN);
	assert_true(link_sleep(&b->link)); /* there is nothing to do but wait for room */
	for (; sent > 0; sent--) {
		(void)read_step(b, 1);
		chan_step_done(&b->chans[1]);
	}
	assert_false(link_sleep(&b->link));
	assert_int_equal(link_room(&b->link, &err), 0);
	drop(b, &q);
}

static void test_impossible_tail_loses_the_group(void **state)
{
	struct bench *b = *state;
	struct sched_seq q = {.max_tokens = 50000};
	struct errbuf err = {{0}, 0};
	int r;

	/* a worker that claims to have read what was never written */
	atomic_store(&b->workers[1].workers[1].step_tail->pos, 1ull << 40);
	submit(b, &q, 10);
	while ((r = link_room(&b->link, &err)) == 0) {
		const struct sched_plan *plan = sched_plan(&b->s, NS_PER_S);

		if (!plan) {
			struct msg_token token = {.token = 1};

			plan = sched_oldest(&b->s);
			token.slot = plan->entries[0].slot;
			token.pos = plan->entries[0].pos + plan->entries[0].n;
			push_result(b, plan->step, &token, 1);
			assert_int_equal(receive(b, &err), 0);
			continue;
		}
		link_send(&b->link, plan);
		(void)read_step(b, 0);
		chan_step_done(&b->chans[0]);
	}
	assert_int_equal(r, -EBADMSG);
	assert_non_null(strstr(err.text, "impossible"));
	drop(b, &q);
}

static void test_stop_reaches_every_worker(void **state)
{
	struct bench *b = *state;
	const void *msg;
	size_t bytes;
	uint32_t rank;

	assert_int_equal(link_stop(&b->link), 0);
	for (rank = 0; rank < WORLD; rank++) {
		assert_int_equal(
			chan_step_next(&b->chans[rank], mono_now() + 5 * NS_PER_S, &msg, &bytes),
			0);
		assert_int_equal(msg_hdr_parse(msg, bytes, NULL), MSG_STOP);
	}
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_step_reaches_every_worker_as_planned),
		CASE(test_result_comes_back_to_its_sequence),
		CASE(test_reply_that_is_no_message_is_refused),
		CASE(test_result_of_another_step_is_refused),
		CASE(test_result_nobody_asked_for_is_refused),
		CASE(test_result_of_a_higher_rank_is_refused),
		CASE(test_failed_step_is_told_in_the_workers_words),
		CASE(test_random_damage_is_refused_or_harmless),
		CASE(test_full_ring_waits_for_the_slowest_worker),
		CASE(test_impossible_tail_loses_the_group),
		CASE(test_stop_reaches_every_worker),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
