#include "coordinator/notify.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/escape.h"

static void read_watchdog(struct notify *n)
{
	const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
	unsigned long long v;
	char *end;

	if (usec && (!pid || strtoll(pid, NULL, 10) == getpid())) {
		errno = 0;
		v = strtoull(usec, &end, 10);
		if (errno == 0 && *end == '\0' && v > 0 && v < UINT64_MAX / NS_PER_US)
			n->watchdog_ns = v * NS_PER_US;
	}
	unsetenv("WATCHDOG_USEC");
	unsetenv("WATCHDOG_PID");
}

/* '@' stands for the leading NUL of an abstract name, which is not terminated. */
static int set_address(struct notify *n, const char *name)
{
	size_t len = strlen(name);

	if ((name[0] != '/' && name[0] != '@') || len < 2)
		return -EAFNOSUPPORT;
	if (len >= sizeof(n->addr.sun_path))
		return -ENAMETOOLONG;
	n->addr.sun_family = AF_UNIX;
	memcpy(n->addr.sun_path, name, len + 1);
	n->addr_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
	if (name[0] == '@')
		n->addr.sun_path[0] = '\0';
	else
		n->addr_len++;
	return 0;
}

int notify_open(struct notify *n)
{
	const char *name = getenv("NOTIFY_SOCKET");
	int r = 0;

	*n = (struct notify){.fd = -1};
	read_watchdog(n);
	if (!name)
		return 0;
	r = set_address(n, name);
	unsetenv("NOTIFY_SOCKET");
	if (r < 0)
		return r;
	n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	return n->fd < 0 ? -errno : 0;
}

void notify_close(struct notify *n)
{
	if (n->fd >= 0)
		close(n->fd);
	n->fd = -1;
}

PRINTF_LIKE(2, 3)
static int send_text(const struct notify *n, const char *fmt, ...)
{
	char text[1024];
	va_list ap;
	int len;

	if (n->fd < 0)
		return 0;
	va_start(ap, fmt);
	len = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (len < 0 || (size_t)len >= sizeof(text))
		return -EMSGSIZE;
	/* the address each time: the manager may have made its socket anew */
	if (sendto(n->fd, text, (size_t)len, MSG_NOSIGNAL, (const struct sockaddr *)&n->addr,
		    n->addr_len) < 0)
		return -errno;
	return 1;
}

/* STATUS is escaped: a newline would begin another variable; and systemd refuses what is no UTF-8.
 */
int notify_ready(const struct notify *n, const char *status)
{
	char line[768];

	(void)escape_line(line, sizeof(line), status);
	return send_text(n, "READY=1\nSTATUS=%s\n", line);
}

int notify_status(const struct notify *n, const char *fmt, ...)
{
	char text[768], line[768];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	(void)escape_line(line, sizeof(line), text);
	return send_text(n, "STATUS=%s\n", line);
}

int notify_reloading(const struct notify *n)
{
	return send_text(n, "RELOADING=1\nMONOTONIC_USEC=%llu\n",
		(unsigned long long)(mono_now() / NS_PER_US));
}

int notify_stopping(const struct notify *n, const char *status)
{
	char line[768];

	(void)escape_line(line, sizeof(line), status);
	return send_text(n, "STOPPING=1\nSTATUS=%s\n", line);
}

int notify_watchdog(const struct notify *n)
{
	return send_text(n, "WATCHDOG=1\n");
}

int notify_extend(const struct notify *n, mono_ns_t within)
{
	return send_text(n, "EXTEND_TIMEOUT_USEC=%llu\n", (unsigned long long)(within / NS_PER_US));
}
