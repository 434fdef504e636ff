/*
 * worker/comm_shm.c with ranks as threads: sums in the order of ranks whatever the timing, sizes
 * around the tile, ranks out of step, a peer that does not come, an owner that calls it off.
 */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "worker/comm_shm.h"

#define AREA  COMM_SHM_AREA_MIN /* small: many tiles */
#define TILE  ((AREA - 64) / 2 / 64 * 64)
#define WORLD 5

struct group {
	uint32_t world;
	struct comm_shm comm[WORLD];
	struct bell_word flags[WORLD];
	struct bell_armed armed[WORLD];
	unsigned char *areas;
	_Atomic int called_off;
	size_t n; /* floats or bytes of the test */
	int ret[WORLD];
};

static int alive(void *user)
{
	struct group *g = user;

	return atomic_load(&g->called_off) ? -EPIPE : 0;
}

static struct group *group_with(
	size_t area_bytes, uint32_t world, uint64_t spin_ns, uint64_t timeout_ns)
{
	struct group *g = aligned_alloc(64, sizeof(*g));
	struct comm_shm_opts o = {
		.world = world,
		.area_bytes = area_bytes,
		.timeout_ns = timeout_ns,
		.how = {.spin_ns = spin_ns, .check_ns = 5000000, .alive = alive},
	};

	assert_non_null(g);
	memset(g, 0, sizeof(*g));
	g->world = world;
	g->areas = aligned_alloc(64, area_bytes * world);
	assert_non_null(g->areas);
	memset(g->areas, 0, area_bytes * world);
	o.how.alive_user = g;
	for (uint32_t r = 0; r < world; r++) {
		o.areas[r] = g->areas + area_bytes * r;
		o.flags[r] = &g->flags[r];
		o.armed[r] = &g->armed[r];
	}
	for (uint32_t r = 0; r < world; r++) {
		o.rank = r;
		assert_int_equal(comm_shm_init(&g->comm[r], &o), 0);
	}
	return g;
}

static struct group *group_new(uint32_t world, uint64_t spin_ns, uint64_t timeout_ns)
{
	return group_with(AREA, world, spin_ns, timeout_ns);
}

static void group_free(struct group *g)
{
	free(g->areas);
	free(g);
}

struct member {
	struct group *g;
	uint32_t rank;
	void (*f)(struct group *g, uint32_t rank);
};

static void *member_run(void *user)
{
	struct member *m = user;

	m->f(m->g, m->rank);
	return NULL;
}

static void run_all(struct group *g, void (*f)(struct group *g, uint32_t rank))
{
	struct member m[WORLD];
	pthread_t t[WORLD];

	for (uint32_t r = 0; r < g->world; r++) {
		m[r] = (struct member){g, r, f};
		assert_int_equal(pthread_create(&t[r], NULL, member_run, &m[r]), 0);
	}
	for (uint32_t r = 0; r < g->world; r++)
		assert_int_equal(pthread_join(t[r], NULL), 0);
}

static void assert_all(const struct group *g, int want)
{
	for (uint32_t r = 0; r < g->world; r++)
		assert_int_equal(g->ret[r], want);
}

/* ---- values: functions of (rank, index) whose sum depends on the order ---------------------- */

static float value(uint32_t rank, size_t i)
{
	uint32_t x = (uint32_t)i * 2654435761u + rank * 40503u;

	x ^= x >> 13;
	x *= 0x5bd1e995;
	return ((float)(x >> 8) * 0x1p-24f - 0.5f) * (rank % 2 ? 1e4f : 1e-3f);
}

static float sum_by_rank(uint32_t world, size_t i)
{
	float sum = value(0, i);

	for (uint32_t r = 1; r < world; r++)
		sum += value(r, i);
	return sum;
}

static void reduce(struct group *g, uint32_t rank)
{
	float *room = malloc(sizeof(*room) * (g->n + 2)), *x = room + 1; /* at no whole vector */
	int bad = 0;

	for (size_t i = 0; i < g->n; i++)
		x[i] = value(rank, i);
	x[g->n] = 42;
	g->ret[rank] = comm_all_reduce_f32(&g->comm[rank].comm, x, g->n);
	for (size_t i = 0; i < g->n; i++)
		bad |= x[i] != sum_by_rank(g->world, i);
	if (g->ret[rank] == 0 && (bad || x[g->n] != 42))
		g->ret[rank] = 1;
	free(room);
}

static void gather(struct group *g, uint32_t rank)
{
	unsigned char *mine = malloc(g->n + 1), *all = malloc(g->n * g->world + 1);
	int bad = 0;

	for (size_t i = 0; i < g->n; i++)
		mine[i] = (unsigned char)(i * 7 + rank * 31);
	all[g->n * g->world] = 42;
	/* the last rank wants nothing */
	g->ret[rank] =
		comm_all_gather(&g->comm[rank].comm, mine, g->n, rank + 1 == g->world ? NULL : all);
	for (size_t k = 0; rank + 1 < g->world && k < g->n * g->world; k++)
		bad |= all[k] != (unsigned char)(k % g->n * 7 + k / g->n * 31);
	if (g->ret[rank] == 0 && (bad || all[g->n * g->world] != 42))
		g->ret[rank] = 1;
	free(mine);
	free(all);
}

static void broadcast(struct group *g, uint32_t rank)
{
	const uint32_t root = g->world - 1;
	unsigned char *x = malloc(g->n);
	int bad = 0;

	for (size_t i = 0; i < g->n; i++)
		x[i] = rank == root ? (unsigned char)(i * 13 + 5) : 0;
	g->ret[rank] = comm_broadcast(&g->comm[rank].comm, root, x, g->n);
	for (size_t i = 0; i < g->n; i++)
		bad |= x[i] != (unsigned char)(i * 13 + 5);
	if (g->ret[rank] == 0 && bad)
		g->ret[rank] = 1;
	free(x);
}

static void test_results_are_right_around_tile_sizes(void **state)
{
	static const size_t sizes[] = {1, 2, 3, 63, TILE / 4 - 1, TILE / 4, TILE / 4 + 1, TILE - 1,
		TILE, TILE + 1, 2 * TILE, 3 * TILE + 5};

	(void)state;
	for (uint32_t world = 1; world <= WORLD; world++) {
		struct group *g = group_new(world, world == 2 ? 20000 : 0, 0);

		for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
			g->n = sizes[i];
			run_all(g, reduce);
			assert_all(g, 0);
			if (world > 1) {
				run_all(g, gather);
				assert_all(g, 0);
			}
			run_all(g, broadcast);
			assert_all(g, 0);
		}
		group_free(g);
	}
}

/* As large as a worker's area is: tiles of many pieces, the next one written between them. */
static void test_sums_are_right_in_large_areas(void **state)
{
	const size_t tile = (COMM_SHM_AREA_BYTES - 64) / 2 / 64 * 64 / sizeof(float);
	const size_t sizes[] = {8191, 8192, 8193, tile - 1, tile, tile + 1, tile + 8192,
		2 * tile - 1, 2 * tile + 8193};

	(void)state;
	for (uint32_t world = 2; world <= 3; world++) {
		struct group *g = group_with(COMM_SHM_AREA_BYTES, world, 0, 0);

		for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
			g->n = sizes[i];
			run_all(g, reduce);
			assert_all(g, 0);
		}
		group_free(g);
	}
}

/* ---- many rounds, and the round counter's wrap ---------------------------------------------- */

static void many_rounds(struct group *g, uint32_t rank)
{
	uint32_t seed = rank + 1;

	g->ret[rank] = 0;
	for (uint32_t round = 0; round < 2000 && g->ret[rank] == 0; round++) {
		float x[3] = {(float)round, (float)rank, 1};
		float want = (float)(g->world * (g->world - 1)) / 2;

		seed = seed * 1103515245 + 12345;
		if ((seed >> 16) % 64 == 0)
			sched_yield();
		g->ret[rank] = comm_all_reduce_f32(&g->comm[rank].comm, x, 3);
		if (g->ret[rank] == 0 && (x[0] != (float)round * (float)g->world || x[1] != want ||
						 x[2] != (float)g->world))
			g->ret[rank] = 1;
	}
}

static void test_many_rounds_keep_in_step_across_wrap(void **state)
{
	struct group *g = group_new(3, 0, 0);

	(void)state;
	for (uint32_t r = 0; r < 3; r++) {
		g->comm[r].round = UINT32_MAX - 1000;
		atomic_store(&g->flags[r].value, UINT32_MAX - 1000);
	}
	run_all(g, many_rounds);
	assert_all(g, 0);
	group_free(g);
}

/* ---- what goes wrong ------------------------------------------------------------------------ */

static void out_of_step(struct group *g, uint32_t rank)
{
	float x[8] = {0};

	g->ret[rank] = rank ? comm_all_reduce_f32(&g->comm[rank].comm, x, 8)
			    : comm_all_reduce_f32(&g->comm[rank].comm, x, 7);
}

static void test_different_sizes_are_noticed(void **state)
{
	struct group *g = group_new(2, 0, 0);

	(void)state;
	run_all(g, out_of_step);
	assert_all(g, -EPROTO);
	/* final: the same error without waiting for anyone */
	out_of_step(g, 0);
	assert_int_equal(g->ret[0], -EPROTO);
	group_free(g);
}

static void first_alone(struct group *g, uint32_t rank)
{
	float x = 1;

	if (rank == 0)
		g->ret[0] = comm_all_reduce_f32(&g->comm[0].comm, &x, 1);
}

static void test_silent_peer_times_out(void **state)
{
	struct group *g = group_new(2, 1000, 30000000);

	(void)state;
	run_all(g, first_alone);
	assert_int_equal(g->ret[0], -ETIMEDOUT);
	group_free(g);
}

/* Both ranks, as a process that is stopped while rank 0 waits, for longer than rank 0 would. */
static int pipe_in[2], pipe_out[2];

static void second_when_told(struct group *g, uint32_t rank)
{
	float x = 1;
	char byte = 0;

	if (rank == 1) {
		/* rank 0 sleeps on our flag by now, or will */
		while (!atomic_load(&g->armed[0].news))
			sched_yield();
		if (write(pipe_out[1], &byte, 1) != 1 || read(pipe_in[0], &byte, 1) != 1)
			_exit(2);
	}
	g->ret[rank] = comm_all_reduce_f32(&g->comm[rank].comm, &x, 1);
}

static void test_time_in_which_nobody_ran_does_not_count(void **state)
{
	struct group *g;
	int status;
	char byte = 0;
	pid_t pid;

	(void)state;
	assert_int_equal(pipe(pipe_in), 0);
	assert_int_equal(pipe(pipe_out), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		g = group_new(2, 0, 400000000);
		run_all(g, second_when_told);
		_exit(g->ret[0] || g->ret[1] ? 1 : 0);
	}
	assert_int_equal(read(pipe_out[0], &byte, 1), 1);
	kill(pid, SIGSTOP);
	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	assert_true(WIFSTOPPED(status));
	(void)poll(NULL, 0, 900); /* the pause itself: more than twice rank 0's patience */
	assert_int_equal(write(pipe_in[1], &byte, 1), 1);
	kill(pid, SIGCONT);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	for (int i = 0; i < 2; i++) {
		close(pipe_in[i]);
		close(pipe_out[i]);
	}
}

static void call_off(struct group *g, uint32_t rank)
{
	if (rank == 0)
		first_alone(g, 0);
	else
		atomic_store(&g->called_off, 1);
}

static void test_wait_ends_when_called_off(void **state)
{
	struct group *g = group_new(2, 0, 0);

	(void)state;
	run_all(g, call_off);
	assert_int_equal(g->ret[0], -ECONNABORTED);
	group_free(g);
}

static void test_small_area_is_refused(void **state)
{
	struct comm_shm_opts o = {.world = 2, .area_bytes = COMM_SHM_AREA_MIN - 1};
	struct comm_shm c;

	(void)state;
	assert_int_equal(comm_shm_init(&c, &o), -EINVAL);
	o.area_bytes = COMM_SHM_AREA_MIN;
	o.rank = 2;
	assert_int_equal(comm_shm_init(&c, &o), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_results_are_right_around_tile_sizes),
		cmocka_unit_test(test_sums_are_right_in_large_areas),
		cmocka_unit_test(test_many_rounds_keep_in_step_across_wrap),
		cmocka_unit_test(test_different_sizes_are_noticed),
		cmocka_unit_test(test_silent_peer_times_out),
		cmocka_unit_test(test_time_in_which_nobody_ran_does_not_count),
		cmocka_unit_test(test_wait_ends_when_called_off),
		cmocka_unit_test(test_small_area_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
