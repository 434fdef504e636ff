/*
 * Each kernel beside its own floor, measured in the same run: multiply-adds beside what this
 * machine does with operands in registers, weights read once beside what it reads from a set of
 * that size. Products of many rows also stand beside OpenBLAS' sgemm where libopenblas.so.0 is
 * installed, with the best of its core types (each tried in a process of its own) and as many
 * threads.
 *
 *	bench_kernels [variant [threads]]	best of several runs; auto and 2 threads unless said
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cpu/ctx.h"
#include "kernels/kern.h"
#include "kernels/layout.h"
#include "shm/clock.h"
#include "tests/bench/rates.h"
#include "tests/bench/bench.h"
#include "tests/bench/report.h"

static struct report report;
static struct rates rates;
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
	float *p = bench_alloc(bytes);

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

/* ---- products -----------------------------------------------------------------------------------
 */

static const char *type_name(enum kern_dtype t)
{
	static const char *const names[] = {
		[KERN_F32] = "f32",
		[KERN_F16] = "f16",
		[KERN_BF16] = "bf16",
		[KERN_FP8] = "fp8",
		[KERN_FP4] = "fp4",
	};

	return names[t];
}

/* Weights of ordinary size: what the formats' small and odd numbers cost is not the question. */
static void fill_weight(struct kern_weight *w)
{
	size_t n = (size_t)ALIGN_UP(w->n, (uint32_t)KERN_GROUP) * w->k;
	size_t scales = (size_t)ALIGN_UP(w->n, (uint32_t)KERN_GROUP) * w->nblk;
	uint16_t *half = w->data;
	float *f32 = w->data;
	uint8_t *byte = w->data;

	for (size_t i = 0; w->dtype == KERN_F32 && i < n; i++)
		f32[i] = (float)(i % 17) * 0.01f - 0.08f;
	for (size_t i = 0; w->dtype == KERN_BF16 && i < n; i++)
		half[i] = (uint16_t)(0x3c00 + i % 0x80 + (i % 2 << 15));
	for (size_t i = 0; w->dtype == KERN_FP8 && i < n; i++)
		byte[i] = (uint8_t)(0x28 + i % 16 + (i % 2 << 7));
	for (size_t i = 0; w->dtype == KERN_FP4 && i < n / 2; i++)
		byte[i] = (uint8_t)(i * 37);
	for (size_t i = 0; i < scales; i++)
		if (w->dtype == KERN_FP8)
			((float *)w->scale)[i] = 0.125f;
		else
			((uint8_t *)w->scale)[i] = 124;
}

/* Seconds of y[rows][n] = x[rows][k] W[n][k]; ret_bytes: of the packed weight. */
static double time_linear(
	enum kern_dtype dtype, uint32_t rows, uint32_t n, uint32_t k, double *ret_bytes)
{
	struct kern_weight_desc d = {dtype,
		dtype == KERN_FP8 || dtype == KERN_FP4 ? KERN_SCALE_E8M0 : KERN_SCALE_NONE, n, k, 0,
		0};
	size_t bytes = kern_weight_bytes(&d);
	struct kern_weight w;
	struct kern_linear_args a = {.rows = rows, .n = 1, .ldx = k};
	double s;

	if (kern_weight_init(&w, &d, filled(bytes), NULL))
		abort();
	fill_weight(&w);
	a.x = filled(sizeof(float) * rows * k);
	a.out[0] = (struct kern_linear_out){&w, filled(sizeof(float) * rows * n), n};
	s = best((int (*)(const void *, void *))ops.linear, &a);
	free(w.data);
	free((void *)a.x);
	free(a.out[0].y);
	*ret_bytes = (double)bytes;
	return s;
}

/* One row or a few: weights straight from their compressed form, beside reading them. */
static void bench_gemv(enum kern_dtype dtype, uint32_t rows, uint32_t n, uint32_t k)
{
	double bytes, s = time_linear(dtype, rows, n, k, &bytes);
	double least = fmax(bytes / rates_read(&rates, bytes), 2.0 * rows * n * k / rates.fma);
	char what[96];

	snprintf(what, sizeof(what), "%u x %u, %s, %u row%s", n, k, type_name(dtype), rows,
		rows > 1 ? "s" : "");
	report_add(&report, &(struct report_row){.what = what,
				    .value = s * 1e6,
				    .unit = "us",
				    .beside = "its floor",
				    .beside_value = least * 1e6});
}

/* ---- OpenBLAS -----------------------------------------------------------------------------------
 */

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

typedef void sgemm_fn(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
	int lda, const float *b, int ldb, float beta, float *c, int ldc);

/* Seconds of the same product, in this process, whose environment has chosen the core type. */
static double time_sgemm(sgemm_fn *sgemm, int rows, int n, int k)
{
	float *x = filled(sizeof(float) * (size_t)rows * k),
	      *w = filled(sizeof(float) * (size_t)n * k);
	float *y = filled(sizeof(float) * (size_t)rows * n);
	mono_ns_t begin = mono_now();
	double least = 1e9;

	for (int i = 0; i < 3 || mono_now() - begin < 100 * NS_PER_MS; i++) {
		mono_ns_t t = mono_now();

		sgemm(ROW_MAJOR, NO_TRANS, TRANS, rows, n, k, 1, x, k, w, k, 0, y, n);
		least = MIN(least, (double)(mono_now() - t) * 1e-9);
	}
	free(x);
	free(w);
	free(y);
	return least;
}

/* The same with one core type, in a child; 0 where it cannot run. */
static double time_core_type(const char *core, unsigned threads, int rows, int n, int k)
{
	double s = 0;
	int fd[2], status;
	pid_t child;

	if (pipe(fd) < 0)
		return 0;
	fflush(NULL);
	child = fork();
	if (child == 0) {
		char text[16];
		void *lib;
		sgemm_fn *sgemm;

		snprintf(text, sizeof(text), "%u", threads);
		setenv("OPENBLAS_NUM_THREADS", text, 1);
		if (*core)
			setenv("OPENBLAS_CORETYPE", core, 1);
		lib = dlopen("libopenblas.so.0", RTLD_NOW);
		*(void **)&sgemm = lib ? dlsym(lib, "cblas_sgemm") : NULL;
		s = sgemm ? time_sgemm(sgemm, rows, n, k) : 0;
		_exit(write(fd[1], &s, sizeof(s)) != sizeof(s));
	}
	close(fd[1]);
	if (child < 0 || read(fd[0], &s, sizeof(s)) != sizeof(s))
		s = 0;
	close(fd[0]);
	if (child > 0)
		waitpid(child, &status, 0);
	return s;
}

/* The best core type's seconds and its name; 0 without OpenBLAS. */
static double best_sgemm(uint32_t rows, uint32_t n, uint32_t k, const char **ret_core)
{
	static const char *const cores[] = {
		"", "Haswell", "SkylakeX", "Cooperlake", "Sapphirerapids"};
	double least = 0;

	for (size_t i = 0; i < ARRAY_LEN(cores); i++) {
		double s = time_core_type(cores[i], ctx.n, (int)rows, (int)n, (int)k);

		if (s > 0 && (least == 0 || s < least)) {
			least = s;
			*ret_core = *cores[i] ? cores[i] : "its own choice";
		}
	}
	return least;
}

/* Many rows: beside the flop rate, and beside sgemm on the same shape widened. */
static void bench_product(uint32_t rows, uint32_t n, uint32_t k, const enum kern_dtype *types)
{
	double flops = 2.0 * rows * n * k, bytes, blas;
	const char *core = NULL;
	char what[96], beside[96];

	blas = best_sgemm(rows, n, k, &core);
	snprintf(beside, sizeof(beside), "OpenBLAS, %s", core ? core : "none");
	for (; *types != KERN_F16; types++) {
		double s = time_linear(*types, rows, n, k, &bytes);

		snprintf(what, sizeof(what), "%u rows, %u x %u, %s", rows, n, k, type_name(*types));
		if (blas > 0)
			report_add(&report, &(struct report_row){.what = what,
						    .value = flops / s * 1e-9,
						    .unit = "GFLOP/s",
						    .beside = beside,
						    .beside_value = flops / blas * 1e-9,
						    .least = 1});
		report_add(&report, &(struct report_row){.what = what,
					    .value = flops / s * 1e-9,
					    .unit = "GFLOP/s",
					    .beside = "registers",
					    .beside_value = rates.fma * 1e-9});
	}
}

/* ---- attention, index scores, streams -----------------------------------------------------------
 */

static void report_flops(const char *what, double flops, double s)
{
	report_add(&report, &(struct report_row){.what = what,
				    .value = flops / s * 1e-9,
				    .unit = "GFLOP/s",
				    .beside = "registers",
				    .beside_value = rates.fma * 1e-9});
}

/* Values of key i: none is 0, and neighbours differ. */
static void some_key(uint32_t i, uint32_t dims, float *key)
{
	for (uint32_t k = 0; k < dims; k++)
		key[k] = (float)((i * 31 + k * 17) % 23) * 0.1f - 1.05f;
}

/* Pages of rows, all of them written: what was never written is one page of zeros for the cache. */
static struct kern_pool filled_pool(enum kern_dtype format, uint32_t pages)
{
	size_t bytes = kern_kv_page_bytes(format);
	struct kern_pool pool = {bench_alloc(pages * bytes), bytes};

	for (uint32_t i = 0; i < pages * KERN_PAGE; i++) {
		float key[KERN_HEAD];

		some_key(i, KERN_HEAD, key);
		kern_kv_encode(format,
			kern_kv_at(
				(char *)pool.base + i / KERN_PAGE * bytes, format, i % KERN_PAGE),
			key);
	}
	return pool;
}

/* Window and entries of one sequence at position pos, the last `rows` positions. */
static void bench_attention(enum kern_dtype format, uint32_t heads, uint32_t pos, uint32_t rows,
	uint32_t ratio, uint32_t k)
{
	uint32_t pages = pos / 64 + 1, *ids = bench_alloc(pages * sizeof(*ids));
	uint32_t *row_seq = bench_zeroes((size_t)rows * 4),
		 *row_pos = bench_alloc((size_t)rows * 4);
	struct kern_seq seq = {.n = rows,
		.pos0 = pos + 1 - rows,
		.page_n = {pages, pages, pages},
		.pages = {ids, ids, ids}};
	struct kern_batch b = {rows, 1, row_seq, row_pos, &seq};
	struct kern_pool pool = filled_pool(format, pages);
	struct kern_attention_args a = {.batch = &b,
		.heads = heads,
		.scale = 0.044f,
		.format = format,
		.raw = pool,
		.entries = pool,
		.ratio = ratio,
		.k = k};
	int32_t *sel = bench_alloc(sizeof(*sel) * rows * k);
	double s, keys = 0;
	char what[96];

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
	snprintf(what, sizeof(what), "attention, %u heads, %s, %u row%s, ratio %u", heads,
		type_name(format), rows, rows > 1 ? "s" : "", ratio);
	report_flops(what, 4 * keys * heads * KERN_HEAD, s);
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
	uint32_t pages = entries / 64 + 1, *ids = bench_alloc(pages * sizeof(*ids)),
		 pos = entries * 4;
	uint32_t *row_seq = bench_zeroes((size_t)rows * 4),
		 *row_pos = bench_alloc((size_t)rows * 4);
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
	char what[96];
	double s;

	a.index.pool = (struct kern_pool){filled(pages * bytes), bytes};
	for (uint32_t i = 0; i < pages; i++)
		ids[i] = (i * 7 + 3) % pages;
	for (uint32_t i = 0; i < pages * KERN_PAGE; i++) {
		float key[KERN_INDEX];

		some_key(i, KERN_INDEX, key);
		kern_index_encode(format,
			kern_index_at((char *)a.index.pool.base + i / KERN_PAGE * bytes, format,
				i % KERN_PAGE),
			key);
	}
	for (uint32_t r = 0; r < rows; r++)
		row_pos[r] = seq.pos0 + r;
	a.index.q = filled(sizeof(float) * rows * heads * KERN_INDEX);
	a.index.weights = filled(sizeof(float) * rows * heads);
	a.entries = bench_alloc(sizeof(int32_t) * rows * a.k);
	a.count = bench_alloc(sizeof(uint32_t) * rows);
	s = best((int (*)(const void *, void *))ops.index_select, &a);
	snprintf(what, sizeof(what), "index_select, %u heads, %s, %u row%s, %u entries", heads,
		type_name(format), rows, rows > 1 ? "s" : "", entries);
	report_flops(what, 2.0 * rows * entries * heads * KERN_INDEX, s);
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
	char what[64];
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
	snprintf(what, sizeof(what), "hc_coef, d %u, %u row%s", d, rows, rows > 1 ? "s" : "");
	report_add(&report, &(struct report_row){.what = what, .value = s * 1e6, .unit = "us"});
	s = best((int (*)(const void *, void *))ops.hc_post, &p);
	snprintf(what, sizeof(what), "hc_post, d %u, %u row%s", d, rows, rows > 1 ? "s" : "");
	report_add(&report, &(struct report_row){.what = what, .value = s * 1e6, .unit = "us"});
}

static void run_products(void)
{
	static const enum kern_dtype all[] = {KERN_F32, KERN_BF16, KERN_FP8, KERN_FP4, KERN_F16};
	static const enum kern_dtype fp8[] = {KERN_FP8, KERN_F16}, bf16[] = {KERN_BF16, KERN_F16};

	bench_product(512, 4096, 1024, all);
	bench_product(512, 4096, 128, fp8);  /* the bundled model's wq_b */
	bench_product(512, 1024, 256, bf16); /* a compressor */
	bench_product(512, 256, 256, fp8);   /* wo_b */
	bench_product(64, 4096, 256, bf16);  /* the head */
	for (uint32_t rows = 1; rows <= 16; rows *= 4)
		for (int i = 0; all[i] != KERN_F16; i++)
			bench_gemv(all[i], rows, 4096, 1024);
	bench_gemv(KERN_FP8, 1, 256, 256);
	bench_gemv(KERN_FP8, 1, 4096, 128);
}

static void run_rows(uint32_t rows)
{
	bench_attention(KERN_BF16, 8, 4095, rows, 0, 0);
	bench_attention(KERN_BF16, 8, 4095, rows, 4, 512);
	bench_attention(KERN_BF16, 8, 4095, rows, 128, 0);
	bench_attention(KERN_BF16, 64, 4095, rows, 4, 512);
	bench_attention(KERN_FP8, 64, 4095, rows, 4, 512);
	bench_attention(KERN_F32, 8, 4095, rows, 4, 512);
	bench_select(KERN_BF16, 8, 1024, rows);
	bench_select(KERN_BF16, 8, 8192, rows);
	bench_select(KERN_BF16, 64, 4096, rows);
	bench_select(KERN_FP4, 64, 4096, rows);
	bench_hc(rows, 256);
}

int main(int argc, char **argv)
{
	struct bench_args args = bench_args(argc, argv, 2,
		"[VARIANT [THREADS]], VARIANT auto, reference, avx2, avx512 or avx512gfni");
	unsigned threads = bench_number(&args, 1, RATES_THREADS_MAX, 2);
	struct errbuf err;
	int ret = kern_ops_get(KERN_CPU, args.n > 0 ? args.at[0] : NULL, &ops, &err);

	if (ret == -EINVAL)
		bench_usage(args.usage);
	if (ret < 0) {
		printf("%s\n", err.text);
		return 77;
	}
	if (!rates_open(&rates, threads))
		return 77;
	if (kern_cpu_ctx_init(&ctx, &LIMITS, threads, 50000))
		bench_die("no memory for the kernels' scratch, or for %u threads", threads);
	report_open(&report, "kernels", "Kernels, each beside its floor");
	report_add(&report, &(struct report_row){.what = "multiply-adds in registers",
				    .value = rates.fma * 1e-9,
				    .unit = "GFLOP/s"});
	report_add(&report, &(struct report_row){.what = "multiply-adds, a panel in the L1 cache",
				    .value = rates.fma_l1 * 1e-9,
				    .unit = "GFLOP/s"});
	run_products();
	run_rows(1);
	run_rows(256);
	kern_cpu_ctx_free(&ctx);
	rates_close(&rates);
	return report_close(&report);
}
