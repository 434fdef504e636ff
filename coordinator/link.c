#include "coordinator/link.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int link_open(struct link *l, struct seg_group *group)
{
	int r;

	memset(l, 0, sizeof(*l));
	r = chan_coord_init(&l->chan, group);
	if (r < 0)
		return r;
	/* a quarter of the ring: two steps in flight, one being built and MSG_STOP always fit */
	l->max_step_bytes = group->geometry.step_ring_bytes / 4 - 64;
	l->max_reply_bytes = ring_record_max(group->geometry.reply_ring_bytes);
	l->reply = malloc(l->max_reply_bytes);
	return l->reply ? 0 : -ENOMEM;
}

void link_close(struct link *l)
{
	free(l->reply);
	memset(l, 0, sizeof(*l));
}

/* ---- sending ---- */

int link_room(struct link *l, struct errbuf *err)
{
	int r = chan_step_reserve(&l->chan, l->max_step_bytes, &l->room);

	l->full = r == -EAGAIN;
	if (r == 0 || r == -EAGAIN)
		return r;
	l->room = NULL;
	return err_set(err, r, EXIT_SOFTWARE_ERR, "the step ring is broken: %s",
		r == -EPIPE ? "a worker has closed its end"
			    : "a worker's position in it is impossible");
}

static bool needs_sample(const struct sched_entry *e)
{
	return e->flags & (SEQ_SAMPLE | SEQ_PROMPT_LOGPROBS);
}

void link_count(const struct sched_plan *plan, struct msg_step *ret_counts)
{
	struct msg_step c = {.nseq = plan->n, .npage = plan->page_n};
	uint32_t i;

	for (i = 0; i < plan->n; i++) {
		const struct sched_entry *e = &plan->entries[i];

		c.ntoken += e->n;
		if (!needs_sample(e))
			continue;
		c.nsample++;
		c.nbias += e->seq->bias_n;
		c.ntoken += e->ban_stops ? e->seq->stop_n : 0;
	}
	*ret_counts = c;
}

/* Where in the message's arrays the next part goes; the view's pointers made writable. */
struct cursor {
	struct msg_seq *seqs;
	struct msg_sample *samples;
	struct msg_bias *biases;
	uint32_t *tokens, *pages;
	uint32_t sample, bias, token;
};

static void put_sample(struct cursor *c, const struct sched_entry *e)
{
	const struct sched_seq *q = e->seq;
	struct msg_sample *s = &c->samples[c->sample++];

	*s = q->sampling;
	s->prompt_len = (uint32_t)q->prompt_len;
	s->bias_off = c->bias;
	s->bias_n = q->bias_n;
	if (q->bias_n)
		memcpy(c->biases + c->bias, q->bias, q->bias_n * sizeof(*q->bias));
	c->bias += q->bias_n;
	s->banned_off = c->token;
	s->banned_n = e->ban_stops ? q->stop_n : 0;
	if (s->banned_n)
		memcpy(c->tokens + c->token, q->stops, s->banned_n * sizeof(*q->stops));
	c->token += s->banned_n;
}

static void put_entry(struct cursor *c, uint32_t i, const struct sched_entry *e)
{
	struct msg_seq *m = &c->seqs[i];

	*m = (struct msg_seq){
		.slot = e->slot,
		.flags = e->flags,
		.pos = e->pos,
		.n = e->n,
		.token_off = c->token,
		.page_off = e->page_off,
		.raw_release = e->raw_release,
		.sample = needs_sample(e) ? c->sample : 0,
	};
	memcpy(m->page_n, e->page_n, sizeof(m->page_n));
	if (e->flags & SEQ_PREV)
		c->tokens[c->token] = 0; /* the worker knows it, we do not yet */
	else
		memcpy(c->tokens + c->token, e->seq->tokens + e->pos,
			e->n * sizeof(*e->seq->tokens));
	c->token += e->n;
	if (needs_sample(e))
		put_sample(c, e);
}

void link_send(struct link *l, const struct sched_plan *plan)
{
	struct msg_step counts;
	struct msg_step_view view;
	struct cursor c;
	int64_t bytes;
	uint32_t i;

	link_count(plan, &counts);
	bytes = msg_step_layout(l->room, l->max_step_bytes, &counts, plan->step, &view);
	assert(l->room && bytes > 0); /* the scheduler counted at least as many bytes */
	c = (struct cursor){
		.seqs = (struct msg_seq *)view.seqs,
		.samples = (struct msg_sample *)view.samples,
		.biases = (struct msg_bias *)view.biases,
		.tokens = (uint32_t *)view.tokens,
		.pages = (uint32_t *)view.pages,
	};
	for (i = 0; i < plan->n; i++)
		put_entry(&c, i, &plan->entries[i]);
	if (plan->page_n)
		memcpy(c.pages, plan->pages, plan->page_n * sizeof(*plan->pages));
	chan_step_commit(&l->chan, (size_t)bytes);
	l->room = NULL;
	l->steps_sent++;
}

int link_stop(struct link *l)
{
	void *at;
	int64_t bytes;
	int r;

	r = chan_step_reserve(&l->chan, sizeof(struct msg_hdr), &at);
	if (r < 0)
		return r;
	bytes = msg_stop_build(at, sizeof(struct msg_hdr), 0);
	assert(bytes > 0);
	chan_step_commit(&l->chan, (size_t)bytes);
	l->room = NULL;
	return 0;
}

/* ---- receiving ---- */

static int take_failed(const void *buf, size_t bytes, uint32_t rank, struct errbuf *err)
{
	struct msg_failed failed;
	int r = msg_failed_parse(buf, bytes, &failed, err);

	if (r < 0)
		return r;
	return err_set(err, -ECOMM, EXIT_SOFTWARE_ERR, "worker %u could not run a step: %s", rank,
		failed.text);
}

static int take_reply(
	struct link *l, const struct link_ops *ops, uint32_t rank, size_t bytes, struct errbuf *err)
{
	struct msg_result_view view;
	struct errbuf why;
	int type = msg_hdr_parse(l->reply, bytes, &why), r = type;

	if (type == MSG_FAILED)
		return take_failed(l->reply, bytes, rank, err);
	if (type == MSG_RESULT && rank == 0) {
		r = msg_result_parse(l->reply, bytes, &view, &why);
		if (r == 0) {
			l->results++;
			r = ops->on_result(ops->user, &view, &why);
		}
	} else if (type >= 0) {
		r = err_set(&why, -EBADMSG, EXIT_SOFTWARE_ERR, "a message %s of it",
			msg_type_name((uint32_t)type));
	}
	if (r < 0)
		return err_set(err, r, EXIT_SOFTWARE_ERR, "worker %u sent what it should not: %s",
			rank, why.text);
	return 0;
}

int link_receive(struct link *l, const struct link_ops *ops, struct errbuf *err)
{
	uint32_t rank, workers = l->chan.group->geometry.workers;
	size_t bytes;
	int r;

	for (rank = 0; rank < workers; rank++) {
		for (;;) {
			r = chan_reply_pop(&l->chan, rank, l->reply, l->max_reply_bytes, &bytes);
			if (r == -EAGAIN || r == -EPIPE)
				break; /* a worker that is gone is the supervisor's business */
			if (r < 0)
				return err_set(err, -EBADMSG, EXIT_SOFTWARE_ERR,
					"the reply ring of worker %u is broken: %s", rank,
					strerror(-r));
			r = take_reply(l, ops, rank, bytes, err);
			if (r < 0)
				return r;
		}
	}
	return 0;
}

bool link_sleep(struct link *l)
{
	return chan_sleep(&l->chan, l->full ? l->max_step_bytes : 0);
}

void link_wake(struct link *l)
{
	chan_wake(&l->chan);
}
