/* How sizes, times and tables look; what a terminal is spared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/text.h"

static void test_bytes_at_unit_boundaries(void **state)
{
	char t[TEXT_SHORT];

	(void)state;
	assert_string_equal(text_bytes(0, t), "0 B");
	assert_string_equal(text_bytes(1023, t), "1023 B");
	assert_string_equal(text_bytes(1024, t), "1.0 KiB");
	assert_string_equal(text_bytes(1536, t), "1.5 KiB");
	assert_string_equal(text_bytes((1 << 20) - 1, t), "1.0 MiB");
	assert_string_equal(text_bytes(1 << 20, t), "1.0 MiB");
	assert_string_equal(text_bytes(UINT64_C(150) << 30, t), "150.0 GiB");
	assert_string_equal(text_bytes(UINT64_MAX, t), "16.0 EiB");
}

static void test_counts_are_grouped_by_three(void **state)
{
	char t[TEXT_SHORT];

	(void)state;
	assert_string_equal(text_count(0, t), "0");
	assert_string_equal(text_count(999, t), "999");
	assert_string_equal(text_count(1000, t), "1,000");
	assert_string_equal(text_count(1234567, t), "1,234,567");
	assert_string_equal(text_count(UINT64_MAX, t), "18,446,744,073,709,551,615");
}

static void test_times_change_units(void **state)
{
	char t[TEXT_SHORT];

	(void)state;
	assert_string_equal(text_seconds(0, t), "0 us");
	assert_string_equal(text_seconds(42e-6, t), "42 us");
	assert_string_equal(text_seconds(0.0123, t), "12.3 ms");
	assert_string_equal(text_seconds(0.9994, t), "999 ms");
	assert_string_equal(text_seconds(1.234, t), "1.23 s");
	assert_string_equal(text_seconds(119, t), "119 s");
	assert_string_equal(text_seconds(125, t), "2 min 5 s");
	assert_string_equal(text_seconds(7200, t), "2 h 0 min");
	assert_string_equal(text_seconds(3 * 86400, t), "3 days");
	assert_string_equal(text_seconds(-1, t), "-");
	assert_string_equal(text_seconds(__builtin_nan(""), t), "-");
}

/* Runs fn on a memory stream and gives what it wrote. */
static char *capture(void (*fn)(FILE *))
{
	char *text = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&text, &n);

	fn(f);
	fclose(f);
	return text;
}

static void write_table(FILE *f)
{
	struct text_table t;

	text_table_init(&t, 3, 1 << 1);
	for (int i = 0; i < 2; i++) {
		text_table_add(&t, "%s", i ? "\xc3\xa9" : "wide"); /* one column, two bytes */
		text_table_add(&t, "%d", i ? 1000 : 7);
		text_table_add(&t, "%s", i ? "last" : "x");
	}
	assert_int_equal(text_table_print(&t, f, 2), 0);
}

static void test_columns_are_as_wide_as_their_widest_cell(void **state)
{
	char *text = capture(write_table);

	(void)state;
	assert_string_equal(text, "  wide     7  x\n  \xc3\xa9     1000  last\n");
	free(text);
}

static const char evil[] = "a\x1b[2Jb\n\tc\x7f\x07 \xe2\x82\xac\r";

static void put_terminal(FILE *f)
{
	text_put(f, evil, sizeof(evil) - 1, true);
}

static void put_pipe(FILE *f)
{
	text_put(f, evil, sizeof(evil) - 1, false);
}

static void test_terminal_is_spared_control_characters(void **state)
{
	char *text = capture(put_terminal);

	(void)state;
	assert_string_equal(
		text, "a\xef\xbf\xbd[2Jb\n\tc\xef\xbf\xbd\xef\xbf\xbd \xe2\x82\xac\xef\xbf\xbd");
	free(text);
	text = capture(put_pipe);
	assert_string_equal(text, evil);
	free(text);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes_at_unit_boundaries),
		cmocka_unit_test(test_counts_are_grouped_by_three),
		cmocka_unit_test(test_times_change_units),
		cmocka_unit_test(test_columns_are_as_wide_as_their_widest_cell),
		cmocka_unit_test(test_terminal_is_spared_control_characters),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
