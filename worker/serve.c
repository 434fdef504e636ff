#include "worker/serve.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/chan.h"
#include "shm/cpus.h"
#include "shm/fault.h"
#include "worker/comm_shm.h"
#include "worker/conf_sane.h"
#include "worker/rank.h"

#define LOG_TAG "serve"
#include "shm/log.h"

#define CHECK_NS (100 * NS_PER_MS) /* between two looks at whether the others live */

struct serve {
	struct seg_group group;
	struct chan_worker chan;
	struct comm_shm comm;
	struct rank *rank;
	const struct conf *conf;
	struct worker_slot *slot;
	struct worker_stats *stats;
	uint64_t spin_ns;
	/* what the step thread is at, repeated as a sign of life while it waits for peers */
	uint64_t step;
	enum worker_stage stage;
	uint32_t layer;
};

/* ---- signs of life ---- */

static void on_stage(void *user, enum worker_stage stage, uint32_t layer)
{
	struct serve *s = user;

	s->stage = stage;
	s->layer = layer;
	slot_beat(s->slot, s->step, stage, layer);
	FAULT_POINT("worker.stage");
}

static void on_beat(void *user)
{
	struct serve *s = user;

	slot_beat(s->slot, s->step, s->stage, s->layer);
}

static void on_load(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
	struct serve *s = user;

	slot_load(s->slot, done_bytes, total_bytes);
	slot_beat(s->slot, 0, STAGE_LOAD, 0);
	FAULT_POINT("worker.load");
}

/*
 * Asked while this rank waits for a peer. Waiting is not being stuck: the beat goes on, so that the
 * rank that has fallen silent is the only one that looks so.
 */
static int peers_alive(void *user)
{
	struct serve *s = user;

	slot_beat(s->slot, s->step, s->stage, s->layer);
	return seg_group_alive(&s->group);
}

/* ---- start ---- */

/*
 * Compute threads wait for the next op of a step for microseconds, less than it takes to wake a
 * sleeper. They spin wherever all of them can run at once; heddled does not count, because it
 * sleeps while a step runs. Pinned workers have CPUs of their own.
 */
static uint64_t pool_spin_of(const struct conf *conf, uint32_t threads, uint32_t world)
{
	uint64_t spinners = (uint64_t)threads * (conf->fabric_pin ? 1 : world);
	struct cpus cpus;

	if (cpus_allowed(&cpus) < 0)
		return 0;
	return spinners > cpus_count(&cpus) ? 0 : RANK_SPIN_NS;
}

static int open_comm(struct serve *s, struct errbuf *err)
{
	uint32_t world = s->group.geometry.workers;
	struct comm_shm_opts o = {
		.rank = (uint32_t)s->group.rank,
		.world = world,
		.area_bytes = s->group.geometry.comm_bytes,
		.how = {.spin_ns = s->spin_ns,
			.check_ns = CHECK_NS,
			.alive = peers_alive,
			.alive_user = s},
	};

	if (world == 1)
		return 0;
	for (uint32_t r = 0; r < world; r++) {
		o.areas[r] = s->group.workers[r].comm;
		o.flags[r] = s->group.workers[r].flags;
		o.armed[r] = &s->group.workers[r].worker_ctl->comm_armed;
	}
	if (comm_shm_init(&s->comm, &o) < 0)
		return err_set(err, -EINVAL, EXIT_SOFTWARE_ERR,
			"the collective area has %zu bytes, at least %d are needed", o.area_bytes,
			COMM_SHM_AREA_MIN);
	return 0;
}

static int attach(struct serve *s, const struct serve_opts *opts, struct errbuf *err)
{
	char who[32];
	int ret;

	ret = seg_group_attach_fds(
		&s->group, opts->rank, opts->coord_fd, opts->bell_fd, opts->worker_fds, err);
	if (ret < 0)
		return ret;
	s->conf = s->group.coord.conf;
	s->slot = s->group.workers[opts->rank].slot;
	s->stats = s->group.workers[opts->rank].stats;
	slot_begin(s->slot, s->group.geometry.generation);
	fault_identity((int)opts->rank, s->group.geometry.generation);
	if (s->group.geometry.generation != opts->generation ||
		s->group.geometry.workers != opts->world)
		return err_set(err, -EINVAL, EXIT_SOFTWARE_ERR,
			"command line and segment disagree on generation or number of workers");
	if (seg_group_alive(&s->group) < 0)
		return err_set(err, -EPIPE, EXIT_UNAVAILABLE_ERR, "heddled is gone");
	ret = conf_sane(s->conf, err);
	if (ret < 0)
		return ret;
	snprintf(who, sizeof(who), "worker %u", opts->rank);
	log_follow(); /* SIGUSR1 goes to heddled only */
	return log_open(s->conf->log_target, (enum conf_level)s->conf->log_level,
		(enum conf_format)s->conf->log_format, who, err);
}

/* What this rank is and where its memory went. */
static void log_ready(const struct worker_capacity *c, mono_ns_t start)
{
	const struct page_class_info *p = c->classes;

	log_info("ready in %.1f s: %s; %s; %u thread%s", (double)(mono_now() - start) / 1e9,
		c->dims, c->numerics, c->threads, c->threads == 1 ? "" : "s");
	log_info(
		"memory: %.1f MiB weights, %.1f MiB scratch, up to %.1f MiB pages (%u raw, %u csa, "
		"%u hca), %.1f KiB state in each of %u slots; context %llu tokens",
		(double)c->weights_bytes / 0x1p20, (double)c->scratch_bytes / 0x1p20,
		(double)c->pool_bytes / 0x1p20, p[PAGE_RAW].count, p[PAGE_CSA].count,
		p[PAGE_HCA].count, (double)c->bytes_per_seq / 0x1p10, c->max_sequences,
		(unsigned long long)c->max_context);
}

static int load(struct serve *s, const struct serve_opts *opts, struct errbuf *err)
{
	uint32_t threads = (uint32_t)s->conf->fabric_threads;
	mono_ns_t start = mono_now();
	struct worker_capacity capacity;
	int ret;

	s->spin_ns = (uint64_t)s->conf->fabric_spin;
	s->stage = STAGE_LOAD;
	slot_set_state(s->slot, WORKER_LOADING);
	chan_notify(&s->group);
	ret = chan_worker_init(&s->chan, &s->group, s->spin_ns, CHECK_NS);
	if (ret < 0)
		return err_set(err, ret, EXIT_SOFTWARE_ERR, "the rings are not usable");
	ret = open_comm(s, err);
	if (ret < 0)
		return ret;
	ret = rank_open(
		&(struct rank_opts){
			.conf = s->conf,
			.rank = opts->rank,
			.world = opts->world,
			.comm = &s->comm.comm,
			.threads = threads,
			.spin_ns = pool_spin_of(s->conf, threads, opts->world),
			.hooks = {.user = s,
				.on_stage = on_stage,
				.on_beat = on_beat,
				.on_load = on_load},
		},
		&s->rank, err);
	if (ret < 0)
		return ret;
	/* Peers may load at different speeds; from here on they are in step. heddled, which sees
	 * who is silent, acts first. */
	s->comm.opts.timeout_ns = 2 * (uint64_t)s->conf->fabric_progress_timeout;
	rank_capacity(s->rank, &capacity);
	stats_add(s->stats, load_ns, mono_now() - start);
	slot_set_ready(s->slot, &capacity);
	chan_notify(&s->group);
	log_ready(&capacity, start);
	return 0;
}

/* ---- steps ---- */

static void count_step(struct serve *s, const struct msg_step_view *step, mono_ns_t start)
{
	for (uint32_t i = 0; i < step->step->nseq; i++) {
		const struct msg_seq *q = &step->seqs[i];

		stats_add(s->stats, tokens, q->n);
		if (!(q->flags & SEQ_PREV))
			stats_add(s->stats, prompt_tokens, q->n);
		if (s->group.rank == 0 && q->flags & SEQ_SAMPLE)
			stats_add(s->stats, samples, 1);
	}
	stats_add(s->stats, steps, 1);
	stats_add(s->stats, run_ns, mono_now() - start);
	atomic_store_explicit(&s->stats->comm_ns, s->comm.comm.busy_ns, memory_order_relaxed);
	atomic_store_explicit(&s->stats->comm_wait_ns, s->comm.wait_ns, memory_order_relaxed);
	atomic_store_explicit(&s->stats->comm_bytes, s->comm.bytes, memory_order_relaxed);
}

static void count_nan(struct serve *s, const void *reply, size_t bytes)
{
	struct msg_result_view v;

	if (msg_result_parse(reply, bytes, &v, NULL) < 0)
		return;
	for (uint32_t i = 0; i < v.result->ntoken; i++)
		if (v.tokens[i].flags & MSG_TOKEN_NAN)
			stats_add(s->stats, nan_rows, 1);
}

static int run_step(struct serve *s, const void *record, size_t bytes, struct errbuf *err)
{
	struct msg_step_view step;
	mono_ns_t start = mono_now();
	size_t need, used = 0;
	void *reply = NULL;
	int ret;

	ret = msg_step_parse(record, bytes, &step, err);
	if (ret < 0)
		return ret;
	s->step = step.hdr->step;
	need = rank_reply_bytes(&step);
	if (s->group.rank == 0) {
		ret = chan_reply_reserve(&s->chan, need, 0, &reply);
		if (ret < 0)
			return err_set(err, ret, EXIT_SOFTWARE_ERR,
				"step refused: no room for a result of %zu bytes", need);
	}
	ret = rank_step(s->rank, &step, reply, need, &used, err);
	if (ret < 0)
		return ret;
	count_step(s, &step, start);
	if (s->group.rank == 0) {
		slot_beat(s->slot, s->step, STAGE_REPLY, 0);
		FAULT_POINT("worker.reply");
		count_nan(s, reply, used);
		chan_reply_commit(&s->chan, used);
	}
	slot_beat(s->slot, s->step, STAGE_IDLE, 0);
	return 0;
}

/* Tells the coordinator that this step will not be answered. */
static void send_failed(struct serve *s, int error, const struct errbuf *err)
{
	unsigned char buf[sizeof(struct msg_hdr) + sizeof(struct msg_failed) + 16];
	int64_t bytes = msg_failed_build(buf, sizeof(buf), s->step, error, err->text);
	void *to;

	if (bytes < 0 ||
		chan_reply_reserve(&s->chan, (size_t)bytes, mono_now() + 10 * CHECK_NS, &to) < 0)
		return;
	memcpy(to, buf, (size_t)bytes);
	chan_reply_commit(&s->chan, (size_t)bytes);
}

/* 1: told to stop; 0: ran a step; -EPIPE: the group is over; else a failure. */
static int serve_one(struct serve *s, struct errbuf *err)
{
	mono_ns_t start = mono_now();
	const void *record;
	size_t bytes;
	int ret;

	ret = chan_step_next(&s->chan, 0, &record, &bytes);
	stats_add(s->stats, wait_ns, mono_now() - start);
	if (ret == -EPIPE)
		return ret;
	if (ret < 0)
		return err_set(err, ret, EXIT_SOFTWARE_ERR, "the step ring is damaged");
	ret = msg_hdr_parse(record, bytes, err);
	if (ret == MSG_STOP) {
		chan_step_done(&s->chan);
		return 1;
	}
	if (ret >= 0 && ret != MSG_STEP)
		ret = err_set(err, -EBADMSG, EXIT_SOFTWARE_ERR,
			"a message of type %s in the step "
			"ring",
			msg_type_name((uint32_t)ret));
	if (ret < 0)
		return ret;
	FAULT_POINT("worker.step");
	ret = run_step(s, record, bytes, err);
	chan_step_done(&s->chan);
	if (ret < 0 && ret != -ECONNABORTED)
		send_failed(s, ret, err);
	return ret;
}

/* ---- end ---- */

static int fail(struct serve *s, int error, const struct errbuf *err)
{
	int code = err->exit_code ? err->exit_code : EXIT_SOFTWARE_ERR;

	/* A peer has failed first, or heddled ends the group: the reason is told there. */
	if (error == -ECONNABORTED || error == -EPIPE) {
		log_info("leaving: the group is over");
		return code;
	}
	log_err("%s", err->text);
	if (s->slot) {
		slot_set_failed(s->slot, error, err);
		chan_notify(&s->group);
	}
	return code;
}

int serve_run(const struct serve_opts *opts)
{
	struct serve *s = calloc(1, sizeof(*s)); /* large: struct seg_group */
	struct errbuf err = {0};
	int ret, code = 0;

	if (!s)
		return EXIT_OS_ERR;
	ret = attach(s, opts, &err);
	if (ret == 0)
		ret = load(s, opts, &err);
	while (ret == 0)
		ret = serve_one(s, &err);
	if (ret < 0) {
		code = fail(s, ret, &err);
	} else {
		slot_set_state(s->slot, WORKER_STOPPED);
		chan_notify(&s->group);
		log_debug("stopped");
	}
	rank_close(s->rank);
	seg_group_close(&s->group);
	free(s);
	return code;
}
