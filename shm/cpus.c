#define _GNU_SOURCE
#include "shm/cpus.h"

#include <sched.h>

int cpus_allowed(struct cpus *ret_cpus)
{
	struct cpus c = {{0}};

	if (sched_getaffinity(0, sizeof(c.bits), (cpu_set_t *)c.bits) < 0)
		return -errno;
	*ret_cpus = c;
	return 0;
}
