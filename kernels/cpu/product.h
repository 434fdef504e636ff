/* The vector core of all products; what it promises is at the head of product.c. */
#ifndef KERNELS_CPU_PRODUCT_H
#define KERNELS_CPU_PRODUCT_H

#include "kernels/cpu/run.h"

/*
 * y[rows][..] = x times groups group .. group+groups-1; x is a list of row pointers, y begins at
 * the first group's output. panel: KERN_PRODUCT_BYTES of scratch; rows <= KERN_ROW_BLOCK.
 * next: where this thread goes on reading weights (kern_product_at(), or NULL), so that few rows
 * need not wait for what lies there.
 */
void KERN_FN(product)(const struct kern_weight *w, uint32_t group, uint32_t groups, uint32_t rows,
	const float *const *x, float *y, size_t ldy, const uint8_t *next, float *panel);

/* Bytes of a group's column; FP4's come in pairs. */
static inline size_t kern_product_column(enum kern_dtype dtype)
{
	return dtype == KERN_F32 ? 64 : dtype == KERN_FP8 ? 16 : dtype == KERN_FP4 ? 8 : 32;
}

/* Where a group's codes begin. */
static inline const uint8_t *kern_product_at(const struct kern_weight *w, size_t group)
{
	return (const uint8_t *)w->data + group * w->k * kern_product_column(w->dtype);
}

#endif
