/*
 * comm_shm.h: collectives over shared memory. Each rank owns one area and one flag, which it alone
 * writes and all others read; they may be parts of different processes' segments or of one
 * process's heap (threads, in tests).
 *
 *     area of rank r:  [ what 0 | what 1 ][ tile 0 ][ tile 1 ]         flag: rounds published
 *
 * A collective is cut into tiles, the size of which depends on the area's size alone: buffers do
 * not grow with rows. In round t every rank writes its part into tile t mod 2 and then posts flag =
 * t+1; it reads the others' tiles once their flags have reached t+1. Two tiles suffice without
 * acknowledgements: who posts t+1 has seen all rounds t, and who posted round t had read all tiles
 * t-1.
 *
 * An all-reduce sums up the tiles of round t while it writes that of t+1: its own parts do not
 * leave x before, and every rank adds in the order of ranks, whoever it is.
 *
 * Waits are those of shm/bell.h: spin, then futex, with a liveness check and a deadline.
 */
#ifndef WORKER_COMM_SHM_H
#define WORKER_COMM_SHM_H

#include "shm/bell.h"
#include "worker/comm.h"

#define COMM_SHM_AREA_MIN   4096
#define COMM_SHM_AREA_BYTES (512 * 1024 + 4096) /* what we advise, and what tests use */

struct comm_shm_opts {
	uint32_t rank, world;
	/* By rank; this rank's are writable, the others' need not be. All zero before the first
	 * rank starts; mapped until the last has ended. Areas are 64-aligned and equally large. */
	unsigned char *areas[COMM_WORLD_MAX];
	struct bell_word *flags[COMM_WORLD_MAX];
	struct bell_armed *armed[COMM_WORLD_MAX]; /* armed[r]: rank r sleeps on somebody's flag */
	size_t area_bytes;
	struct bell_how how; /* without a deadline */
	/* A peer may be this late, by steps of how.check_ns; 0: no limit. Time in which this
	 * process did not run does not count. */
	uint64_t timeout_ns;
};

struct comm_shm {
	struct comm comm; /* what the forward pass gets */
	struct comm_shm_opts opts;
	const struct bell_armed *peers[COMM_WORLD_MAX]; /* armed[] of the others */
	size_t tile_bytes;
	uint32_t round;
	uint64_t wait_ns; /* of comm.busy_ns, waiting for peers */
	uint64_t bytes;   /* this rank has put in */
	int error;
};

/* Fills c; it needs no closing. -EINVAL when the area is too small or world too large. */
int comm_shm_init(struct comm_shm *c, const struct comm_shm_opts *opts) MUST_CHECK;

#endif
