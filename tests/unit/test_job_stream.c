/* Streams: the same text as whole answers however tokens and reports are cut; reasoning; stops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/unit/api_fixture.h"

/* One answer of `text`, a byte a token, in reports of `batch`; the rest of the body after USER. */
static void answer(struct fix *f, bool chat, bool stream, const char *more, const char *text,
	size_t batch, struct heard *h)
{
	struct http_exchange *x;
	char body[1024];
	struct engine_seq *s;

	snprintf(body, sizeof(body), "{%s,\"stream\":%s%s%s}", chat ? USER : "\"prompt\":\"a\"",
		stream ? "true" : "false", *more ? "," : "", more);
	x = fix_post(f, chat ? CHAT : TEXT, body);
	if (x->end != FAKE_OPEN)
		fail_msg("%s: %.*s", body, (int)x->out.len, x->out.data);
	s = fake_engine_seq(f->engine, f->engine->submitted - 1);
	if (fix_say(f, s, text, batch))
		fix_eos(s);
	fix_hear(x, chat, h);
	assert_null(h->error);
	assert_true(h->done == stream);
	assert_int_equal(h->choice_n, 1);
}

static void test_stream_begins_with_role_and_ends_with_done(void **state)
{
	struct fix *f = *state;
	struct heard h;
	json_t *last;

	answer(f, true, true, "\"stream_options\":{\"include_usage\":true}", "hello", 1, &h);
	assert_true(h.role_first);
	assert_string_equal(h.said[0].content, "hello");
	assert_string_equal(h.said[0].finish, "stop");
	assert_int_equal(h.said[0].events, 5);
	assert_int_equal(json_at(h.usage, "completion_tokens"), 6);
	last = json_array_get(h.root, json_array_size(h.root) - 1);
	assert_true(json_is_object(json_object_get(last, "usage")));
	assert_int_equal(json_array_size(json_object_get(last, "choices")), 0);
	assert_true(json_is_null(json_object_get(json_array_get(h.root, 0), "usage")));
	assert_string_equal(
		json_string_value(json_object_get(last, "object")), "chat.completion.chunk");
	fix_unhear(&h);
	answer(f, false, true, "", "hello", 2, &h);
	assert_string_equal(h.said[0].content, "hello");
	assert_int_equal(h.said[0].events, 3);
	assert_null(h.usage);
	assert_null(json_object_get(json_array_get(h.root, 0), "usage"));
	fix_unhear(&h);
}

static void test_stop_string_at_every_split_leaves_nothing_of_it(void **state)
{
	static const char text[] = "ABCDEFGHIJKLMNOP";
	static const struct {
		const char *stop, *left;
	} cases[] = {
		{"\"stop\":[\"DEFGHIJ\"]", "ABC"},
		{"\"stop\":\"A\"", ""},
		{"\"stop\":[\"P\",\"XX\"]", "ABCDEFGHIJKLMNO"},
		{"\"stop\":[\"LMNOPQ\"]", "ABCDEFGHIJKLMNOP"},
		{"\"stop\":[\"EFGX\",\"GH\",\"FGHI\"]", "ABCDEF"},
		{"\"stop\":[\"GH\",\"FGH\"]", "ABCDE"},
	};
	struct fix *f = *state;
	struct heard h;
	size_t i, batch;
	int chat, stream;

	for (i = 0; i < ARRAY_LEN(cases); i++)
		for (batch = 1; batch <= sizeof(text); batch++)
			for (chat = 0; chat < 2; chat++)
				for (stream = 0; stream < 2; stream++) {
					answer(f, chat, stream, cases[i].stop, text, batch, &h);
					assert_string_equal(h.said[0].content, cases[i].left);
					assert_string_equal(h.said[0].finish, "stop");
					fix_unhear(&h);
				}
}

static void test_stop_string_before_min_tokens_does_not_count(void **state)
{
	struct fix *f = *state;
	struct heard h;

	answer(f, true, false, "\"stop\":\"ab\",\"min_tokens\":3", "abab", 1, &h);
	assert_string_equal(h.said[0].content, "ab");
	fix_unhear(&h);
	answer(f, true, false, "\"stop\":\"ab\",\"min_tokens\":2", "abab", 1, &h);
	assert_string_equal(h.said[0].content, "");
	fix_unhear(&h);
}

static void test_characters_cut_over_tokens_stay_whole(void **state)
{
	static const char text[] = "é🧑‍🚀 你好 ﷽!";
	struct fix *f = *state;
	struct heard h;
	size_t batch;

	/* every event was checked to be valid UTF-8 on its own */
	for (batch = 1; batch < 8; batch++) {
		answer(f, true, true, "", text, batch, &h);
		assert_string_equal(h.said[0].content, text);
		fix_unhear(&h);
		answer(f, false, true, "\"stop\":\"好\"", text, batch, &h);
		assert_string_equal(h.said[0].content, "é🧑‍🚀 你");
		fix_unhear(&h);
	}
}

static void test_limit_inside_a_character_is_one_replacement(void **state)
{
	struct fix *f = *state;
	struct heard h;
	char more[64];
	int n, stream;

	for (n = 1; n <= 4; n++)
		for (stream = 0; stream < 2; stream++) {
			snprintf(more, sizeof(more), "\"max_tokens\":%d", n);
			answer(f, true, stream, more, "🚀", 1, &h);
			assert_string_equal(h.said[0].content, n < 4 ? "\xef\xbf\xbd" : "🚀");
			assert_string_equal(h.said[0].finish, "length");
			fix_unhear(&h);
		}
}

static void test_broken_bytes_never_reach_an_event(void **state)
{
	struct fix *f = *state;
	struct heard whole, h;
	size_t batch;

	answer(f, true, false, "", "a\xff\xe2\x82z\xf0\x9f", 1, &whole);
	for (batch = 1; batch < 8; batch++) {
		answer(f, true, true, "", "a\xff\xe2\x82z\xf0\x9f", batch, &h);
		assert_string_equal(h.said[0].content, whole.said[0].content);
		fix_unhear(&h);
	}
	fix_unhear(&whole);
}

static void test_reasoning_is_split_at_the_marker(void **state)
{
	static const struct {
		const char *text, *thought, *content;
	} cases[] = {
		{"first</think>then", "first", "then"},
		{"</think>then", "", "then"},
		{"only thought", "only thought", ""},
		{"a</thin</think>b</think>c", "a</thin", "b</think>c"},
		{"a</think", "a</think", ""},
		{"a<</think>", "a<", ""},
	};
	static const char *const switches[] = {"\"reasoning_effort\":\"high\"",
		"\"chat_template_kwargs\":{\"thinking\":true}",
		"\"chat_template_kwargs\":{\"enable_thinking\":true}",
		"\"thinking\":{\"type\":\"enabled\"}",
		"\"reasoning_effort\":\"none\",\"chat_template_kwargs\":{\"thinking\":true}"};
	struct fix *f = *state;
	struct heard h;
	size_t i, batch;
	int stream;

	for (i = 0; i < ARRAY_LEN(cases); i++)
		for (batch = 1; batch < 12; batch++)
			for (stream = 0; stream < 2; stream++) {
				answer(f, true, stream, switches[batch % ARRAY_LEN(switches)],
					cases[i].text, batch, &h);
				assert_string_equal(h.said[0].thought, cases[i].thought);
				assert_string_equal(h.said[0].content, cases[i].content);
				fix_unhear(&h);
			}
}

static void test_thinking_off_leaves_the_marker_alone(void **state)
{
	static const char *const switches[] = {"", "\"reasoning_effort\":\"none\"",
		"\"reasoning_effort\":\"high\",\"chat_template_kwargs\":{\"thinking\":false}",
		"\"thinking\":{\"type\":\"disabled\"}"};
	struct fix *f = *state;
	struct heard h;
	size_t i;

	for (i = 0; i < ARRAY_LEN(switches); i++) {
		answer(f, true, false, switches[i], "x</think>y", 1, &h);
		assert_string_equal(h.said[0].content, "x</think>y");
		assert_null(json_object_get(
			json_object_get(
				json_array_get(json_object_get(h.root, "choices"), 0), "message"),
			"reasoning_content"));
		fix_unhear(&h);
	}
}

static void test_stops_apply_to_content_only(void **state)
{
	struct fix *f = *state;
	struct heard h;
	int stream;

	for (stream = 0; stream < 2; stream++) {
		answer(f, true, stream,
			"\"reasoning_effort\":\"low\",\"stop\":[\"X\",\"</think>\"]",
			"aXb</think>cXd", 3, &h);
		assert_string_equal(h.said[0].thought, "aXb");
		assert_string_equal(h.said[0].content, "c");
		assert_string_equal(json_string_value(h.said[0].stop_reason), "X");
		fix_unhear(&h);
	}
	/* all of max_tokens spent on thinking: content is there, and empty */
	answer(f, true, false, "\"reasoning_effort\":\"low\",\"max_tokens\":3", "abcdef", 1, &h);
	assert_string_equal(h.said[0].finish, "length");
	assert_string_equal(h.said[0].thought, "abc");
	assert_true(json_is_string(json_object_get(
		json_object_get(json_array_get(json_object_get(h.root, "choices"), 0), "message"),
		"content")));
	assert_int_equal(json_at(h.usage, "completion_tokens_details.reasoning_tokens"), 3);
	fix_unhear(&h);
}

static void test_stream_and_whole_agree_on_random_answers(void **state)
{
	static const char *const parts[] = {"</think>", "</thi", "<", "a", "b", "ab", "é", "🚀", " ",
		"\n", "\"", "\\", "ba", "aab"};
	unsigned seed = (unsigned)time(NULL);
	struct fix *f = *state;
	struct heard whole, h;
	char text[256], more[200];
	size_t round, i, n;

	print_message("seed %u\n", seed);
	srand(seed);
	for (round = 0; round < 300; round++) {
		*text = '\0';
		n = (size_t)rand() % 20;
		for (i = 0; i < n; i++)
			strcat(text, parts[(size_t)rand() % ARRAY_LEN(parts)]);
		snprintf(more, sizeof(more),
			"\"stop\":[\"%s\",\"b\\n\"],\"max_tokens\":%d,\"min_tokens\":%d,"
			"\"logprobs\":true,\"return_token_ids\":true%s",
			rand() % 2 ? "aaba" : "éab", 4 + rand() % 60,
			rand() % (int)MIN(4, strlen(text) + 1),
			rand() % 2 ? ",\"reasoning_effort\":\"low\"" : "");
		answer(f, true, false, more, text, 1 + (size_t)rand() % 5, &whole);
		answer(f, true, true, more, text, 1 + (size_t)rand() % 5, &h);
		assert_string_equal(h.said[0].content, whole.said[0].content);
		assert_string_equal(h.said[0].thought, whole.said[0].thought);
		assert_string_equal(h.said[0].finish, whole.said[0].finish);
		assert_true(json_equal(h.said[0].stop_reason, whole.said[0].stop_reason));
		assert_true(json_equal(h.said[0].entries, whole.said[0].entries));
		assert_true(json_equal(h.said[0].ids, whole.said[0].ids));
		fix_unhear(&whole);
		fix_unhear(&h);
	}
}

static void test_n_streams_interleave_and_end_each(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x = fix_post(f, CHAT,
		"{" USER ",\"n\":3,\"stream\":true,\"stop\":\"!\",\"return_token_ids\":true}");
	struct engine_seq *s[3];
	struct heard h;
	int i;

	for (i = 0; i < 3; i++)
		s[i] = fake_engine_seq(f->engine, (size_t)i);
	assert_true(fix_say(f, s[1], "one", 1));
	assert_true(fix_say(f, s[0], "zero", 2));
	assert_false(fix_say(f, s[1], "!more", 1));
	assert_true(fix_say(f, s[2], "two", 3));
	fix_eos(s[2]);
	assert_int_equal(x->end, FAKE_OPEN);
	fix_eos(s[0]);
	fix_hear(x, true, &h);
	assert_int_equal(h.choice_n, 3);
	assert_string_equal(h.said[0].content, "zero");
	assert_string_equal(h.said[1].content, "one");
	assert_string_equal(h.said[2].content, "two");
	assert_int_equal(json_array_size(h.said[1].ids), 4);
	assert_int_equal(json_at(json_array_get(h.root, 0), "prompt_token_ids.1"), 3);
	assert_null(json_object_get(json_array_get(h.root, 1), "prompt_token_ids"));
	assert_true(h.done);
	fix_unhear(&h);
}

static void test_silence_gets_a_comment_every_ten_seconds(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x = fix_post(f, CHAT, "{" USER ",\"stream\":true}");
	struct engine_seq *s = fake_engine_seq(f->engine, 0);
	struct heard h;

	fake_loop_advance(f->loop, 9999 * NS_PER_MS);
	assert_int_equal(x->status, 0); /* a failure would still have a status of its own */
	fake_engine_prefill(s, 2);
	fake_loop_advance(f->loop, NS_PER_MS);
	assert_int_equal(x->status, 200);
	fake_loop_advance(f->loop, 10 * NS_PER_S);
	fix_say(f, s, "a", 1);
	fake_loop_advance(f->loop, 9 * NS_PER_S);
	fix_eos(s);
	fake_loop_advance(f->loop, 60 * NS_PER_S);
	fix_hear(x, true, &h);
	assert_int_equal(h.comments, 2);
	assert_string_equal(h.comment, ": reading the prompt, 2 of 5 tokens");
	assert_string_equal(h.said[0].content, "a");
	assert_true(h.role_first);
	fix_unhear(&h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, fix_setup, fix_teardown)
		T(test_stream_begins_with_role_and_ends_with_done),
		T(test_stop_string_at_every_split_leaves_nothing_of_it),
		T(test_stop_string_before_min_tokens_does_not_count),
		T(test_characters_cut_over_tokens_stay_whole),
		T(test_limit_inside_a_character_is_one_replacement),
		T(test_broken_bytes_never_reach_an_event),
		T(test_reasoning_is_split_at_the_marker),
		T(test_thinking_off_leaves_the_marker_alone),
		T(test_stops_apply_to_content_only),
		T(test_stream_and_whole_agree_on_random_answers),
		T(test_n_streams_interleave_and_end_each),
		T(test_silence_gets_a_comment_every_ten_seconds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
