/* Text for terminals, logs and JSON; and where text may be cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "shm/escape.h"
#include "shm/utf8.h"
#include "shm/util.h"

static void test_line_shows_what_would_not_print(void **state)
{
	static const char *const rows[][2] = {
		{"", ""},
		{"plain \\ \"text\" é€🙂", "plain \\ \"text\" é€🙂"},
		{"a\nb\tc\rd", "a\\nb\\tc\\rd"},
		{"\x1b[31mred\x1b[0m\x07\x7f", "\\x1b[31mred\\x1b[0m\\x07\\x7f"},
		{"\xc2\x9b"
		 "31m\xc2\xa0",
			"\\u009b31m\xc2\xa0"},
		{"\xff\xc3 \xed\xa0\x80", "\\xff\\xc3 \\xed\\xa0\\x80"},
	};
	char out[128], again[128];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		assert_int_equal(escape_line(out, sizeof(out), rows[i][0]), strlen(rows[i][1]));
		assert_string_equal(out, rows[i][1]);
		/* so an error may quote another error */
		(void)escape_line(again, sizeof(again), out);
		assert_string_equal(again, out);
	}
}

static void test_json_is_the_inside_of_a_string(void **state)
{
	char out[128];

	(void)state;
	(void)escape_json(out, sizeof(out), "a\"\\\n\x1b\x7f\xc2\x9b\xff\xe2\x82 é");
	assert_string_equal(out, "a\\\"\\\\\\n\\u001b\\u007f\\u009b\xef\xbf\xbd\xef\xbf\xbd"
				 "\xef\xbf\xbd é");
}

/* Any bytes into any room: terminated, in bounds, one line of UTF-8 that is one JSON string. */
static void test_any_bytes_in_any_room_stay_valid(void **state)
{
	static const char pool[] =
		"\n\x1b\"\\ax\x7f\xc2\x9b\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82\xff";
	unsigned seed = 0;
	char text[40], out[128], quoted[160];

	(void)state;
	(void)!getrandom(&seed, sizeof(seed), 0);
	print_message("seed %u\n", seed);
	srand(seed);
	for (int i = 0; i < 20000; i++) {
		size_t n = (size_t)rand() % sizeof(text), cap = 1 + (size_t)rand() % 100, len;
		json_t *j;

		for (size_t k = 0; k < n; k++)
			text[k] = pool[(size_t)rand() % (sizeof(pool) - 1)];
		text[n] = '\0';
		memset(out, '#', sizeof(out));
		len = i % 2 ? escape_json(out, cap, text) : escape_line(out, cap, text);
		assert_true(len < cap);
		assert_int_equal(strlen(out), len);
		assert_int_equal(out[cap], '#');
		assert_true(utf8_valid(out, len));
		for (size_t k = 0; k < len; k++)
			assert_true((unsigned char)out[k] >= 0x20 && out[k] != 0x7f);
		if (i % 2 == 0)
			continue;
		snprintf(quoted, sizeof(quoted), "\"%s\"", out);
		j = json_loads(quoted, JSON_DECODE_ANY, NULL);
		if (!j)
			fail_msg("no JSON string: %s", quoted);
		json_decref(j);
	}
}

static void test_text_fits_without_part_of_a_character(void **state)
{
	static const struct {
		const char *text;
		size_t max, fits;
	} rows[] = {
		{"", 0, 0},
		{"ab", 0, 0},
		{"ab", 1, 1},
		{"ab", 2, 2},
		{"ab", 3, 2},
		{"é", 1, 0},
		{"é", 2, 2},
		{"éa", 2, 2},
		{"aé", 2, 1},
		{"€", 1, 0},
		{"€", 2, 0},
		{"a€b", 2, 1},
		{"a€b", 3, 1},
		{"a€b", 4, 4},
		{"a🙂b", 2, 1},
		{"a🙂b", 4, 1},
		{"a🙂b", 5, 5},
		{"\xff\xff\xff", 2, 2},
		{"\xa9\xa9\xa9\xa9\xa9\xa9", 5, 5},
		{"a\xc3", 1, 1},
		{"\xc3z", 1, 1},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		assert_int_equal(
			utf8_fit(rows[i].text, strlen(rows[i].text), rows[i].max), rows[i].fits);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_line_shows_what_would_not_print),
		cmocka_unit_test(test_json_is_the_inside_of_a_string),
		cmocka_unit_test(test_any_bytes_in_any_room_stay_valid),
		cmocka_unit_test(test_text_fits_without_part_of_a_character),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
