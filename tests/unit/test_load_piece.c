/* How a slice is cut into pieces, and what is wrong with the values of one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/ckpt_fixture.h"
#include "worker/ckpt/load_piece.h"
#include "worker/ckpt/values.h"

/* Pieces follow each other, begin at whole groups, and add up to the item, scales counted once. */
static void test_pieces_tile_a_slice(void **state)
{
	uint64_t rng = fix_seed();

	(void)state;
	for (int i = 0; i < 3000; i++) {
		uint64_t chunk = 4096 * (1 + fix_random(&rng) % 8), first = 0, bytes = 0;
		struct plan_item it = {.elem = CKPT_F8_E4M3, .scale = CKPT_SCALE_E8M0};

		it.block = (struct tensor_block){i % 2 ? 128 : 1, 128};
		it.rows = 1 + fix_random(&rng) % 700;
		it.row0 = fix_random(&rng) % 300;
		it.cols = it.row_bytes = 1 + fix_random(&rng) % (i % 3 ? 100 : 40000);
		it.all_cols = it.cols + fix_random(&rng) % 5000;
		it.all_rows = it.row0 + it.rows;
		it.bytes = it.rows * it.row_bytes;
		it.scale_cols = 1 + fix_random(&rng) % 9;
		it.scale_row0 = it.row0 / it.block.rows;
		it.scale_rows = (it.row0 + it.rows - 1) / it.block.rows + 1 - it.scale_row0;
		it.scale_bytes = it.scale_rows * it.scale_cols;
		while (first < it.rows) {
			uint64_t n = MIN(load_piece_rows(&it, chunk), it.rows - first);
			struct plan_item part = load_piece_part(&it, first, n);

			assert_true(n > 0 && first % LOAD_ROWS == 0);
			assert_true(n * it.all_cols <= MAX(chunk, LOAD_ROWS * it.all_cols));
			assert_int_equal(part.row0, it.row0 + first);
			assert_int_equal(part.bytes, n * it.row_bytes);
			assert_int_equal(part.scale_row0, part.row0 / it.block.rows);
			assert_int_equal(part.scale_row0 + part.scale_rows - 1,
				(part.row0 + n - 1) / it.block.rows);
			assert_int_equal(part.scale_bytes, part.scale_rows * it.scale_cols);
			bytes += load_piece_bytes(&it, first, n);
			first += n;
		}
		assert_int_equal(first, it.rows);
		assert_int_equal(bytes, it.bytes + it.scale_bytes);
	}
}

static void test_values_are_judged_at_their_edges(void **state)
{
	uint8_t bytes[6] = {0, 254, 1, 127, 254, 254};
	float f[3] = {0, 1, 3.0e38F};
	int32_t ids[4] = {0, 7, 7, 0};

	(void)state;
	assert_int_equal(values_bad_scale(CKPT_SCALE_E8M0, bytes, 6), -1);
	bytes[5] = 255;
	assert_int_equal(values_bad_scale(CKPT_SCALE_E8M0, bytes, 6), 5);
	assert_int_equal(values_bad_scale(CKPT_SCALE_F32, f, 3), -1);
	f[2] = -1;
	assert_int_equal(values_bad_scale(CKPT_SCALE_F32, f, 3), 2);
	f[0] = __builtin_inff();
	assert_int_equal(values_bad_scale(CKPT_SCALE_F32, f, 3), 0);
	assert_int_equal(values_bad_ids(CKPT_I32, ids, 2, 2, 8), -1);
	assert_int_equal(values_bad_ids(CKPT_I32, ids, 2, 2, 7), 0);
	ids[2] = -1;
	assert_int_equal(values_bad_ids(CKPT_I32, ids, 2, 2, 8), 1);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pieces_tile_a_slice),
		cmocka_unit_test(test_values_are_judged_at_their_edges),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
