/* Log-probabilities in both forms, echo, and what lm-eval reads out of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/api_fixture.h"

static const json_t *list(const struct said *s, const char *name)
{
	const json_t *v = json_object_get(s->entries, name);

	assert_true(json_is_array(v));
	return v;
}

static const char *text_at(const json_t *array, size_t i)
{
	return json_string_value(json_array_get(array, i));
}

/* What "token" says of it; a part of a character by its bytes. */
static void token_text(const struct fix *f, uint32_t token, char text[200])
{
	size_t len, i;
	const char *bytes = tokenizer_token_bytes(f->api->tok, token, &len);

	assert_non_null(bytes);
	assert_true(len && len < 40);
	if (utf8_valid(bytes, len)) {
		snprintf(text, 200, "%.*s", (int)len, bytes);
		return;
	}
	strcpy(text, "bytes:");
	for (i = 0; i < len; i++)
		snprintf(text + 6 + 4 * i, 5, "\\x%02x", (uint8_t)bytes[i]);
}

/* {"token":…,"logprob":…,"bytes":[…]} of this token */
static void check_entry(const struct fix *f, const json_t *e, uint32_t token, float logprob)
{
	const json_t *bytes = json_object_get(e, "bytes");
	char text[200];
	const char *right;
	size_t len, i;

	token_text(f, token, text);
	assert_string_equal(json_string_value(json_object_get(e, "token")), text);
	right = tokenizer_token_bytes(f->api->tok, token, &len);
	assert_int_equal(json_array_size(bytes), len);
	for (i = 0; i < len; i++)
		assert_int_equal(json_integer_value(json_array_get(bytes, i)), (uint8_t)right[i]);
	assert_true(json_real_value(json_object_get(e, "logprob")) == (double)logprob);
}

/* top_logprobs of a completion's token: its first n alternatives and itself. */
static void check_top(const struct fix *f, const json_t *top, uint32_t token, uint32_t n)
{
	struct msg_alt alt;
	char text[200];
	uint32_t i;

	assert_int_equal(json_object_size(top), n + 1);
	for (i = 0; i <= n; i++) {
		alt = i < n ? fake_alt(token, i) : (struct msg_alt){token, fake_logprob(token)};
		token_text(f, alt.token, text);
		assert_non_null(json_object_get(top, text));
		assert_true(json_real_value(json_object_get(top, text)) == (double)alt.logprob);
	}
}

static void test_chat_logprobs_have_token_bytes_and_alternatives(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x =
		fix_post(f, CHAT, "{" USER ",\"logprobs\":true,\"top_logprobs\":4}");
	struct engine_seq *s = fake_engine_seq(f->engine, 0);
	uint32_t id = f->byte_token['h'], i;
	struct heard h;
	json_t *e, *top;

	assert_int_equal(s->sampling.logprobs, 4);
	fix_say(f, s, "h\xc3\xa9", 1);
	fix_eos(s);
	fix_hear(x, true, &h);
	assert_int_equal(json_array_size(h.said[0].entries), 4); /* the end token too */
	e = json_array_get(h.said[0].entries, 0);
	assert_string_equal(json_string_value(json_object_get(e, "token")), "h");
	check_entry(f, e, id, fake_logprob(id));
	top = json_object_get(e, "top_logprobs");
	assert_int_equal(json_array_size(top), 4);
	for (i = 0; i < 4; i++) /* the last is half a character */
		check_entry(
			f, json_array_get(top, i), fake_alt(id, i).token, fake_alt(id, i).logprob);
	/* half a character is told by its bytes */
	e = json_array_get(h.said[0].entries, 1);
	assert_string_equal(json_string_value(json_object_get(e, "token")), "bytes:\\xc3");
	assert_int_equal(json_at(e, "bytes.0"), 0xc3);
	e = json_array_get(h.said[0].entries, 3);
	assert_string_equal(
		json_string_value(json_object_get(e, "token")), "<｜end▁of▁sentence｜>");
	assert_string_equal(h.said[0].content, "hé");
	fix_unhear(&h);
}

static void test_chat_without_logprobs_says_null(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x = fix_post(f, CHAT, "{" USER "}");
	struct heard h;

	fix_eos(fake_engine_seq(f->engine, 0));
	fix_hear(x, true, &h);
	assert_null(h.said[0].entries);
	assert_true(json_is_null(json_object_get(
		json_array_get(json_object_get(h.root, "choices"), 0), "logprobs")));
	fix_unhear(&h);
}

static void test_completion_logprobs_name_the_alternatives(void **state)
{
	struct fix *f = *state;
	int stream;

	for (stream = 0; stream < 2; stream++) {
		struct http_exchange *x = fix_post(f, TEXT,
			stream ? "{\"prompt\":\"zz\",\"logprobs\":4,\"stream\":true}"
			       : "{\"prompt\":\"zz\",\"logprobs\":4}");
		struct engine_seq *s = fake_engine_seq(f->engine, (size_t)stream);
		const json_t *tops;
		struct heard h;

		assert_int_equal(s->sampling.logprobs, 4);
		fix_say(f, s, "ho", 1);
		fix_eos(s);
		fix_hear(x, false, &h);
		tops = list(&h.said[0], "top_logprobs");
		assert_int_equal(json_array_size(tops), 3);
		check_top(f, json_array_get(tops, 0), f->byte_token['h'], 4);
		check_top(f, json_array_get(tops, 1), f->byte_token['o'], 4);
		check_top(f, json_array_get(tops, 2), EOS, 4);
		fix_unhear(&h);
	}
}

static void test_completion_logprobs_offsets_count_characters(void **state)
{
	static const int offsets[] = {0, 1, 1, 2, 3, 3, 3, 3, 4};
	struct fix *f = *state;
	struct http_exchange *x = fix_post(f, TEXT, "{\"prompt\":\"zz\",\"logprobs\":1}");
	struct engine_seq *s = fake_engine_seq(f->engine, 0);
	const json_t *offset;
	struct heard h;
	size_t i;

	fix_say(f, s, "hé!🚀", 1); /* 1 + 2 + 1 + 4 bytes */
	fix_eos(s);
	fix_hear(x, false, &h);
	offset = list(&h.said[0], "text_offset");
	assert_int_equal(json_array_size(offset), ARRAY_LEN(offsets));
	for (i = 0; i < ARRAY_LEN(offsets); i++)
		assert_int_equal(json_integer_value(json_array_get(offset, i)), offsets[i]);
	fix_unhear(&h);
}

/* The sums lm-eval makes: tokens_logprobs[ctxlen:-1], and whether each token is the best. */
static void test_echo_logprobs_are_as_lm_eval_reads_them(void **state)
{
	struct fix *f = *state;
	int stream;

	for (stream = 0; stream < 2; stream++) {
		struct http_exchange *x = fix_post(f, TEXT,
			stream ? "{\"prompt\":[0,3,2650,4],\"echo\":true,\"max_tokens\":1,"
				 "\"logprobs\":1,\"temperature\":0,\"stream\":true}"
			       : "{\"prompt\":[0,3,2650,4],\"echo\":true,\"max_tokens\":1,"
				 "\"logprobs\":1,\"temperature\":0}");
		struct engine_seq *s = fake_engine_seq(f->engine, (size_t)stream);
		const json_t *values, *tops, *tokens, *offsets, *top;
		struct heard h;
		size_t i;

		assert_true(s->prompt_logprobs && s->sampling.prompt_logprobs == 1);
		fake_engine_read(s, 2);
		fake_engine_read(s, 1);
		assert_false(fix_say(f, s, "x", 1));
		fix_hear(x, false, &h);
		assert_string_equal(h.said[0].content,
			"<｜begin▁of▁sentence｜><｜User｜>Hello<｜Assistant｜>x");
		tokens = list(&h.said[0], "tokens");
		values = list(&h.said[0], "token_logprobs");
		tops = list(&h.said[0], "top_logprobs");
		offsets = list(&h.said[0], "text_offset");
		assert_int_equal(json_array_size(tokens), 5);
		assert_int_equal(json_array_size(values), 5);
		assert_int_equal(json_array_size(tops), 5);
		assert_int_equal(json_array_size(offsets), 5);
		assert_true(json_is_null(json_array_get(values, 0)));
		assert_true(json_is_null(json_array_get(tops, 0)));
		assert_string_equal(text_at(tokens, 2), "Hello");
		assert_string_equal(text_at(tokens, 4), "x");
		for (i = 1; i < 4; i++) {
			top = json_array_get(tops, i);
			assert_true(json_real_value(json_array_get(values, i)) ==
				    (double)fake_logprob(s->prompt[i]));
			/* the token itself is always there, besides the best */
			assert_true(json_equal(json_object_get(top, text_at(tokens, i)),
				json_array_get(values, i)));
			assert_int_equal(json_object_size(top), 2);
		}
		assert_int_equal(json_at(offsets, "0"), 0);
		assert_int_equal(json_at(offsets, "1"), 21);
		assert_int_equal(json_at(offsets, "2"), 29);
		assert_int_equal(json_at(offsets, "3"), 34);
		assert_int_equal(json_at(offsets, "4"), 47);
		fix_unhear(&h);
	}
}

static void test_stop_token_keeps_its_place_in_logprobs(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x = fix_post(
		f, TEXT, "{\"prompt\":[0,3],\"echo\":true,\"max_tokens\":1,\"logprobs\":1}");
	struct engine_seq *s = fake_engine_seq(f->engine, 0);
	struct heard h;

	fake_engine_read(s, 1);
	fix_eos(s);
	fix_hear(x, false, &h);
	assert_int_equal(json_array_size(list(&h.said[0], "token_logprobs")), 3);
	assert_string_equal(h.said[0].content, "<｜begin▁of▁sentence｜><｜User｜>");
	fix_unhear(&h);
}

static void test_echo_alone_needs_no_engine(void **state)
{
	struct fix *f = *state;
	struct heard h;
	int stream;

	for (stream = 0; stream < 2; stream++) {
		fix_hear(fix_post(f, TEXT,
				 stream ? "{\"prompt\":[\"é Hello\",\"b\"],\"echo\":true,"
					  "\"max_tokens\":0,\"n\":2,\"stream\":true}"
					: "{\"prompt\":[\"é Hello\",\"b\"],\"echo\":true,"
					  "\"max_tokens\":0,\"n\":2}"),
			false, &h);
		assert_int_equal(h.choice_n, 4);
		assert_string_equal(h.said[0].content, "é Hello");
		assert_string_equal(h.said[1].content, "é Hello");
		assert_string_equal(h.said[3].content, "b");
		assert_string_equal(h.said[3].finish, "length");
		fix_unhear(&h);
	}
	/* and nothing predicts a lone token */
	fix_hear(
		fix_post(f, TEXT, "{\"prompt\":[5],\"echo\":true,\"max_tokens\":0,\"logprobs\":1}"),
		false, &h);
	assert_int_equal(json_array_size(list(&h.said[0], "tokens")), 1);
	assert_true(json_is_null(json_array_get(list(&h.said[0], "token_logprobs"), 0)));
	fix_unhear(&h);
	assert_int_equal(f->engine->submitted, 0);
}

static void test_echo_with_logprobs_and_no_answer(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x = fix_post(
		f, TEXT, "{\"prompt\":[0,3,4],\"echo\":true,\"max_tokens\":0,\"logprobs\":0}");
	struct engine_seq *s = fake_engine_seq(f->engine, 0);
	struct heard h;

	assert_int_equal(s->max_tokens, 0);
	fake_engine_read(s, 2);
	fix_hear(x, false, &h);
	assert_int_equal(json_array_size(list(&h.said[0], "tokens")), 3);
	/* logprobs 0: the token's own only */
	assert_int_equal(json_object_size(json_array_get(list(&h.said[0], "top_logprobs"), 2)), 1);
	assert_string_equal(h.said[0].finish, "length");
	assert_int_equal(json_at(h.usage, "completion_tokens"), 0);
	fix_unhear(&h);
}

static void test_stop_strings_do_not_see_the_echo(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x =
		fix_post(f, TEXT, "{\"prompt\":\"ab\",\"echo\":true,\"stop\":[\"ab\",\"bc\"]}");
	struct engine_seq *s = fake_engine_seq(f->engine, 0);
	struct heard h;

	assert_true(fix_say(f, s, "c", 1));
	assert_false(fix_say(f, s, "dab", 1));
	fix_hear(x, false, &h);
	assert_string_equal(h.said[0].content, "abcd");
	fix_unhear(&h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, fix_setup, fix_teardown)
		T(test_chat_logprobs_have_token_bytes_and_alternatives),
		T(test_chat_without_logprobs_says_null),
		T(test_completion_logprobs_name_the_alternatives),
		T(test_completion_logprobs_offsets_count_characters),
		T(test_echo_logprobs_are_as_lm_eval_reads_them),
		T(test_stop_token_keeps_its_place_in_logprobs),
		T(test_echo_alone_needs_no_engine),
		T(test_echo_with_logprobs_and_no_answer),
		T(test_stop_strings_do_not_see_the_echo),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
