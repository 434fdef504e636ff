/* A ring in plain memory for tests: mirrored (a memfd mapped twice) or padded (malloc). */
#ifndef TESTS_RING_BOX_H
#define TESTS_RING_BOX_H

#include "shm/ring.h"

#define BOX_READERS 3

struct ring_box {
	struct ring_data data;
	struct ring_head head;
	struct ring_tail tails[BOX_READERS];
	struct ring_writer writer;
	struct ring_reader readers[BOX_READERS];
};

/* Memory is poisoned with 0xa5. Exits on failure. */
struct ring_box *ring_box_new(uint64_t bytes, bool mirrored, uint32_t readers);
void ring_box_free(struct ring_box *box);

/* The i-th byte of record `number`, so that each record has bytes of its own. */
static inline uint8_t box_byte(uint64_t number, size_t i)
{
	return (uint8_t)((number * 0x9e3779b9u + i * 0x85ebca6bu) >> 13);
}
void box_fill(uint8_t *out, uint64_t number, size_t bytes);
bool box_same(const uint8_t *bytes, uint64_t number, size_t n);

/* xorshift: fresh numbers from a printed seed. */
static inline uint64_t box_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}
/* HEDDLE_TEST_SEED or the clock; prints it. */
uint64_t box_seed(void);

#endif
