#include "worker/rank_impl.h"

static int enter_rows(
	struct rank *r, const struct hc_weights *w, const float *norm, uint32_t row0, uint32_t rows)
{
	const struct model_config *c = &r->sh.cfg;
	struct work *k = &r->work;
	size_t d = c->hidden, at = row0;
	const struct kern_hc_coef_args coef = {
		.rows = rows,
		.d = c->hidden,
		.x = k->x + at * KERN_STREAMS * d,
		.fn = &w->fn,
		.base = w->base,
		.scale = w->scale,
		.rms_eps = (float)c->rms_eps,
		.hc_eps = (float)c->hc_eps,
		.iters = c->hc_iters,
		.pre = k->pre + at * KERN_STREAMS,
		.post = k->post + at * KERN_STREAMS,
		.comb = k->comb + at * KERN_STREAMS * KERN_STREAMS,
	};
	const struct kern_hc_pre_norm_args pre = {
		.pre = {.rows = rows,
			.d = c->hidden,
			.x = coef.x,
			.pre = coef.pre,
			.y = k->y + at * d},
		.w = norm,
		.eps = (float)c->rms_eps,
	};
	int ret;

	ret = rank_run(r, hc_coef, &coef);
	return ret < 0 ? ret : chain_hc_pre_norm(r, &pre);
}

int hc_enter(struct rank *r, const struct hc_weights *w, const float *norm)
{
	uint32_t rows = r->batch.ntok;
	int ret = 0;

	for (uint32_t row0 = 0; ret == 0 && row0 < rows; row0 += r->sh.pass_rows)
		ret = enter_rows(r, w, norm, row0, MIN(rows - row0, r->sh.pass_rows));
	return ret;
}

static int leave_rows(struct rank *r, uint32_t row0, uint32_t rows)
{
	struct work *k = &r->work;
	size_t d = r->sh.cfg.hidden, at = row0;
	float *x = k->x + at * KERN_STREAMS * d;
	const struct kern_hc_post_args post = {
		.rows = rows,
		.d = r->sh.cfg.hidden,
		.x = x,
		.o = k->o + at * d,
		.post = k->post + at * KERN_STREAMS,
		.comb = k->comb + at * KERN_STREAMS * KERN_STREAMS,
		.y = x,
	};

	return rank_run(r, hc_post, &post);
}

int hc_leave(struct rank *r)
{
	uint32_t rows = r->batch.ntok;
	int ret = 0;

	for (uint32_t row0 = 0; ret == 0 && row0 < rows; row0 += r->sh.pass_rows)
		ret = leave_rows(r, row0, MIN(rows - row0, r->sh.pass_rows));
	return ret;
}
