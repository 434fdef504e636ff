#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/fault.h"
#include "shm/util.h"

/* What becomes of a fresh process that passes "a", "b", "a" and returns 10 + its errors. */
static int fate(const char *env, int rank, uint64_t generation)
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		int errors = 0;

		if (env)
			setenv("HEDDLE_FAULT", env, 1);
		else
			unsetenv("HEDDLE_FAULT");
		fault_identity(rank, generation);
		errors += FAULT_ERR("a") == -EIO;
		FAULT_POINT("b");
		errors += FAULT_ERR("a") == -EIO;
		_exit(10 + errors);
	}
	waitpid(pid, &status, WUNTRACED);
	if (WIFSTOPPED(status)) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		return 1000 + WSTOPSIG(status);
	}
	return WIFSIGNALED(status) ? 2000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void test_unarmed_points_do_nothing(void **state)
{
	(void)state;
	assert_int_equal(fate(NULL, 0, 1), 10);
	assert_int_equal(fate("c=kill", 0, 1), 10);
	assert_int_equal(fate("b:2=kill", 0, 1), 10);
}

static void test_armed_points_act_at_their_pass(void **state)
{
	(void)state;
	assert_int_equal(fate("b=kill", 0, 1), 2000 + SIGKILL);
	assert_int_equal(fate("b=stop", 0, 1), 1000 + SIGSTOP);
	assert_int_equal(fate("b=exit", 0, 1), EXIT_SOFTWARE_ERR);
	assert_int_equal(fate("a=err", 0, 1), 12);
	assert_int_equal(fate("a:2=err", 0, 1), 11);
	assert_int_equal(fate("c=kill,a:2=exit", 0, 1), EXIT_SOFTWARE_ERR);
}

static void test_rank_and_generation_choose_the_process(void **state)
{
	(void)state;
	assert_int_equal(fate("b@1=kill", 0, 1), 10);
	assert_int_equal(fate("b@1=kill", 1, 5), 2000 + SIGKILL);
	assert_int_equal(fate("b@1.2=kill", 1, 1), 10);
	assert_int_equal(fate("b@1.2=kill", 1, 2), 2000 + SIGKILL);
	assert_int_equal(fate("b@-1=kill", -1, 1), 2000 + SIGKILL);
}

static void test_words_that_arm_nothing_end_the_process(void **state)
{
	static const char *const bad[] = {"b", "b=shoot", "b:0=kill", "=kill", "b=kill,x"};
	size_t i;

	(void)state;
	for (i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(fate(bad[i], 0, 1), EXIT_USAGE_ERR);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_unarmed_points_do_nothing),
		cmocka_unit_test(test_armed_points_act_at_their_pass),
		cmocka_unit_test(test_rank_and_generation_choose_the_process),
		cmocka_unit_test(test_words_that_arm_nothing_end_the_process),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
