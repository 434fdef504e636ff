#include "tests/kern/kt.h"

#include <math.h>
#include <time.h>

#ifdef __SANITIZE_ADDRESS__
enum { GUARD = 0, BLOCKS = 4096 }; /* the sanitizer sees reads, too */
#else
enum { GUARD = 128, BLOCKS = 4096 };
#endif

static const unsigned char POISON[4] = {0xad, 0xdb, 0xba, 0x7f}; /* a NaN */

struct kt_config kt_all[KT_CONFIGS], *kt_end = kt_all;
unsigned kt_count;

static uint64_t rng;
static struct block {
	unsigned char *p;
	size_t bytes;
} blocks[BLOCKS];
static unsigned nblocks;

static const struct kern_cpu_limits LIMITS = {
	.max_tokens = 4096,
	.heads = 64,
	.index_heads = 64,
	.topk = 2048,
	.world = 8,
	.max_k = 4096,
	.experts = 64,
	.experts_per_token = 8,
};

int kt_setup(void **state)
{
	static const struct {
		const char *variant;
		unsigned threads;
	} want[] = {{"reference", 1}, {"reference", 3}, {"avx2", 1}, {"avx2", 2}, {"avx512", 1},
		{"avx512", 2}, {"avx512", 3}, {"avx512gfni", 1}, {"avx512gfni", 2}};
	const char *seed = getenv("KERN_SEED");
	struct timespec ts;

	_Static_assert(ARRAY_LEN(want) <= KT_CONFIGS, "kt_all is too short");
	clock_gettime(CLOCK_REALTIME, &ts);
	rng = seed ? strtoull(seed, NULL, 0)
		   : (uint64_t)ts.tv_nsec * 2654435761u ^ (uint64_t)ts.tv_sec;
	printf("KERN_SEED=%llu\n", (unsigned long long)rng);
	rng |= 1;
	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		struct kt_config *c = &kt_all[kt_count];
		struct errbuf err;
		int rc = kern_ops_get(KERN_CPU, want[i].variant, &c->ops, &err);

		if (rc == -ENOTSUP) {
			printf("left out: %s\n", err.text);
			continue;
		}
		assert_int_equal(rc, 0);
		assert_string_equal(c->ops.variant, want[i].variant);
		c->variant = want[i].variant;
		c->threads = want[i].threads;
		assert_int_equal(kern_cpu_ctx_init(
					 &c->ctx, &LIMITS, c->threads, c->threads == 2 ? 0 : 20000),
			0);
		c->ctx.serial_work = 0; /* small shapes, too, go through the threads */
		kt_end = &kt_all[++kt_count];
	}
	return 0;
}

int kt_teardown(void **state)
{
	for (unsigned i = 0; i < kt_count; i++)
		kern_cpu_ctx_free(&kt_all[i].ctx);
	return 0;
}

uint64_t kt_random(void)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return rng * 0x2545f4914f6cdd1dull;
}

uint32_t kt_below(uint32_t n)
{
	return (uint32_t)((kt_random() >> 32) * n >> 32);
}

float kt_uniform(float lo, float hi)
{
	return lo + (hi - lo) * (float)(kt_random() >> 40) * 0x1p-24f;
}

float kt_normal(void)
{
	float s = 0;

	for (int i = 0; i < 6; i++)
		s += kt_uniform(-1, 1);
	return s * 0.7071f;
}

void kt_fill(float *x, size_t n, float scale)
{
	for (size_t i = 0; i < n; i++)
		x[i] = kt_normal() * scale;
}

void *kt_new(size_t bytes)
{
	struct block *b = &blocks[nblocks];
	void *p = NULL;

	assert_true(nblocks < BLOCKS);
	assert_int_equal(posix_memalign(&p, 64, bytes + GUARD), 0);
	*b = (struct block){p, bytes};
	nblocks++;
	kt_poison(p, bytes + GUARD);
	return p;
}

float *kt_floats(size_t n)
{
	return kt_new(n * sizeof(float));
}

float *kt_normals(size_t n, float scale)
{
	float *x = kt_floats(n);

	kt_fill(x, n, scale);
	return x;
}

void kt_poison(void *p, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		((unsigned char *)p)[i] = POISON[i % 4];
}

void kt_free_all(void)
{
	for (unsigned i = 0; i < nblocks; i++) {
		for (int j = 0; j < GUARD; j++)
			if (blocks[i].p[blocks[i].bytes + j] !=
				POISON[(blocks[i].bytes + (size_t)j) % 4])
				fail_msg("byte %d behind a buffer of %zu was written", j,
					blocks[i].bytes);
		free(blocks[i].p);
	}
	nblocks = 0;
}

void kt_close(const char *what, const float *got, const double *want, size_t n, double abs_tol,
	double rel_tol)
{
	double worst = 0;
	size_t at = 0;

	for (size_t i = 0; i < n; i++) {
		double bound = abs_tol + rel_tol * fabs(want[i]), e;

		if (isnan(want[i]) || isnan(got[i]))
			e = isnan(want[i]) && isnan(got[i]) ? 0 : INFINITY;
		else if (isinf(want[i]) || isinf(got[i]))
			e = (double)got[i] == want[i] ? 0 : INFINITY;
		else
			e = fabs(got[i] - want[i]) / (bound > 0 ? bound : 1e-300);
		if (e > worst) {
			worst = e;
			at = i;
		}
	}
	if (worst > 1)
		fail_msg("%s: element %zu of %zu is %.9g, should be %.9g (%.3g times the "
			 "tolerance)",
			what, at, n, (double)got[at], want[at], worst);
}

void kt_same(const char *what, const void *got, const void *want, size_t bytes)
{
	const unsigned char *a = got, *b = want;

	if (!memcmp(a, b, bytes))
		return;
	for (size_t i = 0; i + 4 <= bytes; i += 4)
		if (memcmp(a + i, b + i, 4)) {
			float x, y;

			memcpy(&x, a + i, 4);
			memcpy(&y, b + i, 4);
			fail_msg("%s: word %zu of %zu differs: %.9g (%08x), should be %.9g (%08x)",
				what, i / 4, bytes / 4, (double)x, kern_bits(x), (double)y,
				kern_bits(y));
		}
	fail_msg("%s: last bytes differ", what);
}

double kt_e4m3(uint8_t code)
{
	int e = code >> 3 & 15, m = code & 7;
	double v = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);

	if (e == 15 && m == 7)
		return NAN;
	return code & 0x80 ? -v : v;
}

double kt_e2m1(uint8_t code)
{
	int e = code >> 1 & 3, m = code & 1;
	double v = e ? ldexp(2 + m, e - 2) : m * 0.5;

	return code & 8 ? -v : v;
}

static double f16_value(uint16_t h)
{
	int e = h >> 10 & 31, m = h & 1023;
	double v = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);

	return h & 0x8000 ? -v : v;
}

/* Raw code i of a row, and its value before scaling. */
static double random_code(enum kern_dtype dtype, uint8_t *row, uint32_t i)
{
	uint16_t h = (uint16_t)kt_random();
	float f = kt_normal() * 0.1f;
	uint8_t c;

	switch (dtype) {
	case KERN_F32:
		memcpy(row + 4 * i, &f, 4);
		return f;
	case KERN_F16:
		h = (uint16_t)((h & 0x83ff) | kt_below(14) << 10);
		memcpy(row + 2 * i, &h, 2);
		return f16_value(h);
	case KERN_BF16:
		memcpy(&h, (char *)&f + 2, 2);
		memcpy(row + 2 * i, &h, 2);
		memcpy((char *)&f, "\0\0", 2);
		return f;
	case KERN_FP8:
		do
			row[i] = (uint8_t)kt_random();
		while ((row[i] & 0x7f) == 0x7f);
		return kt_e4m3(row[i]);
	default:
		c = kt_random() & 15;
		row[i / 2] = (uint8_t)(i % 2 ? row[i / 2] | c << 4 : c);
		return kt_e2m1(c);
	}
}

struct kt_weight kt_weight(enum kern_dtype dtype, enum kern_scale scale, uint32_t n, uint32_t k,
	uint32_t row0, uint32_t col0)
{
	static const uint32_t bits[] = {32, 16, 16, 8, 4};
	struct kern_weight_desc d = {dtype, scale, n, k, row0, col0};
	uint32_t bk = dtype == KERN_FP8 ? 128 : 32, bn = dtype == KERN_FP8 ? 128 : 1;
	uint32_t nb = (col0 % bk + k + bk - 1) / bk, rb = (row0 % bn + n + bn - 1) / bn;
	size_t stride = (size_t)k * bits[dtype] / 8 + 3;
	uint8_t *raw = malloc(n * stride), *e8 = malloc((size_t)nb * rb);
	float *f32 = malloc(sizeof(float) * nb * rb);
	struct kt_weight t;
	struct errbuf err;

	for (uint32_t i = 0; i < nb * rb; i++) {
		e8[i] = (uint8_t)(127 - 5 - kt_below(4) - (dtype == KERN_FP8 ? 5 : 0));
		f32[i] = kt_uniform(0.5f, 3) * 0x1p-10f;
	}
	t.value = kt_new(sizeof(double) * n * k);
	for (uint32_t r = 0; r < n; r++)
		for (uint32_t c = 0; c < k; c++) {
			uint32_t b = ((row0 % bn + r) / bn) * nb + (col0 % bk + c) / bk;
			double v = random_code(dtype, raw + r * stride, c);

			if (scale == KERN_SCALE_E8M0)
				v *= ldexp(1, e8[b] - 127);
			else if (scale == KERN_SCALE_F32)
				v = (float)v * f32[b];
			t.value[(size_t)r * k + c] = v;
		}
	assert_int_equal(kern_weight_init(&t.w, &d, kt_new(kern_weight_bytes(&d)), &err), 0);
	/* in two pieces, the second one first */
	for (int piece = 1; piece >= 0; piece--) {
		uint32_t cut = n / 3, first = piece ? cut : 0, rows = piece ? n - cut : cut;
		size_t b = ((row0 % bn + first) / bn) * (size_t)nb;
		const void *sc = scale == KERN_SCALE_F32 ? (const void *)(f32 + b) : e8 + b;

		if (kern_weight_pack(&t.w, first, rows, raw + first * stride, stride,
			    scale == KERN_SCALE_NONE ? NULL : sc, nb, &err))
			fail_msg("%s", err.text);
	}
	free(raw);
	free(e8);
	free(f32);
	return t;
}
