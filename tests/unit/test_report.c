/* The JSON that a bench leaves: all of it, or what was there. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <sys/stat.h>
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

static void test_a_folder_that_cannot_be_written_costs_the_json(void **state)
{
	struct report r;

	(void)state;
	setenv("HEDDLE_BENCH_DIR", "/nonexistent/bench", 1);
	report_open(&r, "speed", "A title");
	add(&r, "one", 1);
	assert_int_equal(r.rows, 1); /* and the table goes on */
	assert_int_equal(report_close(&r), EX_IOERR);
	assert_int_equal(files(), 0);
}

static void test_json_that_cannot_be_written_is_told(void **state)
{
	struct report r;

	(void)state;
	report_open(&r, "speed", "A title");
	add(&r, "one", 1);
	assert_int_equal(mkdir(json_path(), 0700), 0); /* which no file replaces */
	assert_int_equal(report_close(&r), EX_IOERR);
	assert_int_equal(files(), 1); /* nothing beside it */
	assert_int_equal(rmdir(json_path()), 0);
}

static void test_a_table_that_cannot_be_written_is_told(void **state)
{
	int fd = open("/dev/full", O_WRONLY | O_CLOEXEC), before;
	struct report r;
	int code;

	(void)state;
	if (fd < 0) {
		print_message("no /dev/full\n");
		skip();
	}
	fflush(stdout);
	before = dup(STDOUT_FILENO);
	assert_true(before >= 0 && dup2(fd, STDOUT_FILENO) >= 0);
	report_open(&r, "speed", "A title");
	add(&r, "one", 1);
	code = report_close(&r);
	assert_true(dup2(before, STDOUT_FILENO) >= 0);
	clearerr(stdout);
	close(before);
	close(fd);
	assert_int_equal(code, EX_IOERR);
	assert_int_equal(rows_of_file(), 1); /* costs the table only */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_json_is_there_when_it_is_whole, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_a_folder_that_cannot_be_written_costs_the_json, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_json_that_cannot_be_written_is_told, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_a_table_that_cannot_be_written_is_told, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
