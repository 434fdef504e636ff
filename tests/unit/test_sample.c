/* worker/sample.c against distributions worked out here by sorting, and against known Philox
 * outputs. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "worker/sample.h"

#define VOCAB 50

static const struct msg_sample plain = {
	.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 7};

static uint32_t pick(const float *logits, uint32_t vocab, const struct sample_params *p)
{
	struct sampler s;
	uint32_t token;

	assert_int_equal(sampler_open(vocab, &s), 0);
	token = sample_token(&s, logits, p);
	for (uint32_t v = 0; v < vocab; v++) {
		assert_int_equal(s.count[v], 0);
		assert_int_equal(s.fresh[v], 0);
	}
	sampler_close(&s);
	return token;
}

/* Distinct logits in a scrambled order: token (i * 7) % VOCAB is the i-th most probable. */
static void scrambled(float logits[VOCAB])
{
	for (uint32_t i = 0; i < VOCAB; i++)
		logits[i * 7 % VOCAB] = 3.0f - 0.2f * (float)i;
}

/* ---- random numbers ------------------------------------------------------------------------- */

/* Of the known-answer file of the Random123 distribution (philox 4x32, 10 rounds). */
static void test_philox_known_answers_match(void **state)
{
	static const struct {
		uint32_t counter[4], key[2], want[4];
	} rows[] = {
		{{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff},
			{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0},
			{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	};
	uint32_t out[4];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		sample_philox(rows[i].counter, rows[i].key, out);
		assert_memory_equal(out, rows[i].want, sizeof(out));
	}
}

static void test_random_depends_on_seed_choice_and_position(void **state)
{
	double base = sample_random(1, 0, 100);

	(void)state;
	assert_true(base >= 0 && base < 1);
	assert_true(base == sample_random(1, 0, 100));
	assert_true(base != sample_random(2, 0, 100));
	assert_true(base != sample_random(1ull << 32 | 1, 0, 100));
	assert_true(base != sample_random(1, 1, 100));
	assert_true(base != sample_random(1, 0, 101));
	assert_true(base != sample_random(1, 0, 100 + (1ull << 32)));
}

/* ---- greedy --------------------------------------------------------------------------------- */

static void test_greedy_ties_take_lowest_id(void **state)
{
	float logits[VOCAB] = {0};
	struct msg_sample m = plain;
	struct sample_params p = {.sample = &m};

	(void)state;
	m.temperature = 0;
	logits[9] = logits[31] = logits[12] = 4;
	assert_int_equal(pick(logits, VOCAB, &p), 9);
	memset(logits, 0, sizeof(logits));
	assert_int_equal(pick(logits, VOCAB, &p), 0);
	assert_int_equal(pick(logits, 1, &p), 0);
}

static void test_nan_and_infinity_are_never_chosen(void **state)
{
	float logits[VOCAB];
	struct msg_sample m = plain;
	struct sample_params p = {.sample = &m};

	(void)state;
	for (int greedy = 0; greedy < 2; greedy++) {
		m.temperature = greedy ? 0 : 1;
		for (uint32_t v = 0; v < VOCAB; v++)
			logits[v] = v % 3 == 0 ? NAN : v % 3 == 1 ? INFINITY : -INFINITY;
		assert_int_equal(pick(logits, VOCAB, &p), 0);
		logits[17] = -90;
		assert_int_equal(pick(logits, VOCAB, &p), 17);
	}
}

static void test_bias_and_bans_act(void **state)
{
	static const struct msg_bias bias[] = {{3, 100}, {8, 99}};
	static const uint32_t banned[] = {3, 8};
	float logits[VOCAB] = {[20] = 5, [21] = 4};
	struct msg_sample m = plain;
	struct sample_params p = {.sample = &m, .bias = bias, .banned = banned};

	(void)state;
	m.temperature = 0;
	m.bias_n = 2;
	assert_int_equal(pick(logits, VOCAB, &p), 3);
	m.banned_n = 1;
	assert_int_equal(pick(logits, VOCAB, &p), 8);
	m.banned_n = 2;
	assert_int_equal(pick(logits, VOCAB, &p), 20);
}

static void test_all_banned_takes_lowest_that_is_not(void **state)
{
	static const uint32_t banned[] = {0, 1, 2, 3};
	float logits[4] = {1, 2, 3, 4}, more[5] = {1, 2, 3, 4, NAN};
	struct msg_sample m = plain;
	struct sample_params p = {.sample = &m, .banned = banned};

	(void)state;
	m.banned_n = 4;
	assert_int_equal(pick(logits, 4, &p), 0);
	assert_int_equal(pick(more, 5, &p), 4);
}

static void test_penalties_count_what_they_should(void **state)
{
	static const uint32_t history[] = {5, 5, 6, 7, 7, 7, 8};
	float logits[VOCAB] = {[5] = 2.0f, [6] = 1.9f, [7] = 2.5f, [8] = 2.4f, [9] = 1.0f};
	struct msg_sample m = plain;
	struct sample_params p = {.sample = &m, .history = history, .history_n = 7};

	(void)state;
	m.temperature = 0;
	m.prompt_len = 3;
	assert_int_equal(pick(logits, VOCAB, &p), 7);
	/* generated: 7 three times, 8 once. 7: 2.5-0.6=1.9, 8: 2.4-0.2=2.2 */
	m.frequency_penalty = 0.2f;
	assert_int_equal(pick(logits, VOCAB, &p), 8);
	/* 8: 2.4-0.5-0.2=1.7, 5 is prompt: 2.0 */
	m.presence_penalty = 0.5f;
	assert_int_equal(pick(logits, VOCAB, &p), 5);
	/* repetition reaches the prompt too: 5: 1.0, 6: 0.95, 8: 1.2-0.7, 9 untouched: 1.0.
	 * A tie of 5 and 9 goes to 5. */
	m.repetition_penalty = 2;
	assert_int_equal(pick(logits, VOCAB, &p), 5);
	logits[9] = 1.0001f;
	assert_int_equal(pick(logits, VOCAB, &p), 9);
	/* a negative logit is pushed down, not up */
	for (uint32_t v = 0; v < VOCAB; v++)
		logits[v] = -1;
	m.frequency_penalty = m.presence_penalty = 0;
	for (uint32_t v = 0; v < 5; v++)
		logits[v] = -1.5f;
	assert_int_equal(pick(logits, VOCAB, &p), 9);
}

/* ---- truncation ----------------------------------------------------------------------------- */

/* Draws at many positions: which tokens ever come, and how often. */
static void draw_many(
	const float *logits, const struct msg_sample *m, uint32_t n, uint32_t seen[VOCAB])
{
	static uint32_t history[100000];
	struct sampler s;

	assert_true(n <= ARRAY_LEN(history));
	memset(seen, 0, VOCAB * sizeof(*seen));
	assert_int_equal(sampler_open(VOCAB, &s), 0);
	for (uint32_t i = 0; i < n; i++) {
		const struct sample_params p = {.sample = m, .history = history, .history_n = i};

		seen[sample_token(&s, logits, &p)]++;
	}
	sampler_close(&s);
}

/* Tokens 0..kept-1 of the scrambled order are seen, and no others. */
static void assert_kept(const struct msg_sample *m, uint32_t kept)
{
	float logits[VOCAB];
	uint32_t seen[VOCAB];

	scrambled(logits);
	draw_many(logits, m, 30000, seen);
	for (uint32_t i = 0; i < VOCAB; i++) {
		bool may = i < kept;

		if ((seen[i * 7 % VOCAB] > 0) != may)
			fail_msg("rank %u of %u kept: seen %u times", i, kept, seen[i * 7 % VOCAB]);
	}
}

static uint32_t top_p_keeps(double top_p, double temperature, uint32_t among)
{
	double total = 0, mass = 0;
	uint32_t n = 0;

	for (uint32_t i = 0; i < among; i++)
		total += exp(-0.2 * i / temperature);
	while (n < among && mass < top_p * total)
		mass += exp(-0.2 * n++ / temperature);
	return n ? n : 1;
}

static void test_truncations_keep_what_they_should(void **state)
{
	struct msg_sample m = plain;

	(void)state;
	m.top_k = 1;
	assert_kept(&m, 1);
	m.top_k = 10;
	assert_kept(&m, 10);
	m.top_k = 0;
	m.top_p = 0;
	assert_kept(&m, 1);
	m.top_p = 0.7f;
	assert_kept(&m, top_p_keeps(0.7, 1, VOCAB));
	m.temperature = 0.5f;
	assert_kept(&m, top_p_keeps(0.7, 0.5, VOCAB));
	m.temperature = 1;
	m.top_k = 8;
	assert_kept(&m, top_p_keeps(0.7, 1, 8));
	m.top_p = 1;
	m.top_k = 0;
	m.min_p = 0.3f; /* exp(-0.2 i) >= 0.3: i <= 6 */
	assert_kept(&m, 7);
	m.temperature = 2; /* exp(-0.1 i) >= 0.3: i <= 12 */
	assert_kept(&m, 13);
}

static void test_top_k_ties_keep_lowest_ids(void **state)
{
	float logits[VOCAB] = {0};
	struct msg_sample m = plain;
	uint32_t seen[VOCAB];

	(void)state;
	m.top_k = 5;
	logits[30] = 1;
	draw_many(logits, &m, 5000, seen);
	for (uint32_t v = 0; v < VOCAB; v++)
		assert_int_equal(seen[v] > 0, v < 4 || v == 30);
}

static void test_frequencies_follow_the_softmax(void **state)
{
	const uint32_t n = 100000;
	float logits[VOCAB];
	struct msg_sample m = plain;
	uint32_t seen[VOCAB];
	double total = 0;

	(void)state;
	m.temperature = 1.5f;
	for (uint32_t truncated = 0; truncated < 2; truncated++) {
		m.top_k = truncated ? VOCAB - 1 : 0;
		scrambled(logits);
		draw_many(logits, &m, n, seen);
		total = 0;
		for (uint32_t i = 0; i < VOCAB - truncated; i++)
			total += exp(-0.2 * i / 1.5);
		for (uint32_t i = 0; i < VOCAB - truncated; i++) {
			double p = exp(-0.2 * i / 1.5) / total, sd = sqrt(p * (1 - p) / n);
			double got = (double)seen[i * 7 % VOCAB] / n;

			/* fixed seed: either always true or never */
			if (fabs(got - p) > 4.5 * sd)
				fail_msg("rank %u: frequency %g, probability %g", i, got, p);
		}
	}
}

static void test_check_names_what_is_out_of_range(void **state)
{
	struct msg_sample m = plain;
	struct errbuf err;

	(void)state;
	assert_int_equal(sample_check(&m, &err), 0);
	m.temperature = NAN;
	assert_int_equal(sample_check(&m, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "temperature"));
	m = plain;
	m.top_p = 1.5f;
	assert_int_equal(sample_check(&m, &err), -EBADMSG);
	m = plain;
	m.repetition_penalty = 0;
	assert_int_equal(sample_check(&m, &err), -EBADMSG);
	m = plain;
	m.logprobs = MSG_LOGPROBS_MAX + 1;
	assert_int_equal(sample_check(&m, &err), -EBADMSG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_philox_known_answers_match),
		cmocka_unit_test(test_random_depends_on_seed_choice_and_position),
		cmocka_unit_test(test_greedy_ties_take_lowest_id),
		cmocka_unit_test(test_nan_and_infinity_are_never_chosen),
		cmocka_unit_test(test_bias_and_bans_act),
		cmocka_unit_test(test_all_banned_takes_lowest_that_is_not),
		cmocka_unit_test(test_penalties_count_what_they_should),
		cmocka_unit_test(test_truncations_keep_what_they_should),
		cmocka_unit_test(test_top_k_ties_keep_lowest_ids),
		cmocka_unit_test(test_frequencies_follow_the_softmax),
		cmocka_unit_test(test_check_names_what_is_out_of_range),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
