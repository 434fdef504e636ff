/*
 * weights.h: the weights of one rank where the forward pass finds them: by layer and role, matrices
 * packed for the products (kernels/weight.h), vectors as fp32. weights_load() walks the shard plan
 * (worker/ckpt/plan.h) and gives every item its place; one arena holds them all.
 *
 * TO ADD A TENSOR: a row in worker/ckpt/tensor.def, a field here, a line in weights.c's table of
 * places (a switch without default: the compiler asks for it).
 */
#ifndef WORKER_WEIGHTS_H
#define WORKER_WEIGHTS_H

#include "kernels/weight.h"
#include "worker/ckpt/load.h"
#include "worker/ckpt/plan.h"

/* A hyper-connection's own weights. */
struct hc_weights {
	struct kern_weight fn; /* [24][4d], of the head [4][4d] */
	float *base, *scale;
};

/* A compressor: of attention (dim 512) or of the indexer (dim 128). */
struct comp_weights {
	struct kern_weight wkv, wgate; /* [c dim][d] */
	float *ape, *norm;             /* [ratio][c dim], [dim] */
};

struct layer_weights {
	struct hc_weights hc_attn, hc_ffn;
	float *attn_norm, *ffn_norm; /* [d] */

	struct kern_weight wq_a, wq_b, wkv, wo_a, wo_b;
	float *q_norm, *kv_norm, *sink; /* [q_lora], [512], [heads of this rank] */
	struct comp_weights comp;       /* CSA, HCA */
	struct comp_weights index;      /* CSA */
	struct kern_weight index_wq_b, index_weights;

	struct kern_weight gate;
	float *gate_bias; /* [experts], scored layers */
	int32_t *tid2eid; /* [vocab][k], hash layers; else NULL */
	/* [experts]; NULL: on another rank */
	const struct kern_weight **w1, **w2, **w3;
	struct kern_weight shared_w1, shared_w2, shared_w3; /* n = 0: none on this rank */
};

struct weights {
	const void *embed; /* [vocab / world][d] as in the checkpoint */
	enum kern_dtype embed_dtype;
	struct kern_weight head; /* [vocab / world][d] */
	float *norm;
	struct hc_weights hc_head;
	struct layer_weights *layers;

	uint64_t fingerprint; /* of all fp32 vectors: tells checkpoints apart */
	uint64_t bytes;       /* of the arena */
	/* own memory */
	unsigned char *arena;
	struct kern_weight *experts;
	const struct kern_weight **expert_ptrs;
};

/*
 * Loads a rank's shard on this many threads, which rearrange what they read. progress may be NULL
 * (see load.h); a negative value ends the load with it. 0, or -errno with err (65 bad data, 71 no
 * memory). On failure nothing is left.
 */
int weights_load(const struct ckpt *ck, const struct plan *plan, uint32_t threads,
	uint64_t dummy_seed, int (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes),
	void *user, struct weights *ret_weights, struct errbuf *err) MUST_CHECK;
void weights_free(struct weights *w);

#endif
