#include <stdlib.h>
#include <string.h>

#include "coordinator/conf.h"
#include "coordinator/engine_impl.h"

#define LOG_TAG "engine"
#include "shm/log.h"

/* ---- requests ---- */

void engine_seq_free(struct engine_seq *seq)
{
	free(seq->q.tokens);
	free((void *)seq->q.stops);
	free((void *)seq->q.bias);
	free(seq);
}

void engine_end(struct engine *e, struct engine_seq *seq, enum engine_finish reason,
	int http_status, const char *text)
{
	if (reason == ENGINE_FAILED)
		log_at(http_status == 500 ? CONF_LEVEL_ERROR : CONF_LEVEL_INFO,
			"request %s: failed with %d after %llu tokens: %s", seq->id, http_status,
			(unsigned long long)seq->q.generated, text);
	else
		log_debug("request %s: %llu prompt tokens, %llu generated", seq->id,
			(unsigned long long)seq->q.prompt_len,
			(unsigned long long)seq->q.generated);
	e->current = seq;
	seq->ops.on_finish(seq->user, reason, http_status, text);
	e->current = NULL;
	engine_seq_free(seq);
}

static int check_ids(
	const struct engine *e, const uint32_t *ids, size_t n, const char *what, struct errbuf *err)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (ids[i] >= e->limits.vocab)
			return err_set(err, -EDOM, 0,
				"%s %u is outside the vocabulary of %u tokens", what, ids[i],
				e->limits.vocab);
	return 0;
}

static int check_request(
	const struct engine *e, const struct engine_request *req, struct errbuf *err)
{
	size_t i;
	int r;

	if (e->draining)
		return err_set(err, -ESHUTDOWN, 0, "the server is shutting down");
	if (engine_health(e) == ENGINE_FAILED_FOR_GOOD)
		return err_set(err, -ESHUTDOWN, 0, "the workers have failed: %s", engine_reason(e));
	if (e->limits.vocab == 0)
		return err_set(err, -ESHUTDOWN, 0, "the model is still loading; try again soon");
	if (req->prompt_len == 0)
		return err_set(err, -EINVAL, 0, "the prompt is empty");
	if (req->max_tokens == 0 && !req->prompt_logprobs)
		return err_set(err, -EINVAL, 0, "nothing is asked for: max_tokens is 0");
	if (req->max_tokens > e->limits.max_context ||
		req->prompt_len > e->limits.max_context - req->max_tokens)
		return err_set(err, -E2BIG, 0,
			"the prompt has %zu tokens and up to %llu are to follow, but the context "
			"holds %llu",
			req->prompt_len, (unsigned long long)req->max_tokens,
			(unsigned long long)e->limits.max_context);
	r = check_ids(e, req->prompt, req->prompt_len, "prompt token", err);
	if (r == 0)
		r = check_ids(e, req->stop_tokens, req->stop_token_n, "stop token", err);
	for (i = 0; i < req->bias_n && r == 0; i++)
		r = check_ids(e, &req->bias[i].token, 1, "logit_bias token", err);
	return r;
}

static void *copy(const void *from, size_t n, size_t size)
{
	void *to = malloc(n ? n * size : 1);

	if (to && n)
		memcpy(to, from, n * size);
	return to;
}

static struct engine_seq *seq_new(struct engine *e, const struct engine_request *req)
{
	struct engine_seq *seq = calloc(1, sizeof(*seq));

	if (!seq)
		return NULL;
	seq->engine = e;
	seq->ops = req->ops;
	seq->user = req->user;
	snprintf(seq->id, sizeof(seq->id), "%s", req->id ? req->id : "-");
	seq->q = (struct sched_seq){
		.tokens = copy(req->prompt, req->prompt_len, sizeof(*req->prompt)),
		.token_cap = req->prompt_len,
		.prompt_len = req->prompt_len,
		.max_tokens = req->max_tokens,
		.min_tokens = MIN(req->min_tokens, req->max_tokens),
		.stops = copy(req->stop_tokens, req->stop_token_n, sizeof(*req->stop_tokens)),
		.stop_n = (uint32_t)req->stop_token_n,
		.bias = copy(req->bias, req->bias_n, sizeof(*req->bias)),
		.bias_n = (uint32_t)req->bias_n,
		.prompt_logprobs = req->prompt_logprobs,
		.sampling = req->sampling,
	};
	if (seq->q.tokens && seq->q.stops && seq->q.bias)
		return seq;
	engine_seq_free(seq);
	return NULL;
}

bool engine_fit(
	const struct engine *e, uint64_t prompt_len, uint64_t max_tokens, struct engine_fit *fit)
{
	const struct sched_seq q = {.prompt_len = prompt_len, .max_tokens = max_tokens};

	return sched_fit(&e->sched, &q, fit);
}

int engine_submit(struct engine *e, const struct engine_request *req, struct engine_seq **ret_seq,
	struct errbuf *err)
{
	struct engine_seq *seq;
	int r = check_request(e, req, err);

	if (r < 0)
		return r;
	seq = seq_new(e, req);
	if (!seq)
		return err_set(err, -ENOMEM, 0, "out of memory for the request");
	r = sched_submit(&e->sched, &seq->q, mono_now(), err);
	if (r < 0) {
		engine_seq_free(seq);
		return r;
	}
	loop_again(e->loop); /* this turn's hook may have run already */
	*ret_seq = seq;
	return 0;
}

void engine_cancel(struct engine *e, struct engine_seq *seq)
{
	if (seq->cancelled)
		return;
	sched_cancel(&e->sched, &seq->q);
	loop_again(e->loop);
	if (e->current == seq)
		seq->cancelled = true; /* freed when its callback returns */
	else
		engine_seq_free(seq);
}

mono_ns_t engine_waited(const struct engine_seq *seq)
{
	return (seq->q.started_ns ? seq->q.started_ns : mono_now()) - seq->q.queued_ns;
}

struct engine_limits engine_limits(const struct engine *e)
{
	return e->limits;
}

/* ---- health ---- */

static enum engine_health health_of(const struct engine *e)
{
	if (e->draining)
		return ENGINE_DRAINING;
	switch (e->sup.state) {
	case SUP_READY:
		return ENGINE_READY;
	case SUP_FAILED:
	case SUP_STOPPED:
		return ENGINE_FAILED_FOR_GOOD;
	case SUP_TEARDOWN:
		if (e->sup.ever_ready && !sup_restarts(&e->sup))
			return ENGINE_FAILED_FOR_GOOD;
		/* fall through */
	default:
		return e->sup.ever_ready ? ENGINE_RESTARTING : ENGINE_STARTING;
	}
}

enum engine_health engine_health(const struct engine *e)
{
	return health_of(e);
}

const char *engine_reason(const struct engine *e)
{
	enum engine_health health = health_of(e);

	return health == ENGINE_RESTARTING || health == ENGINE_FAILED_FOR_GOOD ? e->sup.why : "";
}

static void tell_health(struct engine *e, const char *why)
{
	enum engine_health health = health_of(e);

	if (health == e->health)
		return;
	e->health = health;
	e->hooks.on_health(e->hooks.user, health, why);
}

/* ---- callbacks of the supervisor ---- */

static int on_ready(
	void *user, struct seg_group *group, const struct worker_capacity *caps, struct errbuf *err)
{
	return engine_open_run(user, group, caps, err);
}

static void on_bell(void *user)
{
	engine_receive(user);
}

static void on_lost(void *user, const char *why)
{
	engine_close_run(user, why);
}

/* Nothing will ever run again: those who wait must not wait in vain. */
static void fail_waiting(struct engine *e, const char *why)
{
	struct queue_item *item;

	while ((item = queue_peek(&e->sched.queue))) {
		struct sched_seq *q = CONTAINER_OF(item, struct sched_seq, item);

		sched_cancel(&e->sched, q);
		engine_end(e, engine_seq_of(q), ENGINE_FAILED, 503, why);
	}
}

static void on_state(void *user, enum sup_state state, const char *why)
{
	struct engine *e = user;
	char text[640];

	if (state == SUP_FAILED || state == SUP_STOPPING) {
		snprintf(text, sizeof(text), "%s%s",
			e->draining ? "the server is shutting down" : "the workers have failed: ",
			e->draining ? "" : why);
		fail_waiting(e, text);
	}
	/* a refusal before the first READY ends the program, which says it */
	if (state != SUP_FAILED || e->sup.ever_ready)
		tell_health(e, why);
	loop_again(e->loop);
}

static void on_refused(void *user, int exit_code, const char *text)
{
	struct engine *e = user;

	e->hooks.on_refused(e->hooks.user, exit_code, text);
}

static void on_stopped(void *user)
{
	struct engine *e = user;

	if (e->on_stopped)
		e->on_stopped(e->stopped_user);
}

static bool has_work(void *user)
{
	const struct engine *e = user;

	return e->sched.inflight > 0;
}

/* ---- life ---- */

static void on_receive_timer(struct loop_timer *t, void *user)
{
	(void)t;
	engine_receive(user);
}

static void on_expire_timer(struct loop_timer *t, void *user)
{
	(void)t;
	engine_expire(user);
}

static int init_parts(struct engine *e, struct errbuf *err)
{
	const struct sup_ops ops = {
		on_ready, on_bell, on_lost, on_state, on_refused, on_stopped, has_work, e};
	struct sched_ops sched_ops = engine_sched_ops;
	int r = place_discover(e->conf, e->plan, err);

	if (r < 0)
		return r;
	place_resolve(e->conf, e->plan);
	sched_ops.user = e;
	sched_init(&e->sched, &sched_ops, (uint32_t)e->conf->schedule_queue,
		(mono_ns_t)e->conf->schedule_queue_timeout);
	r = sup_init(&e->sup, e->loop, e->conf, e->plan, e->worker_path, &ops);
	return r < 0 ? err_set(err, r, EXIT_OS_ERR, "out of memory for the workers") : 0;
}

int engine_new(struct loop *loop, const struct conf *conf, const struct engine_hooks *hooks,
	struct engine **ret_engine, struct errbuf *err)
{
	struct engine *e = calloc(1, sizeof(*e));
	int r;

	if (!e)
		return err_set(err, -ENOMEM, EXIT_OS_ERR, "out of memory");
	e->loop = loop;
	e->hooks = *hooks;
	e->health = ENGINE_STARTING;
	e->receive_timer = (struct loop_timer){.fn = on_receive_timer, .user = e};
	e->expire_timer = (struct loop_timer){.fn = on_expire_timer, .user = e};
	e->turn_end = (struct loop_hook){.fn = engine_turn_end, .user = e};
	e->conf = copy(conf, 1, sizeof(*conf));
	e->plan = calloc(1, sizeof(*e->plan));
	e->worker_path = strdup(hooks->worker_path);
	if (e->conf && e->plan && e->worker_path)
		r = init_parts(e, err);
	else
		r = err_set(err, -ENOMEM, EXIT_OS_ERR, "out of memory");
	if (r < 0) {
		free(e->conf);
		free(e->plan);
		free(e->worker_path);
		free(e);
		return r;
	}
	loop_at_turn_end(loop, &e->turn_end);
	*ret_engine = e;
	return 0;
}

int engine_start(struct engine *e, struct errbuf *err)
{
	log_info("%u worker%s of %u thread%s%s; the first on CPUs %s", e->plan->workers,
		e->plan->workers == 1 ? "" : "s", e->plan->threads,
		e->plan->threads == 1 ? "" : "s", e->plan->workers == 1 ? "" : " each",
		e->plan->w[0].text);
	if (e->plan->shared)
		log_warn("there are more workers than cores: some share one");
	return sup_start(&e->sup, err);
}

void engine_drain(struct engine *e, void (*on_idle)(void *user), void *user)
{
	e->draining = true;
	sup_drain(&e->sup);
	e->on_idle = on_idle;
	e->idle_user = user;
	tell_health(e, "");
	loop_again(e->loop);
}

void engine_stop(struct engine *e, void (*on_stopped_fn)(void *user), void *user)
{
	e->draining = true;
	e->on_stopped = on_stopped_fn;
	e->stopped_user = user;
	if (e->linked && link_stop(&e->link) < 0)
		log_debug("no room to tell the workers to stop");
	engine_close_run(e, "the server is shutting down");
	sup_stop(&e->sup);
}

void engine_reload(struct engine *e, const struct conf *conf)
{
	conf_take_reloaded(e->conf, conf);
	e->sched.queue.limit = (uint32_t)conf->schedule_queue;
	e->sched.queue.timeout_ns = (mono_ns_t)conf->schedule_queue_timeout;
	sup_set_limits(
		&e->sup, (mono_ns_t)conf->fabric_progress_timeout, conf->fabric_max_restarts);
	loop_timer_stop(e->loop, &e->expire_timer); /* set anew at the end of the turn */
	loop_again(e->loop);
}

struct engine *engine_free(struct engine *e)
{
	if (!e)
		return NULL;
	engine_close_run(e, "the server is shutting down");
	fail_waiting(e, "the server is shutting down");
	loop_hook_remove(e->loop, &e->turn_end);
	loop_timer_stop(e->loop, &e->receive_timer);
	loop_timer_stop(e->loop, &e->expire_timer);
	sup_fini(&e->sup);
	sched_fini(&e->sched);
	free(e->scratch);
	free(e->conf);
	free(e->plan);
	free(e->worker_path);
	free(e);
	return NULL;
}
