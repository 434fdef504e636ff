/*
 * Vector code: selection for rows each of which has its keys to itself, as in decode. Keys are
 * scored from where they lie (or a strip of them, widened, where they are in 8 or 4 bits), for 16
 * keys and all heads in registers, and compete at once. Threads share out the strips of all rows
 * evenly, in order; a row that is cut so is put together by the caller from the best of each part.
 * One barrier, whatever the rows.
 */
#include "kernels/cpu/fast_index.h"

/* A register tile: heads x blocks of 16 keys. A strip is two blocks. */
#if VEC_WIDE
enum { FEW_HEADS = 8, FEW_BLOCKS = 2 };
#else
enum { FEW_HEADS = 4, FEW_BLOCKS = 1 };
#endif
enum { STRIP_BLOCKS = 2, STRIP = STRIP_BLOCKS * KERN_INDEX_BLOCK };

struct few {
	const struct kern_index_select_args *a;
	uint32_t row, rows;
	size_t units; /* of all rows: row_units() */
	struct index_lane *lanes;
};

/* ---- scores of a strip ---- */

/* acc[mr][FEW_BLOCKS] += q[mr][128] keys, of blocks from `keys` on; mr and pairs (bf16 in pairs, as
 * in a page; else f32) are constants. */
VEC_INLINE void few_tile(const int mr, const bool pairs, const float *q, const uint8_t *keys,
	const struct tile_ahead *next, v16 acc[][FEW_BLOCKS])
{
	const size_t line = KERN_INDEX_BLOCK * 4, block = line * KERN_INDEX / (pairs ? 2 : 1);
	const char *first = next->at[0], *second = next->at[1];

	for (int k = 0; k < KERN_INDEX; k += 2) {
		struct v16_pair x[FEW_BLOCKS];

		_mm_prefetch(first, _MM_HINT_T1);
		_mm_prefetch(second, _MM_HINT_T1);
		first += next->step;
		second += next->step;
#pragma GCC unroll 2
		for (int v = 0; v < FEW_BLOCKS; v++)
			if (pairs) {
				x[v] = v16_bf16_pair(keys + v * block);
			} else {
				x[v].lo = v16_load((const float *)(keys + v * block));
				x[v].hi = v16_load((const float *)(keys + v * block + line));
			}
		keys += pairs ? line : 2 * line;
#pragma GCC unroll 8
		for (int i = 0; i < mr; i++) {
			v16 b = v16_set1(q[i * KERN_INDEX + k]);

#pragma GCC unroll 2
			for (int v = 0; v < FEW_BLOCKS; v++)
				acc[i][v] = v16_fma(b, x[v].lo, acc[i][v]);
		}
#pragma GCC unroll 8
		for (int i = 0; i < mr; i++) {
			v16 b = v16_set1(q[i * KERN_INDEX + k + 1]);

#pragma GCC unroll 2
			for (int v = 0; v < FEW_BLOCKS; v++)
				acc[i][v] = v16_fma(b, x[v].hi, acc[i][v]);
		}
	}
}

/* s[FEW_BLOCKS] += w * relu(q keys) for mr heads, ascending; constants as above. */
VEC_INLINE void few_heads(const int mr, const bool pairs, const float *q, const float *w,
	const uint8_t *keys, const struct tile_ahead *next, v16 s[FEW_BLOCKS])
{
	v16 acc[FEW_HEADS][FEW_BLOCKS];

#pragma GCC unroll 8
	for (int i = 0; i < mr; i++)
#pragma GCC unroll 2
		for (int v = 0; v < FEW_BLOCKS; v++)
			acc[i][v] = v16_set1(0);
	few_tile(mr, pairs, q, keys, next, acc);
#pragma GCC unroll 8
	for (int i = 0; i < mr; i++)
#pragma GCC unroll 2
		for (int v = 0; v < FEW_BLOCKS; v++) /* NaN stays: it is the second operand */
			s[v] = v16_fma(v16_set1(w[i]), v16_max(v16_set1(0), acc[i][v]), s[v]);
}

/* Scores of FEW_BLOCKS blocks. The first tile asks for what is ahead. */
VEC_INLINE void few_scores(const bool pairs, const float *q, const float *w, uint32_t heads,
	const uint8_t *keys, struct tile_ahead next, float *out)
{
	const struct tile_ahead none = {{(const char *)w, (const char *)w}, 0};
	v16 s[FEW_BLOCKS];
	uint32_t h = 0;

	for (int v = 0; v < FEW_BLOCKS; v++)
		s[v] = v16_set1(0);
	for (; h + FEW_HEADS <= heads; h += FEW_HEADS, next = none)
		few_heads(FEW_HEADS, pairs, q + (size_t)h * KERN_INDEX, w + h, keys, &next, s);
	if (FEW_HEADS > 4 && heads - h >= 4) {
		few_heads(4, pairs, q + (size_t)h * KERN_INDEX, w + h, keys, &next, s);
		next = none;
		h += 4;
	}
	for (; h < heads; h++, next = none)
		few_heads(1, pairs, q + (size_t)h * KERN_INDEX, w + h, keys, &next, s);
	for (int v = 0; v < FEW_BLOCKS; v++)
		v16_store(out + v * KERN_LANES, s[v]);
}

/* A strip in its page. */
struct strip {
	void *page;
	uint32_t block; /* its first in the page */
};

static size_t strip_bytes(enum kern_dtype format)
{
	return STRIP * kern_index_value_bytes(format);
}

static const char *strip_at(enum kern_dtype format, struct strip s)
{
	return (const char *)kern_index_at(s.page, format, s.block * KERN_INDEX_BLOCK).value;
}

/* The nth of `tiles` parts of the strip after this one, each by two stretches. */
static struct tile_ahead strip_ahead(
	enum kern_dtype format, struct strip next, int nth, int tiles, const void *here)
{
	size_t half = strip_bytes(format) / (size_t)tiles / 2;
	const char *at;

	if (!next.page)
		return (struct tile_ahead){{here, here}, 0};
	at = strip_at(format, next) + 2 * (size_t)nth * half;
	return (struct tile_ahead){{at, at + half}, DIV_UP(half, (size_t)KERN_INDEX / 2)};
}

static void score_strip(const struct kern_index_args *x, const float *q, struct strip s,
	struct strip next, const struct index_lane *lane, float out[STRIP])
{
	enum { TILES = STRIP_BLOCKS / FEW_BLOCKS };
	const bool pairs = x->format == KERN_BF16;
	const size_t line = KERN_INDEX_BLOCK * 4, block = line * KERN_INDEX / (pairs ? 2 : 1);
	const uint8_t *keys = (const uint8_t *)strip_at(x->format, s);

	if (!pairs && x->format != KERN_F32) {
		for (uint32_t b = 0; b < STRIP_BLOCKS; b++)
			index_widen(x->format, s.page, s.block + b,
				lane->panel + b * KERN_INDEX * KERN_INDEX_BLOCK, KERN_INDEX_BLOCK);
		keys = (const uint8_t *)lane->panel;
	}
	for (int t = 0; t < TILES; t++) {
		struct tile_ahead ahead = strip_ahead(x->format, next, t, TILES, lane->weights);

		if (pairs)
			few_scores(true, q, lane->weights, x->heads, keys, ahead, out);
		else
			few_scores(false, q, lane->weights, x->heads, keys, ahead, out);
		keys += FEW_BLOCKS * block;
		out += FEW_BLOCKS * KERN_INDEX_BLOCK;
	}
}

/* ---- strips of rows ---- */

/* Those of this rank that a row scores; 0 where it takes all it sees. */
static uint32_t row_strips(const struct kern_index_select_args *a, uint32_t row)
{
	const struct kern_share *share = &a->index.share;
	uint32_t sees = kern_visible(a->index.batch->row_pos[row], 4), pages, mine;

	pages = DIV_UP(sees, KERN_PAGE);
	if (sees <= a->k || pages <= share->rank)
		return 0;
	mine = (pages - share->rank - 1) / share->world + 1;
	if (kern_index_mine(&a->index, pages - 1) && (sees - 1) % KERN_PAGE < STRIP)
		return 2 * mine - 1;
	return 2 * mine;
}

/* A row is at least one piece of work. */
static size_t row_units(const struct kern_index_select_args *a, uint32_t row)
{
	return MAX(row_strips(a, row), 1u);
}

/* The page of a row's nth strip. */
static uint32_t strip_page(const struct kern_index_select_args *a, uint32_t nth)
{
	return nth / 2 * a->index.share.world + a->index.share.rank;
}

static struct strip strip_of(const struct kern_index_select_args *a, uint32_t row, uint32_t nth)
{
	const struct kern_batch *b = a->index.batch;

	return (struct strip){
		kern_index_page(&a->index, &b->seqs[b->row_seq[row]], strip_page(a, nth)),
		nth % 2 * STRIP_BLOCKS};
}

/* Strips [begin, end) of a row compete; after: what this thread scores then, page NULL: nothing. */
static void score_row(const struct kern_index_select_args *a, uint32_t row, struct kern_part part,
	struct strip after, const struct index_lane *lane, struct kern_topk *t)
{
	const struct kern_index_args *x = &a->index;
	uint32_t sees = kern_visible(x->batch->row_pos[row], 4);
	const float *q = x->q + (size_t)row * x->heads * KERN_INDEX;
	struct strip s = strip_of(a, row, (uint32_t)part.begin);

	for (uint32_t h = 0; h < x->heads; h++)
		lane->weights[h] = x->weights[row * x->ldw + h] * x->scale;
	for (size_t n = part.begin; n < part.end; n++) {
		struct strip next = n + 1 < part.end ? strip_of(a, row, (uint32_t)n + 1) : after;
		uint32_t first =
			strip_page(a, (uint32_t)n) * KERN_PAGE + s.block * KERN_INDEX_BLOCK;
		float scores[STRIP];

		score_strip(x, q, s, next, lane, scores);
		KERN_FN(topk_push_all)(t, scores, MIN(sees - first, (uint32_t)STRIP), first);
		s = next;
	}
}

/* This thread's part of a row, [begin, end) of its units. */
static void select_row(const struct few *f, uint32_t row, struct kern_part part, struct strip after,
	struct index_lane *lane)
{
	const struct kern_index_select_args *a = f->a;
	struct open_row *open = &lane->open[part.begin ? 0 : 1];
	uint32_t strips = row_strips(a, row);

	if (kern_visible(a->index.batch->row_pos[row], 4) <= a->k) {
		index_take_all(a, row);
		return;
	}
	kern_topk_init(&open->top, lane->memory[part.begin ? 0 : 1], a->k);
	if (strips)
		score_row(a, row, part, after, lane, &open->top);
	open->row = row;
	open->is = part.begin || part.end < strips;
	if (!open->is)
		index_put_row(a, row, &open->top);
	else if (open->top.n > a->k + a->k / 2) /* or the caller alone cuts what is left */
		KERN_FN(topk_cut)(&open->top);
}

static void select_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct few *f = job;
	struct index_lane *lane = &f->lanes[i];
	struct kern_part p = kern_part(f->units, 1, i, n);
	size_t at = 0, units;

	for (uint32_t row = f->row; row < f->row + f->rows && at < p.end; row++, at += units) {
		struct kern_part part;
		struct strip after = {0};

		units = row_units(f->a, row);
		if (at + units <= p.begin)
			continue;
		part.begin = p.begin > at ? p.begin - at : 0;
		part.end = MIN(p.end - at, units);
		if (at + units < p.end && row_strips(f->a, row + 1))
			after = strip_of(f->a, row + 1, 0);
		select_row(f, row, part, after, lane);
	}
}

/* The rows that several threads worked on: their parts come in ascending order of entries. */
static void join_open_rows(const struct few *f, unsigned n)
{
	struct open_row *to = NULL;

	for (unsigned i = 0; i < 2 * n; i++) {
		struct open_row *from = &f->lanes[i / 2].open[i % 2];

		if (!from->is)
			continue;
		if (to && to->row == from->row) {
			KERN_FN(topk_append)(&to->top, &from->top);
			continue;
		}
		if (to)
			index_put_row(f->a, to->row, &to->top);
		to = from;
	}
	if (to)
		index_put_row(f->a, to->row, &to->top);
}

struct index_lane *KERN_FN(index_lanes)(
	struct kern_arena *arena, const struct kern_index_select_args *a, unsigned n)
{
	size_t cand = 8 * KERN_TOPK_CAP(a->k), strip = STRIP * KERN_INDEX * sizeof(float);
	struct index_lane *lanes = kern_arena_get(arena, n * sizeof(*lanes));

	for (unsigned i = 0; lanes && i < n; i++) {
		lanes[i].panel = kern_arena_get(arena, strip);
		lanes[i].weights = kern_arena_get(arena, a->index.heads * sizeof(float));
		lanes[i].memory[0] = kern_arena_get(arena, cand);
		lanes[i].memory[1] = kern_arena_get(arena, cand);
		if (!lanes[i].memory[1] || !lanes[i].memory[0] || !lanes[i].weights ||
			!lanes[i].panel)
			return NULL;
	}
	return lanes;
}

void KERN_FN(index_select_few)(const struct kern_index_select_args *a, uint32_t row, uint32_t rows,
	struct index_lane *lanes, struct kern_cpu_ctx *c)
{
	struct few f = {.a = a, .row = row, .rows = rows, .lanes = lanes};
	size_t work = 0;

	for (unsigned i = 0; i < c->n; i++)
		lanes[i].open[0].is = lanes[i].open[1].is = false;
	for (uint32_t r = row; r < row + rows; r++) {
		f.units += row_units(a, r);
		work += (size_t)row_strips(a, r) * STRIP * KERN_INDEX * a->index.heads + a->k;
	}
	kern_run(c, work, select_part, &f);
	join_open_rows(&f, c->n);
}
