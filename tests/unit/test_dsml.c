/*
 * Completions taken apart, cut at every place.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "coordinator/dsml.h"
#include "tests/unit/text_fixture.h"

#define D      "｜DSML｜"
#define BLOCK  "\n\n<" D "tool_calls>\n"
#define END    "</" D "tool_calls>"
#define CALL   "<" D "invoke name=\""
#define DONE   "</" D "invoke>\n"
#define TEXT   "\" string=\"true\">"
#define JSON   "\" string=\"false\">"
#define PARAM  "<" D "parameter name=\""
#define CLOSE  "</" D "parameter>\n"
#define NAME76 "n234567890123456789012345678901234567890123456789012345678901234567890123456"

/*
 * What came out: [R]reasoning [C]content [0:name]arguments, neighbours of a kind joined; ~ where a
 * call had no end.
 */
struct seen {
	struct outbuf text, args;
	int last;
	bool open;
	const char *pushed;
};

static void see_end(struct seen *s)
{
	if (s->open)
		outbuf_puts(&s->text, "~");
	s->open = false;
}

static void see_call(struct seen *s, const struct dsml_event *e)
{
	json_t *json;

	if (e->kind == DSML_CALL) {
		see_end(s);
		outbuf_printf(&s->text, "[%u:%.*s]", e->index, (int)e->len, e->text);
		outbuf_clear(&s->args);
		s->open = true;
	} else if (e->kind == DSML_ARGUMENTS) {
		assert_true(s->open);
		outbuf_add(&s->args, e->text, e->len);
		outbuf_add(&s->text, e->text, e->len);
	} else {
		assert_true(s->open);
		json = json_loadb(s->args.data, s->args.len, JSON_REJECT_DUPLICATES, NULL);
		if (!json_is_object(json))
			fail_msg("no object: %.*s", (int)s->args.len, s->args.data);
		json_decref(json);
		s->open = false;
	}
}

static int see(void *arg, const struct dsml_event *e)
{
	struct seen *s = arg;

	assert_true((e->len > 0) == (e->kind != DSML_CALL_END));
	if (e->kind >= DSML_CALL) {
		see_call(s, e);
	} else {
		see_end(s);
		if (s->last != (int)e->kind)
			outbuf_puts(&s->text, e->kind == DSML_REASONING ? "[R]" : "[C]");
		assert_memory_equal(s->pushed + e->at, e->text, e->len);
		outbuf_add(&s->text, e->text, e->len);
	}
	s->last = (int)e->kind;
	return 0;
}

static void see_fini(struct seen *s)
{
	outbuf_fini(&s->text);
	outbuf_fini(&s->args);
}

enum { THINK = 1, CUT = 2, NO_CALLS = 4 };

static const struct {
	const char *what, *text, *want;
	int flags;
} rows[] = {
	{"nothing", "", "", 0},
	{"content", "hello", "[C]hello", 0},
	{"reasoning and content", "I think.</think>Yes.", "[R]I think.[C]Yes.", THINK},
	{"reasoning only, cut", "I thi", "[R]I thi", THINK | CUT},
	{"reasoning that ends in half a marker", "a</thi", "[R]a</thi", THINK | CUT},
	{"no reasoning", "</think>Yes.", "[C]Yes.", THINK},
	{"a second </think> is content", "a</think>b</think>c", "[R]a[C]b</think>c", THINK},
	{"plain mode knows no </think>", "a</think>b", "[C]a</think>b", 0},
	{"nearly a marker", "a</</think</think>b", "[R]a</</think[C]b", THINK},
	{"markup inside the reasoning", "x" BLOCK CALL "f\">\n" DONE END "</think>hello",
		"[R]x" BLOCK CALL "f\">\n" DONE END "[C]hello", THINK},
	{"one call", "ok" BLOCK CALL "f\">\n" PARAM "a" TEXT "Paris" CLOSE DONE END,
		"[C]ok[0:f]{\"a\": \"Paris\"}", 0},
	{"a call right after the reasoning",
		"r</think>" BLOCK CALL "f\">\n" PARAM "a" TEXT "b" CLOSE DONE END,
		"[R]r[0:f]{\"a\": \"b\"}", THINK},
	{"types",
		BLOCK CALL "f\">\n" PARAM "count" JSON "5" CLOSE PARAM "flag" JSON
			   "true" CLOSE PARAM "cfg" JSON "{\"a\":1,\"b\":[1e-7]}" CLOSE PARAM
			   "zip" TEXT "00123" CLOSE PARAM "sp" TEXT " 5 " CLOSE PARAM "nope" JSON
			   "nope" CLOSE PARAM "n" JSON "null" CLOSE PARAM "e" TEXT "" CLOSE PARAM
			   "z" JSON "" CLOSE DONE END,
		"[0:f]{\"count\": 5, \"flag\": true, \"cfg\": {\"a\":1,\"b\":[1e-7]}, "
		"\"zip\": \"00123\", \"sp\": \" 5 \", \"nope\": \"nope\", \"n\": null, "
		"\"e\": \"\", \"z\": \"\"}",
		0},
	{"text is escaped",
		BLOCK CALL "f\">\n" PARAM "a\\b" TEXT "\"q\"\n\t\\ é </b>" CLOSE DONE END,
		"[0:f]{\"a\\\\b\": \"\\\"q\\\"\\n\\t\\\\ é </b>\"}", 0},
	{"two calls, the first without parameters",
		BLOCK CALL "f\">\n\n" DONE CALL NAME76 "\">\n" PARAM "a" TEXT "b" CLOSE DONE END,
		"[0:f]{}[1:" NAME76 "]{\"a\": \"b\"}", 0},
	{"content after the calls, and a second block",
		BLOCK CALL "f\">\n" DONE END "more" BLOCK CALL "g\">\n" DONE END "\n",
		"[0:f]{}[C]more[1:g]{}[C]\n", 0},
	{"fields called arguments and input",
		BLOCK CALL "f\">\n" PARAM "arguments" JSON "{}" CLOSE PARAM "input" TEXT
			   "x" CLOSE DONE END,
		"[0:f]{\"arguments\": {}, \"input\": \"x\"}", 0},
	{"newlines before the block", "a\n\n" BLOCK CALL "f\">\n" DONE END, "[C]a\n\n[0:f]{}", 0},
	{"a request without tools", "a" BLOCK CALL "f\">\n" DONE END,
		"[C]a" BLOCK CALL "f\">\n" DONE END, NO_CALLS},
	{"one newline before the block", "a\n<" D "tool_calls>\n" CALL "f\">\n" DONE END,
		"[C]a[0:f]{}", 0},
	{"no newline before the block", "a<" D "tool_calls>" CALL "f\">" DONE END, "[C]a[0:f]{}",
		0},
	{"nothing before the block", "r</think><" D "tool_calls>" CALL "f\">" DONE END,
		"[R]r[0:f]{}", THINK},
	{"newlines that are content", "a\n\n\nb\n\n<c\n<" D "\n", "[C]a\n\n\nb\n\n<c\n<" D "\n", 0},
	{"doubled bars", "\n\n<｜｜DSML｜｜tool_calls>x", "[C]\n\n<｜｜DSML｜｜tool_calls>x", 0},
	{"bare closers", "a" END DONE CLOSE "b", "[C]a" END DONE CLOSE "b", 0},
	{"a block without calls", "a" BLOCK END "b", "[C]a" BLOCK END "b", 0},
	{"text inside the block", "a" BLOCK "hm " CALL "f\">\n" DONE END,
		"[C]a" BLOCK "hm " CALL "f\">\n" DONE END, 0},
	{"a call without a name", BLOCK CALL "\">\n" DONE END, "[C]" BLOCK CALL "\">\n" DONE END,
		0},
	{"a parameter without a type", BLOCK CALL "f\">\n" PARAM "a\">x" CLOSE DONE END,
		"[C]" BLOCK CALL "f\">\n" PARAM "a\">x" CLOSE DONE END, 0},
	{"a parameter that does not end in its call",
		BLOCK CALL "f\">\n" PARAM "a" TEXT "x" DONE CALL "g\">\n" PARAM "b" TEXT
			   "y" CLOSE DONE END,
		"[C]" BLOCK CALL "f\">\n" PARAM "a" TEXT "x" DONE CALL "g\">\n" PARAM "b" TEXT
		"y" CLOSE DONE END,
		0},
	{"a parameter twice",
		BLOCK CALL "f\">\n" PARAM "a" TEXT "x" CLOSE PARAM "a" TEXT "y" CLOSE DONE END,
		"[C]" BLOCK CALL "f\">\n" PARAM "a" TEXT "x" CLOSE PARAM "a" TEXT
		"y" CLOSE DONE END,
		0},
	{"the second call is broken", "c" BLOCK CALL "f\">\n" DONE CALL "g\">\nwhat" DONE END,
		"[C]c[0:f]{}[C]\n" CALL "g\">\nwhat" DONE END, 0},
	{"a good block after a broken one", BLOCK "?" BLOCK CALL "f\">\n" DONE END,
		"[C]" BLOCK "?[0:f]{}", 0},
	{"a good block inside a broken call", BLOCK CALL "f" BLOCK CALL "g\">\n" DONE END,
		"[C]" BLOCK CALL "f[0:g]{}", 0},
	{"an end inside a call is content", "a" BLOCK CALL "f\">\n" PARAM "a" TEXT "Par",
		"[C]a" BLOCK CALL "f\">\n" PARAM "a" TEXT "Par", 0},
	{"an end inside the second call is content", BLOCK CALL "f\">\n" DONE CALL "g",
		"[0:f]{}[C]\n" CALL "g", 0},
	{"an end before the block is closed", BLOCK CALL "f\">\n" DONE, "[0:f]{}", 0},
	{"an end inside the opening is content", "a\n\n<" D "tool_", "[C]a\n\n<" D "tool_", 0},
	{"cut inside a call", "a" BLOCK CALL "f\">\n" PARAM "a" TEXT "Par", "[C]a", CUT},
	{"cut inside a closing", "a" BLOCK CALL "f\">\n" PARAM "a" TEXT "Paris</" D "parameter",
		"[C]a", CUT},
	{"cut inside a closing of a call", "a" BLOCK CALL "f\">\n" PARAM "a" TEXT "Paris</" D "inv",
		"[C]a", CUT},
	{"cut inside the second call", BLOCK CALL "f\">\n" DONE CALL "g\">\n", "[0:f]{}", CUT},
	{"cut inside a JSON value", BLOCK CALL "f\">\n" PARAM "a" JSON "{\"b\": [1", "", CUT},
	{"a name that another begins with",
		BLOCK CALL "f\">\n" PARAM "ab" TEXT "1" CLOSE PARAM "a" TEXT "2" CLOSE PARAM "" TEXT
			   "3" CLOSE PARAM "b" TEXT "4" CLOSE DONE END,
		"[0:f]{\"ab\": \"1\", \"a\": \"2\", \"\": \"3\", \"b\": \"4\"}", 0},
	{"nearly closings inside a value",
		BLOCK CALL "f\">\n" PARAM "a" TEXT "x</</" D "par</" D "invoke </" D
			   "tool_calls>é" CLOSE DONE END,
		"[0:f]{\"a\": \"x</</" D "par</" D "invoke </" D "tool_calls>é\"}", 0},
	{"cut inside the opening", "a\n\n<" D "tool_", "[C]a", CUT},
	{"cut inside a bar of the opening", "a\n\n<｜", "[C]a", CUT},
	{"cut after what may be anything", "a\n\n<", "[C]a\n\n<", CUT},
	{"cut in a text that knows no calls", "a\n\n<｜", "[C]a\n\n<｜", CUT | NO_CALLS},
	{"cut after newlines", "a\n\n", "[C]a\n\n", CUT},
	{"cut after the opening", "a" BLOCK, "[C]a", CUT},
};

/* What is wanted of a row without holding anything back, where it is not the same. */
static const struct {
	const char *what, *want;
} pieces[] = {
	{"a parameter without a type", "[0:f]{~[C]\n" PARAM "a\">x" CLOSE DONE END},
	{"a parameter that does not end in its call",
		"[0:f]{\"a\": \"x~[C]" DONE CALL "g\">\n" PARAM "b" TEXT "y" CLOSE DONE END},
	{"a parameter twice", "[0:f]{\"a\": \"x\"~[C]\n" PARAM "a" TEXT "y" CLOSE DONE END},
	{"the second call is broken", "[C]c[0:f]{}[1:g]{~[C]\nwhat" DONE END},
	{"an end inside a call is content", "[C]a[0:f]{\"a\": \"Par~"},
	{"cut inside a call", "[C]a[0:f]{\"a\": \"Par~"},
	{"cut inside a closing", "[C]a[0:f]{\"a\": \"Paris~"},
	{"cut inside a closing of a call", "[C]a[0:f]{\"a\": \"Paris~"},
	{"cut inside the second call", "[0:f]{}[1:g]{~"},
	{"cut inside a JSON value", "[0:f]{\"a\": ~"},
};

static const char *wanted(size_t row, size_t hold)
{
	for (size_t i = 0; i < ARRAY_LEN(pieces) && !hold; i++)
		if (!strcmp(rows[row].what, pieces[i].what))
			return pieces[i].want;
	return rows[row].want;
}

/* Feeds text in pieces that end at the given places. */
static void run(size_t row, size_t hold, const size_t *ends, size_t n, struct seen *s)
{
	const char *text = rows[row].text;
	size_t at = 0, len = strlen(text);
	struct dsml d;

	*s = (struct seen){.last = -1, .pushed = text};
	dsml_init(&d, rows[row].flags & THINK, !(rows[row].flags & NO_CALLS), hold, see, s);
	for (size_t i = 0; i <= n; i++) {
		size_t to = i < n ? ends[i] : len;
		char *exact = malloc(to - at + 1);

		memcpy(exact, text + at, to - at);
		assert_int_equal(dsml_push(&d, exact, to - at), 0);
		assert_true(dsml_pending(&d) <= to);
		free(exact);
		at = to;
	}
	assert_int_equal(dsml_finish(&d, rows[row].flags & CUT), 0);
	dsml_fini(&d);
	see_end(s);
	outbuf_add(&s->text, "", 1);
}

static void expect(size_t row, const size_t *ends, size_t n)
{
	static const size_t holds[] = {DSML_WHOLE, 0, 9};
	const char *want;
	struct seen s, once;

	for (size_t i = 0; i < ARRAY_LEN(holds); i++) {
		run(row, holds[i], NULL, 0, &once);
		run(row, holds[i], ends, n, &s);
		/* some calls are held back and others are not: only the cuts are compared */
		want = holds[i] == 9 ? once.text.data : wanted(row, holds[i]);
		if (strcmp(s.text.data, want) != 0)
			fail_msg("%s, holding %zu:\ngot  %s\nwant %s", rows[row].what, holds[i],
				s.text.data, want);
		see_fini(&s);
		see_fini(&once);
	}
}

static void test_rows_give_what_is_wanted(void **state)
{
	(void)state;
	for (size_t row = 0; row < ARRAY_LEN(rows); row++)
		expect(row, NULL, 0);
}

static void test_cutting_anywhere_changes_nothing(void **state)
{
	uint64_t rng = fixture_seed();

	(void)state;
	for (size_t row = 0; row < ARRAY_LEN(rows); row++) {
		size_t len = strlen(rows[row].text), ends[1024];

		assert_true(len < ARRAY_LEN(ends));
		for (size_t i = 0; i < len; i++)
			ends[i] = i;
		expect(row, ends, len); /* byte by byte */
		for (size_t i = 0; i <= len; i++)
			expect(row, &i, 1); /* in two, at every place */
		for (size_t k = 1; k < 30; k++) {
			size_t n = 0;

			for (size_t at = k; at < len; at += k)
				ends[n++] = at;
			expect(row, ends, n);
		}
		for (int round = 0; round < 50 && len; round++) {
			size_t n = 0;

			for (size_t at = 0; at < len; at += fixture_random(&rng) % 12)
				ends[n++ % ARRAY_LEN(ends)] = at;
			if (n < ARRAY_LEN(ends))
				expect(row, ends, n);
		}
	}
}

/* Markup in any order: whatever the cut, the same; and nothing but good calls is ever missing. */
static void test_random_markup_never_depends_on_the_cut(void **state)
{
	static const char *const bits[] = {BLOCK, END, CALL, DONE, TEXT, JSON, PARAM, CLOSE, "f",
		"\">\n", "a", "1", "\n", "\n\n", "</think>", "<", D, "\n\n<" D, "x\ny", "é",
		BLOCK CALL "f\">\n" PARAM "p" TEXT "text", CLOSE PARAM "q" TEXT};
	static const size_t holds[] = {DSML_WHOLE, 0, 1, 8, 20};
	uint64_t rng = fixture_seed();

	(void)state;
	for (int round = 0; round < 4000; round++) {
		struct seen one = {.last = -1}, many = {.last = -1};
		struct outbuf text = {0};
		struct dsml a, b;
		bool think = fixture_random(&rng) & 1, cut = fixture_random(&rng) & 1;
		size_t hold = holds[fixture_random(&rng) % ARRAY_LEN(holds)];
		size_t n = fixture_random(&rng) % 25;

		for (size_t i = 0; i < n; i++)
			outbuf_puts(&text, bits[fixture_random(&rng) % ARRAY_LEN(bits)]);
		one.pushed = many.pushed = text.data;
		dsml_init(&a, think, true, hold, see, &one);
		dsml_init(&b, think, true, hold, see, &many);
		assert_int_equal(dsml_push(&a, text.data, text.len), 0);
		for (size_t at = 0, k; at < text.len; at += k) {
			k = 1 + fixture_random(&rng) % 9;
			k = MIN(k, text.len - at);
			assert_int_equal(dsml_push(&b, text.data + at, k), 0);
		}
		assert_int_equal(dsml_finish(&a, cut), 0);
		assert_int_equal(dsml_finish(&b, cut), 0);
		see_end(&one);
		see_end(&many);
		outbuf_add(&one.text, "", 1);
		outbuf_add(&many.text, "", 1);
		if (strcmp(one.text.data, many.text.data) != 0)
			fail_msg("%s%.*s\nat once  %s\nin parts %s", think ? "(thinking) " : "",
				(int)text.len, text.data, one.text.data, many.text.data);
		dsml_fini(&a);
		dsml_fini(&b);
		see_fini(&one);
		see_fini(&many);
		outbuf_fini(&text);
	}
}

/* Many openings that lead nowhere: neither the stack nor the time may grow with their square. */
static void test_many_broken_blocks_are_content(void **state)
{
	struct seen s = {.last = -1};
	struct outbuf text = {0};
	struct dsml d;

	(void)state;
	for (int i = 0; i < 20000; i++)
		outbuf_puts(&text, i & 1 ? BLOCK CALL "f\">" : BLOCK "?");
	s.pushed = text.data;
	dsml_init(&d, false, true, DSML_WHOLE, see, &s);
	assert_int_equal(dsml_push(&d, text.data, text.len), 0);
	assert_int_equal(dsml_finish(&d, false), 0);
	assert_int_equal(s.text.len, text.len + 3);
	assert_memory_equal(s.text.data + 3, text.data, text.len);
	dsml_fini(&d);
	see_fini(&s);
	outbuf_fini(&text);
}

/* Of a long text, all but what may be a closing is on its way at once; a short call waits. */
static void test_long_text_is_handed_over_while_it_comes(void **state)
{
	static const char head[] = BLOCK CALL "f\">\n" PARAM "a" TEXT;
	struct seen s = {.last = -1};
	struct dsml d;

	(void)state;
	dsml_init(&d, false, true, 100, see, &s);
	assert_int_equal(dsml_push(&d, head, strlen(head)), 0);
	for (size_t i = 1; i <= 20000; i++) {
		assert_int_equal(dsml_push(&d, i % 7 ? "x" : "<", 1), 0);
		assert_int_equal(s.open, i + strlen("{\"a\": \"") > 100 + !(i % 7));
		if (s.open)
			assert_true(s.args.len + 1 >= i + strlen("{\"a\": \""));
	}
	assert_int_equal(dsml_push(&d, CLOSE DONE END, strlen(CLOSE DONE END)), 0);
	assert_false(s.open);
	assert_int_equal(dsml_finish(&d, false), 0);
	dsml_fini(&d);
	see_fini(&s);
}

static int refuse(void *arg, const struct dsml_event *e)
{
	(void)arg;
	(void)e;
	return -EPIPE;
}

static void test_what_the_sink_says_comes_back(void **state)
{
	struct dsml d;

	(void)state;
	dsml_init(&d, false, true, DSML_WHOLE, refuse, NULL);
	assert_int_equal(dsml_push(&d, "a", 1), -EPIPE);
	dsml_fini(&d);
	dsml_init(&d, false, true, DSML_WHOLE, refuse, NULL);
	assert_int_equal(
		dsml_push(&d, BLOCK CALL "f\">\n" DONE, strlen(BLOCK CALL "f\">\n" DONE)), -EPIPE);
	dsml_fini(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows_give_what_is_wanted),
		cmocka_unit_test(test_cutting_anywhere_changes_nothing),
		cmocka_unit_test(test_random_markup_never_depends_on_the_cut),
		cmocka_unit_test(test_many_broken_blocks_are_content),
		cmocka_unit_test(test_long_text_is_handed_over_while_it_comes),
		cmocka_unit_test(test_what_the_sink_says_comes_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
