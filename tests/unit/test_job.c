/* Generation: what a request asks of the engine, what ends an answer, what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/unit/api_fixture.h"

/* Sends, and returns the first sequence of this request. */
static struct engine_seq *start(
	struct fix *f, const char *path, const char *body, struct http_exchange **ret_x)
{
	size_t before = f->engine->submitted;

	*ret_x = fix_post(f, path, body);
	if ((*ret_x)->end != FAKE_OPEN)
		fail_msg("%s: %.*s", body, (int)(*ret_x)->out.len, (*ret_x)->out.data);
	return fake_engine_seq(f->engine, before);
}

static void finish(struct fix *f, struct http_exchange *x)
{
	(void)f;
	fake_exchange_gone(x);
	fake_exchange_free(x);
}

static void test_chat_defaults_reach_the_engine(void **state)
{
	static const uint32_t prompt[] = {0, 3, 2650, 4, 6};
	struct fix *f = *state;
	struct http_exchange *x;
	struct engine_seq *s = start(f, CHAT, "{" USER "}", &x);

	assert_int_equal(s->prompt_len, ARRAY_LEN(prompt));
	assert_memory_equal(s->prompt, prompt, sizeof(prompt));
	assert_int_equal(s->max_tokens, 4096 - 5);
	assert_int_equal(s->stop_token_n, 1);
	assert_int_equal(s->stop_tokens[0], EOS);
	assert_true(s->sampling.temperature == 1.0f && s->sampling.top_p == 1.0f);
	assert_true(s->sampling.top_k == 0 && s->sampling.min_p == 0.0f);
	assert_true(s->sampling.repetition_penalty == 1.0f && !s->sampling.frequency_penalty);
	assert_true(!s->sampling.logprobs && !s->prompt_logprobs && !s->sampling.choice);
	assert_string_equal(s->id, "req-1");
	assert_true(x->body_dropped);
	finish(f, x);
}

static void test_sampling_parameters_reach_the_engine(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x;
	struct engine_seq *s = start(f, CHAT,
		"{" USER ",\"temperature\":0.5,\"top_p\":0.75,\"top_k\":9,\"min_p\":0.125,"
		"\"seed\":-2,\"max_tokens\":7,\"min_tokens\":3,\"frequency_penalty\":0.5,"
		"\"presence_penalty\":-0.5,\"repetition_penalty\":1.25,\"ignore_eos\":true,"
		"\"stop_token_ids\":[5,7],\"logit_bias\":{\"0\":-100,\"4000\":2.5},"
		"\"logprobs\":true,\"top_logprobs\":20}",
		&x);

	assert_true(s->sampling.temperature == 0.5f && s->sampling.top_p == 0.75f);
	assert_true(s->sampling.top_k == 9 && s->sampling.min_p == 0.125f);
	assert_true(s->sampling.seed == (uint64_t)-2);
	assert_true(s->max_tokens == 7 && s->min_tokens == 3);
	assert_true(s->sampling.frequency_penalty == 0.5f && s->sampling.presence_penalty == -0.5f);
	assert_true(s->sampling.repetition_penalty == 1.25f && s->sampling.logprobs == 20);
	assert_int_equal(s->stop_token_n, 2);
	assert_true(s->stop_tokens[0] == 5 && s->stop_tokens[1] == 7);
	assert_int_equal(s->bias_n, 2);
	assert_true(s->bias[0].token == 0 && s->bias[0].bias == -100.0f);
	assert_true(s->bias[1].token == 4000 && s->bias[1].bias == 2.5f);
	finish(f, x);
}

static void test_top_k_minus_one_is_off_and_stop_ids_add_to_eos(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x;
	struct engine_seq *s =
		start(f, TEXT, "{\"prompt\":\"a\",\"top_k\":-1,\"stop_token_ids\":[9]}", &x);

	assert_int_equal(s->sampling.top_k, 0);
	assert_int_equal(s->stop_token_n, 2);
	assert_true(s->stop_tokens[0] == EOS && s->stop_tokens[1] == 9);
	finish(f, x);
}

static void test_seed_is_drawn_anew_when_absent(void **state)
{
	struct fix *f = *state;
	struct http_exchange *a, *b;
	struct engine_seq *s = start(f, CHAT, "{" USER "}", &a),
			  *t = start(f, CHAT, "{" USER "}", &b);

	assert_true(s->sampling.seed != t->sampling.seed);
	finish(f, a);
	finish(f, b);
}

static void test_n_and_prompts_make_choices_in_order(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x;
	struct engine_seq *s;
	struct heard h;
	char text[16];
	int i;

	(void)start(f, TEXT, "{\"prompt\":[\"Hello\",\"the\"],\"n\":3,\"seed\":7}", &x);
	assert_int_equal(f->engine->submitted, 6);
	for (i = 5; i >= 0; i--) { /* ends in any order */
		s = fake_engine_seq(f->engine, (size_t)i);
		assert_int_equal(s->sampling.choice, i % 3);
		assert_int_equal(s->sampling.seed, 7);
		assert_memory_equal(
			s->prompt, fake_engine_seq(f->engine, i < 3 ? 0 : 3)->prompt, 4);
		snprintf(text, sizeof(text), "c%d", i);
		fix_say(f, s, text, 1);
		fix_eos(s);
	}
	fix_hear(x, false, &h);
	assert_int_equal(h.choice_n, 6);
	for (i = 0; i < 6; i++) {
		snprintf(text, sizeof(text), "c%d", i);
		assert_string_equal(h.said[i].content, text);
	}
	assert_int_equal(json_at(h.usage, "prompt_tokens"),
		fake_engine_seq(f->engine, 0)->prompt_len +
			fake_engine_seq(f->engine, 3)->prompt_len);
	assert_int_equal(json_at(h.usage, "completion_tokens"), 18);
	fix_unhear(&h);
}

static void test_prompt_forms_give_their_tokens(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x;
	struct engine_seq *s = start(f, TEXT, "{\"prompt\":[0,3,2650]}", &x);

	assert_int_equal(s->prompt_len, 3);
	assert_int_equal(s->prompt[2], 2650);
	finish(f, x);
	s = start(f, TEXT, "{\"prompt\":[[5],[6,7]]}", &x);
	assert_true(s->prompt_len == 1 && s->prompt[0] == 5);
	assert_true(s->next->prompt_len == 2 && s->next->prompt[1] == 7);
	finish(f, x);
	/* special tokens are matched in a prompt, unless told not to */
	s = start(f, TEXT, "{\"prompt\":\"<｜User｜>\"}", &x);
	assert_true(s->prompt_len == 1 && s->prompt[0] == 3);
	finish(f, x);
	s = start(f, TEXT, "{\"prompt\":\"<｜User｜>\",\"parse_special\":false}", &x);
	assert_true(s->prompt_len > 1);
	finish(f, x);
}

static void test_finish_reasons_are_told_apart(void **state)
{
	static const uint32_t seven = 7;
	struct fix *f = *state;
	struct http_exchange *x;
	struct engine_seq *s;
	struct heard h;

	s = start(f, CHAT, "{" USER "}", &x);
	fix_say(f, s, "hey", 1);
	fix_eos(s);
	fix_hear(x, true, &h);
	assert_string_equal(h.said[0].content, "hey");
	assert_string_equal(h.said[0].finish, "stop");
	assert_true(json_is_null(h.said[0].stop_reason));
	assert_int_equal(json_at(h.usage, "prompt_tokens"), 5);
	assert_int_equal(json_at(h.usage, "completion_tokens"), 4);
	assert_int_equal(json_at(h.usage, "total_tokens"), 9);
	assert_int_equal(json_at(h.usage, "prompt_tokens_details.cached_tokens"), 0);
	fix_unhear(&h);

	s = start(f, CHAT, "{" USER ",\"max_tokens\":2}", &x);
	fix_say(f, s, "hey", 3);
	fix_hear(x, true, &h);
	assert_string_equal(h.said[0].content, "he");
	assert_string_equal(h.said[0].finish, "length");
	assert_true(json_is_null(h.said[0].stop_reason));
	fix_unhear(&h);

	s = start(f, CHAT, "{" USER ",\"stop_token_ids\":[7]}", &x);
	fix_say(f, s, "hey", 1);
	fake_engine_make(s, &seven, 1, 1);
	fix_hear(x, true, &h);
	assert_string_equal(h.said[0].content, "hey");
	assert_int_equal(json_integer_value(h.said[0].stop_reason), 7);
	fix_unhear(&h);

	s = start(f, CHAT, "{" USER ",\"stop\":[\"zz\",\"ey\"]}", &x);
	assert_false(fix_say(f, s, "heyho", 1));
	assert_true(s->cancelled);
	fix_hear(x, true, &h);
	assert_string_equal(h.said[0].content, "h");
	assert_string_equal(h.said[0].finish, "stop");
	assert_string_equal(json_string_value(h.said[0].stop_reason), "ey");
	assert_int_equal(json_at(h.usage, "completion_tokens"), 3);
	fix_unhear(&h);
}

static void test_newer_name_of_max_tokens_wins(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x;
	struct engine_seq *s =
		start(f, CHAT, "{" USER ",\"max_tokens\":9,\"max_completion_tokens\":4}", &x);

	assert_int_equal(s->max_tokens, 4);
	finish(f, x);
}

static void test_max_tokens_default_comes_from_heddle_ini_and_fits(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x;
	struct errbuf err;
	struct engine_seq *s;

	assert_int_equal(conf_override(&f->set, "api.max_tokens=10", &err), 0);
	api_reload(f->api, &f->set);
	s = start(f, CHAT, "{" USER "}", &x);
	assert_int_equal(s->max_tokens, 10);
	finish(f, x);
	f->engine->limits.max_context = 12;
	s = start(f, CHAT, "{" USER "}", &x);
	assert_int_equal(s->max_tokens, 7);
	finish(f, x);
}

static void test_prompt_too_long_says_both_lengths(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x;
	struct engine_seq *s;

	f->engine->limits.max_context = 5;
	fix_refused(f, CHAT, "{" USER "}", 400, "messages", "5 tokens, but the prompt has 5");
	f->engine->limits.max_context = 4;
	fix_refused(f, CHAT, "{" USER "}", 400, "messages", "4 tokens, but the prompt has 5");
	f->engine->limits.max_context = 6;
	s = start(f, CHAT, "{" USER "}", &x);
	assert_int_equal(s->max_tokens, 1);
	finish(f, x);
	/* what was asked for is never shortened */
	fix_refused(f, CHAT, "{" USER ",\"max_tokens\":2}", 400, "messages", "2 more, 7 in all");
	s = start(f, CHAT, "{" USER ",\"max_tokens\":1}", &x);
	finish(f, x);
	fix_refused(f, TEXT, "{\"prompt\":[[1],[1,2,3,4,5,6]]}", 400, "prompt", "has 6");
	fix_refused(f, CHAT, "{" USER ",\"min_tokens\":2}", 400, "min_tokens", "more than the 1");
}

static void test_rules_across_fields_name_one(void **state)
{
	static const struct {
		const char *path, *body, *param, *says;
	} cases[] = {
		{CHAT, "{}", "messages", "missing"},
		{CHAT, "{\"messages\":null}", "messages", "missing"},
		{CHAT, "{\"messages\":[]}", "messages", "empty"},
		{CHAT, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\"}]}", "messages",
			"nothing to answer"},
		{TEXT, "{}", "prompt", "missing"},
		{TEXT, "{\"prompt\":\"\"}", "prompt", "empty"},
		{TEXT, "{\"prompt\":[]}", "prompt", "empty"},
		{TEXT, "{\"prompt\":[\"a\",\"\"]}", "prompt", "prompt 2 of 2 is empty"},
		{TEXT, "{\"prompt\":[[]]}", "prompt", "empty"},
		{TEXT, "{\"prompt\":[\"a\",1]}", "prompt", "another type"},
		{TEXT, "{\"prompt\":[[1],\"a\"]}", "prompt", "another type"},
		{TEXT, "{\"prompt\":[1,\"a\"]}", "prompt", "prompt[1] must be a token id"},
		{TEXT, "{\"prompt\":[1.5]}", "prompt", "list of lists"},
		{TEXT, "{\"prompt\":[1,-1]}", "prompt", "-1"},
		{TEXT, "{\"prompt\":[[1],[1,99999]]}", "prompt[1]", "99999"},
		{TEXT, "{\"prompt\":\"a\",\"max_tokens\":0}", "max_tokens", "echo"},
		{CHAT, "{" USER ",\"max_tokens\":0}", "max_tokens", "at least 1"},
		{CHAT, "{" USER ",\"max_tokens\":3,\"min_tokens\":4}", "min_tokens", "above"},
		{CHAT, "{" USER ",\"top_logprobs\":2}", "top_logprobs", "needs"},
		{CHAT, "{" USER ",\"stream_options\":{\"include_usage\":true}}", "stream_options",
			"needs"},
		{CHAT, "{" USER ",\"stop\":[\"\"]}", "stop", "empty"},
		{CHAT, "{" USER ",\"stop\":\"\"}", "stop", "empty"},
		{CHAT, "{" USER ",\"stop\":[1]}", "stop", "array of strings"},
		{CHAT,
			"{" USER ",\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\","
			"\"9\",\"10\",\"11\",\"12\",\"13\",\"14\",\"15\",\"16\",\"17\"]}",
			"stop", "up to 16"},
		{CHAT, "{" USER ",\"stop_token_ids\":[1,\"x\"]}", "stop_token_ids", "[1]"},
		{CHAT, "{" USER ",\"stop_token_ids\":[99999]}", "stop_token_ids", "99999"},
		{CHAT, "{" USER ",\"logit_bias\":{\"x\":1}}", "logit_bias", "\"x\""},
		{CHAT, "{" USER ",\"logit_bias\":{\"-1\":1}}", "logit_bias", "\"-1\""},
		{CHAT, "{" USER ",\"logit_bias\":{\"\":1}}", "logit_bias", "token id"},
		{CHAT, "{" USER ",\"logit_bias\":{\"99999\":1}}", "logit_bias", "99999"},
		{CHAT, "{" USER ",\"logit_bias\":{\"5\":2,\"05\":1}}", "logit_bias",
			"\"05\" is no"},
		{CHAT, "{" USER ",\"logit_bias\":{\"00\":1}}", "logit_bias", "\"00\" is no"},
		{CHAT, "{" USER ",\"logit_bias\":{\"+5\":1}}", "logit_bias", "\"+5\" is no"},
		{CHAT, "{" USER ",\"logit_bias\":{\" 5\":1}}", "logit_bias", "\" 5\" is no"},
		{CHAT, "{" USER ",\"logit_bias\":{\"5\":101}}", "logit_bias", "-100 to 100"},
		{CHAT, "{" USER ",\"logit_bias\":{\"5\":\"1\"}}", "logit_bias", "number"},
		{CHAT, "{" USER ",\"response_format\":{\"type\":\"json_object\"}}",
			"response_format", "text"},
		{CHAT, "{" USER ",\"response_format\":{}}", "response_format", "text"},
		{CHAT,
			"{" USER ",\"response_format\":{\"type\":\"json_object\"},"
			"\"reasoning_effort\":\"high\"}",
			"response_format", "JSON form"},
		{CHAT,
			"{" USER ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":"
			"{\"name\":\"x\",\"schema\":{}}}}",
			"response_format", "JSON form"},
		{CHAT, "{" USER ",\"tool_choice\":\"required\"}", "tool_choice", "no tools"},
		{CHAT, "{" USER ",\"tool_choice\":{\"type\":\"function\"}}", "tool_choice",
			"no tools"},
		{CHAT, "{" USER "," TOOLS ",\"tool_choice\":{\"type\":\"function\"}}",
			"tool_choice", "must be auto, none, required"},
		{CHAT, "{" USER "," TOOLS ",\"tool_choice\":\"any\"}", "tool_choice",
			"must be auto, none, required"},
		{CHAT,
			"{" USER "," TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":"
			"{\"name\":\"nope\"}}}",
			"tool_choice", "\"nope\", which is not among the tools"},
		{CHAT, "{" USER ",\"n\":0}", "n", "from 1 to 128"},
	};
	struct fix *f = *state;
	size_t i;

	for (i = 0; i < ARRAY_LEN(cases); i++)
		fix_refused(f, cases[i].path, cases[i].body, 400, cases[i].param, cases[i].says);
}

static void test_what_changes_nothing_is_accepted(void **state)
{
	static const char *const bodies[] = {
		"{" USER ",\"response_format\":{\"type\":\"text\"},\"tool_choice\":\"auto\"}",
		"{" USER ",\"tool_choice\":\"none\",\"stop\":[],\"logit_bias\":{},\"user\":\"x\"}",
		"{" USER ",\"stop\":null,\"seed\":null,\"max_tokens\":null,\"n\":null}",
		"{" USER ",\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"10\","
		"\"11\",\"12\",\"13\",\"14\",\"15\",\"16\"]}",
	};
	struct fix *f = *state;
	struct http_exchange *x;
	size_t i;

	for (i = 0; i < ARRAY_LEN(bodies); i++) {
		(void)start(f, CHAT, bodies[i], &x);
		finish(f, x);
	}
}

static void test_tools_stand_in_the_prompt_unless_none(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x;
	struct engine_seq *s = start(f, CHAT, "{" USER "," TOOLS "}", &x);

	assert_true(s->prompt_len > 100);
	finish(f, x);
	s = start(f, CHAT, "{" USER ",\"tool_choice\":\"none\"," TOOLS "}", &x);
	assert_int_equal(s->prompt_len, 5);
	finish(f, x);
}

/* One request with these switches (0 absent, 1 off, 2 on), in the order in which they are read. */
static void try_switches(struct fix *f, int effort, const int on[3])
{
	static const char *const efforts[] = {"", ",\"reasoning_effort\":null",
		",\"reasoning_effort\":\"none\"", ",\"reasoning_effort\":\"low\"",
		",\"reasoning_effort\":\"max\""};
	static const char *const words[3][3] = {{"", ",\"thinking\":{\"type\":\"disabled\"}",
							",\"thinking\":{\"type\":\"enabled\"}"},
		{"", "\"thinking\":false", "\"thinking\":true"},
		{"", "\"enable_thinking\":false", "\"enable_thinking\":true"}};
	static const char *const names[] = {"thinking.type", "chat_template_kwargs.thinking",
		"chat_template_kwargs.enable_thinking"};
	struct http_exchange *x;
	struct engine_seq *s;
	int i, decided = 0;
	char body[512];

	snprintf(body, sizeof(body), "{" USER "%s%s,\"chat_template_kwargs\":{%s%s%s}}",
		efforts[effort], words[0][on[0]], words[1][on[1]], on[1] && on[2] ? "," : "",
		words[2][on[2]]);
	for (i = 0; i < 3; i++) {
		if (on[i] && decided && on[i] != decided) {
			fix_refused(f, CHAT, body, 400, names[i], "turns thinking");
			return;
		}
		decided = on[i] ? on[i] : decided;
	}
	if (!decided)
		decided = effort >= 3 ? 2 : 1;
	s = start(f, CHAT, body, &x);
	assert_int_equal(s->prompt[s->prompt_len - 1], decided == 2 ? 5 : 6);
	/* the deepest effort has a text of its own */
	assert_true((s->prompt_len > 20) == (decided == 2 && effort == 4));
	finish(f, x);
}

static void test_thinking_switches_win_and_must_agree(void **state)
{
	int effort, i;

	for (effort = 0; effort < 5; effort++)
		for (i = 0; i < 27; i++)
			try_switches(*state, effort, (const int[3]){i % 3, i / 3 % 3, i / 9});
}

/* A word of 16 MB is refused before it is split: by its length alone (one of 60: api.bats). */
static void test_prompt_that_cannot_fit_is_refused_unread(void **state)
{
	const size_t most = 4096 * 29, sizes[] = {most + 1, 16u << 20};
	struct fix *f = *state;
	struct http_exchange *x;
	struct timespec begin, end;
	size_t i, n;
	char *body;
	int chat;

	assert_int_equal(f->api->token_bytes, 29); /* its longest, of BOS */
	body = malloc(sizes[1] + 128);
	for (chat = 0; chat < 2; chat++)
		for (i = 0; i < ARRAY_LEN(sizes) - (size_t)chat; i++) {
			/* the format itself has some bytes as well */
			n = (size_t)sprintf(body, "{\"%s\":", chat ? "messages" : "prompt");
			n += (size_t)sprintf(
				body + n, "%s", chat ? "[{\"role\":\"user\",\"content\":\"" : "\"");
			memset(body + n, 'a', sizes[i]);
			strcpy(body + n + sizes[i], chat ? "\"}]}" : "\"}");
			clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
			x = fix_post(f, chat ? CHAT : TEXT, body);
			fake_loop_work(f->loop);
			clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
			/* reading the JSON takes some tenths of a second, splitting it many */
			assert_true(end.tv_sec - begin.tv_sec < 10);
			fix_check_error(x, 400, chat ? "messages" : "prompt",
				" bytes: more than 29 for each of them");
		}
	/* one byte less is read, and has its number of tokens */
	n = (size_t)sprintf(body, "{\"prompt\":\"");
	memset(body + n, 'a', most);
	strcpy(body + n + most, "\"}");
	x = fix_post(f, TEXT, body);
	fake_loop_work(f->loop);
	fix_check_error(x, 400, "prompt", "there is no room for an answer");
	/* to count goes as far, which is past the context */
	x = fix_post(f, "/tokenize", body);
	fake_loop_work(f->loop);
	assert_int_equal(x->status, 200);
	fake_exchange_free(x);
	memset(body + n, 'a', most + 1);
	strcpy(body + n + most + 1, "\"}");
	x = fix_post(f, "/tokenize", body);
	fake_loop_work(f->loop);
	fix_check_error(x, 400, "prompt", " bytes: more than 29 for each of them");
	free(body);
}

static void test_engine_refusals_become_statuses(void **state)
{
	static const struct {
		int ret, status;
		const char *header;
	} cases[] = {{-EAGAIN, 429, "retry-after: 1"}, {-ESHUTDOWN, 503, "retry-after: 5"},
		{-E2BIG, 400, NULL}, {-EDOM, 400, NULL}, {-ENOMEM, 500, NULL}};
	struct fix *f = *state;
	struct http_exchange *x;
	size_t i;

	f->engine->refuse_at = 2;
	for (i = 0; i < ARRAY_LEN(cases); i++) {
		f->engine->refuse = cases[i].ret;
		f->engine->submitted = 0;
		x = fix_post(f, CHAT, "{" USER ",\"n\":4,\"stream\":true}");
		assert_false(x->streaming);
		if (cases[i].header)
			assert_true(fake_exchange_has(x, cases[i].header));
		fix_check_error(x, cases[i].status, NULL, "refused by the test");
		assert_int_equal(f->engine->submitted, 2); /* and both cancelled again */
		assert_int_equal(fake_engine_live(f->engine), 0);
	}
}

static void test_not_ready_is_503(void **state)
{
	struct fix *f = *state;

	f->engine->health = ENGINE_DRAINING;
	fix_refused(f, CHAT, "{" USER "}", 503, NULL, "shutting down");
	f->engine->health = ENGINE_FAILED_FOR_GOOD;
	fix_refused(f, CHAT, "{" USER "}", 503, NULL, "failed");
	f->engine->health = ENGINE_STARTING;
	f->engine->limits = (struct engine_limits){0};
	fix_refused(f, CHAT, "{" USER "}", 503, NULL, "starting");
}

static void test_model_is_echoed_and_ids_returned(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x;
	struct engine_seq *s;
	struct heard h;

	s = start(f, CHAT, "{" USER ",\"model\":\"a\\u0000 \\\"b\\\"\",\"return_token_ids\":true}",
		&x);
	fix_say(f, s, "ab", 1);
	fix_eos(s);
	fix_hear(x, true, &h);
	assert_int_equal(json_string_length(json_object_get(h.root, "model")), 6);
	assert_memory_equal(json_string_value(json_object_get(h.root, "model")), "a\0 \"b\"", 6);
	assert_string_equal(json_string_value(json_object_get(h.root, "id")), "chatcmpl-req-1");
	assert_string_equal(
		json_string_value(json_object_get(h.root, "object")), "chat.completion");
	assert_int_equal(json_at(h.root, "prompt_token_ids.2"), 2650);
	assert_int_equal(json_array_size(h.said[0].ids), 3);
	assert_int_equal(json_at(h.said[0].ids, "0"), f->byte_token['a']);
	assert_int_equal(json_at(h.said[0].ids, "2"), EOS);
	fix_unhear(&h);
	s = start(f, TEXT, "{\"prompt\":[5,6],\"return_token_ids\":true}", &x);
	fix_eos(s);
	fix_hear(x, false, &h);
	assert_string_equal(json_string_value(json_object_get(h.root, "model")), "heddle-mini");
	assert_string_equal(
		json_string_value(json_object_get(h.root, "object")), "text_completion");
	assert_int_equal(json_at(h.root, "choices.0.prompt_token_ids.1"), 6);
	fix_unhear(&h);
}

static void test_skip_special_tokens_is_a_choice(void **state)
{
	static const uint32_t pad = 2;
	struct fix *f = *state;
	struct http_exchange *x;
	struct engine_seq *s;
	struct heard h;
	int skip;

	for (skip = 0; skip < 2; skip++) {
		s = start(f, TEXT,
			skip ? "{\"prompt\":\"a\"}"
			     : "{\"prompt\":\"a\",\"skip_special_tokens\":false}",
			&x);
		fix_say(f, s, "x", 1);
		fake_engine_make(s, &pad, 1, 1);
		fix_say(f, s, "y", 1);
		fix_eos(s);
		fix_hear(x, false, &h);
		assert_string_equal(h.said[0].content, skip ? "xy" : "x<｜▁pad▁｜>y");
		fix_unhear(&h);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, fix_setup, fix_teardown)
		T(test_chat_defaults_reach_the_engine),
		T(test_sampling_parameters_reach_the_engine),
		T(test_top_k_minus_one_is_off_and_stop_ids_add_to_eos),
		T(test_seed_is_drawn_anew_when_absent),
		T(test_n_and_prompts_make_choices_in_order),
		T(test_prompt_forms_give_their_tokens),
		T(test_finish_reasons_are_told_apart),
		T(test_newer_name_of_max_tokens_wins),
		T(test_max_tokens_default_comes_from_heddle_ini_and_fits),
		T(test_prompt_too_long_says_both_lengths),
		T(test_rules_across_fields_name_one),
		T(test_what_changes_nothing_is_accepted),
		T(test_tools_stand_in_the_prompt_unless_none),
		T(test_thinking_switches_win_and_must_agree),
		T(test_prompt_that_cannot_fit_is_refused_unread),
		T(test_engine_refusals_become_statuses),
		T(test_not_ready_is_503),
		T(test_model_is_echoed_and_ids_returned),
		T(test_skip_special_tokens_is_a_choice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
