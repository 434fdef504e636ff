/*
 * prep.h: a request's body to what the engine and the answer need: parameters checked, prompts as
 * token ids, stop strings compiled. Everything here that can be slow (parsing 64 MB, tokenising
 * them) is in prep_run(), which touches nothing but its own struct and the immutable tokenizer, so
 * that it may run on a thread of the loop's pool.
 *
 * Rules across parameters live here, each a sentence that names the field to blame.
 */
#ifndef COORDINATOR_PREP_H
#define COORDINATOR_PREP_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/outbuf.h"
#include "coordinator/param.h"
#include "coordinator/stopstr.h"
#include "coordinator/token.h"
#include "shm/msg.h"
#include "shm/util.h"

#define PREP_PROMPTS_MAX     1024
#define PREP_CHOICES_MAX     4096 /* prompts x n */
#define PREP_STOPS_MAX       16
#define PREP_STOP_BYTES_MAX  4096 /* of one stop string: what may be held back at a time */
#define PREP_STOP_TOKENS_MAX 256
#define PREP_BIAS_MAX        1024

/* Filled by the caller before prep_run(); borrowed, and not changed meanwhile. */
struct prep_in {
	enum param_scope scope;
	const struct tokenizer *tok;
	struct token_scratch *scratch; /* this request's own */
	const char *body;
	size_t body_len;
	bool strict;
	const uint32_t *eos;
	size_t eos_n;
	uint32_t vocab;       /* ids are below this */
	uint64_t context;     /* tokens of prompt and answer; 0: not known */
	uint32_t token_bytes; /* no prompt with more bytes for each token of the context is read */
};

struct prep_prompt {
	struct token_ids ids;
	bool bos_added; /* begins with a BOS that its text does not hold */
};

struct prep {
	struct prep_in in;
	struct params params; /* defaults before, the request's after */

	json_t *root;                /* the body without its large parts; params borrow from it */
	struct prep_prompt *prompts; /* prompt_n of them, none empty but for /tokenize */
	size_t prompt_n;
	bool thinking;
	bool calls;  /* what the model writes is searched for tool calls */
	bool forced; /* the answer begins with a call, of the function in tool_choice if it names
			one */
	char *begun; /* text of the answer that the prompt ends with; NULL: none */
	struct stop_set *stops;
	uint32_t *stop_tokens; /* the end tokens first, unless ignore_eos */
	size_t stop_token_n, end_token_n;
	struct msg_bias *bias;
	size_t bias_n;
	struct outbuf unknown; /* names of unknown fields; empty: none */
	const char *note;      /* what else the client should know; NULL: nothing */
	const char *code;      /* of the error; NULL: the status says enough */

	int status; /* HTTP status of what went wrong, or 0 */
	struct param_error error;
};

/* Fills the results; on failure status and error. Call once. */
void prep_run(struct prep *p);
void prep_fini(struct prep *p);

/* The text of stop string i, as the request has it. */
const char *prep_stop_text(const struct prep *p, size_t i, size_t *ret_len);

/* prep_tools.c: tool_choice, and what it asks of the prompt. For prep.c and prep_prompt.c only. */
int prep_check_tools(struct prep *p) MUST_CHECK;

/* prep_prompt.c: prompts of every call, and the lists of ids. For prep.c only. */
int prep_read_prompts(struct prep *p);
int prep_read_ids(struct prep *p, const char *name, const json_t *list, struct token_ids *ret_ids);

#endif
