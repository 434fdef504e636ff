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
		return r->ops.hc_pre_norm(a, r->stream);
	ret = r->ops.hc_pre(&a->pre, r->stream);
	return ret < 0 ? ret : r->ops.rmsnorm(&norm, r->stream);
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
		return r->ops.q_norm_rope(a, r->stream);
	ret = r->ops.rmsnorm(&norm, r->stream);
	return ret < 0 ? ret : r->ops.rope(&rope, r->stream);
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

	ret = r->ops.rmsnorm(&norm, r->stream);
	if (ret == 0)
		ret = r->ops.rope(&rope, r->stream);
	if (ret == 0 && p->hadamard)
		ret = r->ops.hadamard(&hadamard, r->stream);
	if (ret == 0 && p->qat)
		ret = r->ops.qat(&qat, r->stream);
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
		return r->ops.kv_store(a, r->stream);
	ret = prepare_rows(r, &p, x);
	return ret < 0 ? ret : r->ops.kv_put(&a->put, r->stream);
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
		return r->ops.index_store(a, r->stream);
	ret = prepare_rows(r, &p, x);
	return ret < 0 ? ret : r->ops.index_put(&a->put, r->stream);
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
		return r->ops.index_query(a, r->stream);
	ret = r->ops.rope(&rope, r->stream);
	if (ret == 0)
		ret = r->ops.hadamard(&hadamard, r->stream);
	if (ret == 0 && a->qat)
		ret = r->ops.qat(&qat, r->stream);
	return ret;
}
