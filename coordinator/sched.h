/*
 * sched.h: which sequences run in the next step, with which tokens and on which pages. A pure
 * function of its state and of what it is told: no I/O, no clock of its own (time is passed in), no
 * knowledge of rings or processes, so that tests can drive it through years of traffic in seconds.
 *
 *	submit ─▶ waiting ─ admit ─▶ prefill ─▶ decode ─▶ (last step planned) ─▶ finished
 *	             (queue)           └─────────── cancel, stop, expiry ──────────▶
 *
 * A step is a ragged batch of at most step_tokens new tokens. Decodes come first, one token each;
 * sequences that still read their prompt share the rest, first come first served in turns of at
 * least SCHED_QUANTUM tokens, so that neither a long prompt holds up running answers (their gap is
 * one step) nor short prompts wait behind a long one.
 *
 * `depth` steps may be in flight: the next is planned before the last one's tokens have come back,
 * a decode then runs on "the token of the previous sample" (SEQ_PREV). Tokens past a stop are
 * dropped when they come.
 *
 * Pages. A sequence is admitted when what it needs for its known tokens and SCHED_AHEAD more (or
 * fewer, up to max_tokens) is promised to it: compressed pages, and enough raw pages to take one
 * more token at any time (the window slides: old pages go back before new ones are needed). Longer
 * prefill chunks take raw pages that are promised to no one. The head of the queue waits until it
 * fits, and none overtakes it. An answer that goes on is promised more as it gets there. When there
 * is none left, the sequence that was admitted last gives way: it goes back to the front of the
 * queue and later reads its history again, its answer so far included. So the first one always gets
 * on, and nothing deadlocks; and nobody gives way to an answer of at most SCHED_AHEAD tokens.
 *
 * Order of calls: init, (open, (submit | cancel | plan | result | expire)*, close)*, fini. submit,
 * cancel and expire are allowed while closed. Callbacks come only from open, result, expire and
 * close; in one of them submit and cancel are allowed.
 */
#ifndef COORDINATOR_SCHED_H
#define COORDINATOR_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/engine.h"
#include "coordinator/pages.h"
#include "coordinator/queue.h"
#include "shm/msg.h"

#define SCHED_DEPTH_MAX 4
#define SCHED_WINDOW    128  /* raw rows a query sees, itself included: a constant of the family */
#define SCHED_QUANTUM   64   /* least share of a prompt in a step, while the step has room */
#define SCHED_AHEAD     1024 /* for sched_config.ahead */

enum sched_state { SCHED_IDLE, SCHED_WAITING, SCHED_PREFILL, SCHED_DECODE, SCHED_ENDING };

/* Page ids of a sequence, in order of position. */
struct sched_table {
	uint32_t *ids; /* ring of `cap` (a power of two) */
	uint32_t cap;
	uint64_t first, end; /* table holds the pages first .. end-1 of the sequence */
	uint32_t promised;   /* pages it may still claim; counted in struct sched */
};

/* One sequence. Embedded in its owner's struct; the first part is the owner's to fill. */
struct sched_seq {
	uint32_t *tokens; /* prompt, then what was generated; grown by sched, freed by the owner */
	size_t token_cap;
	uint64_t prompt_len;
	uint64_t max_tokens, min_tokens;
	const uint32_t *stops;
	uint32_t stop_n;
	const struct msg_bias *bias;
	uint32_t bias_n;
	bool prompt_logprobs;
	struct msg_sample sampling; /* offsets are set by the link */

	/* sched's own */
	struct queue_item item;
	struct sched_seq *prev, *next; /* in its list while it runs */
	enum sched_state state;
	uint32_t slot;
	uint64_t order;       /* counts admissions; keeps that of its first one. 0: none yet */
	uint64_t assured;     /* positions whose compressed pages it has, or may claim */
	bool first;           /* no entry of it is planned yet */
	uint64_t fed;         /* positions planned */
	uint64_t done;        /* positions whose step has come back */
	uint64_t generated;   /* tokens accepted */
	uint64_t reported;    /* prompt tokens whose log-probability was delivered: below this */
	mono_ns_t queued_ns;  /* when it was submitted */
	mono_ns_t started_ns; /* when it was first admitted */
	struct sched_table pages[PAGE__COUNT];
};

/* Tokens whose ids are known. */
static inline uint64_t sched_known(const struct sched_seq *q)
{
	return q->prompt_len + q->generated;
}

struct sched_ops {
	/* n >= 1 tokens of one step, in order. */
	void (*on_tokens)(void *user, struct sched_seq *seq, const struct msg_token *tokens,
		size_t n, const struct msg_alt *alts);
	void (*on_prefill)(void *user, struct sched_seq *seq, uint64_t done, uint64_t total);
	/* Last; sched has forgotten the sequence already. */
	void (*on_finish)(void *user, struct sched_seq *seq, enum engine_finish reason,
		int http_status, const char *text);
	void *user;
};

/* What the workers of this generation can do. */
struct sched_config {
	uint32_t max_sequences; /* slots */
	uint32_t step_tokens;
	uint32_t depth;           /* steps in flight, 1 .. SCHED_DEPTH_MAX */
	uint32_t ahead;           /* tokens past its position that a sequence is promised, >= 1 */
	uint32_t vocab;           /* to check results */
	uint64_t max_step_bytes;  /* of a MSG_STEP */
	uint64_t max_reply_bytes; /* of a MSG_RESULT */
	struct page_class_info classes[PAGE__COUNT];
};

/* One sequence's part of a planned step. */
struct sched_entry {
	struct sched_seq *seq; /* NULL: gone since; its results are dropped */
	uint32_t slot, flags;  /* as in struct msg_seq */
	uint64_t pos;
	uint32_t n;
	uint32_t page_off; /* into the plan's pages */
	uint32_t page_n[PAGE__COUNT];
	uint32_t raw_release;
	bool ban_stops;             /* min_tokens is not reached: the stop tokens are masked */
	uint64_t report_first;      /* prompt positions reported: report_first .. */
	uint32_t report_n;          /* ... report_first + report_n - 1 */
	uint32_t alts, prompt_alts; /* most alternatives a report may have */
};

struct sched_plan {
	uint64_t step;
	uint32_t n, tokens; /* entries; new tokens in all */
	struct sched_entry *entries;
	uint32_t page_n, page_cap;
	uint32_t *pages;
};

struct sched_list {
	struct sched_seq *head, *tail;
	uint32_t count;
};

struct sched_counts {
	uint64_t steps, prompt_tokens, generated_tokens, dropped_tokens;
	uint64_t finished, cancelled, failed, expired;
	uint64_t preempted;               /* times that a sequence gave way */
	uint32_t last_batch, last_tokens; /* sequences and tokens of the last step planned */
};

struct sched {
	struct sched_config config;
	struct sched_ops ops;
	bool open;
	struct pages pages;
	struct queue queue;
	struct sched_list prefill, decode;
	struct sched_list ending; /* last step planned: no slot, no pages, a result to come */
	uint32_t *slots;          /* free slots, a stack */
	uint32_t slot_free;
	uint64_t step;                            /* last step planned */
	struct sched_plan plans[SCHED_DEPTH_MAX]; /* step s lives in plans[s % SCHED_DEPTH_MAX] */
	uint32_t inflight;
	bool prefill_starved; /* the last step had no room for the prompts that wanted some */
	uint64_t admitted;    /* the last one's order */
	uint64_t promised[PAGE__COUNT]; /* sum over sequences */
	uint64_t due[PAGE__COUNT];      /* while planning: promised to those not yet looked at */
	struct sched_counts counts;
};

void sched_init(struct sched *s, const struct sched_ops *ops, uint32_t queue_limit,
	mono_ns_t queue_timeout_ns);
void sched_fini(struct sched *s); /* nothing may run or wait */

/*
 * The workers are ready. Steps count from 1 again. 0, -ENOMEM, -EINVAL with err. On failure it
 * stays closed. What waits stays in line, but for what these workers could never hold: that ends
 * here (ENGINE_FAILED, 503).
 */
int sched_open(struct sched *s, const struct sched_config *config, struct errbuf *err) MUST_CHECK;

/*
 * The workers are lost: every running sequence is taken off its slot and pages, and handed to
 * `lost`, which owns what becomes of it: end it, or sched_resubmit() it (then it reads its history
 * again, generated tokens included, and goes on where it stopped).
 */
void sched_close(struct sched *s, void (*lost)(void *user, struct sched_seq *seq), void *user);

/* Positions the largest sequence may have, by the page pools. 0 while closed. */
uint64_t sched_max_positions(const struct sched *s);

/*
 * Would it be accepted, by a scheduler with nothing in it but those counted in *fit, which came
 * before it? See engine_fit(). Of the sequence it reads prompt_len and max_tokens.
 */
bool sched_fit(
	const struct sched *s, const struct sched_seq *seq, struct engine_fit *fit) MUST_CHECK;

/*
 * Joins the queue (and leaves it at once when it can run). 0; -EAGAIN when the queue is full,
 * of others than those that ran and gave way;
 * -E2BIG with err when the pools or a message could never hold it (looked at while open only).
 */
int sched_submit(
	struct sched *s, struct sched_seq *seq, mono_ns_t now, struct errbuf *err) MUST_CHECK;
void sched_resubmit(struct sched *s, struct sched_seq *seq, mono_ns_t now);

/* Forgets the sequence; its slot and pages are free for the next step. No callback. */
void sched_cancel(struct sched *s, struct sched_seq *seq);

/*
 * Plans the next step. NULL when nothing can run now, `depth` steps are in flight or it is closed.
 * The plan counts as in flight at once; it stays valid until its result has been taken.
 */
const struct sched_plan *sched_plan(struct sched *s, mono_ns_t now);

/* The plan of the oldest step in flight, or NULL. */
const struct sched_plan *sched_oldest(const struct sched *s);

/*
 * The result of the oldest step in flight. Everything is checked before anything is believed:
 * -EBADMSG with err when it does not answer that step exactly (then nothing has changed).
 */
int sched_result(
	struct sched *s, const struct msg_result_view *view, struct errbuf *err) MUST_CHECK;

/* Ends what has waited too long (ENGINE_FAILED, 503). Returns when to call again, 0: no need. */
mono_ns_t sched_expire(struct sched *s, mono_ns_t now);

/* Sequences that have a slot or wait for their last result. */
uint32_t sched_running(const struct sched *s);
uint32_t sched_waiting(const struct sched *s);
/* Nothing runs, waits or is in flight. */
bool sched_idle(const struct sched *s);

#endif
