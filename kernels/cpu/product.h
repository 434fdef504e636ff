/* The vector core of all products; what it promises is at the head of product.c. */
#ifndef KERNELS_CPU_PRODUCT_H
#define KERNELS_CPU_PRODUCT_H

#include "kernels/cpu/run.h"

/*
 * y[rows][..] = x times groups group .. group+groups-1; x is a list of row pointers, y begins at
 * the first group's output. panel: KERN_PRODUCT_BYTES of scratch; rows <= KERN_ROW_BLOCK.
 */
void KERN_FN(product)(const struct kern_weight *w, uint32_t group, uint32_t groups, uint32_t rows,
	const float *const *x, float *y, size_t ldy, float *panel);

#endif
