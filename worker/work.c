#include <sys/mman.h>

#include "worker/rank_impl.h"

/* Hands out parts of the arena, 64-aligned; with base NULL it only counts. */
struct cutter {
	unsigned char *base;
	size_t used;
};

static void *cut(struct cutter *c, size_t n, size_t each)
{
	unsigned char *p = c->base ? c->base + c->used : NULL;

	c->used += ALIGN_UP(n * each, (size_t)64);
	return p;
}

#define CUT(c, field, n) ((field) = cut((c), (n), sizeof(*(field))))

static void cut_rows(struct cutter *c, struct kern_rows *rows, uint32_t ratio, size_t n)
{
	rows->ratio = ratio;
	CUT(c, rows->seq, n);
	CUT(c, rows->index, n);
	CUT(c, rows->pos, n);
}

static void cut_step(struct cutter *c, const struct shape *sh, struct work *w)
{
	const struct model_config *m = &sh->cfg;
	size_t s = sh->step_tokens;

	CUT(c, w->tokens, s);
	CUT(c, w->row_seq, s);
	CUT(c, w->row_pos, s);
	CUT(c, w->seqs, sh->sequences);
	CUT(c, w->seq_rows, sh->sequences);
	cut_rows(c, &w->raw, 1, s);
	cut_rows(c, &w->csa, MODEL_CSA_RATIO, s);
	cut_rows(c, &w->hca, MODEL_HCA_RATIO, s);
	CUT(c, w->cs_swa, s * KERN_ROPE);
	CUT(c, w->cs_comp, s * KERN_ROPE);
	CUT(c, w->cs_csa, s * KERN_ROPE);
	CUT(c, w->cs_hca, s * KERN_ROPE);
	CUT(c, w->x, s * KERN_STREAMS * m->hidden);
	CUT(c, w->y, s * m->hidden);
	CUT(c, w->o, s * m->hidden);
	CUT(c, w->pre, s * KERN_STREAMS);
	CUT(c, w->post, s * KERN_STREAMS);
	CUT(c, w->comb, s * KERN_STREAMS * KERN_STREAMS);
	CUT(c, w->qr, s * m->q_lora);
	CUT(c, w->kv, s * KERN_HEAD);
	CUT(c, w->comp_v, s * 2 * KERN_HEAD);
	CUT(c, w->comp_g, s * 2 * KERN_HEAD);
	CUT(c, w->index_v, s * 2 * KERN_INDEX);
	CUT(c, w->index_g, s * 2 * KERN_INDEX);
	CUT(c, w->index_pooled, s * KERN_INDEX);
	CUT(c, w->index_w, s * m->index_heads);
}

static void cut_attention(struct cutter *c, const struct shape *sh, struct work *w)
{
	size_t r = sh->tile_rows, lists = r * sh->index_topk;

	CUT(c, w->tile_row_seq, r);
	CUT(c, w->tile_seqs, r);
	CUT(c, w->q, r * sh->heads * KERN_HEAD);
	CUT(c, w->oa, r * sh->oa_cols);
	if (!sh->kind_n[MODEL_CSA])
		return;
	CUT(c, w->index_q, r * sh->cfg.index_heads * KERN_INDEX);
	CUT(c, w->chosen, lists);
	CUT(c, w->chosen_score, lists);
	CUT(c, w->chosen_n, r);
	CUT(c, w->chosen_mass, lists);
	if (sh->world == 1)
		return;
	CUT(c, w->packed, 2 * lists + r);
	CUT(c, w->all_packed, sh->world * (2 * lists + r));
	CUT(c, w->all_chosen, sh->world * lists);
	CUT(c, w->all_score, sh->world * lists);
	CUT(c, w->all_n, sh->world * r);
}

static void cut_experts(struct cutter *c, const struct shape *sh, struct work *w)
{
	size_t r = sh->tile_rows, k = sh->cfg.experts_per_token;

	CUT(c, w->gate, r * sh->cfg.experts);
	CUT(c, w->ids, r * k);
	CUT(c, w->id_weights, r * k);
	CUT(c, w->h, r * k * sh->inter);
	CUT(c, w->shared_h, r * sh->shared_inter);
}

/* Largest magnitudes of 128-groups, needed where slices cut them. */
static void cut_amax(struct cutter *c, const struct shape *sh, struct work *w)
{
	size_t r = sh->tile_rows, pairs = r * sh->cfg.experts_per_token;
	size_t experts = DIV_UP((size_t)sh->cfg.inter, 128) + 1;
	size_t out = DIV_UP((size_t)sh->cfg.o_groups * sh->cfg.o_lora, 128) + 1;
	size_t most = MAX(pairs * experts, r * out);

	if (sh->act != KERN_ACT_FP8 || sh->world == 1)
		return;
	CUT(c, w->amax_h, most);
	CUT(c, w->amax_shared, r * experts);
	CUT(c, w->amax_whole, most);
	CUT(c, w->amax_all, sh->world * most);
}

static void cut_head(struct cutter *c, const struct shape *sh, struct work *w)
{
	size_t l = SHAPE_HEAD_ROWS;

	CUT(c, w->hidden, l * sh->cfg.hidden);
	CUT(c, w->hidden_rows, l * sh->cfg.hidden);
	CUT(c, w->part, l * sh->vocab);
	if (sh->world > 1)
		CUT(c, w->parts, sh->world * l * sh->vocab);
	CUT(c, w->logits, l * sh->cfg.vocab);
	CUT(c, w->reports, l);
	CUT(c, w->report_token, l);
	CUT(c, w->report_top, l);
	CUT(c, w->alt_token, l * MSG_LOGPROBS_MAX);
	CUT(c, w->alt_logprob, l * MSG_LOGPROBS_MAX);
	CUT(c, w->sampled, sh->sequences);
}

static void cut_all(struct cutter *c, const struct shape *sh, struct work *w)
{
	cut_step(c, sh, w);
	cut_attention(c, sh, w);
	cut_experts(c, sh, w);
	cut_amax(c, sh, w);
	cut_head(c, sh, w);
}

size_t work_bytes(const struct shape *sh)
{
	struct cutter c = {0};
	struct work w;

	cut_all(&c, sh, &w);
	return c.used;
}

int work_open(const struct shape *sh, struct work *ret_work)
{
	struct work w = {.bytes = work_bytes(sh)};
	struct cutter c = {0};
	void *p;

	p = mmap(NULL, w.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return -ENOMEM;
	(void)madvise(p, w.bytes, MADV_HUGEPAGE);
	w.arena = c.base = p;
	cut_all(&c, sh, &w);
	*ret_work = w;
	return 0;
}

void work_close(struct work *w)
{
	if (w->arena)
		munmap(w->arena, w->bytes);
	*w = (struct work){0};
}
