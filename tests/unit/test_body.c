#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "coordinator/body.h"

/* The body as the HTTP layer hands it over: NUL after its length, in memory of exactly that size.
 */
static int parse(const char *text, size_t len, json_t **ret, struct errbuf *err)
{
	char *copy = malloc(len + 1);
	int r;

	memcpy(copy, text, len);
	copy[len] = '\0';
	*err = (struct errbuf){0};
	r = body_parse(copy, len, ret, err);
	free(copy);
	return r;
}

static void check_refused(const char *text, size_t len, const char *says)
{
	json_t *v = NULL;
	struct errbuf err;

	assert_int_equal(parse(text, len, &v, &err), -EINVAL);
	assert_null(v);
	if (!strstr(err.text, says))
		fail_msg("\"%s\" does not say \"%s\"", err.text, says);
}

static void test_parse_refuses_what_is_no_object(void **state)
{
	(void)state;
	check_refused("", 0, "empty");
	check_refused("[1]", 3, "object");
	check_refused("{", 1, "line 1");
	check_refused("{\"a\":1}}", 8, "JSON");
	check_refused("{\"a\":1,\"a\":2}", 13, "duplicate");
	check_refused("{\"a\":NaN}", 9, "JSON");
	check_refused("{\"a\":Infinity}", 14, "JSON");
	check_refused("{\"a\":1e999}", 11, "overflow");
	check_refused("{\"a\":\"\xff\"}", 9, "JSON");
	check_refused("{\"a\":\"\xe2\x82\"}", 10, "JSON");
	check_refused("{\"a\":\"\\ud800\"}", 14, "JSON");
	check_refused("\xef\xbb\xbf{}", 5, "JSON");
}

static void test_parse_nul_outside_escapes_is_refused_wherever_it_stands(void **state)
{
	static const char text[] = "{ \"a\" : [ 12 , -1.5e3 , true , null , \"b\" , { } ] }";
	char with[sizeof(text) + 1];
	size_t at;

	(void)state;
	for (at = 0; at < sizeof(text); at++) {
		memcpy(with, text, at);
		with[at] = '\0';
		memcpy(with + at + 1, text + at, sizeof(text) - 1 - at);
		check_refused(with, sizeof(text), "NUL");
	}
}

static void test_parse_depth_is_limited_before_memory_is_spent(void **state)
{
	size_t n = 1 << 20;
	char *deep = malloc(n);
	char text[2 * BODY_DEPTH_MAX + 32];
	json_t *v = NULL;
	struct errbuf err;
	int i, k;

	(void)state;
	memset(deep, '[', n);
	check_refused(deep, n, "deep");
	free(deep);
	for (k = BODY_DEPTH_MAX - 1; k <= BODY_DEPTH_MAX; k++) {
		strcpy(text, "{\"a\":");
		for (i = 0; i < k; i++)
			strcat(text, "[");
		for (i = 0; i < k; i++)
			strcat(text, "]");
		strcat(text, "}");
		if (k + 1 <= BODY_DEPTH_MAX) {
			assert_int_equal(parse(text, strlen(text), &v, &err), 0);
			json_decref(v);
		} else {
			check_refused(text, strlen(text), "deep");
		}
	}
	/* brackets inside strings do not count */
	strcpy(text, "{\"a\":\"");
	for (i = 0; i < BODY_DEPTH_MAX + 5; i++)
		strcat(text, "[");
	strcat(text, "\\\"\"}");
	assert_int_equal(parse(text, strlen(text), &v, &err), 0);
	json_decref(v);
}

static void test_parse_number_of_containers_is_limited(void **state)
{
	size_t n = 3 * (size_t)BODY_CONTAINERS_MAX, i;
	char *text = malloc(n + 32);
	size_t len = 0;

	(void)state;
	len += (size_t)sprintf(text, "{\"a\":[[]");
	for (i = 0; i + 3 < n; i += 3) {
		memcpy(text + len, ",[]", 3);
		len += 3;
	}
	len += (size_t)sprintf(text + len, "]}");
	check_refused(text, len, "arrays and objects");
	free(text);
}

static void test_parse_integers_beyond_64_bits_become_reals(void **state)
{
	static const char text[] = "{\"a\":9223372036854775807,\"b\":9223372036854775808,"
				   "\"c\":-9223372036854775808,\"d\":-9223372036854775809,"
				   "\"e\":\"18446744073709551616\",\"f\":18446744073709551616,"
				   "\"g\":1234567890123456789012345678901234567890}";
	struct errbuf err;
	json_t *v = NULL;

	(void)state;
	assert_int_equal(parse(text, strlen(text), &v, &err), 0);
	assert_int_equal(json_integer_value(json_object_get(v, "a")), INT64_MAX);
	assert_true(json_is_real(json_object_get(v, "b")));
	assert_int_equal(json_integer_value(json_object_get(v, "c")), INT64_MIN);
	assert_true(json_is_real(json_object_get(v, "d")));
	assert_string_equal(json_string_value(json_object_get(v, "e")), "18446744073709551616");
	assert_true(json_real_value(json_object_get(v, "f")) == 18446744073709551616.0);
	assert_true(json_real_value(json_object_get(v, "g")) > 1.2e39);
	json_decref(v);
}

static void test_parse_nul_in_a_string_is_text(void **state)
{
	static const char text[] = "{\"a\":\"x\\u0000y\"}";
	struct errbuf err;
	json_t *v = NULL;

	(void)state;
	assert_int_equal(parse(text, strlen(text), &v, &err), 0);
	assert_int_equal(json_string_length(json_object_get(v, "a")), 3);
	json_decref(v);
}

static void test_parse_cut_anywhere_is_refused(void **state)
{
	static const char text[] = "{\"a\":[1,-2.5e3,\"x\\\"\\u00e9\",{\"b\":null}],\"c\":true,"
				   "\"d\":99999999999999999999}";
	struct errbuf err;
	json_t *v = NULL;
	size_t n;

	(void)state;
	for (n = 0; n < strlen(text); n++)
		assert_int_equal(parse(text, n, &v, &err), -EINVAL);
	assert_int_equal(parse(text, n, &v, &err), 0);
	json_decref(v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parse_refuses_what_is_no_object),
		cmocka_unit_test(test_parse_depth_is_limited_before_memory_is_spent),
		cmocka_unit_test(test_parse_number_of_containers_is_limited),
		cmocka_unit_test(test_parse_integers_beyond_64_bits_become_reals),
		cmocka_unit_test(test_parse_nul_in_a_string_is_text),
		cmocka_unit_test(test_parse_nul_outside_escapes_is_refused_wherever_it_stands),
		cmocka_unit_test(test_parse_cut_anywhere_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
