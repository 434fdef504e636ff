#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/unit/ring_box.h"

#define BYTES 4096u

/* Each test runs on a mirrored and on a padded ring: *state points to the bool. */
static struct ring_box *new_box(void **state, uint32_t readers)
{
	return ring_box_new(BYTES, *(bool *)*state, readers);
}

static void push_ok(struct ring_box *b, uint64_t number, size_t bytes)
{
	uint8_t buf[BYTES];

	box_fill(buf, number, bytes);
	assert_int_equal(ring_push(&b->writer, buf, bytes), 0);
}

static void pop_ok(struct ring_box *b, int reader, uint64_t number, size_t bytes)
{
	const void *at;
	size_t n;

	assert_int_equal(ring_peek(&b->readers[reader], &at, &n), 0);
	assert_int_equal(n, bytes);
	assert_int_equal((uintptr_t)at % 16, 0);
	assert_true(box_same(at, number, n));
	ring_release(&b->readers[reader]);
}

static void assert_peek_fails(struct ring_box *b, int reader, int error)
{
	const void *at = b;
	uint8_t buf[BYTES];
	size_t n = 77;

	assert_int_equal(ring_peek(&b->readers[reader], &at, &n), error);
	assert_ptr_equal(at, b);
	assert_int_equal(n, 77);
	assert_int_equal(ring_pop(&b->readers[reader], buf, sizeof(buf), &n), error);
	assert_int_equal(n, 77);
}

static void test_init_refuses_bad_shapes(void **state)
{
	struct ring_box *b = new_box(state, 1);
	const struct ring_tail *tail = &b->tails[0];
	struct ring_data d = b->data;

	d.bytes = BYTES - 1;
	assert_int_equal(ring_writer_init(&b->writer, &d, &b->head, &tail, 1), -EINVAL);
	d.bytes = BYTES + 4096 + 1024;
	assert_int_equal(ring_reader_init(&b->readers[0], &d, &b->head, &b->tails[0]), -EINVAL);
	d.bytes = RING_BYTES_MAX * 2;
	assert_int_equal(ring_writer_init(&b->writer, &d, &b->head, &tail, 1), -EINVAL);
	d = b->data;
	d.base += 32;
	assert_int_equal(ring_reader_init(&b->readers[0], &d, &b->head, &b->tails[0]), -EINVAL);
	assert_int_equal(ring_writer_init(&b->writer, &b->data, &b->head, &tail, 0), -EINVAL);
	assert_int_equal(ring_writer_init(&b->writer, &b->data, &b->head, &tail, 65), -EINVAL);
	ring_box_free(b);
}

static void test_pop_empty_returns_eagain_and_epipe_once_closed(void **state)
{
	struct ring_box *b = new_box(state, 1);

	assert_peek_fails(b, 0, -EAGAIN);
	assert_false(ring_readable(&b->readers[0]));
	push_ok(b, 1, 10);
	assert_true(ring_readable(&b->readers[0]));
	ring_close_writer(&b->writer);
	pop_ok(b, 0, 1, 10);
	assert_peek_fails(b, 0, -EPIPE);
	assert_true(ring_readable(&b->readers[0]));
	ring_box_free(b);
}

/* Records of n bytes that fit a ring at once: each with a line of its own, and a free line behind.
 */
static uint64_t fits(size_t n)
{
	return (BYTES - RING_LINE) / (RING_LINE + n);
}

static void test_push_full_returns_eagain_until_released(void **state)
{
	struct ring_box *b = new_box(state, 1);
	uint64_t in = 0, out = 0;
	uint8_t buf[64];
	int round, r;

	for (round = 0; round < 100; round++) {
		for (;;) {
			box_fill(buf, in + 1, sizeof(buf));
			assert_true(ring_writable(&b->writer, sizeof(buf)) ==
				    (in - out < fits(sizeof(buf))));
			r = ring_push(&b->writer, buf, sizeof(buf));
			if (r == -EAGAIN)
				break;
			assert_int_equal(r, 0);
			in++;
		}
		/* 64 + 64 = 128 divides the ring: both kinds hold the same number */
		assert_int_equal(in - out, fits(sizeof(buf)));
		assert_int_equal(ring_writer_backlog(&b->writer), (in - out) * 128);
		assert_int_equal(ring_reader_backlog(&b->readers[0]), (in - out) * 128);
		for (r = 0; r <= round % 31; r++)
			pop_ok(b, 0, ++out, sizeof(buf));
	}
	ring_box_free(b);
}

static void test_every_size_comes_back(void **state)
{
	struct ring_box *b = new_box(state, 1);
	uint64_t number = 0;
	size_t bytes;

	assert_int_equal(ring_record_max(BYTES), BYTES / 2 - 64);
	for (bytes = 0; bytes <= ring_record_max(BYTES); bytes++) {
		number++;
		push_ok(b, number, bytes);
		pop_ok(b, 0, number, bytes);
	}
	ring_box_free(b);
}

static void test_wrap_at_every_offset_is_contiguous(void **state)
{
	static const size_t sizes[] = {
		0, 1, 15, 47, 48, 49, 64, 65, 240, 1000, BYTES / 2 - 65, BYTES / 2 - 64};
	uint64_t offset, i;
	size_t k;

	for (offset = 0; offset < BYTES; offset += RING_LINE) {
		struct ring_box *b = new_box(state, 1);
		uint64_t number = 0;

		for (i = 0; i < offset; i += RING_LINE) {
			number++;
			push_ok(b, number, 0);
			pop_ok(b, 0, number, 0);
		}
		assert_int_equal(b->writer.pos, offset);
		for (k = 0; k < ARRAY_LEN(sizes); k++) {
			number++;
			push_ok(b, number, sizes[k]);
			pop_ok(b, 0, number, sizes[k]);
		}
		ring_box_free(b);
	}
}

static void test_larger_than_the_ring_returns_emsgsize(void **state)
{
	struct ring_box *b = new_box(state, 1);
	static const size_t sizes[] = {BYTES / 2 - 63, BYTES, BYTES * 2, SIZE_MAX - 15, SIZE_MAX};
	void *at = b;
	size_t i;

	for (i = 0; i < ARRAY_LEN(sizes); i++) {
		assert_int_equal(ring_reserve(&b->writer, sizes[i], &at), -EMSGSIZE);
		assert_ptr_equal(at, b);
		assert_true(ring_writable(&b->writer, sizes[i]));
	}
	ring_box_free(b);
}

static void test_reservation_is_invisible_until_committed(void **state)
{
	struct ring_box *b = new_box(state, 1);
	void *at;
	int i;

	for (i = 0; i < 3; i++) {
		assert_int_equal(ring_reserve(&b->writer, 1000, &at), 0);
		memset(at, 0x77, 1000);
		assert_peek_fails(b, 0, -EAGAIN);
	}
	box_fill(at, 1, 9);
	ring_commit(&b->writer, 9);
	pop_ok(b, 0, 1, 9);
	assert_peek_fails(b, 0, -EAGAIN);
	/* dropped where the record would not have been contiguous */
	for (i = 2; i < 190; i++) {
		push_ok(b, (uint64_t)i, 0);
		pop_ok(b, 0, (uint64_t)i, 0);
	}
	assert_int_equal(ring_reserve(&b->writer, 1900, &at), 0);
	assert_peek_fails(b, 0, -EAGAIN);
	push_ok(b, 190, 50);
	pop_ok(b, 0, 190, 50);
	ring_box_free(b);
}

static void test_slow_reader_holds_the_writer_not_its_peers(void **state)
{
	struct ring_box *b = new_box(state, 3);
	uint64_t n = 0, i;
	uint8_t buf[192] = {0};

	for (;;) {
		box_fill(buf, n + 1, sizeof(buf));
		if (ring_push(&b->writer, buf, sizeof(buf)) < 0)
			break;
		n++;
		pop_ok(b, 0, n, sizeof(buf));
		pop_ok(b, 2, n, sizeof(buf));
	}
	assert_int_equal(n, fits(sizeof(buf)));
	assert_peek_fails(b, 0, -EAGAIN);
	pop_ok(b, 1, 1, sizeof(buf));
	push_ok(b, n + 1, sizeof(buf));
	for (i = 2; i <= n + 1; i++)
		pop_ok(b, 1, i, sizeof(buf));
	pop_ok(b, 0, n + 1, sizeof(buf));
	ring_box_free(b);
}

static void test_gone_reader_gives_epipe_only_when_it_is_in_the_way(void **state)
{
	struct ring_box *b = new_box(state, 2);
	uint8_t buf[192] = {0};
	uint64_t n = 0;
	int r;

	ring_close_reader(&b->readers[1]);
	while ((r = ring_push(&b->writer, buf, sizeof(buf))) == 0)
		n++;
	assert_int_equal(r, -EPIPE);
	assert_int_equal(n, fits(sizeof(buf)));
	assert_true(ring_writable(&b->writer, sizeof(buf)));
	ring_box_free(b);
}

static void test_pop_into_small_buffer_returns_emsgsize_and_keeps_the_record(void **state)
{
	struct ring_box *b = new_box(state, 1);
	uint8_t buf[64];
	size_t n = 0;

	push_ok(b, 1, 65);
	assert_int_equal(ring_pop(&b->readers[0], buf, sizeof(buf), &n), -EMSGSIZE);
	assert_int_equal(n, 65);
	pop_ok(b, 0, 1, 65);
	push_ok(b, 2, 64);
	assert_int_equal(ring_pop(&b->readers[0], buf, sizeof(buf), &n), 0);
	assert_int_equal(n, 64);
	assert_true(box_same(buf, 2, 64));
	ring_box_free(b);
}

/* Beside the header, and behind it. */
static void test_each_flipped_bit_returns_ebadmsg(void **state)
{
	static const size_t sizes[] = {45, 100};
	size_t i, bit;

	for (i = 0; i < ARRAY_LEN(sizes); i++) {
		size_t begin = sizes[i] > RING_INLINE ? RING_LINE : sizeof(struct ring_record);

		for (bit = 0; bit < (begin + sizes[i]) * 8; bit++) {
			struct ring_box *b;

			if (bit / 8 >= sizeof(struct ring_record) && bit / 8 < begin)
				continue;
			b = new_box(state, 1);
			push_ok(b, 1, sizes[i]);
			push_ok(b, 2, sizes[i]);
			b->data.base[bit / 8] ^= (uint8_t)(1u << bit % 8);
			assert_peek_fails(b, 0, -EBADMSG);
			assert_peek_fails(b, 0, -EBADMSG);
			assert_int_equal(atomic_load(&b->tails[0].pos), 0);
			ring_box_free(b);
		}
	}
}

static struct ring_record *record_of(struct ring_box *b, uint64_t pos)
{
	return (struct ring_record *)(b->data.base + pos % BYTES);
}

static void test_published_but_never_written_returns_ebadmsg(void **state)
{
	struct ring_box *b = new_box(state, 1);
	uint64_t i;

	/* poison */
	atomic_store(&record_of(b, 0)->mark, RING_MARK(1));
	assert_peek_fails(b, 0, -EBADMSG);
	ring_box_free(b);

	/* a whole record of the lap before */
	b = new_box(state, 1);
	for (i = 1; i <= BYTES / 128; i++) {
		push_ok(b, i, 64);
		pop_ok(b, 0, i, 64);
	}
	assert_int_equal(b->writer.pos, BYTES);
	atomic_store(&record_of(b, BYTES)->mark, RING_MARK(i));
	assert_peek_fails(b, 0, -EBADMSG);
	ring_box_free(b);
}

/* What lies in the ring from before may look like anything, like the mark of the next record, too.
 */
static void test_old_bytes_are_never_taken_for_a_record(void **state)
{
	struct ring_box *b = new_box(state, 1);
	size_t bytes, i, n;
	uint64_t number;
	void *at;

	for (bytes = 0; bytes <= 1000; bytes++) {
		assert_int_equal(ring_reserve(&b->writer, 1500, &at), 0);
		/* a wrap takes a number for the padding */
		number = b->writer.number + (b->writer.pad ? 2 : 1);
		for (i = 0; i < 1500 / 8; i++)
			((uint64_t *)at)[i] = RING_MARK(number + 1);
		ring_commit(&b->writer, bytes);
		assert_int_equal(b->writer.number, number);
		assert_int_equal(ring_peek(&b->readers[0], (const void **)&at, &n), 0);
		assert_int_equal(n, bytes);
		ring_release(&b->readers[0]);
		assert_false(ring_readable(&b->readers[0]));
		assert_peek_fails(b, 0, -EAGAIN);
	}
	ring_box_free(b);
}

static void test_impossible_mark_returns_ebadmsg(void **state)
{
	static const uint64_t marks[] = {
		1, 2, 3, RING_MARK(1), RING_MARK(3), 1ull << 63, UINT64_MAX};
	size_t i;

	for (i = 0; i < ARRAY_LEN(marks); i++) {
		struct ring_box *b = new_box(state, 1);

		push_ok(b, 1, 16);
		pop_ok(b, 0, 1, 16);
		push_ok(b, 2, 16);
		atomic_store(&record_of(b, 64)->mark, marks[i]);
		assert_true(ring_readable(&b->readers[0]));
		assert_peek_fails(b, 0, -EBADMSG);
		/* nothing but a number for people is taken from the head */
		atomic_store(&b->head.pos, marks[i]);
		assert_true(ring_reader_backlog(&b->readers[0]) <= BYTES);
		ring_box_free(b);
	}
}

static void test_impossible_length_returns_ebadmsg(void **state)
{
	static const uint32_t lengths[] = {
		0, 95, 97, BYTES / 2 - 64, BYTES / 2 - 63, BYTES, 1u << 31, RING_PAD - 1, RING_PAD};
	size_t i;

	for (i = 0; i < ARRAY_LEN(lengths); i++) {
		struct ring_box *b = new_box(state, 1);

		push_ok(b, 1, 96);
		atomic_store(&record_of(b, 0)->bytes, lengths[i]);
		assert_peek_fails(b, 0, -EBADMSG);
		ring_box_free(b);
	}
}

/* Padding as it should be, but where nothing is to be skipped: a reader must not go round for it.
 */
static void test_padding_of_a_whole_lap_returns_ebadmsg(void **state)
{
	struct ring_box *padded = ring_box_new(BYTES, false, 1), *b = new_box(state, 1);
	uint64_t i;

	/* a writer's own padding, moved to the beginning of a ring where its number is expected */
	for (i = 1; i <= BYTES / RING_LINE - 2; i++) {
		push_ok(padded, i, 0);
		pop_ok(padded, 0, i, 0);
	}
	push_ok(padded, i, 200);
	assert_int_equal(record_of(padded, BYTES - 128)->bytes, RING_PAD);
	b->readers[0].number = i - 1;
	memcpy(record_of(b, 0), record_of(padded, BYTES - 128), sizeof(struct ring_record));
	assert_peek_fails(b, 0, -EBADMSG);
	ring_box_free(padded);
	ring_box_free(b);
}

static void test_impossible_tail_returns_ebadmsg(void **state)
{
	static const uint64_t tails[] = {1, 0, 64, 272, 288, UINT64_MAX, BYTES * 4};
	uint8_t buf[192] = {0};
	size_t i, k;
	void *at;

	for (i = 0; i < ARRAY_LEN(tails); i++) {
		struct ring_box *b = new_box(state, 2);

		/* both readers are known to be at 256 before one lies */
		for (k = 0; k < fits(sizeof(buf)); k++)
			assert_int_equal(ring_push(&b->writer, buf, sizeof(buf)), 0);
		atomic_store(&b->tails[0].pos, 256);
		atomic_store(&b->tails[1].pos, 256);
		assert_int_equal(ring_push(&b->writer, buf, sizeof(buf)), 0);
		atomic_store(&b->tails[1].pos, tails[i] == 272 ? b->writer.pos + 64 : tails[i]);
		assert_int_equal(ring_reserve(&b->writer, sizeof(buf), &at), -EBADMSG);
		assert_int_equal(ring_reserve(&b->writer, sizeof(buf), &at), -EBADMSG);
		ring_box_free(b);
	}
}

/* Three readers at their own pace against a writer, held to what was pushed. */
static void test_random_traffic_arrives_in_order(void **state)
{
	uint64_t seed = box_seed(), in = 0, out[BOX_READERS] = {0};
	struct ring_box *b = new_box(state, BOX_READERS);
	static size_t sizes[65536];
	uint8_t buf[BYTES];
	size_t n;
	int i, r;

	for (i = 0; i < 60000; i++) {
		uint64_t dice = box_random(&seed);
		int who = (int)(dice % 4);

		if (who == BOX_READERS) {
			n = (dice >> 8) % 5 ? (dice >> 16) % 200
					    : (dice >> 16) % (ring_record_max(BYTES) + 1);
			box_fill(buf, in + 1, n);
			r = ring_push(&b->writer, buf, n);
			assert_true(r == 0 || r == -EAGAIN);
			if (r == 0)
				sizes[++in % ARRAY_LEN(sizes)] = n;
		} else if (out[who] < in) {
			out[who]++;
			if (dice & 256) {
				pop_ok(b, who, out[who], sizes[out[who]]);
				continue;
			}
			assert_int_equal(ring_pop(&b->readers[who], buf, sizeof(buf), &n), 0);
			assert_int_equal(n, sizes[out[who]]);
			assert_true(box_same(buf, out[who], n));
		} else {
			assert_peek_fails(b, who, -EAGAIN);
		}
	}
	assert_true(in > 1000);
	ring_box_free(b);
}

/* Random damage to memory that a reader sees: it may refuse or return what was written, nothing
 * else, and it must stay within the ring (ASan, and the guard below). */
static void test_damaged_memory_is_refused_or_harmless(void **state)
{
	uint64_t seed = box_seed();
	int round, i;

	for (round = 0; round < 3000; round++) {
		struct ring_box *b = new_box(state, 1);
		uint8_t buf[BYTES];
		uint64_t number = 0;
		size_t n;

		for (i = 0; i < 8; i++)
			push_ok(b, (uint64_t)i + 1, box_random(&seed) % 300);
		for (i = 0; i < 4; i++)
			b->data.base[box_random(&seed) % 2500] = (uint8_t)box_random(&seed);
		if (round % 4 == 0)
			atomic_store(&record_of(b, box_random(&seed) % 40 * 64)->mark,
				RING_MARK(box_random(&seed) % 9));
		while (ring_pop(&b->readers[0], buf, sizeof(buf), &n) == 0)
			assert_true(box_same(buf, ++number, n));
		assert_true(number <= 8);
		ring_box_free(b);
	}
}

static void test_forged_record_across_the_end_returns_ebadmsg(void **state)
{
	struct ring_box *b = ring_box_new(BYTES, false, 1);
	uint64_t i;

	(void)state;
	for (i = 1; i <= BYTES / RING_LINE - 2; i++) {
		push_ok(b, i, 0);
		pop_ok(b, 0, i, 0);
	}
	/* two lines are left: a record that claims more would be read past the memory */
	push_ok(b, i, 16);
	atomic_store(&record_of(b, BYTES - 128)->bytes, 200);
	assert_peek_fails(b, 0, -EBADMSG);
	ring_box_free(b);
}

#define BOTH(f)                                                                                    \
	{#f " (mirrored)", f, NULL, NULL, &mirrored},                                              \
	{                                                                                          \
#f " (padded)", f, NULL, NULL, &padded                                             \
	}

int main(void)
{
	static bool mirrored = true, padded = false;
	const struct CMUnitTest tests[] = {
		BOTH(test_init_refuses_bad_shapes),
		BOTH(test_pop_empty_returns_eagain_and_epipe_once_closed),
		BOTH(test_push_full_returns_eagain_until_released),
		BOTH(test_every_size_comes_back),
		BOTH(test_wrap_at_every_offset_is_contiguous),
		BOTH(test_larger_than_the_ring_returns_emsgsize),
		BOTH(test_reservation_is_invisible_until_committed),
		BOTH(test_slow_reader_holds_the_writer_not_its_peers),
		BOTH(test_gone_reader_gives_epipe_only_when_it_is_in_the_way),
		BOTH(test_pop_into_small_buffer_returns_emsgsize_and_keeps_the_record),
		BOTH(test_each_flipped_bit_returns_ebadmsg),
		BOTH(test_published_but_never_written_returns_ebadmsg),
		BOTH(test_old_bytes_are_never_taken_for_a_record),
		BOTH(test_impossible_mark_returns_ebadmsg),
		BOTH(test_impossible_length_returns_ebadmsg),
		BOTH(test_padding_of_a_whole_lap_returns_ebadmsg),
		BOTH(test_impossible_tail_returns_ebadmsg),
		BOTH(test_random_traffic_arrives_in_order),
		BOTH(test_damaged_memory_is_refused_or_harmless),
		cmocka_unit_test(test_forged_record_across_the_end_returns_ebadmsg),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
