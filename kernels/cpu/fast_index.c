/*
 * Vector code: index scores and selection.
 *
 * A page of 64 keys is decoded and transposed once into a panel [128][64], which then serves as
 * the right-hand side of a product whose rows are (query row, head): each dot product is one chain
 * over the dims, each score one chain over the heads, as in the reference. Query rows of a sequence
 * are taken KERN_SELECT_ROWS at a time; threads share out the pages of a chunk of entries, then the
 * rows, whose candidates compete (topk.h).
 */
#include "kernels/cpu/index.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/topk.h"

enum { TILE_N = VEC_NV * KERN_GROUP };

/* One key, decoded as kern_index_decode() does. */
static void decode(enum kern_dtype format, struct kern_index_at at, float *x)
{
	v16 s;

	switch (format) {
	case KERN_BF16:
		for (int i = 0; i < KERN_INDEX; i += KERN_LANES)
			v16_store(x + i, v16_bf16((const uint16_t *)(at.value + 2 * i)));
		return;
	case KERN_FP8:
		s = v16_set1(kern_get_f32(at.scale));
		for (int i = 0; i < KERN_INDEX; i += KERN_LANES)
			v16_store(x + i,
				v16_mul(v16_mul(v16_e4m3(at.value + i), v16_set1(V16_E4M3_UNIT)),
					s));
		return;
	case KERN_FP4:
		for (int g = 0; g < 4; g++) {
			struct v16_pair c = v16_e2m1(at.value + 16 * g);
			float even[KERN_LANES], odd[KERN_LANES];

			s = v16_set1(kern_from_e8m0(at.scale[g]));
			v16_store(even, v16_mul(c.lo, s));
			v16_store(odd, v16_mul(c.hi, s));
			for (int i = 0; i < KERN_LANES; i++) {
				x[32 * g + 2 * i] = even[i];
				x[32 * g + 2 * i + 1] = odd[i];
			}
		}
		return;
	default:
		kern_index_decode(format, at, x);
	}
}

/* to[128][ld]: 16 rows of 128 become 16 columns. */
static void transpose(const float *rows, float *to, size_t ld)
{
#ifdef __AVX512F__
	/* four rows i, i+4, i+8, i+12 side by side, then 4 x 4 within the quarters */
	for (int k = 0; k < KERN_INDEX; k += 4) {
		__m512 r[4], t[4];

#pragma GCC unroll 4
		for (int i = 0; i < 4; i++) {
			const float *p = rows + i * KERN_INDEX + k;

			r[i] = _mm512_castps128_ps512(_mm_loadu_ps(p));
			r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(p + 4 * KERN_INDEX), 1);
			r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(p + 8 * KERN_INDEX), 2);
			r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(p + 12 * KERN_INDEX), 3);
		}
		t[0] = _mm512_unpacklo_ps(r[0], r[1]);
		t[1] = _mm512_unpackhi_ps(r[0], r[1]);
		t[2] = _mm512_unpacklo_ps(r[2], r[3]);
		t[3] = _mm512_unpackhi_ps(r[2], r[3]);
		_mm512_storeu_ps(to + (k + 0) * ld, _mm512_shuffle_ps(t[0], t[2], 0x44));
		_mm512_storeu_ps(to + (k + 1) * ld, _mm512_shuffle_ps(t[0], t[2], 0xee));
		_mm512_storeu_ps(to + (k + 2) * ld, _mm512_shuffle_ps(t[1], t[3], 0x44));
		_mm512_storeu_ps(to + (k + 3) * ld, _mm512_shuffle_ps(t[1], t[3], 0xee));
	}
#else
	for (int k = 0; k < KERN_INDEX; k++)
		for (int i = 0; i < KERN_LANES; i++)
			to[k * ld + i] = rows[i * KERN_INDEX + k];
#endif
}

#ifdef __AVX512F__

/* The same from 16 encoded bf16 keys, two dims at a time in each lane. */
static void transpose_bf16(const uint8_t *rows, float *to, size_t ld)
{
	const size_t row = KERN_INDEX * sizeof(uint16_t);

	for (int k = 0; k < KERN_INDEX; k += 8) {
		__m512i r[4], t[4], pair;

#pragma GCC unroll 4
		for (int i = 0; i < 4; i++) {
			const __m128i *p = (const __m128i *)(rows + i * row + 2 * k);

			r[i] = _mm512_castsi128_si512(_mm_loadu_si128(p));
			r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128(p + row / 4), 1);
			r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128(p + row / 2), 2);
			r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128(p + row / 4 * 3), 3);
		}
		t[0] = _mm512_unpacklo_epi32(r[0], r[1]);
		t[1] = _mm512_unpackhi_epi32(r[0], r[1]);
		t[2] = _mm512_unpacklo_epi32(r[2], r[3]);
		t[3] = _mm512_unpackhi_epi32(r[2], r[3]);
#pragma GCC unroll 4
		for (int i = 0; i < 4; i++, to += 2 * ld) {
			pair = i % 2 ? _mm512_unpackhi_epi64(t[i / 2], t[i / 2 + 2])
				     : _mm512_unpacklo_epi64(t[i / 2], t[i / 2 + 2]);
			_mm512_storeu_ps(to, _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)));
			_mm512_storeu_ps(to + ld, _mm512_castsi512_ps(_mm512_and_si512(pair,
							  _mm512_set1_epi32((int)0xffff0000))));
		}
	}
}

#endif

/* panel = the keys of a page, transposed, cut into panels [128][TILE_N] so that a tile walks its
 * own in order. Slots from n on are zeros. rows: scratch of [16][128]. */
static void page_panel(
	const struct kern_index_args *x, void *page, uint32_t n, float *rows, float *panel)
{
	for (uint32_t g = 0; g < KERN_PAGE; g += KERN_LANES) {
#ifdef __AVX512F__
		if (x->format == KERN_BF16 && g + KERN_LANES <= n) {
			transpose_bf16(kern_index_at(page, x->format, g).value,
				panel + g / TILE_N * TILE_N * KERN_INDEX + g % TILE_N, TILE_N);
			continue;
		}
#endif
		for (uint32_t i = 0; i < KERN_LANES; i++)
			if (g + i < n)
				decode(x->format, kern_index_at(page, x->format, g + i),
					rows + i * KERN_INDEX);
			else
				memset(rows + i * KERN_INDEX, 0, KERN_INDEX * sizeof(float));
		transpose(rows, panel + g / TILE_N * TILE_N * KERN_INDEX + g % TILE_N, TILE_N);
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
	product_tile(mr, VEC_NV, q, KERN_INDEX, panel, next, acc);
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
		for (; h + VEC_MR <= heads; h += VEC_MR) {
			for (uint32_t i = 0; i < VEC_MR; i++)
				at[i] = q + (size_t)(h + i) * KERN_INDEX;
			head_tile(VEC_MR, at, panel, w + h, &next, s);
			next = none;
		}
		for (; h + 2 <= heads; h += 2) {
			at[0] = q + (size_t)h * KERN_INDEX;
			at[1] = at[0] + KERN_INDEX;
			head_tile(2, at, panel, w + h, &next, s);
			next = none;
		}
		if (h < heads) {
			at[0] = q + (size_t)h * KERN_INDEX;
			head_tile(1, at, panel, w + h, &next, s);
			next = none;
		}
		for (int v = 0; v < VEC_NV; v++)
			v16_store(out + e + v * KERN_GROUP, s[v]);
	}
}

/* A thread's scratch: 16 keys, a panel. */
enum { LANE_FLOATS = (KERN_LANES + KERN_PAGE) * KERN_INDEX };

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
	float *rows = b->lanes + (size_t)i * LANE_FLOATS, *panel = rows + KERN_LANES * KERN_INDEX;

	for (size_t at = p.begin; at < p.end; at++) {
		uint32_t page = b->page + (uint32_t)at, first = page * KERN_PAGE;
		const void *ahead = NULL;

		if (first >= b->visible || !kern_index_mine(x, page))
			continue;
		page_panel(x, kern_index_page(x, b->s, page),
			MIN(b->visible - first, (uint32_t)KERN_PAGE), rows, panel);
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

/* Scores that may be among the best go in, 16 at a time looked at. */
static void compete(struct kern_topk *t, const float *s, uint32_t n, uint32_t first)
{
	uint32_t i = 0;

#ifdef __AVX512F__
	for (; i + KERN_LANES <= n; i += KERN_LANES) {
		__m512 v = _mm512_loadu_ps(s + i), zero = _mm512_setzero_ps();
		__mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
		__mmask16 in = (__mmask16)~nan;
		unsigned count;

		if (t->cut)
			in = _mm512_cmp_ps_mask(v, _mm512_set1_ps(t->floor), _CMP_GT_OQ);
		t->nan += (uint32_t)__builtin_popcount(nan);
		count = (unsigned)__builtin_popcount(in);
		if (!count)
			continue;
		if (t->n + count > t->cap) {
			for (uint32_t l = 0; l < KERN_LANES; l++)
				if (in >> l & 1)
					kern_topk_push(t, s[i + l], first + i + l);
			continue;
		}
		_mm512_mask_compressstoreu_ps(t->v + t->n, in, _mm512_add_ps(v, zero));
		_mm512_mask_compressstoreu_epi32(t->e + t->n, in,
			_mm512_add_epi32(_mm512_set1_epi32((int)(first + i)),
				_mm512_setr_epi32(
					0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));
		t->n += count;
	}
#endif
	for (; i < n; i++)
		kern_topk_push(t, s[i], first + i);
}

/* The chunk's scores compete, rows shared out among threads. */
static void compete_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct select_job *j = job;
	const struct block *b = &j->b;
	struct kern_part p = kern_part(b->rows, 1, i, n);

	for (size_t r = p.begin; r < p.end; r++) {
		uint32_t sees = kern_visible(b->x->batch->row_pos[b->row + r], 4);

		if (sees <= j->a->k)
			continue;
		for (uint32_t g = 0; g < b->pages; g++) {
			uint32_t first = (b->page + g) * KERN_PAGE;

			if (first < sees && kern_index_mine(b->x, b->page + g))
				compete((struct kern_topk *)&j->top[r],
					b->scores + r * b->ld + (size_t)g * KERN_PAGE,
					MIN(sees - first, (uint32_t)KERN_PAGE), first);
		}
	}
}

/* A row that sees at most k entries takes all of this rank's. */
static void take_all(const struct kern_index_args *x, struct kern_topk *t, uint32_t sees)
{
	for (uint32_t e = 0; e < sees; e++)
		if (kern_index_mine(x, e / KERN_PAGE))
			kern_topk_push(t, 0, e);
}

static void finish_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct select_job *j = job;
	const struct kern_index_select_args *a = j->a;
	struct kern_part p = kern_part(j->b.rows, 1, i, n);

	for (size_t r = p.begin; r < p.end; r++) {
		struct kern_topk *t = (struct kern_topk *)&j->top[r];
		size_t row = j->b.row + r;
		uint32_t sees = kern_visible(a->index.batch->row_pos[row], 4);

		if (sees <= a->k)
			take_all(&a->index, t, sees);
		a->count[row] = KERN_FN(topk_finish)(
			t, a->entries + row * a->k, a->values ? a->values + row * a->k : NULL);
		if (a->nan)
			a->nan[row] = t->nan;
	}
}

int KERN_FN(index_select)(const struct kern_index_select_args *a, void *stream)
{
	struct kern_cpu_ctx *c = stream;
	struct kern_arena arena = kern_arena(c);
	size_t cand = 8 * KERN_TOPK_CAP(a->k);
	char *memory = kern_arena_get(&arena, KERN_SELECT_ROWS * cand);
	struct select_job j = {.a = a};
	struct block scratch;

	if (!a->k || !memory || kern_index_check(&a->index) ||
		get_scratch(&arena, &a->index, c, &scratch))
		return -EINVAL;
	for (uint32_t row = 0; row < a->index.batch->ntok; row += j.b.rows) {
		j.b = block_at(&a->index, row, a->index.batch->ntok);
		set_scratch(&j.b, &scratch);
		scale_weights(&j.b);
		for (uint32_t r = 0; r < j.b.rows; r++)
			kern_topk_init(&j.top[r], memory + r * cand, a->k);
		for (uint32_t at = 0; j.b.visible > a->k && at < j.b.visible;
			at += KERN_SELECT_CHUNK) {
			uint32_t n = MIN(j.b.visible - at, (uint32_t)KERN_SELECT_CHUNK);

			j.b.page = at / KERN_PAGE;
			j.b.pages = DIV_UP(n, KERN_PAGE);
			run_scores(&j.b, c);
			kern_run(c, (size_t)j.b.rows * n * 4, compete_part, &j);
		}
		kern_run(c, (size_t)j.b.rows * a->k * 8, finish_part, &j);
	}
	return 0;
}
