/*
 * Vector code: attention. A tile of keys is decoded once and used by all heads of a row, which
 * share them; the operations and their order are the reference's, one by one.
 */
#include "kernels/cpu/attention.h"
#include "kernels/cpu/fast_attention.h"

static void prefetch(const uint8_t *const *at, uint32_t n, size_t bytes)
{
	for (uint32_t i = 0; i < n; i++)
		for (size_t b = 0; b < bytes; b += 64)
			_mm_prefetch((const char *)at[i] + b, _MM_HINT_T0);
}

static size_t lane_floats(uint32_t heads)
{
	return (size_t)KERN_KEY_TILE * KEY_LD + (size_t)heads * (KERN_KEY_TILE + KERN_HEAD + 3) +
	       64;
}

static void decode(enum kern_dtype format, const uint8_t *at, float *x)
{
	if (format == KERN_BF16) {
		for (int i = 0; i < KERN_HEAD; i += KERN_LANES)
			v16_store(x + i, v16_bf16((const uint16_t *)(at + 2 * i)));
		return;
	}
	if (format != KERN_FP8) {
		kern_kv_decode(format, at, x);
		return;
	}
	for (int g = 0; g < 7; g++) {
		v16 s = v16_set1(kern_from_e8m0(at[KERN_KV_FP8_SCALE + g]));

		for (int i = 64 * g; i < 64 * g + 64; i += KERN_LANES)
			v16_store(x + i,
				v16_mul(v16_mul(v16_e4m3(at + i), v16_set1(V16_E4M3_UNIT)), s));
	}
	for (int i = 0; i < KERN_ROPE; i += KERN_LANES)
		v16_store(x + KERN_NOPE + i,
			v16_bf16((const uint16_t *)(at + KERN_KV_FP8_ROPE + 2 * i)));
}

#ifdef __AVX512F__

/* Half of the columns, from v on. */
VEC_INLINE void score_columns(const float *const q[HEADS], const float *const k[KEYS], int v,
	const char *next, const char *other, size_t step, __m512 acc[16])
{
	for (int end = v + KERN_HEAD / 2; v < end; v += KERN_LANES) {
		__m512 a[HEADS];

		_mm_prefetch(next, _MM_HINT_T0);
		_mm_prefetch(other, _MM_HINT_T0);
		next += step;
		other += step;
#pragma GCC unroll 4
		for (int b = 0; b < HEADS; b++)
			a[b] = _mm512_loadu_ps(q[b] + v);
#pragma GCC unroll 4
		for (int i = 0; i < KEYS; i++) {
			__m512 x = _mm512_loadu_ps(k[i] + v);

#pragma GCC unroll 4
			for (int b = 0; b < HEADS; b++)
				acc[4 * i + b] = _mm512_fmadd_ps(a[b], x, acc[4 * i + b]);
		}
	}
}

/* Scores of 4 heads x 4 keys: acc[4 i + b] is key i, head b, so each head's 4 lie together. */
VEC_INLINE void score_tile(const float *const q[HEADS], const float *const k[KEYS],
	const struct ahead *next, float scale, float *const p[HEADS])
{
	__m512 acc[16], s;

#pragma GCC unroll 16
	for (int i = 0; i < 16; i++)
		acc[i] = _mm512_setzero_ps();
	score_columns(q, k, 0, next->key[0], next->key[1], next->step, acc);
	score_columns(q, k, KERN_HEAD / 2, next->key[2], next->key[3], next->step, acc);
	s = _mm512_mul_ps(sums_of_16(acc, QUADS_IN_ORDER), _mm512_set1_ps(scale));
	_mm_storeu_ps(p[0], _mm512_extractf32x4_ps(s, 0));
	_mm_storeu_ps(p[1], _mm512_extractf32x4_ps(s, 1));
	_mm_storeu_ps(p[2], _mm512_extractf32x4_ps(s, 2));
	_mm_storeu_ps(p[3], _mm512_extractf32x4_ps(s, 3));
}

#else

VEC_INLINE void score_tile(const float *const q[HEADS], const float *const k[KEYS],
	const struct ahead *next, float scale, float *const p[HEADS])
{
	for (int b = 0; b < HEADS; b++) {
		v16 acc[KEYS];

#pragma GCC unroll 4
		for (int i = 0; i < KEYS; i++)
			acc[i] = v16_set1(0);
		for (int v = 0; v < KERN_HEAD; v += KERN_LANES) {
			v16 a = v16_load(q[b] + v);

			_mm_prefetch(next->key[b] + (size_t)(v / KERN_LANES % 16) * next->step,
				_MM_HINT_T0);
#pragma GCC unroll 4
			for (int i = 0; i < KEYS; i++)
				acc[i] = v16_fma(a, v16_load(k[i] + v), acc[i]);
		}
		for (int i = 0; i < KEYS; i++)
			p[b][i] = v16_sum(acc[i]) * scale;
	}
}

#endif

/*
 * Decodes the tile's n keys and scores them with all heads, four keys at a time while they are in
 * the L1 cache. The last tiles repeat keys and heads that are there, and what they write beyond is
 * not used.
 */
static void scores(const struct kern_attention_args *a, const float *q, uint32_t heads,
	const uint8_t *const *at, uint32_t n, const struct lane *l)
{
	struct ahead next = {.step = DIV_UP(kern_kv_row_bytes(a->format), (size_t)16)};
	float spare[HEADS][KEYS];

	for (uint32_t j = 0; j < n; j += KEYS) {
		const float *ks[KEYS];

		for (uint32_t i = 0; i < KEYS; i++) {
			float *k = l->keys + (size_t)MIN(j + i, n - 1) * KEY_LD;

			if (j + i < n)
				decode(a->format, at[j + i], k);
			ks[i] = k;
		}
		for (uint32_t h = 0; h < heads; h += HEADS) {
			const float *qs[HEADS];
			float *to[HEADS];

			look_ahead(&next, at + MIN(j + 2 * KEYS, n), n - MIN(j + 2 * KEYS, n),
				h / HEADS, DIV_UP(heads, (uint32_t)HEADS), q);
			for (uint32_t b = 0; b < HEADS; b++) {
				qs[b] = q + (size_t)MIN(h + b, heads - 1) * KERN_HEAD;
				to[b] = h + b < heads ? l->p + (size_t)(h + b) * KERN_KEY_TILE + j
						      : spare[b];
			}
			score_tile(qs, ks, &next, a->scale, to);
		}
	}
}

/* Scores to weights, and the running maximum and sum of each head. p is whole vectors long. */

#ifdef __AVX512F__

/* Sixteen heads, or fewer, side by side: one's chain of operations is longer than its work. */
static void weigh_16(struct lane *l, uint32_t h0, uint32_t heads, uint32_t n)
{
	/* head h has lane h of sums and maxima */
	static const uint8_t place[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
	const __m512 none = _mm512_set1_ps(-INFINITY);
	__m512 lanes[16], was, max, shrink;
	float *p = l->p + (size_t)h0 * KERN_KEY_TILE;

	for (int i = 0; i < 16; i++)
		lanes[i] = none;
	for (uint32_t h = 0; h < heads; h++) {
		__m512 top = none;

		for (uint32_t j = 0; j < n; j += KERN_LANES) {
			__mmask16 there = (__mmask16)((1u << MIN(n - j, 16u)) - 1);
			__m512 x = _mm512_mask_loadu_ps(none, there, p + h * KERN_KEY_TILE + j);

			_mm512_storeu_ps(p + h * KERN_KEY_TILE + j, x);
			top = v16_max(x, top);
		}
		lanes[place[h]] = top;
	}
	was = v16_load_n(l->max + h0, heads);
	max = v16_max(fold_16(FOLD_MAX, lanes, QUADS_IN_ORDER), was);
	shrink = _mm512_mask_mov_ps(
		v16_exp(v16_sub(was, max)), _mm512_cmp_ps_mask(was, max, _CMP_EQ_OQ), v16_set1(1));
	v16_store_n(l->max + h0, max, heads);
	v16_store_n(l->shrink + h0, shrink, heads);
	for (int i = 0; i < 16; i++)
		lanes[i] = _mm512_setzero_ps();
	for (uint32_t h = 0; h < heads; h++) {
		__m512 m = v16_set1(l->max[h0 + h]), sum = _mm512_setzero_ps();

		for (uint32_t j = 0; j < n; j += KERN_LANES) { /* e^-inf = 0 adds nothing */
			float *at = p + h * KERN_KEY_TILE + j;
			__m512 e = v16_exp(v16_sub(v16_load(at), m));

			v16_store(at, e);
			sum = v16_add(sum, e);
		}
		lanes[place[h]] = sum;
	}
	v16_store_n(l->sum + h0,
		v16_fma(v16_load_n(l->sum + h0, heads), shrink, sums_of_16(lanes, QUADS_IN_ORDER)),
		heads);
}

static void weigh(struct lane *l, uint32_t heads, uint32_t n)
{
	for (uint32_t h = 0; h < heads; h += 16)
		weigh_16(l, h, MIN(heads - h, 16u), n);
}

#else

static void weigh_head(struct lane *l, uint32_t h, uint32_t n)
{
	float *p = l->p + (size_t)h * KERN_KEY_TILE, max = l->max[h];
	v16 top = v16_set1(-INFINITY), lanes = v16_set1(0), m;
	float lane[KERN_LANES];

	for (uint32_t j = n; j % KERN_LANES; j++) /* e^-inf = 0 adds nothing */
		p[j] = -INFINITY;
	for (uint32_t j = 0; j < n; j += KERN_LANES)
		top = v16_max(v16_load(p + j), top);
	v16_store(lane, top);
	for (int i = 0; i < KERN_LANES; i++)
		max = lane[i] > max ? lane[i] : max;
	l->shrink[h] = l->max[h] == max ? 1.0f : kern_expf(l->max[h] - max);
	m = v16_set1(max);
	for (uint32_t j = 0; j < n; j += KERN_LANES) {
		v16 e = v16_exp(v16_sub(v16_load(p + j), m));

		v16_store(p + j, e);
		lanes = v16_add(lanes, e);
	}
	l->sum[h] = kern_fma(l->sum[h], l->shrink[h], v16_sum(lanes));
	l->max[h] = max;
}

static void weigh(struct lane *l, uint32_t heads, uint32_t n)
{
	for (uint32_t h = 0; h < heads; h++)
		weigh_head(l, h, n);
}

#endif

/* out[nh heads][COLUMNS vectors] = out * shrink + sum of p times keys, keys ascending. */
VEC_INLINE void output_tile(struct lane *l, uint32_t h, const int nh, int at, uint32_t n)
{
	v16 acc[HEADS][COLUMNS];
	const float *k = l->keys + at;

#pragma GCC unroll 4
	for (int b = 0; b < nh; b++)
#pragma GCC unroll 4
		for (int v = 0; v < COLUMNS; v++)
			acc[b][v] = v16_mul(v16_load(l->out + (size_t)(h + b) * KERN_HEAD + at +
						     v * KERN_LANES),
				v16_set1(l->shrink[h + b]));
	for (uint32_t j = 0; j < n; j++, k += KEY_LD) {
		v16 x[COLUMNS];

#pragma GCC unroll 4
		for (int v = 0; v < COLUMNS; v++)
			x[v] = v16_load(k + v * KERN_LANES);
#pragma GCC unroll 4
		for (int b = 0; b < nh; b++) {
			v16 p = v16_set1(l->p[(size_t)(h + b) * KERN_KEY_TILE + j]);

#pragma GCC unroll 4
			for (int v = 0; v < COLUMNS; v++)
				acc[b][v] = v16_fma(p, x[v], acc[b][v]);
		}
	}
#pragma GCC unroll 4
	for (int b = 0; b < nh; b++)
#pragma GCC unroll 4
		for (int v = 0; v < COLUMNS; v++)
			v16_store(l->out + (size_t)(h + b) * KERN_HEAD + at + v * KERN_LANES,
				acc[b][v]);
}

static void outputs(struct lane *l, uint32_t heads, uint32_t n)
{
	/* a column block of all keys stays in the L1 cache for all the heads */
	for (int at = 0; at < KERN_HEAD; at += COLUMNS * KERN_LANES) {
		uint32_t h = 0;

		for (; h + HEADS <= heads; h += HEADS)
			output_tile(l, h, HEADS, at, n);
		for (; h < heads; h++)
			output_tile(l, h, 1, at, n);
	}
}

static void tile_scores(const struct kern_attention_args *a, const float *q, uint32_t heads,
	const uint8_t *const *at, uint32_t n, const struct lane *l)
{
	if (attention_is_few(a, heads))
		KERN_FN(attention_few_scores)(a->format, a->scale, q, heads, at, n, l);
	else
		scores(a, q, heads, at, n, l);
}

static void tile_outputs(const struct kern_attention_args *a, uint32_t heads,
	const uint8_t *const *at, uint32_t n, struct lane *l)
{
	if (attention_is_few(a, heads))
		KERN_FN(attention_few_outputs)(a->format, l, heads, at, n);
	else
		outputs(l, heads, n);
}

/* Heads h0 .. h0+heads-1 of one row. */
static void attend(const struct kern_attention_args *a, uint32_t row, uint32_t h0, uint32_t heads,
	struct lane *l)
{
	const float *q = a->q + ((size_t)row * a->heads + h0) * KERN_HEAD;
	float *o = a->o + ((size_t)row * a->heads + h0) * KERN_HEAD;
	struct kern_keys k = kern_keys(a, row);
	const uint8_t *at[2][KERN_KEY_TILE];
	uint32_t n, next, tile = 0;

	if (attention_is_few(a, heads))
		q = KERN_FN(attention_few_queries)(a->format, q, heads, l);
	memset(l->out, 0, (size_t)heads * KERN_HEAD * sizeof(float));
	for (uint32_t h = 0; h < heads; h++) {
		l->max[h] = a->sink[h0 + h];
		l->sum[h] = 1.0f;
	}
	for (n = kern_keys_next(&k, KERN_KEY_TILE, at[0]); n; n = next, tile ^= 1) {
		tile_scores(a, q, heads, at[tile], n, l);
		weigh(l, heads, n);
		next = kern_keys_next(&k, KERN_KEY_TILE, at[tile ^ 1]);
		prefetch(at[tile ^ 1], MIN(next, 2u * KEYS), kern_kv_row_bytes(a->format));
		tile_outputs(a, heads, at[tile], n, l);
	}
	if (attention_is_few(a, heads))
		KERN_FN(attention_few_finish)(a->format, l, heads);
	for (uint32_t h = 0; h < heads; h++) {
		v16 sum = v16_set1(l->sum[h]);

		for (int i = 0; i < KERN_HEAD; i += KERN_LANES)
			v16_store(o + (size_t)h * KERN_HEAD + i,
				v16_div(v16_load(l->out + (size_t)h * KERN_HEAD + i), sum));
	}
}

struct attention_job {
	const struct kern_attention_args *a;
	uint32_t split; /* parts the heads of a row are cut into */
	float *scratch;
};

static void attention_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct attention_job *j = job;
	const struct kern_attention_args *a = j->a;
	struct kern_part p = kern_part((size_t)a->batch->ntok * j->split, 1, i, n);
	struct lane l = {.keys = j->scratch + i * ALIGN_UP(lane_floats(a->heads), (size_t)16)};

	l.p = l.keys + (size_t)KERN_KEY_TILE * KEY_LD;
	l.out = l.p + (size_t)a->heads * KERN_KEY_TILE;
	l.max = l.out + (size_t)a->heads * KERN_HEAD;
	l.sum = l.max + a->heads;
	l.shrink = l.sum + a->heads;
	for (size_t r = p.begin; r < p.end; r++) {
		struct kern_part h = kern_part(a->heads, HEADS, (unsigned)(r % j->split), j->split);

		if (h.begin < h.end)
			attend(a, (uint32_t)(r / j->split), (uint32_t)h.begin,
				(uint32_t)(h.end - h.begin), &l);
	}
}

int KERN_FN(attention)(const struct kern_attention_args *a, void *stream)
{
	struct kern_cpu_ctx *c = stream;
	struct kern_arena arena = kern_arena(c);
	struct attention_job j = {.a = a, .split = a->batch->ntok < c->n ? c->n : 1};

	j.scratch = kern_arena_get(
		&arena, c->n * ALIGN_UP(lane_floats(a->heads), (size_t)16) * sizeof(float));
	if (!j.scratch || kern_attention_check(a))
		return -EINVAL;
	kern_run(
		c, (size_t)a->batch->ntok * a->heads * KERN_HEAD * KERN_WINDOW, attention_part, &j);
	return 0;
}
