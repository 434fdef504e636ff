/*
 * A sequence's state taken out of one rank and put into another continues with the same bits, at
 * every length; and blobs that are damaged or from elsewhere are refused and change nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/model/tiny.h"
#include "worker/state.h"

#define LENGTH 600
#define AHEAD  9 /* tokens run after an import: past a block of 4 and into a second */

struct fixture {
	struct tiny tiny;
	uint32_t ids[LENGTH + AHEAD];
};

static void continue_and_compare(const struct fixture *f, struct harness *h, uint32_t slot,
	uint64_t pos, uint32_t n, const struct harness_out *want)
{
	struct harness_out *got = harness_out_new(h, HARNESS_LOGITS);

	harness_feed(h, slot, f->ids + pos, n, 0, got);
	for (uint64_t i = pos; i < pos + n; i++)
		if (memcmp(got->logits + i * got->vocab, want->logits + i * want->vocab,
			    got->vocab * sizeof(float)) != 0)
			fail_msg("exported at %llu: logits of position %llu differ",
				(unsigned long long)pos, (unsigned long long)i);
	harness_out_free(got);
}

/* Is `pos` one of those tried? All with HEDDLE_TEST_FULL, else those around page and block ends. */
static bool tried(uint64_t pos)
{
	return getenv("HEDDLE_TEST_FULL") || pos < 9 || (pos % 64 < 2 || pos % 64 > 61);
}

/*
 * Walks a sequence through `h` in parts of `stride` tokens; at each stop exports it, imports it
 * into another slot of `other` and continues there.
 */
static void export_everywhere(
	const struct fixture *f, const struct conf *conf, uint32_t world, uint32_t stride)
{
	const struct harness_opts a = {.dir = f->tiny.dir, .conf = conf, .world = world};
	const struct harness_opts b = {
		.dir = f->tiny.dir, .conf = conf, .world = world, .page_seed = 5, .threads = 2};
	struct harness *h = harness_open(&a), *other = harness_open(&b);
	struct harness_out *want = harness_out_new(h, HARNESS_LOGITS);
	uint64_t length = getenv("HEDDLE_TEST_FULL") ? LENGTH : 260;

	harness_feed(h, 0, f->ids, length + AHEAD, 0, want);
	for (uint64_t pos = 0, fed = 0; (pos += stride) <= length;) {
		uint32_t slot = (uint32_t)(pos % 8);
		size_t bytes;
		void *blob;

		if (stride == 1 && !tried(pos))
			continue;
		harness_feed(h, 1, f->ids + fed, pos - fed, 0, NULL);
		fed = pos;
		blob = harness_export(h, 1, &bytes);
		harness_import(other, slot, blob, bytes);
		continue_and_compare(f, other, slot, pos, AHEAD, want);
		harness_drop(other, slot);
		free(blob);
	}
	harness_out_free(want);
	harness_close(h);
	harness_close(other);
}

static void test_export_at_every_length_continues_bit_identically(void **state)
{
	struct conf conf = tiny_conf();

	export_everywhere(*state, &conf, 1, 1);
}

static void test_export_with_two_ranks_continues_bit_identically(void **state)
{
	struct conf conf = tiny_conf();

	export_everywhere(*state, &conf, 2, 37);
}

static void test_export_in_small_formats_continues_bit_identically(void **state)
{
	static const int keys[] = {CONF_INDEX_KEY_BF16, CONF_INDEX_KEY_FP8, CONF_INDEX_KEY_FP4};
	static const int kvs[] = {CONF_KV_BF16, CONF_KV_FP8, CONF_KV_FP8};
	struct conf conf = tiny_conf();

	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		conf.attention_index_key = keys[i];
		conf.attention_kv = kvs[i];
		conf.attention_numerics = i == 2 ? CONF_NUMERICS_QAT : CONF_NUMERICS_PLAIN;
		export_everywhere(*state, &conf, 1, 61);
	}
}

/* The blob is a function of the tokens: chunks, slot and pages leave no trace in it. */
static void test_export_is_the_same_however_it_was_fed(void **state)
{
	const struct fixture *f = *state;
	struct conf conf = tiny_conf();
	const struct harness_opts a = {.dir = f->tiny.dir, .conf = &conf};
	const struct harness_opts b = {.dir = f->tiny.dir, .conf = &conf, .page_seed = 3};
	struct harness *h = harness_open(&a), *other = harness_open(&b);
	size_t bytes[2];
	void *blob[2];

	harness_feed(other, 4, f->ids + 100, 300, 0, NULL);
	harness_drop(other, 4);
	for (uint32_t n = 1; n <= 270; n += n < 10 ? 1 : 13) {
		harness_feed(h, 0, f->ids, n, 0, NULL);
		harness_feed(other, 4, f->ids, n, 5, NULL);
		blob[0] = harness_export(h, 0, &bytes[0]);
		blob[1] = harness_export(other, 4, &bytes[1]);
		assert_int_equal(bytes[0], bytes[1]);
		assert_memory_equal(blob[0], blob[1], bytes[0]);
		harness_drop(h, 0);
		harness_drop(other, 4);
		free(blob[0]);
		free(blob[1]);
	}
	harness_close(h);
	harness_close(other);
}

/* ---- refusals ------------------------------------------------------------------------------- */

/* slot 2 holds the first 150 tokens: still, and with the right bits? */
static void assert_untouched(struct harness *h, const void *blob, size_t bytes)
{
	size_t now_bytes;
	void *now = harness_export(h, 2, &now_bytes);

	assert_int_equal(now_bytes, bytes);
	assert_memory_equal(now, blob, bytes);
	free(now);
}

static void refused(struct harness *h, const void *good, size_t bytes, const void *bad,
	size_t bad_bytes, int error)
{
	struct errbuf err = {0};

	assert_int_equal(harness_try_import(h, 2, bad, bad_bytes, &err), error);
	assert_true(err.text[0]);
	assert_untouched(h, good, bytes);
}

static void test_import_of_damaged_state_is_refused(void **state)
{
	const struct fixture *f = *state;
	struct conf conf = tiny_conf();
	struct harness *h = harness_open(&(struct harness_opts){.dir = f->tiny.dir, .conf = &conf});
	unsigned char *good, *bad;
	size_t bytes;

	harness_feed(h, 2, f->ids, 150, 0, NULL);
	good = harness_export(h, 2, &bytes);
	bad = malloc(bytes + 8);
	assert_non_null(bad);
	/* any single byte, sampled: header densely, the rest sparsely */
	for (size_t i = 0; i < bytes; i += i < sizeof(struct state_hdr) ? 1 : bytes / 61) {
		memcpy(bad, good, bytes);
		bad[i] ^= 0x40;
		refused(h, good, bytes, bad, bytes, i >= 8 && i < 12 ? -EINVAL : -EBADMSG);
	}
	memcpy(bad, good, bytes);
	memset(bad + bytes, 0, 8);
	for (size_t cut = 0; cut < bytes; cut += bytes / 7)
		refused(h, good, bytes, bad, cut, -EBADMSG);
	refused(h, good, bytes, bad, bytes + 8, -EBADMSG);
	free(bad);
	free(good);
	harness_close(h);
}

/* A state with a right checksum but a token that does not exist. */
static void test_import_of_forged_tokens_is_refused(void **state)
{
	const struct fixture *f = *state;
	struct conf conf = tiny_conf();
	struct harness *h = harness_open(&(struct harness_opts){.dir = f->tiny.dir, .conf = &conf});
	unsigned char *good, *bad;
	struct state_hdr hdr;
	size_t bytes;

	harness_feed(h, 2, f->ids, 150, 0, NULL);
	good = harness_export(h, 2, &bytes);
	bad = malloc(bytes);
	assert_non_null(bad);
	memcpy(bad, good, bytes);
	memcpy(bad + sizeof(hdr) + 40, &f->tiny.vocab, sizeof(uint32_t));
	memcpy(&hdr, bad, sizeof(hdr));
	hdr.sum = state_sum(bad, bytes);
	memcpy(bad, &hdr, sizeof(hdr));
	refused(h, good, bytes, bad, bytes, -EBADMSG);

	/* and one whose position does not fit its length */
	memcpy(bad, good, bytes);
	hdr.pos = 151;
	memcpy(bad, &hdr, sizeof(hdr));
	hdr.sum = state_sum(bad, bytes);
	memcpy(bad, &hdr, sizeof(hdr));
	refused(h, good, bytes, bad, bytes, -EBADMSG);
	free(bad);
	free(good);
	harness_close(h);
}

static void test_import_into_another_configuration_is_refused(void **state)
{
	const struct fixture *f = *state;
	struct conf conf = tiny_conf();
	struct harness *h = harness_open(&(struct harness_opts){.dir = f->tiny.dir, .conf = &conf});
	struct conf others[4] = {conf, conf, conf, conf};
	struct errbuf err;
	size_t bytes;
	void *blob;

	harness_feed(h, 0, f->ids, 20, 0, NULL);
	blob = harness_export(h, 0, &bytes);
	harness_close(h);
	others[0].attention_kv = CONF_KV_BF16;
	others[1].attention_index_topk = 8;
	others[2].attention_numerics = CONF_NUMERICS_QAT;
	for (uint32_t i = 0; i < 4; i++) {
		struct harness_opts o = {
			.dir = f->tiny.dir, .conf = &others[i], .world = i == 3 ? 2 : 1};

		h = harness_open(&o);
		assert_int_equal(harness_try_import(h, 0, blob, bytes, &err), -EINVAL);
		assert_non_null(strstr(err.text, "another checkpoint"));
		assert_int_equal(harness_pos(h, 0), 0);
		harness_close(h);
	}
	free(blob);
}

/* ---- set-up --------------------------------------------------------------------------------- */

static int set_up(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	uint64_t seed = fix_seed();

	assert_non_null(f);
	tiny_make(&f->tiny, false, false);
	tiny_prompt(&f->tiny, &seed, f->ids, LENGTH + AHEAD);
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
		cmocka_unit_test(test_export_at_every_length_continues_bit_identically),
		cmocka_unit_test(test_export_with_two_ranks_continues_bit_identically),
		cmocka_unit_test(test_export_in_small_formats_continues_bit_identically),
		cmocka_unit_test(test_export_is_the_same_however_it_was_fed),
		cmocka_unit_test(test_import_of_damaged_state_is_refused),
		cmocka_unit_test(test_import_of_forged_tokens_is_refused),
		cmocka_unit_test(test_import_into_another_configuration_is_refused),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
