/*
 * A log line never waits: not for a pipe, terminal or socket that nobody reads, not for a FIFO to
 * be opened, and a file that may not grow costs lines, not the process. Each case is a child whose
 * stderr is the log, ended by an alarm where it blocks. And a line is one line, and JSON where that
 * was asked for, whatever it quotes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>

#define LOG_TAG "test"
#include "shm/log.h"

#define LINES     5000 /* some hundred KB: more than a pipe or socket holds */
#define PATIENCE  20   /* seconds until what blocks is a failure */
#define LOST_TEXT " lines before this one were lost"

static char dir[64];

/* Runs f(arg) in a child; its exit code, or 128 + signal. */
static pid_t start(int (*f)(void *arg), void *arg)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		alarm(PATIENCE);
		_exit(f(arg));
	}
	return pid;
}

static int finish(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* All that is there, until nothing has come for a moment. */
static char *drain(int fd)
{
	size_t cap = 4u << 20, n = 0;
	char *all = malloc(cap);
	struct pollfd p = {.fd = fd, .events = POLLIN};

	assert_non_null(all);
	while (poll(&p, 1, 0) == 1 && n + 1 < cap) {
		ssize_t got = read(fd, all + n, cap - n - 1);

		if (got <= 0)
			break;
		n += (size_t)got;
	}
	all[n] = '\0';
	return all;
}

static unsigned count(const char *all, const char *what)
{
	unsigned n = 0;

	for (const char *at = all; (at = strstr(at, what)); at++)
		n++;
	return n;
}

/* ---- nobody reads ---- */

struct reader {
	int theirs; /* becomes stderr */
	int go;     /* a byte: the reader has read everything */
	bool own;
};

static int write_too_much(void *arg)
{
	const struct reader *r = arg;
	int flags = fcntl(r->theirs, F_GETFL);
	char byte = 0;
	int i;

	if (dup2(r->theirs, STDERR_FILENO) < 0)
		return 1;
	if (r->own)
		log_own_stderr();
	if (log_open("stderr", CONF_LEVEL_INFO, CONF_FORMAT_TEXT, "child", NULL) < 0)
		return 2;
	for (i = 0; i < LINES; i++)
		log_info("line %d of many, padded so that a pipe is full before all are in", i);
	if (fcntl(r->theirs, F_GETFL) != flags)
		return 3; /* whoever shares it would not expect that */
	if (write(r->go, &byte, 1) != 1 || read(r->go, &byte, 1) != 1)
		return 4;
	log_info("the reader is back");
	log_info("and stays");
	return 0;
}

static void run_unread(int mine, int theirs, bool own)
{
	int go[2];
	struct reader r = {.theirs = theirs, .own = own};
	unsigned got, lost;
	char *before, *after, *at, byte;
	pid_t pid;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, go), 0);
	r.go = go[1];
	pid = start(write_too_much, &r);
	close(theirs);
	close(go[1]);
	if (read(go[0], &byte, 1) != 1)
		fail_msg("the writer ended with %d", finish(pid));
	before = drain(mine);
	got = count(before, " of many");
	assert_true(got > 0 && got < LINES);
	assert_int_equal(write(go[0], &byte, 1), 1);
	assert_int_equal(finish(pid), 0);
	after = drain(mine);
	at = strstr(after, LOST_TEXT);
	assert_non_null(at);
	while (at > after && at[-1] >= '0' && at[-1] <= '9')
		at--;
	lost = (unsigned)strtoul(at, NULL, 10);
	assert_int_equal(got + lost, LINES);
	assert_int_equal(count(after, LOST_TEXT), 1);
	assert_true(strstr(after, "the reader is back") > at);
	assert_non_null(strstr(after, "and stays"));
	free(before);
	free(after);
	close(go[0]);
	close(mine);
}

static void test_pipe_that_nobody_reads_does_not_block(void **state)
{
	int fds[2];

	(void)state;
	for (int own = 0; own < 2; own++) {
		assert_int_equal(pipe(fds), 0);
		run_unread(fds[0], fds[1], own);
	}
}

static void test_socket_that_nobody_reads_does_not_block(void **state)
{
	int fds[2];

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	run_unread(fds[0], fds[1], true);
}

static int write_to_nobody(void *arg)
{
	const struct reader *r = arg;

	signal(SIGPIPE, SIG_IGN);
	if (dup2(r->theirs, STDERR_FILENO) < 0)
		return 1;
	if (log_open("stderr", CONF_LEVEL_INFO, CONF_FORMAT_TEXT, "child", NULL) < 0)
		return 2;
	log_info("into the void");
	return 0;
}

static void test_reader_that_has_gone_is_no_error(void **state)
{
	struct reader r = {0};
	int fds[2];

	(void)state;
	assert_int_equal(pipe(fds), 0);
	r.theirs = fds[1];
	close(fds[0]);
	assert_int_equal(finish(start(write_to_nobody, &r)), 0);
	close(fds[1]);
}

/* ---- a FIFO as log.target ---- */

static int open_fifo(void *arg)
{
	struct errbuf err = {0};
	int r = log_open(arg, CONF_LEVEL_INFO, CONF_FORMAT_TEXT, "child", &err);

	if (r == 0)
		return 1;
	if (err.exit_code != EXIT_CONFIG_ERR || !strstr(err.text, "log.target: ") ||
		!strstr(err.text, arg) || !strstr(err.text, "FIFO"))
		return 2;
	return 0;
}

static int fill_fifo(void *arg)
{
	if (log_open(arg, CONF_LEVEL_INFO, CONF_FORMAT_TEXT, "child", NULL) < 0)
		return 1;
	for (int i = 0; i < LINES; i++)
		log_info("line %d of many", i);
	return log_reopen(NULL) < 0;
}

static void test_fifo_is_refused_without_a_reader_and_never_blocks(void **state)
{
	char path[96], *all;
	int fd;

	(void)state;
	snprintf(path, sizeof(path), "%s/fifo", dir);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(finish(start(open_fifo, path)), 0);
	fd = open(path, O_RDONLY | O_NONBLOCK);
	assert_true(fd >= 0);
	assert_int_equal(finish(start(fill_fifo, path)), 0);
	all = drain(fd);
	assert_non_null(strstr(all, "line 0 of many"));
	free(all);
	close(fd);
	unlink(path);
}

/* ---- syslog ---- */

/* In a /dev of our own, where a syslog daemon listens that has stopped reading. 77: not allowed. */
static int fill_syslog(void *arg)
{
	const struct sockaddr_un addr = {.sun_family = AF_UNIX, .sun_path = "/dev/log"};
	char line[2304];
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0), got = 0;
	ssize_t n;

	(void)arg;
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
		mount("none", "/dev", "tmpfs", 0, NULL) < 0)
		return 77;
	if (log_open("syslog", CONF_LEVEL_INFO, CONF_FORMAT_TEXT, "child", NULL) < 0)
		return 1;
	log_info("nobody is there yet");
	if (bind(fd, (const struct sockaddr *)&addr, sizeof(addr)) < 0)
		return 2;
	for (int i = 0; i < LINES; i++)
		log_info("line %d of many", i);
	n = recv(fd, line, sizeof(line) - 1, 0);
	if (n < 0)
		return 3;
	line[n] = '\0';
	if (strncmp(line, "<28>", 4) != 0 || !strstr(line, " child[") ||
		!strstr(line, "1" LOST_TEXT))
		return 4; /* daemon.warning, of the line that nobody took */
	n = recv(fd, line, sizeof(line) - 1, 0);
	line[n > 0 ? n : 0] = '\0';
	if (strncmp(line, "<30>", 4) != 0 || !strstr(line, "]: test: line 0 of many"))
		return 5;
	for (; n > 0; n = recv(fd, line, sizeof(line) - 1, 0))
		got++;
	log_info("it reads again");
	n = recv(fd, line, sizeof(line) - 1, 0);
	line[n > 0 ? n : 0] = '\0';
	return got < LINES && strstr(line, LOST_TEXT) &&
			       atoi(strstr(line, "log: ") + 5) == LINES - got
		       ? 0
		       : 6;
}

static void test_syslog_that_nobody_reads_does_not_block(void **state)
{
	int code = finish(start(fill_syslog, NULL));

	(void)state;
	if (code == 77) {
		print_message("no mount namespace to be had\n");
		skip();
	}
	assert_int_equal(code, 0);
}

/* ---- a file that may not grow ---- */

static int outgrow(void *arg)
{
	struct rlimit limit = {.rlim_cur = 400, .rlim_max = RLIM_INFINITY};

	signal(SIGXFSZ, SIG_IGN);
	if (getrlimit(RLIMIT_FSIZE, &limit) < 0 || limit.rlim_max != RLIM_INFINITY)
		return 1;
	limit.rlim_cur = 400;
	if (setrlimit(RLIMIT_FSIZE, &limit) < 0 ||
		log_open(arg, CONF_LEVEL_INFO, CONF_FORMAT_TEXT, "child", NULL) < 0)
		return 2;
	for (int i = 0; i < 20; i++)
		log_info("a line of a file that may have 400 bytes, which is number %d", i);
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_FSIZE, &limit) < 0)
		return 3;
	log_info("room again");
	return 0;
}

static void test_file_that_may_not_grow_costs_lines_only(void **state)
{
	char path[96], *all;
	int fd;

	(void)state;
	snprintf(path, sizeof(path), "%s/log", dir);
	assert_int_equal(finish(start(outgrow, path)), 0);
	fd = open(path, O_RDONLY);
	assert_true(fd >= 0);
	all = drain(fd);
	assert_non_null(strstr(all, "number 0"));
	assert_null(strstr(all, "number 19"));
	assert_non_null(strstr(all, LOST_TEXT));
	assert_non_null(strstr(all, "room again"));
	free(all);
	close(fd);
	unlink(path);
}

/* ---- what a line quotes ---- */

/* The lines that log_info("%s") of each text gives in a format. */
static char *log_texts(enum conf_format format, const char *const *texts, size_t n)
{
	char path[96], *all;
	int fd;

	snprintf(path, sizeof(path), "%s/quoted", dir);
	assert_int_equal(log_open(path, CONF_LEVEL_INFO, format, "t", NULL), 0);
	for (size_t i = 0; i < n; i++)
		log_info("%s", texts[i]);
	assert_int_equal(log_open("stderr", CONF_LEVEL_INFO, CONF_FORMAT_TEXT, "t", NULL), 0);
	fd = open(path, O_RDONLY);
	assert_true(fd >= 0);
	all = drain(fd);
	close(fd);
	unlink(path);
	return all;
}

static void expect_message(char **line, const char *text)
{
	size_t len = strcspn(*line, "\n");
	json_error_t error;
	json_t *j;

	assert_int_equal((*line)[len], '\n');
	j = json_loadb(*line, len, 0, &error);
	if (!j)
		fail_msg("%s: %.*s", error.text, (int)len, *line);
	if (text)
		assert_string_equal(json_string_value(json_object_get(j, "message")), text);
	json_decref(j);
	*line += len + 1;
}

static void test_json_lines_are_json_whatever_they_quote(void **state)
{
	static const char *const texts[][2] = {
		{"GET /a\xff 404", "GET /a\xef\xbf\xbd 404"},
		{"a \"b\" \\ \n\t\x1b\x7f é 🙂", "a \"b\" \\ \n\t\x1b\x7f é 🙂"},
		{"\xc3", "\xef\xbf\xbd"},
	};
	const char *given[ARRAY_LEN(texts)];
	char *all, *line;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		given[i] = texts[i][0];
	line = all = log_texts(CONF_FORMAT_JSON, given, ARRAY_LEN(given));
	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		expect_message(&line, texts[i][1]);
	assert_string_equal(line, "");
	free(all);
}

/* A message is cut, at 1023 bytes or where the line is full: between characters. */
static void test_long_json_lines_are_cut_between_characters(void **state)
{
	static const char *const parts[] = {"é", "€", "🙂", "\"", "\xff", "\x1b"};
	char text[2048], *all, *line, want[2048];
	const char *given = text;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		for (size_t shift = 0; shift < 6; shift++) {
			size_t len = strlen(parts[i]), n = shift;

			memset(text, 'x', n);
			for (; n + len < sizeof(text); n += len)
				memcpy(text + n, parts[i], len);
			text[n] = '\0';
			line = all = log_texts(CONF_FORMAT_JSON, &given, 1);
			snprintf(want, sizeof(want), "%.*s", (int)(1023 - (1023 - shift) % len),
				text);
			expect_message(&line, i < 3 ? want : NULL);
			assert_string_equal(line, "");
			free(all);
		}
	}
}

static void test_text_lines_are_one_line_of_text(void **state)
{
	static const char *const text = "a\nb\x1b[31m\xff \xc2\x9b é";
	char *all = log_texts(CONF_FORMAT_TEXT, &text, 1);

	(void)state;
	assert_non_null(strstr(all, " t: test: a\\nb\\x1b[31m\\xff \\u009b é\n"));
	assert_int_equal(count(all, "\n"), 1);
	free(all);
}

static int set_up(void **state)
{
	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/heddle-log-XXXXXX");
	return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state)
{
	(void)state;
	return rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pipe_that_nobody_reads_does_not_block),
		cmocka_unit_test(test_socket_that_nobody_reads_does_not_block),
		cmocka_unit_test(test_reader_that_has_gone_is_no_error),
		cmocka_unit_test(test_fifo_is_refused_without_a_reader_and_never_blocks),
		cmocka_unit_test(test_syslog_that_nobody_reads_does_not_block),
		cmocka_unit_test(test_file_that_may_not_grow_costs_lines_only),
		cmocka_unit_test(test_json_lines_are_json_whatever_they_quote),
		cmocka_unit_test(test_long_json_lines_are_cut_between_characters),
		cmocka_unit_test(test_text_lines_are_one_line_of_text),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
