/*
 * A worker group of real processes (fork and exec of the test program itself) that runs made-up
 * steps: each worker checks the record's bytes, meets its peers at a flag, and replies.
 *
 * A program that uses it begins main() with group_main(), which does not return in the roles that
 * the program is started in again.
 */
#ifndef TESTS_GROUP_H
#define TESTS_GROUP_H

#include <sys/types.h>

#include "shm/chan.h"

/* How a worker ends. */
enum group_exit {
	GROUP_STOPPED = 0,
	GROUP_PEER_GONE = 32, /* a wait returned -EPIPE */
	GROUP_GARBAGE = 33,   /* a record was not what the coordinator wrote */
	GROUP_CORRUPT = 34,   /* -EBADMSG */
	GROUP_OTHER = 35,
	GROUP_FAILED = 36, /* was told to fail */
};

enum group_op { GROUP_RUN, GROUP_STOP, GROUP_FAIL };

struct group_step {
	uint64_t number;
	uint32_t op;   /* enum group_op */
	uint32_t rank; /* GROUP_FAIL: who */
};

struct group_reply {
	uint64_t number, sum;
	uint32_t rank, pad;
};

struct group_run {
	struct seg_group g;
	struct chan_coord c;
	pid_t pids[SEG_WORKERS_MAX];
	int pidfds[SEG_WORKERS_MAX];
	uint64_t pushed, popped[SEG_WORKERS_MAX];
	bool garbage; /* a reply was not what it had to be */
};

struct group_options {
	uint32_t workers;
	uint64_t generation;
	uint64_t spin_ns;
	const char *fault; /* HEDDLE_FAULT of the workers, or NULL */
	int report_fd;     /* workers write their exit code there as a byte; -1: none */
};

/* Runs this process's role, if it was started in one, and exits. */
void group_main(int argc, char **argv);

/* Creates segments, starts the workers, waits until all are READY. 0 or -errno. */
int group_start(struct group_run *run, const struct group_options *options);

/*
 * Pushes and reads replies until `steps` more steps are answered by all. 0; -EPIPE when a worker
 * has ended; -ETIMEDOUT after timeout_ns without news; what the rings said.
 */
int group_run_steps(struct group_run *run, uint64_t steps, uint64_t timeout_ns);
/* Pushes one step of an operation: now or -EAGAIN; waiting for room. */
int group_try_push(struct group_run *run, enum group_op op, uint32_t rank);
int group_push(struct group_run *run, enum group_op op, uint32_t rank);
/* Reads the replies that are there. >= 0: how many. */
int group_read(struct group_run *run);
/* Waits for a worker's end: its wait status, or -ETIMEDOUT. */
int group_wait_exit(struct group_run *run, uint32_t rank, uint64_t timeout_ns);
/* Kills what still runs, closes everything. */
void group_end(struct group_run *run);

/* fork and exec of this program with a role; `fault` as above. */
pid_t group_spawn_coordinator(const char *fault, int report_fd);

#endif
