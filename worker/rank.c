#include "worker/rank.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "worker/rank_impl.h"
#include "worker/scratch.h"
#include "worker/state.h"

static int open_ckpt(const struct conf *conf, struct ckpt **ret_ckpt, struct errbuf *err)
{
	return conf->model_load == CONF_LOAD_DUMMY
		       ? ckpt_open_dummy(conf->model_path, ret_ckpt, err)
		       : ckpt_open(conf->model_path, ret_ckpt, err);
}

int rank_check(const struct conf *conf, uint32_t world, struct errbuf *err)
{
	struct pages_plan pages;
	struct ckpt *ck;
	struct shape sh;
	int ret;

	ret = open_ckpt(conf, &ck, err);
	if (ret < 0)
		return ret;
	ret = shape_make(&ck->cfg, conf, 0, world, &sh, err);
	if (ret == 0)
		ret = shape_pages(&sh, conf, &pages, err);
	ckpt_close(ck);
	return ret;
}

static int open_kernels(struct rank *r, const struct rank_opts *opts, struct errbuf *err)
{
	const struct kern_cpu_limits limits = scratch_limits(&r->sh);
	int ret;

	ret = kern_ops_get(KERN_CPU, NULL, &r->ops, err);
	if (ret < 0)
		return ret;
	if (!r->ops.index_select)
		return err_set(err, -ENOTSUP, EXIT_SOFTWARE_ERR,
			"kernels: the %s backend has no index_select", r->ops.variant);
	ret = kern_cpu_ctx_init(&r->ctx, &limits, opts->threads, opts->spin_ns);
	if (ret < 0)
		return err_set(err, ret, EXIT_OS_ERR, "cannot start %u compute threads: %s",
			opts->threads, strerror(-ret));
	r->stream = &r->ctx;
	return 0;
}

static int on_load(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
	const struct rank_hooks *h = user;

	if (h->on_load)
		h->on_load(h->user, done_bytes, total_bytes);
	return 0;
}

static int load(struct rank *r, const struct ckpt *ck, struct errbuf *err)
{
	/* Any number: dummy weights are for measuring, and the same on every run. */
	const uint64_t dummy_seed = 1;
	struct plan plan;
	int ret;

	ret = plan_build(ck, r->sh.rank, r->sh.world, &plan, err);
	if (ret < 0)
		return ret;
	ret = weights_load(ck, &plan, r->ctx.n, dummy_seed, on_load, &r->hooks, &r->w, err);
	plan_fini(&plan);
	return ret;
}

static int open_memory(struct rank *r, struct errbuf *err)
{
	uint64_t page_bytes[POOL__COUNT];
	uint32_t layers[POOL__COUNT];
	int ret;

	shape_pools(&r->sh, layers, page_bytes);
	ret = pools_open(&r->pages, layers, page_bytes, &r->pools, err);
	if (ret == 0)
		ret = slots_open(&r->sh, r->pages.context, &r->slots, err);
	if (ret < 0)
		return ret;
	ret = work_open(&r->sh, &r->work);
	if (ret == 0)
		ret = sampler_open(r->sh.cfg.vocab, &r->sampler);
	if (ret < 0)
		return err_set(err, ret, EXIT_OS_ERR,
			"no memory for the buffers of a step: lower schedule.step_tokens");
	return 0;
}

static void fill_capacity(struct rank *r)
{
	struct worker_capacity *c = &r->capacity;

	*c = (struct worker_capacity){
		.max_context = r->pages.context,
		.bytes_per_seq = r->slots.slot_bytes,
		.weights_bytes = r->w.bytes,
		.pool_bytes = r->pages.bytes,
		.scratch_bytes = r->work.bytes + r->ctx.scratch_bytes,
		.max_sequences = r->sh.sequences,
		.vocab = r->sh.cfg.vocab,
		.step_tokens = r->sh.step_tokens,
		.threads = r->ctx.n,
	};
	memcpy(c->classes, r->pages.class, sizeof(c->classes));
	shape_describe(
		&r->sh, r->ops.variant, c->dims, sizeof(c->dims), c->numerics, sizeof(c->numerics));
}

static int open_all(struct rank *r, const struct rank_opts *opts, struct errbuf *err)
{
	struct ckpt *ck;
	int ret;

	ret = open_ckpt(opts->conf, &ck, err);
	if (ret < 0)
		return ret;
	ret = shape_make(&ck->cfg, opts->conf, opts->rank, opts->world, &r->sh, err);
	if (ret == 0)
		ret = shape_pages(&r->sh, opts->conf, &r->pages, err);
	if (ret == 0)
		ret = open_kernels(r, opts, err);
	if (ret == 0)
		ret = load(r, ck, err);
	ckpt_close(ck);
	if (ret == 0)
		ret = open_memory(r, err);
	return ret;
}

/*
 * The ranks must agree on pools and context. MemAvailable may have differed between them, so all
 * take the least of what each has found.
 */
static int agree(struct rank *r, struct errbuf *err)
{
	uint64_t mine[PAGE__COUNT + 1], all[(PAGE__COUNT + 1) * COMM_WORLD_MAX];
	int ret;

	for (int c = 0; c < PAGE__COUNT; c++)
		mine[c] = r->pages.class[c].count;
	mine[PAGE__COUNT] = r->pages.context;
	ret = comm_all_gather(r->comm, mine, sizeof(mine), all);
	if (ret < 0)
		return err_set(err, ret, EXIT_SOFTWARE_ERR, "the ranks did not meet after loading");
	for (uint32_t w = 0; w < r->sh.world; w++) {
		const uint64_t *theirs = all + w * (PAGE__COUNT + 1);

		for (int c = 0; c < PAGE__COUNT; c++)
			r->pages.class[c].count = MIN(r->pages.class[c].count, (uint32_t)theirs[c]);
		r->pages.context = MIN(r->pages.context, theirs[PAGE__COUNT]);
	}
	r->pages.bytes = 0;
	for (int c = 0; c < PAGE__COUNT; c++)
		r->pages.bytes += r->pages.class[c].count * r->pages.class[c].bytes_per_page;
	return 0;
}

int rank_open(const struct rank_opts *opts, struct rank **ret_rank, struct errbuf *err)
{
	struct rank *r = calloc(1, sizeof(*r));
	int ret;

	if (!r)
		return err_set(err, -ENOMEM, EXIT_OS_ERR, "no memory");
	r->hooks = opts->hooks;
	r->alone = (struct comm){.world = 1};
	r->comm = opts->world > 1 ? opts->comm : &r->alone;
	rank_stage(r, STAGE_LOAD, 0);
	ret = open_all(r, opts, err);
	if (ret == 0)
		ret = agree(r, err);
	if (ret < 0) {
		rank_close(r);
		return ret;
	}
	if (opts->shard_entries)
		r->sh.shard_entries = opts->shard_entries;
	r->fingerprint = state_fingerprint(r);
	fill_capacity(r);
	rank_stage(r, STAGE_IDLE, 0);
	*ret_rank = r;
	return 0;
}

struct rank *rank_close(struct rank *r)
{
	if (!r)
		return NULL;
	sampler_close(&r->sampler);
	work_close(&r->work);
	slots_close(&r->slots);
	pools_close(&r->pools);
	weights_free(&r->w);
	if (r->stream)
		kern_cpu_ctx_free(&r->ctx);
	free(r);
	return NULL;
}

void rank_capacity(const struct rank *r, struct worker_capacity *ret_capacity)
{
	*ret_capacity = r->capacity;
}

void rank_set_hooks(struct rank *r, const struct rank_hooks *hooks)
{
	r->hooks = *hooks;
}
