/* Long calls, which are streamed in pieces, and calls that tool_choice asks for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/unit/tools_fixture.h"

/* A call that writes a file of len bytes. */
static char *write_file(size_t len)
{
	char *text = malloc(len + 512), *at = text;
	size_t i;

	at += sprintf(at, BLOCK CALL "f\">\n" PARAM "path" STRING "a.c" CLOSE PARAM "text" STRING);
	for (i = 0; i < len; i++)
		*at++ = i % 60 == 59 ? '\n' : i % 61 == 17 ? '<' : (char)('a' + i % 26);
	sprintf(at, CLOSE DONE END);
	return text;
}

/* 77: a file of 20 KB is on its way while it is written, in pieces of valid JSON. */
static void test_long_call_is_streamed_while_it_is_written(void **state)
{
	struct fix *f = *state;
	char *text = write_file(20000);
	struct http_exchange *x;
	struct engine_seq *s;
	struct heard h, whole;
	uint32_t *ids;
	size_t n, i, before, silent = 0;
	json_t *args;

	f->engine->limits.max_context = 1 << 16;
	s = tools_start(f, true, "," TOOLS, &x);
	ids = fix_tokens(f, text, &n);
	for (i = 0; i < n; i++) {
		before = x->out.len;
		assert_true(fake_engine_make(s, ids + i, 1, 1));
		silent = x->out.len > before ? 0 : silent + 1;
		assert_true(silent < 700); /* 512 bytes, and the markup before them */
		if (i > 1000 && i + 100 < n)
			assert_true(silent < 3);
	}
	fix_eos(s);
	free(ids);
	fix_hear(x, true, &h);
	tools_answer(f, false, "," TOOLS, text, 7, &whole);
	assert_true(h.said[0].calls[0].deltas > 10000);
	assert_string_equal(h.said[0].calls[0].args, whole.said[0].calls[0].args);
	args = json_loads(h.said[0].calls[0].args, 0, NULL);
	assert_int_equal(json_string_length(json_object_get(args, "text")), 20000);
	json_decref(args);
	assert_string_equal(h.said[0].finish, "tool_calls");
	fix_unhear(&h);
	fix_unhear(&whole);
	free(text);
}

/* What has been sent cannot be taken back, but nobody can take it for a whole call. */
static void test_limit_in_a_long_call_leaves_json_without_its_end(void **state)
{
	struct fix *f = *state;
	char *text = write_file(2000);
	struct heard h;

	tools_answer(f, true, "," TOOLS ",\"max_tokens\":1500", text, 4, &h);
	assert_string_equal(h.said[0].finish, "length");
	assert_int_equal(h.said[0].call_n, 1);
	assert_null(json_loads(h.said[0].calls[0].args, 0, NULL));
	assert_null(strstr(h.said[0].calls[0].args, "｜"));
	assert_string_equal(h.said[0].content, "");
	fix_unhear(&h);
	/* not in the whole answer, nor where the client wants whole calls */
	tools_answer(f, false, "," TOOLS ",\"max_tokens\":1500", text, 4, &h);
	assert_string_equal(h.said[0].finish, "length");
	assert_int_equal(h.said[0].call_n, 0);
	assert_false(h.said[0].null_content);
	fix_unhear(&h);
	tools_answer(f, true, "," TOOLS ",\"tool_stream\":false,\"max_tokens\":1500", text, 4, &h);
	assert_string_equal(h.said[0].finish, "length");
	assert_int_equal(h.said[0].call_n, 0);
	fix_unhear(&h);
	free(text);
}

static void test_tool_stream_off_gives_whole_calls_and_comments(void **state)
{
	struct fix *f = *state;
	char *text = write_file(2000);
	struct http_exchange *x;
	struct engine_seq *s = tools_start(f, true, "," TOOLS ",\"tool_stream\":false", &x);
	struct heard h;
	uint32_t *ids;
	size_t n;

	ids = fix_tokens(f, text, &n);
	assert_true(fake_engine_make(s, ids, 1000, 10));
	fake_loop_advance(f->loop, 10 * NS_PER_S);
	assert_true(fake_engine_make(s, ids + 1000, n - 1000, 10));
	fix_eos(s);
	free(ids);
	fix_hear(x, true, &h);
	assert_int_equal(h.comments, 1);
	assert_non_null(strstr(h.comment, "a tool call is being written, "));
	assert_int_equal(h.said[0].calls[0].deltas, 1);
	assert_string_equal(h.said[0].finish, "tool_calls");
	fix_unhear(&h);
	free(text);
}

/* A long call that breaks: no end of its JSON, and the rest is text, however it was cut. */
static void test_long_call_that_breaks_has_no_end(void **state)
{
	struct fix *f = *state;
	char *text = write_file(1000), *at = strstr(text, CLOSE DONE);
	struct heard h, whole;
	size_t batch;

	strcpy(at, DONE END "x");
	for (batch = 1; batch < 2000; batch += 1 + batch) {
		tools_answer(f, true, "," TOOLS, text, batch, &h);
		assert_string_equal(h.said[0].finish, "stop");
		assert_int_equal(h.said[0].call_n, 1);
		assert_null(json_loads(h.said[0].calls[0].args, 0, NULL));
		assert_string_equal(h.said[0].content, DONE END "x");
		fix_unhear(&h);
	}
	tools_answer(f, false, "," TOOLS, text, 1, &whole);
	assert_string_equal(whole.said[0].content, text);
	assert_int_equal(whole.said[0].call_n, 0);
	fix_unhear(&whole);
	free(text);
}

/* Text of the prompt as tokens, to compare with what the engine got. */
static bool prompt_ends(struct fix *f, const struct engine_seq *s, const char *text)
{
	size_t len;
	char *prompt = tokenizer_decode(f->api->tok, s->prompt, s->prompt_len, false, &len);
	bool ends = len >= strlen(text) && !strcmp(prompt + len - strlen(text), text);

	if (!ends)
		print_message("%s\n", prompt);
	free(prompt);
	return ends;
}

/* 84: required and named work: the prompt begins the call, the answer is what follows. */
static void test_required_begins_the_answer_with_a_call(void **state)
{
	static const char named[] =
		",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":"
		"\"get_weather\"}}";
	struct fix *f = *state;
	struct http_exchange *x;
	struct engine_seq *s;
	struct heard h;
	char calls[CALLS_MAX];
	int stream;

	for (stream = 0; stream < 2; stream++) {
		s = tools_start(f, stream, "," TOOLS ",\"tool_choice\":\"required\"", &x);
		assert_true(prompt_ends(f, s, "<｜Assistant｜></think>" BLOCK CALL));
		assert_true(fix_say(f, s, "f\">\n" DONE END, 2));
		fix_eos(s);
		fix_hear(x, true, &h);
		assert_string_equal(tools_calls(&h.said[0], calls), "f{}");
		assert_string_equal(h.said[0].finish, "tool_calls");
		assert_int_equal(
			json_at(h.root, stream ? "0.choices.0.index" : "choices.0.index"), 0);
		fix_unhear(&h);

		s = tools_start(f, stream, "," TOOLS ",\"reasoning_effort\":\"max\"", &x);
		fake_exchange_gone(x);
		fake_exchange_free(x);
		snprintf(calls, sizeof(calls),
			"," TOOLS "%s,\"reasoning_effort\":\"max\",\"zzz\":1", named);
		s = tools_start(f, stream, calls, &x);
		assert_true(
			prompt_ends(f, s, "<｜Assistant｜></think>" BLOCK CALL "get_weather\">\n"));
		assert_true(fix_say(f, s, PARAM "city" STRING "Rome" CLOSE DONE END, 3));
		fix_eos(s);
		assert_true(fake_exchange_has(x,
			"x-heddle-warning: thinking is off: tool_choice asks for a call at once; "
			"ignored unknown fields: zzz"));
		fix_hear(x, true, &h);
		assert_string_equal(
			tools_calls(&h.said[0], calls), "get_weather{\"city\": \"Rome\"}");
		assert_string_equal(h.said[0].thought, "");
		fix_unhear(&h);
	}
	/* what the model makes of it may still be no call: then what it wrote is text */
	s = tools_start(f, false, "," TOOLS ",\"tool_choice\":\"required\"", &x);
	assert_true(fix_say(f, s, "\">?", 1));
	fix_eos(s);
	fix_hear(x, true, &h);
	assert_string_equal(h.said[0].content, "\">?");
	assert_string_equal(h.said[0].finish, "stop");
	fix_unhear(&h);
}

static void test_prompt_of_a_forced_call_is_what_the_model_would_write(void **state)
{
	static const char history[] =
		"{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"},{\"role\":\"assistant\","
		"\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":"
		"{\"name\":\"get_weather\",\"arguments\":\"{\\\"city\\\":\\\"Rome\\\"}\"}}]}]"
		"," TOOLS "}";
	static const char *const forced[] = {
		"\"required\"", "{\"type\":\"function\",\"function\":{\"name\":\"get_weather\"}}"};
	struct fix *f = *state;
	struct http_exchange *x = fix_post(f, "/tokenize", history);
	json_t *all = fake_exchange_json(x), *some;
	char body[1024];
	size_t i, k, n;

	fake_exchange_free(x);
	for (i = 0; i < ARRAY_LEN(forced); i++) {
		snprintf(body, sizeof(body), "{" USER "," TOOLS ",\"tool_choice\":%s}", forced[i]);
		x = fix_post(f, "/tokenize", body);
		some = fake_exchange_json(x);
		n = json_array_size(json_object_get(some, "tokens"));
		for (k = 0; k < n; k++)
			assert_true(json_equal(json_array_get(json_object_get(some, "tokens"), k),
				json_array_get(json_object_get(all, "tokens"), k)));
		json_decref(some);
		fake_exchange_free(x);
	}
	json_decref(all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, fix_setup, fix_teardown)
		T(test_long_call_is_streamed_while_it_is_written),
		T(test_limit_in_a_long_call_leaves_json_without_its_end),
		T(test_tool_stream_off_gives_whole_calls_and_comments),
		T(test_long_call_that_breaks_has_no_end),
		T(test_required_begins_the_answer_with_a_call),
		T(test_prompt_of_a_forced_call_is_what_the_model_would_write),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
