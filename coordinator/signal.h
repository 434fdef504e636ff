/*
 * signal.h: signals as loop events (signalfd). Nothing runs in signal context.
 *
 * signal_watch() blocks the signals in the calling thread: call it before any thread is started, so
 * that all inherit the mask. Children must be spawned with an empty mask and default handlers.
 */
#ifndef COORDINATOR_SIGNAL_H
#define COORDINATOR_SIGNAL_H

#include <stddef.h>

#include "coordinator/loop.h"

struct signal_watch {
	void (*fn)(void *user, int signo);
	void *user;
	/* private to signal.c */
	struct loop_event event;
	int fd;
};

/* fn runs from the loop for each of the signals (same ones in a row may merge). 0 or -errno. */
int signal_watch(struct loop *loop, struct signal_watch *w, const int *signos, size_t n) MUST_CHECK;
/* After loop_settle(): closes the descriptor. The signals stay blocked. */
void signal_unwatch(struct signal_watch *w);

#endif
