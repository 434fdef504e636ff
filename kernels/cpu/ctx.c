#include "kernels/cpu/ctx.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "kernels/cpu/run.h"

#define HUGE_BYTES (2u << 20)

size_t kern_cpu_scratch_bytes(const struct kern_cpu_limits *l, unsigned n)
{
	size_t pairs = (size_t)l->max_tokens * l->experts_per_token;
	size_t cand = 8 * (size_t)KERN_TOPK_CAP(l->topk);
	size_t need = 0, x, max_k = MAX((size_t)l->max_k, (size_t)l->heads * KERN_HEAD);

	x = (size_t)KERN_ROW_BLOCK * max_k * sizeof(float); /* rounded activations */
	x += n * (max_k * sizeof(float) + KERN_PRODUCT_BYTES +
			 KERN_ROW_BLOCK * KERN_PANEL_N * sizeof(float));
	need = MAX(need, x);
	x = (pairs + (size_t)l->experts + 2) * sizeof(uint32_t);
	x += n * ((size_t)KERN_ROW_BLOCK * (l->max_k + 2 * KERN_PANEL_N) * sizeof(float) +
			 2 * max_k * sizeof(float) + KERN_PRODUCT_BYTES +
			 KERN_ROW_BLOCK * KERN_PANEL_N * sizeof(float));
	need = MAX(need, x);
	x = n *
	    ((size_t)KERN_KEY_TILE * (KERN_HEAD + 16) +
		    (size_t)l->heads * (KERN_KEY_TILE + KERN_HEAD + 3) + 128) *
	    sizeof(float);
	need = MAX(need, x);
	x = KERN_SELECT_ROWS * (cand + KERN_SELECT_CHUNK * sizeof(float) +
				       (size_t)l->index_heads * sizeof(float)) +
	    n * (2 * cand + (size_t)l->index_heads * sizeof(float) +
			2 * KERN_PAGE * KERN_INDEX * sizeof(float));
	need = MAX(need, x);
	x = n * 8 * (size_t)MAX(l->world, 1u) * l->topk;
	need = MAX(need, x);
	return ALIGN_UP(need + (n + 8) * 4096, 4096);
}

int kern_cpu_ctx_init(
	struct kern_cpu_ctx *c, const struct kern_cpu_limits *l, unsigned n, uint64_t spin_ns)
{
	struct kern_cpu_ctx made = {
		.n = MAX(n, 1u),
		.serial_work = spin_ns ? KERN_SERIAL_SPINNING : KERN_SERIAL_SLEEPING,
	};
	void *p;
	int rc;

	made.scratch_bytes = kern_cpu_scratch_bytes(l, made.n);
	if (posix_memalign(&p, HUGE_BYTES, made.scratch_bytes))
		return -ENOMEM;
	(void)madvise(p, made.scratch_bytes, MADV_HUGEPAGE);
	made.scratch = p;
	rc = kern_threads_new(made.n, spin_ns, &made.threads);
	if (rc) {
		free(p);
		return rc;
	}
	*c = made;
	return 0;
}

void kern_cpu_ctx_free(struct kern_cpu_ctx *c)
{
	kern_threads_free(c->threads);
	free(c->scratch);
	*c = (struct kern_cpu_ctx){0};
}
