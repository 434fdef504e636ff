/*
 * engine.h: what the API sees of everything behind it: submit a sequence, get its tokens, cancel
 * it. Behind it live the request queue, the scheduler, the page accounting, the link to the workers
 * and the supervisor (engine.c joins them to the loop). The engine knows tokens, not text.
 *
 * All calls and callbacks happen on the loop's thread. Callbacks come from the loop, never from
 * inside engine_submit() or engine_cancel().
 */
#ifndef COORDINATOR_ENGINE_H
#define COORDINATOR_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/clock.h"
#include "shm/conf_types.h"
#include "shm/msg.h"
#include "shm/util.h"

struct engine;
struct engine_seq;
struct loop;

enum engine_finish {
	ENGINE_STOP_TOKEN, /* one of stop_tokens was sampled (it is the last token reported) */
	ENGINE_LENGTH,     /* max_tokens reached */
	ENGINE_FAILED,     /* see error and text */
};

/* A token as the workers report it; alts are best first. */
struct engine_token {
	uint32_t token;
	uint64_t pos;
	float logprob;
	uint32_t rank;
	bool prompt; /* a prompt token's log-probability, not a generated token */
	const struct msg_alt *alts;
	uint32_t alt_n;
};

struct engine_seq_ops {
	/* n >= 1 new tokens, in order: prompt tokens first (when prompt_logprobs), then generated.
	 */
	void (*on_tokens)(void *user, const struct engine_token *tokens, size_t n);
	/* Once, last. http_status and text say what to tell the client when reason is
	 * ENGINE_FAILED. */
	void (*on_finish)(void *user, enum engine_finish reason, int http_status, const char *text);
	/* Prompt progress, at most once a step while the prompt is being read. May be NULL. */
	void (*on_prefill)(void *user, uint64_t done, uint64_t total);
};

struct engine_request {
	const uint32_t *prompt; /* copied */
	size_t prompt_len;      /* >= 1 */
	uint64_t max_tokens;    /* generated tokens; 0 with prompt_logprobs only */
	uint64_t min_tokens;
	const uint32_t *stop_tokens; /* copied; includes EOS unless ignore_eos */
	size_t stop_token_n;
	struct msg_sample sampling;  /* offsets ignored */
	const struct msg_bias *bias; /* copied */
	size_t bias_n;
	bool prompt_logprobs;
	const char *id; /* request id for the log; copied */
	struct engine_seq_ops ops;
	void *user;
};

/* What is known once the workers are ready. */
struct engine_limits {
	uint64_t max_context; /* tokens of prompt + answer */
	uint32_t vocab;
	bool ready;
};
struct engine_limits engine_limits(const struct engine *e);

/* The sequences of one request, counted up before the first is submitted. All zero at first. */
struct engine_fit {
	uint32_t run, wait; /* so many would run at once and wait if there were no others */
	uint64_t pages[PAGE__COUNT];
};

/*
 * Counts one more sequence, to be submitted after those before it. False, and it is not counted,
 * when even an engine that has nothing else to do would answer it -EAGAIN: to try again would be in
 * vain. True as long as there are no workers, since what they hold is not known.
 */
bool engine_fit(const struct engine *e, uint64_t prompt_len, uint64_t max_tokens,
	struct engine_fit *fit) MUST_CHECK;

/*
 * Queues a sequence. Returns 0; -EAGAIN when the queue is full (429); -ESHUTDOWN while draining or
 * when the group is not ready and will not be (503); -E2BIG when prompt_len + max_tokens exceeds
 * max_context; -EDOM for a token id outside the vocabulary; -EINVAL for
 * a request without a prompt or an answer; -ENOMEM. err says it in a sentence.
 */
int engine_submit(struct engine *e, const struct engine_request *req, struct engine_seq **ret_seq,
	struct errbuf *err) MUST_CHECK;

/* Ends a sequence now: frees its slot and pages within one step. The pointer is dead; no callbacks.
 */
void engine_cancel(struct engine *e, struct engine_seq *seq);

/* How long it waited in the queue, or has waited so far. */
mono_ns_t engine_waited(const struct engine_seq *seq);

/* Health and status, for /health and /status. */
enum engine_health {
	ENGINE_STARTING,
	ENGINE_READY,
	ENGINE_RESTARTING,
	ENGINE_FAILED_FOR_GOOD,
	ENGINE_DRAINING
};
enum engine_health engine_health(const struct engine *e);
/* Why the workers were lost while it is RESTARTING or FAILED_FOR_GOOD: one sentence, fit for
 * clients; else "". */
const char *engine_reason(const struct engine *e);

/*
 * Writes the members "workers", "queue", "cache", "ring", "scheduler" of /status into a JSON object
 * (a json_t *, void here so that this header needs no jansson).
 */
int engine_status_json(const struct engine *e, void *json_object) MUST_CHECK;

/* Life cycle, used by serve.c. on_health is called when health changes (sd_notify, log). */
struct engine_hooks {
	const char *worker_path; /* the program heddle-worker; copied */
	void (*on_health)(void *user, enum engine_health health, const char *why);
	/* The workers refused to start (heddle-worker --check or first start): exit with this code.
	 */
	void (*on_refused)(void *user, int exit_code, const char *text);
	void *user;
};
int engine_new(struct loop *loop, const struct conf *conf, const struct engine_hooks *hooks,
	struct engine **ret_engine, struct errbuf *err) MUST_CHECK;
int engine_start(struct engine *e, struct errbuf *err) MUST_CHECK;
/* Refuse new work, let running sequences finish; on_idle once none is left. */
void engine_drain(struct engine *e, void (*on_idle)(void *user), void *user);
/* Orderly stop of the workers (MSG_STOP, then SIGKILL after a grace); on_stopped when all are gone.
 */
void engine_stop(struct engine *e, void (*on_stopped)(void *user), void *user);
void engine_reload(struct engine *e, const struct conf *conf);
struct engine *engine_free(struct engine *e);

#endif
