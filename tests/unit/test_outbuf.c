#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coordinator/outbuf.h"

static void check_string(const char *in, size_t len, const char *expected)
{
	struct outbuf b = {0};

	outbuf_json_string(&b, in, len);
	assert_true(outbuf_ok(&b));
	assert_int_equal(b.len, strlen(expected));
	assert_memory_equal(b.data, expected, b.len);
	outbuf_fini(&b);
}

static void test_json_string_escapes_what_json_forbids(void **state)
{
	(void)state;
	check_string("", 0, "\"\"");
	check_string("a\"b\\c", 5, "\"a\\\"b\\\\c\"");
	check_string("\n\r\t\b\x7f", 5, "\"\\n\\r\\t\\u0008\\u007f\"");
	check_string("a\0b", 3, "\"a\\u0000b\"");
	check_string("é€😀", 9, "\"é€😀\"");
}

static void test_json_string_replaces_broken_utf8(void **state)
{
	(void)state;
	check_string("\x80", 1, "\"\xef\xbf\xbd\"");
	check_string("a\xe2\x82", 3, "\"a\xef\xbf\xbd\xef\xbf\xbd\"");
	check_string("\xc0\xafz", 3, "\"\xef\xbf\xbd\xef\xbf\xbdz\"");
}

static void test_json_string_random_bytes_stay_valid_json(void **state)
{
	unsigned seed = (unsigned)time(NULL);
	struct outbuf b = {0};
	char in[64];
	size_t i, round;
	json_t *v;

	(void)state;
	print_message("seed %u\n", seed);
	srand(seed);
	for (round = 0; round < 2000; round++) {
		for (i = 0; i < sizeof(in); i++)
			in[i] = (char)(rand() % (round & 1 ? 256 : 128));
		outbuf_clear(&b);
		outbuf_json_string(&b, in, sizeof(in));
		v = json_loadb(b.data, b.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
		assert_non_null(v);
		if (!(round & 1)) {
			assert_int_equal(json_string_length(v), sizeof(in));
			assert_memory_equal(json_string_value(v), in, sizeof(in));
		}
		json_decref(v);
	}
	outbuf_fini(&b);
}

static void check_float(float in, const char *expected)
{
	struct outbuf b = {0};

	outbuf_json_float(&b, in);
	outbuf_add(&b, "", 1);
	assert_string_equal(b.data, expected);
	outbuf_fini(&b);
}

static void test_json_float_is_always_a_real_number(void **state)
{
	(void)state;
	check_float(0.0f, "0.0");
	check_float(-1.0f, "-1.0");
	check_float(-0.125f, "-0.125");
	check_float(-1e-10f, "-1.00000001e-10");
	check_float(-INFINITY, "-9999.0");
	check_float(-20000.0f, "-9999.0");
	check_float(NAN, "-9999.0");
}

static void test_utf8_char_refuses_what_unicode_forbids(void **state)
{
	static const struct {
		const char *text;
		size_t len, expected;
	} cases[] = {
		{"a", 1, 1},
		{"\x7f", 1, 1},
		{"\xc2\x80", 2, 2},
		{"\xc1\xbf", 2, 0},
		{"\xe0\xa0\x80", 3, 3},
		{"\xe0\x9f\xbf", 3, 0},
		{"\xed\x9f\xbf", 3, 3},
		{"\xed\xa0\x80", 3, 0},
		{"\xee\x80\x80", 3, 3},
		{"\xf0\x90\x80\x80", 4, 4},
		{"\xf0\x8f\xbf\xbf", 4, 0},
		{"\xf4\x8f\xbf\xbf", 4, 4},
		{"\xf4\x90\x80\x80", 4, 0},
		{"\xf5\x80\x80\x80", 4, 0},
		{"\xf0\x90\x80", 3, 0},
		{"", 0, 0},
	};
	size_t i;

	(void)state;
	for (i = 0; i < ARRAY_LEN(cases); i++)
		assert_int_equal(utf8_char(cases[i].text, cases[i].len), cases[i].expected);
}

static void test_add_grows_and_printf_takes_long_text(void **state)
{
	char big[1000];
	struct outbuf b = {0};
	size_t i;

	(void)state;
	memset(big, 'x', sizeof(big));
	big[sizeof(big) - 1] = '\0';
	for (i = 0; i < 100; i++)
		outbuf_printf(&b, "%s", big);
	assert_int_equal(b.len, 100 * (sizeof(big) - 1));
	for (i = 0; i < b.len; i++)
		assert_int_equal(b.data[i], 'x');
	outbuf_fini(&b);
}

static void test_uint_is_written_as_printf_would(void **state)
{
	static const uint64_t values[] = {0, 1, 9, 10, 99, 100, UINT32_MAX, 1ull << 63, UINT64_MAX};
	char want[32];
	size_t i;

	(void)state;
	for (i = 0; i < ARRAY_LEN(values); i++) {
		struct outbuf b = {0};

		outbuf_uint(&b, values[i]);
		snprintf(want, sizeof(want), "%llu", (unsigned long long)values[i]);
		assert_int_equal(b.len, strlen(want));
		assert_memory_equal(b.data, want, b.len);
		outbuf_fini(&b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_json_string_escapes_what_json_forbids),
		cmocka_unit_test(test_json_string_replaces_broken_utf8),
		cmocka_unit_test(test_json_string_random_bytes_stay_valid_json),
		cmocka_unit_test(test_json_float_is_always_a_real_number),
		cmocka_unit_test(test_utf8_char_refuses_what_unicode_forbids),
		cmocka_unit_test(test_uint_is_written_as_printf_would),
		cmocka_unit_test(test_add_grows_and_printf_takes_long_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
