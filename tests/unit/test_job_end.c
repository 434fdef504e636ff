/* How requests end otherwise: clients that go away, engines that fail, a daemon that stops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/api_fixture.h"

/* In queue, in prefill, in decode, streamed and not: everything is cancelled and freed at once. */
static void test_gone_client_cancels_all_in_every_phase(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x;
	struct engine_seq *s;
	int phase, stream;

	for (phase = 0; phase < 4; phase++)
		for (stream = 0; stream < 2; stream++) {
			f->engine->submitted = 0;
			x = fix_post(f, CHAT,
				stream ? "{" USER ",\"n\":3,\"stream\":true,\"logprobs\":true}"
				       : "{" USER ",\"n\":3,\"logprobs\":true}");
			for (s = f->engine->seqs; s && !s->live; s = s->next)
				;
			assert_int_equal(fake_engine_live(f->engine), 3);
			if (phase >= 1)
				fake_engine_prefill(s, 3);
			if (phase >= 2)
				fix_say(f, s, "abc", 1);
			if (phase >= 3)
				fix_eos(s);
			fake_exchange_gone(x);
			assert_int_equal(fake_engine_live(f->engine), 0);
			assert_int_equal(api_running(f->api), 0);
			fake_exchange_free(x);
		}
	assert_int_equal(f->api->metrics.requests_aborted, 8);
}

/* What would fill the queue by itself gets no 429, which asks to come again. */
static void test_more_answers_than_ever_fit_are_400(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x;

	f->engine->fit_run = 1;
	f->engine->fit_wait = 2;
	fix_refused(f, CHAT, "{" USER ",\"n\":4,\"stream\":true}", 400, "n",
		"n = 4 and 1 prompt ask for 4 answers, but of these only 1 can run at once and 2 "
		"wait (schedule.queue)");
	fix_refused(f, TEXT, "{\"prompt\":[\"a\",\"b\"],\"n\":2}", 400, "n",
		"n = 2 and 2 prompts ask for 4 answers");
	fix_refused(f, TEXT, "{\"prompt\":[\"a\",\"b\",\"c\",\"d\"]}", 400, "prompt",
		"n = 1 and 4 prompts ask for 4 answers");
	x = fix_post(f, TEXT, "{\"prompt\":[\"a\",\"b\",\"c\"]}");
	assert_int_equal(fake_engine_live(f->engine), 3);
	fake_exchange_gone(x);
	fake_exchange_free(x);
	/* an echo alone is no work for the engine */
	x = fix_post(f, TEXT, "{\"prompt\":\"a\",\"n\":9,\"echo\":true,\"max_tokens\":0}");
	assert_int_equal(x->status, 200);
	fake_exchange_free(x);
}

static void test_gone_while_read_is_noticed_after(void **state)
{
	size_t len = 20000;
	char *body = malloc(len + 64);
	struct fix *f = *state;
	struct http_exchange *x;

	f->engine->limits.max_context = 1 << 20;
	strcpy(body, "{\"prompt\":\"");
	memset(body + 11, ' ', len);
	strcpy(body + 11 + len, "\"}");
	x = fix_post(f, TEXT, body);
	free(body);
	assert_null(x->on_gone); /* so the exchange stays valid for the pool thread */
	fake_loop_work(f->loop);
	assert_non_null(x->on_gone);
	assert_int_equal(fake_engine_live(f->engine), 1);
	fake_exchange_gone(x);
	assert_int_equal(fake_engine_live(f->engine), 0);
	fake_exchange_free(x);
}

static void test_failure_before_the_first_byte_has_a_status(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x = fix_post(f, CHAT, "{" USER ",\"n\":2,\"stream\":true}");

	fake_engine_finish(
		fake_engine_seq(f->engine, 1), ENGINE_FAILED, 503, "the workers were restarted");
	assert_true(fake_exchange_has(x, "retry-after: 5"));
	fix_check_error(x, 503, NULL, "the workers were restarted");
	assert_int_equal(fake_engine_live(f->engine), 0);
}

static void test_failure_later_is_one_event_without_done(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x = fix_post(f, CHAT, "{" USER ",\"n\":2,\"stream\":true}");
	struct heard h;

	fix_say(f, fake_engine_seq(f->engine, 0), "abc", 2);
	fake_engine_finish(fake_engine_seq(f->engine, 1), ENGINE_FAILED, 503, "worker 1 \"died\"");
	assert_int_equal(x->end, FAKE_STREAM_ABORTED);
	fix_hear(x, true, &h);
	assert_string_equal(h.said[0].content, "abc");
	assert_string_equal(
		json_string_value(json_object_get(h.error, "message")), "worker 1 \"died\"");
	assert_false(h.done);
	fix_unhear(&h);
	/* the same when only a comment had gone out */
	x = fix_post(f, CHAT, "{" USER ",\"stream\":true}");
	fake_loop_advance(f->loop, 10 * NS_PER_S);
	fake_engine_finish(fake_engine_seq(f->engine, 2), ENGINE_FAILED, 0, NULL);
	fix_hear(x, true, &h);
	assert_non_null(h.error);
	fix_unhear(&h);
	assert_int_equal(f->api->metrics.requests_failed, 2);
}

static void test_failure_of_a_whole_answer_is_an_error(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x = fix_post(f, CHAT, "{" USER ",\"n\":2}");

	fix_say(f, fake_engine_seq(f->engine, 0), "abc", 2);
	fix_eos(fake_engine_seq(f->engine, 0));
	fake_engine_finish(fake_engine_seq(f->engine, 1), ENGINE_FAILED, 500, "NaN in the logits");
	fix_check_error(x, 500, NULL, "NaN in the logits");
}

static void test_client_that_does_not_read_is_dropped(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x = fix_post(f, CHAT, "{" USER ",\"n\":2,\"stream\":true}");
	struct heard h;

	fix_say(f, fake_engine_seq(f->engine, 0), "ab", 1);
	x->waiting = 15u << 20;
	assert_true(fix_say(f, fake_engine_seq(f->engine, 0), "c", 1));
	x->waiting = 16u << 20;
	assert_false(fix_say(f, fake_engine_seq(f->engine, 0), "d", 1));
	assert_int_equal(fake_engine_live(f->engine), 0);
	fix_hear(x, true, &h);
	assert_string_equal(h.said[0].content, "abcd");
	assert_non_null(h.error);
	fix_unhear(&h);
}

static void test_abort_all_answers_everyone(void **state)
{
	struct fix *f = *state;
	struct http_exchange *whole = fix_post(f, CHAT, "{" USER "}"),
			     *stream = fix_post(f, CHAT, "{" USER ",\"stream\":true}"), *late;
	char body[9000];
	struct heard h;

	snprintf(body, sizeof(body), "{" USER "%8500s}", "");
	late = fix_post(f, CHAT, body);
	fix_say(f, fake_engine_seq(f->engine, 1), "x", 1);
	assert_int_equal(api_running(f->api), 3);
	api_abort_all(f->api, "heddle is shutting down");
	fix_check_error(whole, 503, NULL, "shutting down");
	fix_hear(stream, true, &h);
	assert_non_null(h.error);
	fix_unhear(&h);
	assert_int_equal(api_running(f->api), 1);
	fake_loop_work(f->loop); /* what a thread was reading comes back to a closed door */
	fix_check_error(late, 503, NULL, "shutting down");
}

static void test_free_with_requests_under_way_leaks_nothing(void **state)
{
	struct fix *f = *state;
	struct http_exchange *x = fix_post(f, CHAT, "{" USER ",\"n\":2,\"logprobs\":true}"),
			     *stream = fix_post(f, CHAT, "{" USER ",\"stream\":true}"), *y;
	char body[9000];

	snprintf(body, sizeof(body), "{" USER "%8500s}", "");
	y = fix_post(f, CHAT, body);
	fix_say(f, fake_engine_seq(f->engine, 0), "x", 1);
	api_free(f->api);
	assert_int_equal(fake_engine_live(f->engine), 0);
	fake_exchange_free(x);
	fake_exchange_free(stream);
	fake_exchange_free(y);
	assert_int_equal(api_new(f->loop, &f->set, f->engine, &f->api, NULL), 0);
}

static void test_new_names_what_is_wrong_with_a_model(void **state)
{
	struct fix *f = *state;
	struct errbuf err = {0};
	struct conf_set set;
	struct api *api = NULL;

	assert_int_equal(conf_init(&set), 0);
	assert_int_equal(conf_override(&set, "model.path=/nonexistent/model", &err), 0);
	assert_true(api_new(f->loop, &set, f->engine, &api, &err) < 0);
	assert_null(api);
	assert_int_equal(err.exit_code, EXIT_NO_INPUT);
	assert_non_null(strstr(err.text, "/nonexistent/model"));
	conf_fini(&set);
}

/* The bundled tokenizer's files in a directory of their own, with one text replaced in each. */
struct model {
	char dir[64];
};

static void put_file(const struct model *m, const char *name, const char *from, const char *to)
{
	const char *dir = getenv("HEDDLE_SRCDIR");
	char path[4096], *text = calloc(1, 1 << 20), *at = text, *hit;
	size_t n;
	FILE *f;

	snprintf(path, sizeof(path), "%s/models/heddle-mini/%s", dir ? dir : ".", name);
	f = fopen(path, "r");
	assert_non_null(f);
	n = fread(text, 1, (1 << 20) - 1, f);
	fclose(f);
	snprintf(path, sizeof(path), "%s/%s", m->dir, name);
	f = fopen(path, "w");
	assert_non_null(f);
	assert_non_null(strstr(text, from));
	for (; (hit = strstr(at, from)); at = hit + strlen(from)) {
		fwrite(at, 1, (size_t)(hit - at), f);
		fputs(to, f);
	}
	fwrite(at, 1, n - (size_t)(at - text), f);
	fclose(f);
	free(text);
}

static void model_new(struct model *m)
{
	strcpy(m->dir, "/tmp/heddle-model.XXXXXX");
	assert_non_null(mkdtemp(m->dir));
}

static void model_free(const struct model *m)
{
	static const char *const names[] = {"tokenizer.json", "tokenizer_config.json"};
	char path[128];
	size_t i;

	for (i = 0; i < ARRAY_LEN(names); i++) {
		snprintf(path, sizeof(path), "%s/%s", m->dir, names[i]);
		unlink(path);
	}
	assert_int_equal(rmdir(m->dir), 0);
}

static int api_of(struct fix *f, const struct model *m, struct conf_set *set, struct api **ret_api,
	struct errbuf *err)
{
	char assignment[128];

	assert_int_equal(conf_init(set), 0);
	snprintf(assignment, sizeof(assignment), "model.path=%s", m->dir);
	assert_int_equal(conf_override(set, assignment, err), 0);
	return api_new(f->loop, set, f->engine, ret_api, err);
}

/* 89: a model whose answers nothing would end is refused at start. */
static void test_new_without_an_end_token_is_refused(void **state)
{
	struct errbuf err = {0};
	struct fix *f = *state;
	struct api *api = NULL;
	struct conf_set set;
	struct model m;

	model_new(&m);
	put_file(&m, "tokenizer.json", "\"added_tokens\"", "\"added_tokens\"");
	put_file(&m, "tokenizer_config.json", "\"eos_token\"", "\"some_token\"");
	assert_int_equal(api_of(f, &m, &set, &api, &err), -EINVAL);
	assert_int_equal(err.exit_code, EXIT_DATA_ERR);
	assert_non_null(strstr(err.text, "no token ends an answer"));
	conf_fini(&set);
	model_free(&m);
}

/* Where </think> and the bars of calls are special tokens they are left out of no parsing. */
static void test_special_markers_are_seen_though_skipped(void **state)
{
	static const char text[] = "hm</think>a</think>b\n\n<" DSML "tool_calls><" DSML
				   "invoke name=\"f\"></" DSML "invoke></" DSML "tool_calls>";
	struct errbuf err = {0};
	struct fix *f = *state;
	struct api *own = f->api;
	struct http_exchange *x;
	struct conf_set set;
	struct model m;
	struct heard h;
	uint32_t *ids;
	size_t n;

	model_new(&m);
	put_file(&m, "tokenizer.json", "\"special\": false", "\"special\": true");
	put_file(&m, "tokenizer_config.json", "{", "{");
	if (api_of(f, &m, &set, &f->api, &err))
		fail_msg("%s", err.text);
	model_free(&m);
	assert_true(tokenizer_is_special(
		f->api->tok, (uint32_t)tokenizer_find(f->api->tok, "</think>")));
	x = fix_post(f, CHAT, "{" USER "," TOOLS ",\"reasoning_effort\":\"low\"}");
	ids = fix_tokens(f, text, &n);
	assert_true(fake_engine_make(fake_engine_seq(f->engine, 0), ids, n, 2));
	fix_eos(fake_engine_seq(f->engine, 0));
	fix_hear(x, true, &h);
	assert_string_equal(h.said[0].thought, "hm");
	assert_string_equal(h.said[0].content, "a</think>b");
	assert_int_equal(h.said[0].call_n, 1);
	fix_unhear(&h);
	/* without thinking and tools nobody looks for them */
	x = fix_post(f, CHAT, "{" USER "}");
	assert_true(fake_engine_make(fake_engine_seq(f->engine, 1), ids, n, 2));
	fix_eos(fake_engine_seq(f->engine, 1));
	fix_hear(x, true, &h);
	assert_string_equal(h.said[0].content, "hmab\n\n<tool_calls><invoke name=\"f\"></invoke>"
					       "</tool_calls>");
	fix_unhear(&h);
	free(ids);
	api_free(f->api);
	f->api = own;
	conf_fini(&set);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, fix_setup, fix_teardown)
		T(test_gone_client_cancels_all_in_every_phase),
		T(test_more_answers_than_ever_fit_are_400),
		T(test_gone_while_read_is_noticed_after),
		T(test_failure_before_the_first_byte_has_a_status),
		T(test_failure_later_is_one_event_without_done),
		T(test_failure_of_a_whole_answer_is_an_error),
		T(test_client_that_does_not_read_is_dropped),
		T(test_abort_all_answers_everyone),
		T(test_free_with_requests_under_way_leaks_nothing),
		T(test_new_names_what_is_wrong_with_a_model),
		T(test_new_without_an_end_token_is_refused),
		T(test_special_markers_are_seen_though_skipped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
