/*
 * api_impl.h: what the files of the API share among themselves. Not for others: api.h is.
 *
 *     api.c       routes, start, reload           api_info.c   GET routes
 *     task.c      one request's body, read here   api_text.c   /tokenize, /detokenize
 *                 or on a pool thread             job.c        one request's sequences
 *                                                 shape.c      their JSON
 */
#ifndef COORDINATOR_API_IMPL_H
#define COORDINATOR_API_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "coordinator/api.h"
#include "coordinator/conf.h"
#include "coordinator/engine.h"
#include "coordinator/http.h"
#include "coordinator/loop.h"
#include "coordinator/metric.h"
#include "coordinator/model_files.h"
#include "coordinator/param.h"
#include "coordinator/prep.h"
#include "coordinator/stopstr.h"
#include "coordinator/token.h"

#define API_JSON       "application/json"
#define API_SPARES_MAX 8
/* Text has some 4 bytes a token; only long runs of one character have more than this. */
#define API_TOKEN_BYTES 32

struct api_task;

struct api {
	struct loop *loop;
	const struct conf_set *conf;
	struct engine *engine;
	struct model_files files;    /* .defaults are made anew by api_reload() */
	const struct tokenizer *tok; /* of files */
	uint32_t token_bytes;        /* see struct prep_in */
	time_t started;              /* wall clock, for /v1/models */
	mono_ns_t started_ns;
	bool closing;           /* api_abort_all() was called */
	struct api_task *tasks; /* under way */
	uint32_t task_n;
	struct token_scratch *spares[API_SPARES_MAX]; /* tokenising scratch not in use */
	size_t spare_n;
	struct metrics metrics;
	struct outbuf line; /* one event or body while it is written; empty between uses */
};

/*
 * A request with a JSON body. task_start() reads the body (prep.h), here when it is small, else on
 * a pool thread, and calls `ready` on the loop's thread; a body that is refused is answered without
 * it. The exchange is valid all that time, since no watch is set before `ready`.
 */
struct api_task {
	struct api *api;
	struct http_exchange *x; /* NULL: answered, or the client is gone */
	struct prep prep;
	/* On the thread that has read the body, before `ready`: what takes as long, and needs no
	 * more than `prep` and the tokenizer. NULL: nothing. */
	void (*compose)(struct api_task *t);
	void (*ready)(struct api_task *t);
	void (*free)(
		struct api_task *t); /* frees the whole object, of which this is the first part */
	void (*abort)(struct api_task *t, const char *why); /* set by `ready`; NULL before */
	struct loop_work work;
	struct api_task *next, *prev;
	mono_ns_t arrived;
	char id[132];
};

/* t: zeroed, the first member of a larger object with `ready` and `free` set, `compose` if wanted.
 */
void task_start(
	struct api_task *t, struct api *api, struct http_exchange *x, enum param_scope scope);
/* Takes it off the list and frees it. */
void task_end(struct api_task *t);
/* Answers with an error and ends the task. */
void task_fail(struct api_task *t, int status, const char *param, const char *code, const char *fmt,
	...) PRINTF_LIKE(5, 6);

/* An error body with the type that belongs to the status; retry-after where one helps. */
void api_error(struct http_exchange *x, int status, const char *param, const char *code,
	const char *fmt, ...) PRINTF_LIKE(5, 6);
const char *api_error_type(int status);

/* Answers 200 with a JSON value (stolen; NULL: out of memory is answered). */
void api_respond_json(struct http_exchange *x, int status, json_t *value);

/* Handlers of the route table; `rest` is what follows a path that ends in "/". */
typedef void (*api_handler)(struct api *api, struct http_exchange *x, const char *rest);

/* Each row of the route table, for who compares it with the manual. */
void api_each_route(
	void (*fn)(void *user, const char *method, const char *path, const char *doc), void *user);
void api_chat(struct api *api, struct http_exchange *x, const char *rest);
void api_completions(struct api *api, struct http_exchange *x, const char *rest);
void api_tokenize(struct api *api, struct http_exchange *x, const char *rest);
void api_detokenize(struct api *api, struct http_exchange *x, const char *rest);
void api_models(struct api *api, struct http_exchange *x, const char *rest);
void api_model(struct api *api, struct http_exchange *x, const char *rest);
void api_health(struct api *api, struct http_exchange *x, const char *rest);
void api_status(struct api *api, struct http_exchange *x, const char *rest);
void api_version(struct api *api, struct http_exchange *x, const char *rest);
void api_metrics(struct api *api, struct http_exchange *x, const char *rest);

#endif
