/*
 * answer.h: the tokens of one choice to what its client may see: token_stream gives whole
 * characters, dsml takes them apart into reasoning, content and tool calls, stop strings end the
 * content. Streamed and whole answers take the same way, so they hold the same text.
 *
 * Stop strings apply to content only: what the model thinks is not an answer, and cutting it or a
 * call there would leave none. A stop string is not found across a call either. Pure; the loop's
 * thread.
 */
#ifndef COORDINATOR_ANSWER_H
#define COORDINATOR_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/dsml.h"
#include "coordinator/outbuf.h"
#include "coordinator/stopstr.h"
#include "coordinator/token.h"
#include "shm/util.h"

/*
 * A call that is streamed waits until its arguments have so many bytes: most calls then are sent
 * whole, and of a file that is written through one the client sees the first piece within seconds.
 */
#define ANSWER_CALL_HOLD 512

struct answer_how {
	const struct tokenizer *tok; /* this and the set must outlive the answer */
	const struct stop_set *stops;
	bool skip_special;
	bool thinking;     /* the prompt has opened <think> */
	bool calls;        /* tool calls are looked for */
	bool pieces;       /* long calls are given in pieces */
	bool one_call;     /* the answer ends with its first call */
	const char *begun; /* text with which the prompt has begun the answer; may be NULL */
	size_t begun_len;
};

struct answer_call {
	struct outbuf name;
	struct outbuf args; /* JSON text; the sender clears what it has sent */
	bool complete;
	bool sent; /* the sender's: its first delta went out */
};

struct answer {
	struct token_stream stream;
	struct dsml dsml;
	struct stop_scan stop;
	struct outbuf content, thought; /* text free to be sent; the sender clears it */
	struct answer_call *calls;
	size_t call_n, call_cap, complete_n;
	size_t chars;      /* characters (code points) decoded so far, those held back included */
	size_t bytes;      /* of text taken in */
	size_t begun_len;  /* of them, what the model did not write */
	size_t free_until; /* stop strings that end before this byte do not count (min_tokens) */
	int stop_string;   /* index of the one that ended the answer, or -1 */
	bool said;         /* there was content */
	bool skip_special, one_call;
	int64_t markers[2]; /* tokens whose text is needed whatever skip_special says; -1: none */
};

/* 0 or -ENOMEM; answer_fini() in any case. */
int answer_init(struct answer *a, const struct answer_how *how) MUST_CHECK;
void answer_fini(struct answer *a);

/*
 * Takes one token. armed: whether a stop string that ends in its text counts. 1 when the answer has
 * ended with it, by a->stop_string or by its one call; 0, or -ENOMEM.
 */
int answer_push(struct answer *a, uint32_t token, bool armed) MUST_CHECK;

/*
 * No more tokens: what was held back follows, by the same way. cut: it was not the model that ended
 * the answer. Returns as answer_push(): a stop string may show up only now.
 */
int answer_finish(struct answer *a, bool cut) MUST_CHECK;

static inline bool answer_thinks(const struct answer *a)
{
	return a->dsml.state == DSML_IN_REASONING;
}
bool answer_ok(const struct answer *a); /* false: memory ran out somewhere */

/* Characters (code points) in whole UTF-8 text. */
size_t answer_count_chars(const char *text, size_t len);

#endif
