/*
 * loop_check.h: why there is no ring, in one sentence. Pure, so that every refusal can be tested on
 * a machine that would not refuse.
 */
#ifndef COORDINATOR_LOOP_CHECK_H
#define COORDINATOR_LOOP_CHECK_H

#include "shm/util.h"

/* Needed for IORING_SETUP_DEFER_TASKRUN. */
enum { LOOP_KERNEL_MAJOR = 6, LOOP_KERNEL_MINOR = 1 };

/* `release` as uname(2) has it ("6.1.0-18-amd64"). Returns 0, or -ENOSYS with err filled. */
int loop_check_kernel(const char *release, struct errbuf *err) MUST_CHECK;

/*
 * io_uring_setup(2) failed with `error` (-errno). `disabled` is the value of the sysctl
 * kernel.io_uring_disabled, or -1 where there is none. Fills err, returns error.
 */
int loop_explain_setup(int error, int disabled, const char *release, struct errbuf *err);

#endif
