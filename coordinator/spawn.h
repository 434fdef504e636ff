/*
 * spawn.h: starts a child process in a known state and nothing else: which fds it has, which CPUs
 * and memory it uses, that it dies with us. Who is started when, and what an exit means: sup.c.
 *
 * The child has default signals, an empty mask, a process group of its own (a terminal's ^C is for
 * the daemon alone), /dev/null as stdin, the listed fds and no others. It is killed when the thread
 * that spawned it ends, so spawn from the main thread.
 */
#ifndef COORDINATOR_SPAWN_H
#define COORDINATOR_SPAWN_H

#include <sys/types.h>

#include "coordinator/place.h"
#include "shm/util.h"

/* `fd` of this process becomes `as` in the child. Fds given must not lie in the range of any `as`
 * (seg_group_create() and spawn_high_fd() see to that), so that no dup2 hits another's source. */
struct spawn_fd {
	int fd, as;
};

struct spawn_args {
	const char *path; /* absolute or relative, no search */
	char *const *argv;
	const struct spawn_fd *fds;
	size_t fd_n;
	int output_fd;                   /* stdout and stderr; -1: our stderr */
	const struct place_worker *bind; /* NULL: where it may run now */
	bool bind_memory;
};

struct spawn_child {
	pid_t pid;
	int pidfd; /* readable when it has ended; owned by the caller */
};

/* 0, or -errno with err: no such program, no more processes, ... Waits until exec has happened. */
int spawn_child(const struct spawn_args *args, struct spawn_child *ret_child,
	struct errbuf *err) MUST_CHECK;

/* The child's wait status if it has ended (it is reaped then): 0, or -EAGAIN. */
int spawn_reap(const struct spawn_child *child, int *ret_status) MUST_CHECK;

/* "exit code 65", "signal 9 (Killed)", by a wait status. */
const char *spawn_status_text(int status, char buf[64]);

/* Refuses (exit code 71) a limit of open files with which these workers could not be started. */
int spawn_check_files(uint32_t workers, struct errbuf *err) MUST_CHECK;

/* Moves fd out of the way of the numbers children use; closes the old one. -errno. */
int spawn_high_fd(int fd) MUST_CHECK;

/* A close-on-exec memfd out of the way, holding these bytes; or -errno. */
int spawn_memfd(const char *name, const void *bytes, size_t n) MUST_CHECK;

#endif
