#include "coordinator/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "coordinator/listen_unix.h"

#define LOG_TAG "listen"
#include "shm/log.h"

#define FIRST_INHERITED_FD 3 /* SD_LISTEN_FDS_START */

struct listen_socket *listen_add(struct listen_set *set, int fd, bool is_unix)
{
	struct listen_socket *s = &set->sockets[set->n++];

	*s = (struct listen_socket){.fd = fd, .is_unix = is_unix};
	return s;
}

/* "127.0.0.1:8080", "[::1]:8080", a path or "@abstract", cut to fit. */
static void name_socket(struct listen_socket *s)
{
	struct sockaddr_storage addr = {0};
	const struct sockaddr_un *un = (const struct sockaddr_un *)&addr;
	char host[64], port[8];
	socklen_t len = sizeof(addr);

	if (getsockname(s->fd, (struct sockaddr *)&addr, &len) < 0)
		return;
	if (addr.ss_family == AF_UNIX)
		snprintf(s->name, sizeof(s->name), "%s%.106s", un->sun_path[0] ? "" : "@",
			un->sun_path[0] ? un->sun_path : un->sun_path + 1);
	else if (getnameinfo((struct sockaddr *)&addr, len, host, sizeof(host), port, sizeof(port),
			 NI_NUMERICHOST | NI_NUMERICSERV) == 0)
		snprintf(s->name, sizeof(s->name), addr.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s",
			host, port);
}

static int sock_int(int fd, int option)
{
	socklen_t len = sizeof(int);
	int value;

	return getsockopt(fd, SOL_SOCKET, option, &value, &len) < 0 ? -errno : value;
}

static int inherit_one(struct listen_set *set, int fd, struct errbuf *err)
{
	int domain = sock_int(fd, SO_DOMAIN);

	if (sock_int(fd, SO_TYPE) != SOCK_STREAM || sock_int(fd, SO_ACCEPTCONN) != 1 ||
		(domain != AF_UNIX && domain != AF_INET && domain != AF_INET6))
		return err_set(err, -EINVAL, EXIT_CONFIG_ERR,
			"LISTEN_FDS: descriptor %d is not a listening stream socket: the socket "
			"unit needs ListenStream= and Accept=no",
			fd);
	if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
		return err_set(err, -errno, EXIT_OS_ERR, "LISTEN_FDS: descriptor %d: %s", fd,
			strerror(errno));
	name_socket(listen_add(set, fd, domain == AF_UNIX));
	set->sockets[set->n - 1].inherited = true;
	return 0;
}

int listen_inherit(struct listen_set *set, struct errbuf *err)
{
	const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");
	long n = fds ? strtol(fds, NULL, 10) : 0;
	int r = 0;

	if (!pid || strtol(pid, NULL, 10) != getpid())
		n = 0; /* meant for somebody else */
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_FDNAMES");
	if (n < 0 || n > (long)(LISTEN_MAX - set->n))
		return err_set(err, -EINVAL, EXIT_CONFIG_ERR,
			"LISTEN_FDS: %ld sockets were handed over; at most %d are taken", n,
			LISTEN_MAX);
	for (int i = 0; i < (int)n && r == 0; i++)
		r = inherit_one(set, FIRST_INHERITED_FD + i, err);
	return r < 0 ? r : (int)n;
}

/* Splits HOST:PORT; host is "" for all addresses. */
static int split_host_port(const char *text, char *host, size_t cap, const char **ret_port)
{
	const char *colon = strrchr(text, ':'), *from = text, *to = colon;

	if (!colon || colon[1] == '\0' || strspn(colon + 1, "0123456789") != strlen(colon + 1) ||
		strlen(colon + 1) > 5 || strtol(colon + 1, NULL, 10) > 65535)
		return -EINVAL;
	if (text[0] == '[') {
		if (to == text || to[-1] != ']')
			return -EINVAL;
		from++;
		to--;
	} else if (memchr(text, ':', (size_t)(colon - text))) {
		return -EINVAL; /* an IPv6 address without brackets: which colon is the port's? */
	}
	if ((size_t)(to - from) >= cap)
		return -EINVAL;
	memcpy(host, from, (size_t)(to - from));
	host[to - from] = '\0';
	if (strcmp(host, "*") == 0)
		host[0] = '\0';
	*ret_port = colon + 1;
	return 0;
}

static int open_tcp(struct listen_set *set, const struct addrinfo *ai)
{
	int fd, r, one = 1;

	fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	/* or a restart would wait for old connections in TIME_WAIT */
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0)
		goto err_close;
	/* so that "*" can have a socket for each family */
	if (ai->ai_family == AF_INET6 &&
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one)) < 0)
		goto err_close;
	if (bind(fd, ai->ai_addr, ai->ai_addrlen) < 0 || listen(fd, SOMAXCONN) < 0)
		goto err_close;
	name_socket(listen_add(set, fd, false));
	return 0;

err_close:
	r = -errno;
	close(fd);
	return r;
}

/* What HOST:PORT stands for; the caller frees. */
static int resolve(const char *host_port, struct addrinfo **ret_list, struct errbuf *err)
{
	const struct addrinfo hints = {
		.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
	char host[256];
	const char *port;
	int r;

	if (split_host_port(host_port, host, sizeof(host), &port) < 0)
		return err_set(err, -EINVAL, EXIT_CONFIG_ERR,
			"listen.tcp: '%s' is not HOST:PORT (127.0.0.1:8080, [::1]:8080, *:8080)",
			host_port);
	r = getaddrinfo(host[0] ? host : NULL, port, &hints, ret_list);
	if (r != 0)
		return err_set(err, -EADDRNOTAVAIL, EXIT_CONFIG_ERR,
			"listen.tcp: cannot resolve '%s': %s", host, gai_strerror(r));
	return 0;
}

int listen_check_tcp(const char *host_port, struct errbuf *err)
{
	struct addrinfo *list;
	int r = resolve(host_port, &list, err);

	if (r == 0)
		freeaddrinfo(list);
	return r;
}

int listen_tcp(struct listen_set *set, const char *host_port, struct errbuf *err)
{
	struct addrinfo *list, *ai;
	size_t before = set->n;
	int r = resolve(host_port, &list, err);

	if (r < 0)
		return r;
	r = -EADDRNOTAVAIL;
	for (ai = list; ai && set->n < LISTEN_MAX; ai = ai->ai_next) {
		r = open_tcp(set, ai);
		/* a machine without IPv6 still resolves names to IPv6 addresses */
		if (r < 0 && r != -EAFNOSUPPORT && r != -EADDRNOTAVAIL)
			break;
	}
	freeaddrinfo(list);
	if (set->n > before && (r == 0 || r == -EAFNOSUPPORT || r == -EADDRNOTAVAIL))
		return 0;
	while (set->n > before)
		close(set->sockets[--set->n].fd);
	return err_set(err, r, r == -EACCES ? EXIT_NO_PERM : EXIT_OS_ERR,
		"listen.tcp: cannot listen on %s: %s", host_port, strerror(-r));
}

void listen_warn_kept(const struct listen_set *set)
{
	char dir[sizeof(set->sockets->name)];
	size_t i;

	for (i = 0; i < set->n; i++) {
		const struct listen_socket *s = &set->sockets[i];

		if (!s->is_unix || s->inherited)
			continue;
		listen_directory(s->name, dir);
		if (access(dir, W_OK | X_OK) < 0)
			log_warn(
				"listen.socket: %s will be left behind at the end: daemon.user may "
				"not write to %s; give it a directory of its own",
				s->name, dir);
	}
}

void listen_close(struct listen_set *set)
{
	struct listen_socket *s;
	struct stat st;

	while (set->n > 0) {
		s = &set->sockets[--set->n];
		close(s->fd);
		if (s->is_unix && !s->inherited && lstat(s->name, &st) == 0 &&
			st.st_dev == s->dev && st.st_ino == s->ino && unlink(s->name) < 0)
			log_warn("%s is left behind, and replaced by the next start: %s", s->name,
				strerror(errno));
	}
}
