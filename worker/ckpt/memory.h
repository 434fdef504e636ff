/*
 * memory.h: how many bytes a page of each class has, and the pages of a sequence. Arithmetic only,
 * for `heddle inspect`. A worker takes the sizes of rows from kernels/, which is not included here;
 * a test holds the two together. What else a worker takes: plan.h (weights), scratch.h, slots.h.
 *
 * Rows (a raw row and a compressed entry have the same layout):
 *	kv f32  512 x 4 = 2048 | bf16 512 x 2 = 1024 | fp8 448 e4m3 + 64 bf16 + 7 E8M0 + 1 pad = 584
 *	index key, in pages of 64 entries: f32 512 | bf16 256 | fp8 128 + 4 = 132 | fp4 64 + 4 = 68
 */
#ifndef WORKER_CKPT_MEMORY_H
#define WORKER_CKPT_MEMORY_H

#include <stdint.h>

#include "shm/conf_types.h"
#include "worker/ckpt/model_config.h"

enum { MEMORY_PAGE_ENTRIES = 64 };

/* Classes of pages, in the order of enum page_class of shm/msg.h. */
enum memory_class { MEMORY_RAW, MEMORY_CSA, MEMORY_HCA, MEMORY_CLASS__COUNT };

struct memory_page {
	uint32_t tokens; /* positions a page covers; 0: the model has no such layer */
	uint64_t bytes;  /* over all layers of the class */
};

struct memory_plan {
	struct memory_page page[MEMORY_CLASS__COUNT];
};

uint64_t memory_kv_row_bytes(enum conf_kv format);
uint64_t memory_index_key_bytes(enum conf_index_key format);

struct memory_plan memory_plan(
	const struct model_config *cfg, enum conf_kv kv, enum conf_index_key index_key);

/* Bytes of the pages that a sequence of this many tokens needs. */
uint64_t memory_sequence_bytes(
	const struct memory_plan *plan, const struct model_config *cfg, uint64_t tokens);

#endif
