#define LOG_TAG "api"
#include "coordinator/job.h"

#include <inttypes.h>
#include <stdlib.h>

#include "shm/log.h"

uint64_t job_prompt_tokens(const struct job *job)
{
	uint64_t n = 0;
	size_t i;

	for (i = 0; i < job->task.prep.prompt_n; i++)
		n += job->task.prep.prompts[i].ids.len;
	return n;
}

uint64_t job_generated_tokens(const struct job *job)
{
	uint64_t n = 0;
	size_t i;

	for (i = 0; i < job->choice_n; i++)
		n += job->choices[i].tokens;
	return n;
}

static double job_seconds(const struct job *job, mono_ns_t since)
{
	mono_ns_t now = loop_now(job->task.api->loop);

	return now > since ? (double)(now - since) / (double)NS_PER_S : 0;
}

static void job_cancel_choices(struct job *job)
{
	struct choice *c;
	size_t i;

	for (i = 0; i < job->choice_n; i++) {
		c = &job->choices[i];
		if (c->seq)
			engine_cancel(job->task.api->engine, c->seq);
		c->seq = NULL;
	}
}

static void job_free(struct api_task *t)
{
	struct job *job = CONTAINER_OF(t, struct job, task);
	struct choice *c;
	size_t i;

	job_cancel_choices(job);
	loop_timer_stop(t->api->loop, &job->keepalive);
	for (i = 0; i < job->choice_n; i++) {
		c = &job->choices[i];
		answer_fini(&c->answer);
		token_stream_fini(&c->echo);
		choice_lists_fini(&c->lists);
	}
	free(job->choices);
	outbuf_fini(&job->head);
	free(job);
}

/* The request's one line in the log, and the end of the job. 499: the client went away. */
static void job_close(struct job *job, int status)
{
	struct metrics *m = &job->task.api->metrics;

	if (status == 200)
		m->requests_ok++;
	else if (status == 499)
		m->requests_aborted++;
	else if (status < 500)
		m->requests_refused++;
	else
		m->requests_failed++;
	log_info("request %s: %s %d, %" PRIu64 " + %" PRIu64 " tokens, %.3f s", job->task.id,
		job->chat ? "chat" : "completion", status, job_prompt_tokens(job),
		job_generated_tokens(job), job_seconds(job, job->task.arrived));
	task_end(&job->task);
}

void job_fail(struct job *job, int status, const char *code, const char *text)
{
	job_cancel_choices(job);
	job_out_error(job, status, code, text);
	job_close(job, status);
}

void job_drop(struct job *job)
{
	job->task.x = NULL;
	job_close(job, 499);
}

void job_on_gone(void *user)
{
	job_drop(user);
}

void job_on_abort(struct api_task *t, const char *why)
{
	job_fail(CONTAINER_OF(t, struct job, task), 503, "shutting_down", why);
}

void job_on_keepalive(struct loop_timer *timer, void *user)
{
	(void)timer;
	(void)!job_out_comment(user);
}

static void choice_observe_end(const struct choice *c)
{
	struct metrics *m = &c->job->task.api->metrics;

	if (c->by_length)
		m->choices_length++;
	else if (c->answer.complete_n)
		m->choices_tool_calls++;
	else
		m->choices_stop++;
	m->choices_empty += !c->by_length && !c->answer.said && !c->answer.complete_n;
	if (c->tokens > 1)
		metric_observe(m, METRIC_H_time_per_token,
			(double)(c->last_ns - c->first_ns) / (double)NS_PER_S /
				(double)(c->tokens - 1));
}

/* Was it the model that ended the answer? A stop_token_ids of the request is a cut. */
static bool choice_was_cut(const struct choice *c, enum choice_end end)
{
	const struct prep *p = &c->job->task.prep;
	size_t i;

	for (i = 0; i < p->end_token_n && end == CHOICE_TOKEN; i++)
		if (p->stop_tokens[i] == c->last_token)
			return false;
	return true;
}

bool choice_done(struct choice *c, enum choice_end end)
{
	struct job *job = c->job;
	int ret = end == CHOICE_TEXT ? 1 : answer_finish(&c->answer, choice_was_cut(c, end));

	if (ret < 0) {
		job_fail(job, 500, "internal_error", "out of memory");
		return false;
	}
	c->done = true;
	/* text held back until the end may turn out to be a stop string */
	c->by_length = end == CHOICE_LENGTH && !ret;
	choice_observe_end(c);
	if (!job_out_delta(c) || !job_out_finish(c))
		return false;
	if (++job->done_n < job->choice_n)
		return true;
	metric_observe(&job->task.api->metrics, METRIC_H_request_time,
		job_seconds(job, job->task.arrived));
	job_close(job, job_out_end(job));
	return false;
}

static bool choice_is_stop(const struct choice *c, uint32_t token)
{
	const struct prep *p = &c->job->task.prep;
	size_t i;

	for (i = 0; i < p->stop_token_n; i++)
		if (p->stop_tokens[i] == token)
			return true;
	return false;
}

/* It has left the queue: something of it was computed. */
static void choice_start(struct choice *c)
{
	struct api *api = c->job->task.api;

	if (c->started)
		return;
	c->started = true;
	metric_observe(&api->metrics, METRIC_H_queue_time,
		(double)engine_waited(c->seq) / (double)NS_PER_S);
}

/* Takes a generated token; returns as answer_push(). A stop token ends the text and has none. */
static int choice_take(struct choice *c, const struct engine_token *t)
{
	struct job *job = c->job;
	struct metrics *m = &job->task.api->metrics;

	c->last_ns = loop_now(job->task.api->loop);
	if (!c->tokens)
		c->first_ns = c->last_ns;
	if (!job->first_token) {
		job->first_token = c->last_ns;
		metric_observe(
			m, METRIC_H_time_to_first_token, job_seconds(job, job->task.arrived));
	}
	m->generation_tokens++;
	c->tokens++;
	c->thought_tokens += answer_thinks(&c->answer);
	c->last_token = t->token;
	shape_token(c, t);
	if (choice_is_stop(c, t->token))
		return 0;
	return answer_push(
		&c->answer, t->token, c->tokens >= (uint64_t)job_params(job)->min_tokens);
}

static void choice_on_tokens(void *user, const struct engine_token *tokens, size_t n)
{
	struct choice *c = user;
	int ret = 0;
	size_t i;

	choice_start(c);
	for (i = 0; i < n && !ret; i++) {
		if (tokens[i].prompt)
			shape_prompt_token(c, &tokens[i]);
		else
			ret = choice_take(c, &tokens[i]);
	}
	if (ret < 0) {
		job_fail(c->job, 500, "internal_error", "out of memory");
		return;
	}
	if (!ret) {
		(void)!job_out_delta(c);
		return;
	}
	engine_cancel(c->job->task.api->engine, c->seq);
	c->seq = NULL;
	(void)!choice_done(c, CHOICE_TEXT);
}

static void choice_on_finish(
	void *user, enum engine_finish reason, int http_status, const char *text)
{
	struct choice *c = user;

	c->seq = NULL;
	if (reason == ENGINE_STOP_TOKEN || reason == ENGINE_LENGTH)
		(void)!choice_done(c, reason == ENGINE_LENGTH ? CHOICE_LENGTH : CHOICE_TOKEN);
	else
		job_fail(c->job, http_status ? http_status : 500,
			http_status == 503 ? "unavailable" : "engine_error",
			text ? text : "the engine gave the request up");
}

static void choice_on_prefill(void *user, uint64_t done, uint64_t total)
{
	struct choice *c = user;

	choice_start(c);
	c->job->read_tokens = done;
	c->job->prompt_tokens_total = total;
}

const struct engine_seq_ops choice_ops = {
	.on_tokens = choice_on_tokens,
	.on_finish = choice_on_finish,
	.on_prefill = choice_on_prefill,
};

static void job_start(struct api *api, struct http_exchange *x, bool chat)
{
	const char *code, *why = job_unready(api, &code);
	struct job *job;

	if (why) {
		api->metrics.requests_failed++;
		api_error(x, 503, NULL, code, "%s", why);
		return;
	}
	job = calloc(1, sizeof(*job));
	if (!job) {
		api->metrics.requests_failed++;
		api_error(x, 500, NULL, "internal_error", "out of memory");
		return;
	}
	job->chat = chat;
	job->task.ready = job_ready;
	job->task.free = job_free;
	task_start(&job->task, api, x, chat ? S_CHAT : S_TEXT);
}

void api_chat(struct api *api, struct http_exchange *x, const char *rest)
{
	(void)rest;
	job_start(api, x, true);
}

void api_completions(struct api *api, struct http_exchange *x, const char *rest)
{
	(void)rest;
	job_start(api, x, false);
}
