/* RMSNorm and what is fused with it: query heads. */
#include "kernels/cpu/rotate.h"
#include "kernels/cpu/run.h"

static void rmsnorm_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct kern_rmsnorm_args *a = job;
	struct kern_part p = kern_part(a->rows, 1, i, n);

	for (size_t t = p.begin; t < p.end; t++)
		kern_norm_row(a->x + t * a->ldx, a->w, a->d, a->eps, a->y + t * a->ldy);
}

int KERN_FN(rmsnorm)(const struct kern_rmsnorm_args *a, void *stream)
{
	kern_run(stream, (size_t)a->rows * a->d, rmsnorm_part, a);
	return 0;
}

static void q_norm_rope_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct kern_q_norm_rope_args *a = job;
	struct kern_part p = kern_part((size_t)a->rows * a->heads, 1, i, n);

	for (size_t r = p.begin; r < p.end; r++) {
		float *x = a->x + r * a->dim;

		kern_norm_row(x, NULL, a->dim, a->eps, x);
		kern_rotate_row(x + a->dim - KERN_ROPE, a->cs + r / a->heads * KERN_ROPE, false,
			x + a->dim - KERN_ROPE);
	}
}

int KERN_FN(q_norm_rope)(const struct kern_q_norm_rope_args *a, void *stream)
{
	if (a->dim < KERN_ROPE)
		return -EINVAL;
	kern_run(stream, (size_t)a->rows * a->heads * a->dim, q_norm_rope_part, a);
	return 0;
}
