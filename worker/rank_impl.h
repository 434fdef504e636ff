/*
 * rank_impl.h: the inside of a rank, shared by the files of the forward pass and by nobody else.
 *
 *   rank.c      life cycle                      step.c    one step: check, run, answer
 *   forward.c   the walk over the layers        head.c    logits, reports, sampling
 *   layer_attn.c layer_index.c layer_moe.c layer_hc.c layer_act.c
 *   chain.c     fused kernels or what they cover   work.c   buffers of a step
 *
 * Data of a step lies in struct work, laid out once for step_tokens rows; nothing is allocated
 * inside a step.
 */
#ifndef WORKER_RANK_IMPL_H
#define WORKER_RANK_IMPL_H

#include "kernels/cpu/ctx.h"
#include "kernels/kern.h"
#include "worker/comm.h"
#include "worker/rank.h"
#include "worker/sample.h"
#include "worker/shape.h"
#include "worker/slots.h"
#include "worker/weights.h"

/*
 * Buffers of a step. S = step_tokens rows of the whole step, R = tile_rows rows that attention or
 * experts take at a time, L = SHAPE_HEAD_ROWS rows of logits. Sizes depend on the model's shape and
 * on S, never on context.
 */
struct work {
	unsigned char *arena;
	size_t bytes;

	/* the batch */
	uint32_t *tokens, *row_seq, *row_pos; /* [S] */
	struct kern_seq *seqs;                /* [sequences] */
	uint32_t *seq_rows;                   /* [sequences] index of each in the message */
	struct kern_rows raw, csa, hca;       /* arrays of [S] each */
	float *cs_swa, *cs_comp;              /* [S][64] at the rows' positions */
	float *cs_csa, *cs_hca;               /* [S][64] at the finished entries' positions */

	/* rows of the whole step */
	float *x;                 /* [S][4][d] residual streams */
	float *y;                 /* [S][d] a sub-layer's input */
	float *o;                 /* [S][d] its output */
	float *pre, *post;        /* [S][4] */
	float *comb;              /* [S][4][4] */
	float *qr;                /* [S][q_lora] */
	float *kv;                /* [S][512] raw row before its norm; also pooled entries */
	float *comp_v, *comp_g;   /* [S][2 x 512] */
	float *index_v, *index_g; /* [S][2 x 128] */
	float *index_pooled;      /* [S][128] */
	float *index_w;           /* [S][index_heads] */

	/* a tile of attention */
	uint32_t *tile_row_seq;     /* [R] */
	struct kern_seq *tile_seqs; /* [R] */
	float *q;                   /* [R][heads][512]; the attention's output too */
	float *index_q;             /* [R][index_heads][128] */
	float *oa;                  /* [R][oa_cols] */
	int32_t *chosen;            /* [R][topk] */
	float *chosen_score;        /* [R][topk] */
	uint32_t *chosen_n;         /* [R] */
	float *chosen_mass;         /* [R][topk]; only for the on_index hook */
	int32_t *packed;            /* the first three one after another, of the tile; world > 1 */
	int32_t *all_packed;        /* [world] of that */
	int32_t *all_chosen;        /* [world][R][topk] */
	float *all_score;           /* [world][R][topk] */
	uint32_t *all_n;            /* [world][R] */
	/* act = fp8 over slices that cut a scale group */
	float *amax_h, *amax_shared;  /* [R x k][groups of a slice], [R][...] */
	float *amax_whole, *amax_all; /* [R x k][groups of the whole], [world][...] */

	/* a tile of experts */
	float *gate;       /* [R][experts] */
	uint32_t *ids;     /* [R][k] */
	float *id_weights; /* [R][k] */
	float *h;          /* [R][k][inter] */
	float *shared_h;   /* [R][shared_inter] */

	/* a tile of the head */
	float *hidden, *hidden_rows;         /* [L][d] */
	float *part;                         /* [L][vocab share] */
	float *parts;                        /* [world][L][vocab share], world > 1 */
	float *logits;                       /* [L][vocab] */
	struct kern_logprob *reports;        /* [L] */
	uint32_t *report_token, *report_top; /* [L] */
	uint32_t *alt_token;                 /* [L][MSG_LOGPROBS_MAX] */
	float *alt_logprob;                  /* [L][MSG_LOGPROBS_MAX] */
	uint32_t *sampled;                   /* [sequences] */
};

struct rank {
	struct rank_hooks hooks;
	struct shape sh;
	struct pages_plan pages;
	struct weights w;
	struct pools pools;
	struct slots slots;
	struct work work;
	struct sampler sampler;
	struct comm *comm, alone; /* alone: the communicator of world 1 */
	struct kern_ops ops;
	struct kern_cpu_ctx ctx;
	void *stream;         /* what ops get */
	uint64_t fingerprint; /* of everything a state blob depends on */
	struct worker_capacity capacity;
	struct kern_batch batch; /* of the running step */
	bool broken;             /* a collective failed: only closing is left */
};

/* ---- work.c */
size_t work_bytes(const struct shape *sh);
int work_open(const struct shape *sh, struct work *ret_work) MUST_CHECK;
void work_close(struct work *w);

/*
 * Runs an op of the backend after a sign of life. What takes longer than a moment must not be given
 * a whole step's rows: its caller takes SHAPE_PASS_ROWS or a tile of them at a time. A row's result
 * does not depend on the cut (kernels/README.md).
 */
#define rank_run(r, op, args) (rank_beat(r), (r)->ops.op((args), (r)->stream))

/* ---- forward.c: runs r->batch through all layers; r->work.x holds the streams after the last. */
int forward_run(struct rank *r) MUST_CHECK;
/* Sums work.o of the whole step over the ranks. */
int forward_sum(struct rank *r) MUST_CHECK;

/* ---- layers: each reads and writes work.x for the whole batch */
int layer_attention(struct rank *r, uint32_t layer) MUST_CHECK;
int layer_moe(struct rank *r, uint32_t layer) MUST_CHECK;

/* ---- layer_hc.c: a sub-layer's input from the streams, and its output back into them */
int hc_enter(struct rank *r, const struct hc_weights *w, const float *norm) MUST_CHECK;
int hc_leave(struct rank *r) MUST_CHECK;

/*
 * ---- layer_index.c: fills work.chosen, chosen_n for a tile whose first row is row0 of the step. A
 * collective when the tile is shared. index_show calls the hook; seq0 is the tile's first sequence.
 */
int index_choose(
	struct rank *r, uint32_t layer, const struct kern_batch *batch, uint32_t row0) MUST_CHECK;
void index_show(struct rank *r, uint32_t layer, const struct kern_batch *batch, uint32_t seq0);

/*
 * ---- layer_act.c: for act = fp8 products over columns col0 .. col0+k of a row of all_k that is
 * split over the ranks: the largest magnitudes of whole 128-groups, in amax. *ret_amax is amax, or
 * NULL where no slice of any rank cuts a group. A collective.
 */
int act_amax_whole(struct rank *r, const float *x, uint32_t rows, uint32_t k, uint32_t col0,
	uint32_t all_k, float *amax, const float **ret_amax) MUST_CHECK;

/* ---- chain.c: the fused op where the backend has it, else the ops it covers, in place */
int chain_hc_pre_norm(struct rank *r, const struct kern_hc_pre_norm_args *a) MUST_CHECK;
int chain_q_norm_rope(struct rank *r, const struct kern_q_norm_rope_args *a) MUST_CHECK;
int chain_kv_store(struct rank *r, struct kern_kv_store_args *a, float *x) MUST_CHECK;
int chain_index_store(struct rank *r, struct kern_index_store_args *a, float *x) MUST_CHECK;
int chain_index_query(struct rank *r, const struct kern_index_query_args *a) MUST_CHECK;

/* ---- head.c */

/* What is wanted of one row's logits. */
enum head_want {
	HEAD_REPORT = 1, /* the log-probability of `token`, at `pos` */
	HEAD_SAMPLE = 2, /* a token for `pos` */
	HEAD_HOOK = 4,   /* show the logits after position pos-1 */
	HEAD_TAIL = 8,   /* the row is the slot's tail, not one of the step */
};

struct head_job {
	uint32_t seq;   /* index in the message */
	uint32_t row;   /* of the batch, unless HEAD_TAIL */
	uint32_t wants; /* enum head_want */
	uint32_t token; /* HEAD_REPORT: token at pos */
	uint64_t pos;   /* position that the logits predict */
};

/* Walks the jobs of a step in the order of the result's tokens: calls f for each. */
int head_each_job(const struct rank *r, const struct msg_step_view *step,
	int (*f)(void *user, const struct head_job *job), void *user) MUST_CHECK;
/* Computes logits, reports, samples. reply: a laid-out result on rank 0, NULL elsewhere. */
int head_run(struct rank *r, const struct msg_step_view *step,
	const struct msg_result_view *reply) MUST_CHECK;
/* Normed hidden rows [n][d] of batch rows. */
int head_hidden(struct rank *r, const uint32_t *rows, uint32_t n, float *ret_hidden) MUST_CHECK;

static inline void rank_stage(struct rank *r, enum worker_stage stage, uint32_t layer)
{
	if (r->hooks.on_stage)
		r->hooks.on_stage(r->hooks.user, stage, layer);
}

static inline void rank_beat(struct rank *r)
{
	if (r->hooks.on_beat)
		r->hooks.on_beat(r->hooks.user);
}

#endif
