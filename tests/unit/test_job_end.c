/* How requests end otherwise: clients that go away, engines that fail, a daemon that stops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

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

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, fix_setup, fix_teardown)
		T(test_gone_client_cancels_all_in_every_phase),
		T(test_gone_while_read_is_noticed_after),
		T(test_failure_before_the_first_byte_has_a_status),
		T(test_failure_later_is_one_event_without_done),
		T(test_failure_of_a_whole_answer_is_an_error),
		T(test_client_that_does_not_read_is_dropped),
		T(test_abort_all_answers_everyone),
		T(test_free_with_requests_under_way_leaks_nothing),
		T(test_new_names_what_is_wrong_with_a_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
