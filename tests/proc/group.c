#include "config.h"

#include "tests/proc/group.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/fault.h"
#include "shm/sum.h"

#define CHECK_NS   (20 * NS_PER_MS)
#define REPORT_FD  300 /* out of the way of SEG_FD_* and of the segments */
#define IN_FLIGHT  40
#define STEP_BYTES 6000

static size_t step_bytes(uint64_t number)
{
	return sizeof(struct group_step) + number * 7919 % (number % 13 ? 300 : STEP_BYTES);
}

static uint8_t step_byte(uint64_t number, size_t i)
{
	return (uint8_t)((number * 0x9e3779b9u + i * 0x85ebca6bu) >> 11);
}

/* ---- a worker ---- */

struct worker {
	struct seg_group g;
	struct chan_worker c;
	const struct bell_armed *peers[SEG_WORKERS_MAX];
	size_t npeers;
	uint32_t rank;
	uint64_t met;
};

/* All peers have come to this step. */
static int meet(struct worker *w, uint64_t step)
{
	struct seg *mine = &w->g.workers[w->rank];
	uint32_t i;
	int r;

	bell_post(&mine->flags[0], (uint32_t)step, w->peers, w->npeers);
	for (i = 0; i < w->g.geometry.workers; i++) {
		if (i == w->rank)
			continue;
		r = bell_wait_reach(&w->g.workers[i].flags[0], (uint32_t)step,
			&mine->worker_ctl->comm_armed, &w->c.how);
		if (r < 0)
			return r;
	}
	return 0;
}

static bool step_is_sound(const void *payload, size_t bytes, struct group_step *ret_step)
{
	const uint8_t *b = payload;
	size_t i;

	if (bytes < sizeof(*ret_step))
		return false;
	memcpy(ret_step, payload, sizeof(*ret_step));
	if (bytes != step_bytes(ret_step->number))
		return false;
	for (i = sizeof(*ret_step); i < bytes; i++)
		if (b[i] != step_byte(ret_step->number, i))
			return false;
	return true;
}

static int run_step(struct worker *w, const struct group_step *step, uint64_t sum)
{
	struct group_reply reply = {.number = step->number, .sum = sum, .rank = w->rank};
	void *at;
	int r;

	slot_beat(w->g.workers[w->rank].slot, step->number, STAGE_LAYER, 0);
	r = meet(w, step->number);
	if (r < 0)
		return r;
	r = chan_reply_reserve(&w->c, sizeof(reply), 0, &at);
	if (r < 0)
		return r;
	memcpy(at, &reply, sizeof(reply));
	chan_reply_commit(&w->c, sizeof(reply));
	stats_add(w->g.workers[w->rank].stats, steps, 1);
	return 0;
}

static int fail(struct worker *w)
{
	struct errbuf err = {.text = "was told to", .exit_code = EXIT_SOFTWARE_ERR};

	slot_set_failed(w->g.workers[w->rank].slot, -EIO, &err);
	chan_notify(&w->g);
	return GROUP_FAILED;
}

static int exit_code_of(int r)
{
	return r == -EPIPE ? GROUP_PEER_GONE : r == -EBADMSG ? GROUP_CORRUPT : GROUP_OTHER;
}

static int work(struct worker *w)
{
	struct group_step step;
	const void *payload;
	uint64_t sum;
	size_t bytes;
	int r;

	for (;;) {
		r = chan_step_next(&w->c, 0, &payload, &bytes);
		if (r < 0)
			return exit_code_of(r);
		if (!step_is_sound(payload, bytes, &step) || step.number != w->met + 1)
			return GROUP_GARBAGE;
		w->met = step.number;
		sum = sum_bytes(payload, bytes, 0);
		chan_step_done(&w->c);
		if (step.op == GROUP_STOP)
			return GROUP_STOPPED;
		if (step.op == GROUP_FAIL && step.rank == w->rank)
			return fail(w);
		r = run_step(w, &step, sum);
		if (r < 0)
			return exit_code_of(r);
	}
}

static int worker_main(uint32_t rank, uint64_t spin_ns)
{
	static const struct worker_capacity capacity = {
		.classes = {{.tokens_per_page = 64, .count = 1, .bytes_per_page = 1}},
		.max_context = 1,
		.max_sequences = 1,
		.vocab = 1,
		.step_tokens = 1};
	static struct worker w;
	struct errbuf err = {{0}, 0};
	uint32_t i;
	int code;

	if (seg_group_attach(&w.g, rank, &err) < 0) {
		fprintf(stderr, "worker %u: %s\n", rank, err.text);
		return GROUP_OTHER;
	}
	fault_identity((int)rank, w.g.geometry.generation);
	w.rank = rank;
	for (i = 0; i < w.g.geometry.workers; i++)
		if (i != rank)
			w.peers[w.npeers++] = &w.g.workers[i].worker_ctl->comm_armed;
	if (chan_worker_init(&w.c, &w.g, spin_ns, CHECK_NS) < 0)
		return GROUP_OTHER;
	slot_begin(w.g.workers[rank].slot, w.g.geometry.generation);
	slot_set_ready(w.g.workers[rank].slot, &capacity);
	chan_notify(&w.g);
	code = work(&w);
	if (code == GROUP_STOPPED) {
		slot_set_state(w.g.workers[rank].slot, WORKER_STOPPED);
		chan_notify(&w.g);
	}
	return code;
}

/* ---- the coordinator ---- */

static void exec_self(const char *role, const char *a, const char *b, const char *fault)
{
	char *argv[] = {(char *)(uintptr_t) "self", (char *)(uintptr_t)role, (char *)(uintptr_t)a,
		(char *)(uintptr_t)b, NULL};

	if (fault)
		setenv("HEDDLE_FAULT", fault, 1);
	execv("/proc/self/exe", argv);
	_exit(GROUP_OTHER);
}

static void exec_worker(struct group_run *run, uint32_t rank, const struct group_options *o)
{
	char rank_text[16], spin_text[32];
	uint32_t i;

	dup2(run->g.coord.fd, SEG_FD_COORD);
	dup2(run->g.bell_fd, SEG_FD_BELL);
	for (i = 0; i < o->workers; i++)
		dup2(run->g.workers[i].fd, SEG_FD_WORKER + (int)i);
	if (o->report_fd >= 0)
		dup2(o->report_fd, REPORT_FD);
	snprintf(rank_text, sizeof(rank_text), "%u", rank);
	snprintf(spin_text, sizeof(spin_text), "%llu", (unsigned long long)o->spin_ns);
	exec_self("--worker", rank_text, spin_text, o->fault);
}

static bool all_ready(const struct group_run *run)
{
	uint32_t i;

	for (i = 0; i < run->g.geometry.workers; i++)
		if (slot_state(run->g.workers[i].slot) != WORKER_READY)
			return false;
	return true;
}

/* Sleeps until the bell rings (1), a worker ends (-EPIPE) or nothing happens. `news` is asked once
 * armed, for what the rings do not show. */
static int sleep_on_bell(struct group_run *run, size_t space_bytes,
	bool (*news)(const struct group_run *run), uint64_t timeout_ns)
{
	uint32_t n = run->g.geometry.workers, i;
	struct pollfd p[SEG_WORKERS_MAX + 1];
	int r;

	if (!chan_sleep(&run->c, space_bytes))
		return 1;
	if (news && news(run)) {
		chan_wake(&run->c);
		return 1;
	}
	for (i = 0; i < n; i++)
		p[i] = (struct pollfd){.fd = run->pidfds[i], .events = POLLIN};
	p[n] = (struct pollfd){.fd = run->g.bell_fd, .events = POLLIN};
	r = poll(p, n + 1, (int)(timeout_ns / NS_PER_MS));
	chan_wake(&run->c);
	if (r == 0)
		return -ETIMEDOUT;
	for (i = 0; i < n; i++)
		if (p[i].revents)
			return -EPIPE;
	return 1;
}

static int wait_ready(struct group_run *run)
{
	int r = 1;

	while (r == 1 && !all_ready(run))
		r = sleep_on_bell(run, 0, all_ready, 20 * NS_PER_S);
	return MIN(r, 0);
}

int group_start(struct group_run *run, const struct group_options *o)
{
	const struct seg_geometry geometry = {.generation = o->generation,
		.workers = o->workers,
		.step_ring_bytes = 16384,
		.reply_ring_bytes = 4096,
		.comm_bytes = 4096};
	static struct conf conf;
	struct errbuf err = {{0}, 0};
	uint32_t i;
	int r;

	memset(run, 0, sizeof(*run));
	r = seg_group_create(&run->g, &geometry, &conf, &err);
	if (r < 0) {
		fprintf(stderr, "%s\n", err.text);
		return r;
	}
	r = chan_coord_init(&run->c, &run->g);
	if (r < 0)
		return r;
	for (i = 0; i < o->workers; i++) {
		run->pids[i] = fork();
		if (run->pids[i] == 0)
			exec_worker(run, i, o);
		run->pidfds[i] = (int)syscall(SYS_pidfd_open, run->pids[i], 0);
	}
	return wait_ready(run);
}

int group_try_push(struct group_run *run, enum group_op op, uint32_t rank)
{
	uint64_t number = run->pushed + 1;
	struct group_step step = {.number = number, .op = op, .rank = rank};
	size_t bytes = step_bytes(number), i;
	void *at;
	int r = chan_step_reserve(&run->c, bytes, &at);

	if (r < 0)
		return r;
	memcpy(at, &step, sizeof(step));
	for (i = sizeof(step); i < bytes; i++)
		((uint8_t *)at)[i] = step_byte(number, i);
	chan_step_commit(&run->c, bytes);
	run->pushed = number;
	return 0;
}

int group_push(struct group_run *run, enum group_op op, uint32_t rank)
{
	int r;

	while ((r = group_try_push(run, op, rank)) == -EAGAIN) {
		r = sleep_on_bell(run, step_bytes(run->pushed + 1), NULL, 10 * NS_PER_S);
		if (r < 0)
			return r;
		r = group_read(run);
		if (r < 0)
			return r;
	}
	return r;
}

/* What a worker has to reply to a step; op and rank of GROUP_RUN are zero. */
static bool reply_is_sound(uint64_t number, uint32_t rank, const struct group_reply *reply)
{
	static uint8_t buf[STEP_BYTES + 64];
	struct group_step step = {.number = number};
	size_t bytes = step_bytes(number), i;

	memcpy(buf, &step, sizeof(step));
	for (i = sizeof(step); i < bytes; i++)
		buf[i] = step_byte(number, i);
	return reply->number == number && reply->rank == rank &&
	       reply->sum == sum_bytes(buf, bytes, 0);
}

int group_read(struct group_run *run)
{
	struct group_reply reply;
	int count = 0, r = 0;
	size_t bytes;
	uint32_t i;

	for (i = 0; i < run->g.geometry.workers; i++) {
		while ((r = chan_reply_pop(&run->c, i, &reply, sizeof(reply), &bytes)) == 0) {
			count++;
			run->popped[i]++;
			if (bytes != sizeof(reply) || !reply_is_sound(run->popped[i], i, &reply))
				run->garbage = true;
		}
		if (r != -EAGAIN)
			return r;
	}
	return count;
}

static uint64_t least_popped(const struct group_run *run)
{
	uint64_t least = run->popped[0];
	uint32_t i;

	for (i = 1; i < run->g.geometry.workers; i++)
		least = MIN(least, run->popped[i]);
	return least;
}

int group_run_steps(struct group_run *run, uint64_t steps, uint64_t timeout_ns)
{
	uint64_t end = run->pushed + steps;
	int r;

	while (least_popped(run) < end) {
		size_t want = 0;

		while (run->pushed < end && run->pushed - least_popped(run) < IN_FLIGHT && !want) {
			r = group_try_push(run, GROUP_RUN, 0);
			if (r == -EAGAIN)
				want = step_bytes(run->pushed + 1);
			else if (r < 0)
				return r;
		}
		r = group_read(run);
		if (r < 0)
			return r;
		if (r == 0) {
			r = sleep_on_bell(run, want, NULL, timeout_ns);
			if (r < 0)
				return r;
		}
	}
	return 0;
}

int group_wait_exit(struct group_run *run, uint32_t rank, uint64_t timeout_ns)
{
	struct pollfd p = {.fd = run->pidfds[rank], .events = POLLIN};
	int status;

	if (poll(&p, 1, (int)(timeout_ns / NS_PER_MS)) <= 0)
		return -ETIMEDOUT;
	if (waitpid(run->pids[rank], &status, 0) < 0)
		return -errno;
	run->pids[rank] = 0;
	return status;
}

void group_end(struct group_run *run)
{
	uint32_t i;

	for (i = 0; i < run->g.geometry.workers; i++) {
		if (run->pids[i] > 0) {
			kill(run->pids[i], SIGKILL);
			waitpid(run->pids[i], NULL, 0);
		}
		close(run->pidfds[i]);
	}
	seg_group_close(&run->g);
}

/* A coordinator to be killed: it runs steps for ever and never tells its workers to stop. In
 * bursts, so that the workers fall asleep again and again: while steps are queued nobody needs a
 * bell, and a fault in it might not be met for seconds. */
static int coordinator_main(void)
{
	int r;

	static struct group_run run;
	const struct group_options o = {.workers = 2, .generation = 1, .report_fd = REPORT_FD};

	fault_identity(-1, 1);
	if (group_start(&run, &o) < 0)
		return GROUP_OTHER;
	if (write(REPORT_FD, "R", 1) != 1)
		return GROUP_OTHER;
	do
		r = group_run_steps(&run, run.pushed % 50 + 1, 20 * NS_PER_S);
	while (r == 0);
	return GROUP_OTHER;
}

pid_t group_spawn_coordinator(const char *fault, int report_fd)
{
	pid_t pid = fork();

	if (pid == 0) {
		setpgid(0, 0);
		dup2(report_fd, REPORT_FD);
		exec_self("--coordinator", NULL, NULL, fault);
	}
	return pid;
}

void group_main(int argc, char **argv)
{
	char code;

	if (argc == 2 && strcmp(argv[1], "--coordinator") == 0)
		exit(coordinator_main());
	if (argc != 4 || strcmp(argv[1], "--worker") != 0)
		return;
	code = (char)worker_main((uint32_t)atoi(argv[2]), strtoull(argv[3], NULL, 10));
	/* nobody reads where there is no report */
	if (write(REPORT_FD, &code, 1) < 0)
		errno = 0;
	exit(code);
}
