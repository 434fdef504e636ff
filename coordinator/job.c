#define LOG_TAG "api"
#include "coordinator/job.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

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

static void job_on_gone(void *user)
{
	job_drop(user);
}

static void job_on_abort(struct api_task *t, const char *why)
{
	job_fail(CONTAINER_OF(t, struct job, task), 503, "shutting_down", why);
}

static void job_on_keepalive(struct loop_timer *timer, void *user)
{
	(void)timer;
	(void)!job_out_comment(user);
}

static void job_observe_end(struct job *job)
{
	struct metrics *m = &job->task.api->metrics;
	uint64_t made = job_generated_tokens(job);
	struct choice *c;
	size_t i;

	for (i = 0; i < job->choice_n; i++) {
		c = &job->choices[i];
		m->choices_length += c->by_length;
		m->choices_stop += !c->by_length;
		if (c->tokens > 1)
			metric_observe(m, METRIC_H_time_per_token,
				job_seconds(job, job->first_token) / (double)(c->tokens - 1));
	}
	m->prompt_tokens += job_prompt_tokens(job);
	m->generation_tokens += made;
	metric_observe(m, METRIC_H_request_time, job_seconds(job, job->task.arrived));
}

/*
 * A choice has all its tokens. With the last one the job ends too; returns false when it did, or
 * when sending ended it.
 */
static bool choice_done(struct choice *c, bool by_length)
{
	struct job *job = c->job;

	c->done = true;
	c->by_length = by_length;
	if (c->stop_string < 0 && answer_finish(&c->answer)) {
		job_fail(job, 500, "internal_error", "out of memory");
		return false;
	}
	if (!job_out_delta(c) || !job_out_finish(c))
		return false;
	if (++job->done_n < job->choice_n)
		return true;
	job_observe_end(job);
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

/* Takes a generated token; returns as answer_push(). A stop token ends the text and has none. */
static int choice_take(struct choice *c, const struct engine_token *t)
{
	struct job *job = c->job;
	const struct params *r = job_params(job);

	if (!job->first_token) {
		job->first_token = loop_now(job->task.api->loop);
		metric_observe(&job->task.api->metrics, METRIC_H_time_to_first_token,
			job_seconds(job, job->task.arrived));
	}
	c->tokens++;
	c->thought_tokens += c->answer.reasoning;
	c->last_token = t->token;
	shape_token(c, t);
	if (choice_is_stop(c, t->token))
		return -1;
	return answer_push(&c->answer, t->token, c->tokens >= (uint64_t)r->min_tokens);
}

static void choice_on_tokens(void *user, const struct engine_token *tokens, size_t n)
{
	struct choice *c = user;
	int found = -1;
	size_t i;

	for (i = 0; i < n && found < 0; i++) {
		if (tokens[i].prompt) {
			shape_prompt_token(c, &tokens[i]);
			continue;
		}
		found = choice_take(c, &tokens[i]);
		if (found < -1) {
			job_fail(c->job, 500, "internal_error", "out of memory");
			return;
		}
	}
	if (found < 0) {
		(void)!job_out_delta(c);
		return;
	}
	c->stop_string = found;
	engine_cancel(c->job->task.api->engine, c->seq);
	c->seq = NULL;
	(void)choice_done(c, false);
}

static void choice_on_finish(
	void *user, enum engine_finish reason, int http_status, const char *text)
{
	struct choice *c = user;

	c->seq = NULL;
	if (reason == ENGINE_STOP_TOKEN || reason == ENGINE_LENGTH)
		(void)choice_done(c, reason == ENGINE_LENGTH);
	else
		job_fail(c->job, http_status ? http_status : 500,
			http_status == 503 ? "unavailable" : "engine_error",
			text ? text : "the engine gave the request up");
}

static void choice_on_prefill(void *user, uint64_t done, uint64_t total)
{
	struct choice *c = user;

	c->job->read_tokens = done;
	c->job->prompt_tokens_total = total;
}

/* Starting ----------------------------------------------------------------------------------- */

static void job_fill_sampling(const struct job *job, uint32_t choice, struct msg_sample *s)
{
	const struct params *r = job_params(job);
	uint32_t logprobs = job->logprobs ? job->top_n : 0;

	*s = (struct msg_sample){
		.seed = job->seed,
		.choice = choice,
		.temperature = (float)r->temperature,
		.top_p = (float)r->top_p,
		.min_p = (float)r->min_p,
		.top_k = r->top_k > 0 ? (uint32_t)r->top_k : 0,
		.frequency_penalty = (float)r->frequency_penalty,
		.presence_penalty = (float)r->presence_penalty,
		.repetition_penalty = (float)r->repetition_penalty,
		.logprobs = logprobs,
		.prompt_logprobs = r->echo ? logprobs : 0,
	};
}

/*
 * Tokens the answer to this prompt may have. What the request says must fit, and is never
 * shortened; a default is as long as fits. Returns false after answering 400.
 */
static bool job_max_tokens(struct job *job, size_t prompt_len, uint64_t context, uint64_t *ret_max)
{
	const struct params *r = job_params(job);
	int64_t fallback = job->task.api->conf->conf.api_max_tokens;
	const char *field = job->chat ? "messages" : "prompt";

	if (r->given[PARAM_ID_max_tokens]) {
		*ret_max = (uint64_t)r->max_tokens;
		if (prompt_len + *ret_max <= context)
			return true;
		task_fail(&job->task, 400, field, "context_length_exceeded",
			"this model's maximum context length is %" PRIu64
			" tokens, but the prompt has %zu and max_tokens asks for %" PRIu64
			" more, %" PRIu64 " in all",
			context, prompt_len, *ret_max, prompt_len + *ret_max);
		return false;
	}
	if (prompt_len >= context) {
		task_fail(&job->task, 400, field, "context_length_exceeded",
			"this model's maximum context length is %" PRIu64
			" tokens, but the prompt has %zu: there is no room for an answer",
			context, prompt_len);
		return false;
	}
	*ret_max = context - prompt_len;
	if (fallback != CONF_AUTO)
		*ret_max = MIN(*ret_max, (uint64_t)fallback);
	if (*ret_max >= (uint64_t)r->min_tokens)
		return true;
	task_fail(&job->task, 400, "min_tokens", "invalid_value",
		"min_tokens (%lld) is more than the %" PRIu64 " tokens the answer may have",
		(long long)r->min_tokens, *ret_max);
	return false;
}

static int job_submit(struct choice *c, uint64_t max_tokens, struct errbuf *err)
{
	struct job *job = c->job;
	const struct prep *p = &job->task.prep;
	const struct token_ids *ids = &choice_prompt(c)->ids;
	struct engine_request req = {
		.prompt = ids->ids,
		.prompt_len = ids->len,
		.max_tokens = max_tokens,
		.min_tokens = (uint64_t)p->params.min_tokens,
		.stop_tokens = p->stop_tokens,
		.stop_token_n = p->stop_token_n,
		.bias = p->bias,
		.bias_n = p->bias_n,
		.prompt_logprobs = p->params.echo && job->logprobs,
		.id = job->task.id,
		.ops = {choice_on_tokens, choice_on_finish, choice_on_prefill},
		.user = c,
	};

	job_fill_sampling(job, c->index % (uint32_t)p->params.n, &req.sampling);
	return engine_submit(job->task.api->engine, &req, &c->seq, err);
}

static void job_submit_failed(struct job *job, int ret, const char *text)
{
	switch (ret) {
	case -EAGAIN:
		job_fail(job, 429, "queue_full", text);
		break;
	case -ESHUTDOWN:
		job_fail(job, 503, "unavailable", text);
		break;
	case -E2BIG:
		job_fail(job, 400, "context_length_exceeded", text);
		break;
	case -EDOM:
	case -EINVAL:
		job_fail(job, 400, "invalid_value", text);
		break;
	default:
		log_warn("request %s: not accepted: %s", job->task.id, text);
		job_fail(job, 500, "internal_error", text);
		break;
	}
}

static int job_make_choices(struct job *job)
{
	const struct prep *p = &job->task.prep;
	struct choice *c;
	uint32_t i, n = (uint32_t)(p->prompt_n * (size_t)p->params.n);

	job->choices = calloc(n, sizeof(*job->choices));
	if (!job->choices)
		return -ENOMEM;
	job->choice_n = n;
	for (i = 0; i < n; i++) {
		c = &job->choices[i];
		c->job = job;
		c->index = i;
		c->prompt = i / (uint32_t)p->params.n;
		c->stop_string = -1;
		answer_init(&c->answer, job->task.api->tok, p->params.skip_special_tokens,
			p->thinking ? job->task.api->think : NULL, p->stops);
		token_stream_init(&c->echo, job->task.api->tok, false);
		if (p->params.echo)
			shape_echo(c);
	}
	return shape_head(job);
}

/* Nothing to compute: no token is wanted, and no prompt token has one before it to predict it. */
static bool choice_is_idle(const struct choice *c, uint64_t max_tokens)
{
	return !max_tokens && (!c->job->logprobs || choice_prompt(c)->ids.len == 1);
}

static void job_run(struct job *job, uint64_t context)
{
	struct errbuf err = {0};
	uint64_t max_tokens = 0;
	struct choice *c;
	size_t i, n;
	int ret;

	for (i = 0; i < job->task.prep.prompt_n; i++)
		if (!job_max_tokens(job, job->task.prep.prompts[i].ids.len, context, &max_tokens))
			return;
	if (job_make_choices(job)) {
		task_fail(&job->task, 500, NULL, "internal_error", "out of memory");
		return;
	}
	job->task.abort = job_on_abort;
	http_watch(job->task.x, job_on_gone, job);
	job->keepalive = (struct loop_timer){.fn = job_on_keepalive, .user = job};
	if (job_params(job)->stream)
		loop_timer_set(job->task.api->loop, &job->keepalive,
			loop_now(job->task.api->loop) + JOB_KEEPALIVE_NS);
	/* first all that can fail, then what may end the job */
	n = job->choice_n;
	for (i = 0; i < n; i++) {
		c = &job->choices[i];
		if (!job_max_tokens(job, choice_prompt(c)->ids.len, context, &max_tokens))
			return;
		c->done = choice_is_idle(c, max_tokens);
		ret = c->done ? 0 : job_submit(c, max_tokens, &err);
		if (ret) {
			job_submit_failed(job, ret, err.text);
			return;
		}
	}
	for (i = 0; i < n; i++)
		if (job->choices[i].done && !choice_done(&job->choices[i], true))
			return;
}

static void job_ready(struct api_task *t)
{
	struct job *job = CONTAINER_OF(t, struct job, task);
	const struct params *r = &t->prep.params;
	enum engine_health health = engine_health(t->api->engine);
	uint64_t context = engine_limits(t->api->engine).max_context;

	if (health == ENGINE_DRAINING || t->api->closing) {
		task_fail(t, 503, NULL, "shutting_down", "heddle is shutting down");
		return;
	}
	if (health == ENGINE_FAILED_FOR_GOOD) {
		task_fail(t, 503, NULL, "unavailable", "the workers have failed");
		return;
	}
	if (!context) {
		task_fail(t, 503, NULL, "unavailable", "the workers are still starting");
		return;
	}
	job->logprobs = job->chat ? r->logprobs : r->given[PARAM_ID_logprobs_n];
	job->top_n = (uint32_t)(job->chat ? r->top_logprobs : r->logprobs_n);
	if (r->given[PARAM_ID_seed])
		job->seed = (uint64_t)r->seed;
	else if (getrandom(&job->seed, sizeof(job->seed), 0) != sizeof(job->seed)) {
		task_fail(t, 500, NULL, "internal_error", "no random seed to be had");
		return;
	}
	job_run(job, context);
}

static void job_start(struct api *api, struct http_exchange *x, bool chat)
{
	struct job *job = calloc(1, sizeof(*job));

	if (!job) {
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
