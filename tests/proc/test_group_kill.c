/* Processes killed or stopped at named points: the others notice in bounded time, and nobody reads
 * what was not written. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/proc/group.h"

#define BOUND_NS (10 * NS_PER_S) /* generous: the machine may be busy */

static struct group_run run;

/* Runs steps until the fault ends a worker; some end one before it has been READY. */
static int run_until_fault(const char *fault, uint64_t timeout_ns)
{
	const struct group_options o = {
		.workers = 3, .generation = 1, .fault = fault, .report_fd = -1};
	int r = group_start(&run, &o);

	return r < 0 ? r : group_run_steps(&run, 100000, timeout_ns);
}

/* The survivors end by themselves once the coordinator says that the group is lost. */
static void lose_group(uint32_t victim)
{
	mono_ns_t begin = mono_now();
	uint32_t i;
	int r, status;

	status = group_wait_exit(&run, victim, BOUND_NS);
	assert_true(status >= 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	seg_group_set_lost(&run.g);
	for (i = 0; i < 3; i++) {
		if (i == victim)
			continue;
		status = group_wait_exit(&run, i, BOUND_NS);
		assert_true(status >= 0 && WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), GROUP_PEER_GONE);
	}
	assert_true(mono_now() - begin < BOUND_NS);
	/* what was published is whole, and nothing else is there */
	r = group_read(&run);
	assert_true(r >= 0);
	assert_false(run.garbage);
	/* the writer does not wait for the dead: it says so or finds room */
	for (i = 0; i < 1000; i++) {
		void *at;

		r = chan_step_reserve(&run.c, 200, &at);
		if (r < 0)
			break;
		chan_step_commit(&run.c, 200);
	}
	assert_int_equal(r, -EAGAIN);
	group_end(&run);
}

/* Points that a worker passes in every step: in the ring's two ends, and asleep. */
static const char *const worker_points[] = {"ring.pop.mid", "ring.pop.release", "ring.push.mid",
	"ring.push.publish", "ring.push.done", "bell.sleep"};

static void test_worker_killed_anywhere_is_noticed(void **state)
{
	static const int passes[] = {1, 2, 40};
	size_t i, k;

	(void)state;
	for (i = 0; i < ARRAY_LEN(worker_points); i++)
		for (k = 0; k < ARRAY_LEN(passes); k++) {
			uint32_t victim = (uint32_t)(i + k) % 3;
			char fault[100];

			snprintf(fault, sizeof(fault), "%s@%u.1:%d=kill", worker_points[i], victim,
				passes[k]);
			assert_int_equal(run_until_fault(fault, BOUND_NS), -EPIPE);
			lose_group(victim);
		}
}

static void test_worker_killed_in_a_collective_frees_its_peers(void **state)
{
	char fault[100];
	uint32_t victim;

	(void)state;
	for (victim = 0; victim < 3; victim++) {
		snprintf(fault, sizeof(fault), "bell.post.mid@%u:5=kill", victim);
		assert_int_equal(run_until_fault(fault, BOUND_NS), -EPIPE);
		lose_group(victim);
	}
}

static void test_stopped_worker_holds_up_nobody_for_ever(void **state)
{
	struct slot_view before, after;

	(void)state;
	/* the coordinator sees no more news; its loop goes on all the same */
	assert_int_equal(run_until_fault("ring.pop.mid@1:20=stop", 300 * NS_PER_MS), -ETIMEDOUT);
	assert_int_equal(slot_read(run.g.workers[1].slot, &before), 0);
	assert_int_equal(group_run_steps(&run, 1, 100 * NS_PER_MS), -ETIMEDOUT);
	assert_int_equal(slot_read(run.g.workers[1].slot, &after), 0);
	assert_int_equal(after.progress, before.progress);
	kill(run.pids[1], SIGKILL);
	lose_group(1);
}

/* Reads the workers' exit codes until all have ended; every one must be `code`. `pid` leads the
 * process group of all of them. */
static void assert_workers_report(const char *fault, pid_t pid, int fd, int n, char code)
{
	mono_ns_t end = mono_now() + BOUND_NS;
	int seen = 0;
	char c;

	for (;;) {
		struct pollfd p = {.fd = fd, .events = POLLIN};

		if (mono_now() > end || poll(&p, 1, (int)(BOUND_NS / NS_PER_MS)) <= 0) {
			kill(-pid, SIGKILL);
			fail_msg("%s: %d of %d workers did not end", fault, n - seen, n);
		}
		if (read(fd, &c, 1) != 1)
			break;
		if (c == 'R')
			continue;
		assert_int_equal(c, code);
		seen++;
	}
	assert_int_equal(seen, n);
}

static pid_t start_coordinator(const char *fault, int *ret_fd)
{
	int fds[2];
	pid_t pid;

	assert_int_equal(pipe(fds), 0);
	pid = group_spawn_coordinator(fault, fds[1]);
	close(fds[1]);
	*ret_fd = fds[0];
	return pid;
}

static void test_workers_notice_a_coordinator_killed_anywhere(void **state)
{
	static const char *const points[] = {"ring.push.mid", "ring.push.publish", "ring.push.done",
		"bell.ring.mid", "ring.pop.release"};
	size_t i;

	(void)state;
	for (i = 0; i < ARRAY_LEN(points); i++) {
		char fault[100];
		int fd, status;
		pid_t pid;

		snprintf(fault, sizeof(fault), "%s@-1:%d=kill", points[i], (int)i * 3 + 1);
		pid = start_coordinator(fault, &fd);
		assert_workers_report(fault, pid, fd, 2, GROUP_PEER_GONE);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		close(fd);
	}
}

static void test_workers_notice_a_coordinator_killed_at_a_random_moment(void **state)
{
	int round, fd, status;
	char c = 0;
	pid_t pid;

	(void)state;
	for (round = 0; round < 5; round++) {
		pid = start_coordinator(NULL, &fd);
		assert_int_equal(read(fd, &c, 1), 1);
		assert_int_equal(c, 'R');
		kill(pid, SIGKILL);
		assert_workers_report("kill", pid, fd, 2, GROUP_PEER_GONE);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		close(fd);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_worker_killed_anywhere_is_noticed),
		cmocka_unit_test(test_worker_killed_in_a_collective_frees_its_peers),
		cmocka_unit_test(test_stopped_worker_holds_up_nobody_for_ever),
		cmocka_unit_test(test_workers_notice_a_coordinator_killed_anywhere),
		cmocka_unit_test(test_workers_notice_a_coordinator_killed_at_a_random_moment),
	};

	group_main(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
