/*
 * numerics = qat against transformers with DeepSeek's rounding put in (tests/reference/qat.py).
 *
 * Rounding to eight or four bits turns the last bit of an fp32 sum into a whole quantum wherever a
 * value lies at a midpoint, some 2,000 values a token here, so no two implementations agree for
 * long. What can be judged: they agree to fp32's own error until the first such flip, for most
 * prompts some tokens long; and from there on they stay far nearer to each other than rounding and
 * not rounding are. A rounding left out, in the wrong place, group or scale would be as far off as
 * not rounding.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/model/fixture.h"
#include "tests/model/harness.h"

struct sample {
	double *at;
	size_t n, cap;
};

static void push(struct sample *s, double x)
{
	if (s->n == s->cap) {
		s->cap = s->cap ? 2 * s->cap : 1024;
		s->at = realloc(s->at, s->cap * sizeof(*s->at));
		assert_non_null(s->at);
	}
	s->at[s->n++] = isnan(x) ? INFINITY : x;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double quantile(struct sample *s, double q)
{
	assert_true(s->n > 0);
	qsort(s->at, s->n, sizeof(*s->at), ascending);
	return s->at[(size_t)(q * (double)(s->n - 1))];
}

/* Distances to the rounding reference: ours, and that of the reference which does not round. */
struct tally {
	struct sample ours_early, plain_early, ours, plain;
	uint32_t chosen, ours_other, plain_other; /* sets of the indexer, and those that differ */
};

enum { EARLY = 3 }; /* tokens before which few flips have happened */

static void compare_sets(const struct fixture_prompt *want, const struct fixture_prompt *plain,
	const struct harness_out *out, struct tally *t)
{
	const struct harness_choice *c;
	uint32_t s, pos;

	for (s = 0; s < want->site_n; s++) {
		if (want->sites[s].kind != FIXTURE_INDEX)
			continue;
		for (pos = 0; pos < want->length; pos++) {
			if (!want->sites[s].set[pos])
				continue;
			c = &out->choices[(size_t)pos * out->layers + want->sites[s].layer];
			t->chosen++;
			t->ours_other += fixture_fold(c->entries, c->n) != want->sites[s].set[pos];
			t->plain_other += plain->sites[s].set[pos] != want->sites[s].set[pos];
		}
	}
}

static void compare_prompt(const struct fixture_prompt *want, const struct fixture_prompt *plain,
	const struct harness_out *out, struct tally *t)
{
	double ours, not_rounding;
	uint32_t i;

	for (i = 0; i + 1 < want->length; i++) {
		ours = fabs((double)out->next_logprob[i] - (double)want->next[i]);
		not_rounding = fabs((double)plain->next[i] - (double)want->next[i]);
		push(&t->ours, ours);
		push(&t->plain, not_rounding);
		if (i < EARLY) {
			push(&t->ours_early, ours);
			push(&t->plain_early, not_rounding);
		}
	}
	compare_sets(want, plain, out, t);
}

static void run(const char *name, uint32_t world)
{
	char qat_name[64];
	struct fixture *plain = fixture_open(name), *want;
	struct conf conf = harness_conf();
	struct tally t = {0};
	struct harness *h;
	uint32_t i;

	snprintf(qat_name, sizeof(qat_name), "%s-qat", name);
	want = fixture_open(qat_name);
	conf.attention_numerics = CONF_NUMERICS_QAT;
	h = harness_open(&(struct harness_opts){.dir = want->dir, .world = world, .conf = &conf});
	for (i = 0; i < want->prompt_n; i++) {
		struct harness_out *out = harness_out_new(h, HARNESS_NEXT | HARNESS_INDEX);

		harness_feed(h, 0, want->prompts[i].ids, want->prompts[i].length, 0, out);
		harness_drop(h, 0);
		compare_prompt(&want->prompts[i], &plain->prompts[i], out, &t);
		harness_out_free(out);
	}
	harness_close(h);
	print_message("  %s W=%u: median distance %.1e (first %u tokens %.1e), without rounding "
		      "%.1e (%.1e); sets that differ %.2f %%, without rounding %.2f %% of %u\n",
		name, world, quantile(&t.ours, 0.5), EARLY, quantile(&t.ours_early, 0.5),
		quantile(&t.plain, 0.5), quantile(&t.plain_early, 0.5),
		100.0 * t.ours_other / t.chosen, 100.0 * t.plain_other / t.chosen, t.chosen);
	/* most early positions, and most of all, see fp32's own error and no flip */
	assert_true(quantile(&t.ours_early, 0.5) < 2e-5);
	assert_true(quantile(&t.ours, 0.5) < 1e-4);
	assert_true(quantile(&t.plain, 0.5) > 1e-2);
	assert_true(quantile(&t.ours, 0.9) < quantile(&t.plain, 0.5) / 10);
	assert_true(t.ours_other * 20 < t.plain_other);
	fixture_close(plain);
	fixture_close(want);
	free(t.ours.at);
	free(t.plain.at);
	free(t.ours_early.at);
	free(t.plain_early.at);
}

static void test_rounds_as_the_reference_does(void **state)
{
	run(*state, 1);
	if (!getenv("HEDDLE_TEST_SUBSET"))
		run(*state, 2);
}

int main(void)
{
	struct CMUnitTest tests[] = {
		{"round", test_rounds_as_the_reference_does, NULL, NULL, "round"},
		{"roundq", test_rounds_as_the_reference_does, NULL, NULL, "roundq"},
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
