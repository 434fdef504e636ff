/* The datagrams to the service manager, as it would receive them. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/notify.h"

static char last[2048];

static const char *receive(int fd)
{
	ssize_t n = recv(fd, last, sizeof(last) - 1, MSG_DONTWAIT);

	last[n < 0 ? 0 : n] = '\0';
	return last;
}

static void expect_messages(struct notify *n, int fd)
{
	unsigned long long usec = 0;

	assert_int_equal(notify_ready(n, "serving m"), 1);
	assert_string_equal(receive(fd), "READY=1\nSTATUS=serving m\n");
	assert_int_equal(notify_status(n, "%d\nREADY=1", 7), 1); /* cannot be forged */
	assert_string_equal(receive(fd), "STATUS=7\\nREADY=1\n");
	assert_int_equal(notify_watchdog(n), 1);
	assert_string_equal(receive(fd), "WATCHDOG=1\n");
	assert_int_equal(notify_extend(n, 1500 * NS_PER_MS), 1);
	assert_string_equal(receive(fd), "EXTEND_TIMEOUT_USEC=1500000\n");
	assert_int_equal(notify_reloading(n), 1);
	assert_int_equal(sscanf(receive(fd), "RELOADING=1\nMONOTONIC_USEC=%llu\n", &usec), 1);
	assert_in_range(usec, mono_now() / 1000 - 5000000, mono_now() / 1000);
	assert_int_equal(notify_stopping(n, "draining"), 1);
	assert_string_equal(receive(fd), "STOPPING=1\nSTATUS=draining\n");
}

static int bind_at(struct sockaddr_un *addr, socklen_t len)
{
	int fd = socket(AF_UNIX, SOCK_DGRAM, 0);

	addr->sun_family = AF_UNIX;
	assert_int_equal(bind(fd, (struct sockaddr *)addr, len), 0);
	return fd;
}

static void test_messages_arrive_at_a_path(void **state)
{
	char dir[] = "/tmp/heddle-notify-XXXXXX";
	struct sockaddr_un addr = {0};
	struct notify n;
	int fd;

	assert_non_null(mkdtemp(dir));
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/n", dir);
	fd = bind_at(&addr, sizeof(addr));
	setenv("NOTIFY_SOCKET", addr.sun_path, 1);
	assert_int_equal(notify_open(&n), 0);
	assert_null(getenv("NOTIFY_SOCKET"));
	expect_messages(&n, fd);
	close(fd);
	assert_true(notify_ready(&n, "nobody") < 0); /* an error, no signal */
	notify_close(&n);
	unlink(addr.sun_path);
	rmdir(dir);
}

static void test_messages_arrive_at_an_abstract_name(void **state)
{
	struct sockaddr_un addr = {0};
	struct notify n;
	char name[64];
	int fd;

	snprintf(name, sizeof(name), "@heddle-notify-%d", (int)getpid());
	memcpy(addr.sun_path + 1, name + 1, strlen(name) - 1);
	fd = bind_at(&addr, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name)));
	setenv("NOTIFY_SOCKET", name, 1);
	assert_int_equal(notify_open(&n), 0);
	expect_messages(&n, fd);
	notify_close(&n);
	close(fd);
}

static void test_without_a_manager_all_is_silent(void **state)
{
	struct notify n;

	unsetenv("NOTIFY_SOCKET");
	assert_int_equal(notify_open(&n), 0);
	assert_int_equal(notify_ready(&n, "x"), 0);
	notify_close(&n);
	static const struct {
		const char *name;
		int want;
	} rows[] = {{"relative", -EAFNOSUPPORT}, {"vsock:2:1", -EAFNOSUPPORT}, {"", -EAFNOSUPPORT},
		{"/", -EAFNOSUPPORT}, {"@", -EAFNOSUPPORT}};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		setenv("NOTIFY_SOCKET", rows[i].name, 1);
		assert_int_equal(notify_open(&n), rows[i].want);
		assert_int_equal(notify_ready(&n, "x"), 0);
		notify_close(&n);
	}
}

static void test_watchdog_interval_is_ours_only(void **state)
{
	char pid[16];
	struct notify n;

	unsetenv("NOTIFY_SOCKET");
	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	static const struct {
		const char *usec, *pid;
		mono_ns_t want;
	} rows[] = {{"30000000", NULL, 30 * NS_PER_S}, {"30000000", "", 30 * NS_PER_S},
		{"30000000", "1", 0}, {"x", NULL, 0}, {"0", NULL, 0},
		{"99999999999999999999", NULL, 0}, {NULL, NULL, 0}};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		if (rows[i].usec)
			setenv("WATCHDOG_USEC", rows[i].usec, 1);
		if (rows[i].pid)
			setenv("WATCHDOG_PID", rows[i].pid[0] ? rows[i].pid : pid, 1);
		assert_int_equal(notify_open(&n), 0);
		assert_int_equal(n.watchdog_ns, rows[i].want);
		assert_null(getenv("WATCHDOG_USEC"));
		assert_null(getenv("WATCHDOG_PID"));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_messages_arrive_at_a_path),
		cmocka_unit_test(test_messages_arrive_at_an_abstract_name),
		cmocka_unit_test(test_without_a_manager_all_is_silent),
		cmocka_unit_test(test_watchdog_interval_is_ours_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
