#define _GNU_SOURCE
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <hwloc.h>

#include "coordinator/place.h"
#include "shm/clock.h"

static struct place_plan plan;

static hwloc_topology_t machine(const char *synthetic)
{
	hwloc_topology_t t;

	assert_int_equal(hwloc_topology_init(&t), 0);
	assert_int_equal(hwloc_topology_set_synthetic(t, synthetic), 0);
	assert_int_equal(hwloc_topology_load(t), 0);
	return t;
}

static struct conf conf_of(int64_t workers)
{
	struct conf c = {.fabric_workers = workers,
		.fabric_threads = CONF_AUTO,
		.fabric_spin = CONF_AUTO,
		.fabric_pin = 1};

	return c;
}

static void run_within(
	const char *synthetic, const struct cpus *allowed, uint32_t quota, const struct conf *conf)
{
	hwloc_topology_t t = machine(synthetic);
	struct errbuf err = {{0}, 0};
	int r = place_plan(t, allowed, quota, conf, &plan, &err);

	hwloc_topology_destroy(t);
	if (r < 0)
		fail_msg("%s", err.text);
}

static void run(const char *synthetic, const struct cpus *allowed, const struct conf *conf)
{
	run_within(synthetic, allowed, 0, conf);
}

static bool overlap(const struct place_worker *a, const struct place_worker *b)
{
	uint32_t i;

	for (i = 0; i < ARRAY_LEN(a->cpus.bits); i++)
		if (a->cpus.bits[i] & b->cpus.bits[i])
			return true;
	return false;
}

static void assert_disjoint(void)
{
	uint32_t i, k;

	for (i = 0; i < plan.workers; i++)
		for (k = 0; k < i; k++)
			assert_false(overlap(&plan.w[i], &plan.w[k]));
}

static void test_one_core_serves_one_worker(void **state)
{
	struct conf c = conf_of(CONF_AUTO);

	(void)state;
	run("core:1 pu:1", NULL, &c);
	assert_int_equal(plan.workers, 1);
	assert_int_equal(plan.threads, 1);
	assert_int_equal(plan.allowed_cpus, 1);
	assert_int_equal(plan.spin_ns, 0); /* its thread and ours share the CPU */
	assert_false(plan.shared);
	assert_string_equal(plan.w[0].text, "0");
	assert_int_equal(plan.w[0].kind, PLACE_CPU);
}

static void test_two_cores_are_one_each_for_two_workers(void **state)
{
	struct conf c = conf_of(2);

	(void)state;
	run("core:2 pu:1", NULL, &c);
	assert_int_equal(plan.threads, 1);
	assert_string_equal(plan.w[0].text, "0");
	assert_string_equal(plan.w[1].text, "1");
	assert_int_equal(plan.spin_ns, 0);
}

static void test_two_sockets_with_smt_are_split_by_socket(void **state)
{
	struct conf c = conf_of(2);

	(void)state;
	run("numa:2 pack:1 core:8 pu:2", NULL, &c);
	assert_int_equal(plan.workers, 2);
	assert_int_equal(plan.threads, 8); /* one a core, not one a hyperthread */
	assert_int_equal(plan.allowed_cpus, 32);
	assert_int_equal(plan.spin_ns, 50 * NS_PER_US);
	assert_int_equal(plan.w[0].cores, 8);
	assert_string_equal(plan.w[0].text, "0-15");
	assert_string_equal(plan.w[1].text, "16-31");
	assert_int_equal(plan.w[0].nodes[0], 1);
	assert_int_equal(plan.w[1].nodes[0], 2);
	assert_int_equal(plan.nodes, 2);
}

static void test_workers_that_do_not_divide_the_cores_stay_disjoint(void **state)
{
	uint32_t workers, i, cores;

	(void)state;
	for (workers = 1; workers <= 16; workers++) {
		struct conf c = conf_of(workers);

		run("numa:2 pack:1 core:8 pu:2", NULL, &c);
		assert_disjoint();
		for (i = cores = 0; i < workers; i++) {
			assert_true(plan.w[i].cores >= plan.threads);
			assert_int_equal(cpus_count(&plan.w[i].cpus), 2 * plan.w[i].cores);
			cores += plan.w[i].cores;
		}
		assert_int_equal(cores, 16);
		assert_int_equal(plan.threads, 16 / workers);
	}
}

static void test_fewer_cores_than_workers_take_turns(void **state)
{
	struct conf c = conf_of(5);
	uint32_t i;

	(void)state;
	run("core:2 pu:2", NULL, &c);
	assert_true(plan.shared);
	assert_int_equal(plan.threads, 1);
	for (i = 0; i < 5; i++)
		assert_string_equal(plan.w[i].text, i % 2 ? "2-3" : "0-1");
}

static void test_restricted_affinity_is_kept(void **state)
{
	struct cpus allowed = {.bits = {(1u << 3) | (1u << 9) | (1u << 20) | (1u << 21)}};
	struct conf c = conf_of(3);
	uint32_t i;

	(void)state;
	run("numa:2 pack:1 core:8 pu:2", &allowed, &c);
	assert_int_equal(plan.allowed_cpus, 4);
	assert_string_equal(plan.w[0].text, "3");
	assert_string_equal(plan.w[1].text, "9");
	assert_string_equal(plan.w[2].text, "20-21"); /* two hyperthreads of one core */
	assert_disjoint();
	for (i = 0; i < 3; i++)
		assert_int_equal(plan.w[i].cores, 1);
}

static void test_no_cpu_left_is_refused(void **state)
{
	struct cpus none = {.bits = {0}};
	struct conf c = conf_of(1);
	hwloc_topology_t t = machine("core:2 pu:1");
	struct errbuf err;

	(void)state;
	assert_int_equal(place_plan(t, &none, 0, &c, &plan, &err), -EINVAL);
	assert_int_equal(err.exit_code, EXIT_OS_ERR);
	assert_non_null(strstr(err.text, "no CPU is left"));
	hwloc_topology_destroy(t);
}

static void test_explicit_threads_and_spin_are_taken(void **state)
{
	struct conf c = conf_of(2);

	(void)state;
	c.fabric_threads = 7;
	c.fabric_spin = 123;
	run("core:4 pu:1", NULL, &c);
	assert_int_equal(plan.threads, 7);
	assert_int_equal(plan.spin_ns, 123);
	c.fabric_spin = CONF_AUTO;
	run("core:4 pu:1", NULL, &c);
	assert_int_equal(plan.spin_ns, 0); /* 14 threads on 4 CPUs */
	place_resolve(&c, &plan);
	assert_int_equal(c.fabric_workers, 2);
	assert_int_equal(c.fabric_threads, 7);
	assert_int_equal(c.fabric_spin, 0);
	assert_int_equal(c.fabric_backend, CONF_BACKEND_CPU);
}

static void test_many_workers_on_a_large_machine(void **state)
{
	struct conf c = conf_of(64);

	(void)state;
	run("numa:8 pack:1 core:16 pu:2", NULL, &c);
	assert_int_equal(plan.threads, 2);
	assert_int_equal(plan.nodes, 8);
	assert_disjoint();
}

/* A saved machine: two packages, SMT numbered the usual way, and a cgroup that leaves eight CPUs.
 */
static void test_saved_machine_with_a_cgroup(void **state)
{
	char path[512];
	const char *dir = getenv("HEDDLE_SRCDIR");
	struct conf c = conf_of(2);
	hwloc_topology_t t;
	struct errbuf err;

	(void)state;
	snprintf(path, sizeof(path), "%s/tests/data/topo/cgroup.xml", dir ? dir : "..");
	assert_int_equal(hwloc_topology_init(&t), 0);
	assert_int_equal(hwloc_topology_set_xml(t, path), 0);
	assert_int_equal(hwloc_topology_load(t), 0);
	assert_int_equal(place_plan(t, NULL, 0, &c, &plan, &err), 0);
	hwloc_topology_destroy(t);
	assert_int_equal(plan.allowed_cpus, 8);
	assert_int_equal(plan.threads, 2);
	assert_string_equal(plan.w[0].text, "2-3,10-11");
	assert_string_equal(plan.w[1].text, "4-5,12-13");
}

static void test_quota_bounds_automatic_threads_only(void **state)
{
	struct conf c = conf_of(2);

	(void)state;
	run_within("core:16 pu:2", NULL, 6, &c);
	assert_int_equal(plan.threads, 3);
	assert_int_equal(plan.allowed_cpus, 6);
	assert_int_equal(plan.spin_ns, 0); /* six, and ours */
	assert_int_equal(cpus_count(&plan.w[0].cpus), 16);
	run_within("core:16 pu:2", NULL, 1, &c);
	assert_int_equal(plan.threads, 1);
	run_within("core:4 pu:1", NULL, 64, &c);
	assert_int_equal(plan.threads, 2);
	assert_int_equal(plan.allowed_cpus, 4);
	c.fabric_threads = 7;
	run_within("core:16 pu:2", NULL, 6, &c);
	assert_int_equal(plan.threads, 7);
}

/* ---- a made-up cgroup tree ------------------------------------------------------------------- */

static char tree[64];

static void put(const char *path, const char *text)
{
	char full[256];
	FILE *f;

	snprintf(full, sizeof(full), "%s/%s", tree, path);
	f = fopen(full, "we");
	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static uint32_t quota(const char *self)
{
	char path[256];

	put("self", self);
	snprintf(path, sizeof(path), "%s/self", tree);
	return place_quota(tree, path);
}

static void test_quota_is_the_least_on_the_way_up(void **state)
{
	static const char *const dirs[] = {"a", "a/b", "a/b/c"};
	char path[256];

	(void)state;
	snprintf(tree, sizeof(tree), "/tmp/test_place.XXXXXX");
	assert_non_null(mkdtemp(tree));
	for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
		snprintf(path, sizeof(path), "%s/%s", tree, dirs[i]);
		assert_int_equal(mkdir(path, 0700), 0);
	}
	assert_int_equal(quota("0::/a/b/c\n"), 0); /* nowhere a file */
	put("a/b/c/cpu.max", "max 100000\n");
	assert_int_equal(quota("0::/a/b/c\n"), 0);
	put("a/b/cpu.max", "350000 100000\n");
	assert_int_equal(quota("0::/a/b/c\n"), 3);
	put("a/cpu.max", "50000 100000\n");
	assert_int_equal(quota("12:cpu:/x\n0::/a/b/c\n"), 1);
	assert_int_equal(quota("0::/\n"), 0);
	put("cpu.max", "400000 100000\n"); /* a container's root has one */
	assert_int_equal(quota("0::/\n"), 4);
	assert_int_equal(quota("0::/../outside\n"), 0);
	assert_int_equal(quota("12:cpu:/x\n"), 0);
	put("a/cpu.max", "rubbish\n");
	assert_int_equal(quota("0::/a\n"), 4);
	put("a/cpu.max", "100000 0\n");
	assert_int_equal(quota("0::/a\n"), 4);
	assert_int_equal(place_quota(tree, "/no/such/file"), 0);
	snprintf(path, sizeof(path), "rm -r %s", tree);
	assert_int_equal(system(path), 0);
}

static void test_this_machine_gives_a_plan(void **state)
{
	struct conf c = conf_of(CONF_AUTO);
	struct errbuf err;

	(void)state;
	assert_int_equal(place_discover(&c, &plan, &err), 0);
	assert_int_equal(plan.workers, 1);
	assert_true(plan.threads >= 1 && plan.allowed_cpus >= 1);
	assert_true(cpus_count(&plan.w[0].cpus) >= plan.allowed_cpus); /* a quota may leave less */
}

static void test_one_allowed_cpu_of_this_machine_is_the_plan(void **state)
{
	struct conf c = conf_of(CONF_AUTO);
	cpu_set_t all, one;
	int cpu = sched_getcpu();
	struct cpus allowed;
	struct errbuf err;

	(void)state;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	assert_int_equal(cpus_allowed(&allowed), 0);
	assert_int_equal(place_discover(&c, &plan, &err), 0);
	assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
	assert_int_equal(cpus_count(&allowed), 1);
	assert_true(cpus_has(&allowed, (unsigned)cpu));
	assert_int_equal(plan.allowed_cpus, 1);
	assert_memory_equal(&plan.w[0].cpus, &allowed, sizeof(allowed));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_core_serves_one_worker),
		cmocka_unit_test(test_two_cores_are_one_each_for_two_workers),
		cmocka_unit_test(test_two_sockets_with_smt_are_split_by_socket),
		cmocka_unit_test(test_workers_that_do_not_divide_the_cores_stay_disjoint),
		cmocka_unit_test(test_fewer_cores_than_workers_take_turns),
		cmocka_unit_test(test_restricted_affinity_is_kept),
		cmocka_unit_test(test_no_cpu_left_is_refused),
		cmocka_unit_test(test_explicit_threads_and_spin_are_taken),
		cmocka_unit_test(test_many_workers_on_a_large_machine),
		cmocka_unit_test(test_saved_machine_with_a_cgroup),
		cmocka_unit_test(test_quota_bounds_automatic_threads_only),
		cmocka_unit_test(test_quota_is_the_least_on_the_way_up),
		cmocka_unit_test(test_this_machine_gives_a_plan),
		cmocka_unit_test(test_one_allowed_cpu_of_this_machine_is_the_plan),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
