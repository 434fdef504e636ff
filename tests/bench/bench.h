/*
 * bench.h: what every bench does alike. It looks at its arguments, of which wrong ones get a line
 * of usage and exit status 64, and it ends with a line that says why, not by abort(), when the
 * machine does not give what it needs: status 71. What report.h could not write is status 74.
 *
 *	struct bench_args args = bench_args(argc, argv, 1, "[THREADS]");
 *	unsigned threads = bench_number(&args, 0, 64, 2);
 *	float *x = bench_alloc(bytes);
 */
#pragma once

#include <stddef.h>

#include "shm/util.h"

struct bench_args {
	const char *usage; /* what may follow the program's name */
	int n;
	char **at; /* [n] */
};

/* At most `most` of them, none of which begins with '-'. */
struct bench_args bench_args(int argc, char **argv, int most, const char *usage);

/* Argument i, a number from 1 to most; `otherwise` where it is not given. */
unsigned bench_number(const struct bench_args *a, int i, unsigned most, unsigned otherwise);

_Noreturn void bench_usage(const char *usage);
_Noreturn void bench_die(const char *format, ...) PRINTF_LIKE(1, 2);

/* To free(). bench_alloc() begins at a cache line and is not zeroed. */
void *bench_alloc(size_t bytes);
void *bench_zeroes(size_t bytes);

/*
 * For benches on the harness of tests: there an assertion that fails ends the program, and outside
 * a test it does so without a word. From here on this gets a line.
 */
void bench_on_harness(void);
