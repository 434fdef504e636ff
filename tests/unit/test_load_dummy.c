/* load=dummy: the same weights, however many workers share them out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/ckpt_fixture.h"
#include "worker/ckpt/load.h"

/* A dummy put together again from its slices. */
struct whole {
	const struct ckpt *ck;
	uint8_t **data; /* by entry */
};

static int dummy_rows(void *user, const struct load_rows *rows, struct errbuf *err)
{
	const struct plan_item *it = rows->item;
	struct whole *w = user;
	uint64_t stride = ckpt_elem_bytes(it->elem, it->all_cols);
	uint64_t at = (it->row0 + rows->first) * stride + ckpt_elem_bytes(it->elem, it->col0);

	(void)err;
	for (uint64_t i = 0; i < rows->n; i++)
		memcpy(w->data[it->entry] + i * stride + at, rows->data + i * rows->stride,
			it->row_bytes);
	return 0;
}

static struct whole dummy_whole(const struct ckpt *ck, uint32_t world, uint64_t seed)
{
	struct whole w = {ck, calloc(ck->entry_n, sizeof(uint8_t *))};
	struct load_ops ops = {dummy_rows, NULL, &w};
	struct load_opts lo = {.dummy_seed = seed, .threads = world, .chunk_bytes = 4096 * world};
	struct errbuf err = {"", 0};

	for (size_t i = 0; i < ck->entry_n; i++)
		w.data[i] = malloc(ck->entries[i].data.bytes);
	for (uint32_t r = 0; r < world; r++) {
		struct plan p;

		assert_int_equal(plan_build(ck, r, world, &p, &err), 0);
		if (load_run(ck, &p, &lo, &ops, NULL, &err) < 0)
			fail_msg("%s", err.text);
		plan_fini(&p);
	}
	return w;
}

static void whole_free(struct whole *w)
{
	for (size_t i = 0; i < w->ck->entry_n; i++)
		free(w->data[i]);
	free(w->data);
}

static void test_dummy_is_one_model_whatever_the_split(void **state)
{
	struct fix_opts o = {.quantised = true};
	struct fix_model *m = fix_new(&o);
	struct errbuf err;
	struct ckpt *ck;
	struct whole one, other;
	bool differs = false;

	(void)state;
	fix_write(m);
	assert_int_equal(ckpt_open_dummy(m->dir, &ck, &err), 0);
	one = dummy_whole(ck, 1, 5);
	for (uint32_t world = 2; world <= 8; world *= 2) {
		other = dummy_whole(ck, world, 5);
		for (size_t i = 0; i < ck->entry_n; i++)
			assert_memory_equal(one.data[i], other.data[i], ck->entries[i].data.bytes);
		whole_free(&other);
	}
	other = dummy_whole(ck, 1, 6);
	for (size_t i = 0; i < ck->entry_n; i++)
		differs |= memcmp(one.data[i], other.data[i], ck->entries[i].data.bytes) != 0;
	assert_true(differs);
	whole_free(&other);
	whole_free(&one);
	ckpt_close(ck);
	fix_free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_dummy_is_one_model_whatever_the_split),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
