/*
 * How fast the CPU kernels are: bench_kernels [variant [threads]]. Each line is the best of several
 * runs; not part of make check.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/ctx.h"
#include "kernels/kern.h"
#include "kernels/layout.h"
#include "shm/clock.h"

static struct kern_ops ops;
static struct kern_cpu_ctx ctx;

static const struct kern_cpu_limits LIMITS = {
	.max_tokens = 4096,
	.heads = 64,
	.index_heads = 64,
	.topk = 2048,
	.world = 1,
	.max_k = 4096,
	.experts = 64,
	.experts_per_token = 8,
};

static void *filled(size_t bytes)
{
	float *p = aligned_alloc(64, ALIGN_UP(bytes, (size_t)64));

	if (!p)
		abort();
	for (size_t i = 0; i < bytes / 4; i++)
		p[i] = (float)(i % 17) * 0.1f - 0.8f;
	return p;
}

/* Best time of f(arg) over about 0.2 s, in seconds. */
static double best(int (*f)(const void *, void *), const void *arg)
{
	double least = 1e9;
	mono_ns_t begin = mono_now();

	for (int i = 0; i < 3 || mono_now() - begin < 200 * NS_PER_MS; i++) {
		mono_ns_t t = mono_now();

		if (f(arg, &ctx))
			abort();
		least = MIN(least, (double)(mono_now() - t) * 1e-9);
	}
	return least;
}

static void bench_linear(
	enum kern_dtype dtype, enum kern_scale scale, uint32_t rows, uint32_t n, uint32_t k)
{
	struct kern_weight_desc d = {dtype, scale, n, k, 0, 0};
	size_t bytes = kern_weight_bytes(&d);
	struct kern_weight w;
	struct kern_linear_args a = {.rows = rows, .n = 1, .ldx = k};
	double s;

	if (kern_weight_init(&w, &d, filled(bytes), NULL))
		abort();
	a.x = filled(sizeof(float) * rows * k);
	a.out[0] = (struct kern_linear_out){&w, filled(sizeof(float) * rows * n), n};
	s = best((int (*)(const void *, void *))ops.linear, &a);
	printf("linear %u x %u, type %d, %4u rows: %8.1f us %7.1f GFLOP/s %6.1f GB/s\n", n, k,
		dtype, rows, s * 1e6, 2e-9 * rows * n * k / s, 1e-9 * (double)bytes / s);
	free(w.data);
	free((void *)a.x);
	free(a.out[0].y);
}

/* Window and entries of one sequence at position pos, the last `rows` positions. */
static void bench_attention(enum kern_dtype format, uint32_t heads, uint32_t pos, uint32_t rows,
	uint32_t ratio, uint32_t k)
{
	uint32_t pages = pos / 64 + 1, *ids = malloc(pages * sizeof(*ids));
	uint32_t *row_seq = calloc(rows, 4), *row_pos = malloc(rows * 4);
	struct kern_seq seq = {.n = rows,
		.pos0 = pos + 1 - rows,
		.page_n = {pages, pages, pages},
		.pages = {ids, ids, ids}};
	struct kern_batch b = {rows, 1, row_seq, row_pos, &seq};
	size_t bytes = kern_kv_page_bytes(format);
	struct kern_pool pool = {calloc(pages, bytes), bytes};
	struct kern_attention_args a = {.batch = &b,
		.heads = heads,
		.scale = 0.044f,
		.format = format,
		.raw = pool,
		.entries = pool,
		.ratio = ratio,
		.k = k};
	int32_t *sel = malloc(sizeof(*sel) * rows * k + 1);
	double s, keys = 0;

	for (uint32_t i = 0; i < pages; i++)
		ids[i] = (i * 7 + 3) % pages;
	for (uint32_t r = 0; r < rows; r++) {
		row_pos[r] = seq.pos0 + r;
		for (uint32_t i = 0; i < k; i++)
			sel[r * k + i] = (int32_t)(kern_visible(row_pos[r], 4) * (uint64_t)i / k);
		keys += 128 + (ratio == 4 ? k : ratio ? kern_visible(row_pos[r], ratio) : 0);
	}
	a.selected = ratio == 4 ? sel : NULL;
	a.q = filled(sizeof(float) * rows * heads * KERN_HEAD);
	a.o = filled(sizeof(float) * rows * heads * KERN_HEAD);
	a.sink = filled(sizeof(float) * heads);
	s = best((int (*)(const void *, void *))ops.attention, &a);
	printf("attention %u heads, type %d, %u rows at %u, ratio %u: %8.1f us %6.1f GFLOP/s\n",
		heads, format, rows, pos, ratio, s * 1e6, 4e-9 * keys * heads * KERN_HEAD / s);
	free(pool.base);
	free(ids);
	free(sel);
	free(row_seq);
	free(row_pos);
	free((void *)a.q);
	free(a.o);
	free((void *)a.sink);
}

static void bench_select(enum kern_dtype format, uint32_t heads, uint32_t entries, uint32_t rows)
{
	uint32_t pages = entries / 64 + 1, *ids = malloc(pages * sizeof(*ids)), pos = entries * 4;
	uint32_t *row_seq = calloc(rows, 4), *row_pos = malloc(rows * 4);
	struct kern_seq seq = {.n = rows,
		.pos0 = pos + 1 - rows,
		.page_n = {0, pages, 0},
		.pages = {NULL, ids, NULL}};
	struct kern_batch b = {rows, 1, row_seq, row_pos, &seq};
	size_t bytes = kern_index_page_bytes(format);
	struct kern_index_select_args a = {.index = {.batch = &b,
						   .heads = heads,
						   .ldw = heads,
						   .scale = 0.01f,
						   .format = format,
						   .share = {0, 1}},
		.k = 512};
	double s;

	a.index.pool = (struct kern_pool){filled(pages * bytes), bytes};
	for (uint32_t i = 0; i < pages; i++)
		ids[i] = (i * 7 + 3) % pages;
	for (uint32_t i = 0; i < pages * KERN_PAGE; i++) {
		float key[KERN_INDEX];

		for (uint32_t k = 0; k < KERN_INDEX; k++)
			key[k] = (float)((i * 31 + k * 17) % 23) * 0.1f - 1;
		kern_index_encode(format,
			kern_index_at((char *)a.index.pool.base + i / KERN_PAGE * bytes, format,
				i % KERN_PAGE),
			key);
	}
	for (uint32_t r = 0; r < rows; r++)
		row_pos[r] = seq.pos0 + r;
	a.index.q = filled(sizeof(float) * rows * heads * KERN_INDEX);
	a.index.weights = filled(sizeof(float) * rows * heads);
	a.entries = malloc(sizeof(int32_t) * rows * a.k);
	a.count = malloc(sizeof(uint32_t) * rows);
	s = best((int (*)(const void *, void *))ops.index_select, &a);
	printf("index_select %u heads, type %d, %u rows x %u entries: %8.1f us %6.1f GFLOP/s\n",
		heads, format, rows, entries, s * 1e6,
		2e-9 * rows * entries * heads * KERN_INDEX / s);
	free(a.index.pool.base);
	free(ids);
	free(row_seq);
	free(row_pos);
	free((void *)a.index.q);
	free((void *)a.index.weights);
	free(a.entries);
	free(a.count);
}

static void bench_hc(uint32_t rows, uint32_t d)
{
	struct kern_weight_desc desc = {KERN_F32, KERN_SCALE_NONE, 24, 4 * d, 0, 0};
	struct kern_weight w;
	struct kern_hc_coef_args a = {
		.rows = rows, .d = d, .iters = 20, .hc_eps = 1e-6f, .rms_eps = 1e-6f, .fn = &w};
	struct kern_hc_post_args p = {.rows = rows, .d = d};
	double s;

	if (kern_weight_init(&w, &desc, filled(kern_weight_bytes(&desc)), NULL))
		abort();
	a.x = p.x = p.y = filled(sizeof(float) * rows * 4 * d);
	a.base = filled(96);
	a.scale = filled(12);
	a.pre = filled(16 * rows);
	a.post = filled(16 * rows);
	a.comb = filled(64 * rows);
	p.post = a.post;
	p.comb = a.comb;
	p.o = filled(sizeof(float) * rows * d);
	s = best((int (*)(const void *, void *))ops.hc_coef, &a);
	printf("hc_coef d %u, %u rows: %8.1f us\n", d, rows, s * 1e6);
	s = best((int (*)(const void *, void *))ops.hc_post, &p);
	printf("hc_post d %u, %u rows: %8.1f us\n", d, rows, s * 1e6);
}

int main(int argc, char **argv)
{
	struct errbuf err;

	if (kern_ops_get(KERN_CPU, argc > 1 ? argv[1] : NULL, &ops, &err)) {
		fprintf(stderr, "%s\n", err.text);
		return err.exit_code;
	}
	if (kern_cpu_ctx_init(&ctx, &LIMITS, argc > 2 ? (unsigned)atoi(argv[2]) : 2, 50000))
		return 71;
	printf("%s, %u threads, scratch %zu bytes\n", ops.variant, ctx.n, ctx.scratch_bytes);
	for (uint32_t rows = 1; rows <= 1024; rows *= rows == 1 ? 4 : 16) {
		bench_linear(KERN_BF16, KERN_SCALE_NONE, rows, 4096, 1024);
		bench_linear(KERN_FP8, KERN_SCALE_E8M0, rows, 4096, 1024);
		bench_linear(KERN_FP4, KERN_SCALE_E8M0, rows, 4096, 1024);
		bench_linear(KERN_F32, KERN_SCALE_NONE, rows, 4096, 1024);
		bench_linear(KERN_FP8, KERN_SCALE_E8M0, rows, 256, 256);
		bench_linear(KERN_FP8, KERN_SCALE_E8M0, rows, 4096, 128);
	}
	for (uint32_t rows = 1; rows <= 256; rows *= 256) {
		bench_attention(KERN_BF16, 8, 4095, rows, 0, 0);
		bench_attention(KERN_BF16, 8, 4095, rows, 4, 512);
		bench_attention(KERN_BF16, 8, 4095, rows, 128, 0);
		bench_attention(KERN_BF16, 64, 4095, rows, 4, 512);
		bench_attention(KERN_FP8, 64, 4095, rows, 4, 512);
		bench_attention(KERN_F32, 8, 4095, rows, 4, 512);
		bench_select(KERN_BF16, 8, 1024, rows);
		bench_select(KERN_BF16, 64, 4096, rows);
		bench_select(KERN_FP4, 64, 4096, rows);
		bench_hc(rows, 256);
	}
	kern_cpu_ctx_free(&ctx);
	return 0;
}
