/* One writer and three readers as threads on one mapping, joined by the bell; made for TSan. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "shm/bell.h"
#include "tests/unit/ring_box.h"

#define RECORDS 20000u
#define BYTES   8192u

struct stress {
	struct ring_box *box;
	struct bell_word data_word, space_word;
	struct bell_armed reader_armed[BOX_READERS], writer_armed;
	uint64_t spin_ns;
	bool copy; /* ring_pop() instead of peek and release */
};

struct reader {
	struct stress *s;
	int i;
	uint64_t records, garbage;
	int end; /* what ended it */
};

static struct bell_how how_of(const struct stress *s)
{
	return (struct bell_how){.spin_ns = s->spin_ns, .deadline = mono_now() + 60 * NS_PER_S};
}

static size_t size_of(uint64_t number)
{
	return number % 97 == 0 ? BYTES / 2 - 64 : number * 31 % 300;
}

static bool readable(void *reader)
{
	return ring_readable(reader);
}

struct room {
	const struct ring_writer *w;
	size_t bytes;
};

static bool writable(void *user)
{
	const struct room *room = user;

	return ring_writable(room->w, room->bytes);
}

static int take(struct reader *me, const uint8_t *bytes, size_t n)
{
	uint64_t number = me->records + 1;

	if (n != size_of(number) || !box_same(bytes, number, n))
		me->garbage++;
	me->records = number;
	return 0;
}

static int read_one(struct reader *me, uint8_t *buf)
{
	struct ring_reader *r = &me->s->box->readers[me->i];
	const void *at;
	size_t n;
	int ret;

	if (me->s->copy) {
		ret = ring_pop(r, buf, BYTES, &n);
		return ret < 0 ? ret : take(me, buf, n);
	}
	ret = ring_peek(r, &at, &n);
	if (ret < 0)
		return ret;
	ret = take(me, at, n);
	ring_release(r);
	return ret;
}

static void *run_reader(void *user)
{
	struct reader *me = user;
	struct stress *s = me->s;
	uint8_t *buf = malloc(BYTES);
	const struct bell_armed *const armed[] = {&s->writer_armed};
	int r;

	for (;;) {
		r = read_one(me, buf);
		if (r == 0) {
			bell_ring_word(&s->space_word, armed, 1, BELL_SPACE);
			continue;
		}
		if (r == -EAGAIN) {
			struct bell_how how = how_of(s);

			r = bell_wait(&s->data_word, &s->reader_armed[me->i], BELL_DATA, readable,
				&s->box->readers[me->i], &how);
		}
		if (r < 0)
			break;
	}
	me->end = r;
	free(buf);
	return NULL;
}

static int write_all(struct stress *s)
{
	const struct bell_armed *armed[BOX_READERS];
	struct ring_writer *w = &s->box->writer;
	uint64_t number;
	void *at;
	int i, r = 0;

	for (i = 0; i < BOX_READERS; i++)
		armed[i] = &s->reader_armed[i];
	for (number = 1; number <= RECORDS; number++) {
		struct room room = {w, size_of(number)};
		struct bell_how how = how_of(s);

		while ((r = ring_reserve(w, room.bytes, &at)) == -EAGAIN) {
			r = bell_wait(&s->space_word, &s->writer_armed, BELL_SPACE, writable, &room,
				&how);
			if (r < 0)
				return r;
		}
		if (r < 0)
			return r;
		box_fill(at, number, room.bytes);
		ring_commit(w, room.bytes);
		bell_ring_word(&s->data_word, armed, BOX_READERS, BELL_DATA);
	}
	ring_close_writer(w);
	bell_ring_word(&s->data_word, armed, BOX_READERS, BELL_DATA);
	return 0;
}

static void run(bool mirrored, bool copy, uint64_t spin_ns)
{
	struct stress *s = aligned_alloc(BELL_LINE, sizeof(*s));
	struct reader readers[BOX_READERS];
	pthread_t threads[BOX_READERS];
	int i;

	memset(s, 0, sizeof(*s));
	s->box = ring_box_new(BYTES, mirrored, BOX_READERS);
	s->copy = copy;
	s->spin_ns = spin_ns;
	for (i = 0; i < BOX_READERS; i++) {
		readers[i] = (struct reader){.s = s, .i = i};
		assert_int_equal(pthread_create(&threads[i], NULL, run_reader, &readers[i]), 0);
	}
	assert_int_equal(write_all(s), 0);
	for (i = 0; i < BOX_READERS; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_int_equal(readers[i].end, -EPIPE);
		assert_int_equal(readers[i].records, RECORDS);
		assert_int_equal(readers[i].garbage, 0);
	}
	ring_box_free(s->box);
	free(s);
}

static void test_three_readers_in_place_see_every_record(void **state)
{
	(void)state;
	run(false, false, 0);
}

static void test_three_readers_copying_see_every_record(void **state)
{
	(void)state;
	run(false, true, 0);
}

static void test_mirrored_ring_carries_the_same(void **state)
{
	(void)state;
	run(true, false, 0);
}

static void test_spinning_readers_see_every_record(void **state)
{
	(void)state;
	run(true, false, 2 * NS_PER_US);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_three_readers_in_place_see_every_record),
		cmocka_unit_test(test_three_readers_copying_see_every_record),
		cmocka_unit_test(test_mirrored_ring_carries_the_same),
		cmocka_unit_test(test_spinning_readers_see_every_record),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
