#include "worker/weights.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "shm/sum.h"

/* What becomes of a tensor. */
enum how {
	HOW_PACK,   /* kern_weight */
	HOW_FLOATS, /* fp32 vector */
	HOW_IDS,    /* int32 table */
	HOW_RAW     /* as it is */
};

struct place {
	enum how how;
	union {
		struct kern_weight *pack;
		float **floats;
		int32_t **ids;
	};
};

struct loader {
	const struct ckpt *ck;
	const struct plan *plan;
	struct weights *w;
	unsigned char *next; /* free part of the arena */
	void **staged;       /* [2 x items]: data and scales being read, to free after a failure */
	int (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes);
	void *user;
};

#define ARENA_ALIGN 64

static const enum kern_dtype dtype_of[CKPT_ELEM__COUNT] = {
	[CKPT_F32] = KERN_F32,
	[CKPT_BF16] = KERN_BF16,
	[CKPT_F16] = KERN_F16,
	[CKPT_F8_E4M3] = KERN_FP8,
	[CKPT_F4_E2M1] = KERN_FP4,
};

static struct place pack(struct kern_weight *w)
{
	return (struct place){.how = HOW_PACK, .pack = w};
}

static struct place floats(float **p)
{
	return (struct place){.how = HOW_FLOATS, .floats = p};
}

static struct kern_weight *expert_weight(
	const struct loader *l, const struct plan_item *item, unsigned matrix)
{
	uint32_t nth = (uint32_t)item->expert - l->plan->expert0;

	return &l->w->experts[((size_t)item->layer * l->plan->expert_n + nth) * 3 + matrix];
}

/* Where each kind of tensor goes. */
static struct place place_of(const struct loader *l, const struct plan_item *item)
{
	struct weights *w = l->w;
	struct layer_weights *y = item->layer >= 0 ? &w->layers[item->layer] : NULL;

	switch (item->kind) {
	case TENSOR_EMBED:
		return (struct place){.how = HOW_RAW};
	case TENSOR_NORM:
		return floats(&w->norm);
	case TENSOR_HEAD:
		return pack(&w->head);
	case TENSOR_HC_HEAD_FN:
		return pack(&w->hc_head.fn);
	case TENSOR_HC_HEAD_BASE:
		return floats(&w->hc_head.base);
	case TENSOR_HC_HEAD_SCALE:
		return floats(&w->hc_head.scale);
	case TENSOR_ATTN_NORM:
		return floats(&y->attn_norm);
	case TENSOR_FFN_NORM:
		return floats(&y->ffn_norm);
	case TENSOR_HC_ATTN_FN:
		return pack(&y->hc_attn.fn);
	case TENSOR_HC_ATTN_BASE:
		return floats(&y->hc_attn.base);
	case TENSOR_HC_ATTN_SCALE:
		return floats(&y->hc_attn.scale);
	case TENSOR_HC_FFN_FN:
		return pack(&y->hc_ffn.fn);
	case TENSOR_HC_FFN_BASE:
		return floats(&y->hc_ffn.base);
	case TENSOR_HC_FFN_SCALE:
		return floats(&y->hc_ffn.scale);
	case TENSOR_WQ_A:
		return pack(&y->wq_a);
	case TENSOR_Q_NORM:
		return floats(&y->q_norm);
	case TENSOR_WQ_B:
		return pack(&y->wq_b);
	case TENSOR_WKV:
		return pack(&y->wkv);
	case TENSOR_KV_NORM:
		return floats(&y->kv_norm);
	case TENSOR_WO_A:
		return pack(&y->wo_a);
	case TENSOR_WO_B:
		return pack(&y->wo_b);
	case TENSOR_ATTN_SINK:
		return floats(&y->sink);
	case TENSOR_COMP_APE:
		return floats(&y->comp.ape);
	case TENSOR_COMP_WKV:
		return pack(&y->comp.wkv);
	case TENSOR_COMP_WGATE:
		return pack(&y->comp.wgate);
	case TENSOR_COMP_NORM:
		return floats(&y->comp.norm);
	case TENSOR_INDEX_WQ_B:
		return pack(&y->index_wq_b);
	case TENSOR_INDEX_WEIGHTS:
		return pack(&y->index_weights);
	case TENSOR_INDEX_APE:
		return floats(&y->index.ape);
	case TENSOR_INDEX_WKV:
		return pack(&y->index.wkv);
	case TENSOR_INDEX_WGATE:
		return pack(&y->index.wgate);
	case TENSOR_INDEX_NORM:
		return floats(&y->index.norm);
	case TENSOR_GATE:
		return pack(&y->gate);
	case TENSOR_GATE_TID2EID:
		return (struct place){.how = HOW_IDS, .ids = &y->tid2eid};
	case TENSOR_GATE_BIAS:
		return floats(&y->gate_bias);
	case TENSOR_SHARED_W1:
		return pack(&y->shared_w1);
	case TENSOR_SHARED_W2:
		return pack(&y->shared_w2);
	case TENSOR_SHARED_W3:
		return pack(&y->shared_w3);
	case TENSOR_EXPERT_W1:
		return pack(expert_weight(l, item, 0));
	case TENSOR_EXPERT_W2:
		return pack(expert_weight(l, item, 1));
	case TENSOR_EXPERT_W3:
		return pack(expert_weight(l, item, 2));
	case TENSOR__COUNT:
		break;
	}
	abort();
}

static struct kern_weight_desc desc_of(const struct plan_item *item)
{
	static const enum kern_scale scale[] = {
		[CKPT_SCALE_NONE] = KERN_SCALE_NONE,
		[CKPT_SCALE_E8M0] = KERN_SCALE_E8M0,
		[CKPT_SCALE_F32] = KERN_SCALE_F32,
	};

	return (struct kern_weight_desc){
		.dtype = dtype_of[item->elem],
		.scale = scale[item->scale],
		.n = (uint32_t)item->rows,
		.k = (uint32_t)item->cols,
		.row0 = (uint32_t)item->row0,
		.col0 = (uint32_t)item->col0,
	};
}

static size_t place_bytes(const struct loader *l, const struct plan_item *item)
{
	struct kern_weight_desc d = desc_of(item);
	size_t n = item->rows * item->cols, bytes = 0;

	switch (place_of(l, item).how) {
	case HOW_PACK:
		bytes = kern_weight_bytes(&d);
		break;
	case HOW_FLOATS:
		bytes = n * sizeof(float);
		break;
	case HOW_IDS:
		bytes = n * sizeof(int32_t);
		break;
	case HOW_RAW:
		bytes = item->bytes;
		break;
	}
	return ALIGN_UP(bytes, (size_t)ARENA_ALIGN);
}

static void *take(struct loader *l, const struct plan_item *item)
{
	void *p = l->next;

	l->next += place_bytes(l, item);
	return p;
}

/* ---- load callbacks ------------------------------------------------------------------------ */

static void **staged_of(const struct loader *l, const struct plan_item *item)
{
	return l->staged + 2 * (item - l->plan->items);
}

/* Everything but the embedding is read into a buffer of its own and rearranged in on_done(). */
static int on_place(void *user, const struct plan_item *item, void **ret_data, void **ret_scales,
	struct errbuf *err)
{
	struct loader *l = user;
	void *data, *scales = NULL;

	if (place_of(l, item).how == HOW_RAW) {
		*ret_data = take(l, item);
		return 0;
	}
	data = malloc(item->bytes);
	if (item->scale_bytes)
		scales = malloc(item->scale_bytes);
	if (!data || (item->scale_bytes && !scales)) {
		free(data);
		free(scales);
		return err_set(err, -ENOMEM, EXIT_OS_ERR,
			"no memory for %" PRIu64 " bytes of a tensor while loading", item->bytes);
	}
	staged_of(l, item)[0] = *ret_data = data;
	if (item->scale_bytes)
		staged_of(l, item)[1] = *ret_scales = scales;
	return 0;
}

static void unstage(struct loader *l, const struct plan_item *item)
{
	void **staged = staged_of(l, item);

	free(staged[0]);
	free(staged[1]);
	staged[0] = staged[1] = NULL;
}

static float float_at(enum ckpt_elem elem, const void *data, size_t i)
{
	if (elem == CKPT_BF16)
		return kern_from_bf16(((const uint16_t *)data)[i]);
	if (elem == CKPT_F16)
		return kern_from_f16(((const uint16_t *)data)[i]);
	return ((const float *)data)[i];
}

static void keep_floats(
	struct loader *l, const struct plan_item *item, const void *data, float **ret_floats)
{
	size_t n = item->rows * item->cols;
	float *to = take(l, item);

	for (size_t i = 0; i < n; i++)
		to[i] = float_at(item->elem, data, i);
	/* Added up, not chained: tensors arrive in no fixed order. Vectors that are split over
	 * ranks are left out, so that all ranks agree. */
	if (item->rows == item->all_rows && item->cols == item->all_cols)
		l->w->fingerprint += sum_bytes(to, n * sizeof(float), item->entry);
	*ret_floats = to;
}

static void keep_ids(
	struct loader *l, const struct plan_item *item, const void *data, int32_t **ret_ids)
{
	size_t n = item->rows * item->cols;
	int32_t *to = take(l, item);

	for (size_t i = 0; i < n; i++)
		to[i] = item->elem == CKPT_I64 ? (int32_t)((const int64_t *)data)[i]
					       : ((const int32_t *)data)[i];
	*ret_ids = to;
}

static int keep_packed(struct loader *l, const struct plan_item *item, const void *data,
	const void *scales, struct kern_weight *w, struct errbuf *err)
{
	struct kern_weight_desc d = desc_of(item);
	struct errbuf why = {0};
	char name[TENSOR_NAME_MAX];
	int r;

	r = kern_weight_init(w, &d, take(l, item), &why);
	if (r == 0)
		r = kern_weight_pack(w, 0, d.n, data, item->row_bytes, scales,
			scales ? item->scale_cols : 0, &why);
	if (r == 0)
		return 0;
	tensor_name(item->kind, item->layer, item->expert, name);
	return err_set(err, r, EXIT_DATA_ERR, "%s: %s: %s", l->ck->dir, name, why.text);
}

static int on_done(
	void *user, const struct plan_item *item, void *data, void *scales, struct errbuf *err)
{
	struct loader *l = user;
	struct place p = place_of(l, item);
	int r = 0;

	switch (p.how) {
	case HOW_RAW:
		l->w->embed = data;
		l->w->embed_dtype = dtype_of[item->elem];
		return 0;
	case HOW_FLOATS:
		keep_floats(l, item, data, p.floats);
		break;
	case HOW_IDS:
		keep_ids(l, item, data, p.ids);
		break;
	case HOW_PACK:
		r = keep_packed(l, item, data, scales, p.pack, err);
		break;
	}
	unstage(l, item);
	return r;
}

static int on_progress(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
	struct loader *l = user;

	return l->progress ? l->progress(l->user, done_bytes, total_bytes) : 0;
}

/* ---- the whole ------------------------------------------------------------------------------ */

/* Tables of experts: [layer][expert] pointers, NULL for those of other ranks. */
static int make_tables(struct loader *l)
{
	const struct model_config *cfg = &l->ck->cfg;
	size_t held = (size_t)cfg->layers * l->plan->expert_n * 3;
	struct weights *w = l->w;

	l->staged = calloc(2 * l->plan->n, sizeof(*l->staged));
	w->layers = calloc(cfg->layers, sizeof(*w->layers));
	w->experts = calloc(MAX(held, (size_t)1), sizeof(*w->experts));
	w->expert_ptrs = calloc((size_t)cfg->layers * cfg->experts * 3, sizeof(*w->expert_ptrs));
	if (!l->staged || !w->layers || !w->experts || !w->expert_ptrs)
		return -ENOMEM;
	for (uint32_t i = 0; i < cfg->layers; i++) {
		const struct kern_weight **ptrs = w->expert_ptrs + (size_t)i * cfg->experts * 3;
		const struct kern_weight *first = w->experts + (size_t)i * l->plan->expert_n * 3;
		struct layer_weights *y = &w->layers[i];

		y->w1 = ptrs;
		y->w2 = ptrs + cfg->experts;
		y->w3 = ptrs + 2 * cfg->experts;
		for (uint32_t e = 0; e < l->plan->expert_n; e++) {
			y->w1[l->plan->expert0 + e] = first + e * 3;
			y->w2[l->plan->expert0 + e] = first + e * 3 + 1;
			y->w3[l->plan->expert0 + e] = first + e * 3 + 2;
		}
	}
	return 0;
}

static int make_arena(struct loader *l)
{
	uint64_t bytes = 0;
	void *p;

	for (size_t i = 0; i < l->plan->n; i++)
		bytes += place_bytes(l, &l->plan->items[i]);
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return -ENOMEM;
	/* Weights are read front to back all day; a kernel without huge pages ignores it. */
	(void)madvise(p, bytes, MADV_HUGEPAGE);
	l->w->arena = l->next = p;
	l->w->bytes = bytes;
	return 0;
}

int weights_load(const struct ckpt *ck, const struct plan *plan, uint64_t dummy_seed,
	int (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes), void *user,
	struct weights *ret_weights, struct errbuf *err)
{
	struct weights w = {0};
	struct loader l = {.ck = ck, .plan = plan, .w = &w, .progress = progress, .user = user};
	const struct load_opts opts = {.dummy_seed = dummy_seed};
	const struct load_ops ops = {
		.place = on_place, .done = on_done, .progress = on_progress, .user = &l};
	int r;

	r = make_tables(&l);
	if (r == 0)
		r = make_arena(&l);
	if (r < 0) {
		err_set(err, r, EXIT_OS_ERR, "no memory for %" PRIu64 " MiB of weights",
			plan->bytes >> 20);
		goto fail;
	}
	r = load_run(ck, plan, &opts, &ops, NULL, err);
	if (r < 0)
		goto fail;
	free(l.staged);
	*ret_weights = w;
	return 0;
fail:
	for (size_t i = 0; l.staged && i < plan->n; i++)
		unstage(&l, &plan->items[i]);
	free(l.staged);
	weights_free(&w);
	return r;
}

void weights_free(struct weights *w)
{
	if (w->arena)
		munmap(w->arena, w->bytes);
	free(w->layers);
	free(w->experts);
	free(w->expert_ptrs);
	*w = (struct weights){0};
}
