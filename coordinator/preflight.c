#include "config.h"

#include "coordinator/preflight.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/seg.h"

static int no_memfd(int error, struct errbuf *err)
{
	return err_set(err, error, EXIT_OS_ERR, "memfd_create: %s%s", strerror(-error),
		error == -EFBIG ? " (ulimit -f: shared memory counts as files)" : "");
}

int preflight_start(
	struct preflight *p, const char *worker_path, const struct conf *conf, struct errbuf *err)
{
	char fd_text[16];
	char *argv[] = {"heddle-worker", "--check", "--conf-fd", fd_text, NULL};
	struct spawn_fd fd = {.as = SEG_FD_COORD};
	struct spawn_args args = {
		.path = worker_path, .argv = argv, .fds = &fd, .fd_n = 1, .output_fd = -1};
	int r;

	r = spawn_check_files((uint32_t)conf->fabric_workers, err);
	if (r < 0)
		return r;
	fd.fd = spawn_memfd("heddle-conf", conf, sizeof(*conf));
	if (fd.fd < 0)
		return no_memfd(fd.fd, err);
	p->output_fd = spawn_memfd("heddle-check", "", 0);
	if (p->output_fd < 0) {
		close(fd.fd);
		return no_memfd(p->output_fd, err);
	}
	args.output_fd = p->output_fd;
	snprintf(fd_text, sizeof(fd_text), "%d", fd.as);
	r = spawn_child(&args, &p->child, err);
	close(fd.fd);
	if (r < 0)
		close(p->output_fd);
	return r;
}

/* The last line that is not empty. */
static void last_line(int fd, char *out, size_t cap)
{
	off_t end = lseek(fd, 0, SEEK_END), from = end > 4095 ? end - 4095 : 0;
	char buf[4096], *line;
	ssize_t n = pread(fd, buf, sizeof(buf) - 1, from);

	out[0] = '\0';
	if (n <= 0)
		return;
	while (n > 0 && (buf[n - 1] == '\n' || buf[n - 1] == '\0'))
		n--;
	buf[n] = '\0';
	line = strrchr(buf, '\n');
	line = line ? line + 1 : buf;
	n = (ssize_t)MIN(strlen(line), cap - 1);
	memcpy(out, line, (size_t)n);
	out[n] = '\0';
}

static void close_all(struct preflight *p)
{
	close(p->child.pidfd);
	close(p->output_fd);
}

int preflight_finish(struct preflight *p, int status, struct errbuf *err)
{
	char line[400], how[64];
	int code;

	last_line(p->output_fd, line, sizeof(line));
	close_all(p);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
	if (code < EXIT_USAGE_ERR || code > EXIT_CONFIG_ERR)
		code = EXIT_SOFTWARE_ERR;
	if (line[0] && WIFEXITED(status))
		return err_set(err, -EINVAL, code, "%s", line);
	return err_set(err, -EINVAL, code, "heddle-worker --check ended by %s%s%s",
		spawn_status_text(status, how), line[0] ? ": " : "", line);
}

void preflight_abort(struct preflight *p)
{
	kill(p->child.pid, SIGKILL);
	waitpid(p->child.pid, NULL, 0);
	close_all(p);
}

int preflight_run(const char *worker_path, const struct conf *conf, struct errbuf *err)
{
	mono_ns_t deadline = mono_now() + PREFLIGHT_TIMEOUT_NS;
	struct preflight p;
	int status, r = preflight_start(&p, worker_path, conf, err);

	if (r < 0)
		return r;
	while (spawn_reap(&p.child, &status) < 0) {
		struct pollfd fd = {.fd = p.child.pidfd, .events = POLLIN};
		mono_ns_t now = mono_now();

		if (now >= deadline) {
			preflight_abort(&p);
			return err_set(err, -ETIMEDOUT, EXIT_UNAVAILABLE_ERR,
				"heddle-worker --check did not end within %llu s",
				PREFLIGHT_TIMEOUT_NS / NS_PER_S);
		}
		(void)poll(&fd, 1, (int)((deadline - now) / NS_PER_MS + 1));
	}
	return preflight_finish(&p, status, err);
}
