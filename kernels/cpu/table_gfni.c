/* The table of the variant that shares all but the products with avx512. */
#include "kernels/cpu/variant.h"

/* A later entry of the same op takes the place of avx512's. */
#pragma GCC diagnostic ignored "-Woverride-init"

#define KERN_OP(name, abs_tol, rel_tol, doc) .name = kern_avx512_##name,
#define KERN_FUSED(name, covers, doc)        .name = kern_avx512_##name,
#define X(name)                              .name = kern_avx512gfni_##name,
const struct kern_ops kern_avx512gfni_ops = {.backend = KERN_CPU,
	.variant = "avx512gfni",
#include "kernels/ops.def"
	KERN_GFNI_OPS(X)};
