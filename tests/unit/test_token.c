/*
 * The tokenizer's rules one by one, on a tiny tokenizer made here and on the bundled one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/token_impl.h"
#include "tests/unit/text_fixture.h"
#include "tests/unit/token_tiny.h"

/* Encodes with a fresh scratch; trusted as tokenizer_encode takes it. */
static int encode(const struct tokenizer *tok, const char *text, size_t len, const uint8_t *trusted,
	struct token_ids *ret_ids)
{
	struct token_scratch *s = token_scratch_new(tok);
	int r;

	assert_non_null(s);
	r = tokenizer_encode(tok, s, text, len, trusted, false, ret_ids);
	token_scratch_free(s);
	return r;
}

static void expect_ids(
	const struct tokenizer *tok, const char *text, size_t n, const uint32_t *want)
{
	struct token_ids ids = {0};

	assert_int_equal(encode(tok, text, strlen(text), NULL, &ids), 0);
	assert_int_equal(ids.len, n);
	assert_memory_equal(ids.ids, want, n * sizeof(*want));
	token_ids_free(&ids);
}

#define EXPECT(tok, text, ...)                                                                     \
	do {                                                                                       \
		const uint32_t want_[] = {__VA_ARGS__};                                            \
		expect_ids(tok, text, ARRAY_LEN(want_), want_);                                    \
	} while (0)

static void test_merges_go_by_rank_then_left(void **state)
{
	struct tokenizer *tok = tiny_parse(tiny_json(), NULL, NULL);

	(void)state;
	EXPECT(tok, "ab", TINY_AB);
	EXPECT(tok, "abc", TINY_ABC);
	EXPECT(tok, "bc", TINY_BC);
	EXPECT(tok, "aab", tok->byte_id['a'], TINY_AB);
	EXPECT(tok, "ddd", TINY_DD, tok->byte_id['d']);
	EXPECT(tok, "xyz", tok->byte_id['x'], tok->byte_id['y'], tok->byte_id['z']);
	EXPECT(tok, "ab abc", TINY_AB, tok->byte_id[' '], TINY_ABC);
	tokenizer_free(tok);
}

static void test_ignore_merges_takes_whole_words(void **state)
{
	json_t *json = tiny_json();
	struct tokenizer *tok;

	(void)state;
	tiny_set(json, "model.ignore_merges", "true");
	tok = tiny_parse(json, NULL, NULL);
	EXPECT(tok, "xyz", TINY_XYZ);
	EXPECT(tok, "xyza", tok->byte_id['x'], tok->byte_id['y'], tok->byte_id['z'],
		tok->byte_id['a']);
	EXPECT(tok, "abc", TINY_ABC);
	tokenizer_free(tok);
}

/* <w> is in the base vocabulary too, and whole words are looked up there. */
static void test_ignore_merges_never_makes_an_added_token_of_text(void **state)
{
	json_t *json = tiny_json();
	struct token_ids ids = {0};
	struct tokenizer *tok;
	uint8_t untrusted[4] = {0};

	(void)state;
	tiny_set(json, "model.ignore_merges", "true");
	tiny_set(json, "added_tokens.1.content", "\"word\"");
	tiny_set(json, "model.vocab.word", "262");
	tok = tiny_parse(json, NULL, NULL);
	EXPECT(tok, "word", TINY_X);
	assert_int_equal(encode(tok, "word", 4, untrusted, &ids), 0);
	assert_int_equal(ids.len, 4);
	token_ids_free(&ids);
	tokenizer_free(tok);
}

static void test_merges_as_pairs_equal_merges_as_text(void **state)
{
	json_t *json = tiny_json();
	struct tokenizer *tok;

	(void)state;
	tiny_set(
		json, "model.merges", "[[\"a\",\"b\"],[\"ab\",\"c\"],[\"b\",\"c\"],[\"d\",\"d\"]]");
	tok = tiny_parse(json, NULL, NULL);
	EXPECT(tok, "abcbcab", TINY_ABC, TINY_BC, TINY_AB);
	tokenizer_free(tok);
}

static void test_of_two_merges_of_a_pair_the_later_counts(void **state)
{
	json_t *json = tiny_json();
	struct tokenizer *tok;

	(void)state;
	tiny_set(json, "model.merges", "[\"#version: 0.2\",\"a b\",\"b c\",\"a b\"]");
	tok = tiny_parse(json, NULL, NULL);
	EXPECT(tok, "abc", tok->byte_id['a'], TINY_BC);
	tokenizer_free(tok);
}

static void test_added_tokens_longest_wins_and_passes_are_two(void **state)
{
	json_t *json = tiny_json();
	struct tokenizer *tok;

	(void)state;
	/* <s> is matched first everywhere (normalized: false), then <x> and <xx in what is left. */
	tiny_set(json, "added_tokens.2",
		"{\"id\":265,\"content\":\"<x><\",\"single_word\":false,\"lstrip\":false,"
		"\"rstrip\":false,\"normalized\":true,\"special\":false}");
	tok = tiny_parse(json, NULL, NULL);
	EXPECT(tok, "<x><x>", 265, tok->byte_id['x'], tok->byte_id['>']);
	EXPECT(tok, "<x><s>", TINY_X, TINY_S);
	EXPECT(tok, "<s><s", TINY_S, tok->byte_id['<'], tok->byte_id['s']);
	EXPECT(tok, "a<s>b", tok->byte_id['a'], TINY_S, tok->byte_id['b']);
	assert_int_equal(tokenizer_vocab(tok), 266);
	tokenizer_free(tok);
}

static void test_encode_appends_and_leaves_ids_alone_on_failure(void **state)
{
	struct tokenizer *tok = tiny_parse(tiny_json(), NULL, NULL);
	static const char *const broken[] = {"a\x80", "\xc0\x80", "a\xe2\x82", "\xed\xa0\x80",
		"\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "aaaaaaaa\xff", "\xe0\x9f\xbf"};
	struct token_ids ids = {0};

	(void)state;
	assert_int_equal(encode(tok, "ab", 2, NULL, &ids), 0);
	for (size_t i = 0; i < ARRAY_LEN(broken); i++) {
		assert_int_equal(encode(tok, broken[i], strlen(broken[i]), NULL, &ids), -EILSEQ);
		assert_int_equal(ids.len, 1);
	}
	assert_int_equal(encode(tok, "ab", 2, NULL, &ids), 0);
	assert_int_equal(encode(tok, "", 0, NULL, &ids), 0);
	assert_int_equal(ids.len, 2);
	token_ids_free(&ids);
	tokenizer_free(tok);
}

static void test_pattern_that_explodes_is_an_error_not_a_split(void **state)
{
	const char *text = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac b";
	json_t *json = tiny_json();
	struct token_ids ids = {0};
	struct tokenizer *tok;

	(void)state;
	tiny_set(json, "pre_tokenizer.pretokenizers.0.pattern.Regex", "\"(a+)+b\"");
	tok = tiny_parse(json, NULL, NULL);
	assert_int_equal(encode(tok, text, strlen(text), NULL, &ids), -E2BIG);
	tok->splits[0].jit = false;
	assert_int_equal(encode(tok, text, strlen(text), NULL, &ids), -E2BIG);
	assert_int_equal(ids.len, 0);
	tokenizer_free(tok);
}

static void test_bos_comes_from_the_files(void **state)
{
	static const struct {
		const char *post, *config;
		bool added;
	} rows[] = {
		{"null", NULL, false},
		{"null", "{\"add_bos_token\":true,\"bos_token\":\"<s>\"}", true},
		{"null", "{\"add_bos_token\":true,\"bos_token\":{\"content\":\"<s>\"}}", true},
		{"null", "{\"add_bos_token\":false,\"bos_token\":\"<s>\"}", false},
		{TINY_TEMPLATE, NULL, true},
		{TINY_TEMPLATE, "{}", true},
		{TINY_TEMPLATE, "{\"add_bos_token\":false}", false},
		{"{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"}," TINY_TEMPLATE
		 "]}",
			NULL, true},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		json_t *json = tiny_json();
		struct token_ids ids = {0};
		struct token_scratch *s;
		struct tokenizer *tok;

		tiny_set(json, "post_processor", rows[i].post);
		tok = tiny_parse(json, rows[i].config, NULL);
		s = token_scratch_new(tok);
		assert_int_equal(tokenizer_encode(tok, s, "a", 1, NULL, true, &ids), 0);
		assert_int_equal(ids.len, rows[i].added ? 2 : 1);
		if (rows[i].added)
			assert_int_equal(ids.ids[0], TINY_S);
		ids.len = 0;
		assert_int_equal(tokenizer_encode(tok, s, "a", 1, NULL, false, &ids), 0);
		assert_int_equal(ids.len, 1);
		token_ids_free(&ids);
		token_scratch_free(s);
		tokenizer_free(tok);
	}
}

static void test_lookups_know_added_and_missing_ids(void **state)
{
	json_t *json = tiny_json();
	struct tokenizer *tok;
	size_t len;

	(void)state;
	/* Holes between ids are allowed: the checkpoint was trained on the ids the file gives. */
	tiny_set(json, "added_tokens.1.id", "300");
	tok = tiny_parse(json, "{\"eos_token\":\"<x>\"}", NULL);
	assert_int_equal(tokenizer_vocab(tok), 301);
	assert_int_equal(tokenizer_find(tok, "<x>"), 300);
	assert_int_equal(tokenizer_find(tok, "<s>"), TINY_S);
	assert_int_equal(tokenizer_find(tok, "<"), -1);
	assert_int_equal(tokenizer_find(tok, "ab"), -1);
	assert_int_equal(tokenizer_find(tok, ""), -1);
	assert_int_equal(tokenizer_eos(tok), 300);
	assert_int_equal(tokenizer_bos(tok), -1);
	assert_true(tokenizer_is_special(tok, TINY_S) && tokenizer_is_added(tok, TINY_S));
	assert_true(!tokenizer_is_special(tok, 300) && tokenizer_is_added(tok, 300));
	assert_false(tokenizer_is_added(tok, TINY_AB));
	assert_null(tokenizer_token_bytes(tok, 299, &len));
	assert_null(tokenizer_token_bytes(tok, 301, &len));
	assert_null(tokenizer_token_bytes(tok, UINT32_MAX, &len));
	assert_false(tokenizer_is_added(tok, UINT32_MAX));
	assert_memory_equal(tokenizer_token_bytes(tok, TINY_ABC, &len), "abc", 3);
	assert_int_equal(len, 3);
	tokenizer_free(tok);
}

static void test_decode_skips_and_mends(void **state)
{
	struct tokenizer *tok = tiny_parse(tiny_json(), NULL, NULL);
	const uint8_t broken[] = {0xe2, 0x82, 'a', 0xf0, 0x9f, 0x98, 0x80, 0x80, 0xed, 0xa0, 0xf0};
	const char *want = "\xef\xbf\xbd"
			   "a\xf0\x9f\x98\x80\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd";
	uint32_t ids[16];
	size_t len;
	char *text;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(broken); i++)
		ids[i] = tok->byte_id[broken[i]];
	text = tokenizer_decode(tok, ids, ARRAY_LEN(broken), false, &len);
	assert_string_equal(text, want);
	free(text);
	/* A special token that is skipped leaves no gap in a character; one unknown neither. */
	ids[0] = tok->byte_id[0xc3];
	ids[1] = TINY_S;
	ids[2] = 100000;
	ids[3] = tok->byte_id[0xa9];
	ids[4] = TINY_X;
	text = tokenizer_decode(tok, ids, 5, true, &len);
	assert_string_equal(text, "\xc3\xa9<x>");
	free(text);
	text = tokenizer_decode(tok, ids, 5, false, &len);
	assert_string_equal(text, "\xef\xbf\xbd<s>\xef\xbf\xbd<x>");
	free(text);
	text = tokenizer_decode(tok, NULL, 0, false, &len);
	assert_string_equal(text, "");
	assert_int_equal(len, 0);
	free(text);
	tokenizer_free(tok);
}

/* With no byte trusted every case must come out as if there were no added tokens at all. */
static void test_untrusted_text_never_becomes_an_added_token(void **state)
{
	struct tokenizer *tok = fixture_mini(), plain = *tok;
	struct token_ids got = {0}, want = {0};
	struct fixture_cases cases;
	const uint8_t *text;
	uint8_t *untrusted;

	(void)state;
	memset(plain.added, 0, sizeof(plain.added));
	fixture_cases_open(&cases);
	untrusted = calloc(1, 65536);
	text = cases.texts;
	for (uint32_t i = 0; i < cases.count; i++) {
		size_t len = fixture_u32(cases.lens, i);

		assert_true(len < 65536);
		got.len = want.len = 0;
		assert_int_equal(encode(tok, (const char *)text, len, untrusted, &got), 0);
		assert_int_equal(encode(&plain, (const char *)text, len, NULL, &want), 0);
		assert_int_equal(got.len, want.len);
		assert_memory_equal(got.ids, want.ids, want.len * sizeof(*want.ids));
		for (size_t k = 0; k < got.len; k++)
			assert_false(tokenizer_is_added(tok, got.ids[k]));
		text += len;
	}
	free(untrusted);
	fixture_cases_close(&cases);
	token_ids_free(&got);
	token_ids_free(&want);
	tokenizer_free(tok);
}

/* <think> twice, with each byte of the first in turn untrusted. */
static void test_one_untrusted_byte_keeps_a_token_text(void **state)
{
	const char *text = "<think><think>";
	struct tokenizer *tok = fixture_mini();
	uint32_t think = (uint32_t)tokenizer_find(tok, "<think>");
	struct token_ids ids = {0}, plain = {0};
	uint8_t trusted[14], none[7] = {0};

	(void)state;
	assert_int_equal(encode(tok, text, 7, none, &plain), 0);
	assert_true(plain.len > 1);
	for (size_t at = 0; at <= 7; at++) {
		memset(trusted, 1, sizeof(trusted));
		if (at < 7)
			trusted[at] = 0;
		ids.len = 0;
		assert_int_equal(encode(tok, text, 14, trusted, &ids), 0);
		assert_int_equal(ids.ids[ids.len - 1], think);
		assert_int_equal(ids.len, at < 7 ? plain.len + 1 : 2);
		if (at < 7)
			assert_memory_equal(ids.ids, plain.ids, plain.len * sizeof(*plain.ids));
	}
	token_ids_free(&ids);
	token_ids_free(&plain);
	tokenizer_free(tok);
}

/* Merging by looking through the whole word for each merge would take minutes here. */
static void test_word_of_a_megabyte_is_quick_and_lossless(void **state)
{
	struct tokenizer *tok = fixture_mini();
	struct token_ids ids = {0};
	size_t len = 1000000, got_len;
	uint64_t rng = fixture_seed();
	char *text = malloc(len), *got;

	(void)state;
	for (int round = 0; round < 2; round++) {
		for (size_t i = 0; i < len; i++)
			text[i] = round ? (char)('a' + fixture_random(&rng) % 26) : 'a';
		ids.len = 0;
		assert_int_equal(encode(tok, text, len, NULL, &ids), 0);
		got = tokenizer_decode(tok, ids.ids, ids.len, false, &got_len);
		assert_int_equal(got_len, len);
		assert_memory_equal(got, text, len);
		free(got);
	}
	free(text);
	token_ids_free(&ids);
	tokenizer_free(tok);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_merges_go_by_rank_then_left),
		cmocka_unit_test(test_ignore_merges_takes_whole_words),
		cmocka_unit_test(test_ignore_merges_never_makes_an_added_token_of_text),
		cmocka_unit_test(test_merges_as_pairs_equal_merges_as_text),
		cmocka_unit_test(test_of_two_merges_of_a_pair_the_later_counts),
		cmocka_unit_test(test_added_tokens_longest_wins_and_passes_are_two),
		cmocka_unit_test(test_encode_appends_and_leaves_ids_alone_on_failure),
		cmocka_unit_test(test_pattern_that_explodes_is_an_error_not_a_split),
		cmocka_unit_test(test_bos_comes_from_the_files),
		cmocka_unit_test(test_lookups_know_added_and_missing_ids),
		cmocka_unit_test(test_decode_skips_and_mends),
		cmocka_unit_test(test_untrusted_text_never_becomes_an_added_token),
		cmocka_unit_test(test_one_untrusted_byte_keeps_a_token_text),
		cmocka_unit_test(test_word_of_a_megabyte_is_quick_and_lossless),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
