/* The engine when workers are lost: killed, stopped, silent, lying; idle and in a step. */
#include "config.h"

#include <dirent.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/proc/engine_world.h"

/* A fault at step 3 of the first generation: the request ends, the group is back, all is served. */
static void lose_and_recover(const char *fault, uint32_t workers, const char *why)
{
	struct world w;

	start_ready(&w, workers, fault);
	ask_one(&w, 10, 50);
	assert_lost(&clients[0], why);
	run_until(&w, is_ready_again, "the group to be back");
	assert_int_equal(w.restartings, 1);
	assert_int_equal(w.engine->sup.restarts, 1);
	assert_int_equal(w.engine->sup.generation, 2);
	assert_true(pages_idle(&w.engine->sched.pages));
	ask_one(&w, 10, 50);
	assert_answered(&clients[0]);
	assert_int_equal(w.engine->sup.failures, 0); /* a served request forgives */
	end(&w);
}

static void test_worker_killed_in_a_step_is_replaced(void **state)
{
	(void)state;
	lose_and_recover("die@0:3", 1, "worker 0 ");
}

static void test_other_worker_killed_in_a_step_is_blamed(void **state)
{
	(void)state;
	lose_and_recover("die@1:3", 2, "worker 1 ");
}

static void test_failed_step_loses_the_group(void **state)
{
	(void)state;
	lose_and_recover("fail@0:3", 2, "as the test asked");
}

static void test_lying_worker_loses_the_group(void **state)
{
	(void)state;
	lose_and_recover("lie@0:3", 2, "sent what it should not");
}

static void test_garbled_reply_loses_the_group(void **state)
{
	(void)state;
	lose_and_recover("garble@0:3", 1, "sent what it should not");
}

static void test_worker_that_says_failed_loses_the_group(void **state)
{
	(void)state;
	lose_and_recover("failed@1:3", 2, "worker 1 failed: the fake shard is damaged");
}

/* A deadline that a worker which does work meets, however busy the machine. */
#define SILENCE_NS (1500 * NS_PER_MS)

/* Silence: the deadline names rank, step and stage. */
static void lose_silent(const char *fault, uint32_t workers, const char *why)
{
	struct world w;

	start_ready(&w, workers, fault);
	sup_set_limits(&w.engine->sup, SILENCE_NS, 3);
	ask_one(&w, 10, 50);
	assert_lost(&clients[0], why);
	assert_non_null(strstr(clients[0].text, "made no progress"));
	assert_non_null(strstr(clients[0].text, "step 3, layer 3"));
	sup_set_limits(&w.engine->sup, 20 * NS_PER_S, 3);
	run_until(&w, is_ready_again, "the group to be back");
	ask_one(&w, 10, 50);
	assert_answered(&clients[0]);
	end(&w);
}

static void test_hanging_worker_is_caught_by_its_deadline(void **state)
{
	(void)state;
	lose_silent("hang@0:3", 1, "worker 0 ");
}

static void test_stopped_worker_is_caught_and_blamed(void **state)
{
	(void)state;
	lose_silent("stop@1:3", 3, "worker 1 ");
}

static void test_idle_worker_killed_is_replaced(void **state)
{
	struct world w;

	(void)state;
	start_ready(&w, 2, NULL);
	kill(w.engine->sup.workers[1].child.pid, SIGKILL);
	run_until(&w, is_ready_again, "the group to be back");
	ask_one(&w, 10, 5);
	assert_answered(&clients[0]);
	end(&w);
}

static void test_idle_worker_stopped_is_replaced(void **state)
{
	struct world w;

	(void)state;
	start_ready(&w, 2, NULL);
	sup_set_limits(&w.engine->sup, SILENCE_NS, 3);
	kill(w.engine->sup.workers[0].child.pid, SIGSTOP);
	run_until(&w, is_ready_again, "the group to be back");
	assert_non_null(strstr(w.why, "stopped"));
	end(&w);
}

static void test_idle_workers_are_left_alone(void **state)
{
	struct world w;

	(void)state;
	start_ready(&w, 2, NULL);
	sup_set_limits(&w.engine->sup, SILENCE_NS, 3);
	ask_one(&w, 10, 2); /* idle for longer than the deadline, then work again */
	(void)poll(NULL, 0, SILENCE_NS / NS_PER_MS * 3 / 2);
	ask_one(&w, 10, 2);
	assert_answered(&clients[0]);
	assert_int_equal(w.engine->sup.restarts, 0);
	end(&w);
}

/* Makes the watch look now, and then once more as if the loop had not run for long in between. */
struct absence {
	struct loop_timer timer;
	struct world *w;
	uint32_t looks;
};

static void on_absence(struct loop_timer *t, void *user)
{
	struct absence *a = user;
	struct sup *s = &a->w->engine->sup;

	if (a->looks++)
		s->watch_due_ns = mono_now() - s->progress_timeout_ns;
	loop_timer_set(a->w->loop, &s->timer, mono_now());
	if (a->looks < 20)
		loop_timer_set(a->w->loop, t, mono_now() + 10 * NS_PER_MS);
}

static void test_absence_of_the_coordinator_is_nobodys_silence(void **state)
{
	struct world w;
	struct absence a = {.timer = {.fn = on_absence, .user = &a}, .w = &w};

	(void)state;
	setenv("FAKE_STEP_MS", "100", 1);
	start_ready(&w, 2, NULL);
	loop_timer_set(w.loop, &a.timer, mono_now() + 10 * NS_PER_MS);
	ask_one(&w, 10, 5);
	assert_answered(&clients[0]);
	assert_true(a.looks > 2);
	loop_timer_stop(w.loop, &a.timer);
	assert_int_equal(w.engine->sup.restarts, 0);
	end(&w);
}

static void test_waiting_requests_survive_a_restart(void **state)
{
	struct world w;
	uint32_t i, lost = 0;

	(void)state;
	start_ready(&w, 1, "die@0:4");
	client_n = 30;
	for (i = 0; i < client_n; i++) {
		clients[i].cancel_at = 0;
		assert_int_equal(ask(&w, &clients[i], 10, 20), 0);
	}
	run_until(&w, all_finished, "thirty requests");
	for (i = 0; i < client_n; i++) {
		if (clients[i].reason == ENGINE_FAILED)
			lost++;
		else
			assert_answered(&clients[i]);
	}
	assert_int_equal(lost, 16); /* those that ran; those that waited did not notice */
	end(&w);
}

static void test_too_many_restarts_end_for_good(void **state)
{
	struct world w;

	(void)state;
	start_ready(&w, 1, "die@0.1:1,die@0.2:0,die@0.3:0,die@0.4:0");
	ask_one(&w, 10, 50);
	assert_lost(&clients[0], "worker 0");
	run_until(&w, is_over, "giving up");
	assert_int_equal(w.engine->sup.generation, 4);
	assert_int_equal(w.refusals, 0);
	assert_int_equal(engine_health(w.engine), ENGINE_FAILED_FOR_GOOD);
	assert_int_equal(ask(&w, &clients[0], 5, 5), -ESHUTDOWN);
	assert_non_null(strstr(clients[0].text, "signal 9"));
	end(&w);
}

static uint32_t open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	uint32_t n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void test_restarts_leak_no_descriptors(void **state)
{
	struct world w;
	uint32_t before;

	(void)state;
	start_ready(&w, 2, "die@0.2:0,die@1.3:0");
	before = open_fds();
	sup_lose(&w.engine->sup, "the test says so");
	run_until(&w, is_ready_again, "the group to be back");
	assert_int_equal(open_fds(), before);
	assert_int_equal(w.engine->sup.generation, 4);
	end(&w);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup(f, clear_env)
	const struct CMUnitTest tests[] = {
		CASE(test_worker_killed_in_a_step_is_replaced),
		CASE(test_other_worker_killed_in_a_step_is_blamed),
		CASE(test_failed_step_loses_the_group),
		CASE(test_lying_worker_loses_the_group),
		CASE(test_garbled_reply_loses_the_group),
		CASE(test_worker_that_says_failed_loses_the_group),
		CASE(test_hanging_worker_is_caught_by_its_deadline),
		CASE(test_stopped_worker_is_caught_and_blamed),
		CASE(test_idle_worker_killed_is_replaced),
		CASE(test_idle_worker_stopped_is_replaced),
		CASE(test_idle_workers_are_left_alone),
		CASE(test_absence_of_the_coordinator_is_nobodys_silence),
		CASE(test_waiting_requests_survive_a_restart),
		CASE(test_too_many_restarts_end_for_good),
		CASE(test_restarts_leak_no_descriptors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
