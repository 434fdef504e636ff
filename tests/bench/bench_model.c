/*
 * What a step of the bundled model takes, by context and batch, beside the floor that its bytes and
 * multiply-adds have on this machine in this run; and which ops the time goes to.
 *
 *	bench_model [threads]	one worker in this process, 2 threads unless said
 *
 * The floor of a step: the greater of flops / (this run's rate with operands in registers) and
 * bytes / (the rate at which this run reads a set of that size). Bytes are what the ops cannot
 * avoid to read (op_count.h). The floor of an op is the same of its own flops, and of its bytes
 * at the step's rate.
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "coordinator/conf.h"
#include "shm/clock.h"
#include "tests/bench/op_count.h"
#include "tests/bench/rates.h"
#include "tests/bench/bench.h"
#include "tests/bench/report.h"
#include "tests/model/harness_impl.h"

enum { BATCH = 16, TAIL = 64, DECODED = 96, ROUNDS = 3, CONTEXT_MAX = 32768 };

struct bench {
	struct report report;
	struct rates rates;
	struct harness *h;
	uint32_t tokens[CONTEXT_MAX];
	struct op_counts counts;
};

static struct harness *open_model(unsigned threads)
{
	static const char *const settings[] = {
		"cache.memory=1G",
		"schedule.max_context=40000",
		"schedule.max_sequences=16",
	};
	struct conf_set set;
	struct errbuf err = {0};
	struct harness *h;

	if (conf_init(&set) < 0)
		bench_die("no memory");
	for (size_t i = 0; i < ARRAY_LEN(settings); i++)
		if (conf_override(&set, settings[i], &err) < 0)
			bench_die("%s", err.text);
	h = harness_try_open(
		&(struct harness_opts){
			.conf = &set.conf, .threads = threads, .spin_ns = RANK_SPIN_NS},
		&err);
	if (!h)
		bench_die("%s", err.text);
	conf_fini(&set);
	return h;
}

static double seconds_since(mono_ns_t start)
{
	return (double)(mono_now() - start) * 1e-9;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *x, size_t n)
{
	qsort(x, n, sizeof(*x), ascending);
	return x[n / 2];
}

/* ---- floors -------------------------------------------------------------------------------------
 */

static void begin_count(struct bench *b)
{
	memset(&b->counts, 0, sizeof(b->counts));
	op_count_install(&b->h->ranks[0]->ops, &b->counts);
}

static void end_count(struct bench *b)
{
	op_count_remove(&b->h->ranks[0]->ops);
}

struct step_work {
	double flops, bytes, rate; /* rate: bytes a second, of the step's set */
};

/* Of one step, out of so many counted ones. */
static struct step_work work_of_step(struct bench *b, double steps)
{
	struct step_work w = {0};

	for (int i = 0; i < KERN_OP__COUNT; i++) {
		w.flops += b->counts.op[i].flops / steps;
		w.bytes += b->counts.op[i].bytes / steps;
	}
	w.rate = rates_read(&b->rates, w.bytes);
	return w;
}

static double floor_s(const struct bench *b, double flops, double bytes, double rate)
{
	return fmax(flops / b->rates.fma, bytes / rate);
}

/* Where the time of a step goes: ops that take 2 % of it or more, and what lies outside of ops. */
static void report_ops(
	struct bench *b, const char *what, double steps, double step_s, const struct step_work *w)
{
	const char *unit_name = step_s > 0.01 ? "ms" : "us";
	double unit = step_s > 0.01 ? 1e3 : 1e6, in_ops = 0, rest = 0;
	char text[96];

	for (int i = 0; i < KERN_OP__COUNT; i++) {
		const struct op_count *c = &b->counts.op[i];
		double op = (double)c->ns / steps * 1e-9 * unit;
		double least = floor_s(b, c->flops / steps, c->bytes / steps, w->rate) * unit;

		in_ops += op;
		if (op < 0.02 * step_s * unit) {
			rest += op;
			continue;
		}
		snprintf(text, sizeof(text), "  %s: %s", what, kern_op_table[i].name);
		report_add(&b->report, &(struct report_row){.what = text,
					       .value = op,
					       .unit = unit_name,
					       .beside = least > 0 ? "its floor" : NULL,
					       .beside_value = least});
	}
	snprintf(text, sizeof(text), "  %s: other ops", what);
	report_add(
		&b->report, &(struct report_row){.what = text, .value = rest, .unit = unit_name});
	snprintf(text, sizeof(text), "  %s: outside of ops", what);
	report_add(&b->report,
		&(struct report_row){
			.what = text, .value = step_s * unit - in_ops, .unit = unit_name});
}

static void report_rate(struct bench *b, const char *what, double tokens_a_step, double step_s,
	const struct step_work *w, double least)
{
	report_add(&b->report,
		&(struct report_row){
			.what = what,
			.value = tokens_a_step / step_s,
			.unit = "tokens/s",
			.beside = "the floor's",
			.beside_value = tokens_a_step / floor_s(b, w->flops, w->bytes, w->rate),
			.least = least,
		});
}

/* ---- runs ---------------------------------------------------------------------------------------
 */

/* A row is held against the rates of its own seconds: the mean of before and after. */
static void begin_row(struct bench *b)
{
	rates_refresh(&b->rates);
}

static void end_row(struct bench *b)
{
	double before = b->rates.fma, before_l1 = b->rates.fma_l1;

	rates_refresh(&b->rates);
	b->rates.fma = (b->rates.fma + before) / 2;
	b->rates.fma_l1 = (b->rates.fma_l1 + before_l1) / 2;
}

/* Feeds a prompt to slot 0 and says how fast; it stays there. */
static void prefill(struct bench *b, uint32_t n, unsigned rounds)
{
	double s[ROUNDS], steps = DIV_UP(n, harness_capacity(b->h)->step_tokens), all;
	char what[64];
	struct step_work w;

	begin_row(b);
	for (unsigned i = 0; i < rounds; i++) {
		mono_ns_t start;

		harness_drop(b->h, 0);
		begin_count(b);
		start = mono_now();
		harness_feed(b->h, 0, b->tokens, n, 0, NULL);
		s[i] = seconds_since(start);
		end_count(b);
	}
	all = s[rounds - 1];
	end_row(b);
	w = work_of_step(b, steps);
	snprintf(what, sizeof(what), "prefill %uk", n / 1024);
	report_rate(b, what, n / steps, median(s, rounds) / steps, &w, 0);
	report_ops(b, what, steps, all / steps, &w);
}

/* Steps of one token for each of n slots, s[DECODED] seconds each. */
static void decode_steps(struct bench *b, uint32_t n, double *s)
{
	for (unsigned i = 0; i < DECODED; i++) {
		struct harness_part parts[BATCH];
		mono_ns_t start;

		for (uint32_t k = 0; k < n; k++)
			parts[k] = (struct harness_part){
				.slot = k, .n = 1, .tokens = &b->tokens[i + k], .sample = true};
		start = mono_now();
		harness_run(b->h, parts, n);
		s[i] = seconds_since(start);
	}
}

static void decode(struct bench *b, uint32_t n, uint32_t context, double least)
{
	double s[DECODED], counted[DECODED], mean = 0;
	struct step_work w;
	char what[64];

	snprintf(what, sizeof(what), "decode, batch %u, %uk", n, context / 1024);
	decode_steps(b, n, s);
	begin_row(b);
	begin_count(b);
	decode_steps(b, n, counted);
	end_count(b);
	for (int i = 0; i < DECODED; i++)
		mean += counted[i] / DECODED;
	decode_steps(b, n, s);
	end_row(b);
	w = work_of_step(b, DECODED);
	report_rate(b, what, n, median(s, DECODED), &w, least);
	report_ops(b, what, DECODED, mean, &w);
}

/* Slots 0 .. 15 hold `context` tokens each, on pages of their own; the last TAIL of them differ, so
 * that what follows takes different experts and entries. */
static void fill_batch(struct bench *b, uint32_t context)
{
	size_t bytes;
	void *blob;

	harness_drop(b->h, 0);
	harness_feed(b->h, 0, b->tokens, context - TAIL, 0, NULL);
	blob = harness_export(b->h, 0, &bytes);
	for (uint32_t i = 0; i < BATCH; i++) {
		harness_import(b->h, i, blob, bytes);
		harness_feed(b->h, i, b->tokens + context + i * TAIL, TAIL, 0, NULL);
	}
	free(blob);
}

/* ---- memory -------------------------------------------------------------------------------------
 */

static double resident_bytes(void)
{
	unsigned long all = 0, resident = 0;
	FILE *f = fopen("/proc/self/statm", "re");

	if (!f || fscanf(f, "%lu %lu", &all, &resident) != 2)
		resident = 0;
	if (f)
		fclose(f);
	return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

/* Of the page pools: what prompts are allowed to add. */
static double resident_pool_bytes(const struct rank *r)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), n = 0;

	for (int k = 0; k < POOL__COUNT; k++) {
		const struct pool *p = &r->pools.pool[k];
		size_t pages = DIV_UP(p->layers * p->layer_bytes, page);
		unsigned char *in = bench_alloc(pages);

		if (p->base && mincore(p->base, p->layers * p->layer_bytes, in) == 0)
			for (size_t i = 0; i < pages; i++)
				n += in[i] & 1;
		free(in);
	}
	return (double)n * (double)page;
}

/* Memory of the process besides pages, after prompts of several lengths, beside the shortest. */
static void report_memory(struct bench *b)
{
	static const uint32_t lengths[] = {2048, 8192, 32768};
	double first = 0, now;
	char what[64];

	for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
		harness_drop(b->h, 0);
		harness_feed(b->h, 0, b->tokens, lengths[i], 0, NULL);
		now = resident_bytes() - resident_pool_bytes(b->h->ranks[0]);
		first = i ? first : now;
		snprintf(what, sizeof(what), "memory besides pages, after a prompt of %uk",
			lengths[i] / 1024);
		report_add(&b->report, &(struct report_row){.what = what,
					       .value = now / 0x1p20,
					       .unit = "MiB",
					       .beside = i ? "after 2k" : NULL,
					       .beside_value = first / 0x1p20,
					       .most = i ? 1.02 : 0});
	}
}

static void report_rates(struct bench *b)
{
	static const struct {
		const char *what;
		double mib;
	} sets[] = {{"read, 1 MiB a thread", 2}, {"read, 6 MiB a thread", 12},
		{"read, 512 MiB a thread", 1024}};

	report_add(&b->report, &(struct report_row){.what = "multiply-adds in registers",
				       .value = b->rates.fma * 1e-9,
				       .unit = "GFLOP/s"});
	report_add(
		&b->report, &(struct report_row){.what = "multiply-adds, a panel in the L1 cache",
				    .value = b->rates.fma_l1 * 1e-9,
				    .unit = "GFLOP/s"});
	for (size_t i = 0; i < ARRAY_LEN(sets); i++)
		report_add(&b->report,
			&(struct report_row){.what = sets[i].what,
				.value = rates_read(&b->rates, sets[i].mib * 0x1p20) * 1e-9,
				.unit = "GB/s"});
}

static void run_all(struct bench *b)
{
	static const uint32_t contexts[] = {1024, 4096, 8192, 32768}, batched[] = {1024, 4096};

	for (size_t i = 0; i < ARRAY_LEN(contexts); i++) {
		prefill(b, contexts[i], contexts[i] > 4096 ? 1 : ROUNDS);
		if (contexts[i] != 8192)
			decode(b, 1, contexts[i], contexts[i] > 4096 ? 0.4 : 0);
	}
	for (size_t i = 0; i < ARRAY_LEN(batched); i++) {
		fill_batch(b, batched[i]);
		decode(b, BATCH, batched[i], 0.4);
	}
}

int main(int argc, char **argv)
{
	struct bench_args args = bench_args(argc, argv, 1, "[THREADS]");
	unsigned threads = bench_number(&args, 0, RATES_THREADS_MAX, 2);
	struct bench *b = bench_zeroes(sizeof(*b));
	uint32_t x = 1;
	int code;

	bench_on_harness();
	if (!rates_open(&b->rates, threads)) {
		free(b);
		return 77;
	}
	for (size_t i = 0; i < ARRAY_LEN(b->tokens); i++) {
		x = x * 1664525 + 1013904223;
		b->tokens[i] = 2 + (x >> 8) % 4000;
	}
	b->h = open_model(threads);
	report_open(&b->report, "model", "A step of the bundled model, beside its floor");
	report_memory(b);
	report_rates(b);
	run_all(b);
	harness_close(b->h);
	rates_close(&b->rates);
	code = report_close(&b->report);
	free(b);
	return code;
}
