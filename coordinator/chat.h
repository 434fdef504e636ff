/*
 * chat.h: OpenAI-style messages to the one prompt string of DeepSeek V4's chat format (model.md
 * section 10 in docs/), with a trust mask: only bytes that the format itself emits are trusted, so
 * a special token's characters inside a message stay text.
 *
 * Pure functions of JSON values; no I/O, no tokens (but see chat_lacks()).
 */
#ifndef COORDINATOR_CHAT_H
#define COORDINATOR_CHAT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/util.h"

struct tokenizer;

enum chat_effort { CHAT_EFFORT_NONE, CHAT_EFFORT_NORMAL, CHAT_EFFORT_MAX };

struct chat_options {
	bool thinking;              /* open <think> for the answer */
	enum chat_effort effort;    /* MAX puts the fixed prefix first */
	bool add_generation_prompt; /* end with <|Assistant|> and the think marker */
	bool force_call;            /* and with the beginning of a block of calls, ... */
	const char *force_name;     /* ... of this function; NULL: any */
	const char *raw_body;       /* the request's own bytes, for printing tool schemas ... */
	size_t raw_len;             /* ... with their number lexemes as received; may be NULL */
};

/*
 * Prompt text and its trust mask, both malloc'd, `len` bytes (text is NUL-terminated
 * besides).
 */
struct chat_prompt {
	char *text;
	uint8_t *trusted;
	size_t len;
	size_t begun;  /* where the forced beginning of the answer stands; len: nowhere */
	uint32_t used; /* bits of enum chat_text: fixed texts it holds */
};

/*
 * messages: array of {role, content, reasoning_content, tool_calls, tool_call_id, task, ...};
 * tools: array of {type, function} or NULL; response_format: object or NULL.
 * Returns 0, or -EINVAL with err saying what is wrong and `ret_param` (may be NULL) naming the
 * field
 * ("messages[2].content").
 */
int chat_render(const json_t *messages, const json_t *tools, const json_t *response_format,
	const struct chat_options *opt, struct chat_prompt *ret_prompt, char ret_param[64],
	struct errbuf *err) MUST_CHECK;
/*
 * A special token of the format that this tokenizer does not have as an added token, so that the
 * model would read mere text; NULL: none. p: of those that this prompt holds; NULL: of those that
 * any conversation may hold. (Tokens of tasks are not among the latter: not every model has them.)
 */
const char *chat_lacks(const struct tokenizer *tok, const struct chat_prompt *p);

void chat_prompt_free(struct chat_prompt *p);

/* Can the model's calls carry this name of a function or parameter? DSML has no escape, so one that
 * would end its own attribute cannot be written. */
bool chat_name_fits(const char *name, size_t len);

#endif
