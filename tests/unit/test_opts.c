#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/opts.h"

static int parse(const char *line, struct opts *o, struct errbuf *err)
{
	static char buf[512];
	static char *argv[64];
	int argc = 0;
	char *word;

	snprintf(buf, sizeof(buf), "heddled %s", line);
	for (word = strtok(buf, " "); word; word = strtok(NULL, " "))
		argv[argc++] = word;
	return opts_parse(argc, argv, o, err);
}

static void test_options_alone_and_joined(void **state)
{
	struct opts o;

	(void)state;
	assert_int_equal(parse("", &o, NULL), 0);
	assert_false(o.foreground || o.check || o.version || o.help);
	assert_null(o.file);
	assert_int_equal(parse("-ft -c /x -s a.b=1 -sc.d=2", &o, NULL), 0);
	assert_true(o.foreground && o.check);
	assert_string_equal(o.file, "/x");
	assert_int_equal(o.set_n, 2);
	assert_string_equal(o.sets[0], "a.b=1");
	assert_string_equal(o.sets[1], "c.d=2");
	assert_int_equal(parse("--version", &o, NULL), 0);
	assert_true(o.version);
	assert_int_equal(parse("-fc/y --help", &o, NULL), 0);
	assert_true(o.foreground && o.help);
	assert_string_equal(o.file, "/y");
}

static void test_errors_say_what_is_wrong_with_64(void **state)
{
	static const char *const cases[][2] = {{"-x", "-x"}, {"-fx", "-x"}, {"-c", "-c needs FILE"},
		{"-s", "-s needs SECTION.KEY=VALUE"}, {"stray", "stray"}, {"-", "\"-\""},
		{"--foo", "--foo"}, {"--", "--"}};
	struct opts o = {.file = "untouched"};
	struct errbuf err;
	size_t i;

	(void)state;
	for (i = 0; i < ARRAY_LEN(cases); i++) {
		assert_int_equal(parse(cases[i][0], &o, &err), -EINVAL);
		assert_int_equal(err.exit_code, EXIT_USAGE_ERR);
		if (!strstr(err.text, cases[i][1]))
			fail_msg("%s: %s", cases[i][0], err.text);
		assert_string_equal(o.file, "untouched");
	}
}

static void test_too_many_settings_are_refused(void **state)
{
	static char *argv[2 * OPTS_SETS_MAX + 4] = {"heddled"};
	struct opts o;
	struct errbuf err;
	int argc = 1, i;

	(void)state;
	for (i = 0; i < OPTS_SETS_MAX; i++) {
		argv[argc++] = "-s";
		argv[argc++] = "a.b=1";
	}
	assert_int_equal(opts_parse(argc, argv, &o, &err), 0);
	assert_int_equal(o.set_n, OPTS_SETS_MAX);
	argv[argc++] = "-s";
	argv[argc++] = "a.b=1";
	assert_int_equal(opts_parse(argc, argv, &o, &err), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_options_alone_and_joined),
		cmocka_unit_test(test_errors_say_what_is_wrong_with_64),
		cmocka_unit_test(test_too_many_settings_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
