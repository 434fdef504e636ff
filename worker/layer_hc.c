#include "worker/rank_impl.h"

int hc_enter(struct rank *r, const struct hc_weights *w, const float *norm)
{
	const struct model_config *c = &r->sh.cfg;
	struct work *k = &r->work;
	const struct kern_hc_coef_args coef = {
		.rows = r->batch.ntok,
		.d = c->hidden,
		.x = k->x,
		.fn = &w->fn,
		.base = w->base,
		.scale = w->scale,
		.rms_eps = (float)c->rms_eps,
		.hc_eps = (float)c->hc_eps,
		.iters = c->hc_iters,
		.pre = k->pre,
		.post = k->post,
		.comb = k->comb,
	};
	const struct kern_hc_pre_norm_args pre = {
		.pre = {.rows = r->batch.ntok, .d = c->hidden, .x = k->x, .pre = k->pre, .y = k->y},
		.w = norm,
		.eps = (float)c->rms_eps,
	};
	int ret;

	ret = r->ops.hc_coef(&coef, r->stream);
	return ret < 0 ? ret : chain_hc_pre_norm(r, &pre);
}

int hc_leave(struct rank *r)
{
	struct work *k = &r->work;
	const struct kern_hc_post_args post = {
		.rows = r->batch.ntok,
		.d = r->sh.cfg.hidden,
		.x = k->x,
		.o = k->o,
		.post = k->post,
		.comb = k->comb,
		.y = k->x,
	};

	return r->ops.hc_post(&post, r->stream);
}
