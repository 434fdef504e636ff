/*
 * Vector code: index scores, and selection where several rows share their keys.
 *
 * A page of 64 keys is widened once into a panel [128][64], which then serves as the right-hand
 * side of a product whose rows are (query row, head): each dot product is one chain over the dims,
 * each score one chain over the heads, as in the reference. Query rows of a sequence are taken
 * KERN_SELECT_ROWS at a time; threads share out the pages of a chunk of entries, then the rows,
 * whose candidates compete (topk.h).
 */
#include "kernels/cpu/fast_index.h"

enum { TILE_N = VEC_NV * KERN_GROUP };

/* panel = the keys of a page, cut into panels [128][TILE_N] so that a tile walks its own in order.
 * Slots that were never written hold anything; nobody looks at their scores. */
static void page_panel(enum kern_dtype format, void *page, float *panel)
{
	for (uint32_t b = 0; b < KERN_PAGE / KERN_INDEX_BLOCK; b++) {
		uint32_t g = b * KERN_INDEX_BLOCK;

		index_widen(format, page, b, panel + g / TILE_N * TILE_N * KERN_INDEX + g % TILE_N,
			TILE_N);
	}
}

/* s[VEC_NV] += w * relu(q panel) for mr heads, ascending; mr is a constant. */
VEC_INLINE void head_tile(const int mr, const float *const *q, const float *panel, const float *w,
	const struct tile_ahead *next, v16 s[VEC_NV])
{
	v16 acc[VEC_MR][VEC_NV];

#pragma GCC unroll 8
	for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
		for (int v = 0; v < VEC_NV; v++)
			acc[i][v] = v16_set1(0);
	product_tile(mr, VEC_NV, q, KERN_INDEX, panel, TILE_N, KERN_GROUP, next, acc);
#pragma GCC unroll 8
	for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
		for (int v = 0; v < VEC_NV; v++) /* NaN stays: it is the second operand */
			s[v] = v16_fma(v16_set1(w[i]), v16_max(v16_set1(0), acc[i][v]), s[v]);
}

/* Half of a page of keys by each of the two stretches of a tile; page NULL: nothing. */
static struct tile_ahead page_ahead(const void *page, enum kern_dtype format, const void *here)
{
	size_t half = kern_index_page_bytes(format) / 2;

	if (!page)
		return (struct tile_ahead){{here, here}, 0};
	return (struct tile_ahead){
		{page, (const char *)page + half}, DIV_UP(half, (size_t)KERN_INDEX)};
}

/* Heads of the next tile. Small ones load more than they multiply, so 8 are 4 and 4. */
static uint32_t tile_heads(uint32_t left)
{
	if (left == 8)
		return 4;
	return left >= VEC_MR ? VEC_MR : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* Scores of one row with the 64 slots of a panel. w: its weights, scaled. The first tile asks for
 * what is ahead. */
static void row_scores(const float *q, const float *w, uint32_t heads, const float *panel,
	struct tile_ahead next, float *out)
{
	const struct tile_ahead none = {{(const char *)w, (const char *)w}, 0};

	for (uint32_t e = 0; e < KERN_PAGE; e += TILE_N, panel += TILE_N * KERN_INDEX) {
		v16 s[VEC_NV];
		uint32_t h = 0;
		const float *at[VEC_MR];

		for (int v = 0; v < VEC_NV; v++)
			s[v] = v16_set1(0);
		while (h < heads) {
			uint32_t mr = tile_heads(heads - h);

			for (uint32_t i = 0; i < mr; i++)
				at[i] = q + (size_t)(h + i) * KERN_INDEX;
			if (mr == VEC_MR)
				head_tile(VEC_MR, at, panel, w + h, &next, s);
			else if (mr == 4)
				head_tile(4, at, panel, w + h, &next, s);
			else if (mr == 2)
				head_tile(2, at, panel, w + h, &next, s);
			else
				head_tile(1, at, panel, w + h, &next, s);
			next = none;
			h += mr;
		}
		for (int v = 0; v < VEC_NV; v++)
			v16_store(out + e + v * KERN_GROUP, s[v]);
	}
}

/* A thread's scratch: a panel. */
enum { LANE_FLOATS = KERN_PAGE * KERN_INDEX };

/* A block of neighbouring rows of one sequence, and a chunk of its pages. */
struct block {
	const struct kern_index_args *x;
	const struct kern_seq *s;
	uint32_t row, rows, visible; /* visible: to the last row */
	uint32_t page, pages;        /* the chunk */
	float *scores;               /* [rows][ld] */
	size_t ld;
	float *weights; /* [rows][heads], scaled */
	float *lanes;
};

static void scale_weights(const struct block *b)
{
	const struct kern_index_args *x = b->x;

	for (uint32_t r = 0; r < b->rows; r++)
		for (uint32_t h = 0; h < x->heads; h++)
			b->weights[r * x->heads + h] =
				x->weights[(b->row + r) * x->ldw + h] * x->scale;
}

/* Scores of the chunk's pages that are this rank's; whole pages, also slots no row sees. */
static void score_pages(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct block *b = job;
	const struct kern_index_args *x = b->x;
	struct kern_part p = kern_part(b->pages, 1, i, n);
	float *panel = b->lanes + (size_t)i * LANE_FLOATS;

	for (size_t at = p.begin; at < p.end; at++) {
		uint32_t page = b->page + (uint32_t)at, first = page * KERN_PAGE;
		const void *ahead = NULL;

		if (first >= b->visible || !kern_index_mine(x, page))
			continue;
		page_panel(x->format, kern_index_page(x, b->s, page), panel);
		if (at + 1 < p.end && first + KERN_PAGE < b->visible)
			ahead = kern_index_page(x, b->s, page + 1);
		for (uint32_t r = 0; r < b->rows; r++, ahead = NULL)
			row_scores(x->q + (size_t)(b->row + r) * x->heads * KERN_INDEX,
				b->weights + (size_t)r * x->heads, x->heads, panel,
				page_ahead(ahead, x->format, b->weights),
				b->scores + r * b->ld + at * KERN_PAGE);
	}
}

static void run_scores(struct block *b, struct kern_cpu_ctx *c)
{
	kern_run(c, (size_t)b->pages * KERN_PAGE * KERN_INDEX * (b->rows * b->x->heads + 4),
		score_pages, b);
}

/* Rows from `row` on, before `end`, that share a sequence; at most KERN_SELECT_ROWS. */
static struct block block_at(const struct kern_index_args *x, uint32_t row, uint32_t end)
{
	const struct kern_batch *b = x->batch;
	struct block k = {.x = x, .s = &b->seqs[b->row_seq[row]], .row = row, .rows = 1};

	while (k.rows < KERN_SELECT_ROWS && row + k.rows < end &&
		b->row_seq[row + k.rows] == b->row_seq[row])
		k.rows++;
	k.visible = kern_visible(b->row_pos[row + k.rows - 1], 4);
	return k;
}

static int get_scratch(struct kern_arena *arena, const struct kern_index_args *x,
	struct kern_cpu_ctx *c, struct block *ret)
{
	ret->lanes = kern_arena_get(arena, (size_t)c->n * LANE_FLOATS * sizeof(float));
	ret->weights = kern_arena_get(arena, KERN_SELECT_ROWS * x->heads * sizeof(float));
	ret->scores = kern_arena_get(arena, KERN_SELECT_ROWS * KERN_SELECT_CHUNK * sizeof(float));
	ret->ld = KERN_SELECT_CHUNK;
	return ret->lanes && ret->weights && ret->scores ? 0 : -EINVAL;
}

static void set_scratch(struct block *b, const struct block *scratch)
{
	b->lanes = scratch->lanes;
	b->weights = scratch->weights;
	b->scores = scratch->scores;
	b->ld = scratch->ld;
}

int KERN_FN(index_score)(const struct kern_index_score_args *a, void *stream)
{
	struct kern_cpu_ctx *c = stream;
	struct kern_arena arena = kern_arena(c);
	struct block b, scratch;
	uint32_t end = a->row0 + a->rows;

	if (kern_index_score_check(a) || get_scratch(&arena, &a->index, c, &scratch))
		return -EINVAL;
	for (uint32_t row = a->row0; row < end; row += b.rows) {
		b = block_at(&a->index, row, end);
		set_scratch(&b, &scratch);
		scale_weights(&b);
		for (uint32_t at = 0; at < a->count; at += KERN_SELECT_CHUNK) {
			uint32_t n = MIN(a->count - at, (uint32_t)KERN_SELECT_CHUNK);

			b.page = (a->first + at) / KERN_PAGE;
			b.pages = DIV_UP(n, KERN_PAGE);
			run_scores(&b, c);
			for (uint32_t r = 0; r < b.rows; r++) {
				float *to = a->scores + (size_t)(row - a->row0 + r) * a->count + at;
				uint32_t sees = kern_visible(a->index.batch->row_pos[row + r], 4);

				for (uint32_t i = 0; i < n; i++) {
					uint32_t e = a->first + at + i;

					to[i] = e < sees && kern_index_mine(
								    &a->index, e / KERN_PAGE)
							? b.scores[r * b.ld + i]
							: NAN;
				}
			}
		}
	}
	return 0;
}

/* ---- selection ---- */

struct select_job {
	const struct kern_index_select_args *a;
	struct block b;
	struct kern_topk top[KERN_SELECT_ROWS];
};

/* The chunk's scores compete, rows shared out among threads. */
static void compete_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct select_job *j = job;
	const struct block *b = &j->b;
	struct kern_part p = kern_part(b->rows, 1, i, n);
	const uint32_t page = KERN_PAGE;

	for (size_t r = p.begin; r < p.end; r++) {
		uint32_t sees = kern_visible(b->x->batch->row_pos[b->row + r], 4);
		struct kern_topk *t = (struct kern_topk *)&j->top[r];

		if (sees <= j->a->k)
			continue;
		for (uint32_t g = 0; g < b->pages; g++) {
			uint32_t first = (b->page + g) * KERN_PAGE;

			const float *scores = b->scores + r * b->ld + (size_t)g * KERN_PAGE;

			if (first < sees && kern_index_mine(b->x, b->page + g))
				KERN_FN(topk_push_all)(t, scores, MIN(sees - first, page), first);
		}
	}
}

static void finish_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct select_job *j = job;
	const struct kern_batch *batch = j->a->index.batch;
	struct kern_part p = kern_part(j->b.rows, 1, i, n);

	for (size_t r = p.begin; r < p.end; r++) {
		uint32_t row = j->b.row + (uint32_t)r;

		if (kern_visible(batch->row_pos[row], 4) <= j->a->k)
			index_take_all(j->a, row);
		else
			index_put_row(j->a, row, (struct kern_topk *)&j->top[r]);
	}
}

/* Rows of j->b, whose candidates lie in memory[rows][KERN_TOPK_CAP]. */
static void select_block(struct select_job *j, char *memory, struct kern_cpu_ctx *c)
{
	const struct kern_index_select_args *a = j->a;
	uint32_t visible = j->b.visible > a->k ? j->b.visible : 0;

	scale_weights(&j->b);
	for (uint32_t r = 0; r < j->b.rows; r++)
		kern_topk_init(&j->top[r], memory + r * 8 * KERN_TOPK_CAP(a->k), a->k);
	for (uint32_t at = 0; at < visible; at += KERN_SELECT_CHUNK) {
		uint32_t n = MIN(visible - at, (uint32_t)KERN_SELECT_CHUNK);

		j->b.page = at / KERN_PAGE;
		j->b.pages = DIV_UP(n, KERN_PAGE);
		run_scores(&j->b, c);
		kern_run(c, (size_t)j->b.rows * n * 4, compete_part, j);
	}
	kern_run(c, (size_t)j->b.rows * a->k * 8, finish_part, j);
}

/* How many rows from `row` on share their keys with no row after them. */
static uint32_t single_rows(const struct kern_batch *b, uint32_t row)
{
	uint32_t end = row;

	while (end < b->ntok && (end + 1 == b->ntok || b->row_seq[end] != b->row_seq[end + 1]))
		end++;
	return end - row;
}

int KERN_FN(index_select)(const struct kern_index_select_args *a, void *stream)
{
	struct kern_cpu_ctx *c = stream;
	struct kern_arena arena = kern_arena(c);
	const struct kern_batch *batch = a->index.batch;
	struct select_job j = {.a = a};
	struct index_lane *lanes;
	struct block scratch;
	char *memory;

	lanes = KERN_FN(index_lanes)(&arena, a, c->n);
	memory = kern_arena_get(&arena, KERN_SELECT_ROWS * 8 * KERN_TOPK_CAP(a->k));
	if (!a->k || !lanes || !memory || kern_index_check(&a->index) ||
		get_scratch(&arena, &a->index, c, &scratch))
		return -EINVAL;
	for (uint32_t row = 0; row < batch->ntok; row += j.b.rows) {
		j.b = block_at(&a->index, row, batch->ntok);
		if (j.b.rows > 1) {
			set_scratch(&j.b, &scratch);
			select_block(&j, memory, c);
			continue;
		}
		j.b.rows = single_rows(batch, row);
		KERN_FN(index_select_few)(a, row, j.b.rows, lanes, c);
	}
	return 0;
}
