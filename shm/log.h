/*
 * Log lines: one line each, lower case, with what and where. Parsers, rings and kernels never log;
 * the function that decides what to do about an error logs it.
 *
 * Before log_open() lines go to stderr at level info. Every process logs to the same target: the
 * coordinator by log_open(), workers by the frozen configuration. Not thread-safe to reopen while
 * other threads log; writing a line is one system call.
 *
 * A line is one line of valid UTF-8, whatever its arguments quote: escape.h says how. In JSON it is
 * an object of time, level, process, tag and message.
 *
 * Logging never waits for who reads: a line that a pipe, terminal or socket does not take at once,
 * or a disk has no room for, is dropped and counted, and the first line after says how many were.
 */
#ifndef SHM_LOG_H
#define SHM_LOG_H

#include "shm/conf_types.h"
#include "shm/util.h"

/*
 * At the start of the program, while it has the rights it was started with: makes a stderr that is
 * a pipe, FIFO or terminal non-blocking, by an open file description of our own, as the inherited
 * one is shared with whoever started us. Children get it from us.
 */
void log_own_stderr(void);

/*
 * Opens target ("stderr", "syslog" or a path) at a level and format; `who` names the process in
 * every line ("heddled", "worker 3"). Returns 0 or -errno with err filled. Opening does not block:
 * a FIFO that nobody reads is refused.
 */
int log_open(const char *target, enum conf_level level, enum conf_format format, const char *who,
	struct errbuf *err) MUST_CHECK;

/*
 * Could log_open() open this target now? Its errors; but no file is made, and whatever is open
 * stays.
 */
int log_check(const char *target, struct errbuf *err) MUST_CHECK;

/* Reopens a file target (logrotate, SIGUSR1). Keeps the old file when the new cannot be opened. */
int log_reopen(struct errbuf *err) MUST_CHECK;

/*
 * For a process that nobody tells of a rotation: from now on a line goes to the file that has the
 * path at that time, at the cost of a stat(2) a line.
 */
void log_follow(void);

/* Changes the level at run time. */
void log_set_level(enum conf_level level);

/* The level now in force; log_* tests it before it evaluates arguments. */
extern int log_level_now;

PRINTF_LIKE(3, 4)
void log_write(enum conf_level level, const char *tag, const char *fmt, ...);

/* Each .c defines LOG_TAG before including this file. */
#define log_at(level, ...)                                                                         \
	do {                                                                                       \
		if ((int)(level) <= log_level_now)                                                 \
			log_write(level, LOG_TAG, __VA_ARGS__);                                    \
	} while (0)
#define log_err(...)    log_at(CONF_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...)   log_at(CONF_LEVEL_WARNING, __VA_ARGS__)
#define log_notice(...) log_at(CONF_LEVEL_NOTICE, __VA_ARGS__)
#define log_info(...)   log_at(CONF_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)  log_at(CONF_LEVEL_DEBUG, __VA_ARGS__)

#endif
