#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "coordinator/queue.h"

static void test_push_over_the_limit_returns_eagain(void **state)
{
	struct queue q;
	struct queue_item items[5];

	(void)state;
	queue_init(&q, 3, 100);
	assert_int_equal(queue_push(&q, &items[0], 1), 0);
	assert_int_equal(queue_push(&q, &items[1], 1), 0);
	assert_int_equal(queue_push(&q, &items[2], 1), 0);
	assert_int_equal(queue_push(&q, &items[3], 1), -EAGAIN);
	queue_push_front(&q, &items[3], 1); /* what ran before has its place */
	assert_ptr_equal(queue_peek(&q), &items[3]);
	assert_int_equal(q.count, 4);
	queue_remove(&q, &items[1]);
	assert_int_equal(queue_new(&q), 2); /* and takes nobody else's */
	assert_int_equal(queue_push(&q, &items[1], 1), 0);
	assert_int_equal(queue_push(&q, &items[4], 1), -EAGAIN);
	queue_remove(&q, &items[3]);
	assert_int_equal(queue_new(&q), 3);
	assert_int_equal(queue_push(&q, &items[3], 1), -EAGAIN);
}

static void test_oldest_is_the_longest_wait_of_any(void **state)
{
	struct queue q;
	struct queue_item a, b, front[2];

	(void)state;
	queue_init(&q, 5, 100);
	assert_int_equal(queue_oldest(&q), 0);
	queue_push_front(&q, &front[0], 20);
	assert_int_equal(queue_oldest(&q), 20);
	queue_push_front(&q, &front[1], 30);
	assert_int_equal(queue_oldest(&q), 20);
	assert_int_equal(queue_push(&q, &a, 40), 0);
	assert_int_equal(queue_oldest(&q), 20);
	queue_remove(&q, &front[0]);
	assert_int_equal(queue_oldest(&q), 30);
	queue_remove(&q, &front[1]);
	assert_int_equal(queue_push(&q, &b, 50), 0);
	assert_int_equal(queue_oldest(&q), 40);
	queue_push_front(&q, &front[0], 60); /* new in front of an old one */
	assert_int_equal(queue_oldest(&q), 40);
}

static void test_remove_from_anywhere_keeps_the_order(void **state)
{
	struct queue q;
	struct queue_item items[5];
	int i;

	(void)state;
	queue_init(&q, 5, 100);
	for (i = 0; i < 5; i++)
		assert_int_equal(queue_push(&q, &items[i], (mono_ns_t)i), 0);
	queue_remove(&q, &items[2]);
	queue_remove(&q, &items[2]); /* again: nothing happens */
	queue_remove(&q, &items[0]);
	queue_remove(&q, &items[4]);
	assert_int_equal(q.count, 2);
	assert_ptr_equal(queue_peek(&q), &items[1]);
	queue_remove(&q, &items[1]);
	assert_ptr_equal(queue_peek(&q), &items[3]);
	queue_remove(&q, &items[3]);
	assert_null(queue_peek(&q));
	assert_int_equal(queue_push(&q, &items[0], 9), 0);
	assert_ptr_equal(q.tail, &items[0]);
}

static void test_expiry_is_by_age_and_spares_the_front(void **state)
{
	struct queue q;
	struct queue_item a, b, front;

	(void)state;
	queue_init(&q, 5, 100);
	assert_int_equal(queue_deadline(&q), 0);
	assert_int_equal(queue_push(&q, &a, 10), 0);
	assert_int_equal(queue_push(&q, &b, 20), 0);
	queue_push_front(&q, &front, 5);
	assert_int_equal(queue_deadline(&q), 110);
	assert_null(queue_expired(&q, 109));
	assert_ptr_equal(queue_expired(&q, 110), &a);
	queue_remove(&q, &a);
	assert_null(queue_expired(&q, 110));
	assert_ptr_equal(queue_expired(&q, 120), &b);
	queue_remove(&q, &b);
	assert_null(queue_expired(&q, 1000));
	assert_int_equal(queue_deadline(&q), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_push_over_the_limit_returns_eagain),
		cmocka_unit_test(test_oldest_is_the_longest_wait_of_any),
		cmocka_unit_test(test_remove_from_anywhere_keeps_the_order),
		cmocka_unit_test(test_expiry_is_by_age_and_spares_the_front),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
