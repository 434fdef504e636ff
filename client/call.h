/*
 * call.h: one HTTP call to the daemon over its Unix socket (libcurl). Blocks; no logging.
 */
#ifndef CLIENT_CALL_H
#define CLIENT_CALL_H

#include <stddef.h>

#include "shm/util.h"

struct call {
	const char *socket;
	const char *path; /* "/v1/models" */
	const char *body; /* JSON; NULL: GET */
	int cancel_fd;    /* becomes readable: give up; -1: never */
	/*
	 * Takes the pieces of an event stream (status 200) as they arrive; non-zero gives up. What
	 * is no stream is collected in the reply. NULL: collect everything.
	 */
	int (*on_stream)(void *user, const char *bytes, size_t n);
	void *user;
};

struct call_reply {
	long status;
	char *body; /* NUL-terminated; the caller frees with call_reply_fini() */
	size_t len;
};

/*
 * Returns 0 with the reply of status 2xx. -ECONNREFUSED (exit code 69) when nobody listens; -EPIPE
 * (69) when the daemon went away in the middle; -ECANCELED by cancel_fd or on_stream; -EPROTO for
 * any other status, with the server's own sentence and an exit code: 65 where the request is to
 * blame, 69 when it is busy or not ready, else 70.
 */
int call_run(const struct call *call, struct call_reply *ret_reply, struct errbuf *err) MUST_CHECK;
void call_reply_fini(struct call_reply *reply);

#endif
