/*
 * daemon.h: the process as the system sees it: background, pidfile, user, limits. No policy: each
 * function does one thing and says in err what went wrong.
 *
 * Order of calls: daemon_background() first of all (before threads, rings and children);
 * daemon_pidfile(); open privileged things; daemon_become(); at readiness daemon_report(0).
 */
#ifndef COORDINATOR_DAEMON_H
#define COORDINATOR_DAEMON_H

#include <stdbool.h>

#include "shm/util.h"

struct daemon {
	int report_fd;  /* to the waiting parent; -1: none */
	int pidfile_fd; /* locked; -1: none */
	char pidfile[1024];
};

/*
 * Forks. The parent waits until the child reports or ends, and does not return: it exits with the
 * code reported, or the child's own. In the child it returns 0, in a session of its own.
 */
int daemon_background(struct daemon *d, struct errbuf *err) MUST_CHECK;

/*
 * Tells the parent the outcome, once. With 0 stdin, stdout and stderr go to /dev/null: from now on
 * the log is the only voice.
 */
void daemon_report(struct daemon *d, int exit_code);

/* Creates and locks the file and writes our pid. -EEXIST (exit code 69): a daemon holds it. */
int daemon_pidfile(struct daemon *d, const char *path, struct errbuf *err) MUST_CHECK;
void daemon_pidfile_remove(struct daemon *d);

/* Are there such a user and group ("": none is named)? Else -ENOENT (78). */
int daemon_check(const char *user, const char *group, struct errbuf *err) MUST_CHECK;

/* Group and user by name ("" leaves it), all supplementary groups of the user; only root may. */
int daemon_become(const char *user, const char *group, struct errbuf *err) MUST_CHECK;

/* Gives a file made by root to that user and, unless keep_group, group; as anyone else nothing. */
int daemon_give(const char *path, const char *user, const char *group, bool keep_group,
	struct errbuf *err) MUST_CHECK;

/*
 * As many open files as the hard limit allows, and stacks as usual whatever ulimit -s says; before
 * any thread is started. -EPERM (71) where the hard limit leaves the main thread's stack too small.
 */
int daemon_raise_limits(struct errbuf *err) MUST_CHECK;

#endif
