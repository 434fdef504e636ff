#define _GNU_SOURCE
#include "shm/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "shm/escape.h"
#include "shm/file.h"
#include "shm/utf8.h"

#define LOG_LINE 2304
#define LOG_TEXT 1023 /* bytes of one message, before they are escaped */

/* How a line is written without waiting. */
enum log_way {
	LOG_PLAIN,  /* a file, or a description of ours that is O_NONBLOCK */
	LOG_SOCKET, /* send(2) can be told not to wait */
	LOG_SHARED, /* a pipe or terminal whose flags are not ours to change */
	LOG_DEVLOG, /* /dev/log, which syslog(3) would wait for */
};

/* The process's log is the one thing that is global: every module writes to it from anywhere. */
static struct {
	int fd;
	int follow, to_journal;
	enum conf_format format;
	char who[32];
	char path[CONF_STR_MAX];
	enum log_way way;
	_Atomic uint64_t dropped; /* lines since the last that was written */
} log_state = {.fd = STDERR_FILENO, .way = LOG_SHARED, .format = CONF_FORMAT_TEXT, .who = "heddle"};

int log_level_now = CONF_LEVEL_INFO;

#define X(name, suffix) name,
static const char *const level_names[] = {CONF_LEVEL(X)};
#undef X
static const int level_priority[] = {LOG_ERR, LOG_WARNING, LOG_NOTICE, LOG_INFO, LOG_DEBUG};
_Static_assert(CONF_LEVEL_ERROR == 0 && CONF_LEVEL_WARNING == 1 && CONF_LEVEL_NOTICE == 2 &&
		       CONF_LEVEL_INFO == 3 && CONF_LEVEL_DEBUG == 4 &&
		       ARRAY_LEN(level_priority) == ARRAY_LEN(level_names),
	"level_priority follows CONF_LEVEL");

static enum log_way way_of(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	struct stat st;

	if (fstat(fd, &st) < 0 || S_ISREG(st.st_mode))
		return LOG_PLAIN;
	if (S_ISSOCK(st.st_mode))
		return LOG_SOCKET;
	return flags >= 0 && flags & O_NONBLOCK ? LOG_PLAIN : LOG_SHARED;
}

void log_own_stderr(void)
{
	struct stat st;
	int fd;

	if (fstat(STDERR_FILENO, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode))) {
		fd = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
		if (fd >= 0) { /* else another user's pipe, or no /proc: LOG_SHARED */
			(void)!dup2(fd, STDERR_FILENO);
			close(fd);
		}
	}
	log_state.way = way_of(log_state.fd);
}

static int refuse_path(const char *path, int error, struct errbuf *err)
{
	if (error == ENXIO)
		return err_set(err, -ENXIO, EXIT_CONFIG_ERR,
			"log.target: %s is a FIFO that nobody reads, or a socket: start its reader "
			"first, or name a file",
			path);
	if (error == EISDIR)
		return err_set(err, -EISDIR, EXIT_CONFIG_ERR,
			"log.target: %s is a directory: name a file", path);
	return err_set(err, -error, file_exit_code(error), "log.target: cannot open %s: %s", path,
		strerror(error));
}

static int try_path(const char *path, int more)
{
	int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | more, 0640);

	return fd < 0 ? -errno : fd;
}

static int open_path(const char *path, struct errbuf *err)
{
	int fd = try_path(path, O_CREAT);

	return fd < 0 ? refuse_path(path, -fd, err) : fd;
}

static bool is_path(const char *target)
{
	return strcmp(target, "stderr") != 0 && strcmp(target, "syslog") != 0;
}

int log_check(const char *target, struct errbuf *err)
{
	char dir[CONF_STR_MAX];
	int r;

	if (!is_path(target))
		return 0;
	r = try_path(target, 0);
	if (r >= 0)
		close(r);
	if (r == -ENOENT) { /* it is to be made */
		file_directory(target, dir, sizeof(dir));
		r = access(dir, W_OK | X_OK) < 0 ? -errno : 0;
	}
	return r < 0 ? refuse_path(target, -r, err) : 0;
}

/* -1 while nobody listens there: each line tries again. */
static int open_syslog(void)
{
	const struct sockaddr_un addr = {.sun_family = AF_UNIX, .sun_path = _PATH_LOG};
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd >= 0 && connect(fd, (const struct sockaddr *)&addr, sizeof(addr)) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

/* JOURNAL_STREAM is device:inode of the journal's socket; children inherit it with any stderr. */
static int is_journal(int fd)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;

	return stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 && fstat(fd, &st) == 0 &&
	       st.st_dev == dev && st.st_ino == ino;
}

int log_open(const char *target, enum conf_level level, enum conf_format format, const char *who,
	struct errbuf *err)
{
	bool use_syslog = strcmp(target, "syslog") == 0;
	int fd = STDERR_FILENO;

	if (is_path(target)) {
		fd = open_path(target, err);
		if (fd < 0)
			return fd;
	}
	if (log_state.fd > STDERR_FILENO)
		close(log_state.fd);
	snprintf(log_state.who, sizeof(log_state.who), "%s", who);
	snprintf(log_state.path, sizeof(log_state.path), "%s", fd == STDERR_FILENO ? "" : target);
	log_state.fd = use_syslog ? open_syslog() : fd;
	log_state.way = use_syslog ? LOG_DEVLOG : way_of(fd);
	log_state.to_journal = !use_syslog && fd == STDERR_FILENO && is_journal(fd);
	log_state.format = format;
	log_set_level(level);
	return 0;
}

int log_reopen(struct errbuf *err)
{
	int fd;

	if (!log_state.path[0])
		return 0;
	fd = open_path(log_state.path, err);
	if (fd < 0)
		return fd;
	close(log_state.fd);
	log_state.fd = fd;
	log_state.way = way_of(fd);
	return 0;
}

void log_follow(void)
{
	log_state.follow = 1;
}

/* The old file is kept when the new one cannot be had: lines there are better than none. */
static void follow_path(void)
{
	struct stat ours, named;

	if (fstat(log_state.fd, &ours) == 0 && stat(log_state.path, &named) == 0 &&
		ours.st_dev == named.st_dev && ours.st_ino == named.st_ino)
		return;
	(void)!log_reopen(NULL);
}

void log_set_level(enum conf_level level)
{
	log_level_now = (int)level;
}

/*
 * Of a pipe whose flags are shared. Linux before 6.4 knows no RWF_NOWAIT for pipes; then poll()
 * promises room for PIPE_BUF bytes, unless another process writes at the same moment.
 */
static ssize_t write_shared(int fd, const char *line, size_t n)
{
	struct iovec iov = {(void *)line, n};
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	ssize_t done = pwritev2(fd, &iov, 1, -1, RWF_NOWAIT);

	if (done >= 0 || errno == EAGAIN || errno == EPIPE)
		return done;
	if (poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT)) {
		errno = EAGAIN;
		return -1;
	}
	return write(fd, line, n);
}

/* A daemon that was started anew has another socket at the path. */
static ssize_t write_syslog(const char *line, size_t n)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	ssize_t done;

	pthread_mutex_lock(&mutex);
	done = send(log_state.fd, line, n, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (done < 0 && errno != EAGAIN && errno != ENOBUFS) {
		if (log_state.fd >= 0)
			close(log_state.fd);
		log_state.fd = open_syslog();
		done = send(log_state.fd, line, n, MSG_DONTWAIT | MSG_NOSIGNAL);
	}
	pthread_mutex_unlock(&mutex);
	return done;
}

static bool write_line(const char *line, size_t n)
{
	ssize_t done;

	switch (log_state.way) {
	case LOG_SOCKET:
		done = send(log_state.fd, line, n, MSG_DONTWAIT | MSG_NOSIGNAL);
		break;
	case LOG_SHARED:
		done = write_shared(log_state.fd, line, n);
		break;
	case LOG_DEVLOG:
		done = write_syslog(line, n);
		break;
	default:
		done = write(log_state.fd, line, n);
	}
	return done >= 0;
}

/* One line, LOG_LINE bytes at most with its newline: less than PIPE_BUF, so never in parts. */
static size_t make_line(char *line, enum conf_level level, const char *tag, const char *text)
{
	bool json = log_state.format == CONF_FORMAT_JSON && log_state.way != LOG_DEVLOG;
	char escaped[2048], when[40];
	struct timespec ts;
	struct tm tm;
	int n;

	/* what a client sent must not forge lines, drive a terminal or break whoever reads JSON */
	(void)(json ? escape_json : escape_line)(escaped, sizeof(escaped), text);

	clock_gettime(CLOCK_REALTIME, &ts);
	if (log_state.way == LOG_DEVLOG) {
		/* as syslog(3) writes it: RFC 3164, local time, no newline */
		localtime_r(&ts.tv_sec, &tm);
		strftime(when, sizeof(when), "%h %e %T", &tm);
		n = snprintf(line, LOG_LINE, "<%d>%s %s[%d]: %s: %s",
			LOG_DAEMON | level_priority[level], when, log_state.who, (int)getpid(), tag,
			escaped);
		return n > 0 ? MIN((size_t)n, LOG_LINE - 1u) : 0;
	}
	gmtime_r(&ts.tv_sec, &tm);
	strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", &tm);
	if (json) {
		n = snprintf(line, LOG_LINE,
			"{\"time\":\"%s.%03ldZ\",\"level\":\"%s\",\"process\":\"%s\",\"tag\":\"%"
			"s\","
			"\"message\":\"%s\"}\n",
			when, ts.tv_nsec / 1000000, level_names[level], log_state.who, tag,
			escaped);
	} else if (log_state.to_journal) {
		/* journald reads the level from the prefix and adds the time itself */
		n = snprintf(line, LOG_LINE, "<%d>%s: %s: %s\n", level_priority[level],
			log_state.who, tag, escaped);
	} else {
		n = snprintf(line, LOG_LINE, "%s.%03ldZ %s %s: %s: %s\n", when,
			ts.tv_nsec / 1000000, level_names[level], log_state.who, tag, escaped);
	}
	return n > 0 ? MIN((size_t)n, LOG_LINE - 1u) : 0;
}

/* True when whoever reads knows of all lines dropped before. */
static bool tell_dropped(void)
{
	uint64_t n = atomic_exchange(&log_state.dropped, 0);
	char text[96], line[LOG_LINE];

	if (n == 0)
		return true;
	snprintf(text, sizeof(text), "%llu lines before this one were lost: the log took no more",
		(unsigned long long)n);
	if (write_line(line, make_line(line, CONF_LEVEL_WARNING, "log", text)))
		return true;
	atomic_fetch_add(&log_state.dropped, n);
	return false;
}

void log_write(enum conf_level level, const char *tag, const char *fmt, ...)
{
	/* the bytes after the cut tell whether it is inside a character */
	char text[LOG_TEXT + 4], line[LOG_LINE];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	text[utf8_fit(text, strlen(text), LOG_TEXT)] = '\0';
	if (log_state.follow && log_state.path[0])
		follow_path();
	if (!tell_dropped() || !write_line(line, make_line(line, level, tag, text)))
		atomic_fetch_add(&log_state.dropped, 1);
}
