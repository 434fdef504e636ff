#include "worker/rank_impl.h"

int chain_hc_pre_norm(struct rank *r, const struct kern_hc_pre_norm_args *a)
{
	const struct kern_rmsnorm_args norm = {
		.rows = a->pre.rows,
		.d = a->pre.d,
		.x = a->pre.y,
		.ldx = a->pre.d,
		.w = a->w,
		.eps = a->eps,
		.y = a->pre.y,
		.ldy = a->pre.d,
	};
	int ret;

	if (r->ops.hc_pre_norm)
		return rank_run(r, hc_pre_norm, a);
	ret = rank_run(r, hc_pre, &a->pre);
	return ret < 0 ? ret : rank_run(r, rmsnorm, &norm);
}

int chain_q_norm_rope(struct rank *r, const struct kern_q_norm_rope_args *a)
{
	const struct kern_rmsnorm_args norm = {
		.rows = a->rows * a->heads,
		.d = a->dim,
		.x = a->x,
		.ldx = a->dim,
		.eps = a->eps,
		.y = a->x,
		.ldy = a->dim,
	};
	const struct kern_rope_args rope = {
		.rows = a->rows,
		.heads = a->heads,
		.dim = a->dim,
		.cs = a->cs,
		.x = a->x,
		.y = a->x,
	};
	int ret;

	if (r->ops.q_norm_rope)
		return rank_run(r, q_norm_rope, a);
	ret = rank_run(r, rmsnorm, &norm);
	return ret < 0 ? ret : rank_run(r, rope, &rope);
}

/* RMSNorm, rotation and, where asked for, Hadamard and rounding of rows in place. */
struct prepare {
	uint32_t rows, dim;
	const float *w;
	float eps;
	const float *cs;
	bool hadamard, qat;
	enum kern_qat kind;
};

static int prepare_rows(struct rank *r, const struct prepare *p, float *x)
{
	const struct kern_rmsnorm_args norm = {.rows = p->rows,
		.d = p->dim,
		.x = x,
		.ldx = p->dim,
		.w = p->w,
		.eps = p->eps,
		.y = x,
		.ldy = p->dim};
	const struct kern_rope_args rope = {
		.rows = p->rows, .heads = 1, .dim = p->dim, .cs = p->cs, .x = x, .y = x};
	const struct kern_hadamard_args hadamard = {.rows = p->rows, .x = x, .y = x};
	const struct kern_qat_args qat = {.rows = p->rows, .kind = p->kind, .x = x, .y = x};
	int ret;

	ret = rank_run(r, rmsnorm, &norm);
	if (ret == 0)
		ret = rank_run(r, rope, &rope);
	if (ret == 0 && p->hadamard)
		ret = rank_run(r, hadamard, &hadamard);
	if (ret == 0 && p->qat)
		ret = rank_run(r, qat, &qat);
	return ret;
}

int chain_kv_store(struct rank *r, struct kern_kv_store_args *a, float *x)
{
	const struct prepare p = {
		.rows = a->put.rows->n,
		.dim = KERN_HEAD,
		.w = a->w,
		.eps = a->eps,
		.cs = a->cs,
		.qat = a->qat,
		.kind = KERN_QAT_KV,
	};
	int ret;

	a->put.x = x;
	if (r->ops.kv_store)
		return rank_run(r, kv_store, a);
	ret = prepare_rows(r, &p, x);
	return ret < 0 ? ret : rank_run(r, kv_put, &a->put);
}

int chain_index_store(struct rank *r, struct kern_index_store_args *a, float *x)
{
	const struct prepare p = {
		.rows = a->put.rows->n,
		.dim = KERN_INDEX,
		.w = a->w,
		.eps = a->eps,
		.cs = a->cs,
		.hadamard = true,
		.qat = a->qat,
		.kind = KERN_QAT_INDEX,
	};
	int ret;

	a->put.x = x;
	if (r->ops.index_store && r->sh.fused_store)
		return rank_run(r, index_store, a);
	ret = prepare_rows(r, &p, x);
	return ret < 0 ? ret : rank_run(r, index_put, &a->put);
}

int chain_index_query(struct rank *r, const struct kern_index_query_args *a)
{
	const struct kern_rope_args rope = {.rows = a->rows,
		.heads = a->heads,
		.dim = KERN_INDEX,
		.cs = a->cs,
		.x = a->q,
		.y = a->q};
	const struct kern_hadamard_args hadamard = {
		.rows = a->rows * a->heads, .x = a->q, .y = a->q};
	const struct kern_qat_args qat = {
		.rows = a->rows * a->heads, .kind = KERN_QAT_INDEX, .x = a->q, .y = a->q};
	int ret;

	if (r->ops.index_query)
		return rank_run(r, index_query, a);
	ret = rank_run(r, rope, &rope);
	if (ret == 0)
		ret = rank_run(r, hadamard, &hadamard);
	if (ret == 0 && a->qat)
		ret = rank_run(r, qat, &qat);
	return ret;
}
