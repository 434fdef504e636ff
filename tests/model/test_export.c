/*
 * State as a first-class object: a sequence exported at every length 1..600 and imported into
 * another slot of another group, with other page ids, continues with the same bits as one that
 * never moved.
 *
 * HEDDLE_TEST_SUBSET=1 takes every 37th length and those around the boundaries.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/model/fixture.h"
#include "tests/model/gen.h"
#include "tests/model/harness.h"

enum { LENGTH = 600, AFTER = 3 };

static bool wanted(uint32_t n)
{
	static const uint32_t around[] = {1, 4, 64, 128, 256, 512};
	size_t i;

	if (!getenv("HEDDLE_TEST_SUBSET"))
		return true;
	for (i = 0; i < ARRAY_LEN(around); i++)
		if (n + 1 >= around[i] && n <= around[i] + 1)
			return true;
	return n % 37 == 0;
}

/* Continues a copy of slot 0, as it is after n tokens, elsewhere; compares AFTER positions. */
static void check_copy(struct harness *from, struct harness *to, const uint32_t *ids, uint32_t n,
	const struct harness_out *whole)
{
	struct harness_part part = {.slot = n % 7, .tokens = ids + n, .n = 1};
	size_t bytes, row = whole->vocab * sizeof(float);
	void *blob = harness_export(from, 0, &bytes);
	uint32_t i;

	harness_import(to, part.slot, blob, bytes);
	assert_int_equal(harness_pos(to, part.slot), n);
	for (i = 0; i < AFTER; i++, part.tokens++) {
		part.out = harness_out_new(to, HARNESS_NEXT);
		harness_run(to, &part, 1);
		if (memcmp(part.out->last_logits, whole->logits + (size_t)(n + i) * whole->vocab,
			    row) != 0)
			fail_msg("exported after %u tokens: logits after %u more differ in bits", n,
				i + 1);
		harness_out_free(part.out);
	}
	harness_drop(to, part.slot);
	free(blob);
}

static void run_format(
	const struct fixture *f, uint32_t world, enum conf_kv kv, enum conf_index_key key)
{
	struct conf conf = harness_conf();
	struct harness_opts opts = {.dir = f->dir, .world = world, .conf = &conf};
	struct harness *from, *to;
	struct harness_out *whole;
	uint32_t *ids = calloc(LENGTH + AFTER, sizeof(*ids)), n;
	struct harness_part part = {.slot = 0, .tokens = ids, .n = 1};

	assert_non_null(ids);
	conf.attention_kv = kv;
	conf.attention_index_key = key;
	gen_prompt(99, LENGTH + AFTER, f->vocab, ids);
	from = harness_open(&opts);
	opts.page_seed = 11;
	to = harness_open(&opts);
	whole = harness_out_new(from, HARNESS_LOGITS);
	harness_feed(from, 1, ids, LENGTH + AFTER, 0, whole);
	harness_drop(from, 1);
	for (n = 1; n <= LENGTH; n++, part.tokens++) {
		harness_run(from, &part, 1);
		if (wanted(n))
			check_copy(from, to, ids, n, whole);
	}
	harness_out_free(whole);
	harness_close(from);
	harness_close(to);
	free(ids);
}

static void test_every_length_continues_with_the_same_bits(void **state)
{
	struct fixture *f = fixture_open("mixed");

	run_format(f, 1, CONF_KV_F32, CONF_INDEX_KEY_F32);
	fixture_close(f);
}

static void test_two_ranks_and_packed_formats_continue_with_the_same_bits(void **state)
{
	struct fixture *f = fixture_open("mixed");

	(void)setenv("HEDDLE_TEST_SUBSET", "1", 1); /* the lengths around the boundaries suffice */
	run_format(f, 2, CONF_KV_FP8, CONF_INDEX_KEY_FP4);
	run_format(f, 1, CONF_KV_BF16, CONF_INDEX_KEY_FP8);
	run_format(f, 1, CONF_KV_BF16, CONF_INDEX_KEY_BF16);
	fixture_close(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_length_continues_with_the_same_bits),
		cmocka_unit_test(test_two_ranks_and_packed_formats_continue_with_the_same_bits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
