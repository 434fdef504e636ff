/*
 * rank.h: one rank of the model, in-process: the weights of its shard, its page pools, the state of
 * every slot, and the forward pass over ragged steps. No sockets, no rings, no processes: main.c
 * adds those for heddle-worker, tests/model/harness.c runs W of them as threads.
 *
 * Order of calls: rank_open (reads the weights), rank_capacity, then rank_step as often as wanted,
 * rank_close. One thread at a time; a rank with world > 1 meets its peers inside rank_open and
 * rank_step through opts.comm, so all ranks must be given the same steps in the same order.
 *
 * Logits are a function of the sequence's tokens alone, bit for bit, at one `world`: not of
 * chunking, of the company in the batch, of slot, page ids or threads.
 */
#ifndef WORKER_RANK_H
#define WORKER_RANK_H

#include "shm/clock.h"
#include "shm/conf_types.h"
#include "shm/msg.h"
#include "shm/slot.h"
#include "worker/comm.h"

/*
 * For rank_opts.spin_ns where all compute threads can run at once. Most waits are of microseconds;
 * in a batch, where one thread ends its half of a long op early or tokens are sampled, of a hundred
 * and more.
 */
#define RANK_SPIN_NS (200 * NS_PER_US)

struct rank;

/*
 * Hooks; any may be NULL. Called on the thread that runs rank_step (or rank_open). `seq` is the
 * index in the step's seqs[].
 */
struct rank_hooks {
	void *user;
	/* A sign of life: what the step is about to do; layer counts within STAGE_LAYER. */
	void (*on_stage)(void *user, enum worker_stage stage, uint32_t layer);
	/* The step goes on where on_stage said: called before every op, each of which takes a
	 * bounded number of rows, so that no size of step is silent for long. */
	void (*on_beat)(void *user);
	/* Bytes of weights that have arrived. */
	void (*on_load)(void *user, uint64_t done_bytes, uint64_t total_bytes);
	/* The raw fp32 logits [vocab] after every token of the step, positions ascending within a
	 * sequence. Called on rank 0, but every rank must have it set, because all compute their
	 * part of the logits. Costs a head product a position: for tests. */
	void (*on_logits)(void *user, uint32_t seq, uint64_t pos, const float *logits);
	/* What each query of a CSA layer attends to besides its window: n compressed entries in
	 * ascending order. scores[i] is entries[i]'s index score, or NULL where all visible entries
	 * were taken without scoring. mass[i]: its softmax probability, summed over this rank's
	 * heads. Every rank. */
	void (*on_index)(void *user, uint32_t layer, uint32_t seq, uint64_t pos,
		const uint32_t *entries, const float *scores, const float *mass, uint32_t n);
	/* The k experts (ascending ids) of each token in a layer that routes by score. Every rank.
	 */
	void (*on_route)(void *user, uint32_t layer, uint32_t seq, uint64_t pos,
		const uint32_t *experts, uint32_t k);
};

struct rank_opts {
	const struct conf *conf; /* model_*, attention_*, cache_memory, schedule_*; copied */
	uint32_t rank, world;
	struct comm *comm; /* may be NULL when world is 1 */
	uint32_t threads;  /* compute threads, this one included; at least 1 */
	uint64_t spin_ns;  /* how long idle compute threads spin before they sleep */
	/* From this many visible entries on, index scores are split over the ranks. 0: the built-in
	 * number. The choice is the same either way; tests set 1. */
	uint32_t shard_entries;
	struct rank_hooks hooks;
};

/*
 * Opens a rank: checks the checkpoint against the code and the configuration, reads this rank's
 * share of the weights, sizes the pools. Returns 0, or -errno with err->exit_code 65, 66, 78 or 71.
 */
int rank_open(const struct rank_opts *opts, struct rank **ret_rank, struct errbuf *err) MUST_CHECK;

/* All that rank_open would refuse for, without reading weights: what --check does. */
int rank_check(const struct conf *conf, uint32_t world, struct errbuf *err) MUST_CHECK;

struct rank *rank_close(struct rank *r);

void rank_capacity(const struct rank *r, struct worker_capacity *ret_capacity);
void rank_set_hooks(struct rank *r, const struct rank_hooks *hooks);

/*
 * Runs one step. On rank 0 a MSG_RESULT is written to reply[cap] and its size returned in
 * ret_bytes (8-aligned buffer; rank_reply_bytes() says how much a step can need at most); other
 * ranks leave 0 there.
 *
 * With SEQ_PROMPT_LOGPROBS every token of this step's part at a position > 0 is reported (given
 * those before it), so a prompt's reports come with the chunk that holds the token. The logits that
 * judge a chunk's first token were left by the chunk before, so the flag must be set from the
 * sequence's first chunk on. A sampled token is reported after the prompt's.
 *
 * Returns -EBADMSG when the step is not one the rank can run (unknown slot, wrong position, page or
 * token id out of range, ...): nothing has changed then. -ETIMEDOUT, -ECONNABORTED or -EPROTO from
 * the collectives, after which the rank can only be closed.
 */
int rank_step(struct rank *r, const struct msg_step_view *step, void *reply, size_t cap,
	size_t *ret_bytes, struct errbuf *err) MUST_CHECK;
size_t rank_reply_bytes(const struct msg_step_view *step);

/*
 * State of a sequence as bytes (worker/state.h has the format). rank_export writes what slot needs
 * to continue at its present position into buf[cap] and returns the bytes, or -ENOSPC when cap is
 * too small; with buf NULL it returns the bytes needed. -ENOENT: the slot is empty.
 *
 * rank_import gives a blob to a slot, whatever it held, with pages for it: page_n[PAGE__COUNT] ids,
 * raw first, as in a step. rank_import_pages says how many of each class are needed. Refused with a
 * sentence when the blob is damaged (-EBADMSG) or from another model, configuration or world
 * (-EINVAL); the slot is then as before.
 */
int64_t rank_export(struct rank *r, uint32_t slot, void *buf, size_t cap) MUST_CHECK;
int rank_import_pages(const struct rank *r, const void *blob, size_t bytes,
	uint32_t ret_page_n[PAGE__COUNT], struct errbuf *err) MUST_CHECK;
int rank_import(struct rank *r, uint32_t slot, const void *blob, size_t bytes,
	const uint32_t *pages, const uint32_t page_n[PAGE__COUNT], struct errbuf *err) MUST_CHECK;

#endif
