/* Listening sockets: paths, permissions, stale and live sockets, TCP names, systemd's hand-over. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/listen.h"

struct place {
	char dir[64], path[96];
	struct listen_set set;
	struct errbuf err;
};

static int setup(void **state)
{
	struct place *p = calloc(1, sizeof(*p));

	snprintf(p->dir, sizeof(p->dir), "/tmp/heddle-listen-XXXXXX");
	if (!mkdtemp(p->dir))
		return -1;
	snprintf(p->path, sizeof(p->path), "%s/s", p->dir);
	*state = p;
	return 0;
}

static int teardown(void **state)
{
	struct place *p = *state;
	int r;

	listen_close(&p->set);
	r = rmdir(p->dir); /* fails when anything was left behind */
	free(p);
	return r;
}

static int connect_unix(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0), r;

	memcpy(addr.sun_path, path, strlen(path) + 1);
	r = connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ? -errno : 0;
	close(fd);
	return r;
}

static void test_unix_socket_has_the_mode_and_goes_at_the_end(void **state)
{
	static const mode_t modes[] = {0600, 0660, 0666, 0000};
	struct place *p = *state;
	struct stat st;

	for (size_t i = 0; i < ARRAY_LEN(modes); i++) {
		mode_t old = umask(0077); /* must not get in the way */

		assert_int_equal(listen_unix(&p->set, p->path, modes[i], "", &p->err), 0);
		umask(old);
		assert_int_equal(lstat(p->path, &st), 0);
		assert_true(S_ISSOCK(st.st_mode));
		assert_int_equal(st.st_mode & 0777, modes[i]);
		assert_string_equal(p->set.sockets[0].name, p->path);
		assert_true(p->set.sockets[0].is_unix);
		assert_true(fcntl(p->set.sockets[0].fd, F_GETFD) & FD_CLOEXEC);
		listen_close(&p->set);
		assert_int_equal(lstat(p->path, &st), -1);
	}
}

static void test_group_is_set_or_named_in_the_refusal(void **state)
{
	struct place *p = *state;
	struct group *gr = getgrgid(getgid());
	struct stat st;

	assert_int_equal(listen_unix(&p->set, p->path, 0660, "no-such-group", &p->err), -ENOENT);
	assert_non_null(strstr(p->err.text, "no-such-group"));
	assert_int_equal(p->err.exit_code, EXIT_CONFIG_ERR);
	if (!gr)
		return;
	assert_int_equal(listen_unix(&p->set, p->path, 0660, gr->gr_name, &p->err), 0);
	assert_int_equal(lstat(p->path, &st), 0);
	assert_int_equal(st.st_gid, getgid());
}

static void test_stale_socket_is_replaced_live_one_is_refused(void **state)
{
	struct place *p = *state;
	struct listen_set other = {0};
	struct stat st;
	int status;
	pid_t pid;

	assert_int_equal(listen_unix(&p->set, p->path, 0600, "", &p->err), 0);
	assert_int_equal(listen_unix(&other, p->path, 0600, "", &p->err), -EADDRINUSE);
	assert_non_null(strstr(p->err.text, p->path));
	assert_int_equal(p->err.exit_code, EXIT_UNAVAILABLE_ERR);
	assert_int_equal(other.n, 0);
	assert_int_equal(connect_unix(p->path), 0); /* and still served */
	listen_close(&p->set);

	/* a process that died with its socket in place */
	pid = fork();
	if (pid == 0)
		_exit(listen_unix(&other, p->path, 0600, "", NULL) < 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(lstat(p->path, &st), 0);
	assert_int_equal(listen_unix(&p->set, p->path, 0600, "", &p->err), 0);
	assert_int_equal(connect_unix(p->path), 0);
}

/* A full queue is a sign of life, too. */
static void test_busy_socket_is_not_taken_for_stale(void **state)
{
	struct place *p = *state;
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0), c[4];

	memcpy(addr.sun_path, p->path, strlen(p->path) + 1);
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(fd, 0), 0);
	for (size_t i = 0; i < ARRAY_LEN(c); i++) {
		c[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
		(void)!connect(c[i], (struct sockaddr *)&addr, sizeof(addr));
	}
	assert_int_equal(listen_unix(&p->set, p->path, 0600, "", &p->err), -EADDRINUSE);
	for (size_t i = 0; i < ARRAY_LEN(c); i++)
		close(c[i]);
	close(fd);
	unlink(p->path);
}

static void test_what_is_no_socket_is_left_alone(void **state)
{
	struct place *p = *state;
	struct stat st;
	int fd = open(p->path, O_CREAT | O_WRONLY, 0600);

	close(fd);
	assert_int_equal(listen_unix(&p->set, p->path, 0600, "", &p->err), -EEXIST);
	assert_int_equal(lstat(p->path, &st), 0);
	unlink(p->path);
	assert_int_equal(symlink("/nowhere", p->path), 0);
	assert_int_equal(listen_unix(&p->set, p->path, 0600, "", &p->err), -EEXIST);
	unlink(p->path);
}

static void test_a_socket_that_is_no_longer_ours_stays(void **state)
{
	struct place *p = *state;
	struct listen_set next = {0};
	struct stat st;

	assert_int_equal(listen_unix(&p->set, p->path, 0600, "", &p->err), 0);
	unlink(p->path); /* somebody made room by hand, and another took it */
	assert_int_equal(listen_unix(&next, p->path, 0600, "", &p->err), 0);
	listen_close(&p->set);
	assert_int_equal(lstat(p->path, &st), 0);
	assert_int_equal(connect_unix(p->path), 0);
	listen_close(&next);
	assert_int_equal(lstat(p->path, &st), -1);
}

static void test_path_length_limit_is_107(void **state)
{
	struct place *p = *state;
	char path[128];
	size_t n = strlen(p->dir);

	memset(path, 'p', sizeof(path));
	memcpy(path, p->dir, n);
	path[n] = '/';
	path[108] = '\0';
	assert_int_equal(listen_unix(&p->set, path, 0600, "", &p->err), -ENAMETOOLONG);
	assert_non_null(strstr(p->err.text, "107"));
	assert_int_equal(p->err.exit_code, EXIT_CONFIG_ERR);
	path[107] = '\0';
	assert_int_equal(listen_unix(&p->set, path, 0600, "", &p->err), 0);
	assert_string_equal(p->set.sockets[0].name, path);
	assert_int_equal(connect_unix(path), 0);
	assert_int_equal(listen_unix(&p->set, "", 0600, "", &p->err), -EINVAL);
	assert_int_equal(listen_unix(&p->set, "/nonexistent/dir/s", 0600, "", &p->err), -ENOENT);
	assert_non_null(strstr(p->err.text, "/nonexistent/dir"));
}

/* What makes the next test hold: who looks at the path does so alone. */
static void test_the_directory_is_locked_meanwhile(void **state)
{
	struct place *p = *state;
	int dir = open(p->dir, O_RDONLY | O_DIRECTORY), done[2];
	struct pollfd wait;
	pid_t pid;
	char c = 0;

	assert_int_equal(flock(dir, LOCK_EX), 0);
	assert_int_equal(pipe(done), 0);
	pid = fork();
	if (pid == 0) {
		close(dir); /* or the child would hold our lock as well */
		c = listen_unix(&p->set, p->path, 0600, "", NULL) == 0 ? 'w' : 'l';
		(void)!write(done[1], &c, 1);
		_exit(0);
	}
	wait = (struct pollfd){.fd = done[0], .events = POLLIN};
	assert_int_equal(poll(&wait, 1, 50), 0);
	close(dir);
	assert_int_equal(read(done[0], &c, 1), 1);
	assert_int_equal(c, 'w');
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	close(done[0]);
	close(done[1]);
	unlink(p->path);
}

/* A killed daemon's ring may hold its socket open for a while: here the test holds it. */
static void test_socket_whose_listener_has_ended_is_replaced(void **state)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct place *p = *state;
	int fd = socket(AF_UNIX, SOCK_STREAM, 0), status;
	pid_t pid;

	memcpy(addr.sun_path, p->path, strlen(p->path) + 1);
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	pid = fork();
	if (pid == 0)
		_exit(listen(fd, 8) < 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(connect_unix(p->path), 0); /* it still accepts */
	assert_int_equal(listen_unix(&p->set, p->path, 0600, "", &p->err), 0);
	close(fd);
	assert_int_equal(connect_unix(p->path), 0);
}

/* Of many processes that start at once over a stale socket, one wins. */
static void test_only_one_of_many_starters_wins(void **state)
{
	struct place *p = *state;
	enum { N = 12 };
	int go[2], done[2], won[2];
	char results[N];
	struct stat st;
	pid_t pid[N];

	assert_int_equal(pipe(go) | pipe(done) | pipe(won), 0);
	if ((pid[0] = fork()) == 0)
		_exit(listen_unix(&p->set, p->path, 0600, "", NULL) < 0);
	waitpid(pid[0], NULL, 0);
	assert_int_equal(lstat(p->path, &st), 0);
	for (int i = 0; i < N; i++) {
		pid[i] = fork();
		if (pid[i] == 0) {
			char c = 0, result;

			close(go[1]);
			close(done[1]);
			(void)!read(go[0], &c, 1); /* all at once */
			result = listen_unix(&p->set, p->path, 0600, "", NULL) == 0 ? 'w' : 'l';
			(void)!write(won[1], &result, 1);
			(void)!read(done[0], &c, 1); /* winners keep serving till the end */
			_exit(0);
		}
	}
	close(go[1]);
	for (int i = 0, n = 0; i < N; i++) {
		assert_int_equal(read(won[0], &results[i], 1), 1);
		n += results[i] == 'w';
		if (i == N - 1)
			assert_int_equal(n, 1);
	}
	close(done[1]);
	for (int i = 0; i < N; i++)
		waitpid(pid[i], NULL, 0);
	close(go[0]);
	close(done[0]);
	close(won[0]);
	close(won[1]);
	unlink(p->path);
}

static void test_tcp_addresses(void **state)
{
	static const struct {
		const char *text;
		int want;
	} rows[] = {
		{"127.0.0.1:0", 0}, {"localhost:0", 0}, {"*:0", 0}, {":0", 0},
		{"127.0.0.1", -EINVAL}, {"127.0.0.1:", -EINVAL}, {"127.0.0.1:http", -EINVAL},
		{"127.0.0.1:65536", -EINVAL}, {"127.0.0.1:-1", -EINVAL},
		{"127.0.0.1:000080", -EINVAL}, {"::1:8080", -EINVAL}, {"[::1]", -EINVAL},
		{"203.0.113.7:0", -EADDRNOTAVAIL}, /* not an address of ours */
	};
	struct place *p = *state;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		memset(&p->err, 0, sizeof(p->err));
		if (listen_tcp(&p->set, rows[i].text, &p->err) != rows[i].want)
			fail_msg("%s: %s", rows[i].text, p->err.text);
		assert_int_equal(p->set.n > 0, rows[i].want == 0);
		assert_int_equal(p->err.text[0] != '\0', rows[i].want != 0);
		for (size_t k = 0; k < p->set.n; k++) {
			assert_false(p->set.sockets[k].is_unix);
			assert_null(strstr(p->set.sockets[k].name, ":0")); /* the port it got */
		}
		listen_close(&p->set);
	}
}

static void test_tcp_port_in_use_is_refused_and_ipv6_has_brackets(void **state)
{
	struct place *p = *state;
	struct listen_set other = {0};
	int r;

	assert_int_equal(listen_tcp(&p->set, "127.0.0.1:0", &p->err), 0);
	assert_memory_equal(p->set.sockets[0].name, "127.0.0.1:", 10);
	r = listen_tcp(&other, p->set.sockets[0].name, &p->err);
	assert_int_equal(r, -EADDRINUSE);
	assert_non_null(strstr(p->err.text, p->set.sockets[0].name));
	assert_int_equal(other.n, 0);
	if (listen_tcp(&other, "[::1]:0", &p->err) == 0)
		assert_memory_equal(other.sockets[0].name, "[::1]:", 6);
	else
		print_message("no IPv6 here: %s\n", p->err.text);
	listen_close(&other);
}

/* In a child, as systemd would start it: sockets from descriptor 3 on. */
static int inherit_in_child(int fd, const char *fds, bool right_pid)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		struct listen_set set = {0};
		char text[16];
		int r;

		if (fd >= 0 && dup2(fd, 3) != 3)
			_exit(100);
		snprintf(text, sizeof(text), "%d", right_pid ? (int)getpid() : 1);
		setenv("LISTEN_PID", text, 1);
		setenv("LISTEN_FDS", fds, 1);
		r = listen_inherit(&set, NULL);
		if (getenv("LISTEN_PID") || getenv("LISTEN_FDS"))
			_exit(101);
		if (r > 0 && (!set.sockets[0].inherited || set.sockets[0].fd != 3 ||
				     !(fcntl(3, F_GETFD) & FD_CLOEXEC) || set.n != (size_t)r ||
				     !set.sockets[0].name[0]))
			_exit(102);
		listen_close(&set);
		_exit(r < 0 ? 200 : r);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void test_sockets_are_inherited_from_systemd(void **state)
{
	struct place *p = *state;
	struct listen_set tcp = {0};
	int pair[2];

	assert_int_equal(listen_unix(&p->set, p->path, 0600, "", &p->err), 0);
	assert_int_equal(listen_tcp(&tcp, "127.0.0.1:0", &p->err), 0);
	assert_int_equal(inherit_in_child(p->set.sockets[0].fd, "1", true), 1);
	assert_int_equal(inherit_in_child(tcp.sockets[0].fd, "1", true), 1);
	assert_int_equal(inherit_in_child(p->set.sockets[0].fd, "1", false), 0);
	assert_int_equal(inherit_in_child(p->set.sockets[0].fd, "0", true), 0);
	assert_int_equal(inherit_in_child(p->set.sockets[0].fd, "17", true), 200);
	assert_int_equal(inherit_in_child(p->set.sockets[0].fd, "-1", true), 200);
	/* the child did not unlink what it had only inherited */
	assert_int_equal(connect_unix(p->path), 0);
	/* not listening, not a stream */
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	assert_int_equal(inherit_in_child(pair[0], "1", true), 200);
	close(pair[0]);
	close(pair[1]);
	listen_close(&tcp);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		T(test_unix_socket_has_the_mode_and_goes_at_the_end),
		T(test_group_is_set_or_named_in_the_refusal),
		T(test_stale_socket_is_replaced_live_one_is_refused),
		T(test_busy_socket_is_not_taken_for_stale),
		T(test_socket_whose_listener_has_ended_is_replaced),
		T(test_what_is_no_socket_is_left_alone),
		T(test_a_socket_that_is_no_longer_ours_stays),
		T(test_path_length_limit_is_107),
		T(test_the_directory_is_locked_meanwhile),
		T(test_only_one_of_many_starters_wins),
		T(test_tcp_addresses),
		T(test_tcp_port_in_use_is_refused_and_ipv6_has_brackets),
		T(test_sockets_are_inherited_from_systemd),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
