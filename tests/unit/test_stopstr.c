#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coordinator/stopstr.h"

#define STOPS_MAX 4

struct stops {
	struct stop_string s[STOPS_MAX];
	size_t n;
};

/* What must have happened after the first `len` bytes of text, by the rule and nothing else. */
struct expected {
	int found;   /* which, or -1 */
	size_t end;  /* of the match */
	size_t sent; /* bytes free to go */
};

static struct expected slow_scan(const struct stops *st, const char *text, size_t len)
{
	struct expected e = {.found = -1, .sent = len};
	size_t end, i, best, n;

	for (end = 1; end <= len && e.found < 0; end++) {
		best = 0;
		for (i = 0; i < st->n; i++) {
			n = st->s[i].len;
			if (n > end || n <= best || memcmp(text + end - n, st->s[i].text, n))
				continue;
			best = n;
			e = (struct expected){(int)i, end, end - n};
		}
	}
	if (e.found >= 0)
		return e;
	/* the longest end of the text that begins a string is held back */
	for (i = 0; i < st->n; i++)
		for (n = MIN(st->s[i].len - 1, len); n; n--)
			if (!memcmp(text + len - n, st->s[i].text, n)) {
				e.sent = MIN(e.sent, len - n);
				break;
			}
	return e;
}

/* Feeds text in pieces cut where the bits of `cuts` say, checking every moment against slow_scan.
 */
static void check_cut(const struct stops *st, const char *text, size_t len, uint64_t cuts)
{
	struct stop_set *set = NULL;
	struct outbuf out = {0};
	struct stop_scan scan;
	struct expected e;
	size_t from = 0, to, used;
	int found;

	assert_int_equal(stop_set_new(st->s, st->n, &set), 0);
	stop_scan_init(&scan, set);
	for (to = 1; to <= len; to++) {
		if (to < len && !(cuts >> (to % 64) & 1))
			continue;
		used = SIZE_MAX;
		found = stop_scan_feed(&scan, text + from, to - from, true, &out, &used);
		e = slow_scan(st, text, to);
		assert_int_equal(found, e.found);
		assert_int_equal(out.len, e.sent);
		if (out.len)
			assert_memory_equal(out.data, text, out.len);
		if (found >= 0) {
			assert_int_equal(from + used, e.end);
			goto out;
		}
		assert_int_equal(stop_scan_held(&scan), to - e.sent);
		from = to;
	}
	stop_scan_finish(&scan, &out);
	assert_int_equal(out.len, len);
	if (len)
		assert_memory_equal(out.data, text, len);
out:
	outbuf_fini(&out);
	stop_set_free(set);
}

static void test_feed_every_split_finds_the_same(void **state)
{
	static const char text[] = "xABCDEFGHIDEFGHIJKL";
	const struct stops st = {{{"DEFGHIJ", 7}, {"JK", 2}, {"IDZ", 3}}, 3};
	uint64_t cuts;

	(void)state;
	for (cuts = 0; cuts < 1u << 18; cuts += 7)
		check_cut(&st, text, strlen(text), cuts);
	check_cut(&st, text, strlen(text), ~0ull);
}

static void test_feed_random_strings_match_the_slow_way(void **state)
{
	unsigned seed = (unsigned)time(NULL);
	char text[24], strings[STOPS_MAX][6];
	struct stops st;
	size_t round, i, j, len;

	(void)state;
	print_message("seed %u\n", seed);
	srand(seed);
	for (round = 0; round < 20000; round++) {
		st.n = (size_t)(rand() % (STOPS_MAX + 1));
		for (i = 0; i < st.n; i++) {
			st.s[i].text = strings[i];
			st.s[i].len = 1 + (size_t)(rand() % 5);
			for (j = 0; j < st.s[i].len; j++)
				strings[i][j] = (char)('a' + rand() % 2);
		}
		len = (size_t)rand() % sizeof(text);
		for (j = 0; j < len; j++)
			text[j] = (char)('a' + rand() % (round % 2 ? 3 : 2));
		check_cut(&st, text, len, ((uint64_t)rand() << 31) ^ (uint64_t)rand());
	}
}

static void test_feed_unarmed_lets_a_whole_string_pass(void **state)
{
	const struct stop_string s = {"ab", 2};
	struct stop_set *set = NULL;
	struct outbuf out = {0};
	struct stop_scan scan;

	(void)state;
	assert_int_equal(stop_set_new(&s, 1, &set), 0);
	stop_scan_init(&scan, set);
	assert_int_equal(stop_scan_feed(&scan, "xab", 3, false, &out, NULL), -1);
	assert_int_equal(stop_scan_feed(&scan, "ya", 2, false, &out, NULL), -1);
	assert_int_equal(stop_scan_feed(&scan, "bz", 2, true, &out, NULL), 0);
	assert_int_equal(out.len, 4);
	assert_memory_equal(out.data, "xaby", 4);
	outbuf_fini(&out);
	stop_set_free(set);
}

static void test_new_empty_string_is_refused(void **state)
{
	const struct stop_string s[2] = {{"a", 1}, {"", 0}};
	struct stop_set *set = NULL;

	(void)state;
	assert_int_equal(stop_set_new(s, 2, &set), -EINVAL);
	assert_null(set);
}

static void test_feed_long_strings_are_bytes_not_text(void **state)
{
	char a[4096], text[9000];
	struct stops st = {{{a, sizeof(a)}, {a, 4000}}, 1};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(a); i++)
		a[i] = (char)(i % 251);
	memset(text, 0, sizeof(text));
	memcpy(text + 100, a, 4095); /* all but the last byte, then all of it */
	memcpy(text + 4500, a, sizeof(a));
	check_cut(&st, text, sizeof(text), 0x8000000000000001ull);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_feed_every_split_finds_the_same),
		cmocka_unit_test(test_feed_random_strings_match_the_slow_way),
		cmocka_unit_test(test_feed_unarmed_lets_a_whole_string_pass),
		cmocka_unit_test(test_new_empty_string_is_refused),
		cmocka_unit_test(test_feed_long_strings_are_bytes_not_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
