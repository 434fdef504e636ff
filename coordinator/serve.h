/*
 * serve.h: the running daemon: loop, engine, API and sockets joined; readiness, signals, reload and
 * the orderly end. main.c prepares the process and calls it once.
 *
 *	serve_open ─▶ serve_run ─ (signal, refusal) ─▶ serve_close
 *
 *	SIGTERM, SIGINT  drain: accept no more, let requests finish (api.drain_seconds), stop the
 *	                 workers, end; a second one ends at once
 *	SIGHUP           read the configuration again, take over what can be, name what cannot
 *	SIGUSR1          reopen the log
 */
#ifndef COORDINATOR_SERVE_H
#define COORDINATOR_SERVE_H

#include "coordinator/conf.h"
#include "coordinator/daemon.h"
#include "coordinator/listen.h"

struct serve;

struct serve_args {
	struct conf_set *conf;     /* checked; changed by reloads */
	struct listen_set *listen; /* open; closed when a drain begins, else by the caller */
	struct daemon *daemon;
	const char *worker_path;
	/* Reads all sources of the configuration anew into an initialised set. */
	int (*read_conf)(void *user, struct conf_set *set, struct errbuf *err);
	void *user;
};

/* Builds everything and asks for the workers. On failure err has the exit code. */
int serve_open(
	const struct serve_args *args, struct serve **ret_serve, struct errbuf *err) MUST_CHECK;
/* Returns the exit code; when it is not 0 and the workers refused, err has their sentence. */
int serve_run(struct serve *s, struct errbuf *err) MUST_CHECK;
struct serve *serve_close(struct serve *s);

#endif
