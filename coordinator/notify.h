/*
 * notify.h: tells systemd (or whoever set NOTIFY_SOCKET) how we are, as sd_notify(3) does, without
 * its library: one datagram a message. Without NOTIFY_SOCKET every call does nothing. Failures are
 * returned but never matter to the service; callers log them at debug level or ignore them.
 */
#ifndef COORDINATOR_NOTIFY_H
#define COORDINATOR_NOTIFY_H

#include <sys/socket.h>
#include <sys/un.h>

#include "shm/clock.h"
#include "shm/util.h"

struct notify {
	int fd; /* -1: nobody listens */
	socklen_t addr_len;
	struct sockaddr_un addr;
	mono_ns_t watchdog_ns; /* send notify_watchdog() at least this often; 0: not asked for */
};

/*
 * Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, and removes them from the environment so
 * that children do not speak for us. Addresses are absolute paths and @abstract names; others are
 * -EAFNOSUPPORT. n is usable (and silent) after a failure too.
 */
int notify_open(struct notify *n) MUST_CHECK;
void notify_close(struct notify *n);

/* Each returns 1 when sent, 0 when nobody listens, -errno. `status` is a line for people. */
int notify_ready(const struct notify *n, const char *status);
int notify_status(const struct notify *n, const char *fmt, ...) PRINTF_LIKE(2, 3);
int notify_reloading(const struct notify *n); /* to be followed by notify_ready() */
int notify_stopping(const struct notify *n, const char *status);
int notify_watchdog(const struct notify *n);
/* While starting or stopping: a longer wait than the unit's timeout is fine, if we say so again
 * within this time. */
int notify_extend(const struct notify *n, mono_ns_t within);

#endif
