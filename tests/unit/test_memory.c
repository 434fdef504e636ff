/* worker/ckpt must not include kernels/, so both know the sizes of rows: here they are compared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/kern.h"
#include "worker/ckpt/memory.h"

static const struct {
	enum conf_kv conf;
	enum kern_dtype kern;
} kv[] = {{CONF_KV_F32, KERN_F32}, {CONF_KV_BF16, KERN_BF16}, {CONF_KV_FP8, KERN_FP8}};

static const struct {
	enum conf_index_key conf;
	enum kern_dtype kern;
} keys[] = {{CONF_INDEX_KEY_F32, KERN_F32}, {CONF_INDEX_KEY_BF16, KERN_BF16},
	{CONF_INDEX_KEY_FP8, KERN_FP8}, {CONF_INDEX_KEY_FP4, KERN_FP4}};

static void test_page_sizes_equal_those_of_the_kernels(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(kv); i++)
		assert_int_equal(MEMORY_PAGE_ENTRIES * memory_kv_row_bytes(kv[i].conf),
			kern_kv_page_bytes(kv[i].kern));
	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		assert_int_equal(MEMORY_PAGE_ENTRIES * memory_index_key_bytes(keys[i].conf),
			kern_index_page_bytes(keys[i].kern));
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_page_sizes_equal_those_of_the_kernels),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
