/*
 * What the files of the chat format share; nobody else includes it (tests do).
 *
 *   messages --chat_collect--> turns, each with its blocks --chat_render--> text and trust mask
 *
 * A turn is what the model sees as one: tool results and user texts that follow one another are
 * blocks of a single user turn.
 */
#ifndef COORDINATOR_CHAT_IMPL_H
#define COORDINATOR_CHAT_IMPL_H

#include "coordinator/chat.h"
#include "coordinator/json_str.h"
#include "coordinator/json_text.h"

enum chat_text {
#define CHAT_TEXT(name, path, text) CHAT_##name,
#include "coordinator/chat_text.def"
#undef CHAT_TEXT
	CHAT_TEXT__COUNT
};
extern const char *const chat_texts[CHAT_TEXT__COUNT];

enum chat_role {
	CHAT_SYSTEM,
	CHAT_DEVELOPER,
	CHAT_USER_ROLE,
	CHAT_REMINDER,
	CHAT_ASSISTANT_ROLE,
	CHAT_TOOL, /* becomes a block of a user turn */
	CHAT_ROLE__COUNT
};

/* A user text or a tool result. */
struct chat_block {
	size_t message; /* index in messages */
	bool is_result;
	size_t call; /* of a result: which of the assistant's calls it answers */
};

struct chat_turn {
	enum chat_role role;
	size_t message;               /* index; SIZE_MAX for the system turn that none sent */
	size_t blocks_at, blocks_len; /* user turns */
	int task;                     /* enum chat_text, or -1 */
};

struct chat {
	const json_t *messages, *tools, *response_format;
	const struct chat_options *opt;
	struct json_slice *raw_messages; /* one for each message, or NULL */
	struct json_slice raw_tools, raw_format;
	struct chat_turn *turns;
	size_t turns_len;
	struct chat_block *blocks;
	size_t blocks_len;
	size_t last_user; /* turn; SIZE_MAX: none */
	bool keep_thinking;

	/* The output: text and, byte by byte, whether the format itself wrote it. */
	struct outbuf text, trusted;
	struct outbuf scratch;
	size_t begun;  /* where the forced beginning of the answer stands */
	uint32_t used; /* bits of enum chat_text */

	char *ret_param; /* 64 bytes, may be NULL */
	struct errbuf *err;
};

/* Fills err and ret_param: "PARAM: what is wrong". Returns -EINVAL. */
PRINTF_LIKE(3, 4)
int chat_bad(struct chat *c, const char *param, const char *fmt, ...);

/* chat_turn.c: checks every message and fills turns, blocks, last_user, keep_thinking. */
int chat_collect(struct chat *c) MUST_CHECK;

/* chat_content.c */
int chat_check_content(struct chat *c, const json_t *message, size_t index) MUST_CHECK;
void chat_put_content(struct chat *c, const json_t *content);
void chat_put(struct chat *c, enum chat_text text);
void chat_put_fixed(struct chat *c, const char *text);
void chat_put_trusted(struct chat *c, const char *text, size_t len);
void chat_put_untrusted(struct chat *c, const char *text, size_t len);

/* chat_tools.c */
int chat_check_tools(struct chat *c, const json_t *tools, const char *param) MUST_CHECK;
int chat_put_tools(
	struct chat *c, const json_t *tools, struct json_slice raw, const char *param) MUST_CHECK;
int chat_put_format(
	struct chat *c, const json_t *format, struct json_slice raw, const char *param) MUST_CHECK;
int chat_put_calls(struct chat *c, const json_t *calls, size_t message) MUST_CHECK;
void chat_put_forced(struct chat *c, const char *name);
/* Where the value stands in the request; an empty slice where it is not known. */
struct json_slice chat_raw_member(struct json_slice obj, const char *key);

#endif
