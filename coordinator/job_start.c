/* How a job begins: what its body asks of the engine, or why it is refused. */
#define LOG_TAG "api"
#include "coordinator/job.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "shm/log.h"

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

/* Nothing to compute: no token is wanted, and no prompt token has one before it to predict it. */
static bool job_is_idle(const struct job *job, size_t prompt_len, uint64_t max_tokens)
{
	return !max_tokens && (!job->logprobs || prompt_len == 1);
}

/*
 * Its own answers fit an engine that has nothing else to do: else it would be told again and again
 * that the queue is full, of itself. Returns false after answering 400.
 */
static bool job_check_fits(struct job *job, uint64_t context)
{
	const struct prep *p = &job->task.prep;
	struct engine_fit fit = {0};
	uint64_t max_tokens = 0;
	size_t i, len;
	int64_t k;

	for (i = 0; i < p->prompt_n; i++) {
		len = p->prompts[i].ids.len;
		if (!job_max_tokens(job, len, context, &max_tokens))
			return false;
		for (k = 0; k < p->params.n && !job_is_idle(job, len, max_tokens); k++) {
			if (engine_fit(job->task.api->engine, len, max_tokens, &fit))
				continue;
			task_fail(&job->task, 400, p->params.n > 1 ? "n" : "prompt",
				"invalid_value",
				"n = %lld and %zu prompt%s ask for %zu answers, but of these only "
				"%u can run at once and %u wait (schedule.queue): ask for fewer, "
				"or for shorter ones (max_tokens)",
				(long long)p->params.n, p->prompt_n, p->prompt_n == 1 ? "" : "s",
				p->prompt_n * (size_t)p->params.n, fit.run, fit.wait);
			return false;
		}
	}
	return true;
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
		.ops = choice_ops,
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
	const struct answer_how how = {
		.tok = job->task.api->tok,
		.stops = p->stops,
		.skip_special = p->params.skip_special_tokens,
		.thinking = p->thinking,
		.calls = p->calls,
		.pieces = p->params.stream && p->params.tool_stream,
		.one_call = !p->params.parallel_tool_calls,
		.begun = p->begun,
		.begun_len = p->begun ? strlen(p->begun) : 0,
	};
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
		token_stream_init(&c->echo, job->task.api->tok, false);
		if (answer_init(&c->answer, &how))
			return -ENOMEM;
		if (p->params.echo)
			shape_echo(c);
	}
	return shape_head(job);
}

static void job_run(struct job *job, uint64_t context)
{
	struct errbuf err = {0};
	uint64_t max_tokens = 0;
	struct choice *c;
	size_t i, n;
	int ret;

	if (!job_check_fits(job, context))
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
		c->done = job_is_idle(job, choice_prompt(c)->ids.len, max_tokens);
		ret = c->done ? 0 : job_submit(c, max_tokens, &err);
		if (ret) {
			job_submit_failed(job, ret, err.text);
			return;
		}
	}
	job->task.api->metrics.prompt_tokens += job_prompt_tokens(job);
	for (i = 0; i < n; i++)
		if (job->choices[i].done && !choice_done(&job->choices[i], CHOICE_LENGTH))
			return;
}

static bool job_draw(uint64_t *ret)
{
	return getrandom(ret, sizeof(*ret), 0) == sizeof(*ret);
}

const char *job_unready(const struct api *api, const char **ret_code)
{
	enum engine_health health = engine_health(api->engine);

	*ret_code = "unavailable";
	if (health == ENGINE_DRAINING || api->closing) {
		*ret_code = "shutting_down";
		return "heddle is shutting down";
	}
	if (health == ENGINE_FAILED_FOR_GOOD)
		return engine_reason(api->engine);
	return engine_limits(api->engine).max_context ? NULL : "the workers are still starting";
}

void job_ready(struct api_task *t)
{
	struct job *job = CONTAINER_OF(t, struct job, task);
	const struct params *r = &t->prep.params;
	const char *code, *why = job_unready(t->api, &code);

	if (why) {
		task_fail(t, 503, NULL, code, "%s", why);
		return;
	}
	job->logprobs = job->chat ? r->logprobs : r->given[PARAM_ID_logprobs_n];
	job->top_n = (uint32_t)(job->chat ? r->top_logprobs : r->logprobs_n);
	if (!job_draw(&job->seed) || (t->prep.calls && !job_draw(&job->call_nonce))) {
		task_fail(t, 500, NULL, "internal_error", "no random numbers to be had");
		return;
	}
	if (r->given[PARAM_ID_seed])
		job->seed = (uint64_t)r->seed;
	job_run(job, engine_limits(t->api->engine).max_context);
}
