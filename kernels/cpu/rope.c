/* Rotations: angles, heads, the Hadamard transform, index queries. */
#include "kernels/cpu/rotate.h"
#include "kernels/cpu/run.h"
#include "kernels/layout.h"

static void angles_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct kern_rope_angles_args *a = job;
	struct kern_part p = kern_part(a->rows, 1, i, n);

	for (size_t t = p.begin; t < p.end; t++)
		for (uint32_t j = 0; j < KERN_ROPE / 2; j++) {
			float angle = (float)a->pos[t] * a->theta[j];

			a->cs[t * KERN_ROPE + 2 * j] = cosf(angle);
			a->cs[t * KERN_ROPE + 2 * j + 1] = sinf(angle);
		}
}

int KERN_FN(rope_angles)(const struct kern_rope_angles_args *a, void *stream)
{
	kern_run(stream, (size_t)a->rows * KERN_ROPE * 32, angles_part, a);
	return 0;
}

static void rope_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct kern_rope_args *a = job;
	struct kern_part p = kern_part((size_t)a->rows * a->heads, 1, i, n);
	uint32_t nope = a->dim - KERN_ROPE;

	for (size_t r = p.begin; r < p.end; r++) {
		const float *x = a->x + r * a->dim;
		float *y = a->y + r * a->dim;

		if (x != y)
			memcpy(y, x, nope * sizeof(float));
		kern_rotate_row(x + nope, a->cs + r / a->heads * KERN_ROPE, a->inverse, y + nope);
	}
}

int KERN_FN(rope)(const struct kern_rope_args *a, void *stream)
{
	if (a->dim < KERN_ROPE)
		return -EINVAL;
	kern_run(stream, (size_t)a->rows * a->heads * a->dim, rope_part, a);
	return 0;
}

static void hadamard_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct kern_hadamard_args *a = job;
	struct kern_part p = kern_part(a->rows, 1, i, n);

	for (size_t r = p.begin; r < p.end; r++)
		kern_hadamard_row(a->x + r * KERN_INDEX, a->y + r * KERN_INDEX);
}

int KERN_FN(hadamard)(const struct kern_hadamard_args *a, void *stream)
{
	kern_run(stream, (size_t)a->rows * KERN_INDEX * 7, hadamard_part, a);
	return 0;
}

static void qat_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct kern_qat_args *a = job;
	uint32_t dim = a->kind == KERN_QAT_KV ? KERN_HEAD : KERN_INDEX;
	struct kern_part p = kern_part(a->rows, 1, i, n);

	for (size_t r = p.begin; r < p.end; r++) {
		float *y = a->y + r * dim;

		memmove(y, a->x + r * dim, dim * sizeof(float));
		if (a->kind == KERN_QAT_KV)
			kern_qat_kv(y);
		else
			kern_qat_index(y);
	}
}

int KERN_FN(qat)(const struct kern_qat_args *a, void *stream)
{
	kern_run(stream, (size_t)a->rows * KERN_HEAD * 8, qat_part, a);
	return 0;
}

static void index_query_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct kern_index_query_args *a = job;
	struct kern_part p = kern_part((size_t)a->rows * a->heads, 1, i, n);

	for (size_t r = p.begin; r < p.end; r++) {
		float *q = a->q + r * KERN_INDEX, *rot = q + KERN_INDEX - KERN_ROPE;

		kern_rotate_row(rot, a->cs + r / a->heads * KERN_ROPE, false, rot);
		kern_hadamard_row(q, q);
		if (a->qat)
			kern_qat_index(q);
	}
}

int KERN_FN(index_query)(const struct kern_index_query_args *a, void *stream)
{
	kern_run(stream, (size_t)a->rows * a->heads * KERN_INDEX * 8, index_query_part, a);
	return 0;
}
