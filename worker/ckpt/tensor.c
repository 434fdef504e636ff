#include "worker/ckpt/tensor.h"

#include <stdio.h>
#include <string.h>

/* The words of tensor.def. */
#define SCOPE_MODEL      TENSOR_IN_MODEL
#define SCOPE_LAYER      TENSOR_IN_LAYER
#define SCOPE_COMPRESSED TENSOR_IN_COMPRESSED
#define SCOPE_CSA        TENSOR_IN_CSA
#define SCOPE_HASH       TENSOR_IN_HASH
#define SCOPE_SCORED     TENSOR_IN_SCORED
#define SCOPE_EXPERT     TENSOR_IN_EXPERT

static const struct tensor_row rows[TENSOR__COUNT] = {
#define TENSOR(kind, scope_, name_, hf, ndim_, rows_, cols_, split_, types_, init_, rel_)          \
	[TENSOR_##kind] = {#kind, name_, hf, SCOPE_##scope_, ndim_, TENSOR_SPLIT_##split_,         \
		TENSOR_TYPES_##types_, TENSOR_INIT_##init_, TENSOR_RELEASED_##rel_},
#include "worker/ckpt/tensor.def"
#undef TENSOR
};

const struct tensor_row *tensor_row(enum tensor_kind kind)
{
	return &rows[kind];
}

bool tensor_exists(const struct model_config *cfg, enum tensor_kind kind, int layer)
{
	enum tensor_scope scope = rows[kind].scope;

	if (layer < 0 || scope == TENSOR_IN_MODEL)
		return layer < 0 && scope == TENSOR_IN_MODEL;
	switch (scope) {
	case TENSOR_IN_COMPRESSED:
		return cfg->layer[layer] != MODEL_SWA;
	case TENSOR_IN_CSA:
		return cfg->layer[layer] == MODEL_CSA;
	case TENSOR_IN_HASH:
		return (uint32_t)layer < cfg->hash_layers;
	case TENSOR_IN_SCORED:
		return (uint32_t)layer >= cfg->hash_layers;
	default:
		return true;
	}
}

struct tensor_shape tensor_shape(const struct model_config *cfg, enum tensor_kind kind, int layer)
{
	/* The shapes of tensor.def are written in 64 bits by these. */
	enum { HC = MODEL_HC_MULT, HC_MIX = (2 + HC) * HC };
	const uint64_t HEAD = MODEL_HEAD_DIM, INDEX = MODEL_INDEX_DIM;
	const struct model_config *c = cfg;
	uint64_t r = layer < 0 ? 0 : model_layer_ratio(cfg, (uint32_t)layer);
	uint64_t m = r == MODEL_CSA_RATIO ? 2 : 1;

	switch (kind) {
#define TENSOR(kind_, scope_, name_, hf, ndim_, rows_, cols_, ...)                                 \
	case TENSOR_##kind_:                                                                       \
		return (struct tensor_shape){rows_, cols_};
#include "worker/ckpt/tensor.def"
#undef TENSOR
	case TENSOR__COUNT:
		break;
	}
	return (struct tensor_shape){0, 0};
}

const char *ckpt_elem_name(enum ckpt_elem elem)
{
	static const char *const names[CKPT_ELEM__COUNT] = {
		"F32", "BF16", "F16", "FP8", "FP4", "I64", "I32"};

	return names[elem];
}

struct tensor_block tensor_block(const struct model_config *cfg, enum ckpt_elem elem)
{
	if (elem == CKPT_F4_E2M1)
		return (struct tensor_block){1, MODEL_FP4_BLOCK};
	return (struct tensor_block){cfg->fp8_block_rows, cfg->fp8_block_cols};
}

void tensor_name(enum tensor_kind kind, int layer, int expert, char out[TENSOR_NAME_MAX])
{
	if (layer < 0)
		snprintf(out, TENSOR_NAME_MAX, "%s", rows[kind].name);
	else if (rows[kind].scope == TENSOR_IN_EXPERT)
		snprintf(out, TENSOR_NAME_MAX, "layers.%d.ffn.experts.%d.%s", layer, expert,
			rows[kind].name);
	else
		snprintf(out, TENSOR_NAME_MAX, "layers.%d.%s", layer, rows[kind].name);
}

bool tensor_hf_name(enum tensor_kind kind, int layer, int which, char out[TENSOR_NAME_MAX])
{
	const char *name = rows[kind].hf_name;
	int len;

	for (; which > 0; which--) {
		name = strchr(name, '|');
		if (!name)
			return false;
		name++;
	}
	len = (int)strcspn(name, "|");
	if (layer < 0)
		snprintf(out, TENSOR_NAME_MAX, "%.*s", len, name);
	else if (name[0] == '@')
		snprintf(out, TENSOR_NAME_MAX, "layers.%d.mlp.experts.%.*s", layer, len - 1,
			name + 1);
	else
		snprintf(out, TENSOR_NAME_MAX, "layers.%d.%.*s", layer, len, name);
	return true;
}

enum ckpt_elem tensor_released_elem(const struct model_config *cfg, enum tensor_kind kind)
{
	static const enum ckpt_elem experts[] = {
		[MODEL_EXPERT_FLOAT] = CKPT_BF16,
		[MODEL_EXPERT_FP8] = CKPT_F8_E4M3,
		[MODEL_EXPERT_FP4] = CKPT_F4_E2M1,
	};

	switch (rows[kind].released) {
	case TENSOR_RELEASED_F32:
		return CKPT_F32;
	case TENSOR_RELEASED_FP8:
		return cfg->fp8 ? CKPT_F8_E4M3 : CKPT_BF16;
	case TENSOR_RELEASED_EXPERT:
		return experts[cfg->expert_type];
	case TENSOR_RELEASED_I64:
		return CKPT_I64;
	case TENSOR_RELEASED_BF16:
		break;
	}
	return CKPT_BF16;
}
