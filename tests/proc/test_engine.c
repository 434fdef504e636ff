/*
 * The engine with real processes: fake workers (fake_worker.c) that are told to die, hang, stop,
 * lie or refuse. Each case runs the loop until what it waits for has happened.
 */
#include "config.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "coordinator/engine_impl.h"
#include "tests/proc/fake_model.h"

#define VOCAB       4096
#define FIRST       64
#define PATIENCE_NS (30 * NS_PER_S)

struct world {
	struct loop *loop;
	struct engine *engine;
	struct conf conf;
	char dir[64];
	bool (*done)(struct world *w);
	struct loop_hook hook;
	struct loop_timer patience;
	bool timed_out;
	/* what was told */
	uint32_t readies, restartings, for_good, refusals, idles, stops;
	int refused_code;
	char refused_text[600], why[600];
};

struct client {
	struct world *w;
	struct engine_seq *seq;
	uint64_t hash, received, max_tokens, reported, prompt_len;
	uint64_t cancel_at;
	uint32_t finishes, prefills;
	enum engine_finish reason;
	int http_status;
	char text[600];
};

/* ---- the loop ---- */

static void look_if_done(void *user)
{
	struct world *w = user;

	if (w->done && w->done(w))
		loop_stop(w->loop);
}

static void on_patience(struct loop_timer *t, void *user)
{
	struct world *w = user;

	(void)t;
	w->timed_out = true;
	loop_stop(w->loop);
}

static void run_until(struct world *w, bool (*done)(struct world *w), const char *what)
{
	if (done(w))
		return;
	w->done = done;
	loop_timer_set(w->loop, &w->patience, mono_now() + PATIENCE_NS);
	assert_int_equal(loop_run(w->loop), 0);
	loop_timer_stop(w->loop, &w->patience);
	w->done = NULL;
	if (w->timed_out)
		fail_msg("waited in vain for: %s (%s)", what, w->why);
}

static void on_health(void *user, enum engine_health health, const char *why)
{
	struct world *w = user;

	w->readies += health == ENGINE_READY;
	w->restartings += health == ENGINE_RESTARTING;
	w->for_good += health == ENGINE_FAILED_FOR_GOOD;
	if (why[0])
		snprintf(w->why, sizeof(w->why), "%s", why);
}

static void on_refused(void *user, int exit_code, const char *text)
{
	struct world *w = user;

	w->refusals++;
	w->refused_code = exit_code;
	snprintf(w->refused_text, sizeof(w->refused_text), "%s", text);
}

static void begin(struct world *w, uint32_t workers)
{
	struct engine_hooks hooks = {
		.worker_path = "./fake-worker", .on_health = on_health, .on_refused = on_refused};
	char path[128];
	struct errbuf err = {{0}, 0};
	int fd;

	*w = (struct world){0};
	snprintf(w->dir, sizeof(w->dir), "/tmp/heddle-engine.XXXXXX");
	assert_non_null(mkdtemp(w->dir));
	snprintf(path, sizeof(path), "%s/config.json", w->dir);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	assert_true(fd >= 0);
	close(fd);
	w->conf = (struct conf){.fabric_workers = workers,
		.fabric_threads = 1,
		.fabric_spin = 0,
		.fabric_pin = 1,
		.fabric_ring = 1 << 20,
		.fabric_progress_timeout = (int64_t)(20 * NS_PER_S),
		.fabric_max_restarts = 3,
		.schedule_max_context = CONF_AUTO,
		.schedule_max_sequences = 16,
		.schedule_step_tokens = CONF_AUTO,
		.schedule_queue = 64,
		.schedule_queue_timeout = (int64_t)(60 * NS_PER_S)};
	snprintf(w->conf.model_path, sizeof(w->conf.model_path), "%s", w->dir);
	if (loop_new(64, &w->loop, &err) < 0) {
		print_message("skipped: %s\n", err.text);
		exit(77);
	}
	w->hook = (struct loop_hook){.fn = look_if_done, .user = w};
	w->patience = (struct loop_timer){.fn = on_patience, .user = w};
	hooks.user = w;
	if (engine_new(w->loop, &w->conf, &hooks, &w->engine, &err) < 0)
		fail_msg("%s", err.text);
	loop_at_turn_end(w->loop, &w->hook); /* after the engine's: it sees what that did */
}

static void start(struct world *w, uint32_t workers, const char *fault)
{
	struct errbuf err = {{0}, 0};

	if (fault)
		setenv("FAKE_FAULT", fault, 1);
	begin(w, workers);
	if (engine_start(w->engine, &err) < 0)
		fail_msg("%s", err.text);
}

static bool is_ready(struct world *w)
{
	return engine_health(w->engine) == ENGINE_READY;
}

static void start_ready(struct world *w, uint32_t workers, const char *fault)
{
	start(w, workers, fault);
	run_until(w, is_ready, "readiness");
}

/* Children that are left, reaped or not. */
static bool has_children(void)
{
	return waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD;
}

static void end(struct world *w)
{
	char path[128];

	loop_settle(w->loop);
	engine_free(w->engine);
	loop_free(w->loop);
	assert_false(has_children());
	snprintf(path, sizeof(path), "%s/config.json", w->dir);
	unlink(path);
	rmdir(w->dir);
}

static int clear_env(void **state)
{
	static const char *const names[] = {"FAKE_FAULT", "FAKE_CHECK", "FAKE_STEP_MS",
		"FAKE_CONTEXT", "FAKE_PAGES", "FAKE_STEP_TOKENS"};
	size_t i;

	(void)state;
	for (i = 0; i < ARRAY_LEN(names); i++)
		unsetenv(names[i]);
	return 0;
}

/* ---- requests ---- */

static void on_tokens(void *user, const struct engine_token *tokens, size_t n)
{
	struct client *c = user;
	size_t i;

	assert_int_equal(c->finishes, 0);
	for (i = 0; i < n; i++) {
		if (tokens[i].prompt) {
			assert_int_equal(tokens[i].pos, ++c->reported);
			continue;
		}
		assert_int_equal(tokens[i].pos, c->prompt_len + c->received);
		assert_int_equal(tokens[i].token, fake_token(c->hash, FIRST, VOCAB, NULL, 0));
		c->hash = fake_hash(c->hash, tokens[i].token);
		c->received++;
	}
	if (c->cancel_at && c->received >= c->cancel_at) {
		engine_cancel(c->w->engine, c->seq);
		c->seq = NULL;
		c->cancel_at = 0;
	}
}

static void on_finish(void *user, enum engine_finish reason, int http_status, const char *text)
{
	struct client *c = user;

	c->finishes++;
	c->seq = NULL;
	c->reason = reason;
	c->http_status = http_status;
	if (text)
		snprintf(c->text, sizeof(c->text), "%s", text);
}

static void on_prefill(void *user, uint64_t done, uint64_t total)
{
	struct client *c = user;

	assert_int_equal(total, c->prompt_len);
	assert_true(done <= total);
	c->prefills++;
}

static int ask(struct world *w, struct client *c, uint32_t prompt_len, uint64_t max_tokens)
{
	uint32_t *prompt = calloc(prompt_len, sizeof(*prompt)), i;
	struct engine_request req = {.prompt = prompt,
		.prompt_len = prompt_len,
		.max_tokens = max_tokens,
		.id = "test",
		.ops = {on_tokens, on_finish, on_prefill},
		.user = c};
	struct errbuf err = {{0}, 0};
	int r;

	*c = (struct client){.w = w,
		.hash = FAKE_HASH0,
		.prompt_len = prompt_len,
		.max_tokens = max_tokens,
		.cancel_at = c->cancel_at};
	for (i = 0; i < prompt_len; i++) {
		prompt[i] = (i * 7 + 1) % VOCAB;
		c->hash = fake_hash(c->hash, prompt[i]);
	}
	r = engine_submit(w->engine, &req, &c->seq, &err);
	snprintf(c->text, sizeof(c->text), "%s", err.text);
	free(prompt);
	return r;
}

static struct client clients[40];
static uint32_t client_n;

static bool all_finished(struct world *w)
{
	uint32_t i;

	(void)w;
	for (i = 0; i < client_n; i++)
		if (clients[i].seq)
			return false;
	return true;
}

static void ask_one(struct world *w, uint32_t prompt_len, uint64_t max_tokens)
{
	client_n = 1;
	clients[0].cancel_at = 0;
	if (ask(w, &clients[0], prompt_len, max_tokens) < 0)
		fail_msg("%s", clients[0].text);
	run_until(w, all_finished, "the end of a request");
}

static void assert_answered(const struct client *c)
{
	if (c->reason != ENGINE_LENGTH)
		fail_msg("ended by %d: %s", c->reason, c->text);
	assert_int_equal(c->finishes, 1);
	assert_int_equal(c->received, c->max_tokens);
}

static void assert_lost(const struct client *c, const char *why)
{
	assert_int_equal(c->finishes, 1);
	assert_int_equal(c->reason, ENGINE_FAILED);
	assert_int_equal(c->http_status, 503);
	if (!strstr(c->text, why))
		fail_msg("\"%s\" does not say \"%s\"", c->text, why);
}

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

static uint32_t dropped_at;

static bool prefilling(struct world *w)
{
	return w->engine->sched.step >= dropped_at;
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
	dropped_at = 5;
	run_until(&w, prefilling, "five steps");
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

/* ---- losing workers ---- */

static bool is_ready_again(struct world *w)
{
	return w->readies == 2;
}

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
	lose_and_recover("die@0:3", 1, "worker 0 (pid ");
}

static void test_other_worker_killed_in_a_step_is_blamed(void **state)
{
	(void)state;
	lose_and_recover("die@1:3", 2, "worker 1 (pid ");
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

/* Silence: the deadline names rank, step and stage. */
static void lose_silent(const char *fault, uint32_t workers, const char *why)
{
	struct world w;

	begin(&w, workers);
	sup_set_limits(&w.engine->sup, 300 * NS_PER_MS, 3);
	setenv("FAKE_FAULT", fault, 1);
	assert_int_equal(engine_start(w.engine, NULL), 0);
	run_until(&w, is_ready, "readiness");
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
	sup_set_limits(&w.engine->sup, 300 * NS_PER_MS, 3);
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
	sup_set_limits(&w.engine->sup, 100 * NS_PER_MS, 3);
	ask_one(&w, 10, 2); /* idle for longer than the deadline, then work again */
	dropped_at = 0;
	(void)poll(NULL, 0, 300);
	ask_one(&w, 10, 2);
	assert_answered(&clients[0]);
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

static bool is_over(struct world *w)
{
	return w->for_good > 0 || w->refusals > 0;
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

static void on_stopped(void *user)
{
	((struct world *)user)->stops++;
}

static bool is_idle(struct world *w)
{
	return w->idles > 0;
}

static bool is_stopped(struct world *w)
{
	return w->stops > 0;
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
	dropped_at = 3;
	run_until(&w, prefilling, "three steps");
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
		CASE(test_requests_get_their_tokens),
		CASE(test_bad_requests_are_refused_with_reasons),
		CASE(test_cancelled_long_prompt_frees_everything_within_a_step),
		CASE(test_status_tells_pids_pages_and_counts),
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
		CASE(test_waiting_requests_survive_a_restart),
		CASE(test_too_many_restarts_end_for_good),
		CASE(test_check_refuses_with_its_own_line_and_code),
		CASE(test_refusal_while_loading_is_never_restarted),
		CASE(test_death_by_signal_while_loading_is_tried_again),
		CASE(test_missing_worker_program_is_refused),
		CASE(test_drain_lets_running_requests_finish),
		CASE(test_stop_fails_what_runs_and_ends_in_any_state),
		CASE(test_free_without_stop_leaves_no_process),
		CASE(test_restarts_leak_no_descriptors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
