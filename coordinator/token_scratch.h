/*
 * What one thread needs while it encodes. Private to the tokenizer.
 */
#ifndef COORDINATOR_TOKEN_SCRATCH_H
#define COORDINATOR_TOKEN_SCRATCH_H

#include "coordinator/token_regex.h"

/* Words seen lately, one for each slot: a full cache forgets, it never grows. 64 bytes a slot. */
#define TOKEN_CACHE_SLOTS 8192
#define TOKEN_CACHE_BYTES 30
#define TOKEN_CACHE_IDS   8

struct token_cached {
	uint8_t len, n; /* len 0: free */
	uint8_t bytes[TOKEN_CACHE_BYTES];
	uint32_t ids[TOKEN_CACHE_IDS];
};

/* A list over an array: merging takes the right symbol out. id TOKEN_NONE: taken out. */
struct token_symbol {
	uint32_t id;
	int32_t prev, next; /* -1: none */
};

struct token_scratch {
	struct token_matcher matcher;
	struct token_symbol *symbols;
	size_t symbols_cap;
	uint64_t *heap; /* rank << 32 | position: the smallest is the merge to do next */
	size_t heap_len, heap_cap;
	struct token_cached cache[TOKEN_CACHE_SLOTS];
};

#endif
