/* The JSON that a bench leaves: all of it, or what was there. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "shm/util.h"
#include "tests/bench/report.h"

static char dir[64];

static int setup(void **state)
{
	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/heddle-report.XXXXXX");
	return mkdtemp(dir) && setenv("HEDDLE_BENCH_DIR", dir, 1) == 0 ? 0 : -1;
}

static const char *json_path(void)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/speed.json", dir);
	return path;
}

static int teardown(void **state)
{
	(void)state;
	unlink(json_path());
	return rmdir(dir);
}

static void add(struct report *r, const char *what, double value)
{
	report_add(r, &(struct report_row){.what = what, .value = value, .unit = "ns", .most = 3});
}

static size_t rows_of_file(void)
{
	json_t *root = json_load_file(json_path(), 0, NULL);
	size_t n = json_array_size(json_object_get(root, "rows"));

	assert_string_equal(json_string_value(json_object_get(root, "bench")), "speed");
	json_decref(root);
	return n;
}

static unsigned files(void)
{
	DIR *d = opendir(dir);
	unsigned n = 0;

	assert_non_null(d);
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

static void test_json_is_there_when_it_is_whole(void **state)
{
	struct report r;

	(void)state;
	report_open(&r, "speed", "A title");
	add(&r, "one", 1);
	add(&r, "two", 4);
	assert_int_equal(files(), 0); /* stopped here, a bench leaves none */
	assert_int_equal(report_close(&r), 0);
	assert_int_equal(files(), 1);
	assert_int_equal(rows_of_file(), 2);
	report_open(&r, "speed", "The same again");
	add(&r, "one", 1);
	assert_int_equal(rows_of_file(), 2); /* or that of the run before */
	assert_int_equal(report_close(&r), 0);
	assert_int_equal(files(), 1);
	assert_int_equal(rows_of_file(), 1);
}

static void test_a_folder_that_cannot_be_written_costs_the_json_only(void **state)
{
	struct report r;

	(void)state;
	setenv("HEDDLE_BENCH_DIR", "/nonexistent/bench", 1);
	report_open(&r, "speed", "A title");
	add(&r, "one", 1);
	assert_int_equal(report_close(&r), 0);
	assert_int_equal(files(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_json_is_there_when_it_is_whole, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_a_folder_that_cannot_be_written_costs_the_json_only, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
