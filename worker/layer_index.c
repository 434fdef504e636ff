/*
 * Which compressed entries the queries of a tile attend to in a CSA layer (model.md 6). With many
 * entries each rank scores its share of the pages and takes its own top-k; the lists are gathered
 * and merged, which gives exactly what one rank alone would have chosen, ties included.
 */
#include <math.h>

#include "worker/rank_impl.h"

static struct kern_pool key_pool(const struct rank *r, uint32_t layer)
{
	const struct pool *p = &r->pools.pool[POOL_KEYS];

	return (struct kern_pool){.base = pool_layer(p, r->sh.nth[layer]), .stride = p->page_bytes};
}

static bool worth_sharing(const struct rank *r, const struct kern_batch *batch)
{
	uint32_t most = 0;

	if (r->sh.world == 1)
		return false;
	for (uint32_t i = 0; i < batch->nseq; i++) {
		const struct kern_seq *s = &batch->seqs[i];

		most = MAX(most, kern_visible(s->pos0 + s->n - 1, MODEL_CSA_RATIO));
	}
	return most >= r->sh.shard_entries && most > r->sh.index_topk;
}

/* This rank's lists of a tile as [entries][scores][counts], so that one gather does. */
static void pack(struct rank *r, uint32_t rows)
{
	size_t lists = (size_t)rows * r->sh.index_topk;
	struct work *k = &r->work;

	memcpy(k->packed, k->chosen, lists * sizeof(*k->packed));
	memcpy(k->packed + lists, k->chosen_score, lists * sizeof(*k->packed));
	memcpy(k->packed + 2 * lists, k->chosen_n, rows * sizeof(*k->packed));
}

/* Everybody's. */
static void unpack(struct rank *r, uint32_t rows)
{
	size_t lists = (size_t)rows * r->sh.index_topk, each = 2 * lists + rows;
	struct work *k = &r->work;

	for (uint32_t w = 0; w < r->sh.world; w++) {
		const int32_t *from = k->all_packed + w * each;

		memcpy(k->all_chosen + w * lists, from, lists * sizeof(*from));
		memcpy(k->all_score + w * lists, from + lists, lists * sizeof(*from));
		memcpy(k->all_n + (size_t)w * rows, from + 2 * lists, rows * sizeof(*from));
	}
}

static int merge(struct rank *r, uint32_t rows)
{
	size_t each = ((size_t)rows * (2 * r->sh.index_topk + 1)) * sizeof(int32_t);
	struct work *k = &r->work;
	const struct kern_index_merge_args a = {
		.rows = rows,
		.k = r->sh.index_topk,
		.lists = r->sh.world,
		.entries = k->all_chosen,
		.values = k->all_score,
		.counts = k->all_n,
		.out_entries = k->chosen,
		.out_count = k->chosen_n,
	};
	int ret;

	pack(r, rows);
	ret = comm_all_gather(r->comm, k->packed, each, k->all_packed);
	if (ret < 0)
		return ret;
	unpack(r, rows);
	return rank_run(r, index_merge, &a);
}

/* For the hook alone: the merged entries' scores, looked up in the lists they came from. */
static void find_scores(struct rank *r, uint32_t rows)
{
	uint32_t topk = r->sh.index_topk, world = r->sh.world;
	struct work *k = &r->work;

	for (uint32_t row = 0; row < rows; row++)
		for (uint32_t i = 0; i < k->chosen_n[row]; i++) {
			int32_t entry = k->chosen[(size_t)row * topk + i];
			size_t list = kern_share_rank((uint32_t)entry / KERN_PAGE, world);
			size_t at = (list * rows + row) * topk;

			for (uint32_t j = 0; j < k->all_n[list * rows + row]; j++)
				if (k->all_chosen[at + j] == entry)
					k->chosen_score[(size_t)row * topk + i] =
						k->all_score[at + j];
		}
}

int index_choose(struct rank *r, uint32_t layer, const struct kern_batch *batch, uint32_t row0)
{
	const struct model_config *c = &r->sh.cfg;
	bool share = worth_sharing(r, batch);
	struct work *k = &r->work;
	struct kern_index_select_args a = {
		.index = {.batch = batch,
			.heads = c->index_heads,
			.q = k->index_q,
			.weights = k->index_w + (size_t)row0 * c->index_heads,
			.ldw = c->index_heads,
			.scale = 1.0f / sqrtf((float)KERN_INDEX) / sqrtf((float)c->index_heads),
			.format = r->sh.key,
			.pool = key_pool(r, layer),
			.share = {.rank = share ? r->sh.rank : 0,
				.world = share ? r->sh.world : 1}},
		.k = r->sh.index_topk,
		.entries = k->chosen,
		.values = k->chosen_score,
		.count = k->chosen_n,
	};
	int ret;

	ret = rank_run(r, index_select, &a);
	if (ret == 0 && share)
		ret = merge(r, batch->ntok);
	if (ret == 0 && share && r->hooks.on_index)
		find_scores(r, batch->ntok);
	return ret;
}

void index_show(struct rank *r, uint32_t layer, const struct kern_batch *batch, uint32_t seq0)
{
	uint32_t topk = r->sh.index_topk;
	struct work *k = &r->work;

	for (uint32_t i = 0; i < batch->ntok; i++) {
		bool all = kern_visible(batch->row_pos[i], MODEL_CSA_RATIO) <= topk;
		size_t at = (size_t)i * topk;

		r->hooks.on_index(r->hooks.user, layer, k->seq_rows[seq0 + batch->row_seq[i]],
			batch->row_pos[i], (const uint32_t *)k->chosen + at,
			all ? NULL : k->chosen_score + at, k->chosen_mass + at, k->chosen_n[i]);
	}
}
