#include "config.h"

#include "coordinator/place.h"

#include <hwloc.h>
#include <string.h>

#include "shm/clock.h"

#define SPIN_AUTO_NS (50 * NS_PER_US)

/* ---- topology to plan ---- */

static bool set_of(hwloc_const_bitmap_t cpus, uint64_t *bits, unsigned int max)
{
	int i;

	for (i = hwloc_bitmap_first(cpus); i >= 0; i = hwloc_bitmap_next(cpus, i)) {
		if ((unsigned int)i >= max)
			return false;
		bits[i / 64] |= 1ull << (i % 64);
	}
	return true;
}

/* The machine's CPUs that this process may use, as a new bitmap. */
static hwloc_bitmap_t usable(hwloc_topology_t topology, const struct cpus *allowed)
{
	hwloc_bitmap_t set = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(topology));
	int i, next;

	if (!set || !allowed)
		return set;
	for (i = hwloc_bitmap_first(set); i >= 0; i = next) {
		next = hwloc_bitmap_next(set, i);
		if (i >= CPUS_MAX || !cpus_has(allowed, (unsigned int)i))
			hwloc_bitmap_clr(set, (unsigned int)i);
	}
	return set;
}

/* Kind of object to hand out: cores, or logical CPUs where the machine shows no cores. */
static hwloc_obj_type_t unit_type(hwloc_topology_t topology)
{
	return hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE
								      : HWLOC_OBJ_PU;
}

/* The i-th core that has usable CPUs; NULL at the end. */
static hwloc_obj_t unit_at(hwloc_topology_t topology, hwloc_const_bitmap_t set, uint32_t i)
{
	hwloc_obj_type_t type = unit_type(topology);
	hwloc_obj_t obj = NULL;

	while ((obj = hwloc_get_next_obj_by_type(topology, type, obj)))
		if (hwloc_bitmap_intersects(obj->cpuset, set) && i-- == 0)
			return obj;
	return NULL;
}

static uint32_t unit_count(hwloc_topology_t topology, hwloc_const_bitmap_t set)
{
	uint32_t n = 0;

	while (unit_at(topology, set, n))
		n++;
	return n;
}

static int place_one(hwloc_topology_t topology, hwloc_const_bitmap_t set, uint32_t first,
	uint32_t count, struct place_worker *w)
{
	hwloc_bitmap_t cpus = hwloc_bitmap_alloc(), nodes = hwloc_bitmap_alloc();
	uint32_t i;
	int r = -ENOMEM;

	if (!cpus || !nodes)
		goto out;
	for (i = first; i < first + count; i++)
		hwloc_bitmap_or(cpus, cpus, unit_at(topology, set, i)->cpuset);
	hwloc_bitmap_and(cpus, cpus, set);
	hwloc_cpuset_to_nodeset(topology, cpus, nodes);
	w->kind = PLACE_CPU;
	w->cores = count;
	hwloc_bitmap_list_snprintf(w->text, sizeof(w->text), cpus);
	r = set_of(cpus, w->cpus.bits, CPUS_MAX) && set_of(nodes, w->nodes, PLACE_NODES_MAX)
		    ? 0
		    : -EINVAL;
out:
	hwloc_bitmap_free(cpus);
	hwloc_bitmap_free(nodes);
	return r;
}

static void choose_threads_and_spin(const struct conf *conf, uint32_t cores, struct place_plan *p)
{
	uint64_t threads;

	p->threads = conf->fabric_threads != CONF_AUTO ? (uint32_t)conf->fabric_threads
						       : MAX(cores / p->workers, 1u);
	/* all compute threads and the coordinator: spinning only hurts when they cannot all run */
	threads = (uint64_t)p->threads * p->workers + 1;
	if (conf->fabric_spin != CONF_AUTO)
		p->spin_ns = (uint64_t)conf->fabric_spin;
	else
		p->spin_ns = threads > p->allowed_cpus ? 0 : SPIN_AUTO_NS;
}

static uint32_t count_nodes(const struct place_plan *p)
{
	uint32_t i, k, n = 0;

	for (i = 0; i < PLACE_NODES_MAX / 64; i++) {
		uint64_t any = 0;

		for (k = 0; k < p->workers; k++)
			any |= p->w[k].nodes[i];
		n += (uint32_t)__builtin_popcountll(any);
	}
	return n;
}

int place_plan(hwloc_topology_t topology, const struct cpus *allowed, uint32_t quota,
	const struct conf *conf, struct place_plan *ret_plan, struct errbuf *err)
{
	hwloc_bitmap_t set = usable(topology, allowed);
	uint32_t cores, i;
	int r = 0;

	if (!set)
		return err_set(err, -ENOMEM, EXIT_OS_ERR, "out of memory for the CPU plan");
	cores = unit_count(topology, set);
	if (cores == 0) {
		hwloc_bitmap_free(set);
		return err_set(err, -EINVAL, EXIT_OS_ERR,
			"no CPU is left for the workers: the process may use none of the "
			"machine's");
	}
	memset(ret_plan, 0, sizeof(*ret_plan));
	ret_plan->workers = conf->fabric_workers != CONF_AUTO ? (uint32_t)conf->fabric_workers : 1;
	ret_plan->allowed_cpus = (uint32_t)hwloc_bitmap_weight(set);
	ret_plan->shared = cores < ret_plan->workers;
	for (i = 0; i < ret_plan->workers && r == 0; i++) {
		uint32_t first = (uint32_t)((uint64_t)i * cores / ret_plan->workers);
		uint32_t end = (uint32_t)((uint64_t)(i + 1) * cores / ret_plan->workers);

		if (ret_plan->shared) {
			first = i % cores;
			end = first + 1;
		}
		r = place_one(topology, set, first, end - first, &ret_plan->w[i]);
	}
	hwloc_bitmap_free(set);
	if (r < 0)
		return err_set(err, r, EXIT_OS_ERR,
			"the machine has more than %d CPUs or %d NUMA nodes", CPUS_MAX,
			PLACE_NODES_MAX);
	if (quota) {
		cores = MIN(cores, quota);
		ret_plan->allowed_cpus = MIN(ret_plan->allowed_cpus, quota);
	}
	choose_threads_and_spin(conf, cores, ret_plan);
	ret_plan->nodes = count_nodes(ret_plan);
	return 0;
}

/* ---- this machine ---- */

/* Components that would load a device's driver into the coordinator just to look at it. */
static const char *const blacklist[] = {"opencl", "gl", "cuda", "nvml", "rsmi", "levelzero"};

static int load_topology(hwloc_topology_t *ret_topology)
{
	hwloc_topology_t t;
	size_t i;

	if (hwloc_topology_init(&t) < 0)
		return -ENOMEM;
	for (i = 0; i < ARRAY_LEN(blacklist); i++) /* fails where it is not built in: fine */
		(void)hwloc_topology_set_components(
			t, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, blacklist[i]);
	if (hwloc_topology_load(t) < 0) {
		hwloc_topology_destroy(t);
		return -errno;
	}
	*ret_topology = t;
	return 0;
}

int place_discover(const struct conf *conf, struct place_plan *ret_plan, struct errbuf *err)
{
	struct cpus allowed;
	hwloc_topology_t topology = NULL;
	int r = load_topology(&topology);

	if (r < 0)
		return err_set(err, r, EXIT_OS_ERR, "cannot read the machine's topology: %s",
			strerror(-r));
	/* all of the machine where the affinity cannot be read */
	r = place_plan(topology, cpus_allowed(&allowed) == 0 ? &allowed : NULL,
		place_quota("/sys/fs/cgroup", "/proc/self/cgroup"), conf, ret_plan, err);
	hwloc_topology_destroy(topology);
	return r;
}

void place_resolve(struct conf *conf, const struct place_plan *plan)
{
	conf->fabric_backend = CONF_BACKEND_CPU;
	conf->fabric_collective = CONF_COLLECTIVE_SHM;
	conf->fabric_workers = plan->workers;
	conf->fabric_threads = plan->threads;
	conf->fabric_spin = (int64_t)plan->spin_ns;
}
