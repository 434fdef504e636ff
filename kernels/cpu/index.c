/*
 * Reference: index scores. A head's product is one chain of fused multiply-adds over the 128 dims,
 * the score one chain over the heads.
 */
#include "kernels/cpu/index.h"
#include "kernels/cpu/topk.h"

static float score_key(const struct kern_index_args *x, uint32_t row, const float *key)
{
	const float *q = x->q + (size_t)row * x->heads * KERN_INDEX;
	const float *w = x->weights + row * x->ldw;
	float score = 0;

	for (uint32_t h = 0; h < x->heads; h++, q += KERN_INDEX) {
		float dot = 0;

		for (uint32_t i = 0; i < KERN_INDEX; i++)
			dot = kern_fma(q[i], key[i], dot);
		dot = dot < 0 ? 0 : dot;
		score = kern_fma(w[h] * x->scale, dot, score);
	}
	return score;
}

/* Scores of the entries of one page that the row sees, in slot order; returns how many. */
static uint32_t score_page(
	const struct kern_index_args *x, uint32_t row, uint32_t page, float scores[KERN_PAGE])
{
	const struct kern_seq *s = &x->batch->seqs[x->batch->row_seq[row]];
	uint32_t visible = kern_visible(x->batch->row_pos[row], 4), first = page * KERN_PAGE;
	uint32_t n = visible > first ? MIN(visible - first, (uint32_t)KERN_PAGE) : 0;
	float key[KERN_INDEX];

	for (uint32_t i = 0; i < n; i++) {
		kern_index_decode(
			x->format, kern_index_at(kern_index_page(x, s, page), x->format, i), key);
		scores[i] = score_key(x, row, key);
	}
	return n;
}

static void score_part(const void *job, struct kern_cpu_ctx *c, unsigned part, unsigned n)
{
	const struct kern_index_score_args *a = job;
	struct kern_part p = kern_part(a->rows, 1, part, n);
	float scores[KERN_PAGE];

	for (size_t r = p.begin; r < p.end; r++)
		for (uint32_t at = 0; at < a->count; at += KERN_PAGE) {
			uint32_t page = (a->first + at) / KERN_PAGE, seen = 0;
			uint32_t want = MIN(a->count - at, (uint32_t)KERN_PAGE);

			if (kern_index_mine(&a->index, page))
				seen = score_page(&a->index, a->row0 + (uint32_t)r, page, scores);
			for (uint32_t i = 0; i < want; i++)
				a->scores[r * a->count + at + i] = i < seen ? scores[i] : NAN;
		}
}

int KERN_FN(index_score)(const struct kern_index_score_args *a, void *stream)
{
	if (kern_index_score_check(a))
		return -EINVAL;
	kern_run(stream, (size_t)a->rows * a->count * a->index.heads * KERN_INDEX, score_part, a);
	return 0;
}

struct select_job {
	const struct kern_index_select_args *a;
	char *memory;
};

static void select_part(const void *job, struct kern_cpu_ctx *c, unsigned part, unsigned n)
{
	const struct select_job *j = job;
	const struct kern_index_select_args *a = j->a;
	const struct kern_batch *b = a->index.batch;
	struct kern_part p = kern_part(b->ntok, 1, part, n);
	struct kern_topk t;
	float scores[KERN_PAGE];

	for (size_t r = p.begin; r < p.end; r++) {
		uint32_t visible = kern_visible(b->row_pos[r], 4), seen;

		kern_topk_init(&t, j->memory + part * 8 * KERN_TOPK_CAP(a->k), a->k);
		for (uint32_t page = 0; page * KERN_PAGE < visible; page++) {
			if (!kern_index_mine(&a->index, page))
				continue;
			memset(scores, 0, sizeof(scores));
			seen = MIN(visible - page * KERN_PAGE, (uint32_t)KERN_PAGE);
			if (visible > a->k)
				score_page(&a->index, (uint32_t)r, page, scores);
			for (uint32_t i = 0; i < seen; i++)
				kern_topk_push(&t, scores[i], page * KERN_PAGE + i);
		}
		a->count[r] = KERN_FN(topk_finish)(
			&t, a->entries + r * a->k, a->values ? a->values + r * a->k : NULL);
		if (a->nan)
			a->nan[r] = t.nan;
	}
}

int KERN_FN(index_select)(const struct kern_index_select_args *a, void *stream)
{
	struct kern_cpu_ctx *c = stream;
	struct kern_arena arena = kern_arena(c);
	struct select_job j = {a, kern_arena_get(&arena, c->n * 8 * KERN_TOPK_CAP(a->k))};

	if (!a->k || !j.memory || kern_index_check(&a->index))
		return -EINVAL;
	kern_run(c, (size_t)a->index.batch->ntok << 20, select_part, &j);
	return 0;
}
