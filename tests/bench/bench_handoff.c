/*
 * bench_handoff: what it costs to hand a step to a worker and get its reply, against the machine's
 * own price for a cache line or a futex. Not a test; run it on a quiet machine.
 *
 *	raw spin     two processes turn one word back and forth (half round trip)
 *	raw futex    the same, asleep in between
 *	chan         step record through the ring, reply through the reply ring, half of both
 */
#include "config.h"

#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/chan.h"
#include "tests/bench/report.h"

#define BEST_OF 40 /* short runs: a busy machine spoils long ones */

static int cpus[2];

static int find_cpus(void)
{
	cpu_set_t set;
	int cpu, n = 0;

	if (sched_getaffinity(0, sizeof(set), &set) < 0)
		return 0;
	for (cpu = 0; cpu < CPU_SETSIZE && n < 2; cpu++)
		if (CPU_ISSET(cpu, &set))
			cpus[n++] = cpu;
	return n;
}

static void pin(int which)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpus[which], &set);
	(void)sched_setaffinity(0, sizeof(set), &set);
}

struct raw {
	_Alignas(64) _Atomic uint32_t turn;
};

static void raw_wait(struct raw *raw, uint32_t mine, bool sleeps)
{
	uint32_t now;

	while ((now = atomic_load_explicit(&raw->turn, memory_order_acquire)) != mine) {
		if (sleeps)
			syscall(SYS_futex, &raw->turn, FUTEX_WAIT, now, NULL, NULL, 0);
		else
			bell_pause();
	}
}

static void raw_pass(struct raw *raw, uint32_t next, bool sleeps)
{
	atomic_store_explicit(&raw->turn, next, memory_order_release);
	if (sleeps)
		syscall(SYS_futex, &raw->turn, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static pid_t child(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pin(1);
	}
	return pid;
}

/* Nanoseconds of half a round trip, the best of a few runs. */
static double bench_raw(bool sleeps, uint32_t rounds)
{
	struct raw *raw =
		mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	double best = 1e18;
	pid_t pid = child();
	uint32_t i, k;

	if (pid == 0) {
		for (i = 0; i < rounds * BEST_OF; i++) {
			raw_wait(raw, 2 * i + 1, sleeps);
			raw_pass(raw, 2 * i + 2, sleeps);
		}
		_exit(0);
	}
	for (k = 0, i = 0; k < BEST_OF; k++) {
		mono_ns_t start = mono_now();
		double ns;

		for (; i < rounds * (k + 1); i++) {
			raw_pass(raw, 2 * i + 1, sleeps);
			raw_wait(raw, 2 * i + 2, sleeps);
		}
		ns = (double)(mono_now() - start) / rounds / 2;
		best = MIN(best, ns);
	}
	waitpid(pid, NULL, 0);
	munmap(raw, 4096);
	return best;
}

static struct seg_group group, theirs;
static struct chan_coord coord;
static struct chan_worker worker;

static void answer_steps(uint64_t spin_ns, uint32_t rounds)
{
	int fd = group.workers[0].fd;
	uint32_t i;

	if (seg_group_attach_fds(&theirs, 0, group.coord.fd, group.bell_fd, &fd, NULL) < 0 ||
		chan_worker_init(&worker, &theirs, spin_ns, 0) < 0)
		_exit(1);
	for (i = 0; i < rounds; i++) {
		const void *in;
		void *out;
		size_t n;

		if (chan_step_next(&worker, 0, &in, &n) < 0)
			_exit(1);
		if (chan_reply_reserve(&worker, 8, 0, &out) < 0)
			_exit(1);
		memset(out, 0, 8);
		chan_reply_commit(&worker, 8);
		chan_step_done(&worker);
	}
	_exit(0);
}

static int one_round(size_t bytes, bool sleeps)
{
	uint64_t reply;
	size_t n;
	void *at;
	int r;

	r = chan_step_reserve(&coord, bytes, &at);
	if (r < 0)
		return r;
	memset(at, 1, bytes);
	chan_step_commit(&coord, bytes);
	while ((r = chan_reply_pop(&coord, 0, &reply, sizeof(reply), &n)) == -EAGAIN) {
		struct pollfd p = {.fd = group.bell_fd, .events = POLLIN};

		if (!sleeps) {
			bell_pause();
			continue;
		}
		if (chan_sleep(&coord, 0))
			(void)poll(&p, 1, 1000);
		chan_wake(&coord);
	}
	return r;
}

static double bench_chan(size_t bytes, bool sleeps, uint32_t rounds)
{
	const struct seg_geometry geometry = {.generation = 1,
		.workers = 1,
		.step_ring_bytes = 1 << 20,
		.reply_ring_bytes = 65536};
	static struct conf conf;
	double best = 1e18;
	uint32_t i, k;
	pid_t pid;

	if (seg_group_create(&group, &geometry, &conf, NULL) < 0 ||
		chan_coord_init(&coord, &group) < 0)
		exit(1);
	pid = child();
	if (pid == 0)
		answer_steps(sleeps ? 0 : NS_PER_S, rounds * BEST_OF);
	for (k = 0; k < BEST_OF; k++) {
		mono_ns_t start = mono_now();

		for (i = 0; i < rounds; i++)
			if (one_round(bytes, sleeps) < 0)
				exit(1);
		best = MIN(best, (double)(mono_now() - start) / rounds / 2);
	}
	waitpid(pid, NULL, 0);
	seg_group_close(&group);
	return best;
}

static void add(struct report *r, const char *what, double ns, const char *raw_name, double raw,
	double most)
{
	report_add(r, &(struct report_row){.what = what,
			      .value = ns,
			      .unit = "ns",
			      .beside = raw_name,
			      .beside_value = raw,
			      .most = most});
}

int main(void)
{
	struct report r;
	double raw;

	if (find_cpus() < 2) {
		printf("one CPU allowed: nothing may spin\n");
		return 77;
	}
	pin(0);
	report_open(&r, "handoff", "Hand-off to one worker, half a round trip");
	raw = bench_raw(false, 5000);
	add(&r, "raw spin", raw, NULL, 0, 0);
	add(&r, "spinning, empty", bench_chan(0, false, 2000), "raw spin", raw, 3);
	add(&r, "spinning, 4 KiB", bench_chan(4096, false, 2000), "raw spin", raw, 6);
	raw = bench_raw(true, 200);
	add(&r, "raw futex", raw, NULL, 0, 0);
	add(&r, "asleep, empty", bench_chan(0, true, 200), "raw futex", raw, 1.3);
	add(&r, "asleep, 4 KiB", bench_chan(4096, true, 200), "raw futex", raw, 1.3);
	return report_close(&r);
}
