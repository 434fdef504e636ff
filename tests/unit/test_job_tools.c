/* Tool calls: what the model writes becomes OpenAI's calls, whole and streamed, or stays text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/unit/tools_fixture.h"

/* Rows of the failures 70, 71, 72, 74, 76, 84 and 87; see docs/failures.md. */
static const struct {
	const char *what, *more, *text;
	const char *thought, *content, *calls, *finish;
} rows[] = {
	{"a call", "," TOOLS, BLOCK PARIS END, "", NULL, "get_weather{\"city\": \"Paris\"}",
		"tool_calls"},
	{"text before and after", "," TOOLS, "Let me see." BLOCK PARIS END "Done.", "",
		"Let me see.Done.", "get_weather{\"city\": \"Paris\"}", "tool_calls"},
	{"two calls, the first without parameters", "," TOOLS, BLOCK CALL "f\">\n" DONE PARIS END,
		"", NULL, "f{} get_weather{\"city\": \"Paris\"}", "tool_calls"},
	{"two blocks", "," TOOLS, BLOCK PARIS END BLOCK CALL "f\">\n" DONE END, "", NULL,
		"get_weather{\"city\": \"Paris\"} f{}", "tool_calls"},
	{"a name of 76 characters", "," TOOLS,
		BLOCK CALL "n2345678901234567890123456789012345678901234567890123456789012345678901"
			   "23456\">\n" DONE END,
		"", NULL,
		"n234567890123456789012345678901234567890123456789012345678901234567890123456{}",
		"tool_calls"},
	{"types, also of a tool that is unknown", "," TOOLS,
		BLOCK CALL "unknown\">\n" PARAM "count" JSON "5" CLOSE PARAM "flag" JSON
			   "true" CLOSE PARAM "cfg" JSON "{\"a\":1}" CLOSE PARAM "zip" STRING
			   "00123" CLOSE PARAM "sp" STRING " 5 " CLOSE PARAM "no" JSON
			   "nope" CLOSE DONE END,
		"", NULL,
		"unknown{\"count\": 5, \"flag\": true, \"cfg\": {\"a\":1}, \"zip\": \"00123\", "
		"\"sp\": \" 5 \", \"no\": \"nope\"}",
		"tool_calls"},
	{"text that JSON must escape", "," TOOLS,
		BLOCK CALL "f\">\n" PARAM "a" STRING "\"\\\n\té🚀</b>" CLOSE DONE END, "", NULL,
		"f{\"a\": \"\\\"\\\\\\n\\té🚀</b>\"}", "tool_calls"},
	{"markup inside the reasoning is reasoning", "," TOOLS THINK,
		"I could" BLOCK PARIS END "</think>hello", "I could" BLOCK PARIS END, "hello", "",
		"stop"},
	{"a call after the reasoning", "," TOOLS THINK, "hm</think>" BLOCK PARIS END, "hm", NULL,
		"get_weather{\"city\": \"Paris\"}", "tool_calls"},
	{"reasoning that never ends", "," TOOLS THINK, "hm" BLOCK PARIS END, "hm" BLOCK PARIS END,
		"", "", "stop"},
	{"doubled bars are text", "," TOOLS, "\n\n<｜｜DSML｜｜tool_calls>\n", "",
		"\n\n<｜｜DSML｜｜tool_calls>\n", "", "stop"},
	{"bare closers are text", "," TOOLS, "a" END DONE "b", "", "a" END DONE "b", "", "stop"},
	{"a block that is broken is text", "," TOOLS, "a" BLOCK "what?" END, "",
		"a" BLOCK "what?" END, "", "stop"},
	{"a call that is broken is text", "," TOOLS, BLOCK CALL "f\">\nwhat?" DONE END, "",
		BLOCK CALL "f\">\nwhat?" DONE END, "", "stop"},
	{"a call that the model never ended is text", "," TOOLS,
		"a" BLOCK CALL "f\">\n" PARAM "a" STRING "Par", "",
		"a" BLOCK CALL "f\">\n" PARAM "a" STRING "Par", "", "stop"},
	{"good calls before a broken one", "," TOOLS, BLOCK PARIS CALL "f\">\nwhat?" DONE END, "",
		"\n" CALL "f\">\nwhat?" DONE END, "get_weather{\"city\": \"Paris\"}", "tool_calls"},
	{"no tools, no calls", "", BLOCK PARIS END, "", BLOCK PARIS END, "", "stop"},
	{"tool_choice none", "," TOOLS ",\"tool_choice\":\"none\"", BLOCK PARIS END, "",
		BLOCK PARIS END, "", "stop"},
	{"an empty list of tools", ",\"tools\":[]", BLOCK PARIS END, "", BLOCK PARIS END, "",
		"stop"},
	{"tool_choice auto", "," TOOLS ",\"tool_choice\":\"auto\",\"parallel_tool_calls\":true",
		BLOCK PARIS END, "", NULL, "get_weather{\"city\": \"Paris\"}", "tool_calls"},
	{"one call only", "," TOOLS ",\"parallel_tool_calls\":false", "a" BLOCK PARIS PARIS END "b",
		"", "a", "get_weather{\"city\": \"Paris\"}", "tool_calls"},
	/* stop strings are looked for in the content, and nowhere else */
	{"a stop string in the content", "," TOOLS ",\"stop\":\"see\"",
		"Let me see." BLOCK PARIS END, "", "Let me ", "", "stop"},
	{"a stop string inside the markup", "," TOOLS ",\"stop\":[\"invoke\",\"\\n\",\"name\"]",
		"a" BLOCK PARIS END, "", "a", "get_weather{\"city\": \"Paris\"}", "tool_calls"},
	{"a stop string inside the arguments", "," TOOLS ",\"stop\":[\"Par\",\"city\"]",
		BLOCK PARIS END, "", NULL, "get_weather{\"city\": \"Paris\"}", "tool_calls"},
	{"a stop string inside the reasoning", "," TOOLS THINK ",\"stop\":[\"hm\",\"</think>\"]",
		"hm</think>ahm" BLOCK PARIS END, "hm", "a", "", "stop"},
	{"a stop string behind the calls", "," TOOLS ",\"stop\":\"X\"", BLOCK PARIS END "aXb", "",
		"a", "get_weather{\"city\": \"Paris\"}", "tool_calls"},
	{"a stop string is not found across a call", "," TOOLS ",\"stop\":\"ab\"",
		"a" BLOCK PARIS END "b", "", "ab", "get_weather{\"city\": \"Paris\"}",
		"tool_calls"},
	{"newlines that begin no block", "," TOOLS ",\"stop\":\"\\n\\n\"", "a\n\nb", "", "a", "",
		"stop"},
	{"newlines at the end", "," TOOLS ",\"stop\":\"\\n\"", "why?\n", "", "why?", "", "stop"},
};

static void check_row(size_t i, const struct heard *h, bool stream)
{
	const struct said *s = &h->said[0];
	char calls[CALLS_MAX];

	if (strcmp(s->content, rows[i].content ? rows[i].content : ""))
		fail_msg("%s: content \"%s\"", rows[i].what, s->content);
	if (strcmp(s->thought, rows[i].thought))
		fail_msg("%s: thought \"%s\"", rows[i].what, s->thought);
	if (strcmp(tools_calls(s, calls), rows[i].calls))
		fail_msg("%s: calls %s", rows[i].what, calls);
	if (strcmp(s->finish, rows[i].finish))
		fail_msg("%s: %s", rows[i].what, s->finish);
	if (!stream && s->null_content != !rows[i].content)
		fail_msg("%s: content is%s null", rows[i].what, s->null_content ? "" : " not");
}

static void test_rows_give_the_same_however_they_are_cut(void **state)
{
	struct fix *f = *state;
	struct heard h;
	size_t i, batch;
	int stream;

	for (i = 0; i < ARRAY_LEN(rows); i++)
		for (batch = 1; batch < 200; batch += 1 + batch / 4)
			for (stream = 0; stream < 2; stream++) {
				tools_answer(f, stream, rows[i].more, rows[i].text, batch, &h);
				check_row(i, &h, stream);
				fix_unhear(&h);
			}
}

/* The same with a token a byte: bars and </think> that are no tokens of their own. */
static void test_rows_give_the_same_byte_by_byte(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x;
	struct engine_seq *s;
	struct heard h;
	size_t i;
	int stream;

	for (i = 0; i < ARRAY_LEN(rows); i++)
		for (stream = 0; stream < 2; stream++) {
			s = tools_start(f, stream, rows[i].more, &x);
			if (fix_say(f, s, rows[i].text, 1))
				fix_eos(s);
			fix_hear(x, true, &h);
			check_row(i, &h, stream);
			fix_unhear(&h);
		}
}

static void test_deltas_have_the_form_clients_know(void **state)
{
	struct fix *f = *state;
	struct heard h;
	json_t *delta, *call;
	size_t i;

	tools_answer(f, true, "," TOOLS, "a" BLOCK PARIS END, 1000, &h);
	assert_int_equal(json_array_size(h.root), 3); /* role, all text, finish */
	delta = json_object_get(
		json_array_get(json_object_get(json_array_get(h.root, 1), "choices"), 0), "delta");
	assert_string_equal(json_string_value(json_object_get(delta, "content")), "a");
	call = json_array_get(json_object_get(delta, "tool_calls"), 0);
	assert_int_equal(json_object_size(call), 4);
	assert_int_equal(json_at(call, "index"), 0);
	assert_int_equal(json_object_size(json_object_get(call, "function")), 2);
	fix_unhear(&h);
	/* nothing but the call: an event for it has no content */
	tools_answer(f, true, "," TOOLS, BLOCK PARIS END, 1, &h);
	for (i = 1; i < json_array_size(h.root); i++) {
		delta = json_object_get(
			json_array_get(json_object_get(json_array_get(h.root, i), "choices"), 0),
			"delta");
		assert_null(json_object_get(delta, "content"));
	}
	assert_int_equal(json_array_size(h.root), 3);
	fix_unhear(&h);
}

/* 76: whatever token the limit falls on, there is no half call and no markup. */
static void test_limit_anywhere_leaves_no_half_call(void **state)
{
	static const char text[] = "Let me." BLOCK CALL "f\">\n" DONE PARIS END;
	struct fix *f = *state;
	struct heard h;
	char more[1024], calls[CALLS_MAX];
	uint32_t *ids;
	size_t n, i;
	int stream;

	ids = fix_tokens(f, text, &n);
	free(ids);
	for (i = 1; i <= n; i++)
		for (stream = 0; stream < 2; stream++) {
			snprintf(more, sizeof(more), "," TOOLS ",\"max_tokens\":%zu", i);
			tools_answer(f, stream, more, text, 1 + i % 5, &h);
			assert_string_equal(h.said[0].finish, "length");
			assert_null(strstr(h.said[0].content, "｜"));
			tools_calls(&h.said[0], calls);
			if (*calls && strcmp(calls, "f{}"))
				assert_string_equal(calls, "f{} get_weather{\"city\": \"Paris\"}");
			if (i > 20)
				assert_string_equal(h.said[0].content, "Let me.");
			fix_unhear(&h);
		}
	/* a stop_token_ids is a cut, too */
	for (stream = 0; stream < 2; stream++) {
		snprintf(more, sizeof(more), "," TOOLS ",\"stop_token_ids\":[%u]",
			f->byte_token['P']);
		tools_answer(f, stream, more, text, 3, &h);
		assert_string_equal(h.said[0].finish, "tool_calls");
		assert_string_equal(tools_calls(&h.said[0], calls), "f{}");
		assert_string_equal(h.said[0].content, "Let me.");
		assert_int_equal(json_integer_value(h.said[0].stop_reason), f->byte_token['P']);
		fix_unhear(&h);
	}
}

static void test_one_call_only_cancels_the_rest(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x;
	struct engine_seq *s =
		tools_start(f, false, "," TOOLS ",\"parallel_tool_calls\":false", &x);
	struct heard h;

	assert_false(fix_say(f, s, BLOCK PARIS PARIS END, 1));
	assert_true(s->cancelled);
	fix_hear(x, true, &h);
	assert_true(json_is_null(h.said[0].stop_reason));
	assert_int_equal(h.said[0].call_n, 1);
	fix_unhear(&h);
}

static void test_choices_of_one_request_have_calls_of_their_own(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x;
	struct engine_seq *s[2];
	struct heard h;
	char calls[CALLS_MAX];
	int stream;

	for (stream = 0; stream < 2; stream++) {
		s[1] = tools_start(f, stream, "," TOOLS ",\"n\":2", &x);
		s[0] = fake_engine_seq(f->engine, f->engine->submitted - 2);
		assert_true(fix_say(f, s[0], BLOCK CALL "f\">\n" PARAM "a" STRING "zero", 5));
		assert_true(fix_say(f, s[1], BLOCK CALL "f\">\n" PARAM "a" STRING "one", 7));
		assert_true(fix_say(f, s[1], CLOSE DONE END, 7));
		fix_eos(s[1]);
		assert_true(fix_say(f, s[0], CLOSE DONE PARIS END, 5));
		fix_eos(s[0]);
		fix_hear(x, true, &h);
		assert_string_equal(tools_calls(&h.said[0], calls),
			"f{\"a\": \"zero\"} get_weather{\"city\": \"Paris\"}");
		assert_string_equal(tools_calls(&h.said[1], calls), "f{\"a\": \"one\"}");
		assert_string_not_equal(h.said[0].calls[0].id, h.said[1].calls[0].id);
		assert_string_not_equal(h.said[0].calls[0].id, h.said[0].calls[1].id);
		fix_unhear(&h);
	}
}

/* Every token generated has its log-probability and its id, those of reasoning and markup too. */
static void test_logprobs_and_ids_count_every_token(void **state)
{
	static const char text[] = "hm</think>a" BLOCK PARIS END;
	struct fix *f = *state;
	struct heard h, whole;
	uint32_t *ids;
	size_t n;

	ids = fix_tokens(f, text, &n);
	free(ids);
	tools_answer(f, false, "," TOOLS THINK ",\"logprobs\":true,\"return_token_ids\":true", text,
		3, &whole);
	tools_answer(f, true, "," TOOLS THINK ",\"logprobs\":true,\"return_token_ids\":true", text,
		2, &h);
	assert_int_equal(json_array_size(whole.said[0].entries), n + 1);
	assert_int_equal(json_array_size(whole.said[0].ids), n + 1);
	assert_true(json_equal(h.said[0].entries, whole.said[0].entries));
	assert_true(json_equal(h.said[0].ids, whole.said[0].ids));
	assert_int_equal(json_at(whole.usage, "completion_tokens"), n + 1);
	assert_int_equal(json_at(whole.usage, "completion_tokens_details.reasoning_tokens"), 3);
	fix_unhear(&h);
	fix_unhear(&whole);
}

static void test_stream_and_whole_agree_on_random_markup(void **state)
{
	static const char *const bits[] = {BLOCK, END, CALL, DONE, STRING, JSON, PARAM, CLOSE, "f",
		"\">\n", "a", "1", "\n", "</think>", "<", DSML, "ab", "é", "🚀", BLOCK PARIS, PARIS,
		END, BLOCK CALL "f\">\n" PARAM "p" STRING "text"};
	unsigned seed = (unsigned)time(NULL);
	struct fix *f = *state;
	struct heard whole, h;
	char text[4096], more[600], a[CALLS_MAX], b[CALLS_MAX];
	size_t round, i, n;

	print_message("seed %u\n", seed);
	srand(seed);
	for (round = 0; round < 400; round++) {
		*text = '\0';
		n = (size_t)rand() % 12;
		for (i = 0; i < n; i++)
			strcat(text, bits[(size_t)rand() % ARRAY_LEN(bits)]);
		snprintf(more, sizeof(more),
			"," TOOLS ",\"stop\":[\"%s\",\"b\\n\"],\"max_tokens\":%d,\"min_tokens\":%d"
			",\"parallel_tool_calls\":%s%s",
			rand() % 2 ? "aaba" : "1", 4 + rand() % 300,
			rand() % (int)MIN(4, strlen(text) / 12 + 1), rand() % 4 ? "true" : "false",
			rand() % 2 ? THINK : "");
		tools_answer(f, false, more, text, 1 + (size_t)rand() % 5, &whole);
		tools_answer(f, true, more, text, 1 + (size_t)rand() % 50, &h);
		assert_string_equal(h.said[0].content, whole.said[0].content);
		assert_string_equal(h.said[0].thought, whole.said[0].thought);
		assert_string_equal(h.said[0].finish, whole.said[0].finish);
		assert_true(json_equal(h.said[0].stop_reason, whole.said[0].stop_reason));
		assert_string_equal(tools_calls(&h.said[0], a), tools_calls(&whole.said[0], b));
		fix_unhear(&whole);
		fix_unhear(&h);
	}
}

/* 82: a turn with neither content nor call is seen in a metric. */
static void test_metrics_tell_calls_and_empty_turns(void **state)
{
	struct fix *f = *state;
	struct heard h;

	tools_answer(f, false, "," TOOLS THINK, "hm</think>", 1, &h);
	assert_string_equal(h.said[0].content, "");
	assert_string_equal(h.said[0].finish, "stop");
	assert_false(h.said[0].null_content);
	fix_unhear(&h);
	tools_answer(f, true, "," TOOLS, BLOCK PARIS END, 4, &h);
	fix_unhear(&h);
	tools_answer(f, true, "," TOOLS, "x", 4, &h);
	fix_unhear(&h);
	assert_int_equal(f->api->metrics.choices_empty, 1);
	assert_int_equal(f->api->metrics.choices_tool_calls, 1);
	assert_int_equal(f->api->metrics.choices_stop, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, fix_setup, fix_teardown)
		T(test_rows_give_the_same_however_they_are_cut),
		T(test_rows_give_the_same_byte_by_byte),
		T(test_deltas_have_the_form_clients_know),
		T(test_limit_anywhere_leaves_no_half_call),
		T(test_one_call_only_cancels_the_rest),
		T(test_choices_of_one_request_have_calls_of_their_own),
		T(test_logprobs_and_ids_count_every_token),
		T(test_stream_and_whole_agree_on_random_markup),
		T(test_metrics_tell_calls_and_empty_turns),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
