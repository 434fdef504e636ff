/*
 * values.h: contents of tensors that no kernel could survive: scales that are no numbers, expert
 * ids that name no expert. Functions of bytes; load.c and `heddle inspect --verify` share them.
 */
#ifndef WORKER_CKPT_VALUES_H
#define WORKER_CKPT_VALUES_H

#include <stdint.h>

#include "worker/ckpt/tensor.h"

/*
 * The first of n scales that cannot be used: byte 255 (NaN) of E8M0; NaN, infinite or negative F32.
 * Returns its index, or -1 when all are good. data need not be aligned.
 */
int64_t values_bad_scale(enum ckpt_scale scale, const void *data, uint64_t n);

/*
 * Checks `rows` rows of k expert ids (I64 or I32): each below `experts` and no two of a row equal.
 * Returns the first bad row, or -1.
 */
int64_t values_bad_ids(
	enum ckpt_elem elem, const void *data, uint64_t rows, uint32_t k, uint32_t experts);

#endif
