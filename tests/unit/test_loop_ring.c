/*
 * The loop's own ring, from inside: more submissions than it holds, more completions than it holds,
 * what it refuses to do, and the sentences when there is no ring. Includes loop.c to see the ring.
 */
#include "coordinator/loop.c"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cmocka.h>

enum { N = 2000 };

struct many {
	struct loop *loop;
	size_t seen, want;
	struct loop_event ev[N];
	int fd[N], hits[N];
};

static void on_one(struct loop_event *ev, int res, bool more)
{
	struct many *m = ev->user;
	size_t i = (size_t)(ev - m->ev);
	eventfd_t v;

	assert_true(res == -ECANCELED ? !more : more && res == POLLIN);
	if (res == POLLIN) {
		/* where the kernel ended the multishot, arming again may report the same once more
		 */
		if (eventfd_read(m->fd[i], &v) < 0)
			return;
		assert_int_equal(v, 1);
	}
	m->hits[i]++;
	if (++m->seen == m->want)
		loop_stop(m->loop);
}

static struct many *many_new(uint32_t entries)
{
	struct many *m = calloc(1, sizeof(*m));
	struct errbuf err;

	assert_non_null(m);
	if (loop_new(entries, &m->loop, &err) < 0)
		fail_msg("%s", err.text);
	for (size_t i = 0; i < N; i++) {
		m->fd[i] = eventfd(0, EFD_NONBLOCK);
		assert_true(m->fd[i] >= 0);
		m->ev[i] = (struct loop_event){.fn = on_one, .user = m};
		assert_int_equal(loop_poll(m->loop, &m->ev[i], m->fd[i], POLLIN), 0);
	}
	return m;
}

static void many_free(struct many *m)
{
	loop_free(m->loop);
	for (size_t i = 0; i < N; i++)
		close(m->fd[i]);
	free(m);
}

static void stop_after_a_turn(void *user)
{
	loop_stop(user);
}

/* However many are asked for in a turn, they are all with the kernel at its end. */
static void test_a_turn_submits_all_that_was_asked_for(void **state)
{
	struct many *m = many_new(2);
	struct loop_hook hook = {.fn = stop_after_a_turn, .user = m->loop};

	loop_at_turn_end(m->loop, &hook);
	loop_again(m->loop); /* nothing will happen to them */
	assert_int_equal(loop_run(m->loop), 0);
	assert_int_equal(m->loop->armed, N);
	many_free(m);
}

/* 2 entries, 32 completions: 2000 submissions, then 2000 events at once, again and again. */
static void test_a_tiny_ring_loses_nothing(void **state)
{
	struct many *m = many_new(2);

	for (size_t round = 1; round <= 3; round++) {
		for (size_t i = 0; i < N; i++)
			eventfd_write(m->fd[i], 1);
		m->want = round * N;
		assert_int_equal(loop_run(m->loop), 0);
		for (size_t i = 0; i < N; i++)
			assert_int_equal(m->hits[i], round);
	}
	for (size_t i = 0; i < N; i++)
		loop_cancel(m->loop, &m->ev[i]);
	m->want += N;
	assert_int_equal(loop_run(m->loop), 0);
	for (size_t i = 0; i < N; i++) {
		assert_int_equal(m->hits[i], 4);
		assert_true(loop_is_idle(&m->ev[i]));
	}
	assert_int_equal(m->loop->armed, 0);
	many_free(m);
}

static void test_settle_a_tiny_ring_with_thousands_armed(void **state)
{
	struct many *m = many_new(2);

	for (size_t i = 0; i < N; i++)
		eventfd_write(m->fd[i], 1);
	m->want = 100;
	assert_int_equal(loop_run(m->loop), 0);
	loop_settle(m->loop);
	assert_int_equal(m->loop->armed, 0);
	many_free(m);
}

static int submit_one(struct loop *loop)
{
	struct io_uring_cqe *cqe;
	int res;

	assert_int_equal(io_uring_submit_and_wait(&loop->ring, 1), 1);
	assert_int_equal(io_uring_peek_cqe(&loop->ring, &cqe), 0);
	res = cqe->res;
	io_uring_cqe_seen(&loop->ring, cqe);
	return res;
}

static void test_the_ring_does_only_its_own_operations(void **state)
{
	struct io_uring_probe probe;
	struct io_uring_sqe *sqe;
	struct loop *loop;
	int fd = eventfd(0, 0);

	assert_int_equal(loop_new(4, &loop, NULL), 0);
	sqe = io_uring_get_sqe(&loop->ring);
	io_uring_prep_openat(sqe, AT_FDCWD, "/etc/passwd", O_RDONLY, 0);
	assert_int_equal(submit_one(loop), -EACCES);
	sqe = io_uring_get_sqe(&loop->ring);
	io_uring_prep_nop(sqe);
	assert_int_equal(submit_one(loop), -EACCES);
	/* an allowed operation with a flag that is not */
	sqe = io_uring_get_sqe(&loop->ring);
	io_uring_prep_poll_add(sqe, fd, POLLOUT);
	sqe->flags |= IOSQE_ASYNC;
	assert_int_equal(submit_one(loop), -EACCES);
	sqe = io_uring_get_sqe(&loop->ring);
	io_uring_prep_poll_add(sqe, fd, POLLOUT);
	assert_int_equal(submit_one(loop), POLLOUT);
	/* no registrations either */
	assert_int_equal(io_uring_register_eventfd(&loop->ring, fd), -EACCES);
	assert_int_equal(io_uring_register_probe(&loop->ring, &probe, 0), -EACCES);
	loop_free(loop);
	close(fd);
}

static void test_old_kernels_are_named(void **state)
{
	static const struct {
		const char *release;
		int want;
	} rows[] = {
		{"6.1.0-18-amd64", 0},
		{"6.1", 0},
		{"6.18.44-fc", 0},
		{"7.0.1", 0},
		{"10.0", 0},
		{"6.0.19", -ENOSYS},
		{"5.15.0-91-generic", -ENOSYS},
		{"4.19.0", -ENOSYS},
		{"banana", -ENOSYS},
		{"", -ENOSYS},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct errbuf err = {0};

		assert_int_equal(loop_check_kernel(rows[i].release, &err), rows[i].want);
		assert_int_equal(err.exit_code, rows[i].want ? EXIT_OS_ERR : 0);
		if (rows[i].want) {
			assert_non_null(strstr(err.text, rows[i].release));
			assert_non_null(strstr(err.text, "needs Linux 6.1"));
		}
		assert_null(strchr(err.text, '\n'));
	}
}

static void test_refusals_say_which_switch(void **state)
{
	static const struct {
		int error, disabled;
		const char *says;
	} rows[] = {
		{-EPERM, 2, "kernel.io_uring_disabled = 2"},
		{-EPERM, 1, "kernel.io_uring_group"},
		{-EPERM, 0, "seccomp"},
		{-EPERM, -1, "seccomp"},
		{-ENOSYS, -1, "CONFIG_IO_URING"},
		{-ENOMEM, 0, "memory"},
		{-EMFILE, 0, "LimitNOFILE"},
		{-EINVAL, 0, "Invalid argument"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct errbuf err = {0};

		assert_int_equal(loop_explain_setup(rows[i].error, rows[i].disabled, "6.1.0", &err),
			rows[i].error);
		assert_non_null(strstr(err.text, rows[i].says));
		assert_int_equal(err.exit_code, EXIT_OS_ERR);
	}
}

/* In a child: after this io_uring_setup(2) fails with `error`, as in a container. */
static int deny_io_uring(int error)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ((uint32_t)error & 0xffff)),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {.len = ARRAY_LEN(code), .filter = code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -errno;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) < 0 ? -errno : 0;
}

static void expect_denied(int error, const char *says)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		struct errbuf err = {0};
		struct loop *loop;

		if (deny_io_uring(error) < 0)
			_exit(77);
		if (loop_new(8, &loop, &err) != -error || !strstr(err.text, says))
			_exit(1);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77) {
		print_message("seccomp is not available here\n");
		skip();
	}
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_denied_by_seccomp_is_said(void **state)
{
	expect_denied(EPERM, "seccomp");
	expect_denied(ENOSYS, "CONFIG_IO_URING");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_turn_submits_all_that_was_asked_for),
		cmocka_unit_test(test_a_tiny_ring_loses_nothing),
		cmocka_unit_test(test_settle_a_tiny_ring_with_thousands_armed),
		cmocka_unit_test(test_the_ring_does_only_its_own_operations),
		cmocka_unit_test(test_old_kernels_are_named),
		cmocka_unit_test(test_refusals_say_which_switch),
		cmocka_unit_test(test_denied_by_seccomp_is_said),
	};
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < N + 64) {
		files.rlim_cur = MIN(files.rlim_max, N + 64);
		if (files.rlim_cur < N + 64 || setrlimit(RLIMIT_NOFILE, &files) < 0) {
			printf("needs %d open files\n", N + 64);
			return 77;
		}
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
