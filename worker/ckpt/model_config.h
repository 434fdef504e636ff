/*
 * model_config.h: config.json of a checkpoint as a struct, every value checked once, here. What is
 * behind it may rely on the limits below, so that no later product of shapes overflows 64 bits.
 *
 * It is not the configuration of heddle (that is heddle.ini, struct conf). Pure: bytes in, struct
 * out; no files, no logging. Any thread.
 */
#ifndef WORKER_CKPT_MODEL_CONFIG_H
#define WORKER_CKPT_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/util.h"

/* Constants of the family: a checkpoint that has others is refused by name. */
enum {
	MODEL_HEAD_DIM = 512,  /* of attention; K and V are one vector, one KV head */
	MODEL_ROPE_DIM = 64,   /* the last dims of a head, and of an index head, rotate */
	MODEL_INDEX_DIM = 128, /* of an index head */
	MODEL_HC_MULT = 4,     /* residual streams */
	MODEL_CSA_RATIO = 4,
	MODEL_HCA_RATIO = 128,
};

/* Limits that later arithmetic relies on; model_config.def holds those of single keys. */
enum {
	MODEL_LAYERS_MAX = 256,
	MODEL_EOS_MAX = 16,
	MODEL_WORLD_MAX = 64,
	MODEL_TOPK_EXPERTS_MAX = 64,
};

/* A layer's kind of attention, from compress_ratios. */
enum model_layer {
	MODEL_SWA, /* ratio 0: window only */
	MODEL_CSA, /* ratio 4: compressed entries, chosen by the indexer */
	MODEL_HCA, /* ratio 128: compressed entries, all of them */
	MODEL_LAYER__COUNT
};

/* How experts are stored; which type a tensor really has is in its header (ckpt.h). */
enum model_expert_type { MODEL_EXPERT_FLOAT, MODEL_EXPERT_FP8, MODEL_EXPERT_FP4 };

struct model_config {
	/* Integers and reals that config.json must have, one field per row of model_config.def. */
#define MODEL_INT(key, field, min, max, doc)  uint32_t field;
#define MODEL_REAL(key, field, min, max, doc) double field;
#include "worker/ckpt/model_config.def"

	uint8_t layer[MODEL_LAYERS_MAX]; /* enum model_layer, `layers` of them */

	/* rope_scaling, used in CSA and HCA layers only; yarn false: plain RoPE there too. */
	bool yarn;
	double yarn_factor, yarn_beta_fast, yarn_beta_slow;
	uint32_t yarn_original; /* original_max_position_embeddings */

	/* quantization_config: fp8 false means no tensor may be FP8 or FP4. */
	bool fp8;
	bool fp8_ue8m0;                          /* scale_fmt is ue8m0: power-of-two scales */
	uint32_t fp8_block_rows, fp8_block_cols; /* weight_block_size */
	enum model_expert_type expert_type;      /* expert_dtype */

	uint32_t eos[MODEL_EOS_MAX]; /* eos_token_id, one or several */
	uint32_t eos_n;
	int64_t bos; /* bos_token_id, -1: none */
};

/* Elements an FP4 scale covers, along the input dimension. */
enum { MODEL_FP4_BLOCK = 32 };

/* Compressed layers pool this many tokens into an entry; 0 for SWA. */
static inline uint32_t model_layer_ratio(const struct model_config *cfg, uint32_t layer)
{
	static const uint8_t ratio[MODEL_LAYER__COUNT] = {0, MODEL_CSA_RATIO, MODEL_HCA_RATIO};

	return ratio[cfg->layer[layer]];
}

/* Layers of one kind. */
uint32_t model_layer_count(const struct model_config *cfg, enum model_layer kind);

/* "SWA", "CSA", "HCA". */
const char *model_layer_name(enum model_layer kind);

/*
 * Parses config.json. `name` stands for the file in messages. A key that is missing, of the wrong
 * type, out of range, or has a value that this code cannot honour is refused by name with its value
 * and what would be right: -EINVAL, exit code 65 (not JSON) or 78 (an unsupported model).
 * Keys that do not change the computation are ignored.
 */
int model_config_parse(const char *name, const void *bytes, size_t len,
	struct model_config *ret_cfg, struct errbuf *err) MUST_CHECK;

/*
 * May `world` workers serve this model? Names every violated rule in one sentence and the numbers
 * of workers that would do: -EINVAL, exit code 78.
 */
int model_config_check_world(
	const struct model_config *cfg, uint32_t world, struct errbuf *err) MUST_CHECK;

/* Experts go to workers by id, not by intermediate dimension: inter/world is no multiple of 32. */
bool model_experts_by_id(const struct model_config *cfg, uint32_t world);

#endif
