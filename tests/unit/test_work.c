/* The pool of threads behind the loop, alone and through the loop. Run under TSan too. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "coordinator/loop.h"

enum { JOBS = 5000 };

struct job {
	struct loop_work work;
	struct test *test;
	uint64_t in, out;
	pthread_t thread;
};

struct test {
	struct loop *loop;
	size_t left, done, order_errors, next;
	struct job *jobs;
};

static void square(void *user)
{
	struct job *j = user;

	j->out = j->in * j->in;
	j->thread = pthread_self();
}

static void squared(void *user)
{
	struct job *j = user;

	assert_int_equal(j->out, j->in * j->in);
	assert_false(pthread_equal(j->thread, pthread_self()));
	j->test->done++;
	if (j->in != j->test->next++)
		j->test->order_errors++;
	if (--j->test->left == 0)
		loop_stop(j->test->loop);
}

static struct test *setup(uint32_t threads, size_t jobs)
{
	struct test *t = calloc(1, sizeof(*t));
	struct errbuf err = {0};

	assert_non_null(t);
	t->jobs = calloc(jobs, sizeof(*t->jobs));
	if (loop_new(64, &t->loop, &err) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(loop_work_start(t->loop, threads), 0);
	for (size_t i = 0; i < jobs; i++)
		t->jobs[i] =
			(struct job){.work = {.run = square, .done = squared, .user = &t->jobs[i]},
				.test = t,
				.in = i};
	t->left = jobs;
	return t;
}

static void teardown(struct test *t)
{
	loop_free(t->loop);
	free(t->jobs);
	free(t);
}

static void test_each_job_runs_and_is_done_once(void **state)
{
	for (uint32_t threads = 1; threads <= 4; threads++) {
		struct test *t = setup(threads, JOBS);

		for (size_t i = 0; i < JOBS; i++)
			loop_work_queue(t->loop, &t->jobs[i].work);
		assert_int_equal(loop_run(t->loop), 0);
		assert_int_equal(t->done, JOBS);
		if (threads == 1)
			assert_int_equal(t->order_errors, 0);
		teardown(t);
	}
}

static void squared_again(void *user)
{
	struct job *j = user;

	if (++j->in < 200)
		loop_work_queue(j->test->loop, &j->work);
	else
		squared(user);
}

static void cube_start(void *user)
{
	struct job *j = user;

	j->out = (j->in + 1) * (j->in + 1); /* what squared() expects after the last ++ */
	j->thread = pthread_self();
}

static void test_done_may_queue_the_same_work_again(void **state)
{
	struct test *t = setup(2, 3);

	for (size_t i = 0; i < 3; i++) {
		t->jobs[i].work.run = cube_start;
		t->jobs[i].work.done = squared_again;
		loop_work_queue(t->loop, &t->jobs[i].work);
	}
	assert_int_equal(loop_run(t->loop), 0);
	assert_int_equal(t->done, 3);
	teardown(t);
}

static void look_at_mask(void *user)
{
	struct job *j = user;
	sigset_t mask;

	pthread_sigmask(SIG_BLOCK, NULL, &mask);
	j->out = (uint64_t)(sigismember(&mask, SIGTERM) == 1 && sigismember(&mask, SIGHUP) == 1 &&
			    sigismember(&mask, SIGUSR1) == 1);
	j->thread = pthread_self();
}

static void test_signals_are_blocked_in_the_threads(void **state)
{
	struct test *t = setup(1, 1);
	sigset_t mask;

	t->jobs[0].in = 1;
	t->jobs[0].work.run = look_at_mask;
	loop_work_queue(t->loop, &t->jobs[0].work);
	assert_int_equal(loop_run(t->loop), 0);
	pthread_sigmask(SIG_BLOCK, NULL, &mask);
	assert_int_equal(sigismember(&mask, SIGTERM), 0); /* and ours is as it was */
	teardown(t);
}

struct gate {
	pthread_mutex_t lock;
	pthread_cond_t change;
	bool entered, open;
};

static void wait_at_gate(void *user)
{
	struct gate *g = user;

	pthread_mutex_lock(&g->lock);
	g->entered = true;
	pthread_cond_broadcast(&g->change);
	while (!g->open)
		pthread_cond_wait(&g->change, &g->lock);
	pthread_mutex_unlock(&g->lock);
}

static void never(void *user)
{
	abort();
}

static void *open_gate(void *user)
{
	struct gate *g = user;

	pthread_mutex_lock(&g->lock);
	g->open = true;
	pthread_cond_broadcast(&g->change);
	pthread_mutex_unlock(&g->lock);
	return NULL;
}

/* loop_free() waits for what runs, drops what waits, and calls no done(). */
static void test_free_with_work_left_is_clean(void **state)
{
	struct gate g = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};
	struct loop_work running = {.run = wait_at_gate, .done = never, .user = &g};
	struct loop_work waiting = {.run = never, .done = never};
	struct loop *loop;
	pthread_t opener;

	assert_int_equal(loop_new(8, &loop, NULL), 0);
	assert_int_equal(loop_work_start(loop, 1), 0);
	loop_work_queue(loop, &running);
	pthread_mutex_lock(&g.lock);
	while (!g.entered)
		pthread_cond_wait(&g.change, &g.lock);
	pthread_mutex_unlock(&g.lock);
	/* the gate opens either side of the free: the queued one may start only before `quit` */
	waiting.run = wait_at_gate;
	waiting.user = &g;
	loop_work_queue(loop, &waiting);
	assert_int_equal(pthread_create(&opener, NULL, open_gate, &g), 0);
	assert_null(loop_free(loop));
	assert_true(g.open);
	pthread_join(opener, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_job_runs_and_is_done_once),
		cmocka_unit_test(test_done_may_queue_the_same_work_again),
		cmocka_unit_test(test_signals_are_blocked_in_the_threads),
		cmocka_unit_test(test_free_with_work_left_is_clean),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
