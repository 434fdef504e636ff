/* The table of ops, and which of their variants this CPU runs. */
#include "kernels/kern.h"

#include <string.h>

#include "kernels/cpu/variant.h"

#define KERN_OP(name, abs_tol, rel_tol, doc) {#name, NULL, doc, abs_tol, rel_tol},
#define KERN_FUSED(name, covers, doc)        {#name, #covers, doc, 0, 0},
const struct kern_op_info kern_op_table[KERN_OP__COUNT] = {
#include "kernels/ops.def"
};
#undef KERN_OP
#undef KERN_FUSED

/* Fastest first. */
static const struct {
	const char *name;
	bool (*runs)(void);
	const struct kern_ops *ops;
} CPU_VARIANTS[] = {
	{"avx512gfni", kern_cpu_has_avx512gfni, &kern_avx512gfni_ops},
	{"avx512", kern_cpu_has_avx512, &kern_avx512_ops},
	{"avx2", kern_cpu_has_avx2, &kern_avx2_ops},
	{"reference", kern_cpu_has_baseline, &kern_cpu_ops},
};

int kern_ops_get(enum kern_backend backend, const char *variant, struct kern_ops *ret_ops,
	struct errbuf *err)
{
	bool any = !variant || !strcmp(variant, "auto");

	if (backend != KERN_CPU)
		return err_set(err, -ENOTSUP, EXIT_CONFIG_ERR,
			"this build has no kernels for backend = cuda; use cpu");
	for (size_t i = 0; i < ARRAY_LEN(CPU_VARIANTS); i++) {
		if (!any && strcmp(variant, CPU_VARIANTS[i].name))
			continue;
		if (CPU_VARIANTS[i].runs()) {
			*ret_ops = *CPU_VARIANTS[i].ops;
			return 0;
		}
		if (!any)
			return err_set(err, -ENOTSUP, EXIT_CONFIG_ERR,
				"this CPU does not run the %s kernels", variant);
	}
	return err_set(err, -EINVAL, EXIT_CONFIG_ERR,
		"no CPU kernels called '%s': auto, reference, avx2, avx512 or avx512gfni", variant);
}
