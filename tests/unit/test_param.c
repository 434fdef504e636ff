#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/conf.h"
#include "coordinator/param.h"

static struct conf_set set;

static int setup(void **state)
{
	(void)state;
	return conf_init(&set);
}

static int teardown(void **state)
{
	(void)state;
	conf_fini(&set);
	return 0;
}

static json_t *json(const char *text)
{
	json_error_t why;
	json_t *v = json_loads(text, JSON_ALLOW_NUL | JSON_DECODE_ANY, &why);

	if (!v)
		fail_msg("%s: %s", text, why.text);
	return v;
}

/* Reads one body over the defaults. */
static int read_text(enum param_scope scope, bool strict, const char *text, struct params *p,
	char unknown[600], struct param_error *e)
{
	struct outbuf names = {0};
	json_t *v = json(text);
	int ret;

	*e = (struct param_error){0};
	assert_int_equal(param_defaults(&set.conf, NULL, "generation_config.json", p, &e->err), 0);
	ret = param_read(v, scope, strict, p, &names, e);
	snprintf(unknown, 600, "%.*s", (int)names.len, names.data ? names.data : "");
	outbuf_fini(&names);
	json_decref(v);
	return ret;
}

static void check_ok(enum param_scope scope, const char *text)
{
	struct params p;
	struct param_error e;
	char unknown[600];

	if (read_text(scope, true, text, &p, unknown, &e))
		fail_msg("%s: %s", text, e.err.text);
}

static void check_bad(enum param_scope scope, const char *text, const char *name, const char *says)
{
	struct params p;
	struct param_error e;
	char unknown[600];

	if (read_text(scope, false, text, &p, unknown, &e) != -EINVAL)
		fail_msg("%s was accepted", text);
	if (strcmp(e.name, name) || !strstr(e.err.text, says) || !strstr(e.err.text, name))
		fail_msg("%s: blames \"%s\" and says \"%s\"", text, e.name, e.err.text);
}

/* Scalars: the least and greatest value, one past each, another type. */
static void test_read_numbers_bounds_are_exact(void **state)
{
	static const struct {
		enum param_scope scope;
		const char *name, *min, *below, *max, *above;
	} cases[] = {
		{S_CHAT, "temperature", "0", "-0.001", "100", "100.001"},
		{S_CHAT, "top_p", "0", "-1e-9", "1", "1.0000001"},
		{S_TEXT, "min_p", "0", "-0.5", "1.0", "1.5"},
		{S_CHAT, "top_k", "-1", "-2", "2147483647", "2147483648"},
		{S_CHAT, "frequency_penalty", "-2", "-2.01", "2", "2.01"},
		{S_TEXT, "presence_penalty", "-2", "-2.01", "2", "2.01"},
		{S_CHAT, "repetition_penalty", "0.01", "0", "100", "101"},
		{S_TEXT, "max_tokens", "0", "-1", "1073741824", "1073741825"},
		{S_CHAT, "max_completion_tokens", "1", "0", "1073741824", "1073741825"},
		{S_CHAT, "min_tokens", "0", "-1", "1073741824", "1073741825"},
		{S_CHAT, "n", "1", "0", "128", "129"},
		{S_CHAT, "top_logprobs", "0", "-1", "20", "21"},
		{S_TEXT, "logprobs", "0", "-1", "20", "21"},
		{S_CHAT, "seed", "-9223372036854775808", "-9.3e18", "9223372036854775807",
			"9.3e18"},
	};
	static const char *const wrong[] = {"\"1\"", "true", "[1]", "{}"};
	char text[128];
	size_t i, j;

	(void)state;
	for (i = 0; i < ARRAY_LEN(cases); i++) {
		snprintf(text, sizeof(text), "{\"%s\":%s}", cases[i].name, cases[i].min);
		check_ok(cases[i].scope, text);
		snprintf(text, sizeof(text), "{\"%s\":%s}", cases[i].name, cases[i].max);
		check_ok(cases[i].scope, text);
		snprintf(text, sizeof(text), "{\"%s\":null}", cases[i].name);
		check_ok(cases[i].scope, text);
		snprintf(text, sizeof(text), "{\"%s\":%s}", cases[i].name, cases[i].below);
		check_bad(cases[i].scope, text, cases[i].name, "must be");
		snprintf(text, sizeof(text), "{\"%s\":%s}", cases[i].name, cases[i].above);
		check_bad(cases[i].scope, text, cases[i].name, "must be");
		for (j = 0; j < ARRAY_LEN(wrong); j++) {
			snprintf(text, sizeof(text), "{\"%s\":%s}", cases[i].name, wrong[j]);
			check_bad(cases[i].scope, text, cases[i].name, "must be");
		}
	}
}

static void test_read_wrong_types_are_named(void **state)
{
	static const struct {
		enum param_scope scope;
		const char *text, *name, *says;
	} cases[] = {
		{S_CHAT, "{\"stream\":1}", "stream", "true or false, not an integer"},
		{S_CHAT, "{\"stream\":\"true\"}", "stream", "not a string"},
		{S_CHAT, "{\"logprobs\":5}", "logprobs", "true or false"},
		{S_TEXT, "{\"logprobs\":true}", "logprobs", "an integer, not a boolean"},
		{S_CHAT, "{\"model\":3}", "model", "a string"},
		{S_CHAT, "{\"messages\":\"hi\"}", "messages", "an array, not a string"},
		{S_TEXT, "{\"prompt\":7}", "prompt", "a string or an array"},
		{S_TEXT, "{\"prompt\":{}}", "prompt", "not an object"},
		{S_CHAT, "{\"stop\":{}}", "stop", "a string or an array"},
		{S_CHAT, "{\"logit_bias\":[]}", "logit_bias", "an object"},
		{S_CHAT, "{\"stop_token_ids\":1}", "stop_token_ids", "an array"},
		{S_CHAT, "{\"tools\":{}}", "tools", "an array"},
		{S_CHAT, "{\"tool_choice\":1}", "tool_choice", "a string or an object"},
		{S_CHAT, "{\"response_format\":\"text\"}", "response_format", "an object"},
		{S_CHAT, "{\"stream_options\":true}", "stream_options", "an object"},
		{S_CHAT, "{\"stream_options\":{\"include_usage\":1}}",
			"stream_options.include_usage", "true or false"},
		{S_CHAT, "{\"chat_template_kwargs\":{\"thinking\":\"yes\"}}",
			"chat_template_kwargs.thinking", "true or false"},
		{S_CHAT, "{\"thinking\":true}", "thinking", "an object"},
		{S_CHAT, "{\"thinking\":{\"type\":\"on\"}}", "thinking.type", "disabled|enabled"},
		{S_CHAT, "{\"reasoning_effort\":\"huge\"}", "reasoning_effort", "not \"huge\""},
		{S_CHAT, "{\"reasoning_effort\":\"non\"}", "reasoning_effort", "none|"},
		{S_CHAT, "{\"reasoning_effort\":\"none|minimal\"}", "reasoning_effort", "one of"},
		{S_CHAT, "{\"max_tokens\":1.5}", "max_tokens", "an integer"},
		{S_CHAT, "{\"seed\":1e18}", "seed",
			"written without . and e where it is beyond 2^53: as 1e+18 it is not "
			"exact"},
		{S_CHAT, "{\"seed\":-9007199254740994.0}", "seed", "without . and e"},
		{S_CHAT, "{\"seed\":9223372036854775808.0}", "seed",
			"from -9223372036854775808 to 9223372036854775807, not "
			"9.2233720368547758e+18"},
		{S_CHAT, "{\"seed\":1e19}", "seed", "to 9223372036854775807, not 1e+19"},
		{S_CHAT, "{\"seed\":0.5}", "seed", "to 9223372036854775807, not 0.5"},
		{S_CHAT, "{\"n\":1e18}", "n", "from 1 to 128, not 1e+18"},
		{S_TEXT, "{\"suffix\":\"x\"}", "suffix", "not supported"},
		{S_TEXT, "{\"best_of\":2}", "best_of", "not supported"},
		{S_CHAT, "{\"functions\":[{}]}", "functions", "use tools"},
		{S_CHAT, "{\"functions\":{}}", "functions", "use tools"},
		{S_CHAT, "{\"function_call\":{\"name\":\"f\"}}", "function_call",
			"use tool_choice"},
		{S_CHAT, "{\"web_search_options\":{}}", "web_search_options", "searches nothing"},
		{S_CHAT, "{\"modalities\":[\"audio\"]}", "modalities", "text only"},
		{S_DETOKENIZE, "{\"tokens\":\"1\"}", "tokens", "an array"},
	};
	size_t i;

	(void)state;
	for (i = 0; i < ARRAY_LEN(cases); i++)
		check_bad(cases[i].scope, cases[i].text, cases[i].name, cases[i].says);
}

static void test_read_accepts_what_changes_nothing(void **state)
{
	(void)state;
	check_ok(S_TEXT, "{\"suffix\":null,\"best_of\":1,\"user\":\"u\"}");
	check_ok(S_CHAT, "{\"modalities\":[\"text\"],\"metadata\":{\"a\":\"b\"},\"store\":false,"
			 "\"user\":7,\"service_tier\":\"auto\",\"parallel_tool_calls\":true}");
	check_ok(S_TEXT, "{\"suffix\":\"\",\"best_of\":1.0}");
	check_ok(S_CHAT, "{\"functions\":[],\"function_call\":\"none\"}");
	check_ok(S_CHAT, "{\"function_call\":\"auto\",\"functions\":null,\"audio\":null}");
	check_ok(S_CHAT, "{\"seed\":-9007199254740992.0}");
	check_ok(S_CHAT, "{\"max_tokens\":5.0,\"temperature\":1,\"stream_options\":null}");
}

static void test_read_values_land_in_their_fields(void **state)
{
	struct params p;
	struct param_error e;
	char unknown[600];

	(void)state;
	assert_int_equal(
		read_text(S_CHAT, true,
			"{\"temperature\":0.5,\"top_p\":0.25,\"top_k\":40,\"min_p\":0.125,"
			"\"seed\":-3,\"n\":3,\"stream\":true,"
			"\"stream_options\":{\"include_usage\":true},"
			"\"reasoning_effort\":\"max\",\"logprobs\":true,\"top_logprobs\":4,"
			"\"chat_template_kwargs\":{\"enable_thinking\":true}}",
			&p, unknown, &e),
		0);
	assert_true(p.temperature == 0.5 && p.top_p == 0.25 && p.min_p == 0.125);
	assert_true(p.top_k == 40 && p.seed == -3 && p.n == 3 && p.top_logprobs == 4);
	assert_true(p.stream && p.include_usage && p.logprobs && p.template_enable_thinking);
	assert_int_equal(p.reasoning_effort, PARAM_EFFORT_MAX);
	assert_true(p.given[PARAM_ID_seed] && p.given[PARAM_ID_include_usage]);
	assert_false(p.given[PARAM_ID_max_tokens] || p.given[PARAM_ID_template_thinking]);
	assert_true(p.skip_special_tokens && p.repetition_penalty == 1.0 && !p.echo);
}

static void test_read_unknown_fields_are_listed_or_refused(void **state)
{
	struct params p;
	struct param_error e;
	char unknown[600];

	(void)state;
	assert_int_equal(read_text(S_CHAT, false,
				 "{\"max_token\":1,\"zzz\":2,\"stream_options\":"
				 "{\"include_usages\":true},\"prompt\":\"x\"}",
				 &p, unknown, &e),
		0);
	assert_string_equal(unknown, "max_token (did you mean max_tokens?), zzz, "
				     "stream_options.include_usages (did you mean include_usage?), "
				     "prompt");
	assert_int_equal(read_text(S_CHAT, true, "{\"max_token\":1}", &p, unknown, &e), -EINVAL);
	assert_string_equal(e.name, "max_token");
	assert_non_null(strstr(e.err.text, "max_tokens"));
	/* a client's name never brings a control character or more than its share into a header */
	assert_int_equal(read_text(S_CHAT, false, "{\"a\\r\\nb\\u00e9\":1}", &p, unknown, &e), 0);
	assert_string_equal(unknown, "a??b??");
}

static void test_defaults_precedence_is_conf_then_model_then_own(void **state)
{
	json_t *file = json("{\"do_sample\":false,\"temperature\":0.6,\"top_p\":0.9,\"top_k\":7,"
			    "\"eos_token_id\":1,\"frequency_penalty\":1}");
	struct errbuf err;
	struct params p;

	(void)state;
	assert_int_equal(param_defaults(&set.conf, NULL, "generation_config.json", &p, &err), 0);
	assert_true(p.temperature == 1.0 && p.top_p == 1.0 && p.top_k == 0);
	assert_int_equal(param_defaults(&set.conf, file, "generation_config.json", &p, &err), 0);
	assert_true(p.temperature == 0.6 && p.top_p == 0.9 && p.top_k == 7);
	assert_true(p.frequency_penalty == 0);
	assert_int_equal(conf_override(&set, "api.temperature=0.25", &err), 0);
	assert_int_equal(param_defaults(&set.conf, file, "generation_config.json", &p, &err), 0);
	assert_true(p.temperature == 0.25 && p.top_p == 0.9);
	json_decref(file);
}

static void test_defaults_bad_file_is_named(void **state)
{
	static const char *const bad[] = {"{\"temperature\":-1}", "{\"temperature\":\"hot\"}",
		"{\"top_p\":2}", "{\"top_k\":1.5}"};
	struct params p = {.top_k = 99};
	struct errbuf err;
	json_t *file;
	size_t i;

	(void)state;
	for (i = 0; i < ARRAY_LEN(bad); i++) {
		file = json(bad[i]);
		assert_int_equal(
			param_defaults(&set.conf, file, "generation_config.json", &p, &err),
			-EINVAL);
		assert_int_equal(err.exit_code, EXIT_DATA_ERR);
		assert_non_null(strstr(err.text, "generation_config.json"));
		json_decref(file);
	}
	assert_int_equal(p.top_k, 99);
}

static void find_in_docs(void *user, const char *name, unsigned scopes, const char *help)
{
	char quoted[128];

	snprintf(quoted, sizeof(quoted), "`%s`", name);
	if (!strstr(user, quoted))
		fail_msg("docs/api.md does not mention %s", quoted);
	assert_true(scopes != 0);
	assert_true(*help);
}

static void test_each_row_is_in_the_manual(void **state)
{
	const char *dir = getenv("HEDDLE_SRCDIR");
	char path[4096];
	size_t n;
	char *text;
	FILE *f;

	(void)state;
	if (!dir) {
		print_message("HEDDLE_SRCDIR does not name the source tree\n");
		skip();
	}
	snprintf(path, sizeof(path), "%s/docs/api.md", dir);
	f = fopen(path, "r");
	assert_non_null(f);
	text = calloc(1, 1 << 20);
	n = fread(text, 1, (1 << 20) - 1, f);
	assert_true(n > 0);
	fclose(f);
	param_each(find_in_docs, text);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_read_numbers_bounds_are_exact, setup, teardown),
		cmocka_unit_test_setup_teardown(test_read_wrong_types_are_named, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_read_accepts_what_changes_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_read_values_land_in_their_fields, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_read_unknown_fields_are_listed_or_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_defaults_precedence_is_conf_then_model_then_own, setup, teardown),
		cmocka_unit_test_setup_teardown(test_defaults_bad_file_is_named, setup, teardown),
		cmocka_unit_test(test_each_row_is_in_the_manual),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
