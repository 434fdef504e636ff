/* The configuration table, its parser and its dumps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/conf_rows.h"

static struct conf_set set;
static struct errbuf err;

static int setup(void **state)
{
	memset(&err, 0, sizeof(err));
	return conf_init(&set);
}

static int teardown(void **state)
{
	conf_fini(&set);
	return 0;
}

static int read_text(const char *text)
{
	return conf_read(&set, "x.ini", text, strlen(text), &err);
}

static void assert_refused(const char *text, const char *sentence)
{
	assert_true(read_text(text) < 0);
	assert_int_equal(err.exit_code, EXIT_CONFIG_ERR);
	if (strcmp(err.text, sentence) != 0)
		fail_msg("got:  %s\nwant: %s", err.text, sentence);
}

static void test_defaults_are_in_range_and_print_as_written(void **state)
{
	char value[CONF_VALUE_MAX];
	size_t i;

	for (i = 0; i < CONF_ROW__COUNT; i++) {
		assert_int_equal(
			conf_row_parse(&conf_rows[i], conf_rows[i].def, &set.conf, &err), 0);
		conf_row_print(&conf_rows[i], &set.conf, value, sizeof(value));
		assert_string_equal(value, conf_rows[i].def);
	}
}

static void test_values_of_every_type_are_read(void **state)
{
	assert_int_equal(
		read_text("\xef\xbb\xbf[model]\npath = /m ; where\n[listen]\nmode=0600\n"
			  "[fabric]\nworkers = 3\nspin = 7us\npin=off\nring = 64K\nbackend=cpu\n"
			  "  threads = auto\n[api]\ntemperature=0.25\n"),
		0);
	assert_string_equal(set.conf.model_path, "/m");
	assert_int_equal(set.conf.listen_mode, 0600);
	assert_int_equal(set.conf.fabric_workers, 3);
	assert_int_equal(set.conf.fabric_threads, CONF_AUTO);
	assert_int_equal(set.conf.fabric_spin, 7000);
	assert_int_equal(set.conf.fabric_pin, 0);
	assert_int_equal(set.conf.fabric_ring, 65536);
	assert_int_equal(set.conf.fabric_backend, CONF_BACKEND_CPU);
	assert_true(set.conf.api_temperature == 0.25);
}

static void test_units_are_exact(void **state)
{
	assert_int_equal(read_text("[schedule]\nqueue_timeout = 1.5s\n[cache]\nmemory=3g\n"
				   "[api]\nheader_timeout=2\ndrain_seconds=0\n"),
		0);
	assert_int_equal(set.conf.schedule_queue_timeout, 1500000000);
	assert_int_equal(set.conf.cache_memory, 3ll << 30);
	assert_int_equal(set.conf.api_header_timeout, 2000000000);
	assert_int_equal(set.conf.api_drain_seconds, 0);
}

static void test_errors_name_line_and_what_would_be_right(void **state)
{
	static const char *const cases[][2] = {
		{"[fabrik]\nworkers=1\n",
			"x.ini:1: unknown section [fabrik]; the nearest is [fabric]"},
		{"[fabric]\nworker=1\n",
			"x.ini:2: unknown key worker in [fabric]; the nearest is fabric.workers"},
		{"[api]\nprogress_timeot=1\n", "x.ini:2: unknown key progress_timeot in [api]; the "
					       "nearest is fabric.progress_timeout"},
		{"[fabric]\n\nworkers=0\n",
			"x.ini:3: fabric.workers = 0: must be 1 to 64, or auto"},
		{"[fabric]\nworkers=2x\n",
			"x.ini:2: fabric.workers = 2x: must be 1 to 64, or auto"},
		{"[fabric]\nworkers=\n", "x.ini:2: fabric.workers = : must be 1 to 64, or auto"},
		{"[fabric]\npin=maybe\n", "x.ini:2: fabric.pin = maybe: must be on or off"},
		{"[fabric]\nbackend=tpu\n",
			"x.ini:2: fabric.backend = tpu: must be auto, cpu or cuda"},
		{"[fabric]\nring=8Q\n", "x.ini:2: fabric.ring = 8Q: must be 64K to 1G"},
		{"[fabric]\nring=99999999999999999999\n",
			"x.ini:2: fabric.ring = 99999999999999999999: must be 64K to 1G"},
		{"[fabric]\nring=1.1e2222\n", "x.ini:2: fabric.ring = 1.1e2222: must be 64K to 1G"},
		{"[fabric]\nring=1.5e3K\n", "x.ini:2: fabric.ring = 1.5e3K: must be 64K to 1G"},
		{"[cache]\nmemory=9223372036854775807.9\n",
			"x.ini:2: cache.memory = 9223372036854775807.9: must be 1M to 1024G, or "
			"auto"},
		{"[api]\ntop_p=nan\n", "x.ini:2: api.top_p = nan: must be 0 to 1, or model"},
		{"[api]\ntop_p=1.01\n", "x.ini:2: api.top_p = 1.01: must be 0 to 1, or model"},
		{"[listen]\nmode=0888\n", "x.ini:2: listen.mode = 0888: must be 0000 to 0777"},
		{"[fabric]\nworkers=1\nworkers=1\n",
			"x.ini:3: fabric.workers is set twice; it was set at line 2"},
		{"[fabric]\nworkers=1\n[api]\n[fabric]\nworkers=2\n",
			"x.ini:5: fabric.workers is set twice; it was set at line 2"},
		{"[fabric]\nnonsense\n", "x.ini:2: neither [section] nor KEY = VALUE"},
		{"[model]\npath=;x\n", "x.ini:2: model.path: must not hold control characters, "
				       "\" ;\" or begin with ;"},
		{"[fabric\n", "x.ini:1: neither [section] nor KEY = VALUE"},
	};
	size_t i;

	for (i = 0; i < ARRAY_LEN(cases); i++)
		assert_refused(cases[i][0], cases[i][1]);
}

/* inih takes one away at the first line, and with it what our look at sections begins with. */
static void test_byte_order_marks_behind_the_first_bytes_are_refused(void **state)
{
	static const char *const cases[][2] = {
		{"\xef\xbb\xbf\xef\xbb\xbf[nosuch]\n", "x.ini:1: "},
		{"\xef\xbb\xbf \xef\xbb\xbf[nosuch]\n", "x.ini:1: "},
		{"\t\xef\xbb\xbf[nosuch]\n", "x.ini:1: "},
		{"\xef\xbb\xbf[model]\n\xef\xbb\xbf[fabric]\n", "x.ini:2: "},
		{"[model]\n\xef\xbb\xbf; a comment\n", "x.ini:2: "},
	};
	char sentence[256];

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		snprintf(sentence, sizeof(sentence),
			"%sa byte order mark (EF BB BF) behind the file's first bytes: remove it",
			cases[i][1]);
		assert_refused(cases[i][0], sentence);
	}
}

/* A line may be of any length, also where inih's buffer ends; a value has as many bytes as with -s.
 */
static void test_values_of_any_length_are_read_whole(void **state)
{
	static const char *const heads[] = {"path=", "  path  =  ", "path:"};
	static const char *const tails[] = {"", " \t", " ; a comment = x", "\r"};
	char text[4096], value[CONF_STR_MAX + 8], assignment[2048];
	size_t n, i;

	for (n = 150; n <= CONF_STR_MAX; n += n > 230 && n < 1000 ? 37 : 1) {
		memset(value, 'x', n);
		value[n - 1] = '=';
		value[n] = '\0';
		snprintf(assignment, sizeof(assignment), "model.path=%s", value);
		for (i = 0; i < ARRAY_LEN(heads) * ARRAY_LEN(tails); i++) {
			snprintf(text, sizeof(text), "[model]\n%s%s%s\nname = after\n",
				heads[i % 3], value, tails[i / 3]);
			if (n == CONF_STR_MAX) {
				assert_refused(text, "x.ini:2: model.path: longer than 1023 bytes");
				assert_true(conf_override(&set, assignment, &err) < 0);
				continue;
			}
			if (read_text(text) < 0)
				fail_msg("%s", err.text);
			assert_string_equal(set.conf.model_path, value);
			assert_string_equal(set.conf.model_name, "after");
			assert_int_equal(conf_override(&set, assignment, &err), 0);
			assert_string_equal(set.conf.model_path, value);
		}
	}
}

static void test_other_long_lines_mean_what_short_ones_do(void **state)
{
	static const struct {
		const char *line, *sentence; /* # is filled up */
	} rows[] = {
		{";#", NULL},
		{"#", NULL},
		{"[model] #", NULL},
		{"[model#]", "x.ini:2: neither [section] nor KEY = VALUE"},
		{"[model#", "x.ini:2: neither [section] nor KEY = VALUE"},
		{"name#", "x.ini:2: neither [section] nor KEY = VALUE"},
		{"name ; # = a", "x.ini:2: neither [section] nor KEY = VALUE"},
		{"name # = a", "x.ini:2: neither [section] nor KEY = VALUE"},
		{"path =    ;#", NULL},
		{"nme = #", "x.ini:2: unknown key nme in [model]; the nearest is model.name"},
		{"[fabric] ; #\nworkers = 0",
			"x.ini:3: fabric.workers = 0: must be 1 to 64, or auto"},
	};
	char text[1024], filled[512];
	size_t i, at;

	memset(filled, '#', sizeof(filled) - 1);
	filled[sizeof(filled) - 1] = '\0';
	for (i = 0; i < ARRAY_LEN(rows); i++) {
		at = strcspn(rows[i].line, "#");
		snprintf(text, sizeof(text), "[model]\n%.*s%s%s\n", (int)at, rows[i].line, filled,
			rows[i].line + at + 1);
		if (rows[i].sentence)
			assert_refused(text, rows[i].sentence);
		else if (read_text(text) < 0)
			fail_msg("%s: %s", rows[i].line, err.text);
	}
	/* the mark before the first line is no part of it, however long that is */
	snprintf(text, sizeof(text), "\xef\xbb\xbf;%s\n", filled);
	assert_int_equal(read_text(text), 0);
}

static void test_bytes_that_are_no_text_are_refused(void **state)
{
	assert_true(conf_read(&set, "x.ini", "[model]\npa\0th=1\n", 16, &err) < 0);
	assert_string_equal(err.text, "x.ini:2: a NUL byte; the file must be text");
	assert_refused("[model]\nname = a\xff"
		       "b\n",
		"x.ini:2: model.name: is not valid UTF-8");
	assert_refused("[model]\nname = \xc3\n", "x.ini:2: model.name: is not valid UTF-8");
	assert_true(conf_override(&set, "model.path=/m\xed\xa0\x80", &err) < 0);
	assert_string_equal(err.text, "model.path: is not valid UTF-8");
	assert_int_equal(conf_override(&set, "model.path=/mä｜", &err), 0);
}

static void test_a_key_needs_a_section(void **state)
{
	assert_refused("path = /m\n", "x.ini:1: key path stands in no [section]");
}

static void test_an_unknown_section_is_refused_without_keys_too(void **state)
{
	static const char *const refused[][2] = {
		{"[bogus]\n", "x.ini:1: unknown section [bogus]; the nearest is [log]"},
		{"[bogus]", "x.ini:1: unknown section [bogus]; the nearest is [log]"},
		{"[]\n", "x.ini:1: unknown section []; the nearest is [api]"},
		{"[]\npath = /m\n", "x.ini:1: unknown section []; the nearest is [api]"},
		{"[model]\npath = /m\n\n \t\f[fabrik] ; workers\r\n[api]\n",
			"x.ini:4: unknown section [fabrik]; the nearest is [fabric]"},
		{"[ model ]\n", "x.ini:1: unknown section [ model ]; the nearest is [model]"},
		{"[model;x]\n", "x.ini:1: unknown section [model;x]; the nearest is [model]"},
		/* the first bad line is the one that is named */
		{"nonsense\n[bogus]\n", "x.ini:1: neither [section] nor KEY = VALUE"},
		{"[bogus]\nnonsense\n", "x.ini:1: unknown section [bogus]; the nearest is [log]"},
		{"[model ;]\n", "x.ini:1: neither [section] nor KEY = VALUE"},
	};
	static const char *const fine[] = {"; [bogus]\n# [bogus]\n;[bogus]\n",
		"[model] ; [bogus]\n", "[model]\n[model]\n[api]",
		"[model]\npath = [bogus]\nname = a\n", "[model] [bogus]\n"};

	for (size_t i = 0; i < ARRAY_LEN(refused); i++)
		assert_refused(refused[i][0], refused[i][1]);
	for (size_t i = 0; i < ARRAY_LEN(fine); i++)
		if (read_text(fine[i]) < 0)
			fail_msg("%s: %s", fine[i], err.text);
}

static void test_command_line_wins_and_origins_are_kept(void **state)
{
	char out[64];

	assert_int_equal(read_text("[fabric]\nworkers=2\nthreads=3\n"), 0);
	assert_int_equal(conf_override(&set, "fabric.workers=4", &err), 0);
	assert_int_equal(set.conf.fabric_workers, 4);
	conf_row_origin(&set, CONF_ROW_fabric_workers, out, sizeof(out));
	assert_string_equal(out, "command line");
	conf_row_origin(&set, CONF_ROW_fabric_threads, out, sizeof(out));
	assert_string_equal(out, "x.ini:3");
	assert_true(conf_was_set(&set, "fabric.threads"));
	assert_false(conf_was_set(&set, "fabric.spin"));
	assert_int_equal(conf_value(&set, "fabric.workers", out, sizeof(out)), 0);
	assert_string_equal(out, "4");
	assert_int_equal(conf_value(&set, "fabric.nothing", out, sizeof(out)), -ENOENT);
	assert_true(conf_override(&set, "fabric.workers", &err) < 0);
	assert_int_equal(err.exit_code, EXIT_USAGE_ERR);
	assert_true(conf_override(&set, "workers=1", &err) < 0);
	assert_true(conf_override(&set, "fabric.workers=99", &err) < 0);
	assert_int_equal(set.conf.fabric_workers, 4);
}

static void count_locked(void *user, const char *name)
{
	assert_string_equal(name, "fabric.workers");
	(*(int *)user)++;
}

static void test_reload_takes_over_only_what_may_change(void **state)
{
	struct conf_set next;
	int locked = 0;

	assert_int_equal(conf_init(&next), 0);
	assert_int_equal(conf_override(&next, "fabric.workers=4", &err), 0);
	assert_int_equal(conf_override(&next, "api.strict=on", &err), 0);
	conf_reload(&set, &next, count_locked, &locked);
	assert_int_equal(locked, 1);
	assert_int_equal(set.conf.api_strict, 1);
	assert_int_equal(set.conf.fabric_workers, CONF_AUTO);
	conf_fini(&next);
}

/* Of every key that reloads, the value arrives; of no other. */
static void test_take_reloaded_takes_those_and_no_others(void **state)
{
	struct conf_set from;
	struct conf to = set.conf;
	char was[CONF_VALUE_MAX], now[CONF_VALUE_MAX], want[CONF_VALUE_MAX];
	int changed = 0;

	(void)state;
	assert_int_equal(conf_init(&from), 0);
	assert_int_equal(conf_override(&from, "fabric.workers=4", &err), 0);
	assert_int_equal(conf_override(&from, "schedule.queue=7", &err), 0);
	assert_int_equal(conf_override(&from, "schedule.queue_timeout=3s", &err), 0);
	assert_int_equal(conf_override(&from, "log.level=debug", &err), 0);
	assert_int_equal(conf_override(&from, "api.strict=on", &err), 0);
	conf_take_reloaded(&to, &from.conf);
	for (size_t i = 0; i < CONF_ROW__COUNT; i++) {
		bool reloads = conf_rows[i].reload == CONF_RELOAD_RELOAD;

		conf_row_print(&conf_rows[i], &set.conf, was, sizeof(was));
		conf_row_print(&conf_rows[i], &from.conf, want, sizeof(want));
		conf_row_print(&conf_rows[i], &to, now, sizeof(now));
		assert_string_equal(now, reloads ? want : was);
		changed += strcmp(now, was) != 0;
	}
	assert_int_equal(changed, 4);
	conf_fini(&from);
}

static void test_rules_across_keys(void **state)
{
	static const struct {
		const char *set, *want;
	} cases[] = {
		{"model.path=/m", NULL},
		{"model.path=", "model.path is not set"},
		{"listen.socket=", "listen.socket and listen.tcp are both empty"},
		{"fabric.ring=65537", "fabric.ring must be a power of two"},
		{"fabric.backend=cuda", "fabric.backend = cuda"},
		{"fabric.collective=nccl", "fabric.collective = nccl"},
		{"fabric.devices=0", "fabric.devices names CUDA devices"},
		{"cache.prefix=on", "cache.prefix: reuse of common prefixes"},
		{"cache.disk_dir=/d", "cache.disk_dir and cache.disk_bytes"},
		{"guard.shadow_rate=0.5", "guard.canary_interval and guard.shadow_rate"},
	};
	size_t i;

	for (i = 0; i < ARRAY_LEN(cases); i++) {
		conf_fini(&set);
		assert_int_equal(conf_init(&set), 0);
		assert_int_equal(conf_override(&set, "model.path=/m", &err), 0);
		assert_int_equal(conf_override(&set, cases[i].set, &err), 0);
		if (!cases[i].want) {
			assert_int_equal(conf_check(&set, &err), 0);
			continue;
		}
		assert_true(conf_check(&set, &err) < 0);
		assert_int_equal(err.exit_code, EXIT_CONFIG_ERR);
		assert_non_null(strstr(err.text, cases[i].want));
	}
}

static void test_missing_file_is_66(void **state)
{
	assert_int_equal(conf_read_file(&set, "/nonexistent/heddle.ini", &err), -ENOENT);
	assert_int_equal(err.exit_code, EXIT_NO_INPUT);
}

static void test_rules_across_keys_name_the_line_of_a_file(void **state)
{
	static const char *const rows[][2] = {
		{"[fabric]\nring = 65537\n", "x.ini:4: fabric.ring must be a power of two"},
		{"[fabric]\nbackend = cuda\n", "x.ini:4: fabric.backend = cuda"},
		{"[cache]\n\nprefix = on\n", "x.ini:5: cache.prefix: "},
		{"[cache]\ndisk_bytes = 1M\n", "x.ini:4: cache.disk_dir and"},
		{"[guard]\nshadow_rate = 0.1\n", "x.ini:4: guard.canary_interval and"},
		{"[listen]\nsocket =\n", "x.ini:4: listen.socket and listen.tcp are both empty"},
	};
	char text[512];
	size_t i;

	for (i = 0; i < ARRAY_LEN(rows); i++) {
		conf_fini(&set);
		assert_int_equal(conf_init(&set), 0);
		snprintf(text, sizeof(text), "[model]\npath = /m\n%s", rows[i][0]);
		assert_int_equal(read_text(text), 0);
		assert_true(conf_check(&set, &err) < 0);
		if (strncmp(err.text, rows[i][1], strlen(rows[i][1])) != 0)
			fail_msg("got:  %s\nwant: %s", err.text, rows[i][1]);
	}
	/* the command line has the last word, and no line */
	assert_int_equal(conf_override(&set, "listen.socket=", &err), 0);
	assert_true(conf_check(&set, &err) < 0);
	assert_int_equal(strncmp(err.text, "listen.socket and", 17), 0);
}

static void test_what_is_no_file_is_refused_at_once(void **state)
{
	char path[] = "/tmp/heddle-conf.XXXXXX";

	assert_non_null(mkdtemp(path));
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(conf_read_file(&set, path, &err), -EINVAL);
	assert_non_null(strstr(err.text, "is not a regular file"));
	unlink(path);
	assert_int_equal(conf_read_file(&set, "/", &err), -EINVAL);
	assert_int_equal(conf_read_file(&set, "/dev/zero", &err), -EINVAL);
	assert_int_equal(conf_read_file(&set, "/dev/null", &err), 0);
}

/* The sample, with every key uncommented, must read back as the defaults. */
static void test_sample_reads_back_as_the_defaults(void **state)
{
	char *text, *uncommented, *in, *out;
	size_t len, i;
	FILE *f = open_memstream(&text, &len);

	assert_int_equal(conf_dump(&set, CONF_DUMP_INI, f), 0);
	fclose(f);
	uncommented = out = calloc(1, len + 1);
	for (in = text; *in; in++)
		if (!(*in == '#' && in[1] != ' ' && (in == text || in[-1] == '\n')))
			*out++ = *in;
	for (in = text; (in = strchr(in, '\n')) && in[1];) {
		in++;
		assert_true(strcspn(in, "\n") <= 100);
	}
	assert_int_equal(conf_read(&set, "sample", uncommented, strlen(uncommented), &err), 0);
	for (i = 0; i < CONF_ROW__COUNT; i++)
		assert_int_equal(set.origins->row[i].kind, CONF_FROM_FILE);
	free(text);
	free(uncommented);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_defaults_are_in_range_and_print_as_written),
		T(test_values_of_every_type_are_read),
		T(test_units_are_exact),
		T(test_errors_name_line_and_what_would_be_right),
		T(test_byte_order_marks_behind_the_first_bytes_are_refused),
		T(test_values_of_any_length_are_read_whole),
		T(test_other_long_lines_mean_what_short_ones_do),
		T(test_bytes_that_are_no_text_are_refused),
		T(test_a_key_needs_a_section),
		T(test_an_unknown_section_is_refused_without_keys_too),
		T(test_rules_across_keys_name_the_line_of_a_file),
		T(test_what_is_no_file_is_refused_at_once),
		T(test_command_line_wins_and_origins_are_kept),
		T(test_reload_takes_over_only_what_may_change),
		T(test_take_reloaded_takes_those_and_no_others),
		T(test_rules_across_keys),
		T(test_missing_file_is_66),
		T(test_sample_reads_back_as_the_defaults),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
