/* Bodies to prompts: what any bytes can do to it, and the rules that job tests do not reach. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coordinator/prep.h"

static struct tokenizer *tok;
static struct token_scratch *scratch;
static const uint32_t eos = 1;

static int setup(void **state)
{
	const char *dir = getenv("HEDDLE_SRCDIR");
	char path[4096];
	struct errbuf err;

	(void)state;
	snprintf(path, sizeof(path), "%s/models/heddle-mini", dir ? dir : ".");
	if (tokenizer_load(path, &tok, &err))
		fail_msg("%s", err.text);
	scratch = token_scratch_new(tok);
	assert_non_null(scratch);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	token_scratch_free(scratch);
	tokenizer_free(tok);
	return 0;
}

/* Runs over a body in memory of exactly its size; it is gone when the results are looked at. */
static void run_with(struct token_scratch *own, struct prep *p, enum param_scope scope,
	const char *body, size_t len)
{
	static const struct conf conf = {
		.api_temperature = CONF_REAL_AUTO, .api_top_p = CONF_REAL_AUTO};
	char *copy = malloc(len + 1);
	struct errbuf err;

	memcpy(copy, body, len);
	copy[len] = '\0';
	*p = (struct prep){0};
	assert_int_equal(
		param_defaults(&conf, NULL, "generation_config.json", &p->params, &err), 0);
	p->in = (struct prep_in){
		.scope = scope,
		.tok = tok,
		.scratch = own,
		.body = copy,
		.body_len = len,
		.eos = &eos,
		.eos_n = 1,
		.vocab = tokenizer_vocab(tok),
	};
	prep_run(p);
	free(copy);
}

static void run(struct prep *p, enum param_scope scope, const char *body, size_t len)
{
	run_with(scratch, p, scope, body, len);
}

/* What must hold of any result. */
static void check(const struct prep *p)
{
	size_t i, j;

	assert_true(p->status == 0 || p->status == 400);
	if (p->status) {
		assert_true(*p->error.err.text);
		return;
	}
	assert_true(p->prompt_n >= 1);
	for (i = 0; i < p->prompt_n; i++) {
		assert_true(p->prompts[i].ids.len || !(p->in.scope & (S_CHAT | S_TEXT)));
		for (j = 0; j < p->prompts[i].ids.len; j++)
			assert_true(p->prompts[i].ids.ids[j] < p->in.vocab);
	}
	assert_true(p->params.n >= 1 && p->params.n <= 128);
	assert_true(p->params.temperature >= 0 && p->params.temperature <= 100);
	for (i = 0; i < p->stop_token_n; i++)
		assert_true(p->stop_tokens[i] < p->in.vocab);
	for (i = 0; i < p->bias_n; i++)
		assert_true(p->bias[i].token < p->in.vocab);
}

static const struct {
	enum param_scope scope;
	const char *body;
} seeds[] = {
	{S_CHAT,
		"{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\","
		"\"content\":[{\"type\":\"text\",\"text\":\"h\\u00e9llo\"}]},{\"role\":"
		"\"assistant\","
		"\"content\":null,\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\",\"function\":"
		"{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}\"}}]},{\"role\":\"tool\","
		"\"tool_call_id\":\"a\",\"content\":\"42\"},{\"role\":\"user\",\"content\":\"ok\"}]"
		","
		"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":"
		"{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\",\"maximum\":"
		"18446744073709551616}}}}}],\"reasoning_effort\":\"max\"}"},
	{S_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"stop\":[\"a\",\"bc\"],"
		 "\"logit_bias\":{\"17\":-100,\"40\":1.5},\"stop_token_ids\":[3,4],\"seed\":-5,"
		 "\"temperature\":0.5,\"logprobs\":true,\"top_logprobs\":3,\"stream\":true,"
		 "\"stream_options\":{\"include_usage\":true},\"n\":2,\"max_tokens\":9,"
		 "\"chat_template_kwargs\":{\"thinking\":true},\"thinking\":{\"type\":\"enabled\"}"
		 "}"},
	{S_TEXT, "{\"prompt\":[\"one\",\"two\\ud83d\\ude80\"],\"echo\":true,\"max_tokens\":0,"
		 "\"logprobs\":5,\"suffix\":null,\"best_of\":1,\"min_tokens\":0}"},
	{S_TEXT, "{\"prompt\":[[1,2,3],[4,5]],\"ignore_eos\":true,\"top_k\":-1,\"min_p\":0.1}"},
	{S_TOKENIZE, "{\"prompt\":\"<｜User｜>x\\u0000y\",\"parse_special\":false}"},
	{S_DETOKENIZE, "{\"tokens\":[0,3,2650,4,6]}"},
};

static const char *const bits[] = {"\"", "{", "}", "[", "]", ",", ":", "null", "true", "-1",
	"1e400", "99999999999999999999", "0.5", "\"\"", "\\", "\\u0000", "\xff", "\xe2\x82",
	"{\"a\":1}", "[[]]", "\"role\":\"tool\",", "\"content\":null,", "  "};

static size_t mutate(char *text, size_t len, size_t cap)
{
	size_t at = (size_t)rand() % (len + 1), n, from;
	const char *bit;

	switch (rand() % 4) {
	case 0: /* another byte */
		if (at < len)
			text[at] = (char)rand();
		return len;
	case 1: /* a part less */
		n = (size_t)rand() % 12;
		n = MIN(n, len - at);
		memmove(text + at, text + at + n, len - at - n);
		return len - n;
	case 2: /* something that means something */
		bit = bits[(size_t)rand() % ARRAY_LEN(bits)];
		n = strlen(bit);
		if (len + n > cap)
			return len;
		memmove(text + at + n, text + at, len - at);
		memcpy(text + at, bit, n);
		return len + n;
	default: /* a part twice */
		from = (size_t)rand() % (len + 1);
		n = (size_t)rand() % 40;
		n = MIN(n, len - from);
		if (len + n > cap || at > from)
			return len;
		memmove(text + from + n, text + from, len - from);
		return len + n;
	}
}

static void test_run_any_bytes_are_refused_or_hold_the_rules(void **state)
{
	unsigned seed = (unsigned)time(NULL);
	size_t round, i, len, times, good = 0;
	char text[4096];
	struct prep p;

	(void)state;
	print_message("seed %u\n", seed);
	srand(seed);
	for (round = 0; round < 6000; round++) {
		i = round % ARRAY_LEN(seeds);
		len = strlen(seeds[i].body);
		memcpy(text, seeds[i].body, len);
		for (times = (size_t)rand() % 4; times; times--)
			len = mutate(text, len, sizeof(text));
		run(&p, seeds[i].scope, text, len);
		check(&p);
		good += !p.status;
		prep_fini(&p);
	}
	assert_true(
		good > 1000); /* the unchanged ones at least: nothing is refused for its own sake */
}

static void test_run_bos_is_added_once_and_noted(void **state)
{
	static const char config[] =
		"{\"add_bos_token\":true,\"bos_token\":\"<｜begin▁of▁sentence｜>\"}";
	const char *dir = getenv("HEDDLE_SRCDIR");
	struct tokenizer *own = tok, *with = NULL;
	char path[4096], *json = malloc(1 << 20);
	struct errbuf err;
	struct prep p;
	size_t len;
	FILE *f;

	(void)state;
	snprintf(path, sizeof(path), "%s/models/heddle-mini/tokenizer.json", dir ? dir : ".");
	f = fopen(path, "r");
	assert_non_null(f);
	len = fread(json, 1, 1 << 20, f);
	fclose(f);
	assert_int_equal(tokenizer_parse(json, len, config, strlen(config), &with, &err), 0);
	free(json);
	tok = with;
	run(&p, S_TEXT, "{\"prompt\":\"Hello\"}", 18);
	assert_int_equal(p.status, 0);
	assert_int_equal(p.prompts[0].ids.ids[0], 0);
	assert_int_equal(p.prompts[0].ids.len, 2);
	assert_true(p.prompts[0].bos_added);
	prep_fini(&p);
	run(&p, S_TEXT, "{\"prompt\":\"Hello\",\"add_special_tokens\":false}", 45);
	assert_int_equal(p.prompts[0].ids.len, 1);
	assert_false(p.prompts[0].bos_added);
	prep_fini(&p);
	tok = own;
	tokenizer_free(with);
}

static void test_run_number_of_answers_is_limited(void **state)
{
	char *body = malloc(1 << 16);
	struct prep p;
	size_t i, n, len;

	(void)state;
	for (n = PREP_PROMPTS_MAX; n <= PREP_PROMPTS_MAX + 1; n++) {
		len = (size_t)sprintf(body, "{\"n\":4,\"prompt\":[[1]");
		for (i = 1; i < n; i++)
			len += (size_t)sprintf(body + len, ",[1]");
		len += (size_t)sprintf(body + len, "]}");
		run(&p, S_TEXT, body, len);
		assert_int_equal(p.status, n > PREP_PROMPTS_MAX ? 400 : 0);
		prep_fini(&p);
		body[5] = '5';
		run(&p, S_TEXT, body, len);
		assert_int_equal(p.status, 400);
		prep_fini(&p);
	}
	free(body);
}

static void test_run_stop_strings_have_a_longest(void **state)
{
	char *body = malloc(8192);
	struct prep p;
	size_t n, len;

	(void)state;
	for (n = PREP_STOP_BYTES_MAX; n <= PREP_STOP_BYTES_MAX + 1; n++) {
		len = (size_t)sprintf(body, "{\"prompt\":\"a\",\"stop\":\"");
		memset(body + len, 'x', n);
		strcpy(body + len + n, "\"}");
		run(&p, S_TEXT, body, strlen(body));
		assert_int_equal(p.status, n > PREP_STOP_BYTES_MAX ? 400 : 0);
		prep_fini(&p);
	}
	free(body);
}

/* What a sentence quotes of the request may be cut inside a character, or be no line at all. */
static void test_run_errors_are_one_line_of_utf8(void **state)
{
	static const char *const bodies[] = {
		"{\"messages\":[],\"reasoning_effort\":\"a\\nb\\u0007\"}",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":"
		"\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":{\"type\":"
		"\"function\",\"function\":{\"name\":\"\\nééééééééééééééééééééééééééééééééééé\"}}}",
		"{\"messages\":\n\x01}",
	};
	struct prep p;
	size_t i, k;

	(void)state;
	for (i = 0; i < ARRAY_LEN(bodies); i++) {
		run(&p, S_CHAT, bodies[i], strlen(bodies[i]));
		assert_int_equal(p.status, 400);
		assert_true(utf8_valid(p.error.err.text, strlen(p.error.err.text)));
		for (k = 0; p.error.err.text[k]; k++)
			assert_true((uint8_t)p.error.err.text[k] >= 0x20);
		prep_fini(&p);
	}
}

#define SAYS(role, rest) "{\"role\":\"" role "\",\"content\":\"x\"" rest "}"
#define ASKS             "{\"messages\":[" SAYS("user", "") "]"
#define CALLS(id)                                                                                  \
	SAYS("assistant", ",\"tool_calls\":[{\"id\":\"" id "\",\"function\":{\"name\":\"f\"}}]")
#define TOOL(type, rest) ",\"tools\":[{\"type\":\"" type "\",\"function\":{\"name\":\"f\"}}]" rest

/* A word with U+0000 behind it is another word, and so is an id or a name. */
static void test_run_strings_do_not_end_at_nul(void **state)
{
	static const struct {
		const char *body, *param, *says;
	} cases[] = {
		{ASKS ",\"response_format\":{\"type\":\"text\\u0000x\"}}", "response_format",
			"must be \"text\""},
		{ASKS ",\"reasoning_effort\":\"max\\u0000x\"}", "reasoning_effort",
			"not \"max?x\""},
		{ASKS TOOL("function", ",\"tool_choice\":\"none\\u0000\"}"), "tool_choice",
			"tool_choice must be"},
		{ASKS TOOL("function", ",\"tool_choice\":{\"type\":\"function\",\"function\":"
				       "{\"name\":\"f\\u0000g\"}}}"),
			"tool_choice", "\"f?g\", which is not among"},
		{ASKS TOOL("function\\u0000", "}"), "tools[0]", "type must be 'function'"},
		{"{\"messages\":[" SAYS("user\\u0000x", "") "]}", "messages[0].role",
			"'user?x' is none of"},
		{"{\"messages\":[" SAYS("assistant\\u0000", "") "]}", "messages[0].role",
			"'assistant?' is none of"},
		{"{\"messages\":[" SAYS("user", ",\"task\":\"query\\u0000x\"") "]}",
			"messages[0].task", "must be one of"},
		{"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\\u0000x\","
		 "\"text\":\"x\"}]}]}",
			"messages[0].content[0]", "type 'text?x' is not"},
		{"{\"messages\":[" CALLS("a\\u0000b") "," SAYS(
			 "tool", ",\"tool_call_id\":\"a\\u0000c\"") "]}",
			"messages[0].tool_calls", "must not hold the character U+0000"},
		{"{\"messages\":[" CALLS("a") "," SAYS(
			 "tool", ",\"tool_call_id\":\"a\\u0000c\"") "]}",
			"messages[1].tool_call_id", "'a?c'"},
		{"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\","
		 "\"type\":\"function\\u0000\",\"function\":{\"name\":\"f\"}}]}," SAYS(
			 "tool", ",\"tool_call_id\":\"a\"") "]}",
			"messages[0].tool_calls[0]", "type must be 'function'"},
		{"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\","
		 "\"function\":{\"name\":\"f\\u0000g\"}}]}," SAYS(
			 "tool", ",\"tool_call_id\":\"a\"") "]}",
			"messages[0].tool_calls[0]", "'f?g' holds"},
	};
	struct prep p;
	size_t i;

	(void)state;
	for (i = 0; i < ARRAY_LEN(cases); i++) {
		run(&p, S_CHAT, cases[i].body, strlen(cases[i].body));
		if (p.status != 400 || strcmp(p.error.name, cases[i].param) ||
			!strstr(p.error.err.text, cases[i].says))
			fail_msg("%s: %d, blames \"%s\", says \"%s\"", cases[i].body, p.status,
				p.error.name, p.error.err.text);
		prep_fini(&p);
	}
}

/* Only some models have the tokens of tasks: without them the model would read mere text. */
static void test_run_tokens_the_model_lacks_are_refused(void **state)
{
	static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\","
				   "\"task\":\"title\"}]}";
	static const enum param_scope scopes[] = {S_CHAT, S_TOKENIZE};
	struct prep p;
	size_t i;

	(void)state;
	for (i = 0; i < ARRAY_LEN(scopes); i++) {
		run(&p, scopes[i], body, strlen(body));
		assert_int_equal(p.status, 400);
		assert_string_equal(p.error.name, "messages");
		assert_non_null(strstr(p.error.err.text, "has no token '<｜title｜>'"));
		prep_fini(&p);
	}
}

static void *thread_main(void *user)
{
	struct token_scratch *own = token_scratch_new(tok);
	size_t *good = user, i;
	struct prep p;

	for (i = 0; i < 20 * ARRAY_LEN(seeds); i++) {
		run_with(own, &p, seeds[i % ARRAY_LEN(seeds)].scope,
			seeds[i % ARRAY_LEN(seeds)].body, strlen(seeds[i % ARRAY_LEN(seeds)].body));
		*good += !p.status;
		prep_fini(&p);
	}
	token_scratch_free(own);
	return NULL;
}

/* Pool threads share the tokenizer and nothing else; the sanitizers see whether that is true. */
static void test_run_on_several_threads_at_once(void **state)
{
	pthread_t threads[4];
	size_t good[4] = {0}, i;

	(void)state;
	for (i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, thread_main, &good[i]), 0);
	for (i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_int_equal(good[i], 20 * ARRAY_LEN(seeds));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_run_any_bytes_are_refused_or_hold_the_rules),
		cmocka_unit_test(test_run_bos_is_added_once_and_noted),
		cmocka_unit_test(test_run_number_of_answers_is_limited),
		cmocka_unit_test(test_run_stop_strings_have_a_longest),
		cmocka_unit_test(test_run_errors_are_one_line_of_utf8),
		cmocka_unit_test(test_run_strings_do_not_end_at_nul),
		cmocka_unit_test(test_run_tokens_the_model_lacks_are_refused),
		cmocka_unit_test(test_run_on_several_threads_at_once),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
