/*
 * rates.h: what this machine gives now, on so many threads: multiply-adds a second and bytes read a
 * second. Benches hold a kernel or a step against them, in the same run, because a machine that is
 * shared, or whose clock moves, is another machine a minute later.
 *
 *	struct rates r;
 *	if (!rates_open(&r, 2))
 *		return 77;
 *	floor_s = fmax(flops / r.fma, bytes / rates_read(&r, bytes));
 *	rates_close(&r);
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "kernels/cpu/pool.h"

struct rates {
	struct kern_threads *pool;
	unsigned threads;
	const char *isa; /* of the loops: "avx512", "avx2" */
	double fma;      /* flop/s of all threads (a multiply-add is two), operands in registers */
	double fma_l1;   /* the same as a product does it: 6 rows times a panel in the L1 cache */
	char *memory;    /* what rates_read() reads, grown as asked for */
	size_t bytes;
};

#define RATES_THREADS_MAX 64

/* Measures both flop rates. False, which it says, without AVX2: then the bench cannot run. */
bool rates_open(struct rates *r, unsigned threads) MUST_CHECK;
void rates_close(struct rates *r);

/* Both flop rates anew: a bench that runs for minutes asks beside each of its rows. */
void rates_refresh(struct rates *r);

/* Bytes a second at which all threads together read a set of so many bytes again and again, each
 * its own part; so a set that fits a cache is read from that cache. */
double rates_read(struct rates *r, double bytes);
