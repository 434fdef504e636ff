/*
 * harness.h: the whole model in one test process: W ranks as threads with a shared-memory
 * communicator on the heap, on a checkpoint directory. It plays the coordinator's part: slots,
 * pages, step records; so a test says only which tokens go where.
 *
 * Prompts are token ids. Every function succeeds or fails the running cmocka test with a sentence
 * (those named try_ return the error instead).
 *
 *	struct harness *h = harness_open(&(struct harness_opts){.dir = dir, .world = 2});
 *	struct harness_out *out = harness_out_new(h, HARNESS_LOGITS);
 *	harness_feed(h, slot, ids, n, chunk, out);
 *	harness_drop(h, slot);
 *
 * or many sequences in mixed batches: harness_run(h, parts, n) is one step.
 */
#ifndef TESTS_MODEL_HARNESS_H
#define TESTS_MODEL_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/conf_types.h"
#include "shm/msg.h"
#include "shm/slot.h"

struct harness;

struct harness_opts {
	const char *dir;     /* checkpoint; NULL: models/heddle-mini of the source tree */
	uint32_t world;      /* 0: 1 */
	uint32_t threads;    /* of each rank; 0: 1 */
	uint64_t spin_ns;    /* rank_opts.spin_ns */
	const char *kernels; /* a variant of kern_ops_get(); NULL: the best of this CPU */
	/* NULL: harness_conf()'s. model_path is overwritten by dir. */
	const struct conf *conf;
	uint32_t shard_entries; /* rank_opts.shard_entries */
	/* Gives page ids out in an order drawn from this seed, and fills with 0xff bytes (NaN) what
	 * must not be read: pages when given out, compressor rows of empty slots, now and then the
	 * scratch between steps. 0: lowest free first, nothing filled. */
	uint64_t page_seed;
};

/* The referee: f32 caches, act f32, plain numerics, 8 sequences, step_tokens 2048, 256 MB of pages,
 * context 16384. Change what you test. */
struct conf harness_conf(void);

struct harness *harness_open(const struct harness_opts *opts);
/* As harness_open, but a refusal is returned: NULL with err filled. */
struct harness *harness_try_open(const struct harness_opts *opts, struct errbuf *err);
void harness_close(struct harness *h);
const struct worker_capacity *harness_capacity(const struct harness *h);

/* ---- what comes out of one sequence, by position ----------------------------------------- */

enum harness_want {
	HARNESS_LOGITS = 1, /* raw logits of every position: vocab floats each, so mind the size */
	HARNESS_INDEX = 2,  /* chosen sets of every CSA layer and position */
	HARNESS_NEXT = 4,   /* next_logprob of every position, without keeping the logits */
	HARNESS_ROUTES = 8, /* experts of every scored layer and position */
};

/* The compressed entries a position attends to in one CSA layer, ascending. */
struct harness_choice {
	uint32_t n;
	uint32_t *entries; /* [n] */
	float *scores;     /* [n]; NULL where all visible entries were taken unscored */
	float *mass;       /* [n] attention of all heads of rank 0, summed; NULL: not known */
};

struct harness_out {
	unsigned want;
	uint32_t vocab, layers;
	/* Positions 0 .. n-1 have been fed. Those below `skipped` were before this out was first
	 * used (an import, say): all zero. */
	uint64_t n, skipped;
	uint32_t *tokens;    /* [n] */
	float *logits;       /* [n][vocab] with HARNESS_LOGITS, else NULL */
	float *next_logprob; /* [n-1], with NEXT or LOGITS: log p(tokens[t+1] | tokens 0..t) */
	float *last_logits;  /* [vocab] of position n-1, with NEXT or LOGITS */
	/* [n][layers] with HARNESS_INDEX; n = 0 in layers that are not CSA */
	struct harness_choice *choices;
	/* [n][layers] with HARNESS_ROUTES: expert ids, ascending; n = 0 in hash layers; no scores
	 */
	struct harness_choice *routes;
	uint64_t cap;
};

struct harness_out *harness_out_new(const struct harness *h, unsigned want);
void harness_out_free(struct harness_out *out);
/* First position whose logits differ in bits, or -1. Fails the test when a->n != b->n. */
int64_t harness_out_differs(const struct harness_out *a, const struct harness_out *b);
/* First position * layers + layer whose chosen set differs, or -1. */
int64_t harness_choices_differ(const struct harness_out *a, const struct harness_out *b);
/* log softmax of logits[vocab] at `token`, summed in double. */
double harness_logprob(const float *logits, uint32_t vocab, uint32_t token);

/* ---- running --------------------------------------------------------------------------------- */

/* One sequence's part of a step. */
struct harness_part {
	uint32_t slot;
	const uint32_t *tokens; /* [n]; ignored with prev */
	uint32_t n;
	bool sample; /* sample after the last token; result in `sampled` and `alts` */
	bool prev;   /* n = 1: the token is the one this slot sampled last */
	bool prompt_logprobs;
	const struct msg_sample *sampling; /* NULL: greedy. Its offsets are the harness's affair */
	const struct msg_bias *bias;       /* [sampling->bias_n] */
	const uint32_t *banned;            /* [sampling->banned_n] */
	struct harness_out *out;           /* appended to; may be NULL */

	/* Results. The arrays belong to the harness and live until its next run. */
	struct msg_token sampled;
	const struct msg_alt *alts;            /* [sampled.alt_n] */
	const struct msg_token *prompt_tokens; /* [prompt_token_n]; alt_off counts in all_alts */
	uint32_t prompt_token_n;
	const struct msg_alt *all_alts;
};

/* One step with n parts (each slot at most once), on all ranks. A slot that holds nothing starts a
 * new sequence. */
void harness_run(struct harness *h, struct harness_part *parts, uint32_t n);
/* The same, returning what rank_step said (all ranks must agree). */
int harness_try_run(
	struct harness *h, struct harness_part *parts, uint32_t n, struct errbuf *err) MUST_CHECK;
/* A whole message, as it is: for steps that must be refused. */
int harness_try_step(
	struct harness *h, const struct msg_step_view *step, struct errbuf *err) MUST_CHECK;

/* Feeds ids[n] to a slot in steps of `chunk` tokens (0: as few steps as step_tokens allows). */
void harness_feed(struct harness *h, uint32_t slot, const uint32_t *ids, uint64_t n, uint32_t chunk,
	struct harness_out *out);
/*
 * Feeds ids[n], sampling greedily after the last, then n_new - 1 single steps. tokens[n_new] are
 * the continuation, logprobs[n_new] theirs (may be NULL).
 */
void harness_generate(struct harness *h, uint32_t slot, const uint32_t *ids, uint64_t n,
	uint32_t chunk, uint32_t n_new, uint32_t *tokens, float *logprobs, struct harness_out *out);

/* Empties a slot; its pages go back. */
void harness_drop(struct harness *h, uint32_t slot);
/* Positions a slot holds; 0: empty. */
uint64_t harness_pos(const struct harness *h, uint32_t slot);

/* State of a slot as a blob (malloc'd; all ranks must give the same), and back into any slot, with
 * pages of its own, in this or another harness. */
void *harness_export(struct harness *h, uint32_t slot, size_t *ret_bytes);
void harness_import(struct harness *h, uint32_t slot, const void *blob, size_t bytes);
int harness_try_import(struct harness *h, uint32_t slot, const void *blob, size_t bytes,
	struct errbuf *err) MUST_CHECK;

#endif
