/*
 * The operations of the model: argument structs, the ragged batch they work on, and the table
 * through which a worker calls them. What an op computes is model.md's; the orders of reduction
 * that make it batch-invariant are in kernels/README.md.
 *
 * Conventions for every struct below unless a field says otherwise:
 *   - arrays are dense and row-major; T = batch->ntok rows, or `rows` where there is no batch;
 *   - `act` is the type of activations: float on the CPU;
 *   - inputs and outputs do not overlap; "in place" names the pairs that may be the same pointer;
 *   - every output element named by the shape is written, nothing beyond it;
 *   - a NaN or infinity in an input row spoils that row's outputs and no other's.
 *
 * int f(const struct kern_<op>_args *, void *stream): 0, or -EINVAL when the arguments contradict
 * each other (page table too short, sizes not built for), before anything is written. No op
 * allocates, logs, synchronises with a device or keeps a pointer. On the CPU `stream` is a struct
 * kern_cpu_ctx * (kernels/cpu/ctx.h) and the work is done on return.
 */
#ifndef KERNELS_KERN_H
#define KERNELS_KERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"
#include "kernels/weight.h"
#include "shm/util.h"

/* The family's constants. */
enum {
	KERN_STREAMS = 4,   /* hc_mult */
	KERN_HC_COEF = 24,  /* 4 pre, 4 post, 16 comb */
	KERN_HEAD = 512,    /* head_dim: one attention row or entry */
	KERN_ROPE = 64,     /* its last dims, rotated */
	KERN_NOPE = 448,    /* its first dims, not rotated */
	KERN_INDEX = 128,   /* index_head_dim */
	KERN_WINDOW = 128,  /* sliding_window */
	KERN_PAGE = 64,     /* positions (raw) or entries of a page */
	KERN_LINEAR_MAX = 8 /* outputs of one linear */
};

typedef float kern_act_t;

/* How activations are rounded before a product (model.md 8). */
enum kern_act {
	KERN_ACT_F32,  /* not at all */
	KERN_ACT_BF16, /* to bf16 */
	KERN_ACT_FP8   /* FP8 and FP4 weights: to e4m3 per row and global 128-group; others: to bf16
			*/
};

/* ---- the batch ------------------------------------------------------------------------------ */

enum kern_class { KERN_RAW, KERN_CSA, KERN_HCA, KERN_CLASS__COUNT }; /* as enum page_class */

/* One sequence of a step: rows row0 .. row0+n-1 are its positions pos0 .. pos0+n-1. */
struct kern_seq {
	uint32_t row0, n, pos0;
	uint32_t slot; /* which saved compressor rows are its own */
	/* pages[c][i] is the id of the sequence's page i (positions or entries 64 i ..) of class c,
	 * for raw pages of its page raw_first + i: earlier ones have left the window */
	uint32_t raw_first;
	uint32_t page_n[KERN_CLASS__COUNT];
	const uint32_t *pages[KERN_CLASS__COUNT];
};

/* Rows of one sequence are neighbours, positions ascending; a slot occurs once. */
struct kern_batch {
	uint32_t ntok, nseq;
	const uint32_t *row_seq; /* [ntok] index into seqs */
	const uint32_t *row_pos; /* [ntok] absolute position */
	const struct kern_seq *seqs;
};

/*
 * Rows that go into pages: the raw rows of a step (ratio 1: index = position), or the entries it
 * finishes (ratio 4 or 128), sequences in batch order, entries ascending. pos = index * ratio is
 * where the row is rotated. The arrays have room for kern_rows_count().
 */
struct kern_rows {
	uint32_t ratio; /* 1, 4 or 128 */
	uint32_t n;
	uint32_t *seq;   /* [n] index into seqs */
	uint32_t *index; /* [n] position or entry within the sequence */
	uint32_t *pos;   /* [n] */
};

static inline enum kern_class kern_class_of(uint32_t ratio)
{
	return ratio == 1 ? KERN_RAW : ratio == 4 ? KERN_CSA : KERN_HCA;
}

/* Entries a query at pos may see; entries a sequence finishes in this step. */
static inline uint32_t kern_visible(uint32_t pos, uint32_t ratio)
{
	return (pos + 1) / ratio;
}

static inline uint32_t kern_finished(const struct kern_seq *s, uint32_t ratio)
{
	return (s->pos0 + s->n) / ratio - s->pos0 / ratio;
}

uint32_t kern_rows_count(const struct kern_batch *b, uint32_t ratio);
/* Fills rows->n, seq, index, pos for rows->ratio. */
void kern_rows_fill(const struct kern_batch *b, struct kern_rows *rows);

/* A layer's pages of one class: page id p is at base + p * stride. */
struct kern_pool {
	void *base;
	size_t stride; /* bytes from one page to the next, a multiple of 4 */
};

/*
 * Formats. Attention rows (raw and entries): F32 2048, BF16 1024, FP8 584 bytes a row. Index keys:
 * F32 512, BF16 256, FP8 132, FP4 68 bytes a key. Layouts: kernels/layout.h.
 */
size_t kern_kv_page_bytes(enum kern_dtype format);    /* of 64 rows; 0: no such format */
size_t kern_index_page_bytes(enum kern_dtype format); /* of 64 keys; 0: no such format */

/* theta[32] of a layer kind; factor 0: no YaRN. All in fp32, as model.md 4. */
struct kern_rope_desc {
	double base, factor, original, beta_fast, beta_slow;
};
void kern_rope_theta(const struct kern_rope_desc *d, float theta[32]);

/* Floats of saved rows a slot needs in one layer: 2 r (ratio 4) or r rows of v and of g, each
 * c * dim wide (c = 2 for ratio 4, else 1). */
size_t kern_compress_floats(uint32_t ratio, uint32_t dim);

/* ---- arguments ------------------------------------------------------------------------------ */

struct kern_linear_out {
	const struct kern_weight *w;
	kern_act_t *y; /* [rows][w->n], ldy elements from row to row */
	size_t ldy;
};

/* y_i = W_i x, i < n. All weights have the same k and col0. */
struct kern_linear_args {
	uint32_t rows, n;
	const kern_act_t *x; /* [rows][k], ldx from row to row */
	size_t ldx;
	enum kern_act act;
	bool scale_pow2;   /* act = fp8: scales are powers of two (scale_fmt ue8m0) */
	const float *amax; /* act = fp8 and a slice that cuts a global 128-group: [rows][groups] of
			      the whole groups, as act_amax gives; else NULL */
	struct kern_linear_out out[KERN_LINEAR_MAX];
};

/* y[t][g * w->n/groups + i] = row i of block g times x[t][g*k ..]: wo_a. */
struct kern_linear_grouped_args {
	uint32_t rows, groups;
	const kern_act_t *x;         /* [rows][groups * k] */
	const struct kern_weight *w; /* [groups * n][k] */
	enum kern_act act;
	bool scale_pow2;
	kern_act_t *y; /* [rows][w->n] */
};

/* amax[t][g] over the columns of x that lie in global 128-group g of the slice; NaN left out. */
struct kern_act_amax_args {
	uint32_t rows, k, col0;
	const kern_act_t *x; /* [rows][k], ldx */
	size_t ldx;
	float *amax; /* [rows][ceil((col0 % 128 + k) / 128)] */
};

/*
 * Experts. w1/w3/w2[e] may be NULL: that expert lives on another rank, its pairs are left out (h
 * is not written, nothing is added). Pair p = t * topk + j is the j-th chosen expert of row t,
 * ids ascending. The shared expert is the same computation with weight 1.
 */
struct kern_moe_up_args {
	uint32_t rows, topk, experts, inter; /* inter: of this rank's slices */
	const kern_act_t *x;                 /* [rows][k], k = w1[e]->k */
	const uint32_t *ids;                 /* [rows][topk] as router gives; >= experts: refused */
	const float *weights;                /* [rows][topk] */
	const struct kern_weight *const *w1, *const *w3; /* [experts], each [inter][k] */
	const struct kern_weight *shared_w1, *shared_w3; /* NULL: no shared expert here */
	float limit;
	enum kern_act act;
	bool scale_pow2;
	kern_act_t *h;        /* [rows][topk][inter] */
	kern_act_t *shared_h; /* [rows][shared_w1->n], or NULL */
};

struct kern_moe_down_args {
	uint32_t rows, topk, experts, inter;
	const kern_act_t *h;        /* [rows][topk][inter] */
	const kern_act_t *shared_h; /* [rows][shared_w2->k], or NULL */
	const uint32_t *ids;
	const struct kern_weight *const *w2; /* [experts], each [d][inter] */
	const struct kern_weight *shared_w2; /* NULL: none */
	enum kern_act act;
	bool scale_pow2;
	const float *amax, *shared_amax; /* as in linear, over rows*topk and rows rows */
	uint32_t d;
	kern_act_t *y; /* [rows][d]: experts by id ascending, then shared; 0 where there are none */
};

/*
 * Rows of tokens whose embeddings lie on another rank become -0: it changes no number that it is
 * added to, not even a zero's sign, so the sum over the ranks is the whole table's rows.
 */
struct kern_embed_args {
	uint32_t rows, d, vocab;
	uint32_t row0, n;       /* the part of the vocabulary that is here: row0 .. row0 + n-1 */
	const uint32_t *tokens; /* [rows]; >= vocab: refused */
	const void *table;      /* [n][d], raw checkpoint order */
	enum kern_dtype dtype;  /* F32, F16 or BF16 */
	kern_act_t *x;          /* [rows][d] */
};

struct kern_rmsnorm_args {
	uint32_t rows, d;
	const kern_act_t *x; /* [rows][d], ldx */
	size_t ldx;
	const float *w; /* [d], or NULL: no weight */
	float eps;
	kern_act_t *y; /* [rows][d], ldy; may be x with ldy == ldx */
	size_t ldy;
};

struct kern_hc_expand_args {
	uint32_t rows, d;
	const kern_act_t *x; /* [rows][d] */
	kern_act_t *y;       /* [rows][4][d]; apart from x */
};

struct kern_hc_coef_args {
	uint32_t rows, d;
	const kern_act_t *x;          /* [rows][4][d] */
	const struct kern_weight *fn; /* [24][4d] */
	const float *base;            /* [24] */
	const float *scale;           /* [3] */
	float rms_eps, hc_eps;
	uint32_t iters;
	float *pre, *post; /* [rows][4] */
	float *comb;       /* [rows][4][4] */
};

struct kern_hc_pre_args {
	uint32_t rows, d;
	const kern_act_t *x; /* [rows][4][d] */
	const float *pre;    /* [rows][4] */
	kern_act_t *y;       /* [rows][d] */
};

struct kern_hc_pre_norm_args {
	struct kern_hc_pre_args pre; /* its y is the result */
	const float *w;              /* [d] */
	float eps;
};

struct kern_hc_post_args {
	uint32_t rows, d;
	const kern_act_t *x;      /* [rows][4][d] */
	const kern_act_t *o;      /* [rows][d] */
	const float *post, *comb; /* [rows][4], [rows][4][4] */
	kern_act_t *y;            /* [rows][4][d]; may be x */
};

struct kern_hc_head_args {
	uint32_t n, d;
	const uint32_t *rows;         /* [n] rows of x to take, or NULL: 0 .. n-1 */
	const kern_act_t *x;          /* [][4][d] */
	const struct kern_weight *fn; /* [4][4d] */
	const float *base;            /* [4] */
	const float *scale;           /* [1] */
	float rms_eps, hc_eps;
	kern_act_t *y; /* [n][d] */
};

struct kern_router_args {
	uint32_t rows, experts, topk;
	const float *logits; /* [rows][experts]: gate times y */
	const float *bias;   /* [experts]; used when tid2eid is NULL; may be NULL: none */
	const int32_t
		*tid2eid; /* [vocab][topk], or NULL: by score. Checked at load: 0 <= e < experts */
	const uint32_t *tokens; /* [rows], with tid2eid */
	float scale;            /* routed_scaling_factor */
	uint32_t *ids;          /* [rows][topk], ascending */
	float *weights;         /* [rows][topk] */
};

/* One report: of token `token` under row's logits. */
struct kern_logprob {
	float logprob;
	uint32_t rank; /* 1: the most probable; ties count the lower id first */
	uint32_t nan;  /* the row holds a NaN: logprob is NaN */
	uint32_t alts; /* alternatives written: min(top, vocab), NaN never chosen */
};

struct kern_logprob_args {
	uint32_t rows, vocab; /* callers tile: rows <= 64 at a time keeps logits small */
	const float *logits;  /* [rows][ld] */
	size_t ld;
	const uint32_t *tokens;   /* [rows] */
	const uint32_t *top;      /* [rows] alternatives wanted, <= top_max */
	uint32_t top_max;         /* <= 64 */
	struct kern_logprob *out; /* [rows] */
	uint32_t *alt_token;      /* [rows][top_max], best first, ties to the lower id */
	float *alt_logprob;       /* [rows][top_max] */
};

/* cs[t][2 i], cs[t][2 i + 1] = cos, sin of fp32(pos[t]) * theta[i] rounded to fp32. */
struct kern_rope_angles_args {
	uint32_t rows;
	const uint32_t *pos; /* [rows] */
	const float *theta;  /* [32] */
	float *cs;           /* [rows][64] */
};

struct kern_rope_args {
	uint32_t rows, heads, dim; /* dim 512 or 128; its last 64 rotate, pairs (2i, 2i+1) */
	const float *cs;           /* [rows][64] */
	bool inverse;
	const kern_act_t *x; /* [rows][heads][dim] */
	kern_act_t *y;       /* the same shape; may be x. The other dims are copied */
};

struct kern_q_norm_rope_args {
	uint32_t rows, heads, dim;
	float eps;
	const float *cs;
	kern_act_t *x; /* [rows][heads][dim], in place */
};

struct kern_hadamard_args {
	uint32_t rows;       /* of 128 */
	const kern_act_t *x; /* [rows][128] */
	kern_act_t *y;       /* may be x */
};

enum kern_qat {
	KERN_QAT_KV,   /* rows of 512: the first 448 to e4m3 in groups of 64, E8M0 scales */
	KERN_QAT_INDEX /* rows of 128: to e2m1 in groups of 32, E8M0 scales */
};

struct kern_qat_args {
	uint32_t rows;
	enum kern_qat kind;
	const kern_act_t *x; /* [rows][512 or 128] */
	kern_act_t *y;       /* may be x */
};

struct kern_kv_put_args {
	const struct kern_batch *batch;
	const struct kern_rows *rows; /* where each row goes */
	const kern_act_t *x;          /* [rows->n][512], final values */
	enum kern_dtype format;       /* F32, BF16, FP8 */
	struct kern_pool pool;
};

struct kern_index_put_args {
	const struct kern_batch *batch;
	const struct kern_rows *rows; /* ratio 4 */
	const kern_act_t *x;          /* [rows->n][128], final values */
	enum kern_dtype format;       /* F32, BF16, FP8, FP4 */
	struct kern_pool pool;
};

/* put.x is the row before its norm: wkv y (raw) or compress' output (entries). */
struct kern_kv_store_args {
	struct kern_kv_put_args put;
	const float *w; /* [512] */
	float eps;
	const float *cs; /* [rows->n][64] */
	bool qat;
};

struct kern_index_store_args {
	struct kern_index_put_args put;
	const float *w; /* [128] */
	float eps;
	const float *cs; /* [rows->n][64] */
	bool qat;
};

struct kern_index_query_args {
	uint32_t rows, heads;
	const float *cs;
	bool qat;
	kern_act_t *q; /* [rows][heads][128], in place */
};

/*
 * Pools the blocks a step finishes and saves the rows later blocks need. state is touched for the
 * batch's slots only; what a sequence that starts at 0 finds there is not read.
 */
struct kern_compress_args {
	const struct kern_batch *batch;
	uint32_t ratio, dim;     /* 4 or 128; 512 or 128. Width of v and g: c * dim */
	const kern_act_t *v, *g; /* [T][width], ldv/ldg; wkv y and wgate y (ape not added yet) */
	size_t ldv, ldg;
	const float *ape; /* [ratio][width] */
	float *state;     /* of slot s: state + s * stride, kern_compress_floats() of them */
	size_t stride;
	const struct kern_rows *rows; /* of this ratio */
	float *out;                   /* [rows->n][dim], fp32, before the norm */
};

/* Which part of the entries one worker scores: the pages that kern_share_rank() says are its own.
 */
struct kern_share {
	uint32_t rank, world; /* world 1: all */
};

/* Who of `world` scores a page of a sequence. */
static inline uint32_t kern_share_rank(uint32_t page, uint32_t world)
{
	return page % world;
}

struct kern_index_args {
	const struct kern_batch *batch;
	uint32_t heads;
	const kern_act_t *q;  /* [T][heads][128], as index_query leaves it */
	const float *weights; /* [T][heads] weights_proj y; ld */
	size_t ldw;
	float scale;            /* 128^-1/2 * heads^-1/2 */
	enum kern_dtype format; /* of the keys */
	struct kern_pool pool;
	struct kern_share share;
};

/*
 * Scores of entries first .. first+count-1 (first a multiple of 64) for rows row0 .. row0+rows-1.
 * Entries not visible to a row, and those of other ranks' pages, are written as NaN.
 */
struct kern_index_score_args {
	struct kern_index_args index;
	uint32_t row0, rows, first, count;
	float *scores; /* [rows][count] */
};

/*
 * The k greatest of a row; ties to the lower entry; -0 counts as +0; NaN is never chosen. Entries
 * of row r are `first` + 0 .. n[r]-1. Output: entries ascending, then -1 up to k.
 */
struct kern_topk_args {
	uint32_t rows, k;
	const float *scores; /* [rows][ld] */
	size_t ld;
	const uint32_t *n; /* [rows] */
	uint32_t first;
	int32_t *entries; /* [rows][k] */
	float *values;    /* [rows][k] their scores, 0 at -1; may be NULL */
	uint32_t *count;  /* [rows] entries chosen */
	uint32_t *nan;    /* [rows] NaN met; may be NULL */
};

/*
 * index_score + topk over all that a row may see. A row that sees at most k entries takes them all
 * without scoring (values 0, nan 0); so the result differs from the chain's only in a row of NaN.
 */
struct kern_index_select_args {
	struct kern_index_args index;
	uint32_t k;
	int32_t *entries; /* [T][k], ascending, then -1 */
	float *values;    /* [T][k]; may be NULL */
	uint32_t *count;  /* [T] */
	uint32_t *nan;    /* [T]; may be NULL */
};

/* Lists of several ranks into one, as if one rank had scored everything. */
struct kern_index_merge_args {
	uint32_t rows, k, lists;
	const int32_t *entries; /* [lists][rows][k], as index_select with share gives */
	const float *values;    /* [lists][rows][k] */
	const uint32_t *counts; /* [lists][rows] */
	int32_t *out_entries;   /* [rows][k] */
	uint32_t *out_count;    /* [rows] */
};

struct kern_attention_args {
	const struct kern_batch *batch;
	uint32_t heads;
	const kern_act_t *q; /* [T][heads][512], normed and rotated */
	const float *sink;   /* [heads] */
	float scale;         /* 512^-1/2 */
	enum kern_dtype format;
	struct kern_pool raw;
	uint32_t ratio; /* 0: window only; 4, 128: plus entries */
	struct kern_pool entries;
	const int32_t *selected; /* [T][k] entries ascending; NULL: all visible ones. What is not a
				    visible entry (-1) is skipped */
	uint32_t k;
	kern_act_t *o; /* [T][heads][512], before the inverse rotation; 0 without keys. May be q */
};

/*
 * What attention gives each entry of its list: the softmax probabilities, all heads together. For
 * diagnosis (attention lost by a key format); before attention runs, if that writes over its q.
 */
struct kern_attention_mass_args {
	const struct kern_attention_args *attention; /* with a list; o is not used */
	float *mass; /* [T][k], by place in the list; 0 where a place holds no visible entry */
};

/* ---- the table ------------------------------------------------------------------------------ */

#define KERN_OP(name, abs_tol, rel_tol, doc) KERN_OP_##name,
#define KERN_FUSED(name, covers, doc)        KERN_OP_##name,
enum kern_op {
#include "kernels/ops.def"
	KERN_OP__COUNT
};
#undef KERN_OP
#undef KERN_FUSED

enum kern_backend { KERN_CPU, KERN_CUDA };

/* A slot of an op is never NULL; a slot of a fused one, but for index_select, may be: use the chain
 * it covers. */
struct kern_ops {
	enum kern_backend backend;
	const char *variant; /* "reference", "avx2", "avx512", "avx512gfni" */
#define KERN_OP(name, abs_tol, rel_tol, doc) int (*name)(const struct kern_##name##_args *, void *);
#define KERN_FUSED(name, covers, doc)        int (*name)(const struct kern_##name##_args *, void *);
#include "kernels/ops.def"
#undef KERN_OP
#undef KERN_FUSED
};

#define KERN_OP(name, abs_tol, rel_tol, doc)                                                       \
	int kern_cpu_##name(const struct kern_##name##_args *a, void *stream);
#define KERN_FUSED(name, covers, doc)                                                              \
	int kern_cpu_##name(const struct kern_##name##_args *a, void *stream);
#include "kernels/ops.def"
#undef KERN_OP
#undef KERN_FUSED

/* A row of ops.def, for tests and tools. */
struct kern_op_info {
	const char *name, *covers, *doc; /* covers: "(a, b)", NULL unless fused */
	double abs_tol, rel_tol;
};
extern const struct kern_op_info kern_op_table[KERN_OP__COUNT];

/*
 * Fills ops for a backend. variant: NULL or "auto" (the best this CPU runs), "reference", "avx2",
 * "avx512". Returns 0; -EINVAL for an unknown name, -ENOTSUP where this machine or build lacks it.
 */
int kern_ops_get(enum kern_backend backend, const char *variant, struct kern_ops *ret_ops,
	struct errbuf *err) MUST_CHECK;

#endif
