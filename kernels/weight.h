/*
 * Weights as the products read them: packed once at load time, compressed in memory, widened
 * exactly where they are used.
 *
 * A weight is a slice of a checkpoint matrix [out, in]: n rows from global row row0, k columns
 * from global column col0. Scales belong to GLOBAL blocks (128 x 128 for FP8, 1 x 32 for FP4), so
 * a slice may begin or end inside a block.
 *
 *   data   groups of 16 outputs, k ascending, the 16 outputs of a k side by side:
 *          F32/F16/BF16/FP8   [ceil(n/16)][k][16]
 *          FP4                [ceil(n/16)][k/2][16] bytes: low nibble k even, high nibble k odd
 *   scale  FP8  f32  [ceil(n/16)][blocks of k][16]
 *          FP4  E8M0 [ceil(n/16)][blocks of k][16]
 *
 * Both parts lie in the caller's storage; rows beyond n are zero. The value of an element is its
 * code times its scale, rounded once to f32 (exact for powers of two that do not overflow).
 */
#ifndef KERNELS_WEIGHT_H
#define KERNELS_WEIGHT_H

#include <stddef.h>

#include "kernels/dtype.h"
#include "shm/util.h"

#define KERN_GROUP 16 /* outputs interleaved */

enum kern_scale { KERN_SCALE_NONE, KERN_SCALE_F32, KERN_SCALE_E8M0 };

/* What the loader knows of a slice. */
struct kern_weight_desc {
	enum kern_dtype dtype;
	enum kern_scale scale; /* FP8: F32 or E8M0; FP4: E8M0; others: NONE */
	uint32_t n, k;         /* rows and columns of the slice, >= 1 */
	uint32_t row0, col0;   /* global position of its first element; FP4: col0 and k even */
};

struct kern_weight {
	enum kern_dtype dtype;
	uint32_t n, k, row0, col0;
	uint32_t nblk;              /* scale blocks along k; 0 without scales */
	uint32_t block;             /* columns of a scale block: 128, 32, or 0 */
	enum kern_scale scale_kind; /* of the raw scales */
	void *data;
	void *scale;
};

/* Bytes of storage a packed slice needs. */
size_t kern_weight_bytes(const struct kern_weight_desc *d);

/*
 * Lays the weight out in storage (kern_weight_bytes() bytes, 64-byte aligned, owned by the caller,
 * kept as long as the weight) and zeroes what no row fills: the rows beyond n. Returns 0, or
 * -EINVAL with err naming the field that does not fit.
 */
int kern_weight_init(struct kern_weight *w, const struct kern_weight_desc *d, void *storage,
	struct errbuf *err) MUST_CHECK;

/*
 * Packs `rows` rows of the slice from row `first` on. raw points at the slice's element
 * (first, 0), row-major, raw_stride BYTES from row to row (FP4: two a byte, low nibble first).
 * scales points at the scale of the block that holds global (row0 + first, col0), scale_stride
 * ELEMENTS (f32 or bytes) from one block row to the next (FP4: from row to row); NULL without
 * scales. Neither needs alignment. Rows may come in any order and number, whole groups of 16
 * fastest; different rows may be packed by different threads when they lie in different groups
 * of 16. Returns 0, or -EBADMSG with err naming row and column or block: an FP8 NaN code; a scale
 * that is NaN (E8M0 byte 255), not positive, or so large that the greatest code would overflow
 * (above 2^119 for FP8, 2^125 for FP4).
 */
int kern_weight_pack(struct kern_weight *w, uint32_t first, uint32_t rows, const void *raw,
	size_t raw_stride, const void *scales, size_t scale_stride, struct errbuf *err) MUST_CHECK;

/*
 * Checks E8M0 scale bytes: returns the number of bytes equal to 255 (NaN), and in ret_first the
 * index of the first.
 */
size_t kern_e8m0_check(const uint8_t *scale, size_t n, size_t *ret_first);

/* The scale block of column k of the slice. */
static inline uint32_t kern_weight_block(const struct kern_weight *w, uint32_t k)
{
	return (w->col0 % w->block + k) / w->block;
}

/* One element, widened. Readable rather than fast: the reference's view of a weight. */
float kern_weight_get(const struct kern_weight *w, uint32_t n, uint32_t k);

#endif
