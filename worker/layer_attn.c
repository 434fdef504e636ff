/*
 * Attention of one layer (model.md 4 to 6), in two passes over the step's rows. The first stores:
 * raw rows of all tokens and the entries they finish go into pages. The second attends, tile by
 * tile: every query then finds its window and its entries in pages, whichever step or chunk they
 * came from, and kern_visible() keeps it from those that lie ahead.
 */
#include <math.h>

#include "worker/rank_impl.h"

#define TILE_ROWS_MIN 16ull /* fewer would decode each key for too little */

/* The query rows of one tile. */
struct tile {
	uint32_t row0, rows;
	struct kern_batch batch; /* the tile's part of the step; rows count from 0 */
	uint32_t seq0;           /* its first sequence's index in the step's batch */
};

static struct kern_pool pool_of(const struct rank *r, enum pool_kind kind, uint32_t layer)
{
	const struct pool *p = &r->pools.pool[kind];
	uint32_t nth = kind == POOL_RAW ? layer : r->sh.nth[layer];

	return (struct kern_pool){.base = pool_layer(p, nth), .stride = p->page_bytes};
}

static const float *angles(const struct rank *r, uint32_t layer)
{
	return r->sh.cfg.layer[layer] == MODEL_SWA ? r->work.cs_swa : r->work.cs_comp;
}

/* ---- first pass: products of y, and everything that is stored ------------------------------- */

/* One more product, into y[..][ld] from row `at` on. */
static void add_out(
	struct kern_linear_args *a, const struct kern_weight *w, float *y, size_t at, uint32_t ld)
{
	a->out[a->n++] = (struct kern_linear_out){w, y + at * ld, ld};
}

static int project_rows(struct rank *r, const struct layer_weights *w, enum model_layer kind,
	uint32_t row0, uint32_t rows)
{
	const struct model_config *c = &r->sh.cfg;
	struct work *k = &r->work;
	size_t at = row0;
	struct kern_linear_args a = {
		.rows = rows,
		.x = k->y + at * c->hidden,
		.ldx = c->hidden,
		.act = r->sh.act,
		.scale_pow2 = c->fp8_ue8m0,
	};
	int ret;

	add_out(&a, &w->wq_a, k->qr, at, c->q_lora);
	add_out(&a, &w->wkv, k->kv, at, KERN_HEAD);
	if (kind == MODEL_CSA)
		add_out(&a, &w->index_weights, k->index_w, at, c->index_heads);
	if (kind == MODEL_SWA)
		return rank_run(r, linear, &a);

	/* Compressors work in fp32 whatever act says (model.md 5). */
	if (a.act != KERN_ACT_F32) {
		ret = rank_run(r, linear, &a);
		if (ret < 0)
			return ret;
		a.act = KERN_ACT_F32;
		a.n = 0;
	}
	add_out(&a, &w->comp.wkv, k->comp_v, at, w->comp.wkv.n);
	add_out(&a, &w->comp.wgate, k->comp_g, at, w->comp.wgate.n);
	if (kind == MODEL_CSA) {
		add_out(&a, &w->index.wkv, k->index_v, at, w->index.wkv.n);
		add_out(&a, &w->index.wgate, k->index_g, at, w->index.wgate.n);
	}
	return rank_run(r, linear, &a);
}

static int project(struct rank *r, const struct layer_weights *w, enum model_layer kind)
{
	uint32_t rows = r->batch.ntok;
	int ret = 0;

	for (uint32_t row0 = 0; ret == 0 && row0 < rows; row0 += r->sh.pass_rows)
		ret = project_rows(r, w, kind, row0, MIN(rows - row0, r->sh.pass_rows));
	return ret;
}

static int norm_qr(struct rank *r, const struct layer_weights *w)
{
	const struct kern_rmsnorm_args a = {
		.rows = r->batch.ntok,
		.d = r->sh.cfg.q_lora,
		.x = r->work.qr,
		.ldx = r->sh.cfg.q_lora,
		.w = w->q_norm,
		.eps = (float)r->sh.cfg.rms_eps,
		.y = r->work.qr,
		.ldy = r->sh.cfg.q_lora,
	};

	return rank_run(r, rmsnorm, &a);
}

static int store_kv(struct rank *r, const struct kern_rows *rows, struct kern_pool pool,
	const float *norm, const float *cs, float *x)
{
	struct kern_kv_store_args a = {
		.put = {.batch = &r->batch, .rows = rows, .format = r->sh.kv, .pool = pool},
		.w = norm,
		.eps = (float)r->sh.cfg.rms_eps,
		.cs = cs,
		.qat = r->sh.qat,
	};

	return rows->n ? chain_kv_store(r, &a, x) : 0;
}

static int store_entries(struct rank *r, const struct layer_weights *w, uint32_t layer)
{
	uint32_t ratio = shape_ratio(&r->sh, layer);
	struct work *k = &r->work;
	const struct kern_rows *rows = ratio == MODEL_CSA_RATIO ? &k->csa : &k->hca;
	const struct kern_compress_args a = {
		.batch = &r->batch,
		.ratio = ratio,
		.dim = KERN_HEAD,
		.v = k->comp_v,
		.g = k->comp_g,
		.ldv = w->comp.wkv.n,
		.ldg = w->comp.wgate.n,
		.ape = w->comp.ape,
		.state = r->slots.comp[layer].base,
		.stride = r->slots.comp[layer].stride,
		.rows = rows,
		.out = k->kv,
	};
	int ret;

	ret = rank_run(r, compress, &a);
	if (ret < 0)
		return ret;
	return store_kv(r, rows, pool_of(r, ratio == MODEL_CSA_RATIO ? POOL_CSA : POOL_HCA, layer),
		w->comp.norm, ratio == MODEL_CSA_RATIO ? k->cs_csa : k->cs_hca, k->kv);
}

static int store_keys(struct rank *r, const struct layer_weights *w, uint32_t layer)
{
	struct work *k = &r->work;
	const struct kern_compress_args a = {
		.batch = &r->batch,
		.ratio = MODEL_CSA_RATIO,
		.dim = KERN_INDEX,
		.v = k->index_v,
		.g = k->index_g,
		.ldv = w->index.wkv.n,
		.ldg = w->index.wgate.n,
		.ape = w->index.ape,
		.state = r->slots.index[layer].base,
		.stride = r->slots.index[layer].stride,
		.rows = &k->csa,
		.out = k->index_pooled,
	};
	struct kern_index_store_args store = {
		.put = {.batch = &r->batch,
			.rows = &k->csa,
			.format = r->sh.key,
			.pool = pool_of(r, POOL_KEYS, layer)},
		.w = w->index.norm,
		.eps = (float)r->sh.cfg.rms_eps,
		.cs = k->cs_csa,
		.qat = r->sh.qat,
	};
	int ret;

	ret = rank_run(r, compress, &a);
	if (ret < 0 || !k->csa.n)
		return ret;
	return chain_index_store(r, &store, k->index_pooled);
}

static int store_all(struct rank *r, const struct layer_weights *w, uint32_t layer)
{
	enum model_layer kind = r->sh.cfg.layer[layer];
	int ret;

	ret = project(r, w, kind);
	if (ret == 0)
		ret = norm_qr(r, w);
	if (ret == 0)
		ret = store_kv(r, &r->work.raw, pool_of(r, POOL_RAW, layer), w->kv_norm,
			angles(r, layer), r->work.kv);
	if (ret == 0 && kind != MODEL_SWA)
		ret = store_entries(r, w, layer);
	if (ret == 0 && kind == MODEL_CSA)
		ret = store_keys(r, w, layer);
	return ret;
}

/* ---- second pass: queries, a tile at a time -------------------------------------------------- */

/*
 * Rows of the tile at row0: as many as its buffers hold, fewer where each looks at so many keys
 * that one op over all of them would be silent for long. The same on all ranks, which meet in a
 * tile.
 */
static uint32_t tile_rows(const struct rank *r, uint32_t layer, uint32_t row0)
{
	const struct kern_batch *all = &r->batch;
	uint32_t rows = MIN(r->sh.tile_rows, all->ntok - row0);
	uint32_t ratio = shape_ratio(&r->sh, layer), pos = 0;
	uint64_t heads = DIV_UP(r->sh.cfg.heads, r->sh.world), entries, each;

	for (uint32_t i = 0; i < rows; i++)
		pos = MAX(pos, all->row_pos[row0 + i]);
	entries = ratio ? kern_visible(pos, ratio) : 0;
	each = heads * 2 * KERN_HEAD * (KERN_WINDOW + entries);
	if (ratio == MODEL_CSA_RATIO)
		each = MAX(heads * 2 * KERN_HEAD * (KERN_WINDOW + MIN(entries, r->sh.index_topk)),
			entries * r->sh.cfg.index_heads * KERN_INDEX);
	return (uint32_t)MIN(rows, MAX(r->sh.tile_work / each, TILE_ROWS_MIN));
}

/* The rows row0 .. row0+rows-1 of the step as a batch of their own. */
static struct tile cut_tile(struct rank *r, uint32_t row0, uint32_t rows)
{
	const struct kern_batch *all = &r->batch;
	struct work *k = &r->work;
	struct tile t = {.row0 = row0, .rows = rows, .seq0 = all->row_seq[row0]};
	uint32_t last = all->row_seq[row0 + rows - 1];

	for (uint32_t i = t.seq0; i <= last; i++) {
		struct kern_seq s = all->seqs[i];
		uint32_t begin = MAX(s.row0, row0), end = MIN(s.row0 + s.n, row0 + rows);

		s.pos0 += begin - s.row0;
		s.row0 = begin - row0;
		s.n = end - begin;
		k->tile_seqs[i - t.seq0] = s;
	}
	for (uint32_t i = 0; i < rows; i++)
		k->tile_row_seq[i] = all->row_seq[row0 + i] - t.seq0;
	t.batch = (struct kern_batch){
		.ntok = rows,
		.nseq = last - t.seq0 + 1,
		.row_seq = k->tile_row_seq,
		.row_pos = all->row_pos + row0,
		.seqs = k->tile_seqs,
	};
	return t;
}

static int make_queries(
	struct rank *r, const struct layer_weights *w, uint32_t layer, const struct tile *t)
{
	bool csa = r->sh.cfg.layer[layer] == MODEL_CSA;
	const float *cs = angles(r, layer) + (size_t)t->row0 * KERN_ROPE;
	struct work *k = &r->work;
	struct kern_linear_args a = {
		.rows = t->rows,
		.x = k->qr + (size_t)t->row0 * r->sh.cfg.q_lora,
		.ldx = r->sh.cfg.q_lora,
		.act = r->sh.act,
		.scale_pow2 = r->sh.cfg.fp8_ue8m0,
	};
	const struct kern_q_norm_rope_args q = {
		.rows = t->rows,
		.heads = r->sh.heads,
		.dim = KERN_HEAD,
		.eps = (float)r->sh.cfg.rms_eps,
		.cs = cs,
		.x = k->q,
	};
	const struct kern_index_query_args iq = {
		.rows = t->rows,
		.heads = r->sh.cfg.index_heads,
		.cs = cs,
		.qat = r->sh.qat,
		.q = k->index_q,
	};
	int ret;

	a.out[a.n++] = (struct kern_linear_out){&w->wq_b, k->q, w->wq_b.n};
	if (csa)
		a.out[a.n++] =
			(struct kern_linear_out){&w->index_wq_b, k->index_q, w->index_wq_b.n};
	ret = rank_run(r, linear, &a);
	if (ret == 0)
		ret = chain_q_norm_rope(r, &q);
	if (ret == 0 && csa)
		ret = chain_index_query(r, &iq);
	return ret;
}

static int attend(
	struct rank *r, const struct layer_weights *w, uint32_t layer, const struct tile *t)
{
	enum model_layer kind = r->sh.cfg.layer[layer];
	struct work *k = &r->work;
	struct kern_attention_args a = {
		.batch = &t->batch,
		.heads = r->sh.heads,
		.q = k->q,
		.sink = w->sink,
		.scale = 1.0f / sqrtf((float)KERN_HEAD),
		.format = r->sh.kv,
		.raw = pool_of(r, POOL_RAW, layer),
		.ratio = shape_ratio(&r->sh, layer),
		.o = k->q,
	};
	const struct kern_rope_args rope = {
		.rows = t->rows,
		.heads = r->sh.heads,
		.dim = KERN_HEAD,
		.cs = angles(r, layer) + (size_t)t->row0 * KERN_ROPE,
		.inverse = true,
		.x = k->q,
		.y = k->q,
	};
	const struct kern_attention_mass_args mass = {&a, k->chosen_mass};
	int ret = 0;

	if (kind == MODEL_CSA) {
		a.entries = pool_of(r, POOL_CSA, layer);
		a.selected = k->chosen;
		a.k = r->sh.index_topk;
	} else if (kind == MODEL_HCA) {
		a.entries = pool_of(r, POOL_HCA, layer);
	}
	if (kind == MODEL_CSA && r->hooks.on_index)
		ret = rank_run(r, attention_mass, &mass);
	if (ret == 0)
		ret = rank_run(r, attention, &a);
	return ret < 0 ? ret : rank_run(r, rope, &rope);
}

static int project_out(struct rank *r, const struct layer_weights *w, const struct tile *t)
{
	const struct model_config *c = &r->sh.cfg;
	struct work *k = &r->work;
	const struct kern_linear_grouped_args a = {
		.rows = t->rows,
		.groups = r->sh.groups,
		.x = k->q,
		.w = &w->wo_a,
		.act = r->sh.act,
		.scale_pow2 = c->fp8_ue8m0,
		.y = k->oa,
	};
	struct kern_linear_args b = {
		.rows = t->rows,
		.n = 1,
		.x = k->oa,
		.ldx = r->sh.oa_cols,
		.act = r->sh.act,
		.scale_pow2 = c->fp8_ue8m0,
		.out = {{&w->wo_b, k->o + (size_t)t->row0 * c->hidden, c->hidden}},
	};
	int ret;

	ret = rank_run(r, linear_grouped, &a);
	if (ret == 0)
		ret = act_amax_whole(r, k->oa, t->rows, r->sh.oa_cols, r->sh.oa_col0,
			c->o_groups * c->o_lora, k->amax_h, &b.amax);
	return ret < 0 ? ret : rank_run(r, linear, &b);
}

int layer_attention(struct rank *r, uint32_t layer)
{
	const struct layer_weights *w = &r->w.layers[layer];
	uint32_t rows = r->batch.ntok, n;
	int ret;

	ret = hc_enter(r, &w->hc_attn, w->attn_norm);
	if (ret == 0)
		ret = store_all(r, w, layer);
	for (uint32_t row0 = 0; ret == 0 && row0 < rows; row0 += n) {
		struct tile t;

		n = tile_rows(r, layer, row0);
		t = cut_tile(r, row0, n);

		ret = make_queries(r, w, layer, &t);
		if (ret == 0 && r->sh.cfg.layer[layer] == MODEL_CSA)
			ret = index_choose(r, layer, &t.batch, row0);
		if (ret == 0)
			ret = attend(r, w, layer, &t);
		if (ret == 0 && r->hooks.on_index && r->sh.cfg.layer[layer] == MODEL_CSA)
			index_show(r, layer, &t.batch, t.seq0);
		if (ret == 0)
			ret = project_out(r, w, &t);
	}
	if (ret == 0)
		ret = forward_sum(r);
	return ret < 0 ? ret : hc_leave(r);
}
