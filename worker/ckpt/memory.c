#include "worker/ckpt/memory.h"

/* 448 e4m3 nope dims, 64 bf16 rope dims, one E8M0 scale for each 64 nope dims, padded to 8. */
enum { KV_FP8_BYTES = 448 + 64 * 2 + 7 + 1 };

uint64_t memory_kv_row_bytes(enum conf_kv format)
{
	switch (format) {
	case CONF_KV_BF16:
		return MODEL_HEAD_DIM * 2;
	case CONF_KV_FP8:
		return KV_FP8_BYTES;
	case CONF_KV_F32:
		return MODEL_HEAD_DIM * 4;
	}
	return 0;
}

uint64_t memory_index_key_bytes(enum conf_index_key format)
{
	switch (format) {
	case CONF_INDEX_KEY_BF16:
		return MODEL_INDEX_DIM * 2;
	case CONF_INDEX_KEY_FP8:
		return MODEL_INDEX_DIM + 4;
	case CONF_INDEX_KEY_FP4:
		return MODEL_INDEX_DIM / 2 + MODEL_INDEX_DIM / 32;
	case CONF_INDEX_KEY_F32:
		return MODEL_INDEX_DIM * 4;
	}
	return 0;
}

struct memory_plan memory_plan(
	const struct model_config *cfg, enum conf_kv kv, enum conf_index_key index_key)
{
	uint64_t csa = model_layer_count(cfg, MODEL_CSA), hca = model_layer_count(cfg, MODEL_HCA);
	uint64_t row = memory_kv_row_bytes(kv), key = memory_index_key_bytes(index_key);
	struct memory_plan p = {0};

	p.page[MEMORY_RAW].tokens = MEMORY_PAGE_ENTRIES;
	p.page[MEMORY_RAW].bytes = MEMORY_PAGE_ENTRIES * row * cfg->layers;
	if (csa) {
		p.page[MEMORY_CSA].tokens = MEMORY_PAGE_ENTRIES * MODEL_CSA_RATIO;
		p.page[MEMORY_CSA].bytes = MEMORY_PAGE_ENTRIES * (row + key) * csa;
	}
	if (hca) {
		p.page[MEMORY_HCA].tokens = MEMORY_PAGE_ENTRIES * MODEL_HCA_RATIO;
		p.page[MEMORY_HCA].bytes = MEMORY_PAGE_ENTRIES * row * hca;
	}
	return p;
}

uint64_t memory_sequence_bytes(
	const struct memory_plan *plan, const struct model_config *cfg, uint64_t tokens)
{
	/* The window may straddle one page more than it fills. */
	uint64_t raw = MIN(tokens, (uint64_t)cfg->window + MEMORY_PAGE_ENTRIES - 1);
	uint64_t bytes = DIV_UP(raw, plan->page[MEMORY_RAW].tokens) * plan->page[MEMORY_RAW].bytes;

	for (int i = MEMORY_CSA; i <= MEMORY_HCA; i++)
		if (plan->page[i].tokens)
			bytes += DIV_UP(tokens, plan->page[i].tokens) * plan->page[i].bytes;
	return bytes;
}
