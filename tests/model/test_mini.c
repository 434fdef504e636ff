/*
 * The bundled model against its golden.json (made by another implementation in fp32 on the
 * dequantised weights): the same greedy tokens, the first token's log-probabilities within 2e-3,
 * with f32 caches. HEDDLE_TEST_FULL=1 runs all prompts, up to 7,970 tokens.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <jansson.h>

#include "tests/model/harness.h"

struct prompt {
	uint32_t *ids;
	size_t n;
};

static json_t *load_golden(void)
{
	const char *src = getenv("HEDDLE_SRCDIR");
	json_error_t e;
	char path[4096];
	json_t *j;

	snprintf(path, sizeof(path), "%s/models/heddle-mini/golden.json", src ? src : ".");
	j = json_load_file(path, 0, &e);
	if (!j)
		fail_msg("%s: %s", path, e.text);
	return j;
}

static struct prompt prompt_of(const json_t *item)
{
	const json_t *ids = json_object_get(item, "prompt_ids");
	struct prompt p = {.n = json_array_size(ids)};

	p.ids = malloc(p.n * sizeof(*p.ids));
	assert_non_null(p.ids);
	for (size_t i = 0; i < p.n; i++)
		p.ids[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
	return p;
}

/* The most probable first tokens, as the golden lists them. */
static void compare_first(size_t nth, const json_t *item, const struct harness_part *p)
{
	const json_t *top = json_object_get(item, "first_token_top5_logprobs");

	assert_int_equal(p->sampled.alt_n, json_array_size(top));
	for (size_t i = 0; i < json_array_size(top); i++) {
		const json_t *pair = json_array_get(top, i);
		json_int_t token = json_integer_value(json_array_get(pair, 0));
		double want = json_number_value(json_array_get(pair, 1));

		if (p->alts[i].token != token || !(fabs((double)p->alts[i].logprob - want) <= 2e-3))
			fail_msg("prompt %zu: alternative %zu is %u with %.6f, golden %lld with "
				 "%.6f",
				nth, i, p->alts[i].token, (double)p->alts[i].logprob,
				(long long)token, want);
	}
}

static void compare_greedy(struct harness *h, size_t nth, const json_t *greedy, uint32_t first)
{
	struct harness_part p = {.sampled.token = first};

	for (size_t i = 0; i < json_array_size(greedy); i++) {
		json_int_t want = json_integer_value(json_array_get(greedy, i));

		if (i > 0) {
			p = (struct harness_part){.n = 1, .prev = true, .sample = true};
			harness_run(h, &p, 1);
		}
		if (p.sampled.token != want)
			fail_msg("prompt %zu: greedy token %zu is %u, golden %lld", nth, i,
				p.sampled.token, (long long)want);
	}
}

static void run_prompt(struct harness *h, size_t nth, const json_t *item, uint32_t chunk)
{
	const struct msg_sample greedy = {.top_p = 1, .repetition_penalty = 1, .logprobs = 5};
	struct prompt p = prompt_of(item);
	uint32_t last_n = (uint32_t)((p.n - 1) % chunk + 1);
	struct harness_part last = {
		.tokens = p.ids + p.n - last_n, .n = last_n, .sample = true, .sampling = &greedy};

	harness_feed(h, 0, p.ids, p.n - last_n, chunk, NULL);
	harness_run(h, &last, 1);
	compare_first(nth, item, &last);
	compare_greedy(h, nth, json_object_get(item, "greedy_ids"), last.sampled.token);
	harness_drop(h, 0);
	free(p.ids);
}

/* Golden prompts of at most `longest` tokens. */
static void run_golden(uint32_t world, size_t longest, uint32_t chunk)
{
	struct harness *h = harness_open(&(struct harness_opts){.world = world, .threads = 1});
	json_t *golden = load_golden();
	const json_t *item;
	size_t nth, ran = 0;

	json_array_foreach (golden, nth, item) {
		if (json_array_size(json_object_get(item, "prompt_ids")) > longest)
			continue;
		run_prompt(h, nth, item, chunk);
		ran++;
	}
	assert_true(ran > 0);
	json_decref(golden);
	harness_close(h);
}

/* Longest prompt to run; HEDDLE_TEST_SUBSET (sanitizers) takes the short ones only. */
static size_t longest(size_t core)
{
	return getenv("HEDDLE_TEST_FULL") ? SIZE_MAX : getenv("HEDDLE_TEST_SUBSET") ? 20 : core;
}

static void test_golden_one_rank_agrees(void **state)
{
	(void)state;
	run_golden(1, longest(2000), 512);
}

static void test_golden_two_ranks_agree(void **state)
{
	(void)state;
	run_golden(2, longest(200), 100);
}

static void test_golden_four_ranks_agree(void **state)
{
	(void)state;
	run_golden(4, longest(144), 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden_one_rank_agrees),
		cmocka_unit_test(test_golden_two_ranks_agree),
		cmocka_unit_test(test_golden_four_ranks_agree),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
