#include "kernels/cpu/run.h"

static void widen_row(const struct kern_embed_args *a, uint32_t row, float *x)
{
	size_t at = (size_t)row * a->d;

	if (a->dtype == KERN_F32) {
		memcpy(x, (const float *)a->table + at, a->d * sizeof(float));
		return;
	}
	for (uint32_t i = 0; i < a->d; i++) {
		uint16_t half = ((const uint16_t *)a->table)[at + i];

		x[i] = a->dtype == KERN_F16 ? kern_from_f16(half) : kern_from_bf16(half);
	}
}

static void embed_part(const void *job, struct kern_cpu_ctx *c, unsigned part, unsigned n)
{
	const struct kern_embed_args *a = job;
	struct kern_part p = kern_part(a->rows, 1, part, n);

	for (size_t t = p.begin; t < p.end; t++) {
		float *x = a->x + t * a->d;

		/* a token below row0 wraps around to more than any n */
		if (a->tokens[t] - a->row0 < a->n)
			widen_row(a, a->tokens[t] - a->row0, x);
		else
			for (uint32_t i = 0; i < a->d; i++)
				x[i] = -0.0F;
	}
}

int KERN_FN(embed)(const struct kern_embed_args *a, void *stream)
{
	if (a->dtype != KERN_F32 && a->dtype != KERN_F16 && a->dtype != KERN_BF16)
		return -EINVAL;
	if (a->row0 > a->vocab || a->n > a->vocab - a->row0)
		return -EINVAL;
	for (uint32_t t = 0; t < a->rows; t++)
		if (a->tokens[t] >= a->vocab)
			return -EINVAL;
	kern_run(stream, (size_t)a->rows * a->d, embed_part, a);
	return 0;
}
