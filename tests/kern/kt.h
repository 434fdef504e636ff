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

/* The first is the reference on one thread; variants this CPU lacks are left out. */
extern struct kt_config kt_all[8], *kt_end;
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

#endif
