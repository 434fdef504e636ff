/*
 * preflight.h: `heddle-worker --check`: may this configuration run here at all? The worker looks at
 * the checkpoint, the sizes, the number of workers and the memory plan before anything is loaded,
 * says one line and exits 0, 65, 66 or 78; line and code become heddled's own.
 *
 * The configuration reaches it as the bytes of struct conf in a memfd; its output comes back in
 * another, read when it has ended, so nothing here waits for it.
 */
#ifndef COORDINATOR_PREFLIGHT_H
#define COORDINATOR_PREFLIGHT_H

#include "coordinator/spawn.h"
#include "shm/conf_types.h"

#define PREFLIGHT_TIMEOUT_NS (60 * NS_PER_S)

struct preflight {
	struct spawn_child child;
	int output_fd;
};

/* `conf` must have no "auto" left that placement decides (place_resolve()). */
int preflight_start(struct preflight *p, const char *worker_path, const struct conf *conf,
	struct errbuf *err) MUST_CHECK;

/*
 * The child has ended with this wait status. Closes everything. 0, or -EINVAL with err: the line it
 * said and its exit code; a death by signal or an odd code is 70.
 */
int preflight_finish(struct preflight *p, int status, struct errbuf *err) MUST_CHECK;

/* Kills and reaps the child and closes everything; for giving up on it. */
void preflight_abort(struct preflight *p);

/* Start, wait (blocking, PREFLIGHT_TIMEOUT_NS at most), finish: for heddled -t. */
int preflight_run(const char *worker_path, const struct conf *conf, struct errbuf *err) MUST_CHECK;

#endif
