/*
 * answer.h: the tokens of one choice to the text its client may see: token_stream gives whole
 * characters, the first "</think>" divides reasoning from content, stop strings end the content.
 * Streamed and whole answers take the same way, so they hold the same text.
 *
 * Stop strings apply to content only: what the model thinks is not an answer, and cutting it there
 * would leave none. Pure; the loop's thread.
 */
#ifndef COORDINATOR_ANSWER_H
#define COORDINATOR_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/outbuf.h"
#include "coordinator/stopstr.h"
#include "coordinator/token.h"
#include "shm/util.h"

struct answer {
	struct token_stream stream;
	struct stop_scan think, stop;
	bool reasoning;                 /* "</think>" has not come yet */
	struct outbuf content, thought; /* text free to be sent; the sender clears it */
	size_t chars; /* characters (code points) decoded so far, those held back included */
};

/*
 * `think` is the set of "</think>" when the prompt has opened <think>, else NULL. The sets must
 * outlive the answer.
 */
void answer_init(struct answer *a, const struct tokenizer *tok, bool skip_special,
	const struct stop_set *think, const struct stop_set *stops);
void answer_fini(struct answer *a);

/*
 * Takes one token. armed: see stop_scan_feed(). Returns the index of the stop string that ended the
 * answer, -1 when none did, or -ENOMEM.
 */
int answer_push(struct answer *a, uint32_t token, bool armed) MUST_CHECK;

/* The answer ended without a stop string: what was held back follows, by the same way. */
int answer_finish(struct answer *a) MUST_CHECK;

/* Characters (code points) in whole UTF-8 text. */
size_t answer_count_chars(const char *text, size_t len);

#endif
