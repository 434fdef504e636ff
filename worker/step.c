#include "worker/step.h"

#include <inttypes.h>
#include <math.h>

#include "shm/clock.h"
#include "worker/rank_impl.h"

/* ---- check: nothing is changed before the whole message has been found good ----------------- */

static int bad(struct errbuf *err, uint32_t seq, const char *what)
{
	return err_set(
		err, -EBADMSG, EXIT_SOFTWARE_ERR, "step refused: sequence %u: %s", seq, what);
}

static int check_position(
	const struct rank *r, const struct msg_step_view *step, uint32_t i, struct errbuf *err)
{
	const struct msg_seq *s = &step->seqs[i];
	const struct slot *slot = &r->slots.slot[s->slot];

	if (s->flags & ~(uint32_t)SEQ__ALL)
		return bad(err, i, "unknown flags");
	if (s->flags & SEQ_FIRST ? s->pos != 0 : !slot->used || s->pos != slot->pos)
		return err_set(err, -EBADMSG, EXIT_SOFTWARE_ERR,
			"step refused: sequence %u: position %" PRIu64
			" does not continue slot %u, which holds %" PRIu64 " tokens",
			i, s->pos, s->slot, s->flags & SEQ_FIRST ? 0 : slot->pos);
	if (s->n == 0 || s->n > r->sh.step_tokens || s->pos + s->n > r->pages.context)
		return bad(err, i, "its tokens exceed the step or the context");
	if (s->flags & SEQ_PREV &&
		(s->n != 1 || s->flags & (SEQ_FIRST | SEQ_PROMPT_LOGPROBS) || !slot->has_prev))
		return bad(err, i, "there is no previously sampled token to continue with");
	if (s->flags & SEQ_PROMPT_LOGPROBS && s->pos > 0 && !slot->has_tail)
		return bad(err, i, "prompt log-probabilities must be asked for from the start");
	return 0;
}

static int check_tokens(
	const struct rank *r, const struct msg_step_view *step, uint32_t i, struct errbuf *err)
{
	const struct msg_seq *s = &step->seqs[i];
	const uint32_t *tokens = step->tokens + s->token_off;

	if (s->flags & SEQ_PREV)
		return 0;
	for (uint32_t t = 0; t < s->n; t++)
		if (tokens[t] >= r->sh.cfg.vocab)
			return err_set(err, -EBADMSG, EXIT_SOFTWARE_ERR,
				"step refused: sequence %u: token %u, the vocabulary has %u", i,
				tokens[t], r->sh.cfg.vocab);
	return 0;
}

static int check_pages(
	const struct rank *r, const struct msg_step_view *step, uint32_t i, struct errbuf *err)
{
	static const struct slot empty;
	const struct msg_seq *s = &step->seqs[i];
	const struct slot *slot = s->flags & SEQ_FIRST ? &empty : &r->slots.slot[s->slot];
	const uint32_t *id = step->pages + s->page_off;
	bool used[PAGE__COUNT];
	struct errbuf why;
	int ret;

	for (int c = 0; c < PAGE__COUNT; c++) {
		used[c] = r->pages.class[c].count > 0;
		for (uint32_t p = 0; p < s->page_n[c]; p++, id++)
			if (*id >= r->pages.class[c].count)
				return err_set(err, -EBADMSG, EXIT_SOFTWARE_ERR,
					"step refused: sequence %u: page %u, class %d has %u", i,
					*id, c, r->pages.class[c].count);
	}
	ret = slot_check_pages(&r->slots, slot, r->sh.cfg.window, s->pos, s->n, s->raw_release,
		s->page_n, used, &why);
	return ret < 0 ? bad(err, i, why.text) : 0;
}

static int check_sample(
	const struct rank *r, const struct msg_step_view *step, uint32_t i, struct errbuf *err)
{
	const struct msg_seq *s = &step->seqs[i];
	const struct msg_sample *m;
	struct errbuf why;

	if (!(s->flags & (SEQ_SAMPLE | SEQ_PROMPT_LOGPROBS)))
		return 0;
	m = &step->samples[s->sample];
	if (sample_check(m, &why) < 0)
		return bad(err, i, why.text);
	for (uint32_t b = 0; b < m->bias_n; b++) {
		const struct msg_bias *bias = &step->biases[m->bias_off + b];

		if (bias->token >= r->sh.cfg.vocab || !isfinite(bias->bias))
			return bad(
				err, i, "logit_bias of a token that does not exist, or not finite");
	}
	for (uint32_t b = 0; b < m->banned_n; b++)
		if (step->tokens[m->banned_off + b] >= r->sh.cfg.vocab)
			return bad(err, i, "a banned token does not exist");
	return 0;
}

static int check_seq(
	const struct rank *r, const struct msg_step_view *step, uint32_t i, struct errbuf *err)
{
	int ret;

	if (step->seqs[i].slot >= r->slots.n)
		return bad(err, i, "no such slot");
	for (uint32_t j = 0; j < i; j++)
		if (step->seqs[j].slot == step->seqs[i].slot)
			return bad(err, i, "its slot occurs twice");
	ret = check_position(r, step, i, err);
	if (ret == 0)
		ret = check_tokens(r, step, i, err);
	if (ret == 0)
		ret = check_pages(r, step, i, err);
	return ret < 0 ? ret : check_sample(r, step, i, err);
}

int step_check(const struct rank *r, const struct msg_step_view *step, struct errbuf *err)
{
	uint64_t rows = 0;
	int ret;

	if (step->step->nseq == 0 || step->step->nseq > r->slots.n)
		return err_set(err, -EBADMSG, EXIT_SOFTWARE_ERR,
			"step refused: %u sequences, of at most %u", step->step->nseq, r->slots.n);
	for (uint32_t i = 0; i < step->step->nseq; i++) {
		ret = check_seq(r, step, i, err);
		if (ret < 0)
			return ret;
		rows += step->seqs[i].n;
	}
	if (rows > r->sh.step_tokens)
		return err_set(err, -EBADMSG, EXIT_SOFTWARE_ERR,
			"step refused: %" PRIu64 " tokens, at most %u", rows, r->sh.step_tokens);
	return 0;
}

/* ---- apply: slots and batch ----------------------------------------------------------------- */

static void apply_seq(struct rank *r, const struct msg_step_view *step, uint32_t i, uint32_t row0)
{
	const struct msg_seq *s = &step->seqs[i];
	struct slot *slot = &r->slots.slot[s->slot];
	struct work *k = &r->work;
	struct kern_seq *out = &k->seqs[i];

	if (s->flags & SEQ_FIRST)
		slot_clear(slot);
	slot->used = true;
	slot_take_pages(slot, s->raw_release, step->pages + s->page_off, s->page_n);
	for (uint32_t t = 0; t < s->n; t++) {
		uint32_t token = s->flags & SEQ_PREV ? slot->prev : step->tokens[s->token_off + t];

		k->tokens[row0 + t] = slot->history[s->pos + t] = token;
		k->row_seq[row0 + t] = i;
		k->row_pos[row0 + t] = (uint32_t)(s->pos + t);
	}
	k->seq_rows[i] = i;
	*out = (struct kern_seq){
		.row0 = row0,
		.n = s->n,
		.pos0 = (uint32_t)s->pos,
		.slot = s->slot,
		.raw_first = slot->raw_first,
	};
	for (int c = 0; c < PAGE__COUNT; c++) {
		out->pages[c] = slot->pages[c];
		out->page_n[c] = slot->page_n[c];
	}
}

static void apply(struct rank *r, const struct msg_step_view *step)
{
	uint32_t row = 0;

	for (uint32_t i = 0; i < step->step->nseq; i++) {
		apply_seq(r, step, i, row);
		row += step->seqs[i].n;
	}
	r->batch = (struct kern_batch){
		.ntok = row,
		.nseq = step->step->nseq,
		.row_seq = r->work.row_seq,
		.row_pos = r->work.row_pos,
		.seqs = r->work.seqs,
	};
}

static void finish(struct rank *r, const struct msg_step_view *step)
{
	for (uint32_t i = 0; i < step->step->nseq; i++) {
		const struct msg_seq *s = &step->seqs[i];
		struct slot *slot = &r->slots.slot[s->slot];

		slot->pos = s->pos + s->n;
		slot->has_prev = s->flags & SEQ_SAMPLE;
		slot->prev = slot->has_prev ? r->work.sampled[i] : 0;
		if (s->flags & SEQ_LAST)
			slot_clear(slot);
	}
}

/* ---- the step ------------------------------------------------------------------------------- */

/* Reports of a step, and room for their alternatives. */
static struct msg_result count_result(const struct msg_step_view *step)
{
	struct msg_result counts = {0};

	for (uint32_t i = 0; i < step->step->nseq; i++) {
		const struct msg_seq *s = &step->seqs[i];
		uint32_t prompt = s->flags & SEQ_PROMPT_LOGPROBS ? s->n - (s->pos == 0) : 0;
		uint32_t sampled = s->flags & SEQ_SAMPLE ? 1 : 0;

		if (!prompt && !sampled)
			continue;
		counts.ntoken += prompt + sampled;
		counts.nalt += prompt * step->samples[s->sample].prompt_logprobs +
			       sampled * step->samples[s->sample].logprobs;
	}
	return counts;
}

size_t rank_reply_bytes(const struct msg_step_view *step)
{
	const struct msg_result counts = count_result(step);
	struct msg_result_view view;
	int64_t bytes = msg_result_layout(NULL, 0, &counts, 0, &view);

	return bytes < 0 ? 0 : (size_t)bytes;
}

static int run(
	struct rank *r, const struct msg_step_view *step, const struct msg_result_view *reply)
{
	uint64_t comm0 = r->comm->busy_ns;
	mono_ns_t start = mono_now();
	struct msg_result *result;
	int ret;

	apply(r, step);
	ret = forward_run(r);
	if (ret == 0)
		ret = head_run(r, step, reply);
	if (ret < 0)
		return ret;
	finish(r, step);
	if (reply) {
		result = (struct msg_result *)reply->result;
		result->run_ns = mono_now() - start;
		result->comm_ns = r->comm->busy_ns - comm0;
	}
	return 0;
}

static int explain(int error, struct errbuf *err)
{
	const char *why = error == -ETIMEDOUT      ? "a peer is silent"
			  : error == -ECONNABORTED ? "the group is lost"
			  : error == -EPROTO       ? "the ranks do not run the same step"
						   : "a kernel refused its arguments";

	return err_set(err, error, EXIT_SOFTWARE_ERR, "step failed: %s", why);
}

int rank_step(struct rank *r, const struct msg_step_view *step, void *reply, size_t cap,
	size_t *ret_bytes, struct errbuf *err)
{
	struct msg_result counts;
	struct msg_result_view view;
	int64_t bytes = 0;
	int ret;

	if (r->broken)
		return err_set(err, -ECONNABORTED, EXIT_SOFTWARE_ERR,
			"step refused: an earlier one failed half-way");
	ret = step_check(r, step, err);
	if (ret < 0)
		return ret;
	if (r->sh.rank == 0) {
		counts = count_result(step);
		bytes = msg_result_layout(reply, cap, &counts, step->hdr->step, &view);
		if (bytes < 0)
			return err_set(err, (int)bytes, EXIT_SOFTWARE_ERR,
				"step refused: its result has no room in %zu bytes", cap);
	}
	ret = run(r, step, r->sh.rank == 0 ? &view : NULL);
	rank_stage(r, STAGE_IDLE, 0);
	if (ret < 0) {
		r->broken = true;
		return explain(ret, err);
	}
	*ret_bytes = (size_t)bytes;
	return 0;
}
