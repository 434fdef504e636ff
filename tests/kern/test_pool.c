/* The thread pool: every index once, many rounds, sleeping and spinning, several pools at once. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <time.h>

#include "kernels/cpu/run.h"
#include "tests/kern/kt.h"

struct count {
	atomic_uint calls[8];
	unsigned n;
};

static void count_call(void *arg, unsigned i)
{
	struct count *c = arg;

	assert_true(i < c->n);
	atomic_fetch_add(&c->calls[i], 1);
}

static void run_rounds(unsigned n, uint64_t spin_ns, unsigned rounds)
{
	struct count c = {.n = n};
	struct kern_threads *p;

	assert_int_equal(kern_threads_new(n, spin_ns, &p), 0);
	for (unsigned r = 1; r <= rounds; r++) {
		kern_threads_run(p, count_call, &c);
		/* all are done when run returns */
		for (unsigned i = 0; i < n; i++)
			assert_int_equal(atomic_load(&c.calls[i]), r);
	}
	kern_threads_free(p);
}

static void test_run_calls_every_index_once_a_round(void **state)
{
	for (unsigned n = 1; n <= 5; n++) {
		run_rounds(n, 0, 300);
		run_rounds(n, 5000, 300);
	}
}

/* What a thread wrote before the end of a round is seen after it, without atomics. */
static void write_own(void *arg, unsigned i)
{
	unsigned(*slot)[16] = arg;

	slot[i][0]++;
	slot[i][1] = slot[(i + 1) % 4][2]; /* written by the caller before this round */
}

static void test_run_orders_memory_both_ways(void **state)
{
	unsigned slot[4][16] = {{0}};
	struct kern_threads *p;

	assert_int_equal(kern_threads_new(4, 1000, &p), 0);
	for (unsigned r = 1; r <= 500; r++) {
		for (int i = 0; i < 4; i++)
			slot[i][2] = r * 10 + (unsigned)i;
		kern_threads_run(p, write_own, slot);
		for (unsigned i = 0; i < 4; i++) {
			assert_int_equal(slot[i][0], r);
			assert_int_equal(slot[i][1], r * 10 + (i + 1) % 4);
		}
	}
	kern_threads_free(p);
}

static void touch_nothing(void *arg, unsigned i)
{
	(void)arg;
	(void)i;
}

static uint64_t cpu_time_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/*
 * Threads that share a CPU: while one spins, the other cannot bring what it waits for. That may
 * cost them a few spins, not one a round.
 */
static void test_threads_on_one_cpu_stop_spinning(void **state)
{
	enum { ROUNDS = 2000, SPIN_NS = 500000 };
	struct kern_threads *p;
	cpu_set_t all, one;
	uint64_t start;

	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	assert_int_equal(kern_threads_new(2, SPIN_NS, &p), 0);
	start = cpu_time_ns();
	for (unsigned r = 0; r < ROUNDS; r++)
		kern_threads_run(p, touch_nothing, NULL);
	assert_true(cpu_time_ns() - start < (uint64_t)ROUNDS * SPIN_NS / 2);
	kern_threads_free(p);
	assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}

static cpu_set_t given; /* to all threads of the next round */

static void take_cpus(void *arg, unsigned i)
{
	(void)arg;
	(void)i;
	assert_int_equal(sched_setaffinity(0, sizeof(given), &given), 0);
}

/* The caller has nothing to do, and waits. */
static void take_20_us(void *arg, unsigned i)
{
	struct timespec start, now;

	(void)arg;
	if (i == 0)
		return;
	clock_gettime(CLOCK_MONOTONIC, &start);
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while ((now.tv_sec - start.tv_sec) * 1000000000 + now.tv_nsec - start.tv_nsec < 20000);
}

static long times_slept(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return u.ru_nvcsw;
}

/*
 * Once each has a CPU again, threads stop sleeping: not at once, nor in every hundred rounds where
 * others want the CPUs, but in some.
 */
static void test_threads_spin_again_when_cpus_are_free(void **state)
{
	enum { ROUNDS = 100, TRIES = 300 };
	struct kern_threads *p;
	cpu_set_t all;
	int tries = 0;
	long slept;

	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	if (CPU_COUNT(&all) < 2) {
		print_message("one CPU allowed: nothing may spin\n");
		skip();
	}
	assert_int_equal(kern_threads_new(2, 500000, &p), 0);
	CPU_ZERO(&given);
	CPU_SET(sched_getcpu(), &given);
	kern_threads_run(p, take_cpus, NULL);
	for (unsigned r = 0; r < ROUNDS; r++)
		kern_threads_run(p, take_20_us, NULL);
	given = all;
	kern_threads_run(p, take_cpus, NULL);
	do {
		slept = times_slept();
		for (unsigned r = 0; r < ROUNDS; r++)
			kern_threads_run(p, take_20_us, NULL);
		slept = times_slept() - slept;
	} while (slept > ROUNDS / 10 && ++tries < TRIES);
	assert_true(tries < TRIES);
	kern_threads_free(p);
}

static void *one_pool(void *arg)
{
	run_rounds(3, *(uint64_t *)arg, 200);
	return NULL;
}

static void test_pools_of_several_callers_are_independent(void **state)
{
	static uint64_t spin[3] = {0, 2000, 50000};
	pthread_t t[3];

	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&t[i], NULL, one_pool, &spin[i]), 0);
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
}

static void see_mask(void *arg, unsigned i)
{
	sigset_t now;

	pthread_sigmask(SIG_SETMASK, NULL, &now);
	if (i)
		((int *)arg)[i] = sigismember(&now, SIGTERM) && sigismember(&now, SIGUSR1);
}

static void test_threads_block_signals_and_caller_keeps_its_mask(void **state)
{
	struct kern_threads *p;
	int blocked[3] = {0};
	sigset_t before, after;

	pthread_sigmask(SIG_SETMASK, NULL, &before);
	assert_int_equal(kern_threads_new(3, 0, &p), 0);
	pthread_sigmask(SIG_SETMASK, NULL, &after);
	assert_int_equal(sigismember(&before, SIGTERM), sigismember(&after, SIGTERM));
	kern_threads_run(p, see_mask, blocked);
	assert_true(blocked[1] && blocked[2]);
	kern_threads_free(p);
}

static void test_part_covers_the_range_in_whole_units(void **state)
{
	for (int r = 0; r < 2000; r++) {
		size_t total = kt_below(500), unit = 1 + kt_below(20), at = 0;
		unsigned n = 1 + kt_below(9);

		for (unsigned i = 0; i < n; i++) {
			struct kern_part p = kern_part(total, unit, i, n);

			assert_int_equal(p.begin, at);
			assert_true(p.end >= p.begin);
			assert_true(p.end % unit == 0 || p.end == total);
			at = p.end;
		}
		assert_int_equal(at, total);
	}
}

/* failures 12, 65: scratch depends on a step's shape, not on context; too little is refused */
static void test_ops_refuse_a_scratch_made_for_less(void **state)
{
	struct kern_cpu_limits small = {.max_tokens = 1,
		.heads = 1,
		.world = 1,
		.max_k = 16,
		.experts = 1,
		.experts_per_token = 1};
	struct kt_weight w = kt_weight(KERN_BF16, KERN_SCALE_NONE, 16, 4096, 0, 0);
	float *x = kt_normals(200 * 4096, 1), *y = kt_floats(200 * 16);

	for (struct kt_config *c = kt_all; c < kt_end; c++) {
		struct kern_cpu_ctx ctx;
		struct kern_linear_args a = {.rows = 200,
			.n = 1,
			.x = x,
			.ldx = 4096,
			.act = KERN_ACT_BF16,
			.out = {{&w.w, y, 16}}};
		int rc;

		assert_int_equal(kern_cpu_ctx_init(&ctx, &small, 1, 0), 0);
		rc = c->ops.linear(&a, &ctx);
		assert_int_equal(rc, -EINVAL);
		assert_true(y[0] != y[0]);
		kern_cpu_ctx_free(&ctx);
	}
	kt_free_all();
}

static void test_table_lists_every_op_and_finds_variants(void **state)
{
	struct kern_ops ops;
	struct errbuf err;

	for (int i = 0; i < KERN_OP__COUNT; i++) {
		assert_non_null(kern_op_table[i].name);
		assert_non_null(kern_op_table[i].doc);
	}
	assert_string_equal(kern_op_table[KERN_OP_index_store].covers,
		"(rmsnorm, rope, hadamard, qat, index_put)");
	assert_int_equal(kern_ops_get(KERN_CPU, NULL, &ops, &err), 0);
	assert_int_equal(kern_ops_get(KERN_CPU, "auto", &ops, &err), 0);
	assert_int_equal(kern_ops_get(KERN_CPU, "reference", &ops, &err), 0);
	assert_int_equal(kern_ops_get(KERN_CPU, "sse9", &ops, &err), -EINVAL);
	assert_non_null(strstr(err.text, "sse9"));
	assert_int_equal(kern_ops_get(KERN_CUDA, NULL, &ops, &err), -ENOTSUP);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_run_calls_every_index_once_a_round),
		cmocka_unit_test(test_run_orders_memory_both_ways),
		cmocka_unit_test(test_threads_on_one_cpu_stop_spinning),
		cmocka_unit_test(test_threads_spin_again_when_cpus_are_free),
		cmocka_unit_test(test_pools_of_several_callers_are_independent),
		cmocka_unit_test(test_threads_block_signals_and_caller_keeps_its_mask),
		cmocka_unit_test(test_part_covers_the_range_in_whole_units),
		cmocka_unit_test(test_ops_refuse_a_scratch_made_for_less),
		cmocka_unit_test(test_table_lists_every_op_and_finds_variants),
	};

	return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
