/*
 * bench_allreduce: the collective of the CPU workers over shared memory, two ranks that spin on a
 * CPU each, beside the bare exchange of as many bytes.
 *
 *	bare      each copies a tile into its own area, stores a word, waits for the other's, and
 *	          copies the other's tile to where its own was; by the size of tile that does it
 *	          fastest. Nothing is added, waited for with care or checked.
 *	all-reduce  comm_shm.c as a worker has it
 *
 * That is what it must move: a rank's bytes have to be written where the other reads them, and read
 * there. The lines come from the other CPU's cache, not from the own one. Both in turn, medians.
 */
#include "config.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/report.h"
#include "worker/comm_shm.h"

#define TURNS     15
#define RANKS     2
#define BYTES_MAX ((size_t)16 << 20)
#define TURN_NS   2000000.0 /* about as long as a turn of one way takes */

static const size_t tiles[] = {16 << 10, 64 << 10, 256 << 10};

/* What is measured: sizes, and for each the ways. */
static const struct row {
	const char *all_reduce, *bare;
	size_t bytes;
	bool is_rate; /* GB/s, with the target; else microseconds */
} rows[] = {
	{"all-reduce, 1 KiB (a row of the model)", "bare, 1 KiB", 1 << 10, false},
	{"all-reduce, 4 KiB", "bare, 4 KiB", 4 << 10, false},
	{"all-reduce, 64 KiB", "bare, 64 KiB", 64 << 10, true},
	{"all-reduce, 1 MiB", "bare, 1 MiB", 1 << 20, true},
	{"all-reduce, 16 MiB", "bare, 16 MiB", BYTES_MAX, true},
};

#define ROWS ARRAY_LEN(rows)
#define WAYS (1 + ARRAY_LEN(tiles)) /* all-reduce, bare with each size of tile */

struct shared {
	struct bell_word flags[RANKS], bare[RANKS];
	struct bell_armed armed[RANKS];
	_Alignas(4096) unsigned char areas[RANKS][COMM_SHM_AREA_BYTES];
	struct comm_shm comm[RANKS];
	float *x[RANKS];
	double ns[ROWS][WAYS][TURNS];
	int cpus[RANKS];
};

struct rank {
	struct shared *shared;
	uint32_t rank, round; /* round: of the bare way */
};

static void meet(struct rank *r)
{
	struct shared *s = r->shared;

	atomic_store_explicit(&s->bare[r->rank].value, ++r->round, memory_order_release);
	while ((int32_t)(atomic_load_explicit(&s->bare[!r->rank].value, memory_order_acquire) -
			 r->round) < 0)
		bell_pause();
}

/* Two tiles in turn, as in comm_shm.h. */
static void exchange(struct rank *r, size_t bytes, size_t tile)
{
	struct shared *s = r->shared;
	unsigned char *x = (unsigned char *)s->x[r->rank];

	for (size_t at = 0; at < bytes; at += tile) {
		size_t n = MIN(tile, bytes - at), half = r->round % 2 * (COMM_SHM_AREA_BYTES / 2);

		memcpy(s->areas[r->rank] + half, x + at, n);
		meet(r);
		memcpy(x + at, s->areas[!r->rank] + half, n);
	}
}

static void run(struct rank *r, size_t way, size_t bytes)
{
	struct shared *s = r->shared;
	struct comm *c = &s->comm[r->rank].comm;

	if (way > 0)
		exchange(r, bytes, tiles[way - 1]);
	else if (comm_all_reduce_f32(c, s->x[r->rank], bytes / sizeof(float)) < 0)
		abort();
}

/* Zeroes stay zeroes, however often they are added up. */
static void turn(struct rank *r, size_t row, size_t way, int turn)
{
	size_t bytes = rows[row].bytes;
	int rounds = (int)(TURN_NS / (1000 + (double)bytes / 4)) + 1;
	mono_ns_t start;

	run(r, way, bytes);
	meet(r);
	start = mono_now();
	for (int i = 0; i < rounds; i++)
		run(r, way, bytes);
	meet(r);
	if (r->rank == 0)
		r->shared->ns[row][way][turn] = (double)(mono_now() - start) / rounds;
}

static void *rank_run(void *user)
{
	struct rank *r = user;
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(r->shared->cpus[r->rank], &set);
	(void)sched_setaffinity(0, sizeof(set), &set);
	memset(r->shared->x[r->rank], 0, BYTES_MAX);
	for (int t = 0; t < TURNS; t++)
		for (size_t row = 0; row < ROWS; row++)
			for (size_t way = 0; way < WAYS; way++)
				turn(r, row, way, t);
	return NULL;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *ns)
{
	qsort(ns, TURNS, sizeof(*ns), compare);
	return ns[TURNS / 2];
}

static void print(struct shared *s)
{
	struct report report;

	report_open(&report, "allreduce", "All-reduce of two ranks over shared memory, medians");
	for (size_t i = 0; i < ROWS; i++) {
		double bare = median(s->ns[i][1]), all = median(s->ns[i][0]);
		double bytes = (double)rows[i].bytes;

		for (size_t way = 2; way < WAYS; way++)
			bare = MIN(bare, median(s->ns[i][way]));
		report_add(&report,
			&(struct report_row){.what = rows[i].all_reduce,
				.value = rows[i].is_rate ? bytes / all : all / 1e3,
				.unit = rows[i].is_rate ? "GB/s" : "us",
				.beside = rows[i].bare,
				.beside_value = rows[i].is_rate ? bytes / bare : bare / 1e3,
				.least = rows[i].is_rate ? 0.8 : 0});
	}
	exit(report_close(&report));
}

static struct shared *shared_new(void)
{
	struct shared *s = aligned_alloc(4096, ALIGN_UP(sizeof(*s), 4096));
	struct comm_shm_opts o = {
		.world = RANKS, .area_bytes = COMM_SHM_AREA_BYTES, .how = {.spin_ns = NS_PER_S}};

	if (!s)
		abort();
	memset(s, 0, sizeof(*s));
	for (uint32_t r = 0; r < RANKS; r++) {
		o.areas[r] = s->areas[r];
		o.flags[r] = &s->flags[r];
		o.armed[r] = &s->armed[r];
		s->x[r] = aligned_alloc(4096, BYTES_MAX);
		if (!s->x[r])
			abort();
	}
	for (o.rank = 0; o.rank < RANKS; o.rank++)
		if (comm_shm_init(&s->comm[o.rank], &o) < 0)
			abort();
	return s;
}

int main(void)
{
	struct shared *s = shared_new();
	struct rank r[RANKS] = {{s, 0, 0}, {s, 1, 0}};
	pthread_t other;
	cpu_set_t set;
	int n = 0;

	if (sched_getaffinity(0, sizeof(set), &set) < 0 || CPU_COUNT(&set) < RANKS) {
		printf("fewer than %d CPUs allowed: nothing may spin\n", RANKS);
		return 77;
	}
	for (int cpu = 0; cpu < CPU_SETSIZE && n < RANKS; cpu++)
		if (CPU_ISSET(cpu, &set))
			s->cpus[n++] = cpu;
	if (pthread_create(&other, NULL, rank_run, &r[1]) != 0)
		abort();
	rank_run(&r[0]);
	pthread_join(other, NULL);
	print(s);
}
