#include "worker/ckpt/plan.h"

#include <stdlib.h>
#include <string.h>

/* Takes rows [begin, end) or columns of the whole. */
static void cut(uint64_t n, uint32_t rank, uint32_t world, uint64_t *ret_at, uint64_t *ret_n)
{
	*ret_at = plan_cut(n, rank, world);
	*ret_n = plan_cut(n, rank + 1, world) - *ret_at;
}

/* The slice of the whole that the rank holds; false: none. */
static bool slice(const struct plan *plan, const struct ckpt_entry *e, struct plan_item *it)
{
	enum tensor_split split = tensor_row(e->kind)->split;
	bool whole = split == TENSOR_SPLIT_FULL;

	it->rows = it->all_rows = e->shape.rows;
	it->cols = it->all_cols = e->shape.cols;
	it->row0 = it->col0 = 0;
	if (split == TENSOR_SPLIT_EXPERT_ROWS || split == TENSOR_SPLIT_EXPERT_COLS) {
		if ((uint32_t)e->expert < plan->expert0 ||
			(uint32_t)e->expert >= plan->expert0 + plan->expert_n)
			return false;
		whole = plan->experts_by_id;
	}
	if (whole)
		return true;
	if (split == TENSOR_SPLIT_COLS || split == TENSOR_SPLIT_EXPERT_COLS ||
		split == TENSOR_SPLIT_SHARED_COLS)
		cut(it->all_cols, plan->rank, plan->world, &it->col0, &it->cols);
	else
		cut(it->all_rows, plan->rank, plan->world, &it->row0, &it->rows);
	return it->rows > 0 && it->cols > 0;
}

/* First block and number of blocks that [at, at + n) touches. */
static void touch(uint64_t at, uint64_t n, uint32_t block, uint64_t *ret_at, uint64_t *ret_n)
{
	*ret_at = at / block;
	*ret_n = DIV_UP(at + n, block) - *ret_at;
}

static void scales(const struct model_config *cfg, const struct ckpt_entry *e, struct plan_item *it)
{
	struct tensor_shape all = ckpt_scale_shape(cfg, e);

	it->scale = e->scale;
	if (e->scale == CKPT_SCALE_NONE)
		return;
	it->block = tensor_block(cfg, e->elem);
	it->scale_all_rows = all.rows;
	it->scale_all_cols = all.cols;
	touch(it->row0, it->rows, it->block.rows, &it->scale_row0, &it->scale_rows);
	touch(it->col0, it->cols, it->block.cols, &it->scale_col0, &it->scale_cols);
	it->scale_bytes = ckpt_scale_bytes(it->scale, it->scale_rows * it->scale_cols);
}

int plan_build(const struct ckpt *ck, uint32_t rank, uint32_t world, struct plan *ret_plan,
	struct errbuf *err)
{
	struct plan p = {.rank = rank, .world = world};
	uint64_t first, n;
	int ret;

	ret = model_config_check_world(&ck->cfg, world, err);
	if (ret < 0)
		return ret;
	if (rank >= world)
		return err_set(
			err, -EINVAL, EXIT_CONFIG_ERR, "there is no worker %u of %u", rank, world);
	p.experts_by_id = model_experts_by_id(&ck->cfg, world);
	cut(ck->cfg.experts, rank, world, &first, &n);
	p.expert0 = p.experts_by_id ? (uint32_t)first : 0;
	p.expert_n = p.experts_by_id ? (uint32_t)n : ck->cfg.experts;
	p.items = calloc(ck->entry_n, sizeof(*p.items));
	if (!p.items)
		return err_set(err, -ENOMEM, EXIT_OS_ERR, "no memory for the shard plan");
	for (size_t i = 0; i < ck->entry_n; i++) {
		const struct ckpt_entry *e = &ck->entries[i];
		struct plan_item *it = &p.items[p.n];

		if (!slice(&p, e, it)) {
			memset(it, 0, sizeof(*it));
			continue;
		}
		it->kind = e->kind;
		it->layer = e->layer;
		it->expert = e->expert;
		it->elem = e->elem;
		it->entry = i;
		it->row_bytes = ckpt_elem_bytes(it->elem, it->cols);
		it->bytes = it->rows * it->row_bytes;
		scales(&ck->cfg, e, it);
		p.bytes += it->bytes + it->scale_bytes;
		p.n++;
	}
	*ret_plan = p;
	return 0;
}

void plan_fini(struct plan *plan)
{
	free(plan->items);
	memset(plan, 0, sizeof(*plan));
}
