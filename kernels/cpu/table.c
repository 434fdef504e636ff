/* The table of one variant: every op under its prefix. */
#include "kernels/cpu/run.h"

#ifndef KERN_VARIANT
#define KERN_VARIANT "reference"
#endif

#define KERN_OP(name, abs_tol, rel_tol, doc) .name = KERN_FN(name),
#define KERN_FUSED(name, covers, doc)        .name = KERN_FN(name),
const struct kern_ops KERN_FN(ops) = {
	.backend = KERN_CPU,
	.variant = KERN_VARIANT,
#include "kernels/ops.def"
};
