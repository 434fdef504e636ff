/* The heap of timers against a sorted list, with random insertions, moves and removals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/timer.h"

enum { N = 600 };

static struct loop_timer *earliest(struct loop_timer *t, size_t n)
{
	struct loop_timer *first = NULL;

	for (size_t i = 0; i < n; i++)
		if (t[i].when && (!first || t[i].when < first->when))
			first = &t[i];
	return first;
}

static void expect_same(const struct timer_heap *h, struct loop_timer *t, size_t n)
{
	struct loop_timer *first = earliest(t, n);

	if (!first) {
		assert_null(h->root);
		return;
	}
	assert_non_null(h->root);
	assert_int_equal(h->root->when, first->when);
	assert_null(h->root->prev);
	assert_null(h->root->next);
}

static void test_empty_heap_has_no_first(void **state)
{
	struct timer_heap h = {0};
	struct loop_timer t = {.when = 5};

	timer_insert(&h, &t);
	assert_ptr_equal(h.root, &t);
	timer_remove(&h, &t);
	assert_null(h.root);
}

static void test_random_changes_keep_the_order(void **state)
{
	struct loop_timer t[N] = {0};
	struct timer_heap h = {0};
	unsigned seed = (unsigned)time(NULL) ^ (unsigned)getpid();

	print_message("seed %u\n", seed);
	srand(seed);
	for (int round = 0; round < 20000; round++) {
		struct loop_timer *x = &t[rand() % N];

		if (x->when)
			timer_remove(&h, x);
		x->when = 0;
		if (rand() % 3) {
			/* few distinct times: ties matter */
			x->when = 1 + (mono_ns_t)(rand() % (rand() % 2 ? 10 : 100000));
			timer_insert(&h, x);
		}
		if (round % 16 == 0)
			expect_same(&h, t, N);
	}
	for (mono_ns_t last = 0; h.root;) {
		struct loop_timer *x = h.root;

		expect_same(&h, t, N);
		assert_true(x->when >= last);
		last = x->when;
		timer_remove(&h, x);
		x->when = 0;
	}
	assert_null(earliest(t, N));
}

/* The worst shapes: all in order, all in reverse; deep recursion would run out of stack. */
static void test_many_in_order_come_out_in_order(void **state)
{
	enum { MANY = 200000 };
	struct loop_timer *t = calloc(MANY, sizeof(*t));
	struct timer_heap h = {0};

	assert_non_null(t);
	for (int reverse = 0; reverse < 2; reverse++) {
		for (size_t i = 0; i < MANY; i++) {
			t[i].when = reverse ? MANY - i : i + 1;
			timer_insert(&h, &t[i]);
		}
		for (mono_ns_t want = 1; want <= MANY; want++) {
			assert_int_equal(h.root->when, want);
			timer_remove(&h, h.root);
		}
		assert_null(h.root);
	}
	free(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_empty_heap_has_no_first),
		cmocka_unit_test(test_random_changes_keep_the_order),
		cmocka_unit_test(test_many_in_order_come_out_in_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
