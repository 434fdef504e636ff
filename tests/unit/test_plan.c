/* The shard plan: what the workers hold together, for small shapes and for Flash and Pro. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/ckpt_fixture.h"
#include "worker/ckpt/memory.h"
#include "worker/ckpt/plan.h"

static struct ckpt *open_dummy(const struct fix_opts *o)
{
	json_t *c = fix_config(o);
	char *text = json_dumps(c, 0);
	struct model_config cfg;
	struct errbuf err = {"", 0};
	struct ckpt *ck;

	if (model_config_parse("c", text, strlen(text), &cfg, &err) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(ckpt_new_dummy(&cfg, &ck), 0);
	free(text);
	json_decref(c);
	return ck;
}

/* Flash or Pro: the numbers of the released configurations that decide shapes. */
static struct ckpt *open_big(bool pro)
{
	struct fix_opts o = {.quantised = true};
	struct ckpt *small = open_dummy(&o), *ck;
	struct model_config cfg = small->cfg;

	ckpt_close(small);
	cfg.hidden = pro ? 7168 : 4096;
	cfg.layers = pro ? 61 : 43;
	cfg.heads = pro ? 128 : 64;
	cfg.q_lora = pro ? 1536 : 1024;
	cfg.o_groups = pro ? 16 : 8;
	cfg.o_lora = 1024;
	cfg.index_heads = 64;
	cfg.experts = pro ? 384 : 256;
	cfg.experts_per_token = 6;
	cfg.inter = pro ? 3072 : 2048;
	cfg.hash_layers = 3;
	cfg.vocab = 129280;
	for (uint32_t i = 0; i < cfg.layers; i++)
		cfg.layer[i] = i < 2   ? (pro ? MODEL_HCA : MODEL_SWA)
			       : i % 2 ? MODEL_HCA
				       : MODEL_CSA;
	assert_int_equal(ckpt_new_dummy(&cfg, &ck), 0);
	return ck;
}

/* Properties of one item by itself. */
static void check_item(const struct ckpt *ck, const struct plan_item *it)
{
	const struct ckpt_entry *e = &ck->entries[it->entry];

	assert_true(it->kind == e->kind && it->layer == e->layer && it->expert == e->expert);
	assert_true(it->rows > 0 && it->row0 + it->rows <= it->all_rows);
	assert_true(it->cols > 0 && it->col0 + it->cols <= it->all_cols);
	assert_int_equal(it->all_rows, e->shape.rows);
	assert_int_equal(it->all_cols, e->shape.cols);
	assert_int_equal(it->bytes, it->rows * it->row_bytes);
	if (it->elem == CKPT_F4_E2M1)
		assert_true(it->col0 % 32 == 0 && it->cols % 32 == 0);
	if (it->scale == CKPT_SCALE_NONE) {
		assert_int_equal(it->scale_bytes, 0);
		return;
	}
	/* exactly the blocks its first and last element lie in, and those between */
	assert_int_equal(it->scale_row0, it->row0 / it->block.rows);
	assert_int_equal(
		it->scale_row0 + it->scale_rows - 1, (it->row0 + it->rows - 1) / it->block.rows);
	assert_int_equal(it->scale_col0, it->col0 / it->block.cols);
	assert_int_equal(
		it->scale_col0 + it->scale_cols - 1, (it->col0 + it->cols - 1) / it->block.cols);
	assert_true(it->scale_row0 + it->scale_rows <= it->scale_all_rows);
	assert_true(it->scale_col0 + it->scale_cols <= it->scale_all_cols);
}

/* How many elements the slices of all ranks cover, and whether they follow each other. */
static void check_cover(const struct ckpt *ck, struct plan *plans, uint32_t world)
{
	size_t *at = calloc(world, sizeof(*at));

	for (size_t i = 0; i < ck->entry_n; i++) {
		const struct ckpt_entry *e = &ck->entries[i];
		enum tensor_split split = tensor_row(e->kind)->split;
		bool expert = e->expert >= 0, full = split == TENSOR_SPLIT_FULL;
		uint64_t covered = 0, next_row = 0, next_col = 0;

		for (uint32_t r = 0; r < world; r++) {
			struct plan *p = &plans[r];
			const struct plan_item *it = &p->items[at[r]];

			if (at[r] == p->n || it->entry != i) {
				assert_false(full);
				continue;
			}
			at[r]++;
			check_item(ck, it);
			covered += it->rows * it->cols;
			if (full || (expert && p->experts_by_id)) {
				assert_int_equal(
					it->rows * it->cols, e->shape.rows * e->shape.cols);
				continue;
			}
			assert_true(it->row0 == next_row || it->rows == it->all_rows);
			assert_true(it->col0 == next_col || it->cols == it->all_cols);
			next_row = it->row0 + it->rows;
			next_col = it->col0 + it->cols;
		}
		assert_int_equal(covered, e->shape.rows * e->shape.cols * (full ? world : 1));
	}
	for (uint32_t r = 0; r < world; r++)
		assert_int_equal(at[r], plans[r].n);
	free(at);
}

static void check_world(const struct ckpt *ck, uint32_t world)
{
	struct plan *plans = calloc(world, sizeof(*plans));
	uint64_t bytes;
	struct errbuf err = {"", 0};

	for (uint32_t r = 0; r < world; r++) {
		if (plan_build(ck, r, world, &plans[r], &err) < 0)
			fail_msg("%s", err.text);
		bytes = 0;
		for (size_t i = 0; i < plans[r].n; i++)
			bytes += plans[r].items[i].bytes + plans[r].items[i].scale_bytes;
		assert_int_equal(bytes, plans[r].bytes);
	}
	check_cover(ck, plans, world);
	for (uint32_t r = 0; r < world; r++)
		plan_fini(&plans[r]);
	free(plans);
}

static void test_ranks_cover_each_split_tensor_exactly_once(void **state)
{
	struct fix_opts q = {.quantised = true}, plain = {0};
	/* three workers; an inner width that 3 x 32 divides, and experts that 3 does not */
	struct fix_opts three = {
		.quantised = true, .heads = 6, .groups = 3, .vocab = 75, .inter = 96, .experts = 5};
	/* the shared expert narrower than the world, experts by id */
	struct fix_opts narrow = {.inter = 5};
	struct ckpt *ck;

	(void)state;
	for (uint32_t w = 1; w <= 8; w *= 2) {
		ck = open_dummy(&q);
		check_world(ck, w);
		ckpt_close(ck);
		ck = open_dummy(&plain);
		check_world(ck, w);
		ckpt_close(ck);
		ck = open_dummy(&narrow);
		check_world(ck, w);
		ckpt_close(ck);
	}
	ck = open_dummy(&three);
	check_world(ck, 1);
	check_world(ck, 3);
	ckpt_close(ck);
}

static void test_split_follows_heads_groups_and_vocabulary(void **state)
{
	struct fix_opts o = {.quantised = true};
	struct ckpt *ck = open_dummy(&o);
	struct errbuf err;
	struct plan p;

	(void)state;
	assert_int_equal(plan_build(ck, 3, 4, &p, &err), 0);
	assert_true(p.experts_by_id); /* 192 / 4 = 48 */
	assert_int_equal(p.expert0, 6);
	assert_int_equal(p.expert_n, 2);
	for (size_t i = 0; i < p.n; i++) {
		const struct plan_item *it = &p.items[i];

		if (it->kind == TENSOR_WQ_B) {
			assert_int_equal(it->row0, 6 * 512);
			assert_int_equal(it->rows, 2 * 512);
		} else if (it->kind == TENSOR_ATTN_SINK) {
			assert_int_equal(it->row0, 6);
			assert_int_equal(it->rows, 2);
		} else if (it->kind == TENSOR_WO_A) { /* rows 144..191: inside block row 1 */
			assert_int_equal(it->row0, 144);
			assert_int_equal(it->rows, 48);
			assert_int_equal(it->scale_row0, 1);
			assert_int_equal(it->scale_rows, 1);
		} else if (it->kind == TENSOR_WO_B) {
			assert_int_equal(it->col0, 144);
			assert_int_equal(it->cols, 48);
			assert_int_equal(it->scale_col0, 1);
		} else if (it->kind == TENSOR_EMBED || it->kind == TENSOR_HEAD) {
			assert_int_equal(it->row0, 54);
			assert_int_equal(it->rows, 18);
		} else if (it->kind == TENSOR_WKV || it->kind == TENSOR_INDEX_WQ_B) {
			assert_int_equal(it->rows, it->all_rows);
		} else if (it->kind == TENSOR_EXPERT_W1) {
			assert_true(it->expert >= 6 && it->rows == 192);
		} else if (it->kind == TENSOR_SHARED_W2) {
			assert_int_equal(it->col0, 144);
		}
	}
	plan_fini(&p);
	/* rank 1 of 4: rows 48..95 of block row 0; rank 2: 96..143 straddles both */
	assert_int_equal(plan_build(ck, 2, 4, &p, &err), 0);
	for (size_t i = 0; i < p.n; i++)
		if (p.items[i].kind == TENSOR_WO_A)
			assert_int_equal(p.items[i].scale_rows, 2);
	plan_fini(&p);
	assert_int_equal(plan_build(ck, 4, 4, &p, &err), -EINVAL);
	assert_int_equal(plan_build(ck, 0, 3, &p, &err), -EINVAL);
	fix_assert_says(err.text, "3 workers", NULL);
	ckpt_close(ck);
}

static void test_flash_and_pro_can_be_planned(void **state)
{
	struct ckpt *flash = open_big(false), *pro = open_big(true);

	(void)state;
	check_world(flash, 8);
	check_world(pro, 16); /* 192-wide slices of the shared expert end inside a block of 128 */
	ckpt_close(flash);
	ckpt_close(pro);
}

static void test_memory_of_formats_and_pages(void **state)
{
	struct fix_opts o = {0};
	struct ckpt *ck = open_dummy(&o);
	struct model_config swa = ck->cfg;
	struct memory_plan p;

	(void)state;
	assert_int_equal(memory_kv_row_bytes(CONF_KV_F32), 2048);
	assert_int_equal(memory_kv_row_bytes(CONF_KV_BF16), 1024);
	assert_int_equal(memory_kv_row_bytes(CONF_KV_FP8), 584);
	assert_int_equal(memory_index_key_bytes(CONF_INDEX_KEY_F32), 512);
	assert_int_equal(memory_index_key_bytes(CONF_INDEX_KEY_BF16), 256);
	assert_int_equal(memory_index_key_bytes(CONF_INDEX_KEY_FP8), 132);
	assert_int_equal(memory_index_key_bytes(CONF_INDEX_KEY_FP4), 68);
	p = memory_plan(&ck->cfg, CONF_KV_FP8, CONF_INDEX_KEY_FP4); /* SWA CSA HCA CSA */
	assert_int_equal(p.page[MEMORY_RAW].tokens, 64);
	assert_int_equal(p.page[MEMORY_RAW].bytes, 4 * 64 * 584);
	assert_int_equal(p.page[MEMORY_CSA].tokens, 256);
	assert_int_equal(p.page[MEMORY_CSA].bytes, 2 * 64 * (584 + 68));
	assert_int_equal(p.page[MEMORY_HCA].tokens, 8192);
	assert_int_equal(p.page[MEMORY_HCA].bytes, 64 * 584);
	assert_int_equal(memory_sequence_bytes(&p, &ck->cfg, 1),
		p.page[0].bytes + p.page[1].bytes + p.page[2].bytes);
	assert_int_equal(memory_sequence_bytes(&p, &ck->cfg, 100000),
		3 * p.page[0].bytes + 391 * p.page[1].bytes + 13 * p.page[2].bytes);
	memset(swa.layer, MODEL_SWA, sizeof(swa.layer));
	p = memory_plan(&swa, CONF_KV_BF16, CONF_INDEX_KEY_BF16);
	assert_int_equal(p.page[MEMORY_CSA].tokens, 0);
	assert_int_equal(p.page[MEMORY_HCA].tokens, 0);
	ckpt_close(ck);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ranks_cover_each_split_tensor_exactly_once),
		cmocka_unit_test(test_split_follows_heads_groups_and_vocabulary),
		cmocka_unit_test(test_flash_and_pro_can_be_planned),
		cmocka_unit_test(test_memory_of_formats_and_pages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
