/* Workers as processes: steps, waits, room, orderly stop, failure, the next generation. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <sched.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/proc/group.h"

static struct group_run run;

static void start(uint32_t workers, uint64_t generation, uint64_t spin_ns)
{
	const struct group_options o = {
		.workers = workers, .generation = generation, .spin_ns = spin_ns, .report_fd = -1};

	assert_int_equal(group_start(&run, &o), 0);
}

static void stop_in_order(void)
{
	uint32_t i;

	assert_int_equal(group_push(&run, GROUP_STOP, 0), 0);
	for (i = 0; i < run.g.geometry.workers; i++) {
		int status = group_wait_exit(&run, i, 10 * NS_PER_S);

		assert_true(status >= 0 && WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), GROUP_STOPPED);
		assert_int_equal(slot_state(run.g.workers[i].slot), WORKER_STOPPED);
	}
	assert_false(run.garbage);
	group_end(&run);
}

static void steps_with(uint32_t workers, uint64_t spin_ns, uint64_t steps)
{
	uint32_t i;

	start(workers, 1, spin_ns);
	assert_int_equal(group_run_steps(&run, steps, 10 * NS_PER_S), 0);
	for (i = 0; i < workers; i++) {
		struct slot_view v;

		assert_int_equal(run.popped[i], steps);
		assert_int_equal(slot_read(run.g.workers[i].slot, &v), 0);
		assert_int_equal(v.pid, run.pids[i]);
		assert_int_equal(v.step, steps);
	}
	stop_in_order();
}

static void test_one_worker_answers_every_step(void **state)
{
	(void)state;
	steps_with(1, 0, 1000);
}

static void test_two_workers_answer_every_step(void **state)
{
	(void)state;
	steps_with(2, 0, 1000);
}

static void test_four_workers_answer_every_step(void **state)
{
	(void)state;
	steps_with(4, 0, 500);
}

static void test_spinning_worker_answers_every_step(void **state)
{
	(void)state;
	steps_with(1, 20 * NS_PER_US, 1000);
}

/* Does every worker sleep for room in its reply ring? */
static bool all_wait_for_room(void)
{
	uint32_t i;

	for (i = 0; i < run.g.geometry.workers; i++)
		if (atomic_load(&run.g.workers[i].worker_ctl->armed.news) != BELL_SPACE)
			return false;
	return true;
}

static void test_workers_wait_for_room_for_their_replies(void **state)
{
	mono_ns_t end = mono_now() + 20 * NS_PER_S;
	int round, r;

	(void)state;
	start(2, 1, 0);
	for (round = 0; round < 3; round++) {
		while (!all_wait_for_room() && mono_now() < end) {
			r = group_try_push(&run, GROUP_RUN, 0);
			assert_true(r == 0 || r == -EAGAIN);
			if (r == -EAGAIN)
				sched_yield();
		}
		assert_true(all_wait_for_room());
		assert_int_equal(ring_pop(&run.c.replies[0], NULL, 0, &(size_t){0}), -EMSGSIZE);
		/* reading makes room, and its bell wakes them */
		assert_int_equal(group_run_steps(&run, 100, 10 * NS_PER_S), 0);
	}
	stop_in_order();
}

static void test_failed_worker_is_told_to_all(void **state)
{
	struct worker_error e;
	int status;

	(void)state;
	start(2, 1, 0);
	assert_int_equal(group_run_steps(&run, 10, 10 * NS_PER_S), 0);
	assert_int_equal(group_push(&run, GROUP_FAIL, 1), 0);
	status = group_wait_exit(&run, 1, 10 * NS_PER_S);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == GROUP_FAILED);
	assert_int_equal(slot_read_error(run.g.workers[1].slot, &e), 0);
	assert_string_equal(e.text, "was told to");
	/* its peer waits for it in a collective and learns it without the coordinator */
	status = group_wait_exit(&run, 0, 10 * NS_PER_S);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == GROUP_PEER_GONE);
	group_end(&run);
}

static void test_lost_group_ends_and_the_next_generation_works(void **state)
{
	uint64_t generation;

	(void)state;
	for (generation = 1; generation <= 3; generation++) {
		uint32_t i;

		start(2, generation, 0);
		assert_int_equal(group_run_steps(&run, 50, 10 * NS_PER_S), 0);
		seg_group_set_lost(&run.g);
		for (i = 0; i < 2; i++) {
			int status = group_wait_exit(&run, i, 10 * NS_PER_S);

			assert_true(WIFEXITED(status) && WEXITSTATUS(status) == GROUP_PEER_GONE);
		}
		group_end(&run);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_worker_answers_every_step),
		cmocka_unit_test(test_two_workers_answer_every_step),
		cmocka_unit_test(test_four_workers_answer_every_step),
		cmocka_unit_test(test_spinning_worker_answers_every_step),
		cmocka_unit_test(test_workers_wait_for_room_for_their_replies),
		cmocka_unit_test(test_failed_worker_is_told_to_all),
		cmocka_unit_test(test_lost_group_ends_and_the_next_generation_works),
	};

	group_main(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
