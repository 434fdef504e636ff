#include "worker/scratch.h"

#include "worker/rank_impl.h"

struct kern_cpu_limits scratch_limits(const struct shape *sh)
{
	const struct model_config *c = &sh->cfg;

	return (struct kern_cpu_limits){
		.max_tokens = sh->step_tokens,
		.heads = sh->heads,
		.index_heads = sh->kind_n[MODEL_CSA] ? c->index_heads : 0,
		.topk = sh->kind_n[MODEL_CSA] ? sh->index_topk : 0,
		.world = sh->world,
		.max_k = MAX(MAX(KERN_STREAMS * c->hidden, c->heads / c->o_groups * KERN_HEAD),
			MAX(MAX(c->inter, c->q_lora), c->o_groups * c->o_lora)),
		.experts = c->experts,
		.experts_per_token = c->experts_per_token,
	};
}

uint64_t scratch_bytes(const struct shape *sh, uint32_t threads)
{
	const struct kern_cpu_limits limits = scratch_limits(sh);

	return work_bytes(sh) + kern_cpu_scratch_bytes(&limits, threads);
}
