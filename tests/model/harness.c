#include "tests/model/harness_impl.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "coordinator/conf.h"

/* ---- ranks as threads ------------------------------------------------------------------------ */

struct call {
	struct harness *h;
	uint32_t rank;
	int (*f)(struct harness *h, uint32_t rank, void *arg, struct errbuf *err);
	void *arg;
	int ret;
	struct errbuf err;
};

static void *run_call(void *user)
{
	struct call *c = user;

	c->ret = c->f(c->h, c->rank, c->arg, &c->err);
	if (c->ret < 0)
		atomic_store(&c->h->give_up, 1);
	return NULL;
}

int harness_on_all(struct harness *h,
	int (*f)(struct harness *h, uint32_t rank, void *arg, struct errbuf *err), void *arg,
	struct errbuf *err)
{
	struct call calls[COMM_WORLD_MAX];
	pthread_t threads[COMM_WORLD_MAX];
	int ret = 0;

	atomic_store(&h->give_up, 0);
	for (uint32_t r = 0; r < h->world; r++)
		calls[r] = (struct call){.h = h, .rank = r, .f = f, .arg = arg};
	for (uint32_t r = 1; r < h->world; r++)
		assert_int_equal(pthread_create(&threads[r], NULL, run_call, &calls[r]), 0);
	run_call(&calls[0]);
	for (uint32_t r = 1; r < h->world; r++)
		assert_int_equal(pthread_join(threads[r], NULL), 0);
	/* The first rank's reason, unless it only says that a peer gave up. */
	for (uint32_t r = 0; r < h->world; r++)
		if (calls[r].ret < 0 && (ret == 0 || ret == -ECONNABORTED)) {
			ret = calls[r].ret;
			if (err)
				*err = calls[r].err;
		}
	return ret;
}

static int peer_gave_up(void *user)
{
	struct harness *h = user;

	return atomic_load(&h->give_up) ? -EPIPE : 0;
}

/* ---- open and close ------------------------------------------------------------------------- */

struct conf harness_conf(void)
{
	static const char *const settings[] = {
		"attention.index_key=f32",
		"attention.kv=f32",
		"attention.act=f32",
		"cache.memory=256M",
		"schedule.max_context=16384",
		"schedule.max_sequences=8",
		"schedule.step_tokens=2048",
	};
	struct conf_set set;
	struct errbuf err = {0};
	struct conf conf;

	assert_int_equal(conf_init(&set), 0);
	for (size_t i = 0; i < ARRAY_LEN(settings); i++)
		if (conf_override(&set, settings[i], &err) < 0)
			fail_msg("%s", err.text);
	conf = set.conf;
	conf_fini(&set);
	return conf;
}

static void open_comm(struct harness *h)
{
	struct comm_shm_opts opts = {
		.world = h->world,
		.area_bytes = COMM_SHM_AREA_BYTES,
		.how = {.alive = peer_gave_up, .alive_user = h, .check_ns = 20000000},
	};

	h->shared = aligned_alloc(64, sizeof(*h->shared) * h->world);
	h->areas = aligned_alloc(64, (size_t)COMM_SHM_AREA_BYTES * h->world);
	assert_non_null(h->shared);
	assert_non_null(h->areas);
	memset(h->shared, 0, sizeof(*h->shared) * h->world);
	memset(h->areas, 0, (size_t)COMM_SHM_AREA_BYTES * h->world);
	for (uint32_t r = 0; r < h->world; r++) {
		opts.areas[r] = h->areas + (size_t)r * COMM_SHM_AREA_BYTES;
		opts.flags[r] = &h->shared[r].flag;
		opts.armed[r] = &h->shared[r].armed;
	}
	for (uint32_t r = 0; r < h->world; r++) {
		opts.rank = r;
		assert_int_equal(comm_shm_init(&h->comms[r], &opts), 0);
	}
}

static int open_rank(struct harness *h, uint32_t rank, void *arg, struct errbuf *err)
{
	const struct harness_opts *o = arg;
	const struct rank_opts opts = {
		.conf = &h->conf,
		.rank = rank,
		.world = h->world,
		.comm = &h->comms[rank].comm,
		.threads = o->threads ? o->threads : 1,
		.spin_ns = o->spin_ns,
		.shard_entries = o->shard_entries,
	};
	int ret = rank_open(&opts, &h->ranks[rank], err);

	if (ret == 0 && o->kernels)
		ret = kern_ops_get(KERN_CPU, o->kernels, &h->ranks[rank]->ops, err);
	return ret;
}

static void set_path(struct harness *h, const char *dir)
{
	const char *src = getenv("HEDDLE_SRCDIR");

	if (dir)
		snprintf(h->conf.model_path, sizeof(h->conf.model_path), "%s", dir);
	else
		snprintf(h->conf.model_path, sizeof(h->conf.model_path), "%s/models/heddle-mini",
			src ? src : ".");
}

struct harness *harness_try_open(const struct harness_opts *opts, struct errbuf *err)
{
	struct harness *h = calloc(1, sizeof(*h));

	assert_non_null(h);
	h->world = opts->world ? opts->world : 1;
	h->conf = opts->conf ? *opts->conf : harness_conf();
	set_path(h, opts->dir);
	open_comm(h);
	if (harness_on_all(h, open_rank, (void *)opts, err) < 0) {
		harness_close(h);
		return NULL;
	}
	rank_capacity(h->ranks[0], &h->capacity);
	h->layers = h->ranks[0]->sh.cfg.layers;
	harness_pages_open(h, opts->page_seed);
	return h;
}

struct harness *harness_open(const struct harness_opts *opts)
{
	struct errbuf err = {0};
	struct harness *h = harness_try_open(opts, &err);

	if (!h)
		fail_msg("cannot open: %s", err.text);
	return h;
}

void harness_close(struct harness *h)
{
	if (!h)
		return;
	for (uint32_t r = 0; r < h->world; r++)
		rank_close(h->ranks[r]);
	harness_pages_close(h);
	free(h->reply);
	free(h->shared);
	free(h->areas);
	free(h);
}

const struct worker_capacity *harness_capacity(const struct harness *h)
{
	return &h->capacity;
}

uint64_t harness_pos(const struct harness *h, uint32_t slot)
{
	return h->slots[slot].pos;
}

/* ---- longer runs ---------------------------------------------------------------------------- */

void harness_run(struct harness *h, struct harness_part *parts, uint32_t n)
{
	struct errbuf err = {0};

	if (harness_try_run(h, parts, n, &err) < 0)
		fail_msg("step failed: %s", err.text);
}

/* Feeds ids[n]; the last part samples when `last` says so, into *last. */
static void feed(struct harness *h, uint32_t slot, const uint32_t *ids, uint64_t n, uint32_t chunk,
	struct harness_out *out, struct harness_part *last)
{
	if (chunk == 0)
		chunk = h->capacity.step_tokens;
	for (uint64_t i = 0; i < n; i += chunk) {
		struct harness_part p = {
			.slot = slot,
			.tokens = ids + i,
			.n = (uint32_t)MIN((uint64_t)chunk, n - i),
			.out = out,
		};

		p.sample = last && i + p.n == n;
		harness_run(h, &p, 1);
		if (p.sample)
			*last = p;
	}
}

void harness_feed(struct harness *h, uint32_t slot, const uint32_t *ids, uint64_t n, uint32_t chunk,
	struct harness_out *out)
{
	feed(h, slot, ids, n, chunk, out, NULL);
}

void harness_generate(struct harness *h, uint32_t slot, const uint32_t *ids, uint64_t n,
	uint32_t chunk, uint32_t n_new, uint32_t *tokens, float *logprobs, struct harness_out *out)
{
	struct harness_part p = {0};

	feed(h, slot, ids, n, chunk, out, &p);
	for (uint32_t i = 0; i < n_new; i++) {
		tokens[i] = p.sampled.token;
		if (logprobs)
			logprobs[i] = p.sampled.logprob;
		if (i + 1 == n_new)
			break;
		p = (struct harness_part){
			.slot = slot, .n = 1, .prev = true, .sample = true, .out = out};
		harness_run(h, &p, 1);
	}
}
