#include "tests/bench/rates.h"

#include <errno.h>
#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

#include "shm/clock.h"
#include "tests/bench/bench.h"

enum { ROWS = 6, VECTORS = 4, PANEL = 128 };

/* ---- loops; each returns something made of its result, so that none is left out ---------------
 */

__attribute__((target("avx512f"))) static float fma_512(long rounds)
{
	__m512 acc[24], a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f), s;

#pragma GCC unroll 24
	for (int i = 0; i < 24; i++)
		acc[i] = _mm512_set1_ps((float)i);
	for (long r = 0; r < rounds; r++)
#pragma GCC unroll 24
		for (int i = 0; i < 24; i++)
			acc[i] = _mm512_fmadd_ps(acc[i], a, b);
	s = acc[0];
	for (int i = 1; i < 24; i++)
		s = _mm512_add_ps(s, acc[i]);
	return _mm512_cvtss_f32(s);
}

__attribute__((target("avx2,fma"))) static float fma_256(long rounds)
{
	__m256 acc[12], a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f), s;

#pragma GCC unroll 12
	for (int i = 0; i < 12; i++)
		acc[i] = _mm256_set1_ps((float)i);
	for (long r = 0; r < rounds; r++)
#pragma GCC unroll 12
		for (int i = 0; i < 12; i++)
			acc[i] = _mm256_fmadd_ps(acc[i], a, b);
	s = acc[0];
	for (int i = 1; i < 12; i++)
		s = _mm256_add_ps(s, acc[i]);
	return _mm256_cvtss_f32(s);
}

/* 6 rows of 128 times a panel [128][64], over and over. */
__attribute__((target("avx512f"))) static float panel_512(
	long rounds, const float *x, const float *panel)
{
	__m512 acc[ROWS][VECTORS], s = _mm512_setzero_ps();

#pragma GCC unroll 6
	for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
		for (int v = 0; v < VECTORS; v++)
			acc[i][v] = _mm512_setzero_ps();
	for (long r = 0; r < rounds; r++)
		for (int k = 0; k < PANEL; k++) {
			__m512 c[VECTORS];

#pragma GCC unroll 4
			for (int v = 0; v < VECTORS; v++)
				c[v] = _mm512_loadu_ps(panel + k * 64 + v * 16);
#pragma GCC unroll 6
			for (int i = 0; i < ROWS; i++) {
				__m512 b = _mm512_set1_ps(x[i * PANEL + k]);

#pragma GCC unroll 4
				for (int v = 0; v < VECTORS; v++)
					acc[i][v] = _mm512_fmadd_ps(b, c[v], acc[i][v]);
			}
		}
	for (int i = 0; i < ROWS; i++)
		for (int v = 0; v < VECTORS; v++)
			s = _mm512_add_ps(s, acc[i][v]);
	return _mm512_cvtss_f32(s);
}

/* The same with a panel [128][16]. */
__attribute__((target("avx2,fma"))) static float panel_256(
	long rounds, const float *x, const float *panel)
{
	__m256 acc[ROWS][2], s = _mm256_setzero_ps();

#pragma GCC unroll 6
	for (int i = 0; i < ROWS; i++)
		acc[i][0] = acc[i][1] = _mm256_setzero_ps();
	for (long r = 0; r < rounds; r++)
		for (int k = 0; k < PANEL; k++) {
			__m256 c = _mm256_loadu_ps(panel + k * 16);
			__m256 d = _mm256_loadu_ps(panel + k * 16 + 8);

#pragma GCC unroll 6
			for (int i = 0; i < ROWS; i++) {
				__m256 b = _mm256_set1_ps(x[i * PANEL + k]);

				acc[i][0] = _mm256_fmadd_ps(b, c, acc[i][0]);
				acc[i][1] = _mm256_fmadd_ps(b, d, acc[i][1]);
			}
		}
	for (int i = 0; i < ROWS; i++)
		s = _mm256_add_ps(s, _mm256_add_ps(acc[i][0], acc[i][1]));
	return _mm256_cvtss_f32(s);
}

__attribute__((target("avx512f"))) static float read_512(const char *p, size_t bytes)
{
	__m512i acc[8];

#pragma GCC unroll 8
	for (int i = 0; i < 8; i++)
		acc[i] = _mm512_setzero_si512();
	for (size_t at = 0; at + 512 <= bytes; at += 512)
#pragma GCC unroll 8
		for (int i = 0; i < 8; i++)
			acc[i] = _mm512_xor_si512(acc[i], _mm512_loadu_si512(p + at + 64 * i));
	for (int i = 1; i < 8; i++)
		acc[0] = _mm512_xor_si512(acc[0], acc[i]);
	return (float)_mm_cvtsi128_si32(_mm512_castsi512_si128(acc[0]));
}

__attribute__((target("avx2"))) static float read_256(const char *p, size_t bytes)
{
	__m256i acc[8];

#pragma GCC unroll 8
	for (int i = 0; i < 8; i++)
		acc[i] = _mm256_setzero_si256();
	for (size_t at = 0; at + 256 <= bytes; at += 256)
#pragma GCC unroll 8
		for (int i = 0; i < 8; i++)
			acc[i] = _mm256_xor_si256(
				acc[i], _mm256_loadu_si256((const __m256i *)(p + at + 32 * i)));
	for (int i = 1; i < 8; i++)
		acc[0] = _mm256_xor_si256(acc[0], acc[i]);
	return (float)_mm_cvtsi128_si32(_mm256_castsi256_si128(acc[0]));
}

/* ---- on all threads -----------------------------------------------------------------------------
 */

struct job {
	const struct rates *r;
	enum { FMA, FMA_L1, READ } what;
	long rounds;
	size_t bytes; /* of each thread, READ */
	float *out;   /* [threads], a cache line apart */
};

static void one_thread(void *arg, unsigned i)
{
	const struct job *j = arg;
	bool wide = !strcmp(j->r->isa, "avx512");
	float x[ROWS * PANEL], s = 0;
	_Alignas(64) float panel[PANEL * 64];

	switch (j->what) {
	case FMA:
		s = wide ? fma_512(j->rounds) : fma_256(j->rounds);
		break;
	case FMA_L1:
		for (int k = 0; k < ROWS * PANEL; k++)
			x[k] = (float)k * 1e-3f;
		for (int k = 0; k < PANEL * 64; k++)
			panel[k] = (float)k * 1e-4f;
		s = wide ? panel_512(j->rounds, x, panel) : panel_256(j->rounds, x, panel);
		break;
	case READ:
		for (long r = 0; r < j->rounds; r++)
			s += (wide ? read_512 : read_256)(j->r->memory + i * j->bytes, j->bytes);
	}
	j->out[i * 16] = s;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Work a second, the median of the runs of a tenth of a second; `work` of one run on all threads. A
 * median, because what is held against it is one. */
static double measure(struct rates *r, struct job *j, double work)
{
	float out[RATES_THREADS_MAX * 16];
	double s[4096];
	mono_ns_t begin;
	size_t n = 0;

	j->r = r;
	j->out = out;
	kern_threads_run(r->pool, one_thread, j);
	begin = mono_now();
	while (n < ARRAY_LEN(s) && (n < 12 || mono_now() - begin < 100 * NS_PER_MS)) {
		mono_ns_t start = mono_now();

		kern_threads_run(r->pool, one_thread, j);
		s[n++] = (double)(mono_now() - start) * 1e-9;
	}
	qsort(s, n, sizeof(*s), by_size);
	return work / s[n / 2];
}

void rates_refresh(struct rates *r)
{
	struct job fma = {.what = FMA, .rounds = 20000};
	struct job fma_l1 = {.what = FMA_L1, .rounds = 200};
	double lanes;

	lanes = strcmp(r->isa, "avx512") ? 8 * 12 : 16 * 24;
	r->fma = measure(r, &fma, 2 * lanes * (double)fma.rounds * r->threads);
	lanes = strcmp(r->isa, "avx512") ? 16 : 64; /* outputs a row */
	r->fma_l1 = measure(
		r, &fma_l1, 2.0 * ROWS * lanes * PANEL * (double)fma_l1.rounds * r->threads);
}

bool rates_open(struct rates *r, unsigned threads)
{
	int ret;

	*r = (struct rates){.threads = MIN(threads, (unsigned)RATES_THREADS_MAX)};
	__builtin_cpu_init();
	r->isa = __builtin_cpu_supports("avx512f")                                 ? "avx512"
		 : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "avx2"
										   : NULL;
	if (!r->isa) {
		printf("a CPU without AVX2: there is no floor to measure\n");
		return false;
	}
	ret = kern_threads_new(r->threads, 1000000, &r->pool);
	if (ret < 0)
		bench_die("cannot start %u threads: %s", r->threads, strerror(-ret));
	rates_refresh(r);
	return true;
}

void rates_close(struct rates *r)
{
	kern_threads_free(r->pool);
	free(r->memory);
	*r = (struct rates){0};
}

double rates_read(struct rates *r, double bytes)
{
	size_t each = ALIGN_UP((size_t)(bytes / r->threads) + 1, (size_t)4096);
	struct job j = {.what = READ, .bytes = each};

	j.rounds = (long)MAX((size_t)1, ((size_t)8 << 20) / each);
	if (each * r->threads > r->bytes) {
		free(r->memory);
		r->bytes = each * r->threads;
		r->memory = aligned_alloc(4096, r->bytes);
		if (!r->memory)
			bench_die("no memory for %zu bytes", r->bytes);
		memset(r->memory, 1, r->bytes);
	}
	return measure(r, &j, (double)each * (double)j.rounds * r->threads);
}
