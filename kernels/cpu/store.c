/* Rows into pages: encoded as they are, or normed, rotated and encoded in one pass. */
#include "kernels/cpu/rotate.h"
#include "kernels/cpu/run.h"
#include "kernels/layout.h"

/* Every row must have its page before anything is written. */
static int check_rows(
	const struct kern_batch *b, const struct kern_rows *r, const struct kern_pool *pool)
{
	enum kern_class c = kern_class_of(r->ratio);

	for (uint32_t i = 0; i < r->n; i++)
		if (!kern_page(pool, &b->seqs[r->seq[i]], c, r->index[i]))
			return -EINVAL;
	return 0;
}

static void *row_page(const struct kern_batch *b, const struct kern_rows *r,
	const struct kern_pool *pool, size_t i)
{
	return kern_page(pool, &b->seqs[r->seq[i]], kern_class_of(r->ratio), r->index[i]);
}

static void kv_put_row(const struct kern_kv_put_args *a, size_t i, const float *x)
{
	void *page = row_page(a->batch, a->rows, &a->pool, i);

	kern_kv_encode(a->format, kern_kv_at(page, a->format, a->rows->index[i] % KERN_PAGE), x);
}

static void index_put_row(const struct kern_index_put_args *a, size_t i, const float *x)
{
	void *page = row_page(a->batch, a->rows, &a->pool, i);

	kern_index_encode(
		a->format, kern_index_at(page, a->format, a->rows->index[i] % KERN_PAGE), x);
}

static void kv_put_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct kern_kv_put_args *a = job;
	struct kern_part p = kern_part(a->rows->n, 1, i, n);

	for (size_t r = p.begin; r < p.end; r++)
		kv_put_row(a, r, a->x + r * KERN_HEAD);
}

static int kv_check(const struct kern_kv_put_args *a)
{
	if (!kern_kv_row_bytes(a->format))
		return -EINVAL;
	return check_rows(a->batch, a->rows, &a->pool);
}

int KERN_FN(kv_put)(const struct kern_kv_put_args *a, void *stream)
{
	if (kv_check(a))
		return -EINVAL;
	kern_run(stream, (size_t)a->rows->n * KERN_HEAD * 4, kv_put_part, a);
	return 0;
}

static void index_put_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct kern_index_put_args *a = job;
	struct kern_part p = kern_part(a->rows->n, 1, i, n);

	for (size_t r = p.begin; r < p.end; r++)
		index_put_row(a, r, a->x + r * KERN_INDEX);
}

static int index_check(const struct kern_index_put_args *a)
{
	if (!kern_index_value_bytes(a->format) || a->rows->ratio == 1)
		return -EINVAL;
	return check_rows(a->batch, a->rows, &a->pool);
}

int KERN_FN(index_put)(const struct kern_index_put_args *a, void *stream)
{
	if (index_check(a))
		return -EINVAL;
	kern_run(stream, (size_t)a->rows->n * KERN_INDEX * 4, index_put_part, a);
	return 0;
}

static void kv_store_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct kern_kv_store_args *a = job;
	struct kern_part p = kern_part(a->put.rows->n, 1, i, n);
	float x[KERN_HEAD];

	for (size_t r = p.begin; r < p.end; r++) {
		kern_norm_row(a->put.x + r * KERN_HEAD, a->w, KERN_HEAD, a->eps, x);
		kern_rotate_row(x + KERN_NOPE, a->cs + r * KERN_ROPE, false, x + KERN_NOPE);
		if (a->qat)
			kern_qat_kv(x);
		kv_put_row(&a->put, r, x);
	}
}

int KERN_FN(kv_store)(const struct kern_kv_store_args *a, void *stream)
{
	if (kv_check(&a->put))
		return -EINVAL;
	kern_run(stream, (size_t)a->put.rows->n * KERN_HEAD * 8, kv_store_part, a);
	return 0;
}

static void index_store_part(const void *job, struct kern_cpu_ctx *c, unsigned i, unsigned n)
{
	const struct kern_index_store_args *a = job;
	struct kern_part p = kern_part(a->put.rows->n, 1, i, n);
	float x[KERN_INDEX], *rot = x + KERN_INDEX - KERN_ROPE;

	for (size_t r = p.begin; r < p.end; r++) {
		kern_norm_row(a->put.x + r * KERN_INDEX, a->w, KERN_INDEX, a->eps, x);
		kern_rotate_row(rot, a->cs + r * KERN_ROPE, false, rot);
		kern_hadamard_row(x, x);
		if (a->qat)
			kern_qat_index(x);
		index_put_row(&a->put, r, x);
	}
}

int KERN_FN(index_store)(const struct kern_index_store_args *a, void *stream)
{
	if (index_check(&a->put))
		return -EINVAL;
	kern_run(stream, (size_t)a->put.rows->n * KERN_INDEX * 16, index_store_part, a);
	return 0;
}
