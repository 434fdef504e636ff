/*
 * The experts of one layer (model.md 7), a tile of rows at a time: route, the chosen experts' and
 * the shared expert's two products, and one all-reduce for the whole step. Experts of other ranks
 * are NULL in the tables and leave zeros behind.
 */
#include "worker/rank_impl.h"

static int route(struct rank *r, const struct layer_weights *w, uint32_t row0, uint32_t rows)
{
	const struct model_config *c = &r->sh.cfg;
	struct work *k = &r->work;
	const struct kern_linear_args gate = {
		.rows = rows,
		.n = 1,
		.x = k->y + (size_t)row0 * c->hidden,
		.ldx = c->hidden,
		.act = KERN_ACT_F32, /* model.md 7: in fp32 */
		.out = {{&w->gate, k->gate, c->experts}},
	};
	const struct kern_router_args a = {
		.rows = rows,
		.experts = c->experts,
		.topk = c->experts_per_token,
		.logits = k->gate,
		.bias = w->gate_bias,
		.tid2eid = w->tid2eid,
		.tokens = k->tokens + row0,
		.scale = (float)c->routed_scale,
		.ids = k->ids,
		.weights = k->id_weights,
	};
	int ret;

	ret = rank_run(r, linear, &gate);
	return ret < 0 ? ret : rank_run(r, router, &a);
}

static void show_routes(struct rank *r, uint32_t layer, uint32_t row0, uint32_t rows)
{
	uint32_t topk = r->sh.cfg.experts_per_token;
	struct work *k = &r->work;

	for (uint32_t i = 0; i < rows; i++)
		r->hooks.on_route(r->hooks.user, layer, k->seq_rows[k->row_seq[row0 + i]],
			k->row_pos[row0 + i], k->ids + (size_t)i * topk, topk);
}

static int up(struct rank *r, const struct layer_weights *w, uint32_t row0, uint32_t rows)
{
	const struct model_config *c = &r->sh.cfg;
	struct work *k = &r->work;
	bool shared = w->shared_w1.n > 0;
	const struct kern_moe_up_args a = {
		.rows = rows,
		.topk = c->experts_per_token,
		.experts = c->experts,
		.inter = r->sh.inter,
		.x = k->y + (size_t)row0 * c->hidden,
		.ids = k->ids,
		.weights = k->id_weights,
		.w1 = w->w1,
		.w3 = w->w3,
		.shared_w1 = shared ? &w->shared_w1 : NULL,
		.shared_w3 = shared ? &w->shared_w3 : NULL,
		.limit = (float)c->swiglu_limit,
		.act = r->sh.act,
		.scale_pow2 = c->fp8_ue8m0,
		.h = k->h,
		.shared_h = shared ? k->shared_h : NULL,
	};

	return rank_run(r, moe_up, &a);
}

static int down(struct rank *r, const struct layer_weights *w, uint32_t row0, uint32_t rows)
{
	const struct model_config *c = &r->sh.cfg;
	struct work *k = &r->work;
	bool shared = w->shared_w2.n > 0;
	struct kern_moe_down_args a = {
		.rows = rows,
		.topk = c->experts_per_token,
		.experts = c->experts,
		.inter = r->sh.inter,
		.h = k->h,
		.shared_h = shared ? k->shared_h : NULL,
		.ids = k->ids,
		.w2 = w->w2,
		.shared_w2 = shared ? &w->shared_w2 : NULL,
		.act = r->sh.act,
		.scale_pow2 = c->fp8_ue8m0,
		.d = c->hidden,
		.y = k->o + (size_t)row0 * c->hidden,
	};
	int ret = 0;

	if (!r->sh.experts_by_id)
		ret = act_amax_whole(r, k->h, rows * c->experts_per_token, r->sh.inter,
			r->sh.inter_col0, c->inter, k->amax_h, &a.amax);
	if (ret == 0)
		ret = act_amax_whole(r, k->shared_h, rows, r->sh.shared_inter, r->sh.shared_col0,
			c->inter, k->amax_shared, &a.shared_amax);
	return ret < 0 ? ret : rank_run(r, moe_down, &a);
}

int layer_moe(struct rank *r, uint32_t layer)
{
	const struct layer_weights *w = &r->w.layers[layer];
	uint32_t rows = r->batch.ntok;
	int ret;

	ret = hc_enter(r, &w->hc_ffn, w->ffn_norm);
	for (uint32_t row0 = 0; ret == 0 && row0 < rows; row0 += r->sh.tile_rows) {
		uint32_t n = MIN(r->sh.tile_rows, rows - row0);

		ret = route(r, w, row0, n);
		if (ret == 0 && r->hooks.on_route && !w->tid2eid)
			show_routes(r, layer, row0, n);
		if (ret == 0)
			ret = up(r, w, row0, n);
		if (ret == 0)
			ret = down(r, w, row0, n);
	}
	if (ret == 0)
		ret = forward_sum(r);
	return ret < 0 ? ret : hc_leave(r);
}
