#include "config.h"

#include "tests/proc/engine_world.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/proc/fake_model.h"

#define PATIENCE_NS (30 * NS_PER_S)

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

void run_until(struct world *w, bool (*done)(struct world *w), const char *what)
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

void begin(struct world *w, uint32_t workers)
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

void start(struct world *w, uint32_t workers, const char *fault)
{
	struct errbuf err = {{0}, 0};

	if (fault)
		setenv("FAKE_FAULT", fault, 1);
	begin(w, workers);
	if (engine_start(w->engine, &err) < 0)
		fail_msg("%s", err.text);
}

bool is_ready(struct world *w)
{
	return engine_health(w->engine) == ENGINE_READY;
}

void start_ready(struct world *w, uint32_t workers, const char *fault)
{
	start(w, workers, fault);
	run_until(w, is_ready, "readiness");
}

/* Children that are left, reaped or not. */
static bool has_children(void)
{
	return waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD;
}

void end(struct world *w)
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

int clear_env(void **state)
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

int ask(struct world *w, struct client *c, uint32_t prompt_len, uint64_t max_tokens)
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

struct client clients[CLIENTS_MAX];
uint32_t client_n;

bool all_finished(struct world *w)
{
	uint32_t i;

	(void)w;
	for (i = 0; i < client_n; i++)
		if (clients[i].seq)
			return false;
	return true;
}

void ask_one(struct world *w, uint32_t prompt_len, uint64_t max_tokens)
{
	client_n = 1;
	clients[0].cancel_at = 0;
	if (ask(w, &clients[0], prompt_len, max_tokens) < 0)
		fail_msg("%s", clients[0].text);
	run_until(w, all_finished, "the end of a request");
}

void assert_answered(const struct client *c)
{
	if (c->reason != ENGINE_LENGTH)
		fail_msg("ended by %d: %s", c->reason, c->text);
	assert_int_equal(c->finishes, 1);
	assert_int_equal(c->received, c->max_tokens);
}

void assert_lost(const struct client *c, const char *why)
{
	assert_int_equal(c->finishes, 1);
	assert_int_equal(c->reason, ENGINE_FAILED);
	assert_int_equal(c->http_status, 503);
	if (!strstr(c->text, why))
		fail_msg("\"%s\" does not say \"%s\"", c->text, why);
}

/* ---- what tests wait for ---- */

uint64_t wait_step;

bool step_reached(struct world *w)
{
	return w->engine->sched.step >= wait_step;
}

bool is_ready_again(struct world *w)
{
	return w->readies == 2;
}

bool is_over(struct world *w)
{
	return w->for_good > 0 || w->refusals > 0;
}

bool is_stopped(struct world *w)
{
	return w->stops > 0;
}

void on_stopped(void *user)
{
	((struct world *)user)->stops++;
}
