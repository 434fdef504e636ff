/*
 * fake_model.h: the "model" of tests: what follows a history, given by its hash. Shared by the
 * scheduler's simulation, the fake worker and the tests that know what it must answer.
 */
#ifndef TESTS_PROC_FAKE_MODEL_H
#define TESTS_PROC_FAKE_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#define FAKE_HASH0 0x9e3779b97f4a7c15ull /* of the empty history */

static inline uint64_t fake_hash(uint64_t h, uint32_t token)
{
	h = (h ^ token) * 0xff51afd7ed558ccdull;
	return h ^ (h >> 29);
}

static inline bool fake_is_banned(uint32_t token, const uint32_t *banned, uint32_t n)
{
	uint32_t i;

	for (i = 0; i < n; i++)
		if (banned[i] == token)
			return true;
	return false;
}

/* first .. vocab-1; the tests' models leave the special tokens below `first` alone. */
static inline uint32_t fake_token(
	uint64_t h, uint32_t first, uint32_t vocab, const uint32_t *banned, uint32_t banned_n)
{
	uint32_t token = first + (uint32_t)((h >> 7) % (vocab - first));

	while (fake_is_banned(token, banned, banned_n))
		token = token + 1 < vocab ? token + 1 : first;
	return token;
}

#endif
