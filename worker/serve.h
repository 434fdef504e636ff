/*
 * serve.h: the life of a heddle-worker process: attach to the group's segments, load, say READY,
 * run steps until told to stop. Everything it does with the model is rank.h's.
 */
#ifndef WORKER_SERVE_H
#define WORKER_SERVE_H

#include <stdint.h>

#include "shm/seg.h"
#include "shm/util.h"

struct serve_opts {
	uint32_t rank, world;
	uint64_t generation;
	int coord_fd, bell_fd;
	int worker_fds[SEG_WORKERS_MAX];
};

/* Returns the process's exit code. */
int serve_run(const struct serve_opts *opts);

#endif
