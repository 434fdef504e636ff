/*
 * api_fixture.h: the API with the bundled tokenizer over the fakes, and the way from an answer's
 * bytes back to what it says.
 */
#ifndef TESTS_API_FIXTURE_H
#define TESTS_API_FIXTURE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/api_impl.h"
#include "tests/unit/fake_engine.h"
#include "tests/unit/fake_net.h"

#define CHAT "/v1/chat/completions"
#define TEXT "/v1/completions"
#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]"
#define EOS  1u

struct fix {
	struct loop *loop;
	struct engine *engine;
	struct conf_set set;
	struct api *api;
	uint32_t byte_token[256];
};

/* For cmocka's setup and teardown; *state is the struct fix. Context 4096. */
int fix_setup(void **state);
int fix_teardown(void **state);

/* Sends a request; small bodies have been read when it returns. */
struct http_exchange *fix_send(
	struct fix *f, const char *method, const char *path, const char *body);
#define fix_post(f, path, body) fix_send(f, "POST", path, body)

/* Text as ids, one token a byte: every cut between tokens that there can be. malloc'd. */
uint32_t *fix_bytes(const struct fix *f, const char *text, size_t len);
/* The same, but </think> and the bars of calls are the tokens that the model has for them. */
uint32_t *fix_tokens(const struct fix *f, const char *text, size_t *ret_n);
/* Makes these bytes with one report for each `batch` of them. Returns whether the sequence lives.
 */
bool fix_say(struct fix *f, struct engine_seq *s, const char *text, size_t batch);
void fix_eos(struct engine_seq *s);

/* Checks an error answer and frees the exchange. param NULL: null. says: part of the message. */
void fix_check_error(struct http_exchange *x, int status, const char *param, const char *says);
/* Sends and expects that error at once. */
void fix_refused(struct fix *f, const char *path, const char *body, int status, const char *param,
	const char *says);

#define DSML "｜DSML｜"
#define TOOLS                                                                                      \
	"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":"           \
	"{\"type\":\"object\",\"properties\":{}}}},{\"type\":\"function\",\"function\":"           \
	"{\"name\":\"get_weather\"}}]"

/* A call as the client has it. */
struct said_call {
	char id[64], name[128], args[32768];
	size_t args_len, deltas;
};

/* One choice as the client has it after the whole answer, streamed or not. */
struct said {
	char content[8192], thought[8192];
	size_t content_len, thought_len;
	char finish[16];
	json_t *stop_reason; /* borrowed from root */
	json_t *entries; /* chat logprobs.content, or completions logprobs object, joined; owned */
	json_t *ids;     /* token_ids; owned */
	bool null_content;       /* whole: content is null */
	struct said_call *calls; /* 8 */
	size_t call_n;
	size_t events; /* streamed: events with text */
};
struct heard {
	json_t *root; /* the body, or the array of all events */
	struct said said[8];
	size_t choice_n;
	json_t *usage; /* borrowed; NULL: none */
	json_t *error; /* borrowed: an error event */
	bool done;     /* data: [DONE] came last */
	size_t comments;
	bool role_first; /* the first event of each choice carries the role */
	char comment[200];
};
/* Reads the body of a finished exchange, checks its framing, frees the exchange. */
void fix_hear(struct http_exchange *x, bool chat, struct heard *h);
void fix_unhear(struct heard *h);

/* Number at a path like "usage.prompt_tokens"; fails the test when there is none. */
json_int_t json_at(const json_t *v, const char *path);

#endif
