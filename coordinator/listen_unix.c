#include "config.h"

#include "coordinator/listen_unix.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stddef.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "shm/file.h"

/*
 * Has the process that listens at the other end of fd ended? A daemon that was killed leaves its
 * ring to the kernel, which takes the ring's sockets down some time after the process is gone, on a
 * busy machine seconds later; until then they accept connections that nobody will ever read.
 */
static bool listener_is_gone(int fd)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.pid > 0 &&
	       kill(peer.pid, 0) < 0 && errno == ESRCH;
}

/* Does somebody serve the socket at addr? 1, 0, -errno. */
static int is_served(const struct sockaddr_un *addr)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), r;

	if (fd < 0)
		return -errno;
	r = connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) < 0 ? -errno : 0;
	if (r == 0 && listener_is_gone(fd))
		r = -ECONNREFUSED;
	close(fd);
	if (r == 0 || r == -EAGAIN) /* EAGAIN: its queue is full */
		return 1;
	return r == -ECONNREFUSED || r == -ENOENT ? 0 : r;
}

/* Whatever has the path must be a socket. 1: it is; 0: nothing has it. */
static int check_path(const char *path, struct errbuf *err)
{
	struct stat st;

	if (lstat(path, &st) < 0) {
		if (errno == ENOENT)
			return 0;
		return err_set(err, -errno, file_exit_code(errno), "listen.socket: %s: %s", path,
			strerror(errno));
	}
	if (!S_ISSOCK(st.st_mode))
		return err_set(err, -EEXIST, EXIT_CONFIG_ERR,
			"listen.socket: %s exists and is not a socket: remove it or choose another "
			"path",
			path);
	return 1;
}

/* Makes way for our socket, but never for what is not a dead socket. */
static int clear_path(const struct sockaddr_un *addr, struct errbuf *err)
{
	const char *path = addr->sun_path;
	int r = check_path(path, err);

	if (r <= 0)
		return r;
	r = is_served(addr);
	if (r < 0)
		return err_set(err, r, EXIT_NO_PERM,
			"listen.socket: cannot tell whether %s is in use: %s", path, strerror(-r));
	if (r > 0)
		return err_set(err, -EADDRINUSE, EXIT_UNAVAILABLE_ERR,
			"listen.socket: another process is serving %s: stop it or choose another "
			"path",
			path);
	if (unlink(path) < 0 && errno != ENOENT)
		return err_set(err, -errno, EXIT_NO_PERM,
			"listen.socket: cannot remove the stale socket %s: %s", path,
			strerror(errno));
	return 0;
}

void listen_directory(const char *path, char ret_dir[LISTEN_PATH_MAX + 1])
{
	char *slash;

	snprintf(ret_dir, LISTEN_PATH_MAX + 1, "%s", path);
	slash = strrchr(ret_dir, '/');
	if (!slash)
		strcpy(ret_dir, ".");
	else
		slash[slash == ret_dir] = '\0';
}

/* Locks the directory, so that of two processes that start at once the second sees the first. */
static int lock_directory(const char *path, struct errbuf *err)
{
	char dir[LISTEN_PATH_MAX + 1];
	int fd;

	listen_directory(path, dir);
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || flock(fd, LOCK_EX) < 0) {
		int r = -errno;

		if (fd >= 0)
			close(fd);
		return err_set(err, r, file_exit_code(-r), "listen.socket: directory %s: %s", dir,
			strerror(-r));
	}
	return fd;
}

/* The group's id; none is named: ret_gid is left alone. */
static int find_group(const char *name, gid_t *ret_gid, struct errbuf *err)
{
	const struct group *gr;

	if (!name[0])
		return 0;
	gr = getgrnam(name);
	if (!gr)
		return err_set(err, -ENOENT, EXIT_CONFIG_ERR,
			"listen.group: there is no group '%s'", name);
	*ret_gid = gr->gr_gid;
	return 0;
}

/* Until listen() nobody can connect, so the permissions stand before the first client can come. */
static int bind_and_listen(int fd, const struct sockaddr_un *addr, mode_t mode, gid_t gid,
	struct listen_socket *ret_id, struct errbuf *err)
{
	const char *path = addr->sun_path, *doing;
	struct stat st;
	int r;

	doing = "create";
	if (bind(fd, (const struct sockaddr *)addr, sizeof(*addr)) < 0) {
		r = -errno;
		goto fail;
	}
	doing = "set the group of";
	if (gid != (gid_t)-1 && chown(path, (uid_t)-1, gid) < 0)
		goto fail_unlink;
	doing = "set the mode of";
	if (chmod(path, mode) < 0)
		goto fail_unlink;
	doing = "listen on";
	if (lstat(path, &st) < 0 || listen(fd, SOMAXCONN) < 0)
		goto fail_unlink;
	ret_id->dev = st.st_dev;
	ret_id->ino = st.st_ino;
	return 0;

fail_unlink:
	r = -errno;
	(void)unlink(path);
fail:
	return err_set(err, r, r == -EACCES || r == -EPERM ? EXIT_NO_PERM : EXIT_OS_ERR,
		"listen.socket: cannot %s %s: %s", doing, path, strerror(-r));
}

static int check_length(const char *path, struct errbuf *err)
{
	if (strlen(path) > LISTEN_PATH_MAX || !path[0])
		return err_set(err, path[0] ? -ENAMETOOLONG : -EINVAL, EXIT_CONFIG_ERR,
			"listen.socket: the path has %zu bytes; a socket's has 1 to %d: %s",
			strlen(path), LISTEN_PATH_MAX, path);
	return 0;
}

int listen_check_unix(const char *path, const char *group, struct errbuf *err)
{
	gid_t gid;
	int r = check_length(path, err);

	if (r == 0)
		r = find_group(group, &gid, err);
	if (r == 0)
		r = check_path(path, err);
	return r < 0 ? r : 0;
}

int listen_unix(struct listen_set *set, const char *path, mode_t mode, const char *group,
	struct errbuf *err)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct listen_socket id = {0}, *s;
	int fd, lock, r;
	gid_t gid = (gid_t)-1;

	r = check_length(path, err);
	if (r < 0)
		return r;
	if (set->n == LISTEN_MAX)
		return err_set(err, -ENOSPC, EXIT_CONFIG_ERR, "more than %d sockets to listen on",
			LISTEN_MAX);
	r = find_group(group, &gid, err);
	if (r < 0)
		return r;
	memcpy(addr.sun_path, path, strlen(path) + 1);
	lock = lock_directory(path, err);
	if (lock < 0)
		return lock;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		r = err_set(err, -errno, EXIT_OS_ERR, "socket: %s", strerror(errno));
	if (r == 0)
		r = clear_path(&addr, err);
	if (r == 0)
		r = bind_and_listen(fd, &addr, mode, gid, &id, err);
	close(lock);
	if (r < 0) {
		if (fd >= 0)
			close(fd);
		return r;
	}
	s = listen_add(set, fd, true);
	s->dev = id.dev;
	s->ino = id.ino;
	snprintf(s->name, sizeof(s->name), "%s", path);
	return 0;
}
