/*
 * tensor.h: the tensors a DeepSeek V4 checkpoint consists of, from the one table tensor.def: their
 * names, shapes, accepted types and how workers share them. Pure functions of a model_config.
 */
#ifndef WORKER_CKPT_TENSOR_H
#define WORKER_CKPT_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/ckpt/model_config.h"

enum tensor_kind {
#define TENSOR(kind, ...) TENSOR_##kind,
#include "worker/ckpt/tensor.def"
#undef TENSOR
	TENSOR__COUNT
};

enum tensor_scope {
	TENSOR_IN_MODEL,
	TENSOR_IN_LAYER,
	TENSOR_IN_COMPRESSED,
	TENSOR_IN_CSA,
	TENSOR_IN_HASH,
	TENSOR_IN_SCORED,
	TENSOR_IN_EXPERT,
};

enum tensor_split {
	TENSOR_SPLIT_FULL,
	TENSOR_SPLIT_ROWS,
	TENSOR_SPLIT_COLS,
	TENSOR_SPLIT_EXPERT_ROWS,
	TENSOR_SPLIT_EXPERT_COLS,
	TENSOR_SPLIT_SHARED_ROWS,
	TENSOR_SPLIT_SHARED_COLS,
};

enum tensor_types {
	TENSOR_TYPES_FLOAT,
	TENSOR_TYPES_LINEAR,
	TENSOR_TYPES_EXPERT,
	TENSOR_TYPES_INT
};

enum tensor_init { TENSOR_INIT_LINEAR, TENSOR_INIT_NORM, TENSOR_INIT_UNIT, TENSOR_INIT_IDS };

enum tensor_released {
	TENSOR_RELEASED_BF16,
	TENSOR_RELEASED_F32,
	TENSOR_RELEASED_FP8,
	TENSOR_RELEASED_EXPERT,
	TENSOR_RELEASED_I64,
};

/* What the elements of a tensor are. */
enum ckpt_elem {
	CKPT_F32,
	CKPT_BF16,
	CKPT_F16,
	CKPT_F8_E4M3, /* e4m3fn: no infinities, largest 448 */
	CKPT_F4_E2M1, /* two to a byte along the input dimension, low nibble first */
	CKPT_I64,
	CKPT_I32,
	CKPT_ELEM__COUNT
};

/* What the scales of an FP8 or FP4 tensor are. */
enum ckpt_scale {
	CKPT_SCALE_NONE,
	CKPT_SCALE_E8M0, /* 2^(byte - 127); 255 is refused */
	CKPT_SCALE_F32,
};

/* The row of tensor.def. */
struct tensor_row {
	const char *id;   /* "WQ_A" */
	const char *name; /* released, without the layer */
	const char *hf_name;
	enum tensor_scope scope;
	uint8_t ndim;
	enum tensor_split split;
	enum tensor_types types;
	enum tensor_init init;
	enum tensor_released released;
};
const struct tensor_row *tensor_row(enum tensor_kind kind);

/* Does layer `layer` have tensors of this kind? layer is -1 for those of the model. */
bool tensor_exists(const struct model_config *cfg, enum tensor_kind kind, int layer);

/* Shape in elements; cols is 1 for vectors. layer as above (it decides the ratio). */
struct tensor_shape {
	uint64_t rows, cols;
};
struct tensor_shape tensor_shape(const struct model_config *cfg, enum tensor_kind kind, int layer);

/* Bytes of n elements that follow each other in a row; n is even for FP4. */
static inline uint64_t ckpt_elem_bytes(enum ckpt_elem elem, uint64_t n)
{
	static const uint8_t half_bytes[CKPT_ELEM__COUNT] = {8, 4, 4, 2, 1, 16, 8};

	return n * half_bytes[elem] / 2;
}
static inline uint64_t ckpt_scale_bytes(enum ckpt_scale scale, uint64_t n)
{
	return scale == CKPT_SCALE_F32 ? n * 4 : scale == CKPT_SCALE_E8M0 ? n : 0;
}
/* "BF16", "FP8", ... as people call it. */
const char *ckpt_elem_name(enum ckpt_elem elem);

/* The elements one scale of such a tensor covers: fp8_block of the config, or 1 x 32. */
struct tensor_block {
	uint32_t rows, cols;
};
struct tensor_block tensor_block(const struct model_config *cfg, enum ckpt_elem elem);

/* The type the tensor has in a released model of this configuration; load=dummy makes it. */
enum ckpt_elem tensor_released_elem(const struct model_config *cfg, enum tensor_kind kind);

/* Writes the released name ("layers.3.ffn.experts.7.w1.weight"); layer, expert -1 where none. */
enum { TENSOR_NAME_MAX = 128 };
void tensor_name(enum tensor_kind kind, int layer, int expert, char out[TENSOR_NAME_MAX]);
/*
 * transformers' names for it, which = 0, 1, ...; false when there are no more. For experts that of
 * the tensor of all experts.
 */
bool tensor_hf_name(enum tensor_kind kind, int layer, int which, char out[TENSOR_NAME_MAX]);

#endif
