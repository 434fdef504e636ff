/*
 * From the last layer's streams to logits, reports and sampled tokens, SHAPE_HEAD_ROWS rows at a
 * time. All ranks compute their part of the vocabulary; rank 0 gathers it and decides.
 */
#include <math.h>

#include "worker/rank_impl.h"

/* Rows whose logits are computed together, and what becomes of them. */
struct tile {
	struct rank *r;
	const struct msg_step_view *step;
	const struct msg_result_view *reply; /* NULL except on rank 0 */
	struct head_job jobs[SHAPE_HEAD_ROWS];
	uint32_t n;
	uint32_t tokens, alts; /* of the reply, filled so far */
};

int head_hidden(struct rank *r, const uint32_t *rows, uint32_t n, float *ret_hidden)
{
	const struct model_config *c = &r->sh.cfg;
	const struct kern_hc_head_args join = {
		.n = n,
		.d = c->hidden,
		.rows = rows,
		.x = r->work.x,
		.fn = &r->w.hc_head.fn,
		.base = r->w.hc_head.base,
		.scale = r->w.hc_head.scale,
		.rms_eps = (float)c->rms_eps,
		.hc_eps = (float)c->hc_eps,
		.y = ret_hidden,
	};
	const struct kern_rmsnorm_args norm = {
		.rows = n,
		.d = c->hidden,
		.x = ret_hidden,
		.ldx = c->hidden,
		.w = r->w.norm,
		.eps = (float)c->rms_eps,
		.y = ret_hidden,
		.ldy = c->hidden,
	};
	int ret;

	ret = rank_run(r, hc_head, &join);
	return ret < 0 ? ret : rank_run(r, rmsnorm, &norm);
}

/* work.hidden[n][d], in the order of the jobs: rows of the step, or tails their slots kept. */
static int gather_hidden(struct tile *t)
{
	struct work *k = &t->r->work;
	size_t d = t->r->sh.cfg.hidden;
	uint32_t rows[SHAPE_HEAD_ROWS], n = 0;
	int ret = 0;

	for (uint32_t i = 0; i < t->n; i++)
		if (!(t->jobs[i].wants & HEAD_TAIL))
			rows[n++] = t->jobs[i].row;
	if (n)
		ret = head_hidden(t->r, rows, n, k->hidden_rows);
	n = 0;
	for (uint32_t i = 0; ret == 0 && i < t->n; i++) {
		const struct head_job *j = &t->jobs[i];
		const float *from = j->wants & HEAD_TAIL
					    ? t->r->slots.slot[t->step->seqs[j->seq].slot].tail
					    : k->hidden_rows + n++ * d;

		memcpy(k->hidden + i * d, from, d * sizeof(float));
	}
	return ret;
}

/* work.logits[n][vocab] on rank 0: each rank's columns, then side by side. */
static int make_logits(struct tile *t)
{
	struct rank *r = t->r;
	struct work *k = &r->work;
	size_t part = r->sh.vocab, all = r->sh.cfg.vocab;
	const struct kern_linear_args a = {
		.rows = t->n,
		.n = 1,
		.x = k->hidden,
		.ldx = r->sh.cfg.hidden,
		.act = KERN_ACT_F32, /* model.md 3: in fp32 */
		.out = {{&r->w.head, r->sh.world == 1 ? k->logits : k->part, part}},
	};
	int ret;

	ret = rank_run(r, linear, &a);
	if (ret < 0 || r->sh.world == 1)
		return ret;
	ret = comm_all_gather(
		r->comm, k->part, t->n * part * sizeof(float), r->sh.rank == 0 ? k->parts : NULL);
	if (ret < 0 || r->sh.rank != 0)
		return ret;
	for (uint32_t w = 0; w < r->sh.world; w++)
		for (uint32_t i = 0; i < t->n; i++)
			memcpy(k->logits + i * all + w * part, k->parts + (w * t->n + i) * part,
				part * sizeof(float));
	return 0;
}

static uint32_t sample(struct tile *t, const struct head_job *j, const float *logits)
{
	const struct msg_seq *seq = &t->step->seqs[j->seq];
	const struct msg_sample *s = &t->step->samples[seq->sample];
	const struct sample_params p = {
		.sample = s,
		.bias = t->step->biases + s->bias_off,
		.banned = t->step->tokens + s->banned_off,
		.history = t->r->slots.slot[seq->slot].history,
		.history_n = j->pos,
	};

	return sample_token(&t->r->sampler, logits, &p);
}

/* Tokens to report on and how many alternatives, one row a job; samples on the way. */
static void choose_tokens(struct tile *t)
{
	struct work *k = &t->r->work;
	size_t vocab = t->r->sh.cfg.vocab;

	for (uint32_t i = 0; i < t->n; i++) {
		const struct head_job *j = &t->jobs[i];
		const struct msg_seq *seq = &t->step->seqs[j->seq];
		const float *logits = k->logits + i * vocab;

		rank_beat(t->r);
		k->report_token[i] = k->report_top[i] = 0;
		if (j->wants & HEAD_HOOK)
			t->r->hooks.on_logits(t->r->hooks.user, j->seq, j->pos - 1, logits);
		if (j->wants & HEAD_SAMPLE) {
			k->report_token[i] = k->sampled[j->seq] = sample(t, j, logits);
			k->report_top[i] = t->step->samples[seq->sample].logprobs;
		} else if (j->wants & HEAD_REPORT) {
			k->report_token[i] = j->token;
			k->report_top[i] = t->step->samples[seq->sample].prompt_logprobs;
		}
	}
}

static void write_report(struct tile *t, uint32_t i)
{
	const struct head_job *j = &t->jobs[i];
	const struct work *k = &t->r->work;
	const struct kern_logprob *p = &k->reports[i];
	struct msg_token *token = (struct msg_token *)&t->reply->tokens[t->tokens++];
	bool broken = p->nan || !isfinite(p->logprob);

	*token = (struct msg_token){
		.slot = t->step->seqs[j->seq].slot,
		.token = k->report_token[i],
		.pos = j->pos,
		.logprob = broken ? 0 : p->logprob,
		.rank = broken ? 0 : p->rank,
		.flags = (j->wants & HEAD_SAMPLE ? 0 : MSG_TOKEN_PROMPT) |
			 (broken ? MSG_TOKEN_NAN : 0),
		.alt_off = t->alts,
		.alt_n = broken ? 0 : p->alts,
	};
	for (uint32_t a = 0; a < token->alt_n; a++)
		*(struct msg_alt *)&t->reply->alts[t->alts++] = (struct msg_alt){
			.token = k->alt_token[i * MSG_LOGPROBS_MAX + a],
			.logprob = k->alt_logprob[i * MSG_LOGPROBS_MAX + a],
		};
}

static int report(struct tile *t)
{
	struct work *k = &t->r->work;
	const struct kern_logprob_args a = {
		.rows = t->n,
		.vocab = t->r->sh.cfg.vocab,
		.logits = k->logits,
		.ld = t->r->sh.cfg.vocab,
		.tokens = k->report_token,
		.top = k->report_top,
		.top_max = MSG_LOGPROBS_MAX,
		.out = k->reports,
		.alt_token = k->alt_token,
		.alt_logprob = k->alt_logprob,
	};
	int ret;

	choose_tokens(t);
	ret = rank_run(t->r, logprob, &a);
	for (uint32_t i = 0; ret == 0 && i < t->n; i++)
		if (t->jobs[i].wants & (HEAD_SAMPLE | HEAD_REPORT))
			write_report(t, i);
	return ret;
}

static int flush(struct tile *t)
{
	int ret;

	if (!t->n)
		return 0;
	ret = gather_hidden(t);
	if (ret == 0)
		ret = make_logits(t);
	if (ret == 0 && t->reply) {
		rank_stage(t->r, STAGE_SAMPLE, 0);
		ret = report(t);
	}
	t->n = 0;
	return ret;
}

static int add_job(void *user, const struct head_job *job)
{
	struct tile *t = user;

	t->jobs[t->n++] = *job;
	return t->n == SHAPE_HEAD_ROWS ? flush(t) : 0;
}

/* What the rows of one sequence's part are wanted for. */
static int seq_jobs(const struct rank *r, const struct msg_step_view *step, uint32_t i,
	uint32_t row0, int (*f)(void *user, const struct head_job *job), void *user)
{
	const struct msg_seq *s = &step->seqs[i];
	const uint32_t *tokens = step->tokens + s->token_off;
	bool prompt = s->flags & SEQ_PROMPT_LOGPROBS;
	struct head_job job = {.seq = i, .wants = HEAD_TAIL | HEAD_REPORT, .pos = s->pos};
	int ret = 0;

	job.token = tokens[0];
	if (prompt && s->pos > 0)
		ret = f(user, &job);
	for (uint32_t t = 0; ret == 0 && t < s->n; t++) {
		bool last = t + 1 == s->n;

		job.row = row0 + t;
		job.pos = s->pos + t + 1;
		job.wants = r->hooks.on_logits ? HEAD_HOOK : 0;
		job.token = last ? 0 : tokens[t + 1];
		if (!last && prompt)
			job.wants |= HEAD_REPORT;
		if (last && s->flags & SEQ_SAMPLE)
			job.wants |= HEAD_SAMPLE;
		if (job.wants)
			ret = f(user, &job);
	}
	return ret;
}

int head_each_job(const struct rank *r, const struct msg_step_view *step,
	int (*f)(void *user, const struct head_job *job), void *user)
{
	uint32_t row0 = 0;
	int ret = 0;

	for (uint32_t i = 0; ret == 0 && i < step->step->nseq; i++) {
		ret = seq_jobs(r, step, i, row0, f, user);
		row0 += step->seqs[i].n;
	}
	return ret;
}

/* The last hidden row of sequences whose next chunk will be judged by it. */
static int keep_tails(struct rank *r, const struct msg_step_view *step)
{
	uint32_t row = 0;
	int ret = 0;

	for (uint32_t i = 0; ret == 0 && i < step->step->nseq; i++) {
		const struct msg_seq *s = &step->seqs[i];
		struct slot *slot = &r->slots.slot[s->slot];
		uint32_t last = row + s->n - 1;

		row += s->n;
		slot->has_tail = s->flags & SEQ_PROMPT_LOGPROBS;
		if (slot->has_tail)
			ret = head_hidden(r, &last, 1, slot->tail);
	}
	return ret;
}

static bool any_sampled(const struct msg_step_view *step)
{
	for (uint32_t i = 0; i < step->step->nseq; i++)
		if (step->seqs[i].flags & SEQ_SAMPLE)
			return true;
	return false;
}

int head_run(struct rank *r, const struct msg_step_view *step, const struct msg_result_view *reply)
{
	struct tile t = {.r = r, .step = step, .reply = reply};
	int ret;

	rank_stage(r, STAGE_HEAD, 0);
	ret = head_each_job(r, step, add_job, &t);
	if (ret == 0)
		ret = flush(&t);
	if (ret == 0)
		ret = keep_tails(r, step);
	if (ret == 0 && any_sampled(step))
		ret = comm_broadcast(
			r->comm, 0, r->work.sampled, step->step->nseq * sizeof(*r->work.sampled));
	return ret;
}
