/*
 * One step's message in, one result out: what is reported, in which order, with which numbers; and
 * that a step the rank cannot run is refused with a sentence and changes nothing.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/model/tiny.h"
#include "tests/model/harness_impl.h"
#include "worker/scratch.h"

#define LENGTH 140

struct fixture {
	struct tiny tiny;
	uint32_t ids[2][LENGTH];
};

static struct harness *open_tiny(const struct fixture *f, uint32_t world)
{
	struct conf conf = tiny_conf();

	return harness_open(&(struct harness_opts){
		.dir = f->tiny.dir, .conf = &conf, .world = world, .page_seed = 4});
}

static struct msg_sample greedy(uint32_t logprobs, uint32_t prompt_logprobs)
{
	return (struct msg_sample){.top_p = 1,
		.repetition_penalty = 1,
		.logprobs = logprobs,
		.prompt_logprobs = prompt_logprobs};
}

/* ---- reports -------------------------------------------------------------------------------- */

static uint32_t rank_of(const float *logits, uint32_t vocab, uint32_t token)
{
	uint32_t rank = 1;

	for (uint32_t v = 0; v < vocab; v++)
		rank += logits[v] > logits[token] || (logits[v] == logits[token] && v < token);
	return rank;
}

static void assert_report(const struct msg_token *t, const struct msg_alt *alts,
	const float *logits, uint32_t vocab, uint32_t want_alts)
{
	assert_true(fabs((double)t->logprob - harness_logprob(logits, vocab, t->token)) < 1e-4);
	assert_int_equal(t->rank, rank_of(logits, vocab, t->token));
	assert_int_equal(t->alt_n, want_alts);
	for (uint32_t i = 0; i < want_alts; i++) {
		assert_int_equal(rank_of(logits, vocab, alts[i].token), i + 1);
		assert_true(fabs((double)alts[i].logprob -
				    harness_logprob(logits, vocab, alts[i].token)) < 1e-4);
	}
}

/* A prompt in parts with prompt log-probabilities: every position but 0 reported once, right, and
 * the sampled token at the end. */
static void run_prompt_reports(const struct fixture *f, uint32_t world, uint32_t chunk)
{
	struct harness *h = open_tiny(f, world);
	struct harness_out *want = harness_out_new(h, HARNESS_LOGITS);
	struct msg_sample s = greedy(3, 2);
	uint64_t next = 1;

	harness_feed(h, 0, f->ids[0], LENGTH, 0, want);
	for (uint32_t at = 0; at < LENGTH; at += chunk) {
		struct harness_part p = {.slot = 3,
			.tokens = f->ids[0] + at,
			.n = MIN(chunk, LENGTH - at),
			.prompt_logprobs = true,
			.sampling = &s};

		p.sample = at + p.n == LENGTH;
		harness_run(h, &p, 1);
		for (uint32_t i = 0; i < p.prompt_token_n; i++, next++) {
			const struct msg_token *t = &p.prompt_tokens[i];

			assert_int_equal(t->pos, next);
			assert_int_equal(t->token, f->ids[0][next]);
			assert_report(t, p.all_alts + t->alt_off,
				want->logits + (next - 1) * want->vocab, want->vocab, 2);
		}
		if (!p.sample)
			continue;
		assert_int_equal(p.sampled.pos, LENGTH);
		assert_int_equal(p.sampled.rank, 1);
		assert_report(&p.sampled, p.alts, want->last_logits, want->vocab, 3);
	}
	assert_int_equal(next, LENGTH);
	harness_out_free(want);
	harness_close(h);
}

static void test_prompt_tokens_are_reported_in_any_chunks(void **state)
{
	run_prompt_reports(*state, 1, 1);
	run_prompt_reports(*state, 1, 63);
	run_prompt_reports(*state, 1, 70);
	run_prompt_reports(*state, 1, LENGTH);
	run_prompt_reports(*state, 2, 65);
}

/* Two sequences sample in one step; each gets what it would get alone. */
static void test_samples_of_a_batch_are_those_of_each_alone(void **state)
{
	const struct fixture *f = *state;
	struct harness *h = open_tiny(f, 2);
	struct msg_sample s[2] = {greedy(0, 0), greedy(0, 0)};
	uint32_t alone[2][10];

	for (uint32_t i = 0; i < 2; i++) {
		s[i].temperature = 1.3f;
		s[i].top_k = 40;
		s[i].seed = 11 + i;
		s[i].prompt_len = 50;
	}
	for (uint32_t i = 0; i < 2; i++)
		for (uint32_t t = 0; t < 10; t++) {
			struct harness_part p = {.slot = i,
				.tokens = f->ids[i],
				.n = t ? 1 : 50 + i,
				.prev = t > 0,
				.sample = true,
				.sampling = &s[i]};

			harness_run(h, &p, 1);
			alone[i][t] = p.sampled.token;
		}
	for (uint32_t t = 0; t < 10; t++) {
		struct harness_part p[2];

		for (uint32_t i = 0; i < 2; i++)
			p[i] = (struct harness_part){.slot = 5 - i,
				.tokens = f->ids[i],
				.n = t ? 1 : 50 + i,
				.prev = t > 0,
				.sample = true,
				.sampling = &s[i]};
		harness_run(h, p, 2);
		for (uint32_t i = 0; i < 2; i++)
			assert_int_equal(p[i].sampled.token, alone[i][t]);
	}
	harness_close(h);
}

/* Penalties see the history: a sequence that repeats itself stops doing so. */
static void test_penalties_reach_the_history(void **state)
{
	const struct fixture *f = *state;
	struct harness *h = open_tiny(f, 1);
	struct msg_sample s = greedy(0, 0);
	bool seen[512] = {false};

	s.prompt_len = 20;
	s.presence_penalty = 1e5f;
	for (uint32_t t = 0; t < 60; t++) {
		struct harness_part p = {.tokens = f->ids[0],
			.n = t ? 1 : 20,
			.prev = t > 0,
			.sample = true,
			.sampling = &s};

		harness_run(h, &p, 1);
		assert_true(p.sampled.token < f->tiny.vocab);
		assert_false(seen[p.sampled.token]);
		seen[p.sampled.token] = true;
	}
	harness_close(h);
}

/* ---- refusals ------------------------------------------------------------------------------- */

/* A step of one sequence, made by hand. */
struct hand {
	struct msg_hdr hdr;
	struct msg_step step;
	struct msg_seq seq[2];
	struct msg_sample sample;
	struct msg_bias bias;
	uint32_t tokens[800], pages[64];
};

static struct msg_step_view view_of(const struct hand *m)
{
	return (struct msg_step_view){
		&m->hdr, &m->step, m->seq, &m->sample, &m->bias, m->tokens, m->pages};
}

/* A good step of n tokens for an empty slot 6. */
static struct hand good_step(uint32_t n)
{
	struct hand m = {.hdr = {.type = MSG_STEP, .step = 9},
		.step = {.nseq = 1, .nsample = 1, .nbias = 1, .ntoken = 800, .npage = 64},
		.seq[0] = {.slot = 6, .flags = SEQ_FIRST | SEQ_SAMPLE, .n = n},
		.sample = greedy(0, 0)};

	m.seq[0].page_n[PAGE_RAW] = DIV_UP(n, 64);
	m.seq[0].page_n[PAGE_CSA] = DIV_UP(n, 256);
	m.seq[0].page_n[PAGE_HCA] = 1;
	for (uint32_t i = 0; i < 64; i++)
		m.pages[i] = i % 8;
	return m;
}

static void assert_refused(struct harness *h, const struct hand *m, const char *word)
{
	const struct msg_step_view view = view_of(m);
	struct errbuf err = {0};

	assert_int_equal(harness_try_step(h, &view, &err), -EBADMSG);
	if (!strstr(err.text, word))
		fail_msg("refused for another reason than \"%s\": %s", word, err.text);
}

#define REFUSED(change, word)                                                                      \
	do {                                                                                       \
		struct hand m = good_step(100);                                                    \
		change;                                                                            \
		assert_refused(h, &m, word);                                                       \
	} while (0)

static void refuse_all(struct harness *h, const struct fixture *f)
{
	REFUSED(m.step.nseq = 0, "0 sequences");
	REFUSED(m.step.nseq = 9, "9 sequences");
	REFUSED(m.seq[0].slot = 8, "no such slot");
	REFUSED(m.seq[0].slot = UINT32_MAX, "no such slot");
	REFUSED(m.seq[0].flags |= 64, "unknown flags");
	REFUSED(m.seq[0].pos = 1, "position");
	REFUSED(m.seq[0].flags = 0, "position");
	REFUSED(m.seq[0].n = 0, "tokens");
	REFUSED(m.seq[0].n = 701, "tokens");
	REFUSED(m.seq[0].n = UINT32_MAX, "tokens");
	REFUSED(m.tokens[99] = f->tiny.vocab, "vocabulary");
	REFUSED(m.seq[0].flags |= SEQ_PREV, "previously sampled");
	REFUSED(m.pages[1] = 1 << 30, "page");
	REFUSED(m.seq[0].page_n[PAGE_RAW] = 1, "raw pages end");
	REFUSED(m.seq[0].page_n[PAGE_CSA] = 0, "csa pages");
	REFUSED(m.seq[0].page_n[PAGE_HCA] = 0, "hca pages");
	REFUSED(m.seq[0].page_n[PAGE_HCA] = 20, "hca pages");
	REFUSED(m.seq[0].page_n[PAGE_RAW] = 50, "raw pages");
	REFUSED(m.seq[0].raw_release = 1, "released");
	REFUSED(m.sample.temperature = -1, "temperature");
	REFUSED(m.sample.logprobs = 21, "alternatives");
	REFUSED((m.sample.bias_n = 1, m.bias.token = f->tiny.vocab), "logit_bias");
	REFUSED((m.sample.bias_n = 1, m.bias.bias = NAN), "logit_bias");
	REFUSED((m.sample.banned_n = 1, m.tokens[0] = 3, m.sample.banned_off = 500,
			m.tokens[500] = UINT32_MAX),
		"banned");
	REFUSED((m.step.nseq = 2, m.seq[1] = m.seq[0]), "occurs twice");
	REFUSED((m.step.nseq = 2, m.seq[0].n = m.seq[1].n = 100, m.seq[1] = m.seq[0],
			m.seq[1].slot = 5, m.seq[1].n = 650, m.seq[1].page_n[PAGE_RAW] = 11,
			m.seq[1].page_n[PAGE_CSA] = 3),
		"at most 700");
	/* slot 2 holds 70 tokens, without a sample and without prompt log-probabilities */
	REFUSED((m.seq[0].slot = 2, m.seq[0].flags = SEQ_PROMPT_LOGPROBS, m.seq[0].pos = 70),
		"from the start");
	REFUSED((m.seq[0].slot = 2, m.seq[0].flags = SEQ_PREV, m.seq[0].pos = 70, m.seq[0].n = 1),
		"previously sampled");
	REFUSED((m.seq[0].slot = 2, m.seq[0].flags = 0, m.seq[0].pos = 71), "position");
	REFUSED((m.seq[0].slot = 2, m.seq[0].flags = 0, m.seq[0].pos = 70,
			m.seq[0].raw_release = 1),
		"released");
}

static void test_bad_steps_are_refused_and_change_nothing(void **state)
{
	const struct fixture *f = *state;
	struct harness *h = open_tiny(f, 1);
	struct harness_out *want = harness_out_new(h, HARNESS_LOGITS);
	struct harness_out *got = harness_out_new(h, HARNESS_LOGITS);
	struct hand good = good_step(100);
	const struct msg_step_view view = view_of(&good);
	size_t bytes, after;
	void *blob, *blob_after;

	harness_feed(h, 1, f->ids[0], LENGTH, 0, want);
	harness_feed(h, 2, f->ids[0], 70, 0, got);
	blob = harness_export(h, 2, &bytes);
	refuse_all(h, f);
	blob_after = harness_export(h, 2, &after);
	assert_int_equal(bytes, after);
	assert_memory_equal(blob, blob_after, bytes);
	harness_feed(h, 2, f->ids[0] + 70, LENGTH - 70, 0, got);
	assert_int_equal(harness_out_differs(want, got), -1);
	/* and the unchanged step runs: it was the changes that were refused */
	harness_drop(h, 1);
	harness_drop(h, 2);
	assert_int_equal(harness_try_step(h, &view, NULL), 0);
	free(blob);
	free(blob_after);
	harness_out_free(want);
	harness_out_free(got);
	harness_close(h);
}

/* A context that is full takes nothing more. */
static void test_context_end_is_exact(void **state)
{
	const struct fixture *f = *state;
	struct conf conf = tiny_conf();
	struct harness_part one = {.tokens = f->ids[0], .n = 1};
	struct harness *h;
	struct errbuf err;

	conf.schedule_max_context = 130;
	h = harness_open(&(struct harness_opts){.dir = f->tiny.dir, .conf = &conf});
	assert_int_equal(harness_capacity(h)->max_context, 130);
	harness_feed(h, 0, f->ids[0], 130, 0, NULL);
	assert_int_equal(harness_try_run(h, &one, 1, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "context"));
	harness_close(h);
}

/* ---- refused openings ----------------------------------------------------------------------- */

static void assert_not_opened(
	const struct fixture *f, const struct conf *conf, uint32_t world, const char *word)
{
	const struct harness_opts o = {.dir = f->tiny.dir, .conf = conf, .world = world};
	struct errbuf err = {0};

	assert_null(harness_try_open(&o, &err));
	assert_int_equal(err.exit_code, EXIT_CONFIG_ERR);
	if (!strstr(err.text, word))
		fail_msg("refused for another reason than \"%s\": %s", word, err.text);
}

static void test_configurations_that_do_not_fit_are_refused_by_name(void **state)
{
	const struct fixture *f = *state;
	struct conf conf = tiny_conf();

	assert_not_opened(f, &conf, 3, "3");
	conf.schedule_max_context = 65537;
	assert_not_opened(f, &conf, 1, "schedule.max_context");
	conf = tiny_conf();
	conf.cache_memory = 1 << 20;
	assert_not_opened(f, &conf, 1, "cache.memory");
	conf = tiny_conf();
	conf.fabric_backend = CONF_BACKEND_CUDA;
	assert_not_opened(f, &conf, 1, "fabric.backend");
	conf = tiny_conf();
	conf.fabric_collective = CONF_COLLECTIVE_NCCL;
	assert_not_opened(f, &conf, 2, "fabric.collective");
}

/* ---- capacity ------------------------------------------------------------------------------- */

/* What is planned from configuration and shape alone is what each rank holds; and it names the
 * kernels that it runs. */
static void test_capacity_is_what_was_planned(void **state)
{
	static const int acts[] = {CONF_ACT_F32, CONF_ACT_FP8};
	const struct fixture *f = *state;
	struct conf conf = tiny_conf();
	struct worker_capacity have;
	char kernels[64];
	struct shape sh;

	for (uint32_t i = 0; i < 6; i++) {
		struct harness_opts o = {.dir = f->tiny.dir,
			.conf = &conf,
			.world = 1u << i % 3,
			.threads = 1 + i / 2};
		struct harness *h;

		conf.attention_act = acts[i / 3];
		conf.schedule_step_tokens = 64 + 300 * i;
		h = harness_open(&o);
		for (uint32_t r = 0; r < o.world; r++) {
			rank_capacity(h->ranks[r], &have);
			snprintf(kernels, sizeof(kernels), "%s kernels", h->ranks[r]->ops.variant);
			assert_int_equal(
				shape_make(&h->ranks[r]->sh.cfg, &conf, r, o.world, &sh, NULL), 0);
			assert_int_equal(scratch_bytes(&sh, o.threads), have.scratch_bytes);
			assert_int_equal(slots_bytes(&sh, have.max_context) / sh.sequences,
				have.bytes_per_seq);
			assert_non_null(strstr(have.numerics, kernels));
		}
		harness_close(h);
	}
}

/* ---- set-up --------------------------------------------------------------------------------- */

static int set_up(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	uint64_t seed = fix_seed();

	assert_non_null(f);
	tiny_make(&f->tiny, false, false);
	for (int i = 0; i < 2; i++)
		tiny_prompt(&f->tiny, &seed, f->ids[i], LENGTH);
	*state = f;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	tiny_remove(&f->tiny);
	free(f);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_prompt_tokens_are_reported_in_any_chunks),
		cmocka_unit_test(test_samples_of_a_batch_are_those_of_each_alone),
		cmocka_unit_test(test_penalties_reach_the_history),
		cmocka_unit_test(test_bad_steps_are_refused_and_change_nothing),
		cmocka_unit_test(test_context_end_is_exact),
		cmocka_unit_test(test_configurations_that_do_not_fit_are_refused_by_name),
		cmocka_unit_test(test_capacity_is_what_was_planned),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
