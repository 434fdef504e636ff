/*
 * heddle-worker --check as heddled runs it: a struct conf on an fd, one line on stderr and the exit
 * code when something is refused, silence and 0 when not.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "coordinator/conf.h"
#include "tests/model/tiny.h"

extern char **environ;

static int memfd_with(const void *bytes, size_t n)
{
	int fd = memfd_create("test", 0);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, n), n);
	return fd;
}

/* Runs the program with the given arguments; returns its exit code, and what it said in text. */
static int run_worker(char *const argv[], char text[1024])
{
	const char *dir = getenv("HEDDLE_BUILDDIR");
	posix_spawn_file_actions_t actions;
	int out = memfd_with("", 0), status;
	char path[4096];
	ssize_t n;
	pid_t pid;

	snprintf(path, sizeof(path), "%s/heddle-worker", dir ? dir : ".");
	assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
	assert_int_equal(posix_spawn_file_actions_adddup2(&actions, out, 2), 0);
	assert_int_equal(posix_spawn_file_actions_adddup2(&actions, out, 1), 0);
	assert_int_equal(posix_spawn(&pid, path, &actions, NULL, argv, environ), 0);
	posix_spawn_file_actions_destroy(&actions);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	n = pread(out, text, 1023, 0);
	assert_true(n >= 0);
	text[n] = '\0';
	close(out);
	return WEXITSTATUS(status);
}

static int check_bytes(const void *bytes, size_t n, char text[1024])
{
	char fd_text[16];
	char *argv[] = {"heddle-worker", "--check", "--conf-fd", fd_text, NULL};
	int fd = memfd_with(bytes, n), code;

	snprintf(fd_text, sizeof(fd_text), "%d", fd);
	code = run_worker(argv, text);
	close(fd);
	return code;
}

static void assert_check(const struct conf *conf, int code, const char *word)
{
	char text[1024];
	int got = check_bytes(conf, sizeof(*conf), text);

	if (got != code || (code ? !strstr(text, word) : text[0] != '\0'))
		fail_msg("exit code %d instead of %d: %s", got, code, text);
	if (code && strchr(text, '\n') != text + strlen(text) - 1)
		fail_msg("not one line: %s", text);
}

static struct conf mini_conf(void)
{
	const char *src = getenv("HEDDLE_SRCDIR");
	struct conf conf = harness_conf();

	conf.fabric_workers = conf.fabric_threads = 1;
	conf.fabric_spin = 0;
	snprintf(
		conf.model_path, sizeof(conf.model_path), "%s/models/heddle-mini", src ? src : ".");
	return conf;
}

static void test_good_configuration_passes_in_silence(void **state)
{
	struct conf conf = mini_conf();

	(void)state;
	assert_check(&conf, 0, "");
	conf.fabric_workers = 4;
	assert_check(&conf, 0, "");
}

static void test_refusals_say_why_with_their_exit_code(void **state)
{
	struct conf conf = mini_conf();

	(void)state;
	conf.fabric_workers = 3;
	assert_check(&conf, EXIT_CONFIG_ERR, "3");
	conf = mini_conf();
	conf.schedule_max_context = 1 << 20;
	assert_check(&conf, EXIT_CONFIG_ERR, "schedule.max_context");
	conf = mini_conf();
	conf.cache_memory = 2 << 20;
	assert_check(&conf, EXIT_CONFIG_ERR, "cache.memory");
	conf = mini_conf();
	snprintf(conf.model_path, sizeof(conf.model_path), "/nonexistent/model");
	assert_check(&conf, EXIT_NO_INPUT, "/nonexistent/model");
}

static void test_damaged_checkpoint_is_bad_data(void **state)
{
	struct conf conf = mini_conf();
	char dir[] = "/tmp/heddle-check-XXXXXX", path[300];
	FILE *f;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/config.json", dir);
	f = fopen(path, "w");
	assert_non_null(f);
	fputs("{ not json", f);
	fclose(f);
	snprintf(conf.model_path, sizeof(conf.model_path), "%s", dir);
	assert_check(&conf, EXIT_DATA_ERR, "config.json");
	unlink(path);
	rmdir(dir);
}

static void test_strange_configuration_bytes_are_refused(void **state)
{
	struct conf conf = mini_conf();
	char text[1024];

	(void)state;
	assert_int_equal(check_bytes(&conf, 0, text), EXIT_CONFIG_ERR);
	assert_int_equal(check_bytes(&conf, sizeof(conf) - 1, text), EXIT_CONFIG_ERR);
	assert_non_null(strstr(text, "same version"));
	conf.attention_kv = 99;
	assert_check(&conf, EXIT_CONFIG_ERR, "attention.kv");
	conf = mini_conf();
	conf.schedule_max_sequences = -1;
	assert_check(&conf, EXIT_CONFIG_ERR, "schedule.max_sequences");
	conf = mini_conf();
	memset(conf.model_path, 'x', sizeof(conf.model_path));
	assert_check(&conf, EXIT_CONFIG_ERR, "model.path");
}

static void test_what_placement_has_not_decided_is_refused(void **state)
{
	struct conf conf = mini_conf();

	(void)state;
	conf.fabric_workers = CONF_AUTO;
	assert_check(&conf, EXIT_CONFIG_ERR, "fabric.workers");
	conf = mini_conf();
	conf.fabric_threads = CONF_AUTO;
	assert_check(&conf, EXIT_CONFIG_ERR, "fabric.threads");
	conf = mini_conf();
	conf.fabric_spin = CONF_AUTO;
	assert_check(&conf, EXIT_CONFIG_ERR, "fabric.spin");
}

static void test_misuse_shows_usage(void **state)
{
	char *bare[] = {"heddle-worker", NULL};
	char *half[] = {"heddle-worker", "--rank", "0", "--world", "1", NULL};
	char *word[] = {"heddle-worker", "--check", "--conf-fd", "x", NULL};
	char *version[] = {"heddle-worker", "--version", NULL};
	char text[1024];

	(void)state;
	assert_int_equal(run_worker(bare, text), EXIT_USAGE_ERR);
	assert_non_null(strstr(text, "usage:"));
	assert_int_equal(run_worker(half, text), EXIT_USAGE_ERR);
	assert_int_equal(run_worker(word, text), EXIT_USAGE_ERR);
	assert_int_equal(run_worker(version, text), 0);
	assert_non_null(strstr(text, "heddle-worker "));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good_configuration_passes_in_silence),
		cmocka_unit_test(test_refusals_say_why_with_their_exit_code),
		cmocka_unit_test(test_damaged_checkpoint_is_bad_data),
		cmocka_unit_test(test_strange_configuration_bytes_are_refused),
		cmocka_unit_test(test_what_placement_has_not_decided_is_refused),
		cmocka_unit_test(test_misuse_shows_usage),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
