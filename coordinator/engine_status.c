/* The engine's part of /status. */
#include <jansson.h>
#include <string.h>

#include "coordinator/engine_impl.h"

static json_int_t num(uint64_t n)
{
	return (json_int_t)n;
}

static double seconds(uint64_t ns)
{
	return (double)ns / 1e9;
}

/* Takes over `value`, also when it fails. */
static int put(json_t *object, const char *key, json_t *value)
{
	return json_object_set_new(object, key, value) < 0 ? -ENOMEM : 0;
}

/* ---- workers ---- */

static json_t *counters(const struct worker_stats *stats)
{
	struct stats_row rows[STATS__COUNT];
	json_t *o = json_object();
	size_t i;

	stats_read(stats, rows);
	for (i = 0; o && i < ARRAY_LEN(rows); i++)
		(void)put(o, rows[i].name, json_integer(num(rows[i].value)));
	return o;
}

/* What a live worker says of itself: its segment is mapped. */
static int put_live(const struct engine *e, uint32_t rank, json_t *o)
{
	const struct seg *seg = &e->sup.group->workers[rank];
	const struct sup_worker *w = &e->sup.workers[rank];
	struct slot_view v;
	int r = 0;

	if (!seg->slot || !w->alive || slot_read(seg->slot, &v) < 0)
		return put(o, "state", json_string("down"));
	r |= put(o, "state", json_string(slot_state_name(v.state)));
	r |= put(o, "pid", json_integer(w->child.pid));
	r |= put(o, "step", json_integer(num(v.step)));
	r |= put(o, "stage", json_string(slot_stage_name(v.stage)));
	r |= put(o, "layer", json_integer(v.layer));
	r |= put(o, "progress_age_seconds",
		json_real(v.progress_ns ? seconds(mono_now() - v.progress_ns) : 0.0));
	if (v.state == WORKER_LOADING)
		r |= put(o, "load",
			json_pack("{s:I,s:I}", "done_bytes", num(v.load_done_bytes), "total_bytes",
				num(v.load_total_bytes)));
	if (e->linked)
		r |= put(o, "reply_ring_used_bytes",
			json_integer(num(ring_reader_backlog(&e->link.chan.replies[rank]))));
	return r | put(o, "counters", counters(seg->stats));
}

static int put_capacity(const struct engine *e, uint32_t rank, json_t *o)
{
	const struct worker_capacity *c = &e->sup.caps[rank];
	int r = 0;

	r |= put(o, "memory",
		json_pack("{s:I,s:I,s:I,s:I}", "weights_bytes", num(c->weights_bytes), "pool_bytes",
			num(c->pool_bytes), "scratch_bytes", num(c->scratch_bytes),
			"sequences_bytes", num(c->bytes_per_seq * c->max_sequences)));
	r |= put(o, "model", json_string(c->dims));
	return r | put(o, "numerics", json_string(c->numerics));
}

static json_t *worker(const struct engine *e, uint32_t rank)
{
	const struct place_worker *p = &e->plan->w[rank];
	json_t *o = json_object();
	int r = 0;

	r |= put(o, "rank", json_integer(rank));
	r |= put(o, "device", json_string(p->kind == PLACE_CPU ? "cpu" : p->pci));
	r |= put(o, "cpus", e->conf->fabric_pin ? json_string(p->text) : json_null());
	r |= put(o, "threads", json_integer(e->plan->threads));
	r |= put(o, "restarts", json_integer(num(e->sup.restarts)));
	r |= put_live(e, rank, o);
	if (e->sup.state == SUP_READY)
		r |= put_capacity(e, rank, o);
	if (r == 0)
		return o;
	json_decref(o);
	return NULL;
}

static json_t *workers(const struct engine *e)
{
	json_t *a = json_array();
	uint32_t rank;

	for (rank = 0; a && rank < e->plan->workers; rank++) {
		if (json_array_append_new(a, worker(e, rank)) < 0) {
			json_decref(a);
			return NULL;
		}
	}
	return a;
}

/* ---- the rest ---- */

static json_t *queue_status(const struct engine *e)
{
	const struct queue *q = &e->sched.queue;
	mono_ns_t oldest = queue_oldest(q);

	return json_pack("{s:i,s:i,s:f,s:f}", "waiting", (int)q->count, "limit", (int)q->limit,
		"timeout_seconds", seconds(q->timeout_ns), "oldest_seconds",
		oldest ? seconds(mono_now() - oldest) : 0.0);
}

static const char *const class_names[PAGE__COUNT] = {"raw", "csa", "hca"};

static json_t *cache_status(const struct engine *e)
{
	json_t *a = json_array();
	int c;

	for (c = 0; a && e->sched.open && c < PAGE__COUNT; c++) {
		const struct pages_class *p = &e->sched.pages.cls[c];
		uint64_t unused = (uint64_t)p->free_n + p->limbo_n;
		json_t *o = json_pack("{s:s,s:i,s:I,s:I,s:I,s:I,s:I}", "class", class_names[c],
			"tokens_per_page", (int)p->tokens_per_page, "pages", num(p->count), "free",
			num(unused), "used", num(p->count - unused), "promised",
			num(e->sched.promised[c]), "bytes_per_page",
			num(e->sched.config.classes[c].bytes_per_page));

		if (json_array_append_new(a, o) < 0) {
			json_decref(a);
			return NULL;
		}
	}
	return a ? json_pack("{s:I,s:o}", "max_context", num(e->limits.max_context), "classes", a)
		 : NULL;
}

static json_t *ring_status(const struct engine *e)
{
	const struct ring_writer *w = &e->link.chan.step;

	if (!e->linked)
		return json_object();
	return json_pack("{s:I,s:I}", "bytes", num(w->data.bytes), "used_bytes",
		num(ring_writer_backlog(w)));
}

static json_t *sched_status(const struct engine *e)
{
	const struct sched *s = &e->sched;
	const struct sched_counts *n = &s->counts;
	json_t *o = json_object();
	int r = 0;

	r |= put(o, "state", json_string(sup_state_name(e->sup.state)));
	r |= put(o, "generation", json_integer(num(e->sup.generation)));
	r |= put(o, "running", json_integer(sched_running(s)));
	r |= put(o, "reading_prompts", json_integer(s->prefill.count));
	r |= put(o, "max_sequences", json_integer(s->config.max_sequences));
	r |= put(o, "step_tokens", json_integer(s->config.step_tokens));
	r |= put(o, "steps", json_integer(num(n->steps)));
	r |= put(o, "steps_in_flight", json_integer(s->inflight));
	r |= put(o, "last_step",
		json_pack("{s:i,s:i,s:f}", "sequences", (int)n->last_batch, "tokens",
			(int)n->last_tokens, "seconds", seconds(e->timing.last_run_ns)));
	r |= put(o, "step_seconds_total", json_real(seconds(e->timing.run_ns)));
	r |= put(o, "collective_seconds_total", json_real(seconds(e->timing.comm_ns)));
	r |= put(o, "handoffs", json_integer(num(e->timing.handoffs)));
	r |= put(o, "handoff_seconds_total", json_real(seconds(e->timing.handoff_ns)));
	r |= put(o, "prompt_tokens", json_integer(num(n->prompt_tokens)));
	r |= put(o, "generated_tokens", json_integer(num(n->generated_tokens)));
	r |= put(o, "dropped_tokens", json_integer(num(n->dropped_tokens)));
	r |= put(o, "finished", json_integer(num(n->finished)));
	r |= put(o, "cancelled", json_integer(num(n->cancelled)));
	r |= put(o, "failed", json_integer(num(n->failed)));
	r |= put(o, "expired", json_integer(num(n->expired)));
	r |= put(o, "preempted", json_integer(num(n->preempted)));
	if (r == 0)
		return o;
	json_decref(o);
	return NULL;
}

int engine_status_json(const struct engine *e, void *json_object)
{
	int r = put(json_object, "workers", workers(e));

	r |= put(json_object, "queue", queue_status(e));
	r |= put(json_object, "cache", cache_status(e));
	r |= put(json_object, "ring", ring_status(e));
	r |= put(json_object, "scheduler", sched_status(e));
	return r ? -ENOMEM : 0;
}
