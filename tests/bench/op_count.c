#include "tests/bench/op_count.h"

#include "kernels/layout.h"
#include "shm/clock.h"

static struct kern_ops real;
static struct op_counts *counts;

/* ---- what an op does ----------------------------------------------------------------------------
 */

static double weight_bytes(const struct kern_weight *w)
{
	const struct kern_weight_desc d = {w->dtype, w->scale_kind, w->n, w->k, w->row0, w->col0};

	return (double)kern_weight_bytes(&d);
}

static void add_product(struct op_count *c, const struct kern_weight *w, double rows)
{
	if (rows == 0)
		return;
	c->flops += 2 * rows * w->n * w->k;
	c->bytes += weight_bytes(w);
}

static void do_linear(struct op_count *c, const struct kern_linear_args *a)
{
	for (uint32_t i = 0; i < a->n; i++)
		add_product(c, a->out[i].w, a->rows);
}

static double pairs_of(const uint32_t *ids, uint32_t pairs, uint32_t expert)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < pairs; i++)
		n += ids[i] == expert;
	return n;
}

static void do_moe_up(struct op_count *c, const struct kern_moe_up_args *a)
{
	for (uint32_t e = 0; e < a->experts; e++)
		if (a->w1[e]) {
			double n = pairs_of(a->ids, a->rows * a->topk, e);

			add_product(c, a->w1[e], n);
			add_product(c, a->w3[e], n);
		}
	if (a->shared_w1) {
		add_product(c, a->shared_w1, a->rows);
		add_product(c, a->shared_w3, a->rows);
	}
}

static void do_moe_down(struct op_count *c, const struct kern_moe_down_args *a)
{
	for (uint32_t e = 0; e < a->experts; e++)
		if (a->w2[e])
			add_product(c, a->w2[e], pairs_of(a->ids, a->rows * a->topk, e));
	if (a->shared_w2)
		add_product(c, a->shared_w2, a->rows);
}

static void do_attention(struct op_count *c, const struct kern_attention_args *a)
{
	const struct kern_batch *b = a->batch;
	double keys = 0, rows = 0;

	for (uint32_t t = 0; t < b->ntok; t++) {
		uint32_t visible = a->ratio ? kern_visible(b->row_pos[t], a->ratio) : 0;

		keys += MIN(b->row_pos[t] + 1, (uint32_t)KERN_WINDOW) +
			(a->selected ? MIN(visible, a->k) : visible);
	}
	for (uint32_t q = 0; q < b->nseq; q++) {
		const struct kern_seq *s = &b->seqs[q];
		uint32_t end = s->pos0 + s->n;
		uint32_t visible = a->ratio ? kern_visible(end - 1, a->ratio) : 0;

		rows += MIN(end, s->n + KERN_WINDOW - 1);
		rows += a->selected ? MIN((double)visible, (double)s->n * a->k) : visible;
	}
	c->flops += 4 * keys * a->heads * KERN_HEAD;
	c->bytes += rows * (double)kern_kv_row_bytes(a->format);
}

static void do_index_select(struct op_count *c, const struct kern_index_select_args *a)
{
	const struct kern_batch *b = a->index.batch;
	double scored = 0, keys = 0;

	for (uint32_t t = 0; t < b->ntok; t++) {
		uint32_t visible = kern_visible(b->row_pos[t], 4);

		scored += visible > a->k ? visible : 0;
	}
	for (uint32_t q = 0; q < b->nseq; q++) {
		uint32_t visible = kern_visible(b->seqs[q].pos0 + b->seqs[q].n - 1, 4);

		keys += visible > a->k ? visible : 0;
	}
	c->flops += 2 * scored * a->index.heads * KERN_INDEX;
	c->bytes += keys * (double)kern_index_page_bytes(a->index.format) / KERN_PAGE;
}

#define work_linear(c, a)         do_linear(c, a)
#define work_linear_grouped(c, a) add_product(c, (a)->w, (a)->rows)
#define work_moe_up(c, a)         do_moe_up(c, a)
#define work_moe_down(c, a)       do_moe_down(c, a)
#define work_hc_coef(c, a)        add_product(c, (a)->fn, (a)->rows)
#define work_hc_head(c, a)        add_product(c, (a)->fn, (a)->n)
#define work_attention(c, a)      do_attention(c, a)
#define work_index_select(c, a)   do_index_select(c, a)

/* The rest has no floor: it moves activations, which stay in cache, or is no part of a step
 * (index_score, topk, attention_mass). */
#define work_none                 ((void)0)
#define work_act_amax(c, a)       work_none
#define work_embed(c, a)          work_none
#define work_rmsnorm(c, a)        work_none
#define work_hc_expand(c, a)      work_none
#define work_hc_pre(c, a)         work_none
#define work_hc_post(c, a)        work_none
#define work_router(c, a)         work_none
#define work_logprob(c, a)        work_none
#define work_rope_angles(c, a)    work_none
#define work_rope(c, a)           work_none
#define work_hadamard(c, a)       work_none
#define work_qat(c, a)            work_none
#define work_kv_put(c, a)         work_none
#define work_index_put(c, a)      work_none
#define work_compress(c, a)       work_none
#define work_index_score(c, a)    work_none
#define work_topk(c, a)           work_none
#define work_index_merge(c, a)    work_none
#define work_attention_mass(c, a) work_none
#define work_hc_pre_norm(c, a)    work_none
#define work_q_norm_rope(c, a)    work_none
#define work_kv_store(c, a)       work_none
#define work_index_store(c, a)    work_none
#define work_index_query(c, a)    work_none

/* ---- the wrapped table --------------------------------------------------------------------------
 */

#define KERN_OP(name, abs_tol, rel_tol, doc)                                                       \
	static int count_##name(const struct kern_##name##_args *a, void *stream)                  \
	{                                                                                          \
		mono_ns_t start = mono_now();                                                      \
		int ret = real.name(a, stream);                                                    \
                                                                                                   \
		counts->op[KERN_OP_##name].ns += mono_now() - start;                               \
		counts->op[KERN_OP_##name].calls++;                                                \
		work_##name(&counts->op[KERN_OP_##name], a);                                       \
		return ret;                                                                        \
	}
#define KERN_FUSED(name, covers, doc) KERN_OP(name, 0, 0, doc)
#include "kernels/ops.def"
#undef KERN_OP
#undef KERN_FUSED

void op_count_install(struct kern_ops *ops, struct op_counts *into)
{
	real = *ops;
	counts = into;
#define KERN_OP(name, abs_tol, rel_tol, doc) ops->name = count_##name;
#define KERN_FUSED(name, covers, doc)        ops->name = real.name ? count_##name : NULL;
#include "kernels/ops.def"
#undef KERN_OP
#undef KERN_FUSED
}

void op_count_remove(struct kern_ops *ops)
{
	*ops = real;
}
