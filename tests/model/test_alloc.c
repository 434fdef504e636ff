/*
 * A step allocates nothing, on any of its threads, whatever it runs; so no buffer can grow with a
 * prompt. The allocators are wrapped by the linker (tests/worker.am) and count while rank_step
 * runs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "tests/model/harness_impl.h"

static atomic_int in_step, allocated;

static void note(void)
{
	if (atomic_load(&in_step))
		atomic_fetch_add(&allocated, 1);
}

/* ---- what the linker puts in place of the real ones ---------------------------------------------
 */

#define WRAPPED(type, name, args)                                                                  \
	type __real_##name args;                                                                   \
	type __wrap_##name args;

WRAPPED(void *, malloc, (size_t n))
WRAPPED(void *, calloc, (size_t n, size_t each))
WRAPPED(void *, realloc, (void *p, size_t n))
WRAPPED(void *, aligned_alloc, (size_t align, size_t n))
WRAPPED(int, posix_memalign, (void **ret, size_t align, size_t n))
WRAPPED(void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t off))
WRAPPED(int, rank_step,
	(struct rank * r, const struct msg_step_view *step, void *reply, size_t cap,
		size_t *ret_bytes, struct errbuf *err))

void *__wrap_malloc(size_t n)
{
	note();
	return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t each)
{
	note();
	return __real_calloc(n, each);
}

void *__wrap_realloc(void *p, size_t n)
{
	note();
	return __real_realloc(p, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
	note();
	return __real_aligned_alloc(align, n);
}

int __wrap_posix_memalign(void **ret, size_t align, size_t n)
{
	note();
	return __real_posix_memalign(ret, align, n);
}

void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t off)
{
	note();
	return __real_mmap(at, n, prot, flags, fd, off);
}

int __wrap_rank_step(struct rank *r, const struct msg_step_view *step, void *reply, size_t cap,
	size_t *ret_bytes, struct errbuf *err)
{
	int ret;

	atomic_fetch_add(&in_step, 1);
	ret = __real_rank_step(r, step, reply, cap, ret_bytes, err);
	atomic_fetch_sub(&in_step, 1);
	return ret;
}

/* ---- tests --------------------------------------------------------------------------------------
 */

static void test_hook_sees_an_allocation_in_a_step(void **state)
{
	void *volatile p; /* or compilers leave the pair out */

	(void)state;
	atomic_store(&allocated, 0);
	atomic_store(&in_step, 1);
	p = malloc(16);
	atomic_store(&in_step, 0);
	free(p);
	assert_int_equal(atomic_load(&allocated), 1);
	p = malloc(16);
	free(p);
	assert_int_equal(atomic_load(&allocated), 1);
}

/* Sizes that a rank says it holds, before and after. */
static void assert_same_memory(struct harness *h, const struct worker_capacity *before)
{
	struct worker_capacity after;

	rank_capacity(h->ranks[0], &after);
	assert_int_equal(after.scratch_bytes, before->scratch_bytes);
	assert_int_equal(after.pool_bytes, before->pool_bytes);
	assert_int_equal(after.bytes_per_seq, before->bytes_per_seq);
	assert_int_equal(
		after.scratch_bytes, h->ranks[0]->work.bytes + h->ranks[0]->ctx.scratch_bytes);
}

static void test_prompts_decode_and_batches_allocate_nothing(void **state)
{
	enum { LENGTH = 6000, BATCH = 4, NEW = 3 };
	bool subset = getenv("HEDDLE_TEST_SUBSET"); /* a shorter prompt, and fewer entries chosen */
	struct conf conf = harness_conf();
	struct worker_capacity before;
	struct harness *h;
	uint32_t *tokens = malloc(sizeof(*tokens) * LENGTH), out[NEW];
	uint32_t length = subset ? LENGTH / 8 : LENGTH;

	(void)state;
	assert_non_null(tokens);
	if (subset)
		conf.attention_index_topk = 64;
	h = harness_open(&(struct harness_opts){
		.conf = &conf, .threads = 2, .spin_ns = 20000, .page_seed = 7});
	before = *harness_capacity(h);
	for (uint32_t i = 0; i < LENGTH; i++)
		tokens[i] = 2 + i * 2654435761u % 4000;
	atomic_store(&allocated, 0);
	/* past index_topk entries (2048 tokens, 256 in the subset), so that index scores compete */
	harness_generate(h, 0, tokens, length, 512, NEW, out, NULL, NULL);
	for (uint32_t s = 1; s < BATCH; s++)
		harness_feed(h, s, tokens + s, 300 * s, 0, NULL);
	for (int i = 0; i < NEW; i++) {
		struct harness_part parts[BATCH];

		for (uint32_t s = 0; s < BATCH; s++)
			parts[s] = (struct harness_part){
				.slot = s, .n = s + 1, .tokens = tokens, .sample = true};
		harness_run(h, parts, BATCH);
	}
	assert_int_equal(atomic_load(&allocated), 0);
	assert_same_memory(h, &before);
	free(tokens);
	harness_close(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hook_sees_an_allocation_in_a_step),
		cmocka_unit_test(test_prompts_decode_and_batches_allocate_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
