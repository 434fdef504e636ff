/* worker/pages.c: the plan keeps its promises for any memory, and the pools do not overlap. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "worker/pages.h"

/* Like a small model: 6 layers, 2 CSA, 2 HCA, bf16. */
static const struct pages_need small = {
	.bytes_per_page = {6 * 65536, 2 * (65536 + 16384), 2 * 65536},
	.window = 128,
	.sequences = 16,
	.step_tokens = 512,
	.context = 65536,
	.memory = 1ull << 40,
};

static uint64_t plan_bytes(const struct pages_plan *p)
{
	uint64_t bytes = 0;

	for (int c = 0; c < PAGE__COUNT; c++)
		bytes += (uint64_t)p->class[c].count * p->class[c].bytes_per_page;
	return bytes;
}

/* One sequence of the planned context can run, in steps as long as allowed. */
static void assert_one_fits(const struct pages_need *need, const struct pages_plan *p)
{
	assert_true(p->class[PAGE_RAW].count >= (need->window + need->step_tokens) / PAGE_ROWS + 2);
	for (int c = PAGE_CSA; c < PAGE__COUNT; c++)
		if (need->bytes_per_page[c])
			assert_true(p->class[c].count >= pages_for(c, p->context));
}

static void test_plan_with_room_serves_all_in_full(void **state)
{
	struct pages_plan p;

	(void)state;
	assert_int_equal(pages_make_plan(&small, &p, NULL), 0);
	assert_int_equal(p.context, 65536);
	assert_int_equal(p.class[PAGE_CSA].count, 16 * 256);
	assert_int_equal(p.class[PAGE_HCA].count, 16 * 8);
	assert_int_equal(p.class[PAGE_RAW].count, 16 * 4 + 8);
	assert_int_equal(p.bytes, plan_bytes(&p));
}

static void test_plan_never_exceeds_memory(void **state)
{
	struct pages_need need = small;
	struct pages_plan p;
	bool fitted = false;

	(void)state;
	for (uint64_t mib = 1; mib < 1200; mib += mib < 100 ? 1 : 37) {
		need.memory = mib << 20;
		need.context_auto = mib % 2;
		if (pages_make_plan(&need, &p, NULL) < 0) {
			assert_false(fitted && !need.context_auto && mib > 60);
			continue;
		}
		fitted = true;
		assert_int_equal(p.bytes, plan_bytes(&p));
		assert_true(p.bytes <= need.memory);
		assert_true(p.context <= need.context && p.context > 0);
		assert_one_fits(&need, &p);
	}
	assert_true(fitted);
}

static void test_plan_refuses_with_numbers(void **state)
{
	struct pages_need need = small;
	struct pages_plan p = {.context = 77};
	struct errbuf err = {0};

	(void)state;
	need.memory = 20ull << 20;
	assert_int_equal(pages_make_plan(&need, &p, &err), -ENOSPC);
	assert_int_equal(err.exit_code, EXIT_CONFIG_ERR);
	assert_non_null(strstr(err.text, "cache.memory"));
	assert_non_null(strstr(err.text, "65536"));
	assert_int_equal(p.context, 77);
	need.context_auto = true;
	assert_int_equal(pages_make_plan(&need, &p, &err), 0);
	assert_true(p.context < 65536 && p.context % 256 == 0);
	need.memory = 1 << 20;
	assert_int_equal(pages_make_plan(&need, &p, &err), -ENOSPC);
}

static void test_plan_without_compressed_layers_uses_raw_only(void **state)
{
	struct pages_need need = small;
	struct pages_plan p;

	(void)state;
	need.bytes_per_page[PAGE_CSA] = need.bytes_per_page[PAGE_HCA] = 0;
	need.memory = 8ull << 20;
	assert_int_equal(pages_make_plan(&need, &p, NULL), 0);
	assert_int_equal(p.context, 65536);
	assert_int_equal(p.class[PAGE_CSA].count, 0);
	assert_int_equal(p.class[PAGE_CSA].tokens_per_page, 0);
	assert_true(p.class[PAGE_RAW].count > 0);
}

static void test_pools_are_apart_and_zero(void **state)
{
	static const uint32_t layers[POOL__COUNT] = {3, 2, 1, 2};
	static const uint64_t page_bytes[POOL__COUNT] = {4096, 4096, 4096, 1024};
	const struct pages_plan plan = {.class = {{64, 5, 0}, {256, 7, 0}, {8192, 2, 0}}};
	struct pools pools;

	(void)state;
	assert_int_equal(pools_open(&plan, layers, page_bytes, &pools, NULL), 0);
	for (int k = 0; k < POOL__COUNT; k++)
		for (uint32_t i = 0; i < layers[k]; i++) {
			unsigned char *p = pool_layer(&pools.pool[k], i);

			for (uint64_t b = 0; b < pools.pool[k].layer_bytes; b++)
				assert_int_equal(p[b], 0);
			memset(p, 16 * k + (int)i + 1, pools.pool[k].layer_bytes);
		}
	for (int k = 0; k < POOL__COUNT; k++)
		for (uint32_t i = 0; i < layers[k]; i++) {
			unsigned char *p = pool_layer(&pools.pool[k], i);

			assert_int_equal(p[0], 16 * k + (int)i + 1);
			assert_int_equal(p[pools.pool[k].layer_bytes - 1], 16 * k + (int)i + 1);
		}
	pools_close(&pools);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plan_with_room_serves_all_in_full),
		cmocka_unit_test(test_plan_never_exceeds_memory),
		cmocka_unit_test(test_plan_refuses_with_numbers),
		cmocka_unit_test(test_plan_without_compressed_layers_uses_raw_only),
		cmocka_unit_test(test_pools_are_apart_and_zero),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
