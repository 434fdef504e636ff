/*
 * The CPU variants: the reference (prefix kern_cpu_) and the fast ones. The row ops are compiled
 * once more for each instruction set under another prefix; products, attention and index scores
 * have vector code instead (fast_*.c). Every slot is filled, and every result has the reference's
 * bits. avx512gfni is avx512 but for the products (table_gfni.c).
 */
#ifndef KERNELS_CPU_VARIANT_H
#define KERNELS_CPU_VARIANT_H

#include "kernels/kern.h"

extern const struct kern_ops kern_cpu_ops, kern_avx2_ops, kern_avx512_ops, kern_avx512gfni_ops;

/* Whether this CPU, and its system, run them. */
bool kern_cpu_has_baseline(void);
bool kern_cpu_has_avx2(void);
bool kern_cpu_has_avx512(void);
bool kern_cpu_has_avx512gfni(void); /* with VBMI, too */

#define KERN_OP(name, abs_tol, rel_tol, doc)                                                       \
	int kern_avx2_##name(const struct kern_##name##_args *a, void *stream);                    \
	int kern_avx512_##name(const struct kern_##name##_args *a, void *stream);
#define KERN_FUSED(name, covers, doc)                                                              \
	int kern_avx2_##name(const struct kern_##name##_args *a, void *stream);                    \
	int kern_avx512_##name(const struct kern_##name##_args *a, void *stream);
#include "kernels/ops.def"
#undef KERN_OP
#undef KERN_FUSED

#define KERN_GFNI_OPS(X) X(linear) X(linear_grouped) X(moe_up) X(moe_down)
#define X(name)          int kern_avx512gfni_##name(const struct kern_##name##_args *a, void *stream);
KERN_GFNI_OPS(X)
#undef X

#endif
