/* The running of steps: plans out, results in, and what each means for a sequence. */
#include <stdlib.h>
#include <string.h>

#include "coordinator/engine_impl.h"

#define LOG_TAG "engine"
#include "shm/log.h"

#define STEPS_IN_FLIGHT 2

/* ---- callbacks of the scheduler, passed on to the request ---- */

static struct engine_token *scratch(struct engine *e, size_t n)
{
	if (n > e->scratch_cap) {
		struct engine_token *more = realloc(e->scratch, n * sizeof(*more));

		if (!more)
			return NULL;
		e->scratch = more;
		e->scratch_cap = n;
	}
	return e->scratch;
}

/* The request may have cancelled itself in its callback: free it now. */
static void after_callback(struct engine *e, struct engine_seq *seq)
{
	e->current = NULL;
	if (seq->cancelled)
		engine_seq_free(seq);
}

static void on_tokens(void *user, struct sched_seq *q, const struct msg_token *tokens, size_t n,
	const struct msg_alt *alts)
{
	struct engine *e = user;
	struct engine_seq *seq = engine_seq_of(q);
	struct engine_token *out = scratch(e, n);
	size_t i;

	if (!out) {
		sched_cancel(&e->sched, q);
		engine_end(e, seq, ENGINE_FAILED, 500, "out of memory");
		return;
	}
	for (i = 0; i < n; i++)
		out[i] = (struct engine_token){
			.token = tokens[i].token,
			.pos = tokens[i].pos,
			.logprob = tokens[i].logprob,
			.rank = tokens[i].rank,
			.prompt = tokens[i].flags & MSG_TOKEN_PROMPT,
			.alts = alts + tokens[i].alt_off,
			.alt_n = tokens[i].alt_n,
		};
	e->current = seq;
	seq->ops.on_tokens(seq->user, out, n);
	after_callback(e, seq);
}

static void on_prefill(void *user, struct sched_seq *q, uint64_t done, uint64_t total)
{
	struct engine *e = user;
	struct engine_seq *seq = engine_seq_of(q);

	if (!seq->ops.on_prefill)
		return;
	e->current = seq;
	seq->ops.on_prefill(seq->user, done, total);
	after_callback(e, seq);
}

static void on_finish(void *user, struct sched_seq *q, enum engine_finish reason, int http_status,
	const char *text)
{
	struct engine *e = user;

	if (reason != ENGINE_FAILED)
		sup_served(&e->sup);
	engine_end(e, engine_seq_of(q), reason, http_status, text);
}

const struct sched_ops engine_sched_ops = {
	.on_tokens = on_tokens, .on_prefill = on_prefill, .on_finish = on_finish};

/* ---- opening and closing, with the workers of one generation ---- */

/* What all workers can do together: the least of each. */
static int common_capacity(const struct engine *e, const struct worker_capacity *caps,
	struct worker_capacity *ret_all, struct errbuf *err)
{
	struct worker_capacity all = caps[0];
	uint32_t rank;
	int c;

	for (rank = 1; rank < e->plan->workers; rank++) {
		const struct worker_capacity *w = &caps[rank];

		if (w->vocab != all.vocab)
			return err_set(err, -EINVAL, EXIT_SOFTWARE_ERR,
				"worker %u has a vocabulary of %u tokens, worker 0 of %u", rank,
				w->vocab, all.vocab);
		all.max_context = MIN(all.max_context, w->max_context);
		all.max_sequences = MIN(all.max_sequences, w->max_sequences);
		all.step_tokens = MIN(all.step_tokens, w->step_tokens);
		for (c = 0; c < PAGE__COUNT; c++) {
			if (w->classes[c].tokens_per_page != all.classes[c].tokens_per_page)
				return err_set(err, -EINVAL, EXIT_SOFTWARE_ERR,
					"worker %u has pages of %u tokens in class %d, worker 0 of "
					"%u",
					rank, w->classes[c].tokens_per_page, c,
					all.classes[c].tokens_per_page);
			all.classes[c].count = MIN(all.classes[c].count, w->classes[c].count);
		}
	}
	*ret_all = all;
	return 0;
}

/* An explicit key asks for so much; the workers have `most`. */
static uint64_t limited(int64_t asked, uint64_t most, const char *key)
{
	if (asked == CONF_AUTO)
		return most;
	if ((uint64_t)asked > most)
		log_notice("%s = %lld is more than the workers can do: %llu", key, (long long)asked,
			(unsigned long long)most);
	return MIN((uint64_t)asked, most);
}

static int open_sched(struct engine *e, const struct worker_capacity *all, struct errbuf *err)
{
	struct sched_config config = {
		.max_sequences = (uint32_t)limited(e->conf->schedule_max_sequences,
			all->max_sequences, "schedule.max_sequences"),
		.step_tokens = (uint32_t)limited(
			e->conf->schedule_step_tokens, all->step_tokens, "schedule.step_tokens"),
		.depth = STEPS_IN_FLIGHT,
		.ahead = SCHED_AHEAD,
		.vocab = all->vocab,
		.max_step_bytes = e->link.max_step_bytes,
		.max_reply_bytes = e->link.max_reply_bytes,
	};
	uint64_t context =
		limited(e->conf->schedule_max_context, all->max_context, "schedule.max_context");
	int r;

	memcpy(config.classes, all->classes, sizeof(config.classes));
	r = sched_open(&e->sched, &config, err);
	if (r < 0)
		return r;
	if (sched_max_positions(&e->sched) < context) {
		context = sched_max_positions(&e->sched);
		log_notice("the cache holds sequences of at most %llu tokens (cache.memory)",
			(unsigned long long)context);
	}
	e->step_tokens = config.step_tokens;
	e->limits =
		(struct engine_limits){.max_context = context, .vocab = all->vocab, .ready = true};
	return 0;
}

int engine_open_run(struct engine *e, struct seg_group *group, const struct worker_capacity *caps,
	struct errbuf *err)
{
	struct worker_capacity all;
	int r = common_capacity(e, caps, &all, err);

	if (r < 0)
		return r;
	r = link_open(&e->link, group);
	if (r < 0) {
		link_close(&e->link);
		return err_set(
			err, r, EXIT_SOFTWARE_ERR, "cannot open the rings: %s", strerror(-r));
	}
	r = open_sched(e, &all, err);
	if (r < 0) {
		link_close(&e->link);
		return r;
	}
	e->linked = true;
	log_notice("ready: %s; %u sequences, %u tokens a step, context %llu", all.dims,
		e->sched.config.max_sequences, e->step_tokens,
		(unsigned long long)e->limits.max_context);
	return 0;
}

/*
 * What becomes of a running sequence whose workers are gone. The one place that decides: a replay
 * is sched_resubmit(), for sched_seq holds all tokens, seeds and what was already delivered.
 */
static void lost_seq(void *user, struct sched_seq *q)
{
	struct engine *e = user;
	char text[400];

	snprintf(text, sizeof(text), "the workers were lost while this request ran (%s); try again",
		e->lost_why);
	engine_end(e, engine_seq_of(q), ENGINE_FAILED, 503, text);
}

void engine_close_run(struct engine *e, const char *why)
{
	if (!e->linked)
		return;
	e->linked = false;
	e->timing.idle_step = 0; /* the next generation counts from 1 again */
	e->limits.ready = false;
	loop_timer_stop(e->loop, &e->receive_timer);
	snprintf(e->lost_why, sizeof(e->lost_why), "%s", why);
	sched_close(&e->sched, lost_seq, e);
	link_close(&e->link);
	loop_again(e->loop); /* answers may have been written after their hook ran */
}

/* ---- steps ---- */

static int on_result(void *user, const struct msg_result_view *view, struct errbuf *err)
{
	struct engine *e = user;
	uint64_t passed;

	if (view->hdr->step == e->timing.idle_step) {
		passed = mono_now() - e->timing.idle_sent_ns;
		e->timing.handoffs++;
		e->timing.handoff_ns += passed - MIN(passed, view->result->run_ns);
		e->timing.idle_step = 0;
	}
	e->timing.steps++;
	e->timing.run_ns += view->result->run_ns;
	e->timing.comm_ns += view->result->comm_ns;
	e->timing.last_run_ns = view->result->run_ns;
	return sched_result(&e->sched, view, err);
}

void engine_receive(struct engine *e)
{
	const struct link_ops ops = {.on_result = on_result, .user = e};
	struct errbuf err;

	if (!e->linked)
		return;
	link_wake(&e->link);
	if (link_receive(&e->link, &ops, &err) < 0)
		sup_lose(&e->sup, err.text);
	else
		sup_look(&e->sup);
}

/* Plans and sends as long as there is room in the ring and fewer than `depth` steps are out. */
static void pump(struct engine *e)
{
	const struct sched_plan *plan;
	struct errbuf err;
	int r;

	while (e->linked && e->sched.inflight < STEPS_IN_FLIGHT) {
		r = link_room(&e->link, &err);
		if (r == -EAGAIN)
			return;
		if (r < 0) {
			sup_lose(&e->sup, err.text);
			return;
		}
		plan = sched_plan(&e->sched, loop_now(e->loop));
		if (!plan)
			return;
		if (e->sched.inflight == 1) {
			sup_touch(&e->sup);
			e->timing.idle_step = plan->step;
			e->timing.idle_sent_ns = mono_now();
		}
		link_send(&e->link, plan);
	}
}

void engine_expire(struct engine *e)
{
	mono_ns_t next = sched_expire(&e->sched, mono_now());

	if (next)
		loop_timer_set(e->loop, &e->expire_timer, next);
	else
		loop_timer_stop(e->loop, &e->expire_timer);
}

/*
 * The end of a turn: everything that arrived in it is in the queue, so one step takes it all. Then
 * the bell is armed; what came in that moment is received from a timer, in the next turn, so that
 * callbacks never run behind the hooks that collect their output.
 */
void engine_turn_end(void *user)
{
	struct engine *e = user;
	mono_ns_t expires = queue_deadline(&e->sched.queue);

	pump(e);
	if (e->linked) {
		if (!link_sleep(&e->link))
			loop_timer_set(e->loop, &e->receive_timer, loop_now(e->loop));
		else
			sup_look(&e->sup);
	}
	if (expires && e->expire_timer.when == 0)
		loop_timer_set(e->loop, &e->expire_timer, expires);
	if (e->draining && !e->drained && sched_idle(&e->sched)) {
		e->drained = true;
		if (e->on_idle)
			e->on_idle(e->idle_user);
	}
}
