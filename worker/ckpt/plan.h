/*
 * plan.h: which part of each tensor a worker holds. A pure function of the checkpoint's table of
 * tensors, the rank and the number of workers; nothing is read.
 *
 * A slice keeps its place in the whole (row0, col0): scales are indexed globally, so a slice may
 * end inside a scale block and then holds that block's whole scale:
 *
 *	        col0          col0+cols
 *	   ......|.............|......
 *	row0 ----+-------------+
 *	         |    slice    |
 *	    -----+-------------+
 *
 * Element (i, j) of the slice has the scale at
 *
 *	row  (row0 + i) / block.rows - scale_row0      of rows of scale_cols scales each,
 *	col  (col0 + j) / block.cols - scale_col0
 */
#ifndef WORKER_CKPT_PLAN_H
#define WORKER_CKPT_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/ckpt/ckpt.h"

struct plan_item {
	enum tensor_kind kind;
	int layer, expert;
	enum ckpt_elem elem;
	size_t entry; /* index into ckpt->entries */

	uint64_t rows, cols; /* of the slice; never 0 */
	uint64_t row0, col0; /* its place in the whole */
	uint64_t all_rows, all_cols;
	uint64_t row_bytes; /* of a row of the slice */
	uint64_t bytes;     /* rows * row_bytes */

	enum ckpt_scale scale;
	struct tensor_block block;       /* elements a scale covers */
	uint64_t scale_rows, scale_cols; /* scales the slice touches; 0 without scales */
	uint64_t scale_row0, scale_col0;
	uint64_t scale_all_rows, scale_all_cols;
	uint64_t scale_bytes;
};

struct plan {
	uint32_t rank, world;
	bool experts_by_id;
	uint32_t expert0, expert_n; /* experts this worker holds, wholly or in part */
	struct plan_item *items;    /* in the order of ckpt->entries */
	size_t n;
	uint64_t bytes; /* weights and scales */
};

/*
 * Makes the plan of one rank. -EINVAL (78) where model_config_check_world() refuses; -ENOMEM. A
 * slice that would be empty (a shared expert narrower than world) is left out.
 */
int plan_build(const struct ckpt *ck, uint32_t rank, uint32_t world, struct plan *ret_plan,
	struct errbuf *err) MUST_CHECK;
void plan_fini(struct plan *plan);

/* Part `rank` of n things over world workers, as plan_build cuts them: begin, and the next one's.
 */
static inline uint64_t plan_cut(uint64_t n, uint32_t rank, uint32_t world)
{
	return n * rank / world;
}

#endif
