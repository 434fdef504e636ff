/*
 * bench_allreduce: the collective of the CPU workers over shared memory, beside the bare exchange
 * of as many bytes.
 *
 *	bare      each copies a tile into its own area, stores a word, waits for the others', and
 *	          copies each other's tile to where its own was; by the size of tile that does it
 *	          fastest. Nothing is added, waited for with care or checked.
 *	all-reduce  comm_shm.c as a worker has it
 *
 * That is what it must move, for a byte of a rank: read x, write it where the others read, read
 * theirs, write x. Both ways use the same memory, which is what a worker's is: areas in a memfd, in
 * small pages; x in large ones. All ways in turn, each turn beginning with another one, because
 * who comes first after a smaller size finds less of x in the caches: up to a sixth of its rate.
 * Medians, and the medians of the ratios within a turn.
 *
 * Two ranks spin, on a CPU each. Four on the same two CPUs sleep, as more workers than CPUs do; the
 * bare way then meets in a pthread barrier.
 */
#include "config.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/bench/bench.h"
#include "tests/bench/report.h"
#include "worker/comm_shm.h"

#define TURNS     15
#define CPUS      2
#define RANKS_MAX 4
#define BYTES_MAX ((size_t)16 << 20)
#define TURN_NS   4000000.0 /* about as long as a turn of one way takes */
#define WARM_UP   2         /* rounds before the clock of a turn */

static const size_t tiles[] = {16 << 10, 64 << 10, 128 << 10, 256 << 10};

/* What is measured: sizes, and for each the ways. */
static const struct row {
	uint32_t ranks;
	const char *all_reduce, *bare;
	size_t bytes;
	bool is_rate; /* GB/s, with the target; else microseconds */
} rows[] = {
	{2, "all-reduce, 1 KiB (a row of the model)", "bare, 1 KiB", 1 << 10, false},
	{2, "all-reduce, 4 KiB", "bare, 4 KiB", 4 << 10, false},
	{2, "all-reduce, 64 KiB", "bare, 64 KiB", 64 << 10, true},
	{2, "all-reduce, 1 MiB", "bare, 1 MiB", 1 << 20, true},
	{2, "all-reduce, 16 MiB", "bare, 16 MiB", BYTES_MAX, true},
	{4, "four ranks on two CPUs, 4 KiB", "bare, 4 KiB", 4 << 10, false},
	{4, "four ranks on two CPUs, 1 MiB", "bare, 1 MiB", 1 << 20, true},
	{4, "four ranks on two CPUs, 16 MiB", "bare, 16 MiB", BYTES_MAX, true},
};

#define ROWS ARRAY_LEN(rows)
#define WAYS (1 + ARRAY_LEN(tiles)) /* all-reduce, bare with each size of tile */

/* In a memfd. */
struct shared {
	struct bell_word flags[RANKS_MAX], bare[RANKS_MAX];
	struct bell_armed armed[RANKS_MAX];
	_Alignas(4096) unsigned char areas[RANKS_MAX][COMM_SHM_AREA_BYTES];
};

struct group {
	uint32_t ranks;
	struct shared *shared;
	pthread_barrier_t barrier;
	struct comm_shm comm[RANKS_MAX];
	float *x[RANKS_MAX];
	double ns[ROWS][WAYS][TURNS];
	int cpus[CPUS];
};

struct rank {
	struct group *group;
	uint32_t rank, round; /* round: of the bare way */
};

static void meet(struct rank *r)
{
	struct bell_word *words = r->group->shared->bare;
	const uint32_t other = !r->rank;

	r->round++;
	if (r->group->ranks > CPUS) {
		pthread_barrier_wait(&r->group->barrier);
		return;
	}
	atomic_store_explicit(&words[r->rank].value, r->round, memory_order_release);
	while ((int32_t)(atomic_load_explicit(&words[other].value, memory_order_acquire) -
			 r->round) < 0)
		bell_pause();
}

/* Two tiles in turn, as in comm_shm.h. */
static void exchange(struct rank *r, size_t bytes, size_t tile)
{
	struct group *g = r->group;
	unsigned char *x = (unsigned char *)g->x[r->rank];

	for (size_t at = 0; at < bytes; at += tile) {
		size_t n = MIN(tile, bytes - at), half = r->round % 2 * (COMM_SHM_AREA_BYTES / 2);

		memcpy(g->shared->areas[r->rank] + half, x + at, n);
		meet(r);
		for (uint32_t i = 1; i < g->ranks; i++)
			memcpy(x + at, g->shared->areas[(r->rank + i) % g->ranks] + half, n);
	}
}

static void run(struct rank *r, size_t way, size_t bytes)
{
	struct group *g = r->group;
	struct comm *c = &g->comm[r->rank].comm;

	if (way > 0)
		exchange(r, bytes, tiles[way - 1]);
	else if (comm_all_reduce_f32(c, g->x[r->rank], bytes / sizeof(float)) < 0)
		bench_die("the all-reduce failed");
}

static void turn(struct rank *r, size_t row, size_t way, int turn)
{
	const size_t bytes = rows[row].bytes;
	int rounds = (int)(TURN_NS / (1000 + (double)bytes / 4)) + 1;
	mono_ns_t start;

	for (int i = 0; i < WARM_UP; i++)
		run(r, way, bytes);
	meet(r);
	start = mono_now();
	for (int i = 0; i < rounds; i++)
		run(r, way, bytes);
	meet(r);
	if (r->rank == 0)
		r->group->ns[row][way][turn] = (double)(mono_now() - start) / rounds;
}

/* Sums grow until they are infinite, which takes no longer to add; zeroes might take less. */
static void *rank_run(void *user)
{
	struct rank *r = user;
	struct group *g = r->group;
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(g->cpus[r->rank % CPUS], &set);
	(void)sched_setaffinity(0, sizeof(set), &set);
	for (size_t i = 0; i < BYTES_MAX / sizeof(float); i++)
		g->x[r->rank][i] = (float)(1 + i % 7);
	for (int t = 0; t < TURNS; t++)
		for (size_t row = 0; row < ROWS; row++)
			for (size_t way = 0; way < WAYS && rows[row].ranks == g->ranks; way++)
				turn(r, row, (way + (size_t)t) % WAYS, t);
	return NULL;
}

static void print(struct report *report, const struct group *g)
{
	for (size_t i = 0; i < ROWS; i++) {
		const double *all = g->ns[i][0], *bare = g->ns[i][1], bytes = (double)rows[i].bytes;
		struct report_row row = {.what = rows[i].all_reduce, .beside = rows[i].bare};

		if (rows[i].ranks != g->ranks)
			continue;
		for (size_t way = 2; way < WAYS; way++)
			if (report_median(g->ns[i][way], TURNS) < report_median(bare, TURNS))
				bare = g->ns[i][way];
		row.value = report_median(all, TURNS) / 1e3;
		row.beside_value = report_median(bare, TURNS) / 1e3;
		row.unit = "us";
		row.ratio = report_paired(all, bare, TURNS);
		if (rows[i].is_rate) {
			row.value = bytes / 1e3 / row.value;
			row.beside_value = bytes / 1e3 / row.beside_value;
			row.unit = "GB/s";
			row.ratio = report_paired(bare, all, TURNS);
			row.least = 0.8;
		}
		report_add(report, &row);
	}
}

static void *map_or_die(size_t bytes, int flags, int fd)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);

	if (p == MAP_FAILED)
		bench_die("cannot map %zu bytes: %s", bytes, strerror(errno));
	return p;
}

static void group_open(struct group *g, struct shared *shared)
{
	struct comm_shm_opts o = {.world = g->ranks,
		.area_bytes = COMM_SHM_AREA_BYTES,
		.how = {.spin_ns = g->ranks > CPUS ? 0 : NS_PER_S}};

	memset(shared, 0, sizeof(*shared));
	g->shared = shared;
	if (pthread_barrier_init(&g->barrier, NULL, g->ranks) != 0)
		bench_die("cannot make a barrier");
	for (uint32_t r = 0; r < g->ranks; r++) {
		o.areas[r] = shared->areas[r];
		o.flags[r] = &shared->flags[r];
		o.armed[r] = &shared->armed[r];
		g->x[r] = map_or_die(BYTES_MAX, MAP_PRIVATE | MAP_ANONYMOUS, -1);
		(void)madvise(g->x[r], BYTES_MAX, MADV_HUGEPAGE);
	}
	for (o.rank = 0; o.rank < g->ranks; o.rank++)
		if (comm_shm_init(&g->comm[o.rank], &o) < 0)
			bench_die("the collective's area is too small");
}

static void group_run(struct group *g, struct shared *shared)
{
	struct rank r[RANKS_MAX];
	pthread_t thread[RANKS_MAX];
	int error;

	group_open(g, shared);
	for (uint32_t i = 0; i < g->ranks; i++) {
		r[i] = (struct rank){g, i, 0};
		error = pthread_create(&thread[i], NULL, rank_run, &r[i]);
		if (error)
			bench_die("cannot start a thread: %s", strerror(error));
	}
	for (uint32_t i = 0; i < g->ranks; i++) {
		pthread_join(thread[i], NULL);
		munmap(g->x[i], BYTES_MAX);
	}
	pthread_barrier_destroy(&g->barrier);
}

int main(int argc, char **argv)
{
	static struct group groups[] = {{.ranks = 2}, {.ranks = 4}};
	int fd, n = 0;
	struct shared *shared;
	struct report report;
	cpu_set_t set;

	(void)bench_args(argc, argv, 0, "");
	if (sched_getaffinity(0, sizeof(set), &set) < 0 || CPU_COUNT(&set) < CPUS) {
		printf("fewer than %d CPUs allowed: nothing may spin\n", CPUS);
		return 77;
	}
	fd = memfd_create("bench-allreduce", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, sizeof(*shared)) < 0)
		bench_die("no shared memory: %s", strerror(errno));
	shared = map_or_die(sizeof(*shared), MAP_SHARED, fd);
	for (int cpu = 0; cpu < CPU_SETSIZE && n < CPUS; cpu++)
		if (CPU_ISSET(cpu, &set))
			groups[0].cpus[n] = groups[1].cpus[n] = cpu, n++;
	report_open(&report, "allreduce", "All-reduce over shared memory, medians");
	for (size_t i = 0; i < ARRAY_LEN(groups); i++) {
		group_run(&groups[i], shared);
		print(&report, &groups[i]);
	}
	return report_close(&report);
}
