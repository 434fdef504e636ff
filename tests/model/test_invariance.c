/*
 * Logits do not depend on company: the same bits whatever the chunks, the other sequences of the
 * batch, the slot, the pages, the threads, the tiles and the kernels. And what may differ in bits,
 * the number of ranks, stays within rounding, and chooses the same entries and experts but for
 * near-ties.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/kern.h"
#include "tests/model/tiny.h"

/* Core: 37 entries at ratio 4, of which 16 are chosen, and 1 at ratio 128. Full: 83 and 2. */
#define LENGTH_CORE 150
#define LENGTH_FULL 333

struct fixture {
	struct tiny tiny;
	uint32_t ids[3][LENGTH_FULL];
	uint32_t length;
	bool full;   /* HEDDLE_TEST_FULL: every chunk length, longer prompts */
	bool subset; /* HEDDLE_TEST_SUBSET: fewer ranks and formats, for sanitizers */
};

static struct harness_out *whole(const struct fixture *f, const struct harness_opts *opts,
	uint32_t slot, uint32_t chunk, int which)
{
	struct harness *h = harness_open(opts);
	struct harness_out *out =
		harness_out_new(h, HARNESS_LOGITS | HARNESS_INDEX | HARNESS_ROUTES);

	harness_feed(h, slot, f->ids[which], f->length, chunk, out);
	harness_close(h);
	return out;
}

static void assert_same(
	const struct harness_out *a, const struct harness_out *b, const char *what, unsigned n)
{
	int64_t at = harness_out_differs(a, b);

	if (at >= 0)
		fail_msg("%s %u: logits of position %lld differ in bits", what, n, (long long)at);
	at = harness_choices_differ(a, b);
	if (at >= 0)
		fail_msg("%s %u: index choice of position %lld, layer %lld differs", what, n,
			(long long)(at / a->layers), (long long)(at % a->layers));
}

/* ---- chunks, slots, pages, threads ----------------------------------------------------------- */

static void compare_chunks(const struct fixture *f, const struct conf *conf, uint32_t world)
{
	/* The first ones are the core set. */
	static const uint32_t chunks[] = {3, 100, 64, 1, 127, 256};
	const struct harness_opts base = {
		.dir = f->tiny.dir, .conf = conf, .world = world, .shard_entries = 1};
	struct harness_opts other = base;
	struct harness_out *want = whole(f, &base, 0, 0, 0), *got;

	for (size_t i = 0; i < (f->full ? ARRAY_LEN(chunks) : world == 1 ? 2 : 1); i++) {
		other.page_seed = i + 1;
		other.threads = 1 + i % 3;
		other.spin_ns = i % 2 ? 20000 : 0; /* waits that spin, waits that sleep */
		got = whole(f, &other, (uint32_t)i % 8, chunks[i], 0);
		assert_same(want, got, "chunk", chunks[i]);
		harness_out_free(got);
	}
	harness_out_free(want);
}

static void test_chunks_do_not_change_bits(void **state)
{
	const struct fixture *f = *state;
	struct conf conf = tiny_conf();

	compare_chunks(f, &conf, 1);
	compare_chunks(f, &conf, 2);
	if (!f->subset)
		compare_chunks(f, &conf, 4);
}

static void test_chunks_do_not_change_bits_in_small_formats(void **state)
{
	const struct fixture *f = *state;
	struct conf conf = tiny_conf();

	conf.attention_kv = CONF_KV_FP8;
	conf.attention_index_key = CONF_INDEX_KEY_FP4;
	conf.attention_numerics = CONF_NUMERICS_QAT;
	conf.attention_act = CONF_ACT_FP8;
	if (!f->subset)
		compare_chunks(f, &conf, 1);
	compare_chunks(f, &conf, 2);
	if (f->subset)
		return;
	conf.attention_kv = CONF_KV_BF16;
	conf.attention_index_key = CONF_INDEX_KEY_FP8;
	conf.attention_numerics = CONF_NUMERICS_PLAIN;
	conf.attention_act = CONF_ACT_BF16;
	conf.attention_index_store = CONF_STORE_UNFUSED;
	compare_chunks(f, &conf, 4);
}

/* ---- variants of the kernels ---------------------------------------------------------------- */

static void compare_variants(const struct fixture *f, const struct conf *conf)
{
	static const char *const variants[] = {"avx2", "avx512", "avx512gfni"};
	struct harness_opts opts = {.dir = f->tiny.dir, .conf = conf, .kernels = "reference"};
	struct harness_out *want = whole(f, &opts, 0, 0, 0);

	for (size_t i = 0; i < ARRAY_LEN(variants); i++) {
		struct kern_ops ops;
		struct errbuf err;

		if (kern_ops_get(KERN_CPU, variants[i], &ops, &err) == -ENOTSUP) {
			print_message("left out: %s\n", err.text);
			continue;
		}
		opts.kernels = variants[i];
		for (uint32_t chunk = 0; chunk < 2;
			chunk++) { /* the prompt whole, and row by row */
			struct harness_out *got = whole(f, &opts, 0, chunk, 0);

			assert_same(want, got, variants[i], chunk);
			harness_out_free(got);
		}
	}
	harness_out_free(want);
}

static void test_kernels_of_all_variants_give_the_same_bits(void **state)
{
	const struct fixture *f = *state;
	struct conf conf = tiny_conf();

	if (!f->subset)
		compare_variants(f, &conf);
	conf.attention_kv = CONF_KV_BF16;
	conf.attention_index_key = CONF_INDEX_KEY_BF16;
	compare_variants(f, &conf);
}

/* ---- company -------------------------------------------------------------------------------- */

/* Three sequences at different positions share steps of uneven parts. */
static void feed_mixed(const struct fixture *f, struct harness *h, struct harness_out *outs[3])
{
	static const uint32_t parts[][3] = {
		{7, 1, 60}, {1, 1, 1}, {64, 3, 1}, {100, 128, 2}, {1, 0, 120}, {0, 200, 1}};
	uint64_t at[3] = {0};
	bool more = true;

	for (size_t step = 0; more; step++) {
		struct harness_part p[3];
		uint32_t n = 0;

		more = false;
		for (uint32_t s = 0; s < 3; s++) {
			uint32_t take = parts[step % ARRAY_LEN(parts)][s];

			take = (uint32_t)MIN((uint64_t)take, f->length - at[s]);
			if (take)
				p[n++] = (struct harness_part){.slot = 5 - s,
					.tokens = f->ids[s] + at[s],
					.n = take,
					.out = outs[s]};
			at[s] += take;
			more |= at[s] < f->length;
		}
		if (n)
			harness_run(h, p, n);
	}
}

static void test_company_does_not_change_bits(void **state)
{
	const struct fixture *f = *state;
	struct conf conf = tiny_conf();

	for (uint32_t world = 1; world <= 2; world++) {
		const struct harness_opts opts = {.dir = f->tiny.dir,
			.conf = &conf,
			.world = world,
			.threads = 2,
			.spin_ns = world == 1 ? 20000 : 0,
			.page_seed = 99,
			.shard_entries = 40};
		struct harness *h = harness_open(&opts);
		struct harness_out *outs[3];

		for (int s = 0; s < 3; s++)
			outs[s] = harness_out_new(h, HARNESS_LOGITS | HARNESS_INDEX);
		feed_mixed(f, h, outs);
		for (int s = 0; s < 3; s++) {
			struct harness_out *alone = whole(f, &opts, 0, 0, s);

			assert_same(alone, outs[s], "sequence", (unsigned)s);
			harness_out_free(alone);
			harness_out_free(outs[s]);
		}
		harness_close(h);
	}
}

/* ---- ranks ---------------------------------------------------------------------------------- */

#define TOLERANCE 2e-3
#define NEAR_TIE  1e-4 /* of two scores, the greater of which is 1 */

/* Ranks sum in another order, so of two all but equal scores the other may win. */
struct flips {
	uint64_t first; /* position; UINT64_MAX: none */
	double gap;     /* between the scores that changed places there, where they are known */
	uint64_t n;     /* choices of a layer and position that differ */
};

static bool takes_entry(const struct harness_choice *c, uint32_t entry)
{
	for (uint32_t i = 0; i < c->n; i++)
		if (c->entries[i] == entry)
			return true;
	return false;
}

/* The least score a gave to what b left out; an infinity where b left nothing out. */
static double least_alone(const struct harness_choice *a, const struct harness_choice *b)
{
	double least = INFINITY;

	for (uint32_t i = 0; i < a->n; i++)
		if (!takes_entry(b, a->entries[i]))
			least = fmin(least, a->scores ? (double)a->scores[i] : 0);
	return least;
}

static void count_flip(const struct harness_choice *a, const struct harness_choice *b, uint64_t pos,
	struct flips *f)
{
	double x = least_alone(a, b), y = least_alone(b, a);

	assert_int_equal(a->n, b->n);
	if (isinf(x))
		return;
	if (!f->n++) {
		f->first = pos;
		f->gap = x == y ? 0 : fabs(x - y) / fmax(fabs(x), fabs(y));
	}
}

static struct flips find_flips(const struct harness_out *a, const struct harness_out *b)
{
	struct flips f = {.first = UINT64_MAX};

	for (uint64_t i = 0; i < a->n * a->layers; i++) {
		count_flip(&a->choices[i], &b->choices[i], i / a->layers, &f);
		count_flip(&a->routes[i], &b->routes[i], i / a->layers, &f);
	}
	return f;
}

static void assert_close(
	const struct harness_out *one, const struct harness_out *many, uint32_t world)
{
	struct flips f = find_flips(one, many);
	double worst = 0, before = 0;

	for (uint64_t t = 0; t + 1 < one->n; t++) {
		double d = fabs((double)one->next_logprob[t] - (double)many->next_logprob[t]);

		assert_false(isnan(d));
		worst = fmax(worst, d);
		if (t < f.first)
			before = fmax(before, d);
	}
	if (f.n)
		print_message("world %u: %llu choices fell the other way, the first at %llu by "
			      "%.1e; worst %.1e, before it %.1e\n",
			world, (unsigned long long)f.n, (unsigned long long)f.first, f.gap, worst,
			before);
	if (!(before < TOLERANCE))
		fail_msg("world %u: log-probabilities differ by %g", world, before);
	assert_true(f.gap < NEAR_TIE);
	assert_true(f.n <= one->n * one->layers / 100);
}

static void test_ranks_agree_within_rounding(void **state)
{
	const struct fixture *f = *state;
	struct conf conf = tiny_conf();
	struct harness_opts opts = {.dir = f->tiny.dir, .conf = &conf};
	struct harness_out *one = whole(f, &opts, 0, 0, 0);

	for (opts.world = 2; opts.world <= 4; opts.world += 2)
		for (opts.shard_entries = 1; opts.shard_entries <= 100000;
			opts.shard_entries += 99999) {
			struct harness_out *many = whole(f, &opts, 0, 0, 0);

			assert_close(one, many, opts.world);
			harness_out_free(many);
		}
	harness_out_free(one);
}

/* ---- set-up --------------------------------------------------------------------------------- */

static int set_up(void **state, bool quantised, bool experts_by_id)
{
	struct fixture *f = calloc(1, sizeof(*f));
	uint64_t seed = fix_seed();

	assert_non_null(f);
	f->full = getenv("HEDDLE_TEST_FULL");
	f->subset = getenv("HEDDLE_TEST_SUBSET");
	f->length = f->full ? LENGTH_FULL : LENGTH_CORE;
	tiny_make(&f->tiny, quantised, experts_by_id);
	for (int s = 0; s < 3; s++)
		tiny_prompt(&f->tiny, &seed, f->ids[s], LENGTH_FULL);
	*state = f;
	return 0;
}

static int set_up_bf16(void **state)
{
	return set_up(state, false, true);
}

static int set_up_quantised(void **state)
{
	return set_up(state, true, false);
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
	const struct CMUnitTest bf16[] = {
		cmocka_unit_test(test_chunks_do_not_change_bits),
		cmocka_unit_test(test_company_does_not_change_bits),
		cmocka_unit_test(test_ranks_agree_within_rounding),
	};
	const struct CMUnitTest quantised[] = {
		cmocka_unit_test(test_chunks_do_not_change_bits),
		cmocka_unit_test(test_chunks_do_not_change_bits_in_small_formats),
		cmocka_unit_test(test_kernels_of_all_variants_give_the_same_bits),
		cmocka_unit_test(test_company_does_not_change_bits),
		cmocka_unit_test(test_ranks_agree_within_rounding),
	};
	int failed = cmocka_run_group_tests_name("bf16", bf16, set_up_bf16, tear_down);

	return failed +
	       cmocka_run_group_tests_name("quantised", quantised, set_up_quantised, tear_down);
}
