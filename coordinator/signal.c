#include "coordinator/signal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

static void on_readable(struct loop_event *ev, int res, bool more)
{
	struct signal_watch *w = CONTAINER_OF(ev, struct signal_watch, event);
	struct signalfd_siginfo si;

	if (res < 0)
		return;
	while (read(w->fd, &si, sizeof(si)) == (ssize_t)sizeof(si))
		w->fn(w->user, (int)si.ssi_signo);
}

int signal_watch(struct loop *loop, struct signal_watch *w, const int *signos, size_t n)
{
	sigset_t set;
	int r;

	sigemptyset(&set);
	for (size_t i = 0; i < n; i++)
		sigaddset(&set, signos[i]);
	r = pthread_sigmask(SIG_BLOCK, &set, NULL);
	if (r != 0)
		return -r;
	w->fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (w->fd < 0)
		return -errno;
	w->event = (struct loop_event){.fn = on_readable};
	r = loop_poll(loop, &w->event, w->fd, POLLIN);
	if (r < 0)
		signal_unwatch(w);
	return r;
}

void signal_unwatch(struct signal_watch *w)
{
	if (w->fd >= 0)
		close(w->fd);
	w->fd = -1;
}
