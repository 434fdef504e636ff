/*
 * The messages of the control plane, as bytes: what the coordinator writes into the step ring and
 * what workers write into their reply rings. This file is the whole contract between the two.
 *
 *   step ring   (coordinator -> every worker)      MSG_STEP, MSG_STOP
 *   reply ring  (one worker -> coordinator)        MSG_RESULT (rank 0 only), MSG_FAILED
 *
 * A message is a `struct msg_hdr` followed by fixed structs and arrays in the order listed at each
 * type; every part starts on 8 bytes. The ring carries length and checksum (shm/ring.h); a reader
 * still bounds-checks every count and offset with msg_step_parse()/msg_result_parse(): bytes from
 * another process are input.
 *
 * Every MSG_STEP is answered by exactly one MSG_RESULT of rank 0, in order, even when it sampled
 * nothing; a worker that cannot run a step answers MSG_FAILED instead.
 *
 * TO ADD A MESSAGE: one row in MSG_TYPES, its structs here, parse and build in msg.c, its handler
 * where the other side takes messages out (worker/serve.c serve_one(), coordinator/link.c), its
 * bounds in tests/unit/test_msg.c.
 */
#ifndef SHM_MSG_H
#define SHM_MSG_H

#include <stdint.h>

#include "shm/util.h"

/* X(name, value, "who -> whom: what") */
#define MSG_TYPES(X)                                                                               \
	X(STEP, 1, "coordinator -> workers: run these tokens")                                     \
	X(STOP, 2, "coordinator -> workers: finish and exit 0")                                    \
	X(RESULT, 16, "rank 0 -> coordinator: what a step sampled")                                \
	X(FAILED, 17, "worker -> coordinator: this step could not run; the group is lost")

#define X(name, value, doc) MSG_##name = value,
enum msg_type { MSG_TYPES(X) };
#undef X

struct msg_hdr {
	uint32_t type;  /* enum msg_type */
	uint32_t bytes; /* of the whole message, this header included */
	uint64_t step;  /* step number, counting from 1; a result carries its step's */
};

/* Page classes. A page id counts within its class and is valid in all layers that use the class. */
enum page_class {
	PAGE_RAW, /* raw KV rows of the sliding window, all layers */
	PAGE_CSA, /* 64 entries at ratio 4: KV entry and index key, CSA layers */
	PAGE_HCA, /* 64 entries at ratio 128, HCA layers */
	PAGE__COUNT
};

/* What a worker says of its pools when it is ready (struct worker_slot): the scheduler's world. */
struct page_class_info {
	uint32_t tokens_per_page; /* positions a page covers: 64, 256, 8192; 0: class unused */
	uint32_t count;           /* pages in the pool */
	uint64_t bytes_per_page;  /* over all layers of this worker */
};

#define MSG_LOGPROBS_MAX 20 /* alternatives in one report */

enum msg_seq_flags {
	SEQ_FIRST = 1,  /* the slot starts a new sequence: forget what it held */
	SEQ_SAMPLE = 2, /* sample after the last token of this entry */
	SEQ_PREV = 4,   /* tokens[0] is the token this slot sampled in its previous step (n == 1) */
	SEQ_PROMPT_LOGPROBS = 8, /* report the log-probability of each of these tokens */
	SEQ_LAST = 16,           /* the slot is free after this step */
	SEQ__ALL = 31,
};

/*
 * One sequence's part of a step: n >= 1 new tokens from position pos. Page tables live on the
 * workers; this carries only what changed: pages appended to each class, and how many raw pages
 * fall off the front of the table (the window has left them). Offsets count elements of the
 * message's token and page arrays.
 *
 * A page table covers positions: in class c the i-th page ever appended to a sequence covers
 * [i*tokens_per_page, (i+1)*tokens_per_page), and the pages of a step cover every position up to
 * its last new one. Raw pages wholly before pos - 127 are released, in order, from the front.
 *
 * With SEQ_PROMPT_LOGPROBS, which is set on a sequence's entries from the first on, as far as its
 * prompt goes, each of the entry's own tokens at a position > 0 is reported, given those before it.
 */
struct msg_seq {
	uint32_t slot;  /* 0 .. max_sequences-1 */
	uint32_t flags; /* enum msg_seq_flags */
	uint64_t pos;   /* absolute position of the first new token */
	uint32_t n;     /* new tokens */
	uint32_t token_off;
	uint32_t page_off;            /* PAGE_RAW ids first, then CSA, then HCA */
	uint32_t page_n[PAGE__COUNT]; /* pages appended */
	uint32_t raw_release;         /* raw pages dropped from the front, before this step */
	uint32_t sample; /* index into the samples, when SEQ_SAMPLE or PROMPT_LOGPROBS */
};

/*
 * Sampling of one sequence in one step. Order: logit_bias, penalties, min_tokens mask,
 * temperature, min_p, top_k, top_p. The random number is Philox(key = seed, choice; counter =
 * absolute position of the sampled token). Ties go to the lowest token id.
 */
struct msg_sample {
	uint64_t seed;
	uint32_t choice;   /* index of the choice within its request (n > 1) */
	float temperature; /* 0: greedy */
	float top_p;       /* 1: off */
	float min_p;       /* 0: off */
	uint32_t top_k;    /* 0: off */
	float frequency_penalty, presence_penalty; /* 0: off; over generated tokens */
	float repetition_penalty;                  /* 1: off; over prompt and generated tokens */
	uint32_t logprobs; /* alternatives to report, 0..20; the chosen token is always reported */
	uint32_t prompt_len;       /* positions below this are prompt; penalties need the line */
	uint32_t bias_off, bias_n; /* into the bias array: logit_bias */
	uint32_t banned_off,
		banned_n; /* into the token array: ids masked (stop ids before min_tokens) */
	uint32_t prompt_logprobs; /* alternatives to report for prompt tokens, 0..20 */
};

struct msg_bias {
	uint32_t token;
	float bias;
};

/* MSG_STEP: hdr, msg_step, seqs[], samples[], biases[], tokens[] (u32), pages[] (u32) */
struct msg_step {
	uint32_t nseq, nsample, nbias, ntoken, npage;
	uint32_t flags; /* 0 */
};

/* A parsed step: pointers into the message. Valid as long as the record is. */
struct msg_step_view {
	const struct msg_hdr *hdr;
	const struct msg_step *step;
	const struct msg_seq *seqs;
	const struct msg_sample *samples;
	const struct msg_bias *biases;
	const uint32_t *tokens;
	const uint32_t *pages;
};

/*
 * One log-probability report: of a sampled token, or of a prompt token given those before it. The
 * alternatives are the most probable, best first (ties: lowest id), at alts[alt_off..+alt_n).
 */
struct msg_token {
	uint32_t slot;
	uint32_t token;
	uint64_t pos;   /* position the token takes */
	float logprob;  /* of the raw logits, natural log */
	uint32_t rank;  /* 1 = the most probable */
	uint32_t flags; /* MSG_TOKEN_PROMPT: a prompt token's report; MSG_TOKEN_NAN: the logits held
			   a NaN */
	uint32_t alt_off, alt_n;
	uint32_t pad;
};

enum msg_token_flags { MSG_TOKEN_PROMPT = 1, MSG_TOKEN_NAN = 2 };

struct msg_alt {
	uint32_t token;
	float logprob;
};

/* MSG_RESULT: hdr, msg_result, tokens[] (in the order of the step's sequences, positions
 * ascending), alts[] */
struct msg_result {
	uint32_t ntoken, nalt;
	uint64_t run_ns;  /* time the step took on rank 0 */
	uint64_t comm_ns; /* of which in collectives */
};

struct msg_result_view {
	const struct msg_hdr *hdr;
	const struct msg_result *result;
	const struct msg_token *tokens;
	const struct msg_alt *alts;
};

/* MSG_FAILED: hdr, msg_failed */
struct msg_failed {
	int32_t error; /* -errno */
	uint32_t pad;
	char text[240]; /* NUL-terminated sentence */
};

/*
 * Checks every count, offset and length of a message of `bytes` bytes and fills the view. Returns
 * 0, or -EBADMSG with err saying which field. Does not know the model: token ids, slots and page
 * ids are checked by their owner.
 */
int msg_step_parse(const void *buf, size_t bytes, struct msg_step_view *ret_view,
	struct errbuf *err) MUST_CHECK;
int msg_result_parse(const void *buf, size_t bytes, struct msg_result_view *ret_view,
	struct errbuf *err) MUST_CHECK;

int msg_failed_parse(const void *buf, size_t bytes, struct msg_failed *ret_failed,
	struct errbuf *err) MUST_CHECK;

/*
 * The header alone, to tell messages apart: at least a header long, `bytes` as the header says, and
 * of a type we know. MSG_STOP is nothing more. Returns the type, or -EBADMSG with err.
 */
int msg_hdr_parse(const void *buf, size_t bytes, struct errbuf *err) MUST_CHECK;
/* "STEP" ...; "?" for a value that is none of ours. */
const char *msg_type_name(uint32_t type);

/*
 * Lays out a MSG_STEP with the given counts in buf and returns a view whose pointers may be cast
 * to write the parts. Returns the bytes needed, or -EMSGSIZE when they exceed cap (buf may be NULL
 * with cap 0 to ask).
 */
int64_t msg_step_layout(void *buf, size_t cap, const struct msg_step *counts, uint64_t step,
	struct msg_step_view *ret_view) MUST_CHECK;
int64_t msg_result_layout(void *buf, size_t cap, const struct msg_result *counts, uint64_t step,
	struct msg_result_view *ret_view) MUST_CHECK;

/* A MSG_STOP and a MSG_FAILED (text is cut to fit). Bytes, or -EMSGSIZE as above. */
int64_t msg_stop_build(void *buf, size_t cap, uint64_t step) MUST_CHECK;
int64_t msg_failed_build(
	void *buf, size_t cap, uint64_t step, int error, const char *text) MUST_CHECK;

#endif
