/*
 * What the kernel tests share: seeded random inputs, poisoned outputs with guards, and a list of
 * configurations (variant x threads) whose results must have the same bits.
 */
#ifndef TESTS_KERN_KT_H
#define TESTS_KERN_KT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cpu/ctx.h"
#include "kernels/kern.h"

struct kt_config {
	const char *variant;
	unsigned threads;
	struct kern_ops ops;
	struct kern_cpu_ctx ctx;
};

enum { KT_CONFIGS = 12 };

/* The first is the reference on one thread; variants this CPU lacks are left out. */
extern struct kt_config kt_all[KT_CONFIGS], *kt_end;
extern unsigned kt_count;

/* cmocka group setup and teardown: contexts of all configurations; prints the seed. */
int kt_setup(void **state);
int kt_teardown(void **state);

/* Random numbers; KERN_SEED in the environment repeats a run. */
uint64_t kt_random(void);
uint32_t kt_below(uint32_t n); /* 0 .. n-1 */
float kt_uniform(float lo, float hi);
float kt_normal(void);                         /* about N(0,1) */
void kt_fill(float *x, size_t n, float scale); /* normal */

/* Memory with a guard behind it, filled with a pattern that is a NaN as a float; freed by
 * kt_free(), which checks the guard, or all at once by kt_free_all(). */
void *kt_new(size_t bytes);
float *kt_floats(size_t n); /* poisoned */
float *kt_normals(size_t n, float scale);
void kt_poison(void *p, size_t bytes);
void kt_free_all(void); /* checks every guard */

/* |got - want| <= abs + rel * |want|, NaN only where want is NaN; prints the worst position. */
void kt_close(const char *what, const float *got, const double *want, size_t n, double abs_tol,
	double rel_tol);
/* Equal bits; prints the first difference. */
void kt_same(const char *what, const void *got, const void *want, size_t bytes);

/* A packed weight of random values, and the same values widened by loops of the test's own. */
struct kt_weight {
	struct kern_weight w;
	double *value; /* [n][k] */
};
struct kt_weight kt_weight(enum kern_dtype dtype, enum kern_scale scale, uint32_t n, uint32_t k,
	uint32_t row0, uint32_t col0);

/* Values of codes by arithmetic, not by the code under test. */
double kt_e4m3(uint8_t code);
double kt_e2m1(uint8_t code);

/*
 * A batch of n sequences: sequence i has len[i] new tokens from pos0[i]. Page ids are a random
 * permutation over all sequences; slots are shuffled too. Raw pages before the window are released.
 */
struct kt_batch {
	struct kern_batch b;
	struct kern_seq *seqs;
	uint32_t pages[KERN_CLASS__COUNT]; /* in use, of each class */
	uint32_t slots;
};
struct kt_batch kt_batch(uint32_t n, const uint32_t *pos0, const uint32_t *len);
/* The part of a batch that holds rows first .. first+n-1 of sequence q only; tables are shared. */
struct kt_batch kt_part(const struct kt_batch *b, uint32_t q, uint32_t first, uint32_t n);
/* Rows of a batch at a ratio, arrays made. */
struct kern_rows kt_rows(const struct kt_batch *b, uint32_t ratio);
/* A pool of poisoned pages, with a gap between pages. */
struct kern_pool kt_pool(size_t page_bytes, uint32_t pages);
/* cos and sin of random angles. */
float *kt_cs(uint32_t rows);
/* Rotates x[64] in double. */
void kt_rotate(double *x, const float *cs, bool inverse);

#endif
