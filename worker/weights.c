#include "worker/weights.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
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
	unsigned char **at; /* [items] in the arena */
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

/* ---- load callbacks, called by several threads with rows of their own ---------------------------
 */

static float float_at(enum ckpt_elem elem, const void *data, size_t i)
{
	uint16_t h;
	float f;

	if (elem == CKPT_BF16 || elem == CKPT_F16) {
		memcpy(&h, (const char *)data + i * sizeof(h), sizeof(h));
		return elem == CKPT_BF16 ? kern_from_bf16(h) : kern_from_f16(h);
	}
	memcpy(&f, (const char *)data + i * sizeof(f), sizeof(f));
	return f;
}

static int32_t id_at(enum ckpt_elem elem, const void *data, size_t i)
{
	int64_t wide;
	int32_t id;

	if (elem == CKPT_I64) {
		memcpy(&wide, (const char *)data + i * sizeof(wide), sizeof(wide));
		return (int32_t)wide;
	}
	memcpy(&id, (const char *)data + i * sizeof(id), sizeof(id));
	return id;
}

static void keep_floats(const struct plan_item *item, const struct load_rows *rows, float *to)
{
	to += rows->first * item->cols;
	for (uint64_t r = 0; r < rows->n; r++)
		for (uint64_t c = 0; c < item->cols; c++)
			*to++ = float_at(item->elem, rows->data + r * rows->stride, c);
}

static void keep_ids(const struct plan_item *item, const struct load_rows *rows, int32_t *to)
{
	to += rows->first * item->cols;
	for (uint64_t r = 0; r < rows->n; r++)
		for (uint64_t c = 0; c < item->cols; c++)
			*to++ = id_at(item->elem, rows->data + r * rows->stride, c);
}

static void keep_raw(const struct plan_item *item, const struct load_rows *rows, unsigned char *to)
{
	to += rows->first * item->row_bytes;
	for (uint64_t r = 0; r < rows->n; r++)
		memcpy(to + r * item->row_bytes, rows->data + r * rows->stride, item->row_bytes);
}

static int keep_packed(const struct loader *l, const struct load_rows *rows, struct kern_weight *w,
	struct errbuf *err)
{
	const struct plan_item *item = rows->item;
	size_t scale_stride = rows->scale_stride;
	struct errbuf why = {0};
	char name[TENSOR_NAME_MAX];
	int r;

	if (item->scale == CKPT_SCALE_F32)
		scale_stride /= sizeof(float);
	r = kern_weight_pack(w, (uint32_t)rows->first, (uint32_t)rows->n, rows->data, rows->stride,
		rows->scales, scale_stride, &why);
	if (r == 0)
		return 0;
	tensor_name(item->kind, item->layer, item->expert, name);
	return err_set(err, r, EXIT_DATA_ERR, "%s: %s: %s", l->ck->dir, name, why.text);
}

static int on_rows(void *user, const struct load_rows *rows, struct errbuf *err)
{
	const struct loader *l = user;
	const struct plan_item *item = rows->item;
	struct place p = place_of(l, item);

	switch (p.how) {
	case HOW_RAW:
		keep_raw(item, rows, l->at[item - l->plan->items]);
		return 0;
	case HOW_FLOATS:
		keep_floats(item, rows, *p.floats);
		return 0;
	case HOW_IDS:
		keep_ids(item, rows, *p.ids);
		return 0;
	case HOW_PACK:
		return keep_packed(l, rows, p.pack, err);
	}
	return 0;
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

	l->at = calloc(l->plan->n + 1, sizeof(*l->at));
	w->layers = calloc(cfg->layers, sizeof(*w->layers));
	w->experts = calloc(MAX(held, (size_t)1), sizeof(*w->experts));
	w->expert_ptrs = calloc((size_t)cfg->layers * cfg->experts * 3, sizeof(*w->expert_ptrs));
	if (!l->at || !w->layers || !w->experts || !w->expert_ptrs)
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
	l->w->arena = p;
	l->w->bytes = bytes;
	for (size_t i = 0; i < l->plan->n; i++) {
		l->at[i] = p;
		p = (unsigned char *)p + place_bytes(l, &l->plan->items[i]);
	}
	return 0;
}

/* Every item's place in struct weights, before its rows come. */
static int lay_out(const struct loader *l, struct errbuf *err)
{
	for (size_t i = 0; i < l->plan->n; i++) {
		const struct plan_item *item = &l->plan->items[i];
		struct kern_weight_desc d = desc_of(item);
		struct place p = place_of(l, item);
		char name[TENSOR_NAME_MAX];
		struct errbuf why = {0};
		int r = 0;

		if (p.how == HOW_FLOATS)
			*p.floats = (float *)l->at[i];
		else if (p.how == HOW_IDS)
			*p.ids = (int32_t *)l->at[i];
		else if (p.how == HOW_PACK)
			r = kern_weight_init(p.pack, &d, l->at[i], &why);
		if (p.how == HOW_RAW) {
			l->w->embed = l->at[i];
			l->w->embed_dtype = dtype_of[item->elem];
		}
		if (r == 0)
			continue;
		tensor_name(item->kind, item->layer, item->expert, name);
		return err_set(err, r, EXIT_DATA_ERR, "%s: %s: %s", l->ck->dir, name, why.text);
	}
	return 0;
}

/* Vectors that are split over ranks are left out, so that all ranks agree. */
static uint64_t fingerprint(const struct loader *l)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < l->plan->n; i++) {
		const struct plan_item *item = &l->plan->items[i];

		if (place_of(l, item).how == HOW_FLOATS && item->rows == item->all_rows &&
			item->cols == item->all_cols)
			sum += sum_bytes(
				l->at[i], item->rows * item->cols * sizeof(float), item->entry);
	}
	return sum;
}

int weights_load(const struct ckpt *ck, const struct plan *plan, uint32_t threads,
	uint64_t dummy_seed, int (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes),
	void *user, struct weights *ret_weights, struct errbuf *err)
{
	struct weights w = {0};
	struct loader l = {.ck = ck, .plan = plan, .w = &w, .progress = progress, .user = user};
	const struct load_opts opts = {.threads = threads, .dummy_seed = dummy_seed};
	const struct load_ops ops = {.rows = on_rows, .progress = on_progress, .user = &l};
	int r;

	r = make_tables(&l);
	if (r == 0)
		r = make_arena(&l);
	if (r < 0) {
		err_set(err, r, EXIT_OS_ERR, "no memory for %" PRIu64 " MiB of weights",
			plan->bytes >> 20);
		goto fail;
	}
	r = lay_out(&l, err);
	if (r == 0)
		r = load_run(ck, plan, &opts, &ops, NULL, err);
	if (r < 0)
		goto fail;
	w.fingerprint = fingerprint(&l);
	free(l.at);
	*ret_weights = w;
	return 0;
fail:
	free(l.at);
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
