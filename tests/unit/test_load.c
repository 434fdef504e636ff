/* Reading a shard: every slice equals what direct slicing of the whole tensor gives. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/ckpt_fixture.h"
#include "worker/ckpt/load.h"
#include "worker/ckpt/load_piece.h"
#include "worker/ckpt/values.h"

/* One load: its callbacks check each slice against the model in memory. */
struct run {
	struct fix_model *m;
	const struct ckpt *ck;
	bool hf;
	size_t placed, done, open, most_open;
	void **held; /* what place() gave and done() has not freed: two for each entry */
	uint64_t last, total;
	int fail_place, fail_done; /* at this call */
	uint64_t cancel_at;
	bool compare;
};

static int place(void *user, const struct plan_item *it, void **ret_data, void **ret_scales,
	struct errbuf *err)
{
	struct run *r = user;

	r->placed++;
	r->open++;
	r->most_open = MAX(r->most_open, r->open);
	if (r->fail_place && (int)r->placed == r->fail_place)
		return err_set(err, -ENOMEM, 71, "no place");
	*ret_data = r->held[2 * it->entry] = malloc(it->bytes);
	memset(*ret_data, 0xa5, it->bytes);
	assert_true((ret_scales != NULL) == (it->scale_bytes != 0));
	if (ret_scales) {
		*ret_scales = r->held[2 * it->entry + 1] = malloc(it->scale_bytes);
		memset(*ret_scales, 0xa5, it->scale_bytes);
	}
	return 0;
}

/* Rows x row_bytes of `all`, whose rows have stride bytes, from (row0, byte0) on. */
static void check_slice(const uint8_t *have, const uint8_t *all, uint64_t row0, uint64_t rows,
	uint64_t byte0, uint64_t row_bytes, uint64_t stride)
{
	for (uint64_t i = 0; i < rows; i++)
		assert_memory_equal(
			have + i * row_bytes, all + (row0 + i) * stride + byte0, row_bytes);
}

static void compare(struct run *r, const struct plan_item *it, const void *data, const void *scales)
{
	char name[TENSOR_NAME_MAX], scale[TENSOR_NAME_MAX + 32];
	uint64_t stride = ckpt_elem_bytes(it->elem, it->all_cols), part = 0;
	struct fix_tensor *t;

	tensor_name(it->kind, it->layer, it->expert, name);
	t = fix_find(r->m, name);
	if (!t && r->hf) {
		assert_true(tensor_hf_name(it->kind, it->layer, 0, name));
		snprintf(scale, sizeof(scale), "model.%s", name);
		t = fix_find(r->m, scale);
		t = t ? t : fix_find(r->m, name);
		if (it->kind == TENSOR_EXPERT_W2)
			part = (uint64_t)it->expert * it->all_rows;
		else if (it->expert >= 0)
			part = (2 * (uint64_t)it->expert + (it->kind == TENSOR_EXPERT_W3)) *
			       it->all_rows;
	}
	assert_non_null(t);
	check_slice(data, t->data, part + it->row0, it->rows, ckpt_elem_bytes(it->elem, it->col0),
		it->row_bytes, stride);
	if (!it->scale_bytes)
		return;
	snprintf(scale, sizeof(scale), "%.*s.%s", (int)(strlen(name) - 7), name,
		it->scale == CKPT_SCALE_F32 ? "weight_scale_inv" : "scale");
	t = fix_find(r->m, scale);
	assert_non_null(t);
	check_slice(scales, t->data, it->scale_row0, it->scale_rows,
		ckpt_scale_bytes(it->scale, it->scale_col0),
		ckpt_scale_bytes(it->scale, it->scale_cols),
		ckpt_scale_bytes(it->scale, it->scale_all_cols));
}

static int done(
	void *user, const struct plan_item *it, void *data, void *scales, struct errbuf *err)
{
	struct run *r = user;
	int ret = 0;

	r->open--;
	r->done++;
	if (r->compare)
		compare(r, it, data, scales);
	if (r->fail_done && (int)r->done == r->fail_done)
		ret = err_set(err, -EPROTO, 70, "not wanted");
	free(data);
	free(scales);
	r->held[2 * it->entry] = r->held[2 * it->entry + 1] = NULL;
	return ret;
}

static int progress(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
	struct run *r = user;

	assert_true(done_bytes > r->last && done_bytes <= total_bytes);
	r->last = done_bytes;
	r->total = total_bytes;
	return r->cancel_at && done_bytes >= r->cancel_at;
}

static int load(struct run *r, uint32_t rank, uint32_t world, const struct load_opts *opts,
	struct load_stats *stats, struct errbuf *err)
{
	struct load_ops ops = {place, done, progress, r};
	struct plan p;
	int ret;

	err->text[0] = '\0';
	assert_int_equal(plan_build(r->ck, rank, world, &p, err), 0);
	r->placed = r->done = r->open = r->most_open = r->last = 0;
	r->held = calloc(2 * r->ck->entry_n, sizeof(void *));
	ret = load_run(r->ck, &p, opts, &ops, stats, err);
	if (ret == 0) {
		assert_int_equal(r->done, p.n);
		assert_int_equal(r->last, p.bytes);
	}
	for (size_t i = 0; i < 2 * r->ck->entry_n; i++) {
		assert_true(ret < 0 || !r->held[i]);
		free(r->held[i]);
	}
	free(r->held);
	plan_fini(&p);
	return ret;
}

static void load_all(const struct fix_opts *o, const uint32_t *worlds, const struct load_opts *lo)
{
	struct fix_model *m = fix_new(o);
	struct run r = {.m = m, .compare = true, .hf = o->hf_names};
	struct errbuf err = {"", 0};
	struct load_stats st;
	struct ckpt *ck;

	fix_write(m);
	if (ckpt_open(m->dir, &ck, &err) < 0)
		fail_msg("%s", err.text);
	r.ck = ck;
	for (; *worlds; worlds++) {
		for (uint32_t rank = 0; rank < *worlds; rank++) {
			if (load(&r, rank, *worlds, lo, &st, &err) < 0)
				fail_msg("%s", err.text);
			assert_true(r.most_open <= (lo && lo->depth ? lo->depth : 8));
		}
	}
	ckpt_close(ck);
	fix_free(m);
}

static const uint32_t powers[] = {1, 2, 4, 8, 0};
static const uint32_t one_three[] = {1, 3, 0};

static void test_slices_of_every_world_equal_direct_slicing(void **state)
{
	(void)state;
	load_all(&(struct fix_opts){.quantised = true, .shards = 2}, powers, NULL);
	load_all(&(struct fix_opts){.quantised = true, .f32_scales = true}, powers, NULL);
	load_all(&(struct fix_opts){.inter = 50, .shards = 3, .i32_ids = true}, powers, NULL);
	load_all(&(struct fix_opts){.hf_names = true}, powers, NULL);
	load_all(&(struct fix_opts){.quantised = true,
			 .heads = 6,
			 .groups = 3,
			 .vocab = 75,
			 .inter = 96,
			 .experts = 5},
		one_three, NULL);
}

static void test_small_chunks_and_depths_give_the_same(void **state)
{
	struct fix_opts o = {.quantised = true, .shards = 2};

	(void)state;
	load_all(&o, powers, &(struct load_opts){.depth = 1, .chunk_bytes = 4096});
	load_all(&o, powers, &(struct load_opts){.depth = 3, .chunk_bytes = 12288});
	load_all(&o, powers, &(struct load_opts){.depth = 64, .chunk_bytes = 4096});
}

static void test_direct_reads_give_the_same(void **state)
{
	struct fix_opts o = {.quantised = true, .shards = 2};

	(void)state; /* where the file system has no O_DIRECT this is the buffered way once more */
	load_all(&o, powers, &(struct load_opts){.direct = LOAD_DIRECT_ON, .chunk_bytes = 8192});
}

/* A wide column slice: rows of 16 KB and more are read one by one. */
static void test_wide_columns_read_only_the_slice(void **state)
{
	struct fix_opts o = {.hidden = 32, .inter = 32768, .experts = 2, .vocab = 8};
	struct fix_model *m = fix_new(&o);
	struct run r = {.m = m, .compare = true};
	struct load_stats st;
	struct errbuf err;
	struct ckpt *ck;

	(void)state;
	fix_write(m);
	assert_int_equal(ckpt_open(m->dir, &ck, &err), 0);
	r.ck = ck;
	for (uint32_t rank = 0; rank < 2; rank++) {
		assert_int_equal(load(&r, rank, 2, NULL, &st, &err), 0);
		/* only wo_b's narrow columns are read past: less than 2 % here */
		assert_true(st.read_bytes < r.total + r.total / 50);
	}
	ckpt_close(ck);
	fix_free(m);
}

static void test_pieces_tile_a_slice(void **state)
{
	uint64_t rng = fix_seed();

	(void)state;
	for (int i = 0; i < 3000; i++) {
		struct load_part p = {.offset = fix_random(&rng) % 1000};
		uint64_t chunk = 4096 * (1 + fix_random(&rng) % 8), at = 0, total;

		p.rows = 1 + fix_random(&rng) % 200;
		p.row_bytes = 1 + fix_random(&rng) % (i % 2 ? 100 : 40000);
		p.stride = p.row_bytes + fix_random(&rng) % 5000;
		total = p.rows * p.row_bytes;
		while (at < total) {
			struct load_piece piece = load_piece_at(&p, at, chunk);
			uint64_t row = at / p.row_bytes, in = at % p.row_bytes;

			assert_int_equal(piece.at, at);
			assert_int_equal(piece.offset, p.offset + row * p.stride + in);
			assert_true(load_piece_bytes(&piece) > 0 && piece.span >= piece.row_bytes);
			assert_true(piece.span <= MAX(chunk, (uint64_t)LOAD_WIDE_BYTES));
			assert_true(piece.rows == 1 || piece.row_bytes == p.row_bytes);
			at += load_piece_bytes(&piece);
		}
		assert_int_equal(at, total);
	}
}

/* Changes bytes of the model, writes it, expects load_run to refuse. */
static void expect_refusal(struct fix_model *m, int ret, const char *a, const char *b)
{
	struct run r = {.m = m};
	struct errbuf err = {"", 0};
	struct ckpt *ck;

	fix_write(m);
	assert_int_equal(ckpt_open(m->dir, &ck, &err), 0);
	r.ck = ck;
	assert_int_equal(load(&r, 0, 1, NULL, NULL, &err), ret);
	fix_assert_says(err.text, a, b, NULL);
	assert_int_equal(err.exit_code, EXIT_DATA_ERR);
	ckpt_close(ck);
}

static void test_bad_scales_and_ids_are_refused_at_load(void **state)
{
	struct fix_opts o = {.quantised = true, .f32_scales = true};
	struct fix_model *m = fix_new(&o);
	struct fix_tensor *t = fix_find(m, "layers.1.ffn.experts.3.w1.scale");
	float nan = __builtin_nanf(""), old;
	int64_t id = 8, zero = 0;
	uint8_t byte = t->data[160 / 32 * 7 + 2];

	(void)state;
	t->data[160 / 32 * 7 + 2] = 255;
	expect_refusal(m, -EINVAL, "layers.1.ffn.experts.3.w1.weight", "row 7, column 2 is 255");
	t->data[160 / 32 * 7 + 2] = byte;
	t = fix_find(m, "layers.2.attn.wo_a.weight_scale_inv");
	memcpy(&old, t->data + 4 * 5, 4);
	memcpy(t->data + 4 * 5, &nan, 4);
	expect_refusal(m, -EINVAL, "layers.2.attn.wo_a.weight", "row 1, column 1 is not finite");
	memcpy(t->data + 4 * 5, &old, 4);
	t = fix_find(m, "layers.1.ffn.gate.tid2eid");
	memcpy(t->data + 8 * 2 * 70, &id, 8);
	expect_refusal(m, -EINVAL, "layers.1.ffn.gate.tid2eid", "token 70");
	memcpy(t->data + 8 * 2 * 70, &zero, 8);
	memcpy(t->data + 8 * 2 * 70 + 8, &zero, 8);
	expect_refusal(m, -EINVAL, "layers.1.ffn.gate.tid2eid", "different ids below 8");
	fix_free(m);
}

static void test_values_are_judged_at_their_edges(void **state)
{
	uint8_t bytes[6] = {0, 254, 1, 127, 254, 254};
	float f[3] = {0, 1, 3.0e38F};
	int32_t ids[4] = {0, 7, 7, 0};

	(void)state;
	assert_int_equal(values_bad_scale(CKPT_SCALE_E8M0, bytes, 6), -1);
	bytes[5] = 255;
	assert_int_equal(values_bad_scale(CKPT_SCALE_E8M0, bytes, 6), 5);
	assert_int_equal(values_bad_scale(CKPT_SCALE_F32, f, 3), -1);
	f[2] = -1;
	assert_int_equal(values_bad_scale(CKPT_SCALE_F32, f, 3), 2);
	f[0] = __builtin_inff();
	assert_int_equal(values_bad_scale(CKPT_SCALE_F32, f, 3), 0);
	assert_int_equal(values_bad_ids(CKPT_I32, ids, 2, 2, 8), -1);
	assert_int_equal(values_bad_ids(CKPT_I32, ids, 2, 2, 7), 0);
	ids[2] = -1;
	assert_int_equal(values_bad_ids(CKPT_I32, ids, 2, 2, 8), 1);
}

static void test_file_cut_after_opening_is_refused(void **state)
{
	struct fix_opts o = {.quantised = true};
	struct fix_model *m = fix_new(&o);
	struct run r = {.m = m};
	struct errbuf err;
	struct ckpt *ck;
	int null;

	(void)state;
	fix_write(m);
	assert_int_equal(ckpt_open(m->dir, &ck, &err), 0);
	r.ck = ck;
	for (int direct = LOAD_DIRECT_OFF; direct <= LOAD_DIRECT_ON; direct++) {
		struct load_opts lo = {.direct = (enum load_direct)direct};

		assert_int_equal(truncate(fix_path(m, "model.safetensors"),
					 (off_t)ck->files[0].bytes - 100000 + direct),
			0);
		assert_int_equal(load(&r, 0, 2, &lo, NULL, &err), -ENODATA);
		fix_assert_says(
			err.text, "model.safetensors: reading ", "at byte", "the file ends", NULL);
		assert_int_equal(err.exit_code, EXIT_DATA_ERR);
	}
	null = open("/dev/null", O_WRONLY);
	assert_true(null >= 0);
	dup2(null, ck->files[0].fd); /* a descriptor that cannot be read: as an I/O error would */
	close(null);
	assert_int_equal(
		load(&r, 0, 2, &(struct load_opts){.direct = LOAD_DIRECT_OFF}, NULL, &err), -EBADF);
	fix_assert_says(err.text, "reading ", "Bad file descriptor", NULL);
	assert_int_equal(err.exit_code, EXIT_OS_ERR);
	ckpt_close(ck);
	fix_free(m);
}

static void test_callers_failures_and_cancel_end_the_load(void **state)
{
	struct fix_opts o = {.quantised = true, .shards = 2};
	struct fix_model *m = fix_new(&o);
	struct run r = {.m = m};
	struct errbuf err;
	struct ckpt *ck;

	(void)state;
	fix_write(m);
	assert_int_equal(ckpt_open(m->dir, &ck, &err), 0);
	r.ck = ck;
	for (int i = 1; i < 60; i += 7) {
		r.fail_place = i;
		assert_int_equal(load(&r, 1, 2, NULL, NULL, &err), -ENOMEM);
		fix_assert_says(err.text, "no place", NULL);
		r.fail_place = 0;
		r.fail_done = i;
		assert_int_equal(load(&r, 1, 2, NULL, NULL, &err), -EPROTO);
		r.fail_done = 0;
		r.cancel_at = (uint64_t)i * 1000;
		assert_int_equal(load(&r, 1, 2, NULL, NULL, &err), -ECANCELED);
		r.cancel_at = 0;
	}
	ckpt_close(ck);
	fix_free(m);
}

/* ---- load=dummy ---------------------------------------------------------------------------- */

/* A dummy put together again from its slices. */
struct whole {
	const struct ckpt *ck;
	uint8_t **data; /* by entry */
};

static int dummy_place(void *user, const struct plan_item *it, void **ret_data, void **ret_scales,
	struct errbuf *err)
{
	*ret_data = malloc(it->bytes);
	if (ret_scales)
		*ret_scales = malloc(it->scale_bytes);
	return 0;
}

static int dummy_done(
	void *user, const struct plan_item *it, void *data, void *scales, struct errbuf *err)
{
	struct whole *w = user;
	uint64_t stride = ckpt_elem_bytes(it->elem, it->all_cols);
	uint64_t at = ckpt_elem_bytes(it->elem, it->col0);

	if (!w->data[it->entry])
		w->data[it->entry] = malloc(it->all_rows * stride);
	for (uint64_t i = 0; i < it->rows; i++)
		memcpy(w->data[it->entry] + (it->row0 + i) * stride + at,
			(uint8_t *)data + i * it->row_bytes, it->row_bytes);
	free(data);
	free(scales);
	return 0;
}

static struct whole dummy_whole(const struct ckpt *ck, uint32_t world, uint64_t seed)
{
	struct whole w = {ck, calloc(ck->entry_n, sizeof(uint8_t *))};
	struct load_ops ops = {dummy_place, dummy_done, NULL, &w};
	struct load_opts lo = {.dummy_seed = seed};
	struct errbuf err = {"", 0};

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
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_slices_of_every_world_equal_direct_slicing),
		cmocka_unit_test(test_small_chunks_and_depths_give_the_same),
		cmocka_unit_test(test_direct_reads_give_the_same),
		cmocka_unit_test(test_wide_columns_read_only_the_slice),
		cmocka_unit_test(test_pieces_tile_a_slice),
		cmocka_unit_test(test_bad_scales_and_ids_are_refused_at_load),
		cmocka_unit_test(test_values_are_judged_at_their_edges),
		cmocka_unit_test(test_file_cut_after_opening_is_refused),
		cmocka_unit_test(test_callers_failures_and_cancel_end_the_load),
		cmocka_unit_test(test_dummy_is_one_model_whatever_the_split),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
