#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/pages.h"
#include "tests/unit/sim.h"

static const struct page_class_info info[PAGE__COUNT] = {{64, 5, 1}, {256, 3, 1}, {0, 9, 1}};

static void test_grant_until_empty_then_enospc(void **state)
{
	struct pages p;
	int64_t i;

	(void)state;
	assert_int_equal(pages_init(&p, info, NULL), 0);
	for (i = 0; i < 5; i++)
		assert_int_equal(pages_grant(&p, PAGE_RAW), i);
	assert_int_equal(pages_grant(&p, PAGE_RAW), -ENOSPC);
	assert_int_equal(pages_grant(&p, PAGE_CSA), 0);       /* classes count apart */
	assert_int_equal(pages_grant(&p, PAGE_HCA), -ENOSPC); /* unused class */
	pages_fini(&p);
}

static void test_page_let_go_is_free_only_when_settled(void **state)
{
	struct pages p;
	int64_t id;
	int i;

	(void)state;
	assert_int_equal(pages_init(&p, info, NULL), 0);
	for (i = 0; i < 5; i++)
		id = pages_grant(&p, PAGE_RAW);
	pages_unref(&p, PAGE_RAW, (uint32_t)id);
	assert_int_equal(pages_grant(&p, PAGE_RAW), -ENOSPC);
	pages_settle(&p);
	assert_int_equal(pages_grant(&p, PAGE_RAW), id);
	pages_fini(&p);
}

static void test_pinned_page_survives_its_first_holder(void **state)
{
	struct pages p;
	uint32_t id;

	(void)state;
	assert_int_equal(pages_init(&p, info, NULL), 0);
	id = (uint32_t)pages_grant(&p, PAGE_CSA);
	pages_ref(&p, PAGE_CSA, id);
	pages_unref(&p, PAGE_CSA, id);
	pages_settle(&p);
	assert_false(pages_idle(&p));
	assert_int_equal(p.cls[PAGE_CSA].free_n, 2);
	pages_unref(&p, PAGE_CSA, id);
	assert_true(pages_idle(&p));
	pages_settle(&p);
	assert_int_equal(p.cls[PAGE_CSA].free_n, 3);
	pages_fini(&p);
}

static void test_pages_for_positions(void **state)
{
	struct pages p;

	(void)state;
	assert_int_equal(pages_init(&p, info, NULL), 0);
	assert_int_equal(pages_for(&p, PAGE_RAW, 0), 0);
	assert_int_equal(pages_for(&p, PAGE_RAW, 1), 1);
	assert_int_equal(pages_for(&p, PAGE_RAW, 64), 1);
	assert_int_equal(pages_for(&p, PAGE_RAW, 65), 2);
	assert_int_equal(pages_for(&p, PAGE_HCA, 1000), 0);
	pages_fini(&p);
}

static void test_init_refuses_nonsense_counts(void **state)
{
	struct page_class_info bad[PAGE__COUNT];
	struct pages p;
	struct errbuf err;

	(void)state;
	memcpy(bad, info, sizeof(bad));
	bad[PAGE_CSA].count = UINT32_MAX;
	assert_int_equal(pages_init(&p, bad, &err), -EINVAL);
	assert_non_null(strstr(err.text, "4294967295"));
	memcpy(bad, info, sizeof(bad));
	bad[PAGE_RAW].tokens_per_page = 0;
	assert_int_equal(pages_init(&p, bad, &err), -EINVAL);
}

/* Random grants, pins and releases against a plain count of holders. */
static void test_random_holders_end_with_all_pages_free(void **state)
{
	struct page_class_info many[PAGE__COUNT] = {{64, 50, 1}, {256, 20, 1}, {8192, 2, 1}};
	struct sim_rng r = {sim_seed(__func__) | 1};
	uint32_t holders[PAGE__COUNT][50] = {{0}}, i;
	struct pages p;
	int c;

	(void)state;
	assert_int_equal(pages_init(&p, many, NULL), 0);
	for (i = 0; i < 200000; i++) {
		uint32_t id;

		c = (int)sim_rand(&r, PAGE__COUNT);
		id = sim_rand(&r, many[c].count);
		if (sim_rand(&r, 3) == 0) {
			int64_t got = pages_grant(&p, c);

			assert_true(got < 0 || holders[c][got] == 0);
			if (got >= 0)
				holders[c][got] = 1;
		} else if (holders[c][id] > 0 && sim_rand(&r, 3) == 0) {
			pages_ref(&p, c, id);
			holders[c][id]++;
		} else if (holders[c][id] > 0) {
			pages_unref(&p, c, id);
			holders[c][id]--;
		} else {
			pages_settle(&p);
		}
	}
	for (c = 0; c < PAGE__COUNT; c++)
		for (i = 0; i < many[c].count; i++)
			for (; holders[c][i] > 0; holders[c][i]--)
				pages_unref(&p, c, i);
	pages_settle(&p);
	for (c = 0; c < PAGE__COUNT; c++)
		assert_int_equal(p.cls[c].free_n, many[c].count);
	pages_fini(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_grant_until_empty_then_enospc),
		cmocka_unit_test(test_page_let_go_is_free_only_when_settled),
		cmocka_unit_test(test_pinned_page_survives_its_first_holder),
		cmocka_unit_test(test_pages_for_positions),
		cmocka_unit_test(test_init_refuses_nonsense_counts),
		cmocka_unit_test(test_random_holders_end_with_all_pages_free),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
