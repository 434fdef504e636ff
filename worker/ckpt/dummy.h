/*
 * dummy.h: load=dummy: weights of the right shapes and types from a counter-based generator. A
 * value depends on the seed, the tensor and its place in the whole tensor only, so any split over
 * workers makes the same model. Linear layers keep the variance of their input, so numbers stay
 * sane.
 */
#ifndef WORKER_CKPT_DUMMY_H
#define WORKER_CKPT_DUMMY_H

#include "worker/ckpt/plan.h"

/* Fills item->bytes at data and item->scale_bytes at scales; both 8-aligned. */
void dummy_fill(const struct model_config *cfg, const struct plan_item *item, uint64_t seed,
	void *data, void *scales);

#endif
