/*
 * sample.h: from raw logits to a token. Pure: no model, no clock, no
 * randomness but Philox keyed by the request's seed, so that a choice depends on nothing but the
 * logits, the parameters, the history and the position.
 *
 * Order: logit_bias, penalties, banned ids, temperature, min_p, top_k, top_p. Ties go to the
 * lowest id. Log-probabilities are an op (kern_logprob_args).
 */
#ifndef WORKER_SAMPLE_H
#define WORKER_SAMPLE_H

#include "shm/msg.h"

/* Scratch of one sampler, for a vocabulary; about 20 bytes a token of it. */
struct sampler {
	uint32_t vocab;
	float *logits;   /* [vocab] after bias, penalties, bans */
	uint32_t *heap;  /* [vocab] candidates */
	uint32_t *count; /* [vocab] occurrences in the history: all; zero between calls */
	uint32_t *fresh; /* [vocab] occurrences among the generated tokens; zero between calls */
};

int sampler_open(uint32_t vocab, struct sampler *ret_sampler) MUST_CHECK;
void sampler_close(struct sampler *s);

/* One message's sampling parameters with its arrays at hand. Ids are < vocab (step.c checks). */
struct sample_params {
	const struct msg_sample *sample;
	const struct msg_bias *bias; /* sample->bias_n */
	const uint32_t *banned;      /* sample->banned_n */
	const uint32_t *history;     /* tokens at positions 0 .. history_n-1 */
	uint64_t history_n;          /* = position the sampled token will take */
};

/* True when the parameters are ones that sample_token() can honour; err says which is not. */
int sample_check(const struct msg_sample *s, struct errbuf *err) MUST_CHECK;

/*
 * Chooses the next token. With temperature 0 the largest logit, else by Philox at counter
 * history_n. NaN and +inf are never chosen; if no candidate is left (all banned, all NaN) the
 * result is the lowest id that is not banned, or 0.
 */
uint32_t sample_token(struct sampler *s, const float *logits, const struct sample_params *p);

/*
 * Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): key = the
 * seed's two halves, counter = {position low, position high, choice, 0}. A number in [0, 1) from
 * the first 53 of its 128 bits.
 */
double sample_random(uint64_t seed, uint32_t choice, uint64_t pos);
void sample_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t ret_out[4]);

#endif
