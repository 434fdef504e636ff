#include "config.h"

#include "coordinator/daemon.h"

#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/file.h"

#define LOG_TAG "daemon"
#include "shm/log.h"

#define STACK_BYTES     (8u << 20)
#define STACK_MIN_BYTES (1u << 20) /* JSON as deep as its parser lets it be */

/* ---- background ---- */

/* The parent's whole remaining life: pass on what the child says, or how it ended. */
static _Noreturn void wait_for_report(int fd, pid_t child)
{
	unsigned char code;
	ssize_t n;
	int status;

	do
		n = read(fd, &code, 1);
	while (n < 0 && errno == EINTR);
	if (n == 1)
		_exit(code);
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	_exit(WIFEXITED(status) && WEXITSTATUS(status) ? WEXITSTATUS(status) : EXIT_SOFTWARE_ERR);
}

int daemon_background(struct daemon *d, struct errbuf *err)
{
	int fds[2];
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return err_set(err, -errno, EXIT_OS_ERR, "pipe: %s", strerror(errno));
	pid = fork();
	if (pid < 0)
		return err_set(err, -errno, EXIT_OS_ERR, "fork: %s", strerror(errno));
	if (pid > 0) {
		close(fds[1]);
		wait_for_report(fds[0], pid);
	}
	close(fds[0]);
	setsid();
	d->report_fd = fds[1];
	return 0;
}

void daemon_report(struct daemon *d, int exit_code)
{
	unsigned char code = (unsigned char)exit_code;
	int null;

	if (d->report_fd < 0)
		return;
	if (exit_code == 0 && (null = open("/dev/null", O_RDWR | O_CLOEXEC)) >= 0) {
		dup2(null, STDIN_FILENO);
		dup2(null, STDOUT_FILENO);
		dup2(null, STDERR_FILENO);
		if (null > STDERR_FILENO)
			close(null);
	}
	(void)!write(d->report_fd, &code, 1); /* the parent may have been killed: fine */
	close(d->report_fd);
	d->report_fd = -1;
}

/* ---- pidfile ---- */

int daemon_pidfile(struct daemon *d, const char *path, struct errbuf *err)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
	char text[32] = "";
	ssize_t n;

	if (fd < 0)
		return err_set(err, -errno, file_exit_code(errno),
			"daemon.pidfile: cannot open %s: %s", path, strerror(errno));
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		n = read(fd, text, sizeof(text) - 1);
		text[strcspn(text, "\n")] = '\0';
		close(fd);
		return err_set(err, -EEXIST, EXIT_UNAVAILABLE_ERR,
			"daemon.pidfile: %s is held by a running daemon, pid %s", path,
			n > 0 ? text : "unknown");
	}
	n = snprintf(text, sizeof(text), "%d\n", (int)getpid());
	(void)fchmod(fd, 0644); /* whatever the umask: anyone may ask for our pid */
	if (ftruncate(fd, 0) < 0 || write(fd, text, (size_t)n) != n) {
		close(fd);
		return err_set(err, -EIO, EXIT_OS_ERR, "daemon.pidfile: cannot write %s", path);
	}
	d->pidfile_fd = fd;
	snprintf(d->pidfile, sizeof(d->pidfile), "%s", path);
	return 0;
}

void daemon_pidfile_remove(struct daemon *d)
{
	if (d->pidfile_fd < 0)
		return;
	if (unlink(d->pidfile) < 0) {
		/* its directory is no longer ours to change */
		log_info("daemon.pidfile: %s is emptied, not removed: %s", d->pidfile,
			strerror(errno));
		(void)!ftruncate(d->pidfile_fd, 0);
	}
	close(d->pidfile_fd);
	d->pidfile_fd = -1;
}

/* ---- user and limits ---- */

static int find_ids(const char *user, const char *group, uid_t *uid, gid_t *gid, struct errbuf *err)
{
	const struct passwd *pw = user[0] ? getpwnam(user) : NULL;
	const struct group *gr = group[0] ? getgrnam(group) : NULL;

	if (user[0] && !pw)
		return err_set(
			err, -ENOENT, EXIT_CONFIG_ERR, "daemon.user: there is no user %.80s", user);
	if (group[0] && !gr)
		return err_set(err, -ENOENT, EXIT_CONFIG_ERR,
			"daemon.group: there is no group %.80s", group);
	*uid = pw ? pw->pw_uid : geteuid();
	*gid = gr ? gr->gr_gid : pw ? pw->pw_gid : getegid();
	return 0;
}

int daemon_check(const char *user, const char *group, struct errbuf *err)
{
	uid_t uid;
	gid_t gid;

	return find_ids(user, group, &uid, &gid, err);
}

int daemon_give(
	const char *path, const char *user, const char *group, bool keep_group, struct errbuf *err)
{
	uid_t uid = 0;
	gid_t gid = 0;
	int r = find_ids(user, group, &uid, &gid, err);

	if (r < 0 || geteuid() != 0 || (!user[0] && !group[0]))
		return r;
	if (lchown(path, uid, keep_group ? (gid_t)-1 : gid) < 0)
		return err_set(err, -errno, EXIT_NO_PERM, "cannot give %s to user %.40s: %s", path,
			user, strerror(errno));
	return 0;
}

int daemon_become(const char *user, const char *group, struct errbuf *err)
{
	uid_t uid = 0;
	gid_t gid = 0;
	int r;

	if (!user[0] && !group[0])
		return 0;
	r = find_ids(user, group, &uid, &gid, err);
	if (r < 0)
		return r;
	if (uid == geteuid() && gid == getegid())
		return 0;
	if (geteuid() != 0)
		return err_set(err, -EPERM, EXIT_NO_PERM,
			"daemon.user and daemon.group can be honoured only when started by root");
	if ((user[0] ? initgroups(user, gid) : setgroups(1, &gid)) < 0 || setgid(gid) < 0 ||
		setuid(uid) < 0)
		return err_set(err, -errno, EXIT_NO_PERM,
			"cannot become user %.40s group %.40s: %s", user, group, strerror(errno));
	return 0;
}

/* Threads get theirs in full at once; the main thread's grows up to what the limit is by then. */
static int raise_stack(struct errbuf *err)
{
	struct rlimit stack;
	pthread_attr_t attr;

	if (pthread_attr_init(&attr) == 0) {
		if (pthread_attr_setstacksize(&attr, STACK_BYTES) == 0)
			(void)pthread_setattr_default_np(&attr);
		pthread_attr_destroy(&attr);
	}
	if (getrlimit(RLIMIT_STACK, &stack) < 0 || stack.rlim_cur >= STACK_BYTES)
		return 0;
	stack.rlim_cur = MIN(stack.rlim_max, (rlim_t)STACK_BYTES);
	(void)setrlimit(RLIMIT_STACK, &stack);
	if (stack.rlim_cur >= STACK_MIN_BYTES)
		return 0;
	return err_set(err, -EPERM, EXIT_OS_ERR,
		"the stack limit is %llu KiB (ulimit -s, LimitSTACK=): at least %u are needed",
		(unsigned long long)stack.rlim_cur >> 10, STACK_MIN_BYTES >> 10);
}

int daemon_raise_limits(struct errbuf *err)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &files);
	}
	return raise_stack(err);
}
