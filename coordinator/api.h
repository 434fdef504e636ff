/*
 * api.h: what clients call over HTTP. It turns a request into sequences for the engine and the
 * engine's tokens into an answer: routes (api.c), parameters (param.def), prompts (prep.c), the
 * life of a request (job.c), text (answer.c), JSON (shape.c). It knows no sockets, no pages, no
 * workers.
 *
 * Everything runs on the loop's thread but the reading of large bodies (prep.c), which goes to
 * loop_work threads: call loop_work_start() before the first request.
 *
 * Order of calls: api_new(); http_server_ops = {api_on_request, api_on_refused, api}; on SIGHUP
 * api_reload(); at the end of a drain api_abort_all(). When loop_run() has returned for good:
 * loop_settle(), which ends the pool threads, http_server_free(), api_free(), engine_free(),
 * loop_free().
 */
#ifndef COORDINATOR_API_H
#define COORDINATOR_API_H

#include <stdint.h>

#include "shm/util.h"

struct api;
struct conf_set;
struct engine;
struct http_exchange;
struct loop;

/*
 * Loads tokenizer.json, tokenizer_config.json and generation_config.json (may be missing) from
 * conf->conf.model_path. `conf` is read again by /status and must stay valid until api_free() or
 * the next api_reload(). Fails with err filled and its exit code: 66 for a file that is not there,
 * 65 for one that is damaged.
 */
int api_new(struct loop *loop, const struct conf_set *conf, struct engine *engine,
	struct api **ret_api, struct errbuf *err) MUST_CHECK;

/* For struct http_server_ops; user is the struct api. */
void api_on_request(void *user, struct http_exchange *x);
void api_on_refused(void *user, int status);

/* Takes over the [api] keys of a configuration read anew; requests under way keep the old. */
void api_reload(struct api *api, const struct conf_set *conf);

/* Requests under way: accepted and not yet answered in full. */
uint32_t api_running(const struct api *api);

/* Cancels every request under way and answers it with 503 and this sentence. */
void api_abort_all(struct api *api, const char *why);

/*
 * After loop_settle(), with loop and engine still there: sequences of requests under way are
 * cancelled, their exchanges not touched. Accepts NULL, returns NULL.
 */
struct api *api_free(struct api *api);

#endif
