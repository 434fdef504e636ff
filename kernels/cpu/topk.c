#include "kernels/cpu/topk.h"
#include "kernels/cpu/math.h"
#ifdef __AVX512F__
#include <immintrin.h>
#endif

/* A key whose unsigned order is the float's: -inf lowest, +inf highest. No NaN, no -0 here. */
static uint32_t key_of(float v)
{
	uint32_t u = kern_bits(v);

	return u & 0x80000000 ? ~u : u | 0x80000000;
}

static float float_of(uint32_t key)
{
	return kern_float(key & 0x80000000 ? key & 0x7fffffff : ~key);
}

#ifdef __AVX512F__

static __mmask16 lanes_from(uint32_t i, uint32_t n)
{
	return (__mmask16)(n - i < KERN_LANES ? (1u << (n - i)) - 1 : 0xffff);
}

/* The chosen lanes, side by side. With room for 16 all are written, for a compressing store is slow
 * on some CPUs. */
static void put_lanes(void *to, __mmask16 in, __m512i x, bool room)
{
	if (room)
		_mm512_storeu_si512(to, _mm512_maskz_compress_epi32(in, x));
	else
		_mm512_mask_compressstoreu_epi32(to, in, x);
}

/* How many of v[n] are at least x, and the least of them. */
static uint32_t count_from(const float *v, uint32_t n, float x, float *ret_least)
{
	__m512 least = _mm512_set1_ps(INFINITY), at = _mm512_set1_ps(x);
	uint32_t count = 0;

	for (uint32_t i = 0; i < n; i += KERN_LANES) {
		__mmask16 in = lanes_from(i, n);
		__m512 f = _mm512_maskz_loadu_ps(in, v + i);

		in = _mm512_mask_cmp_ps_mask(in, f, at, _CMP_GE_OQ);
		least = _mm512_mask_min_ps(least, in, least, f);
		count += (uint32_t)__builtin_popcount(in);
	}
	*ret_least = _mm512_reduce_min_ps(least);
	return count;
}

/* Keys between which the k-th greatest lies: `lo_n` >= k values are lo or more, `hi_n` < k are hi
 * or more. */
struct bracket {
	uint32_t lo, hi, lo_n, hi_n;
};

static struct bracket bracket_all(const float *v, uint32_t n)
{
	__m512 least = _mm512_set1_ps(INFINITY), most = _mm512_set1_ps(-INFINITY);

	for (uint32_t i = 0; i < n; i += KERN_LANES) {
		__mmask16 in = lanes_from(i, n);
		__m512 f = _mm512_maskz_loadu_ps(in, v + i);

		least = _mm512_mask_min_ps(least, in, least, f);
		most = _mm512_mask_max_ps(most, in, most, f);
	}
	return (struct bracket){
		key_of(_mm512_reduce_min_ps(least)), key_of(_mm512_reduce_max_ps(most)) + 1, n, 0};
}

/* Copies what lies in the bracket; to has room for 15 more. */
static uint32_t take_between(const float *v, uint32_t n, const struct bracket *b, float *to)
{
	__m512 lo = _mm512_set1_ps(float_of(b->lo)), hi = _mm512_set1_ps(float_of(b->hi));
	uint32_t taken = 0;

	for (uint32_t i = 0; i < n; i += KERN_LANES) {
		__mmask16 in = lanes_from(i, n);
		__m512 f = _mm512_maskz_loadu_ps(in, v + i);

		in = _mm512_mask_cmp_ps_mask(in, f, lo, _CMP_GE_OQ);
		in = _mm512_mask_cmp_ps_mask(in, f, hi, _CMP_NGE_UQ); /* above +inf is a NaN */
		put_lanes(to + taken, in, _mm512_castps_si512(f), true);
		taken += (uint32_t)__builtin_popcount(in);
	}
	return taken;
}

/* Where between the two the k-th would be if values were spread evenly; or, every third time, the
 * middle of the keys, so that 32 of those end it whatever the values. */
static uint32_t guess(const struct bracket *b, uint32_t k, unsigned round)
{
	float lo = float_of(b->lo), hi = float_of(b->hi), at;
	uint32_t key = b->lo + (b->hi - b->lo) / 2;

	if (round % 3 < 2) {
		at = lo + (hi - lo) * ((float)(b->lo_n - k) + 0.5f) / (float)(b->lo_n - b->hi_n);
		if (at > lo && at < hi)
			key = key_of(at + 0.0f);
	}
	return MIN(MAX(key, b->lo + 1), b->hi - 1);
}

enum { NEAR = 256 }; /* so few are searched apart */

/* The k-th greatest key (1 <= k <= n), and how many of those that equal it belong to the k, or
 * more where all do. */
static uint32_t kth_key(const float *v, uint32_t n, uint32_t k, uint32_t *ret_ties)
{
	struct bracket b = bracket_all(v, n);
	float near[NEAR + KERN_LANES], least;
	uint32_t above = 0; /* values left out of v, all greater */

	for (unsigned round = 0; b.lo_n != k && b.hi - b.lo > 1; round++) {
		uint32_t key = guess(&b, k, round), count;

		count = above + count_from(v, n, float_of(key), &least);
		if (count >= k) {
			b.lo = key_of(least);
			b.lo_n = count;
		} else {
			b.hi = key;
			b.hi_n = count;
		}
		if (v != near && b.lo_n - b.hi_n <= NEAR) {
			n = take_between(v, n, &b, near);
			v = near;
			above = b.hi_n;
		}
	}
	*ret_ties = b.lo_n == k ? k : k - b.hi_n;
	return b.lo;
}

/* Keeps what is greater than the float of key, and the first `ties` that equal it. */
static uint32_t keep(struct kern_topk *t, uint32_t key, uint32_t ties)
{
	__m512 at = _mm512_set1_ps(float_of(key));
	uint32_t kept = 0;

	for (uint32_t i = 0; i < t->n; i += KERN_LANES) {
		__mmask16 in = lanes_from(i, t->n);
		__m512i v = _mm512_maskz_loadu_epi32(in, t->v + i);
		__m512i e = _mm512_maskz_loadu_epi32(in, t->e + i);
		__m512 x = _mm512_castsi512_ps(v);
		uint32_t same = _mm512_mask_cmp_ps_mask(in, x, at, _CMP_EQ_OQ);
		bool room = i + KERN_LANES <= t->n;

		in = _mm512_mask_cmp_ps_mask(in, x, at, _CMP_GT_OQ);
		while ((uint32_t)__builtin_popcount(same) > ties)
			same &= ~(0x80000000u >> __builtin_clz(same));
		ties -= (uint32_t)__builtin_popcount(same);
		in |= (__mmask16)same;
		put_lanes(t->v + kept, in, v, room);
		put_lanes(t->e + kept, in, e, room);
		kept += (uint32_t)__builtin_popcount(in);
	}
	return kept;
}

#else

/* Buckets of 2048, 2048 and 1024: bits 31..21, 20..10, 9..0. */
struct radix {
	uint32_t shift, mask;
};
static const struct radix PASS[] = {{21, 2047}, {10, 2047}, {0, 1023}};

/* The k-th greatest key (1 <= k <= n), and how many of those that equal it belong to the k. */
static uint32_t kth_key(const float *v, uint32_t n, uint32_t k, uint32_t *ret_ties)
{
	uint32_t prefix = 0, fixed = 0, greater = 0;

	for (size_t p = 0; p < ARRAY_LEN(PASS); p++) {
		uint32_t count[2048] = {0}, b = PASS[p].mask;

		for (uint32_t i = 0; i < n; i++) {
			uint32_t key = key_of(v[i]);

			if ((key & fixed) == prefix)
				count[key >> PASS[p].shift & PASS[p].mask]++;
		}
		while (greater + count[b] < k)
			greater += count[b--];
		prefix |= b << PASS[p].shift;
		fixed |= PASS[p].mask << PASS[p].shift;
	}
	*ret_ties = k - greater;
	return prefix;
}

/* Keeps what is greater than key, and the first `ties` that equal it. */
static uint32_t keep(struct kern_topk *t, uint32_t key, uint32_t ties)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < t->n; i++) {
		uint32_t u = key_of(t->v[i]);

		if (u < key || (u == key && !ties))
			continue;
		ties -= u == key;
		t->v[kept] = t->v[i];
		t->e[kept++] = t->e[i];
	}
	return kept;
}

#endif

void KERN_FN(topk_cut)(struct kern_topk *t)
{
	uint32_t ties, key;

	if (t->n <= t->k || !t->k) {
		t->n = MIN(t->n, t->k);
		return;
	}
	key = kth_key(t->v, t->n, t->k, &ties);
	t->n = keep(t, key, ties);
	t->cut = true;
	t->floor = float_of(key);
}

void KERN_FN(topk_push_all)(struct kern_topk *t, const float *v, uint32_t n, uint32_t first)
{
	uint32_t i = 0;

#ifdef __AVX512F__
	const __m512i lane =
		_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);

	for (; i + KERN_LANES <= n; i += KERN_LANES) {
		__m512 x = _mm512_loadu_ps(v + i);
		__mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
		__mmask16 in = (__mmask16)~nan;
		unsigned count;
		bool room;

		if (t->cut)
			in = _mm512_cmp_ps_mask(x, _mm512_set1_ps(t->floor), _CMP_GT_OQ);
		t->nan += (uint32_t)__builtin_popcount(nan);
		count = (unsigned)__builtin_popcount(in);
		if (!count)
			continue;
		if (t->n + count > t->cap) {
			for (uint32_t l = 0; l < KERN_LANES; l++)
				if (in >> l & 1)
					kern_topk_push(t, v[i + l], first + i + l);
			continue;
		}
		x = _mm512_add_ps(x, _mm512_setzero_ps()); /* -0 becomes +0 */
		room = t->n + KERN_LANES <= t->cap;
		put_lanes(t->v + t->n, in, _mm512_castps_si512(x), room);
		put_lanes(t->e + t->n, in,
			_mm512_add_epi32(_mm512_set1_epi32((int)(first + i)), lane), room);
		t->n += count;
	}
#endif
	for (; i < n; i++)
		kern_topk_push(t, v[i], first + i);
}

void KERN_FN(topk_append)(struct kern_topk *t, struct kern_topk *after)
{
	if (t->n + after->n > t->cap) { /* which is 2 k or more */
		KERN_FN(topk_cut)(t);
		KERN_FN(topk_cut)(after);
	}
	memcpy(t->v + t->n, after->v, after->n * sizeof(*t->v));
	memcpy(t->e + t->n, after->e, after->n * sizeof(*t->e));
	t->n += after->n;
	t->nan += after->nan;
}

uint32_t KERN_FN(topk_finish)(struct kern_topk *t, int32_t *entries, float *values)
{
	KERN_FN(topk_cut)(t);
	memcpy(entries, t->e, t->n * sizeof(*entries));
	for (uint32_t i = t->n; i < t->k; i++)
		entries[i] = -1;
	if (values) {
		memcpy(values, t->v, t->n * sizeof(*values));
		memset(values + t->n, 0, (t->k - t->n) * sizeof(*values));
	}
	return t->n;
}

struct topk_job {
	const struct kern_topk_args *a;
	char *memory;
};

static void topk_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct topk_job *j = job;
	const struct kern_topk_args *a = j->a;
	struct kern_part p = kern_part(a->rows, 1, i, n);
	struct kern_topk t;

	for (size_t r = p.begin; r < p.end; r++) {
		kern_topk_init(&t, j->memory + i * 8 * KERN_TOPK_CAP(a->k), a->k);
		KERN_FN(topk_push_all)(&t, a->scores + r * a->ld, a->n[r], a->first);
		a->count[r] = KERN_FN(topk_finish)(
			&t, a->entries + r * a->k, a->values ? a->values + r * a->k : NULL);
		if (a->nan)
			a->nan[r] = t.nan;
	}
}

int KERN_FN(topk)(const struct kern_topk_args *a, void *stream)
{
	struct kern_cpu_ctx *c = stream;
	struct kern_arena arena = kern_arena(c);
	struct topk_job j = {a, kern_arena_get(&arena, c->n * 8 * KERN_TOPK_CAP(a->k))};

	if (!a->k || !j.memory)
		return -EINVAL;
	kern_run(c, (size_t)a->rows * a->ld * 4, topk_part, &j);
	return 0;
}

/*
 * Merging: the lists ascend by entry and share none, so taking the lowest head of all lists gives
 * the candidates in ascending order, and the cut is the same as for one worker.
 */
static void merge_row(const struct kern_index_merge_args *a, size_t r, char *memory, uint32_t *head)
{
	struct kern_topk t;

	t = (struct kern_topk){.v = (float *)memory, .k = a->k, .cap = a->lists * a->k};
	t.e = (uint32_t *)(t.v + t.cap);
	memset(head, 0, a->lists * sizeof(*head));
	for (;;) {
		uint32_t from = UINT32_MAX;
		int32_t best = INT32_MAX;

		for (uint32_t l = 0; l < a->lists; l++) {
			size_t row = (size_t)l * a->rows + r;

			if (head[l] < a->counts[row] && a->entries[row * a->k + head[l]] < best) {
				best = a->entries[row * a->k + head[l]];
				from = l;
			}
		}
		if (from == UINT32_MAX)
			break;
		kern_topk_push(&t, a->values[((size_t)from * a->rows + r) * a->k + head[from]++],
			(uint32_t)best);
	}
	a->out_count[r] = KERN_FN(topk_finish)(&t, a->out_entries + r * a->k, NULL);
}

struct merge_job {
	const struct kern_index_merge_args *a;
	char *memory;
	uint32_t *heads;
};

static void merge_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct merge_job *j = job;
	const struct kern_index_merge_args *a = j->a;
	struct kern_part p = kern_part(a->rows, 1, i, n);

	for (size_t r = p.begin; r < p.end; r++)
		merge_row(a, r, j->memory + (size_t)i * 8 * a->lists * a->k,
			j->heads + (size_t)i * a->lists);
}

int KERN_FN(index_merge)(const struct kern_index_merge_args *a, void *stream)
{
	struct kern_cpu_ctx *c = stream;
	struct kern_arena arena = kern_arena(c);
	struct merge_job j = {.a = a};

	for (size_t i = 0; i < (size_t)a->lists * a->rows; i++)
		if (a->counts[i] > a->k)
			return -EINVAL;
	j.memory = kern_arena_get(&arena, (size_t)c->n * 8 * a->lists * a->k);
	j.heads = kern_arena_get(&arena, (size_t)c->n * a->lists * sizeof(uint32_t));
	if (!a->k || !j.memory || !j.heads)
		return -EINVAL;
	kern_run(c, (size_t)a->rows * a->lists * a->k * 8, merge_part, &j);
	return 0;
}
