/*
 * gen.h: random checkpoints from counters, the C twin of tests/reference/weights.py: every element
 * is a function of (seed, tensor name, index), equal to the last bit in both languages. A fixture
 * therefore holds a configuration and a seed, and a test writes the checkpoint it needs.
 */
#ifndef TESTS_MODEL_GEN_H
#define TESTS_MODEL_GEN_H

#include <jansson.h>
#include <stdint.h>

#include "shm/util.h"

enum gen_base { GEN_BF16, GEN_F16, GEN_F32 };

/* "BF16", "F16", "F32" as the fixtures spell it, else -EINVAL. */
int gen_base_parse(const char *name, enum gen_base *ret_base) MUST_CHECK;

/*
 * Writes dir/config.json and dir/model.safetensors in the released format and names. dir exists.
 * ret_checksum (may be NULL) is weights.checksum() of the same checkpoint. Returns 0 or -errno.
 */
int gen_checkpoint(const char *dir, const json_t *config, uint64_t seed, enum gen_base base,
	uint64_t *ret_checksum) MUST_CHECK;

/* Token ids of a prompt: 0, then counters; a longer prompt continues a shorter one. */
void gen_prompt(uint64_t seed, uint32_t length, uint32_t vocab, uint32_t *ret_ids);

/* The mixer of splitmix64; XORed over entry+1 it folds a set, whatever its order. */
uint64_t gen_mix(uint64_t x);

#endif
