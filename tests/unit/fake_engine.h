/*
 * fake_engine.h: coordinator/engine.h without workers: what a sequence gets, and when, is up to the
 * test. It keeps the engine's promises (stop tokens end a sequence but not before min_tokens,
 * max_tokens does, no callback from inside submit or cancel) and checks the API's side of them.
 */
#ifndef TESTS_FAKE_ENGINE_H
#define TESTS_FAKE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/engine.h"

struct engine_seq {
	struct engine *engine;
	struct engine_seq *next;
	bool live; /* not finished, not cancelled */
	bool cancelled;
	/* the request, copied */
	uint32_t *prompt, *stop_tokens;
	size_t prompt_len, stop_token_n, bias_n;
	struct msg_bias *bias;
	uint64_t max_tokens, min_tokens;
	struct msg_sample sampling;
	bool prompt_logprobs;
	char id[160];
	struct engine_seq_ops ops;
	void *user;
	mono_ns_t waited;
	uint64_t made;
	uint64_t reported; /* prompt tokens whose log-probability was sent */
};

struct engine {
	struct engine_limits limits;
	enum engine_health health;
	const char *reason;         /* engine_reason(); NULL: as it needs be */
	int refuse;                 /* engine_submit() returns this, ... */
	size_t refuse_at;           /* ... from the submission of this number on, counted from 0 */
	uint32_t fit_run, fit_wait; /* engine_fit() takes so many; both 0: any number */
	size_t submitted;
	struct engine_seq *seqs; /* newest first, kept until the engine is freed */
	struct engine_seq **tail;
};

struct engine *fake_engine_new(uint64_t max_context, uint32_t vocab);
/* Fails the test when a sequence is still live. */
struct engine *fake_engine_free(struct engine *e);
struct engine_seq *fake_engine_seq(struct engine *e, size_t index); /* in order of submission */
size_t fake_engine_live(const struct engine *e);

/*
 * Generated tokens in reports of `batch` at a time, as long as the sequence lives. Ends it as an
 * engine does. Returns whether it is still live.
 */
bool fake_engine_make(struct engine_seq *s, const uint32_t *tokens, size_t n, size_t batch);
/* Log-probabilities of the next n prompt tokens. */
void fake_engine_read(struct engine_seq *s, size_t n);
void fake_engine_prefill(struct engine_seq *s, uint64_t done);
void fake_engine_finish(struct engine_seq *s, enum engine_finish why, int status, const char *text);
/* The log-probability reported for a token, and alternative i to it (the best first). */
float fake_logprob(uint32_t token);
struct msg_alt fake_alt(uint32_t token, uint32_t i);

#endif
