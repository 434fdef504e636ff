/* The header of a .safetensors file: every refusal, and random damage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/ckpt_fixture.h"
#include "worker/ckpt/safetensors.h"

static const char two[] =
	"{\"__metadata__\":{\"format\":\"pt\"},"
	"\"b\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[12,24]},"
	"\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
	"\"empty\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[12,12]}}   ";

static int parse(const char *json, uint64_t data_bytes, struct st_header *h, struct errbuf *err)
{
	err->text[0] = '\0';
	return st_parse("f.safetensors", json, strlen(json), 8 + strlen(json) + data_bytes, h, err);
}

static void test_good_header_is_read_in_order_of_place(void **state)
{
	struct st_header h;
	struct errbuf err;

	(void)state;
	assert_int_equal(parse(two, 24, &h, &err), 0);
	assert_int_equal(h.n, 3);
	assert_string_equal(h.tensors[0].name, "a");
	assert_string_equal(h.tensors[1].name, "empty");
	assert_string_equal(h.tensors[2].name, "b");
	assert_int_equal(h.tensors[0].dtype, ST_BF16);
	assert_int_equal(h.tensors[0].ndim, 2);
	assert_int_equal(h.tensors[0].shape[1], 3);
	assert_int_equal(h.tensors[2].offset, 8 + strlen(two) + 12);
	assert_int_equal(h.tensors[2].bytes, 12);
	st_fini(&h);
	assert_int_equal(parse("{}", 0, &h, &err), 0);
	assert_int_equal(h.n, 0);
	st_fini(&h);
}

static void test_every_dtype_has_its_size(void **state)
{
	char json[128];
	struct st_header h;
	struct errbuf err;

	(void)state;
	for (int d = 0; d < ST__COUNT; d++) {
		uint64_t n = st_dtype_bytes((enum st_dtype)d) * 5;

		snprintf(json, sizeof(json),
			"{\"t\":{\"dtype\":\"%s\",\"shape\":[5],\"data_offsets\":[0,%d]}}",
			st_dtype_name((enum st_dtype)d), (int)n);
		assert_int_equal(parse(json, n, &h, &err), 0);
		assert_int_equal(h.tensors[0].dtype, d);
		st_fini(&h);
	}
}

static void test_file_of_another_size_is_refused_with_both_sizes(void **state)
{
	struct st_header h;
	struct errbuf err;
	char real[32], want[32];

	(void)state;
	for (uint64_t missing = 1; missing <= 24; missing++) {
		assert_int_equal(parse(two, 24 - missing, &h, &err), -EINVAL);
		snprintf(real, sizeof(real), "has %zu", 8 + strlen(two) + 24 - (size_t)missing);
		snprintf(want, sizeof(want), "have %zu", 8 + strlen(two) + 24);
		fix_assert_says(err.text, "f.safetensors: truncated",
			missing <= 12 ? "tensor b" : "tensor a", real, want, NULL);
		assert_int_equal(err.exit_code, EXIT_DATA_ERR);
	}
	assert_int_equal(parse(two, 25, &h, &err), -EINVAL);
	fix_assert_says(err.text, "accounts for", NULL);
	assert_int_equal(st_parse("f", two, strlen(two), 20, &h, &err), -EINVAL);
	fix_assert_says(err.text, "truncated inside its header", NULL);
}

static void test_length_prefix_is_checked_against_the_file(void **state)
{
	uint8_t p[8] = {100, 0, 0, 0, 0, 0, 0, 0};
	struct errbuf err;
	uint64_t len;

	(void)state;
	assert_int_equal(st_json_len("f", p, 108, &len, &err), 0);
	assert_int_equal(len, 100);
	assert_int_equal(st_json_len("f", p, 107, &len, &err), -EINVAL);
	fix_assert_says(err.text, "f: truncated inside its header", "107", "108", NULL);
	assert_int_equal(st_json_len("f", p, 3, &len, &err), -EINVAL);
	p[0] = 1;
	assert_int_equal(st_json_len("f", p, 1000, &len, &err), -EINVAL);
	memset(p, 0xff, 8);
	assert_int_equal(st_json_len("f", p, UINT64_MAX, &len, &err), -EINVAL);
	fix_assert_says(err.text, "not a safetensors file", "18446744073709551615", NULL);
	memcpy(p, "\x01\xe1\xf5\x05\0\0\0\0", 8); /* 100,000,001 */
	assert_int_equal(st_json_len("f", p, UINT64_MAX / 2, &len, &err), -EINVAL);
	p[0] = 0;
	assert_int_equal(st_json_len("f", p, UINT64_MAX / 2, &len, &err), 0);
}

static const struct {
	const char *json;
	uint64_t data;
	const char *says;
} bad[] = {
	{"", 0, "not valid JSON"},
	{"[]", 0, "not a JSON object"},
	{"{\"a\":1}", 0, "a: its description is not an object"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
	 "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
		8, "duplicate"},
	{"{\"\xff\xfe\":{}}", 0, "not valid JSON"},
	{"{\"a\\nb\":{}}", 0, "not printable"},
	{"{\"\":{}}", 0, "empty"},
	{"{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
		"unknown dtype F31"},
	{"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown dtype (none)"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "its shape"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "its shape"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,4]}}", 4, "its shape"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
		"at most 8"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}", 4,
		"2^63"},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[9223372036854775807,2],\"data_offsets\":[0,4]}}", 4,
		"2^63"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "not a range"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "not a range"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "not a range"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "not a range"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
		"needs 8 bytes, but data_offsets gives it 4"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
	 "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}",
		8, "tensor b begins at byte 2 of the data, which overlaps"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
	 "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
		4, "overlaps"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
	 "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[5,9]}}",
		9, "leaves a hole"},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[9223372036854775807],"
	 "\"data_offsets\":[0,9223372036854775807]},"
	 "\"b\":{\"dtype\":\"U8\",\"shape\":[0],"
	 "\"data_offsets\":[9223372036854775807,9223372036854775807]}}",
		4, "truncated: tensor a"},
};

static void test_damaged_headers_are_refused_by_name(void **state)
{
	struct st_header h;
	struct errbuf err;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		if (parse(bad[i].json, bad[i].data, &h, &err) != -EINVAL)
			fail_msg("accepted: %s", bad[i].json);
		fix_assert_says(err.text, "f.safetensors: ", bad[i].says, NULL);
		assert_int_equal(err.exit_code, EXIT_DATA_ERR);
	}
}

/* Whatever is accepted must lie in the file. */
static void test_random_damage_never_leaves_the_file(void **state)
{
	size_t n = strlen(two);
	char *copy = malloc(n); /* no terminator: a read past the end is seen by ASan */
	uint64_t rng = fix_seed(), file_bytes = 8 + n + 24;
	struct st_header h;
	struct errbuf err;
	int accepted = 0;

	(void)state;
	for (int i = 0; i < 50000; i++) {
		memcpy(copy, two, n);
		for (uint64_t k = fix_random(&rng) % 3; k > 0; k--) {
			uint64_t r = fix_random(&rng);

			copy[r % n] = "0123456789[],{}"[(r >> 32) % 15];
			if (r >> 63)
				copy[r % n] = (char)(r >> 40);
		}
		if (st_parse("f", copy, n, file_bytes, &h, &err) < 0)
			continue;
		accepted++;
		for (size_t t = 0; t < h.n; t++)
			assert_true(h.tensors[t].offset >= 8 + n &&
				    h.tensors[t].bytes <= file_bytes - h.tensors[t].offset);
		st_fini(&h);
	}
	assert_true(accepted > 1000);
	free(copy);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good_header_is_read_in_order_of_place),
		cmocka_unit_test(test_every_dtype_has_its_size),
		cmocka_unit_test(test_file_of_another_size_is_refused_with_both_sizes),
		cmocka_unit_test(test_length_prefix_is_checked_against_the_file),
		cmocka_unit_test(test_damaged_headers_are_refused_by_name),
		cmocka_unit_test(test_random_damage_never_leaves_the_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
