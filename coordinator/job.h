/*
 * job.h: one request for generated text, from its prompts to its last byte. A job has one choice
 * for each prompt and each of n; a choice is one sequence of the engine and the text it becomes.
 *
 *     task_start ─▶ job_ready ─▶ engine_submit × choices ─▶ on_tokens … ─▶ on_finish ─▶ answered
 *                      │ refused: an error               │ stop string: engine_cancel
 *                      ▼                                 ▼ client gone, failure: cancel all
 *
 * job.c holds the life cycle, job_start.c how one begins, job_out.c what is sent and when, shape.c
 * and shape_call.c the JSON. Private to the API.
 */
#ifndef COORDINATOR_JOB_H
#define COORDINATOR_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/answer.h"
#include "coordinator/api_impl.h"
#include "coordinator/outbuf.h"

/* A silent stream gets a comment line after this long, which keeps proxies from closing it. */
#define JOB_KEEPALIVE_NS (10 * NS_PER_S)
/* A client that lets this much of its stream pile up is dropped. */
#define JOB_BACKLOG_MAX (16u << 20)

struct job;

/* Log-probabilities as JSON array elements, and ids, that wait to be sent. */
struct choice_lists {
	struct outbuf entries; /* chat: {token, logprob, bytes, top_logprobs} */
	struct outbuf tokens, values, tops, offsets; /* completions: the four parallel arrays */
	struct outbuf ids;
};

/* What gave a choice its last token. */
enum choice_end {
	CHOICE_TOKEN,  /* one of the tokens that end an answer */
	CHOICE_LENGTH, /* max_tokens */
	CHOICE_TEXT,   /* its own text: a stop string, or its only call */
};

struct choice {
	struct job *job;
	uint32_t index; /* in the answer: prompt * n + choice */
	uint32_t prompt;
	struct engine_seq *seq; /* NULL: not running */
	struct answer answer;
	struct choice_lists lists;
	struct token_stream echo; /* decodes prompt tokens for their offsets */
	size_t echo_chars;        /* characters of the prompt's text so far */
	uint64_t tokens;          /* generated */
	uint64_t thought_tokens;  /* of which before "</think>" */
	uint32_t last_token;
	mono_ns_t first_ns, last_ns; /* when its first and last token came */
	bool started;                /* it has left the queue */
	size_t calls_sent;           /* streamed: calls before this one are sent in full */
	bool done, by_length;        /* see choice_reason() */
};

struct job {
	struct api_task task; /* first: see struct api_task */
	bool chat;
	bool logprobs;
	uint32_t top_n; /* alternatives */
	uint64_t seed;
	uint64_t call_nonce; /* makes the ids of tool calls differ from those of other answers */
	struct choice *choices;
	size_t choice_n, done_n;
	bool open;          /* the stream's head is sent */
	struct outbuf head; /* "id":…,"object":…,"created":…,"model":… of every object sent */
	struct loop_timer keepalive;
	mono_ns_t first_token; /* when the first of any choice came; 0: none yet */
	uint64_t read_tokens,
		prompt_tokens_total; /* of the prompt being read in, as last reported */
};

static inline const struct params *job_params(const struct job *job)
{
	return &job->task.prep.params;
}
static inline const struct prep_prompt *choice_prompt(const struct choice *c)
{
	return &c->job->task.prep.prompts[c->prompt];
}
/* How it ended: only the model's own end, or a stop, makes calls of an answer those to be run. */
static inline const char *choice_reason(const struct choice *c)
{
	return c->by_length ? "length" : c->answer.complete_n ? "tool_calls" : "stop";
}
uint64_t job_prompt_tokens(const struct job *job);
uint64_t job_generated_tokens(const struct job *job);

/* job.c. Cancels what runs, answers with the error by whatever way is still open, ends the job. */
void job_fail(struct job *job, int status, const char *code, const char *text);
/* The client is not there any more: cancels what runs and ends the job. */
void job_drop(struct job *job);
/*
 * A choice has all its tokens. With the last one the job ends too; returns false when it did, or
 * when sending ended it.
 */
bool choice_done(struct choice *c, enum choice_end end) MUST_CHECK;
extern const struct engine_seq_ops choice_ops;

/*
 * job_start.c: a job whose body is read, and whether one can run at all: NULL, or why not. Asked
 * before its body is read too, for without workers nothing says how long a prompt may be.
 */
const char *job_unready(const struct api *api, const char **ret_code);
void job_ready(struct api_task *t);
void job_on_abort(struct api_task *t, const char *why);
void job_on_gone(void *user);
void job_on_keepalive(struct loop_timer *timer, void *user);

/*
 * job_out.c. These three send and return true, or find the stream's backlog too large (or memory
 * gone), end the job and return false: do not touch it then. Without "stream" they do nothing.
 */
bool job_out_delta(struct choice *c) MUST_CHECK;  /* what has become free to send */
bool job_out_finish(struct choice *c) MUST_CHECK; /* a choice's last event */
bool job_out_comment(struct job *job) MUST_CHECK; /* keep-alive */
/* All choices are done: the rest of the answer. Returns the HTTP status; the exchange is dead. */
int job_out_end(struct job *job);
/* An error after the stream's head was sent: one event, then the connection closes. */
void job_out_error(struct job *job, int status, const char *code, const char *text);

/* shape.c: what the answer's JSON looks like. Appends to out. */
int shape_head(struct job *job) MUST_CHECK;
void shape_echo(
	struct choice *c); /* the prompt as the beginning of the text, and its first token */
void shape_prompt_token(struct choice *c, const struct engine_token *t);
void shape_token(struct choice *c, const struct engine_token *t); /* before answer_push() */
/* A choice's first event: chat's role, the prompt's ids where asked. false: nothing to say. */
bool shape_first(const struct choice *c, struct outbuf *out);
bool shape_delta(struct choice *c, struct outbuf *out); /* false: nothing to say */
void shape_finish(const struct choice *c, struct outbuf *out);
void shape_usage(const struct job *job, struct outbuf *out);
void shape_answer(struct job *job, struct outbuf *out);
void shape_error(int status, const char *code, const char *text, struct outbuf *out);
/* shape_call.c: tool calls of an answer. */
void shape_calls(const struct choice *c, struct outbuf *out); /* "tool_calls":[...], all of them */
bool shape_calls_new(const struct choice *c);                 /* is there something to send? */
void shape_calls_delta(struct choice *c, struct outbuf *out); /* the same as deltas; cleared */
void choice_lists_clear(struct choice_lists *l);
void choice_lists_fini(struct choice_lists *l);
bool choice_lists_ok(const struct choice_lists *l);

#endif
