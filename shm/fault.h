/*
 * Named fault points, for tests: the place where a process is to be killed, stopped or made to
 * fail. Compiled out unless HEDDLE_FAULTS is defined (configure --enable-faults; the tests of shm/
 * build their own copy with it).
 *
 *   FAULT_POINT("ring.push.mid");              statement
 *   if (FAULT_ERR("ckpt.read")) return -EIO;   expression: 0, or -EIO when armed with `err`
 *
 * Armed by the environment, which children inherit; several, separated by commas:
 *
 *   HEDDLE_FAULT=NAME[@RANK[.GENERATION]][:COUNT]=kill|stop|exit|err
 *
 * fires at the COUNT-th pass (from 1, the default) of a process that has called fault_identity()
 * with that rank and generation; without @ it fires in any process. kill and stop send SIGKILL and
 * SIGSTOP to the process itself, exit is _exit(70), err makes FAULT_ERR return -EIO at that pass
 * and all later ones.
 */
#ifndef SHM_FAULT_H
#define SHM_FAULT_H

#include <stdint.h>

#include "config.h"

#ifdef HEDDLE_FAULTS
/* Counts a pass of the point; acts when it is armed. Thread-safe. Returns 0 or -EIO. */
int fault_hit(const char *name);
/* Who this process is: a rank and the generation of its group; the coordinator is rank -1. */
void fault_identity(int rank, uint64_t generation);
#define FAULT_POINT(name) ((void)fault_hit(name))
#define FAULT_ERR(name)   fault_hit(name)
#else
static inline void fault_identity(int rank, uint64_t generation)
{
	(void)rank;
	(void)generation;
}
#define FAULT_POINT(name) ((void)0)
#define FAULT_ERR(name)   0
#endif

#endif
