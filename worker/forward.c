#include "worker/rank_impl.h"

static int make_angles(
	struct rank *r, const uint32_t *pos, uint32_t n, const float *theta, float *cs)
{
	const struct kern_rope_angles_args a = {.rows = n, .pos = pos, .theta = theta, .cs = cs};

	return n ? rank_run(r, rope_angles, &a) : 0;
}

/* Which rows go into pages, and the angles at which rows and entries rotate: once for all layers.
 */
static int prepare(struct rank *r)
{
	const struct shape *sh = &r->sh;
	struct work *k = &r->work;
	int ret;

	kern_rows_fill(&r->batch, &k->raw);
	kern_rows_fill(&r->batch, &k->csa);
	kern_rows_fill(&r->batch, &k->hca);
	ret = make_angles(r, r->batch.row_pos, r->batch.ntok, sh->theta_swa, k->cs_swa);
	if (ret == 0)
		ret = make_angles(r, r->batch.row_pos, r->batch.ntok, sh->theta_comp, k->cs_comp);
	if (ret == 0)
		ret = make_angles(r, k->csa.pos, k->csa.n, sh->theta_comp, k->cs_csa);
	if (ret == 0)
		ret = make_angles(r, k->hca.pos, k->hca.n, sh->theta_comp, k->cs_hca);
	return ret;
}

int forward_sum(struct rank *r)
{
	size_t d = r->sh.cfg.hidden;
	uint32_t rows = r->batch.ntok;
	int ret = 0;

	for (uint32_t row0 = 0; ret == 0 && row0 < rows; row0 += r->sh.pass_rows) {
		rank_beat(r);
		ret = comm_all_reduce_f32(
			r->comm, r->work.o + row0 * d, MIN(rows - row0, r->sh.pass_rows) * d);
	}
	return ret;
}

/* The tokens' embeddings into all streams; each rank knows those of its part of the vocabulary. */
static int embed(struct rank *r)
{
	const struct kern_embed_args part = {
		.rows = r->batch.ntok,
		.d = r->sh.cfg.hidden,
		.vocab = r->sh.cfg.vocab,
		.row0 = r->sh.vocab_row0,
		.n = r->sh.vocab,
		.tokens = r->work.tokens,
		.table = r->w.embed,
		.dtype = r->w.embed_dtype,
		.x = r->work.o,
	};
	const struct kern_hc_expand_args expand = {
		.rows = r->batch.ntok,
		.d = r->sh.cfg.hidden,
		.x = r->work.o,
		.y = r->work.x,
	};
	int ret;

	ret = rank_run(r, embed, &part);
	if (ret == 0)
		ret = forward_sum(r);
	return ret < 0 ? ret : rank_run(r, hc_expand, &expand);
}

int forward_run(struct rank *r)
{
	int ret;

	rank_stage(r, STAGE_EMBED, 0);
	ret = prepare(r);
	if (ret == 0)
		ret = embed(r);
	for (uint32_t i = 0; ret == 0 && i < r->sh.cfg.layers; i++) {
		rank_stage(r, STAGE_LAYER, i);
		ret = layer_attention(r, i);
		if (ret == 0)
			ret = layer_moe(r, i);
	}
	return ret;
}
