/* Server-sent events, cut at every possible place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/sse.h"

/* Events as one text: "data|data|". */
struct seen {
	char text[4096];
	size_t n;
	int stop_at; /* refuse this event, counted from 1 */
	int events;
};

static int on_event(void *user, const char *data, size_t len)
{
	struct seen *s = user;

	assert_int_equal(data[len], '\0');
	assert_true(s->n + len + 2 < sizeof(s->text));
	memcpy(s->text + s->n, data, len);
	s->n += len;
	s->text[s->n++] = '|';
	s->text[s->n] = '\0';
	return ++s->events == s->stop_at ? -ECANCELED : 0;
}

static const struct {
	const char *in, *out;
} cases[] = {
	{"data: a\n\ndata: b\n\n", "a|b|"},
	{"data:a\r\n\r\ndata:  b\r\n\r\n", "a| b|"},
	{"data: a\rdata: b\r\rdata: c\r\r", "a\nb|c|"},
	{": comment\n\n: another\ndata: x\n: between\ndata: y\n\n", "x\ny|"},
	{"event: e\nid: 7\nretry: 1\ndata: x\n\n", "x|"},
	{"event: e\n\n\n\n", ""},
	{"data\n\n", "|"},
	{"data:\n\n", "|"},
	{"data: \ndata:\n\n", "\n|"},
	{"database: x\nda\ndat: y\n\n", ""},
	{"\xef\xbb\xbf"
	 "data: bom\n\n",
		"bom|"},
	{"data: \xef\xbb\xbf\xe2\x82\xac\n\n", "\xef\xbb\xbf\xe2\x82\xac|"},
	{"data: {\"a\": \"b: c\"}\n\ndata: [DONE]\n\n", "{\"a\": \"b: c\"}|[DONE]|"},
	{"data: unfinished\n", ""},
	{"data: unfinished", ""},
	{"", ""},
};

static void test_events_are_the_same_however_the_bytes_are_split(void **state)
{
	(void)state;
	for (size_t c = 0; c < ARRAY_LEN(cases); c++) {
		size_t n = strlen(cases[c].in);

		for (size_t i = 0; i <= n; i++) {
			for (size_t j = i; j <= n; j++) {
				struct sse sse = {0};
				struct seen s = {.n = 0};
				const char *in = cases[c].in;

				assert_int_equal(sse_feed(&sse, in, i, on_event, &s), 0);
				assert_int_equal(sse_feed(&sse, in + i, j - i, on_event, &s), 0);
				assert_int_equal(sse_feed(&sse, in + j, n - j, on_event, &s), 0);
				if (strcmp(s.text, cases[c].out) != 0)
					fail_msg("case %zu cut at %zu, %zu: \"%s\"", c, i, j,
						s.text);
				sse_fini(&sse);
			}
		}
	}
}

static void test_bytes_come_one_by_one(void **state)
{
	const char *in = "data: one\r\n\r\n: c\r\n\r\ndata: two\r\ndata: three\r\n\r\n";
	struct sse sse = {0};
	struct seen s = {.n = 0};

	(void)state;
	for (size_t i = 0; in[i]; i++)
		assert_int_equal(sse_feed(&sse, in + i, 1, on_event, &s), 0);
	assert_string_equal(s.text, "one|two\nthree|");
	sse_fini(&sse);
}

static void test_refused_event_ends_the_feed(void **state)
{
	const char *in = "data: a\n\ndata: b\n\ndata: c\n\n";
	struct sse sse = {0};
	struct seen s = {.stop_at = 2};

	(void)state;
	assert_int_equal(sse_feed(&sse, in, strlen(in), on_event, &s), -ECANCELED);
	assert_string_equal(s.text, "a|b|");
	sse_fini(&sse);
}

static int count_event(void *user, const char *data, size_t len)
{
	*(size_t *)user += len;
	return 0;
}

static void test_endless_event_is_refused(void **state)
{
	size_t n = 1 << 20, total = 0;
	char *piece = malloc(n);
	struct sse sse = {0};
	int ret = 0;

	(void)state;
	memset(piece, 'x', n);
	assert_int_equal(sse_feed(&sse, "data: ", 6, count_event, &total), 0);
	for (int i = 0; i < 70 && ret == 0; i++)
		ret = sse_feed(&sse, piece, n, count_event, &total);
	assert_int_equal(ret, -EMSGSIZE);
	assert_int_equal(total, 0);
	sse_fini(&sse);
	free(piece);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_events_are_the_same_however_the_bytes_are_split),
		cmocka_unit_test(test_bytes_come_one_by_one),
		cmocka_unit_test(test_refused_event_ends_the_feed),
		cmocka_unit_test(test_endless_event_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
