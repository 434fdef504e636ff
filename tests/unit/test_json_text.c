/*
 * JSON read where it stands and printed as Python prints it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/json_text.h"
#include "tests/unit/text_fixture.h"

/* A copy of exactly the bytes, so that reading past them is seen. */
static struct json_slice exact(const char *text, size_t len)
{
	char *p = malloc(len + !len);

	assert_non_null(p);
	memcpy(p, text, len);
	return (struct json_slice){p, len};
}

static void expect_print(const char *text, const char *want)
{
	struct json_slice v = exact(text, strlen(text));
	struct outbuf out = {0};
	const char *why = "";
	int r = json_print_python(v, &out, &why);

	if (r < 0)
		fail_msg("%s: %s", text, why);
	outbuf_add(&out, "", 1);
	assert_string_equal(out.data, want);
	outbuf_fini(&out);
	free((void *)v.p);
}

static void test_numbers_print_as_python_prints_them(void **state)
{
	size_t len, n = 0;
	char *file = fixture_read("tests/data/chat/numbers.txt", &len), *line, *next;

	(void)state;
	for (line = file; *line; line = next, n++) {
		char *space = strchr(line, ' ');

		next = strchr(line, '\n');
		assert_true(space && next);
		*space = *next++ = 0;
		expect_print(line, space + 1);
	}
	assert_true(n >= 1500);
	free(file);
}

static void test_values_print_in_one_line(void **state)
{
	(void)state;
	expect_print(" {\"b\" :1,\"a\":\t[ ] , \"\":{ }}\n", "{\"b\": 1, \"a\": [], \"\": {}}");
	expect_print("[1,[2,[3]],\"x\"]", "[1, [2, [3]], \"x\"]");
	expect_print("\"\\u0000\\b\\f\\n\\r\\t\\u001f\\/\\\"\\\\\\u007f\"",
		"\"\\u0000\\b\\f\\n\\r\\t\\u001f/\\\"\\\\\x7f\"");
	expect_print("\"\\u00e9\\u20ac\\ud83d\\ude00é€😀\"", "\"é€😀é€😀\"");
	expect_print("true", "true");
	expect_print("{\"a\":{\"a\":1},\"b\":{\"a\":1}}", "{\"a\": {\"a\": 1}, \"b\": {\"a\": 1}}");
}

static void test_broken_values_are_refused_by_name(void **state)
{
	static const char *const rows[][2] = {
		{"", "a missing value"},
		{" ", "a missing value"},
		{"[1", "an array without its ]"},
		{"[1,]", "something that is not JSON"},
		{"[1 2]", "an array without its ]"},
		{"{\"a\":1", "an object without its }"},
		{"{\"a\"}", "a key without its colon"},
		{"{a:1}", "a missing string"},
		{"{\"a\":1,}", "a missing string"},
		{"\"a", "a string that does not end"},
		{"\"a\\", "a string that does not end"},
		{"\"\\x\"", "an unknown escape"},
		{"\"\\u12g4\"", "a \\u without four hexadecimal digits"},
		{"\"\\u12", "a \\u without four hexadecimal digits"},
		{"\"\\ud800\"", "half of a surrogate pair"},
		{"\"\\udc00\"", "half of a surrogate pair"},
		{"\"\\ud800\\u0041\"", "half of a surrogate pair"},
		{"\"\n\"", "a control character in a string"},
		{"01", "a number with a leading zero"},
		{"-", "something that is not JSON"},
		{"1.", "a number that ends in its point"},
		{"1e", "a number without its exponent"},
		{"1e+", "a number without its exponent"},
		{"1e400", "a number that is too large"},
		{"+1", "something that is not JSON"},
		{"NaN", "something that is not JSON"},
		{"tru", "something that is not JSON"},
		{"true false", "something after its end"},
		{"{\"a\":1,\"b\":2,\"\\u0061\":3}", "a key that is there twice"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct json_slice v = exact(rows[i][0], strlen(rows[i][0]));
		struct outbuf out = {0};
		const char *why = "";

		outbuf_add(&out, "kept", 4);
		assert_int_equal(json_print_python(v, &out, &why), -EINVAL);
		if (strcmp(why, rows[i][1]) != 0)
			fail_msg("%s: got '%s', want '%s'", rows[i][0], why, rows[i][1]);
		assert_int_equal(out.len, 4);
		outbuf_fini(&out);
		free((void *)v.p);
	}
}

static void test_depth_is_bounded(void **state)
{
	struct outbuf out = {0};
	const char *why = "";
	char text[2 * JSON_TEXT_DEPTH + 2];

	(void)state;
	memset(text, '[', JSON_TEXT_DEPTH);
	memset(text + JSON_TEXT_DEPTH, ']', JSON_TEXT_DEPTH);
	assert_int_equal(
		json_print_python((struct json_slice){text, 2 * JSON_TEXT_DEPTH}, &out, &why), 0);
	memset(text, '[', sizeof(text));
	assert_int_equal(
		json_print_python((struct json_slice){text, sizeof(text)}, &out, &why), -EINVAL);
	assert_string_equal(why, "too many levels");
	outbuf_fini(&out);
}

static void test_members_and_items_are_found_in_place(void **state)
{
	static const char text[] =
		" { \"a\" : [ 1 , {\"x\":2} , \"s\" ] , \"\\u0062\" : 1 , \"b\" : 22 } ";
	struct json_slice doc = exact(text, strlen(text)), v, k;
	size_t at = 0;

	(void)state;
	assert_int_equal(json_slice_member(doc, "b", &v), 0); /* the last of two */
	assert_int_equal(v.len, 2);
	assert_memory_equal(v.p, "22", 2);
	assert_int_equal(json_slice_member(doc, "c", &v), -ENOENT);
	assert_int_equal(json_slice_member(doc, "a", &v), 0);
	assert_int_equal(json_slice_member(v, "a", &k), -EINVAL);
	assert_int_equal(json_slice_item(v, &at, &k), 1);
	assert_memory_equal(k.p, "1", 1);
	assert_int_equal(json_slice_item(v, &at, &k), 1);
	assert_int_equal(k.len, 7);
	assert_int_equal(json_slice_item(v, &at, &k), 1);
	assert_int_equal(json_slice_kind(k), '"');
	assert_int_equal(json_slice_item(v, &at, &k), 0);
	assert_int_equal(json_slice_kind((struct json_slice){NULL, 0}), 0);
	free((void *)doc.p);
}

/* Nothing that is cut anywhere is read past or accepted. */
static void test_cut_documents_are_refused(void **state)
{
	static const char text[] =
		"{\"a\":[1,-2.5e-3,{\"k\":\"\\u00e9\\ud83d\\ude00\"},true,null,\"z\"]}";

	(void)state;
	for (size_t n = 0; n < strlen(text); n++) {
		struct json_slice v = exact(text, n), member;
		struct outbuf out = {0};

		assert_int_equal(json_print_python(v, &out, NULL), -EINVAL);
		assert_int_equal(json_slice_member(v, "a", &member), -EINVAL);
		outbuf_fini(&out);
		free((void *)v.p);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_numbers_print_as_python_prints_them),
		cmocka_unit_test(test_values_print_in_one_line),
		cmocka_unit_test(test_broken_values_are_refused_by_name),
		cmocka_unit_test(test_depth_is_bounded),
		cmocka_unit_test(test_members_and_items_are_found_in_place),
		cmocka_unit_test(test_cut_documents_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
