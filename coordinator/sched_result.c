/* What a step brought: checked against its plan as a whole, then taken sequence by sequence. */
#include <stdlib.h>

#include "coordinator/sched_impl.h"

static int bad(struct errbuf *err, uint64_t step, const struct sched_entry *e, const char *what,
	uint64_t got, uint64_t want)
{
	return err_set(err, -EBADMSG, EXIT_SOFTWARE_ERR,
		"result of step %llu, slot %u, position %llu: %s %llu, expected %llu",
		(unsigned long long)step, e->slot, (unsigned long long)e->pos, what,
		(unsigned long long)got, (unsigned long long)want);
}

static uint32_t entry_tokens(const struct sched_entry *e)
{
	return e->report_n + (e->flags & SEQ_SAMPLE ? 1 : 0);
}

/* One report. `want` is the position it must be of. */
static int check_token(const struct sched *s, const struct msg_result_view *v,
	const struct sched_entry *e, const struct msg_token *t, uint64_t want, bool prompt,
	struct errbuf *err)
{
	const uint64_t step = v->hdr->step;
	uint32_t i, most = prompt ? e->prompt_alts : e->alts;

	if (t->slot != e->slot)
		return bad(err, step, e, "slot", t->slot, e->slot);
	if (t->pos != want)
		return bad(err, step, e, "token at", t->pos, want);
	if (!!(t->flags & MSG_TOKEN_PROMPT) != prompt)
		return bad(err, step, e, "prompt flag", t->flags, prompt);
	if (t->token >= s->config.vocab)
		return bad(err, step, e, "token id", t->token, s->config.vocab);
	if (prompt && e->seq && t->token != e->seq->tokens[t->pos])
		return bad(err, step, e, "prompt token", t->token, e->seq->tokens[t->pos]);
	if (t->alt_n > most)
		return bad(err, step, e, "alternatives", t->alt_n, most);
	for (i = 0; i < t->alt_n; i++)
		if (v->alts[t->alt_off + i].token >= s->config.vocab)
			return bad(err, step, e, "alternative", v->alts[t->alt_off + i].token,
				s->config.vocab);
	return 0;
}

static int check_result(const struct sched *s, const struct sched_plan *plan,
	const struct msg_result_view *v, struct errbuf *err)
{
	uint32_t i, k, at = 0, n = 0;
	int r;

	for (i = 0; i < plan->n; i++)
		n += entry_tokens(&plan->entries[i]);
	if (v->result->ntoken != n)
		return err_set(err, -EBADMSG, EXIT_SOFTWARE_ERR,
			"result of step %llu: %u tokens, expected %u",
			(unsigned long long)plan->step, v->result->ntoken, n);
	for (i = 0; i < plan->n; i++) {
		const struct sched_entry *e = &plan->entries[i];

		for (k = 0; k < e->report_n; k++) {
			r = check_token(s, v, e, &v->tokens[at++], e->report_first + k, true, err);
			if (r < 0)
				return r;
		}
		if (!(e->flags & SEQ_SAMPLE))
			continue;
		r = check_token(s, v, e, &v->tokens[at++], e->pos + e->n, false, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int append_token(struct sched_seq *q, uint32_t token)
{
	uint64_t at = sched_known(q);

	if (at >= q->token_cap) {
		size_t cap = MAX(q->token_cap * 2, at + 64);
		uint32_t *tokens = realloc(q->tokens, cap * sizeof(*tokens));

		if (!tokens)
			return -ENOMEM;
		q->tokens = tokens;
		q->token_cap = cap;
	}
	q->tokens[at] = token;
	q->generated++;
	return 0;
}

static bool is_stop(const struct sched_seq *q, uint32_t token)
{
	uint32_t i;

	if (q->generated <= q->min_tokens) /* counts this one; below the minimum it was masked */
		return false;
	for (i = 0; i < q->stop_n; i++)
		if (q->stops[i] == token)
			return true;
	return false;
}

/* What the tokens of one step mean for a sequence. */
struct verdict {
	bool finished;
	enum engine_finish reason;
	int http_status;
	const char *text;
};

static struct verdict fail(const char *text)
{
	return (struct verdict){true, ENGINE_FAILED, 500, text};
}

static struct verdict judge(struct sched_seq *q, const struct sched_entry *e,
	const struct msg_token *tokens, uint32_t n)
{
	uint32_t i;

	for (i = 0; i < n; i++)
		if (tokens[i].flags & MSG_TOKEN_NAN)
			return fail("the model's logits are not numbers (NaN) for this request");
	if (!(e->flags & SEQ_SAMPLE)) {
		if (e->flags & SEQ_LAST)
			return (struct verdict){.finished = true, .reason = ENGINE_LENGTH};
		return (struct verdict){0};
	}
	if (append_token(q, tokens[n - 1].token) < 0)
		return fail("out of memory for the answer");
	if (is_stop(q, tokens[n - 1].token))
		return (struct verdict){.finished = true, .reason = ENGINE_STOP_TOKEN};
	if (q->generated == q->max_tokens)
		return (struct verdict){.finished = true, .reason = ENGINE_LENGTH};
	return (struct verdict){0};
}

static void finish(struct sched *s, struct sched_seq *q, const struct verdict *v)
{
	sched_forget(s, q);
	if (v->reason == ENGINE_FAILED)
		s->counts.failed++;
	else
		s->counts.finished++;
	s->ops.on_finish(s->ops.user, q, v->reason, v->http_status, v->text);
}

/* Each callback may cancel any sequence, this one too: e->seq is NULL then. */
static void take_entry(struct sched *s, struct sched_entry *e, const struct msg_token *tokens,
	const struct msg_alt *alts)
{
	struct sched_seq *q = e->seq;
	uint32_t n = entry_tokens(e), skip = 0;
	bool prompt = e->pos < q->prompt_len;
	struct verdict v;

	q->done = e->pos + e->n;
	if (prompt)
		s->counts.prompt_tokens += MIN(q->done, q->prompt_len) - e->pos;
	if (prompt && s->ops.on_prefill)
		s->ops.on_prefill(s->ops.user, q, MIN(q->done, q->prompt_len), q->prompt_len);
	if (e->seq != q)
		return;
	while (skip < e->report_n && tokens[skip].pos < q->reported)
		skip++; /* delivered before a restart */
	if (e->report_n)
		q->reported = MAX(q->reported, e->report_first + e->report_n);
	v = judge(q, e, tokens, n);
	if (v.reason != ENGINE_FAILED || !v.finished) {
		s->counts.generated_tokens += e->flags & SEQ_SAMPLE ? 1 : 0;
		if (n > skip)
			s->ops.on_tokens(s->ops.user, q, tokens + skip, n - skip, alts);
	}
	if (e->seq == q && v.finished)
		finish(s, q, &v);
}

int sched_result(struct sched *s, const struct msg_result_view *view, struct errbuf *err)
{
	struct sched_plan *plan = (struct sched_plan *)sched_oldest(s);
	uint32_t i, at = 0;
	int r;

	if (!plan || view->hdr->step != plan->step)
		return err_set(err, -EBADMSG, EXIT_SOFTWARE_ERR,
			"result of step %llu, expected that of step %llu",
			(unsigned long long)view->hdr->step,
			(unsigned long long)(plan ? plan->step : 0));
	r = check_result(s, plan, view, err);
	if (r < 0)
		return r;
	for (i = 0; i < plan->n; i++) {
		struct sched_entry *e = &plan->entries[i];
		uint32_t n = entry_tokens(e);

		if (e->seq)
			take_entry(s, e, &view->tokens[at], view->alts);
		else
			s->counts.dropped_tokens += e->flags & SEQ_SAMPLE ? 1 : 0;
		at += n;
	}
	s->inflight--;
	return 0;
}
