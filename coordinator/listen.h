/*
 * listen.h: the sockets requests come in by: handed over by systemd, a Unix socket, TCP. Opens and
 * closes them; accepting is the HTTP server's business.
 *
 * Order of calls: listen_inherit(); if it found none, listen_unix() and/or listen_tcp(); at the end
 * listen_close(). Call listen_unix() before privileges are dropped if the directory needs them.
 */
#ifndef COORDINATOR_LISTEN_H
#define COORDINATOR_LISTEN_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "shm/util.h"

#define LISTEN_MAX      16
#define LISTEN_PATH_MAX 107 /* bytes of a Unix socket's path: sizeof(sun_path) less its NUL */

struct listen_socket {
	int fd;
	bool is_unix;
	bool inherited;
	/* of a Unix socket made here, so that only ours is unlinked */
	dev_t dev;
	ino_t ino;
	char name[LISTEN_PATH_MAX + 1]; /* path, or "127.0.0.1:8080"; for the log */
};

/* Zeroed, it is empty. */
struct listen_set {
	struct listen_socket sockets[LISTEN_MAX];
	size_t n;
};

/*
 * Takes over the sockets of LISTEN_FDS when LISTEN_PID is this process, and removes both from the
 * environment. Returns how many (0: none were handed over), or -errno with err filled when one is
 * not a listening stream socket.
 */
int listen_inherit(struct listen_set *set, struct errbuf *err) MUST_CHECK;

/*
 * Makes a Unix socket at path with these permissions (and group, unless ""). A socket left behind
 * by a dead process is replaced; one that somebody serves (-EADDRINUSE), and anything that is not a
 * socket (-EEXIST), is left alone. Two processes that start at once cannot both win. A path longer
 * than LISTEN_PATH_MAX is -ENAMETOOLONG.
 */
int listen_unix(struct listen_set *set, const char *path, mode_t mode, const char *group,
	struct errbuf *err) MUST_CHECK;

/*
 * What can be said of these two without opening anything: is the path short enough, is there
 * nothing but perhaps a socket, is there such a group; can the address be resolved? The same
 * errors.
 */
int listen_check_unix(const char *path, const char *group, struct errbuf *err) MUST_CHECK;
int listen_check_tcp(const char *host_port, struct errbuf *err) MUST_CHECK;

/*
 * HOST:PORT, [IPV6]:PORT or *:PORT (all addresses). A name is opened on each of its addresses. Port
 * 0 takes a free one, which then stands in the socket's name.
 */
int listen_tcp(struct listen_set *set, const char *host_port, struct errbuf *err) MUST_CHECK;

/* Warns, in the log, of sockets made here that this user, whom the daemon has become, may not
 * remove. */
void listen_warn_kept(const struct listen_set *set);

/* Closes all; removes the path of a Unix socket made here if it is still that socket, or logs that
 * it could not. */
void listen_close(struct listen_set *set);

#endif
