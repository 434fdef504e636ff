/*
 * place.h: on which cores and next to which memory each worker runs. place_plan() is a pure
 * function from a machine's topology to a plan, tested on made-up machines; place_discover() reads
 * this machine; the plan is applied in the child before exec (spawn.c).
 */
#ifndef COORDINATOR_PLACE_H
#define COORDINATOR_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/conf_types.h"
#include "shm/cpus.h"
#include "shm/seg.h"
#include "shm/util.h"

#define PLACE_NODES_MAX 1024

struct hwloc_topology;

/* What a worker computes on. Devices other than CPUs are named by PCI address, in PCI order. */
enum place_kind { PLACE_CPU, PLACE_CUDA };

struct place_worker {
	enum place_kind kind;
	char pci[16];   /* "0000:3b:00.0"; "" for PLACE_CPU */
	uint32_t cores; /* physical cores it was given */
	struct cpus cpus;
	uint64_t nodes[PLACE_NODES_MAX / 64]; /* NUMA nodes next to them */
	char text[96];                        /* the CPUs as a list, for people: "0-7,16-23" */
};

struct place_plan {
	uint32_t workers;
	uint32_t threads;      /* compute threads of each worker */
	uint64_t spin_ns;      /* how long waits spin */
	uint32_t allowed_cpus; /* logical CPUs this process may use at once */
	uint32_t nodes;        /* NUMA nodes among them */
	bool shared;           /* fewer cores than workers: some share one */
	struct place_worker w[SEG_WORKERS_MAX];
};

/*
 * CPU workers get disjoint cores, contiguous in the machine's order so that neighbours stay
 * together, or cores i mod n where there are fewer cores than workers. Of each core all allowed
 * logical CPUs. `allowed` (NULL: all) is this process's affinity. `quota` (0: none) is how many
 * CPUs' worth of time the process gets: automatic threads are no more, since threads beyond it are
 * only stopped in turn, all waiting for the one that was. Of conf it reads fabric_workers,
 * fabric_threads and fabric_spin. -EINVAL when no CPU is left, or the machine is larger than
 * CPUS_MAX.
 */
int place_plan(struct hwloc_topology *topology, const struct cpus *allowed, uint32_t quota,
	const struct conf *conf, struct place_plan *ret_plan, struct errbuf *err) MUST_CHECK;

/*
 * The least cpu.max of this process's cgroup (v2) and those above it, in whole CPUs, at least 1; 0
 * where none bounds it or there is no cgroup v2. `mount` is "/sys/fs/cgroup", `self`
 * "/proc/self/cgroup". In a container's own namespace the paths begin at its root: what stands
 * above cannot be seen.
 */
uint32_t place_quota(const char *mount, const char *self);

/* This machine, this process's affinity and its quota, through place_plan(). Large: not on small
 * stacks. */
int place_discover(
	const struct conf *conf, struct place_plan *ret_plan, struct errbuf *err) MUST_CHECK;

/* Writes what the plan decided over the "auto" values of conf, before it is frozen. */
void place_resolve(struct conf *conf, const struct place_plan *plan);

#endif
