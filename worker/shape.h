/*
 * shape.h: the numbers of one rank: model_config and heddle's configuration brought together,
 * checked against each other and cut to this rank's share. Pure; what the rest of worker/ reads.
 */
#ifndef WORKER_SHAPE_H
#define WORKER_SHAPE_H

#include "kernels/kern.h"
#include "shm/conf_types.h"
#include "worker/ckpt/model_config.h"
#include "worker/pages.h"

enum {
	SHAPE_STEP_TOKENS = 512,    /* schedule.step_tokens = auto, on CPU */
	SHAPE_TILE_ROWS = 256,      /* rows that attention and experts take at a time */
	SHAPE_PASS_ROWS = 1024,     /* rows that everything else takes at a time */
	SHAPE_HEAD_ROWS = 64,       /* rows whose logits exist at the same time */
	SHAPE_SHARD_ENTRIES = 2048, /* from here on index scores are split over the ranks */
};

/* Of a tile's op over keys: a second or two on one slow core. */
#define SHAPE_TILE_WORK (16ull << 30)

struct shape {
	struct model_config cfg;
	uint32_t rank, world;

	/* this rank's share */
	uint32_t heads, groups; /* of attention */
	uint32_t oa_cols;       /* groups x o_lora, columns of wo_b */
	uint32_t oa_col0;       /* the first of them in the whole */
	uint32_t vocab;         /* rows of the embedding and of the head */
	uint32_t vocab_row0;    /* the first of them in the whole */
	uint32_t inter;         /* of a routed expert's slice */
	uint32_t inter_col0;
	uint32_t shared_inter, shared_col0;
	bool experts_by_id;

	/* formats and numerics */
	enum kern_dtype kv, key;
	enum kern_act act;
	bool qat, fused_store;
	uint32_t index_topk;
	float theta_swa[KERN_ROPE / 2], theta_comp[KERN_ROPE / 2];

	/* sizes */
	uint32_t sequences, step_tokens, tile_rows, pass_rows, shard_entries;
	uint64_t tile_work; /* multiply-adds over keys that one op is given */
	uint64_t context;   /* as configured; pages_plan may lower it */
	bool context_auto;
	uint32_t nth[MODEL_LAYERS_MAX]; /* of a layer among those of its kind */
	uint32_t kind_n[MODEL_LAYER__COUNT];
};

/*
 * Fills a shape. Refuses (-EINVAL, exit code 78) what model_config_check_world() refuses and what
 * configuration and model cannot do together, naming the key.
 */
int shape_make(const struct model_config *cfg, const struct conf *conf, uint32_t rank,
	uint32_t world, struct shape *ret_shape, struct errbuf *err) MUST_CHECK;

/*
 * Page pools for the shape: conf's cache.memory, or for auto a quarter of what the machine has
 * available over the ranks. As pages_make_plan().
 */
int shape_pages(const struct shape *sh, const struct conf *conf, struct pages_plan *ret_plan,
	struct errbuf *err) MUST_CHECK;

/* Layers and bytes of a page in one layer, by kind of pool. */
void shape_pools(const struct shape *sh, uint32_t ret_layers[POOL__COUNT],
	uint64_t ret_page_bytes[POOL__COUNT]);

/* Tokens pooled into an entry of a layer; 0: SWA. */
static inline uint32_t shape_ratio(const struct shape *sh, uint32_t layer)
{
	return model_layer_ratio(&sh->cfg, layer);
}

/* One sentence of the model and one of the numerics, for /status and the log. variant: of the
 * kernels that run (kern_ops.variant). */
void shape_describe(const struct shape *sh, const char *variant, char *dims, size_t dims_bytes,
	char *numerics, size_t numerics_bytes);

#endif
