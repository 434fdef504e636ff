#include "worker/shape.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "worker/ckpt/plan.h"

static void fill_share(struct shape *sh)
{
	const struct model_config *c = &sh->cfg;
	uint64_t shared0 = plan_cut(c->inter, sh->rank, sh->world);

	sh->heads = c->heads / sh->world;
	sh->groups = c->o_groups / sh->world;
	sh->oa_cols = sh->groups * c->o_lora;
	sh->oa_col0 = sh->rank * sh->oa_cols;
	sh->vocab = c->vocab / sh->world;
	sh->vocab_row0 = sh->rank * sh->vocab;
	sh->experts_by_id = model_experts_by_id(c, sh->world);
	sh->inter = sh->experts_by_id ? c->inter : c->inter / sh->world;
	sh->inter_col0 = sh->experts_by_id ? 0 : sh->rank * sh->inter;
	sh->shared_col0 = (uint32_t)shared0;
	sh->shared_inter = (uint32_t)(plan_cut(c->inter, sh->rank + 1, sh->world) - shared0);
}

static void fill_formats(struct shape *sh, const struct conf *conf)
{
	static const enum kern_dtype key[] = {
		[CONF_INDEX_KEY_BF16] = KERN_BF16,
		[CONF_INDEX_KEY_FP8] = KERN_FP8,
		[CONF_INDEX_KEY_FP4] = KERN_FP4,
		[CONF_INDEX_KEY_F32] = KERN_F32,
	};
	static const enum kern_dtype kv[] = {
		[CONF_KV_BF16] = KERN_BF16,
		[CONF_KV_FP8] = KERN_FP8,
		[CONF_KV_F32] = KERN_F32,
	};
	static const enum kern_act act[] = {
		[CONF_ACT_AUTO] = KERN_ACT_F32,
		[CONF_ACT_F32] = KERN_ACT_F32,
		[CONF_ACT_BF16] = KERN_ACT_BF16,
		[CONF_ACT_FP8] = KERN_ACT_FP8,
	};

	sh->key = key[conf->attention_index_key];
	sh->kv = kv[conf->attention_kv];
	sh->act = act[conf->attention_act];
	sh->qat = conf->attention_numerics == CONF_NUMERICS_QAT;
	sh->fused_store = conf->attention_index_store == CONF_STORE_FUSED;
	sh->index_topk = conf->attention_index_topk == CONF_AUTO
				 ? sh->cfg.index_topk
				 : (uint32_t)conf->attention_index_topk;
}

static void fill_layers(struct shape *sh)
{
	const struct model_config *c = &sh->cfg;
	struct kern_rope_desc swa = {.base = c->rope_theta};
	struct kern_rope_desc comp = {.base = c->compress_rope_theta};

	for (uint32_t i = 0; i < c->layers; i++)
		sh->nth[i] = sh->kind_n[c->layer[i]]++;
	if (c->yarn) {
		comp.factor = c->yarn_factor;
		comp.original = c->yarn_original;
		comp.beta_fast = c->yarn_beta_fast;
		comp.beta_slow = c->yarn_beta_slow;
	}
	kern_rope_theta(&swa, sh->theta_swa);
	kern_rope_theta(&comp, sh->theta_comp);
}

static int fill_sizes(struct shape *sh, const struct conf *conf, struct errbuf *err)
{
	const struct model_config *c = &sh->cfg;

	sh->sequences = (uint32_t)conf->schedule_max_sequences;
	sh->step_tokens = conf->schedule_step_tokens == CONF_AUTO
				  ? SHAPE_STEP_TOKENS
				  : (uint32_t)conf->schedule_step_tokens;
	sh->tile_rows = MIN(sh->step_tokens, (uint32_t)SHAPE_TILE_ROWS);
	sh->pass_rows = SHAPE_PASS_ROWS;
	sh->tile_work = SHAPE_TILE_WORK;
	sh->shard_entries = SHAPE_SHARD_ENTRIES;
	sh->context_auto = conf->schedule_max_context == CONF_AUTO;
	sh->context = sh->context_auto ? c->max_position : (uint64_t)conf->schedule_max_context;
	if (sh->context > c->max_position)
		return err_set(err, -EINVAL, EXIT_CONFIG_ERR,
			"schedule.max_context: %" PRIu64
			" tokens are more than the %u positions the model knows "
			"(max_position_embeddings)",
			sh->context, c->max_position);
	return 0;
}

static int check_honoured(const struct shape *sh, const struct conf *conf, struct errbuf *err)
{
	const struct model_config *c = &sh->cfg;

	if (c->window != KERN_WINDOW)
		return err_set(err, -EINVAL, EXIT_CONFIG_ERR,
			"config.json: sliding_window is %u, this program is built for %d",
			c->window, KERN_WINDOW);
	if (c->fp8 && (c->fp8_block_rows != 128 || c->fp8_block_cols != 128))
		return err_set(err, -EINVAL, EXIT_CONFIG_ERR,
			"config.json: weight_block_size is [%u, %u], this program is built for "
			"[128, 128]",
			c->fp8_block_rows, c->fp8_block_cols);
	if (conf->fabric_backend == CONF_BACKEND_CUDA)
		return err_set(err, -EINVAL, EXIT_CONFIG_ERR,
			"fabric.backend: this build has no cuda; use cpu or auto");
	if (conf->fabric_collective == CONF_COLLECTIVE_NCCL)
		return err_set(err, -EINVAL, EXIT_CONFIG_ERR,
			"fabric.collective: this build has no nccl; use shm or auto");
	return 0;
}

int shape_make(const struct model_config *cfg, const struct conf *conf, uint32_t rank,
	uint32_t world, struct shape *ret_shape, struct errbuf *err)
{
	struct shape sh = {.cfg = *cfg, .rank = rank, .world = world};
	int r;

	r = model_config_check_world(cfg, world, err);
	if (r == 0)
		r = check_honoured(&sh, conf, err);
	if (r == 0)
		r = fill_sizes(&sh, conf, err);
	if (r < 0)
		return r;
	fill_share(&sh);
	fill_formats(&sh, conf);
	fill_layers(&sh);
	*ret_shape = sh;
	return 0;
}

void shape_pools(const struct shape *sh, uint32_t ret_layers[POOL__COUNT],
	uint64_t ret_page_bytes[POOL__COUNT])
{
	uint64_t kv = kern_kv_page_bytes(sh->kv);

	ret_layers[POOL_RAW] = sh->cfg.layers;
	ret_layers[POOL_CSA] = ret_layers[POOL_KEYS] = sh->kind_n[MODEL_CSA];
	ret_layers[POOL_HCA] = sh->kind_n[MODEL_HCA];
	ret_page_bytes[POOL_RAW] = ret_page_bytes[POOL_CSA] = ret_page_bytes[POOL_HCA] = kv;
	ret_page_bytes[POOL_KEYS] = kern_index_page_bytes(sh->key);
}

/* MemAvailable in bytes; half the memory where the kernel does not say. */
static uint64_t memory_available(void)
{
	uint64_t kib = 0;
	char line[128];
	FILE *f = fopen("/proc/meminfo", "re");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
			break;
	if (f)
		fclose(f);
	if (kib)
		return kib << 10;
	return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 2;
}

int shape_pages(const struct shape *sh, const struct conf *conf, struct pages_plan *ret_plan,
	struct errbuf *err)
{
	struct pages_need need = {
		.window = sh->cfg.window,
		.sequences = sh->sequences,
		.step_tokens = sh->step_tokens,
		.context = sh->context,
		.context_auto = sh->context_auto,
		.memory_auto = conf->cache_memory == CONF_AUTO,
		.memory = (uint64_t)conf->cache_memory,
	};
	uint64_t page_bytes[POOL__COUNT];
	uint32_t layers[POOL__COUNT];

	if (need.memory_auto)
		need.memory = memory_available() / 4 / sh->world;
	shape_pools(sh, layers, page_bytes);
	need.bytes_per_page[PAGE_RAW] = layers[POOL_RAW] * page_bytes[POOL_RAW];
	need.bytes_per_page[PAGE_CSA] =
		layers[POOL_CSA] * (page_bytes[POOL_CSA] + page_bytes[POOL_KEYS]);
	need.bytes_per_page[PAGE_HCA] = layers[POOL_HCA] * page_bytes[POOL_HCA];
	return pages_make_plan(&need, ret_plan, err);
}

static const char *format_name(enum kern_dtype t)
{
	static const char *const name[KERN_DTYPE__COUNT] = {
		[KERN_F32] = "f32",
		[KERN_F16] = "f16",
		[KERN_BF16] = "bf16",
		[KERN_FP8] = "fp8",
		[KERN_FP4] = "fp4",
	};

	return name[t];
}

void shape_describe(const struct shape *sh, const char *variant, char *dims, size_t dims_bytes,
	char *numerics, size_t numerics_bytes)
{
	static const char *const act[] = {"f32", "bf16", "fp8"};
	const struct model_config *c = &sh->cfg;

	snprintf(dims, dims_bytes,
		"%u layers (%u SWA, %u CSA, %u HCA), hidden %u, %u heads in %u groups, "
		"%u experts of %u, vocabulary %u",
		c->layers, sh->kind_n[MODEL_SWA], sh->kind_n[MODEL_CSA], sh->kind_n[MODEL_HCA],
		c->hidden, c->heads, c->o_groups, c->experts, c->inter, c->vocab);
	snprintf(numerics, numerics_bytes,
		"index_key %s top %u, kv %s, act %s, %s, %s store, %s kernels",
		format_name(sh->key), sh->index_topk, format_name(sh->kv), act[sh->act],
		sh->qat ? "qat" : "plain", sh->fused_store ? "fused" : "unfused", variant);
}
