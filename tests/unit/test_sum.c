/* The checksum: the vector path is the plain one, and what must change it does. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "shm/sum.h"
#include "tests/unit/ring_box.h"

#define BYTES 1024u

static void fill(uint8_t *bytes, size_t n, uint64_t *seed)
{
	for (size_t i = 0; i < n; i++)
		bytes[i] = (uint8_t)(box_random(seed) >> 20);
}

static void test_blocks_are_the_same_with_and_without_vectors(void **state)
{
	uint64_t seed = box_seed();
	uint8_t bytes[BYTES + 8];

	(void)state;
	for (size_t blocks = 1; blocks <= BYTES / SUM_BLOCK; blocks++) {
		fill(bytes, sizeof(bytes), &seed);
		for (size_t off = 0; off < 8; off++)
			assert_int_equal(sum_blocks(bytes + off, blocks, seed),
				sum_blocks_plain(bytes + off, blocks, seed));
	}
}

static void test_each_flipped_bit_length_and_seed_changes_it(void **state)
{
	uint64_t seed = box_seed();
	uint8_t bytes[BYTES];

	(void)state;
	for (size_t n = 0; n <= 200; n++) {
		uint64_t sum;

		fill(bytes, sizeof(bytes), &seed);
		sum = sum_bytes(bytes, n, seed);
		for (size_t bit = 0; bit < n * 8; bit++) {
			bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
			assert_int_not_equal((uint32_t)sum, (uint32_t)sum_bytes(bytes, n, seed));
			bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
		}
		for (size_t bit = 0; bit < 64; bit++)
			assert_int_not_equal(sum, sum_bytes(bytes, n, seed ^ 1ull << bit));
		bytes[n] = 0; /* zeros at the end count */
		assert_int_not_equal(sum, sum_bytes(bytes, n + 1, seed));
	}
}

/* A line of another record in the place of this one's, or two that changed places. */
static void test_lines_in_other_places_change_it(void **state)
{
	uint64_t seed = box_seed();
	uint8_t bytes[BYTES], line[SUM_BLOCK];
	uint64_t sum;

	(void)state;
	fill(bytes, sizeof(bytes), &seed);
	sum = sum_bytes(bytes, sizeof(bytes), 1);
	for (size_t i = 0; i < BYTES; i += 8) {
		for (size_t k = 0; k < i; k += 8) {
			memcpy(line, bytes + i, 8);
			memcpy(bytes + i, bytes + k, 8);
			assert_int_not_equal(sum, sum_bytes(bytes, sizeof(bytes), 1));
			memcpy(bytes + k, line, 8);
			assert_int_not_equal(sum, sum_bytes(bytes, sizeof(bytes), 1));
			memcpy(bytes + k, bytes + i, 8);
			memcpy(bytes + i, line, 8);
		}
	}
	assert_int_equal(sum, sum_bytes(bytes, sizeof(bytes), 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_blocks_are_the_same_with_and_without_vectors),
		cmocka_unit_test(test_each_flipped_bit_length_and_seed_changes_it),
		cmocka_unit_test(test_lines_in_other_places_change_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
