#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/fake_engine.h"

struct engine *fake_engine_new(uint64_t max_context, uint32_t vocab)
{
	struct engine *e = calloc(1, sizeof(*e));

	e->limits = (struct engine_limits){max_context, vocab, true};
	e->health = ENGINE_READY;
	e->tail = &e->seqs;
	return e;
}

struct engine *fake_engine_free(struct engine *e)
{
	struct engine_seq *s;

	assert_int_equal(fake_engine_live(e), 0);
	while ((s = e->seqs)) {
		e->seqs = s->next;
		free(s->prompt);
		free(s->stop_tokens);
		free(s->bias);
		free(s);
	}
	free(e);
	return NULL;
}

struct engine_seq *fake_engine_seq(struct engine *e, size_t index)
{
	struct engine_seq *s = e->seqs;

	while (s && index--)
		s = s->next;
	assert_non_null(s);
	return s;
}

size_t fake_engine_live(const struct engine *e)
{
	const struct engine_seq *s;
	size_t n = 0;

	for (s = e->seqs; s; s = s->next)
		n += s->live;
	return n;
}

struct engine_limits engine_limits(const struct engine *e)
{
	return e->limits;
}

enum engine_health engine_health(const struct engine *e)
{
	return e->health;
}

const char *engine_reason(const struct engine *e)
{
	if (e->reason)
		return e->reason;
	return e->health == ENGINE_FAILED_FOR_GOOD ? "the workers have failed" : "";
}

int engine_status_json(const struct engine *e, void *json_object)
{
	return json_object_set_new(json_object, "queue",
		       json_pack("{s:i}", "waiting", (int)fake_engine_live(e)))
		       ? -ENOMEM
		       : 0;
}

static void *copy(const void *from, size_t bytes)
{
	void *to = malloc(bytes + 1);

	if (bytes)
		memcpy(to, from, bytes);
	return to;
}

bool engine_fit(
	const struct engine *e, uint64_t prompt_len, uint64_t max_tokens, struct engine_fit *fit)
{
	assert_true(prompt_len >= 1 && prompt_len + max_tokens <= e->limits.max_context);
	if (fit->run + fit->wait == e->fit_run + e->fit_wait && e->fit_run)
		return false;
	if (fit->run == e->fit_run && e->fit_run)
		fit->wait++;
	else
		fit->run++;
	return true;
}

int engine_submit(struct engine *e, const struct engine_request *req, struct engine_seq **ret_seq,
	struct errbuf *err)
{
	struct engine_seq *s;

	assert_true(req->prompt_len >= 1);
	assert_true(req->max_tokens > 0 || req->prompt_logprobs);
	if (e->refuse && e->submitted >= e->refuse_at)
		return err_set(err, e->refuse, 0, "refused by the test");
	if (req->prompt_len + req->max_tokens > e->limits.max_context)
		fail_msg("more tokens than the context were submitted");
	e->submitted++;
	s = calloc(1, sizeof(*s));
	s->engine = e;
	s->live = true;
	s->prompt = copy(req->prompt, req->prompt_len * sizeof(*req->prompt));
	s->prompt_len = req->prompt_len;
	s->stop_tokens = copy(req->stop_tokens, req->stop_token_n * sizeof(*req->stop_tokens));
	s->stop_token_n = req->stop_token_n;
	s->bias = copy(req->bias, req->bias_n * sizeof(*req->bias));
	s->bias_n = req->bias_n;
	s->max_tokens = req->max_tokens;
	s->min_tokens = req->min_tokens;
	s->sampling = req->sampling;
	s->prompt_logprobs = req->prompt_logprobs;
	snprintf(s->id, sizeof(s->id), "%s", req->id);
	s->ops = req->ops;
	s->user = req->user;
	s->reported = 1;
	*e->tail = s;
	e->tail = &s->next;
	*ret_seq = s;
	return 0;
}

void engine_cancel(struct engine *e, struct engine_seq *s)
{
	assert_ptr_equal(s->engine, e);
	if (!s->live)
		fail_msg("a sequence that is over was cancelled");
	s->live = false;
	s->cancelled = true;
}

mono_ns_t engine_waited(const struct engine_seq *s)
{
	return s->waited;
}

float fake_logprob(uint32_t token)
{
	return -0.125f * (float)(token % 13) - 0.5f;
}

struct msg_alt fake_alt(uint32_t token, uint32_t i)
{
	return (struct msg_alt){(token + 1 + i * 5) % 250 + 10, -0.0625f * (float)(i + 1)};
}

static void report(struct engine_seq *s, const uint32_t *tokens, size_t n, bool prompt)
{
	uint32_t alt_n = prompt ? s->sampling.prompt_logprobs : s->sampling.logprobs, k;
	struct msg_alt *alts = calloc(n * 20 + 1, sizeof(*alts));
	struct engine_token *t = calloc(n + 1, sizeof(*t));
	size_t i;

	assert_true(alt_n <= 20);
	for (i = 0; i < n; i++) {
		t[i] = (struct engine_token){
			.token = tokens[i],
			.pos = prompt ? s->reported++ : s->prompt_len + s->made++,
			.logprob = fake_logprob(tokens[i]),
			.rank = 1,
			.prompt = prompt,
			.alts = alts + i * 20,
			.alt_n = alt_n,
		};
		for (k = 0; k < alt_n; k++)
			alts[i * 20 + k] = fake_alt(tokens[i], k);
	}
	s->ops.on_tokens(s->user, t, n);
	free(t);
	free(alts);
}

void fake_engine_finish(struct engine_seq *s, enum engine_finish why, int status, const char *text)
{
	assert_true(s->live);
	s->live = false;
	s->ops.on_finish(s->user, why, status, text);
}

static bool is_stop(const struct engine_seq *s, uint32_t token)
{
	size_t i;

	for (i = 0; i < s->stop_token_n; i++)
		if (s->stop_tokens[i] == token)
			return true;
	return false;
}

bool fake_engine_make(struct engine_seq *s, const uint32_t *tokens, size_t n, size_t batch)
{
	size_t at = 0, take;
	bool stop = false;

	while (at < n && s->live) {
		for (take = 0;
			take < batch && at + take < n && !stop && s->made + take < s->max_tokens;
			take++) {
			stop = is_stop(s, tokens[at + take]);
			if (stop)
				assert_true(s->made + take >= s->min_tokens);
		}
		report(s, tokens + at, take, false);
		at += take;
		if (s->live && stop)
			fake_engine_finish(s, ENGINE_STOP_TOKEN, 0, NULL);
		else if (s->live && s->made == s->max_tokens)
			fake_engine_finish(s, ENGINE_LENGTH, 0, NULL);
	}
	return s->live;
}

void fake_engine_read(struct engine_seq *s, size_t n)
{
	assert_true(s->prompt_logprobs);
	assert_true(s->reported + n <= s->prompt_len);
	report(s, s->prompt + s->reported, n, true);
	if (s->live && s->reported == s->prompt_len && !s->max_tokens)
		fake_engine_finish(s, ENGINE_LENGTH, 0, NULL);
}

void fake_engine_prefill(struct engine_seq *s, uint64_t done)
{
	if (s->ops.on_prefill)
		s->ops.on_prefill(s->user, done, s->prompt_len);
}
