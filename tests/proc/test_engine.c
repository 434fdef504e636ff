/* The engine from start to stop: requests, refusals, drain. */
#include "config.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/proc/engine_world.h"

/* ---- serving ---- */

static void test_requests_get_their_tokens(void **state)
{
	struct world w;
	uint32_t i;

	(void)state;
	start_ready(&w, 2, NULL);
	assert_int_equal(engine_limits(w.engine).max_context, 65536);
	assert_int_equal(engine_limits(w.engine).vocab, VOCAB);
	client_n = 40; /* more than there are slots */
	for (i = 0; i < client_n; i++) {
		clients[i].cancel_at = i % 5 == 3 ? i : 0;
		assert_int_equal(ask(&w, &clients[i], 1 + i * 61, 1 + i), 0);
	}
	run_until(&w, all_finished, "forty requests");
	for (i = 0; i < client_n; i++) {
		if (i % 5 == 3)
			assert_int_equal(clients[i].finishes, 0);
		else
			assert_answered(&clients[i]);
		assert_true(clients[i].prefills >= 1);
	}
	assert_true(pages_idle(&w.engine->sched.pages));
	end(&w);
}

static void test_bad_requests_are_refused_with_reasons(void **state)
{
	struct world w;
	struct client c = {0};
	const uint32_t outside = VOCAB;
	struct engine_request req = {.prompt = &outside, .prompt_len = 1, .max_tokens = 1};
	struct errbuf err;

	(void)state;
	start(&w, 1, NULL);
	assert_int_equal(ask(&w, &c, 5, 5), -ESHUTDOWN); /* still loading */
	run_until(&w, is_ready, "readiness");
	assert_int_equal(ask(&w, &c, 65536, 1), -E2BIG);
	assert_non_null(strstr(c.text, "65536"));
	assert_int_equal(ask(&w, &c, 5, UINT64_MAX), -E2BIG);
	assert_int_equal(ask(&w, &c, 5, 0), -EINVAL);
	assert_int_equal(engine_submit(w.engine, &req, &c.seq, &err), -EDOM);
	assert_non_null(strstr(err.text, "4096"));
	end(&w);
}

static void test_cancelled_long_prompt_frees_everything_within_a_step(void **state)
{
	struct world w;

	(void)state;
	setenv("FAKE_STEP_MS", "2", 1);
	start_ready(&w, 1, NULL);
	client_n = 1;
	clients[0].cancel_at = 0;
	assert_int_equal(ask(&w, &clients[0], 60000, 100), 0);
	wait_step = 5;
	run_until(&w, step_reached, "five steps");
	engine_cancel(w.engine, clients[0].seq);
	assert_true(pages_idle(&w.engine->sched.pages));
	clients[0].seq = NULL;
	ask_one(&w, 10, 10);
	assert_answered(&clients[0]);
	assert_true(w.engine->sched.step < 5 + 2 + 12);
	end(&w);
}

static void test_status_tells_pids_pages_and_counts(void **state)
{
	struct world w;
	json_t *o = json_object(), *worker;

	(void)state;
	start_ready(&w, 2, NULL);
	ask_one(&w, 100, 10);
	assert_int_equal(engine_status_json(w.engine, o), 0);
	worker = json_array_get(json_object_get(o, "workers"), 1);
	assert_int_equal(json_integer_value(json_object_get(worker, "pid")),
		w.engine->sup.workers[1].child.pid);
	assert_string_equal(json_string_value(json_object_get(worker, "state")), "ready");
	assert_int_equal(json_integer_value(json_object_get(
				 json_object_get(o, "scheduler"), "generated_tokens")),
		10);
	assert_int_equal(json_array_size(json_object_get(json_object_get(o, "cache"), "classes")),
		PAGE__COUNT);
	assert_int_equal(
		json_integer_value(json_object_get(json_object_get(o, "queue"), "waiting")), 0);
	json_decref(o);
	end(&w);
}

/* ---- refusals ---- */

static void expect_refusal(int code, const char *text)
{
	struct world w;

	start(&w, 2, NULL);
	run_until(&w, is_over, "a refusal");
	assert_int_equal(w.refusals, 1);
	if (w.refused_code != code || !strstr(w.refused_text, text))
		fail_msg("%d: %s", w.refused_code, w.refused_text);
	assert_int_equal(w.readies, 0);
	assert_int_equal(w.engine->sup.restarts, 0);
	end(&w);
}

static void test_check_refuses_with_its_own_line_and_code(void **state)
{
	(void)state;
	setenv("FAKE_CHECK", "78", 1);
	expect_refusal(78, "fake refusal with code 78");
	setenv("FAKE_CHECK", "65", 1);
	expect_refusal(65, "fake refusal with code 65");
	setenv("FAKE_CHECK", "3", 1);
	expect_refusal(70, "fake refusal with code 3");
}

static void test_refusal_while_loading_is_never_restarted(void **state)
{
	(void)state;
	setenv("FAKE_FAULT", "failed@1:0", 1);
	expect_refusal(65, "the fake shard is damaged");
	setenv("FAKE_FAULT", "exit65@0:0", 1);
	expect_refusal(65, "worker 0 ended with exit code 65");
}

static void test_death_by_signal_while_loading_is_tried_again(void **state)
{
	struct world w;

	(void)state;
	start(&w, 2, "die@1.1:0,exit69@0.2:0,stop@0.3:0");
	sup_set_limits(&w.engine->sup, 300 * NS_PER_MS, 3);
	run_until(&w, is_ready, "readiness");
	assert_int_equal(w.engine->sup.generation, 4);
	end(&w);
}

static void test_missing_worker_program_is_refused(void **state)
{
	struct world w;
	struct errbuf err;

	(void)state;
	begin(&w, 1);
	free(w.engine->worker_path);
	w.engine->worker_path = strdup("/nonexistent/heddle-worker");
	w.engine->sup.worker_path = w.engine->worker_path;
	assert_true(engine_start(w.engine, &err) < 0);
	assert_int_equal(err.exit_code, EXIT_NO_INPUT);
	assert_non_null(strstr(err.text, "/nonexistent/heddle-worker"));
	end(&w);
}

/* ---- the end ---- */

static void on_idle(void *user)
{
	((struct world *)user)->idles++;
}

static bool is_idle(struct world *w)
{
	return w->idles > 0;
}

static void test_drain_lets_running_requests_finish(void **state)
{
	struct world w;
	struct client late = {0};
	uint32_t i;

	(void)state;
	start_ready(&w, 2, NULL);
	client_n = 20;
	for (i = 0; i < client_n; i++) {
		clients[i].cancel_at = 0;
		assert_int_equal(ask(&w, &clients[i], 10, 20), 0);
	}
	engine_drain(w.engine, on_idle, &w);
	assert_int_equal(w.idles, 0);
	assert_int_equal(engine_health(w.engine), ENGINE_DRAINING);
	assert_int_equal(ask(&w, &late, 5, 5), -ESHUTDOWN);
	run_until(&w, is_idle, "the drain");
	for (i = 0; i < client_n; i++)
		assert_answered(&clients[i]);
	engine_stop(w.engine, on_stopped, &w);
	run_until(&w, is_stopped, "the stop");
	assert_int_equal(w.idles, 1);
	assert_int_equal(w.stops, 1);
	assert_int_equal(WEXITSTATUS(w.engine->sup.workers[1].status), 0); /* asked, not killed */
	assert_false(WIFSIGNALED(w.engine->sup.workers[1].status));
	end(&w);
}

static void test_stop_fails_what_runs_and_ends_in_any_state(void **state)
{
	struct world w;

	(void)state;
	setenv("FAKE_STEP_MS", "5", 1);
	start_ready(&w, 2, NULL);
	client_n = 1;
	clients[0].cancel_at = 0;
	assert_int_equal(ask(&w, &clients[0], 10, 10000), 0);
	wait_step = 3;
	run_until(&w, step_reached, "three steps");
	engine_stop(w.engine, on_stopped, &w);
	assert_lost(&clients[0], "shutting down");
	run_until(&w, is_stopped, "the stop");
	end(&w);

	start(&w, 2, NULL); /* while the check runs */
	engine_stop(w.engine, on_stopped, &w);
	run_until(&w, is_stopped, "the stop of a check");
	end(&w);

	start_ready(&w, 1, "die@0.2:0");
	sup_lose(&w.engine->sup, "the test says so"); /* while it is being taken down */
	engine_stop(w.engine, on_stopped, &w);
	run_until(&w, is_stopped, "the stop of a lost group");
	end(&w);
}

static void test_free_without_stop_leaves_no_process(void **state)
{
	struct world w;

	(void)state;
	start_ready(&w, 3, NULL);
	client_n = 1;
	clients[0].cancel_at = 0;
	assert_int_equal(ask(&w, &clients[0], 10, 10000), 0);
	end(&w); /* checks that no child is left */
	assert_lost(&clients[0], "shutting down");
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup(f, clear_env)
	const struct CMUnitTest tests[] = {
		CASE(test_requests_get_their_tokens),
		CASE(test_bad_requests_are_refused_with_reasons),
		CASE(test_cancelled_long_prompt_frees_everything_within_a_step),
		CASE(test_status_tells_pids_pages_and_counts),
		CASE(test_check_refuses_with_its_own_line_and_code),
		CASE(test_refusal_while_loading_is_never_restarted),
		CASE(test_death_by_signal_while_loading_is_tried_again),
		CASE(test_missing_worker_program_is_refused),
		CASE(test_drain_lets_running_requests_finish),
		CASE(test_stop_fails_what_runs_and_ends_in_any_state),
		CASE(test_free_without_stop_leaves_no_process),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
