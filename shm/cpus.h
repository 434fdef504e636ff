/*
 * cpus.h: sets of logical CPUs, and which of them this thread may run on. libc's cpu_set_t ends at
 * 1024, and the kernel of a machine with more refuses to fill one.
 */
#ifndef SHM_CPUS_H
#define SHM_CPUS_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/util.h"

#define CPUS_MAX 4096

/* As the kernel lays them out, by OS number. */
struct cpus {
	uint64_t bits[CPUS_MAX / 64];
};

/* The calling thread's affinity. -EINVAL where the machine may have more than CPUS_MAX CPUs. */
int cpus_allowed(struct cpus *ret_cpus) MUST_CHECK;

static inline bool cpus_has(const struct cpus *c, unsigned int cpu)
{
	return c->bits[cpu / 64] >> (cpu % 64) & 1;
}

static inline uint32_t cpus_count(const struct cpus *c)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < CPUS_MAX / 64; i++)
		n += (uint32_t)__builtin_popcountll(c->bits[i]);
	return n;
}

#endif
