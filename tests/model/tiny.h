/*
 * tiny.h: a small model of every layer kind for tests that compare heddle with itself: made-up
 * weights (model.load = dummy) from a config.json in a temporary directory, fast enough to run
 * hundreds of steps a second.
 */
#ifndef TESTS_MODEL_TINY_H
#define TESTS_MODEL_TINY_H

#include "tests/model/harness.h"
#include "tests/unit/ckpt_fixture.h"

struct tiny {
	char dir[256];
	uint32_t vocab;
};

/* FP8 and FP4 weights when quantised; `experts_by_id`: an inter that no W > 1 divides by 32. */
void tiny_make(struct tiny *t, bool quantised, bool experts_by_id);
void tiny_remove(struct tiny *t);

/* harness_conf() for it: dummy weights, top-k 16 of the index, 8 slots. */
struct conf tiny_conf(void);

/* ids[n] drawn from *seed. */
void tiny_prompt(const struct tiny *t, uint64_t *seed, uint32_t *ids, size_t n);

#endif
