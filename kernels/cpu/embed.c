#include "kernels/cpu/run.h"

static void embed_part(const void *job, struct kern_cpu_ctx *c, unsigned part, unsigned n)
{
	const struct kern_embed_args *a = job;
	struct kern_part p = kern_part(a->rows, 1, part, n);

	for (size_t t = p.begin; t < p.end; t++) {
		size_t row = (size_t)a->tokens[t] * a->d;
		float *x = a->x + t * KERN_STREAMS * a->d;

		for (uint32_t i = 0; i < a->d; i++)
			x[i] = a->dtype == KERN_F32 ? ((const float *)a->table)[row + i]
			       : a->dtype == KERN_F16
				       ? kern_from_f16(((const uint16_t *)a->table)[row + i])
				       : kern_from_bf16(((const uint16_t *)a->table)[row + i]);
		for (int s = 1; s < KERN_STREAMS; s++)
			memcpy(x + s * a->d, x, a->d * sizeof(float));
	}
}

int KERN_FN(embed)(const struct kern_embed_args *a, void *stream)
{
	if (a->dtype != KERN_F32 && a->dtype != KERN_F16 && a->dtype != KERN_BF16)
		return -EINVAL;
	for (uint32_t t = 0; t < a->rows; t++)
		if (a->tokens[t] >= a->vocab)
			return -EINVAL;
	kern_run(stream, (size_t)a->rows * a->d * KERN_STREAMS, embed_part, a);
	return 0;
}
