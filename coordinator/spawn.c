#include "config.h"

#include "coordinator/spawn.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/seg.h"

/* Where in the child it failed, sent through a pipe that exec closes. */
enum spawn_stage { STAGE_SETUP, STAGE_FDS, STAGE_EXEC };

struct spawn_failure {
	int stage, error;
};

/* Beyond the numbers that children use: a segment and a pidfd for each worker, bell, preflight. */
int spawn_check_files(uint32_t workers, struct errbuf *err)
{
	rlim_t need = SEG_FD__END + 2 * (rlim_t)workers + 8;
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur >= need)
		return 0;
	return err_set(err, -EMFILE, EXIT_OS_ERR,
		"the limit of open files is %llu (ulimit -n, LimitNOFILE=): %llu are needed with "
		"%u "
		"worker%s, and one more for each connection",
		(unsigned long long)files.rlim_cur, (unsigned long long)need, workers,
		workers == 1 ? "" : "s");
}

int spawn_high_fd(int fd)
{
	int high = fcntl(fd, F_DUPFD_CLOEXEC, SEG_FD__END), r = high < 0 ? -errno : high;

	close(fd);
	return r;
}

int spawn_memfd(const char *name, const void *bytes, size_t n)
{
	int fd = memfd_create(name, MFD_CLOEXEC);
	const char *at = bytes;

	if (fd < 0)
		return -errno;
	while (n > 0) {
		ssize_t done = write(fd, at, n);

		if (done < 0) {
			int r = -errno;

			close(fd);
			return r;
		}
		at += done;
		n -= (size_t)done;
	}
	lseek(fd, 0, SEEK_SET);
	return spawn_high_fd(fd);
}

/* ---- in the child, between fork and exec: only async-signal-safe calls ---- */

static void default_signals(void)
{
	struct sigaction action = {.sa_handler = SIG_DFL};
	sigset_t none;
	int i;

	for (i = 1; i < NSIG; i++)
		(void)sigaction(i, &action, NULL); /* KILL, STOP and libc's own refuse: fine */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Failing to bind costs speed only, and a container may forbid it: go on. */
static void bind_child(const struct spawn_args *args)
{
	cpu_set_t *set = (cpu_set_t *)args->bind->cpus.bits;

	(void)sched_setaffinity(0, sizeof(args->bind->cpus.bits), set);
#ifdef MPOL_PREFERRED_MANY
	if (args->bind_memory)
		(void)syscall(SYS_set_mempolicy, MPOL_PREFERRED_MANY, args->bind->nodes,
			(unsigned long)PLACE_NODES_MAX);
#endif
}

static int move_fds(const struct spawn_args *args)
{
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	int out = args->output_fd >= 0 ? args->output_fd : STDERR_FILENO;
	size_t i;

	if (close_range(3, UINT_MAX, CLOSE_RANGE_CLOEXEC) < 0)
		return -1;
	if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(out, STDERR_FILENO) < 0 ||
		dup2(out, STDOUT_FILENO) < 0)
		return -1;
	for (i = 0; i < args->fd_n; i++)
		if (dup2(args->fds[i].fd, args->fds[i].as) < 0)
			return -1;
	return 0;
}

static _Noreturn void fail_child(int fd, enum spawn_stage stage)
{
	struct spawn_failure f = {stage, errno};

	(void)!write(fd, &f, sizeof(f));
	_exit(EXIT_OS_ERR);
}

static _Noreturn void run_child(const struct spawn_args *args, pid_t parent, int report_fd)
{
	default_signals();
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
		fail_child(report_fd, STAGE_SETUP);
	if (getppid() != parent) /* it died before the line above */
		_exit(EXIT_UNAVAILABLE_ERR);
	(void)setpgid(0, 0);
	if (args->bind)
		bind_child(args);
	if (move_fds(args) < 0)
		fail_child(report_fd, STAGE_FDS);
	execv(args->path, args->argv);
	fail_child(report_fd, STAGE_EXEC);
}

/* ---- in the parent ---- */

static int start_failed(
	const struct spawn_args *args, const struct spawn_failure *f, struct errbuf *err)
{
	if (f->stage == STAGE_EXEC)
		return err_set(err, -f->error, f->error == ENOENT ? EXIT_NO_INPUT : EXIT_NO_PERM,
			"cannot run %s: %s (HEDDLE_WORKER names another)", args->path,
			strerror(f->error));
	return err_set(err, -f->error, EXIT_OS_ERR, "cannot prepare a process for %s: %s",
		args->path, strerror(f->error));
}

/* All signals stay blocked over the fork, so that no handler runs in the child as if it were us. */
static pid_t fork_blocked(const struct spawn_args *args, int report_fd)
{
	sigset_t all, old;
	pid_t parent = getpid(), pid;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pid = fork();
	if (pid == 0)
		run_child(args, parent, report_fd);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return pid;
}

int spawn_child(const struct spawn_args *args, struct spawn_child *ret_child, struct errbuf *err)
{
	struct spawn_failure failure;
	int pipe_fds[2], pidfd, r;
	ssize_t n;
	pid_t pid;

	if (pipe2(pipe_fds, O_CLOEXEC) < 0)
		return err_set(err, -errno, EXIT_OS_ERR, "pipe: %s", strerror(errno));
	pipe_fds[1] = spawn_high_fd(pipe_fds[1]);
	pid = pipe_fds[1] < 0 ? -1 : fork_blocked(args, pipe_fds[1]);
	r = pid < 0 ? -errno : 0;
	if (pipe_fds[1] >= 0)
		close(pipe_fds[1]);
	if (r < 0) {
		close(pipe_fds[0]);
		return err_set(err, r, EXIT_OS_ERR, "fork: %s", strerror(-r));
	}
	do
		n = read(pipe_fds[0], &failure, sizeof(failure));
	while (n < 0 && errno == EINTR);
	close(pipe_fds[0]);
	if (n == (ssize_t)sizeof(failure)) {
		waitpid(pid, NULL, 0);
		return start_failed(args, &failure, err);
	}
	pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd >= 0)
		pidfd = spawn_high_fd(pidfd);
	if (pidfd < 0) {
		r = -errno;
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		return err_set(err, r, EXIT_OS_ERR, "pidfd_open: %s", strerror(-r));
	}
	*ret_child = (struct spawn_child){.pid = pid, .pidfd = pidfd};
	return 0;
}

int spawn_reap(const struct spawn_child *child, int *ret_status)
{
	int status;
	pid_t r;

	do
		r = waitpid(child->pid, &status, WNOHANG);
	while (r < 0 && errno == EINTR);
	if (r == 0)
		return -EAGAIN;
	*ret_status = r < 0 ? 0 : status; /* ECHILD: somebody ignores SIGCHLD; it is gone */
	return 0;
}

const char *spawn_status_text(int status, char buf[64])
{
	if (WIFSIGNALED(status))
		snprintf(buf, 64, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
	else
		snprintf(buf, 64, "exit code %d", WEXITSTATUS(status));
	return buf;
}
