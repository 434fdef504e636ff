/* Reading a shard: every slice equals what direct slicing of the whole tensor gives. */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/ckpt_fixture.h"
#include "worker/ckpt/load.h"
#include "worker/ckpt/load_piece.h"

/* A slice put together from its rows. */
struct held {
	uint8_t *data, *scales;
	uint64_t rows;
};

/* One load: its callbacks check each slice against the model in memory. */
struct run {
	struct fix_model *m;
	struct ckpt *ck;
	bool hf;
	pthread_mutex_t lock; /* callbacks come from several threads */
	size_t calls, done;
	struct held *held; /* for each entry */
	uint64_t last, total;
	int fail_rows; /* at this call */
	int fault;     /* 1: the file is cut at the first call, 2: another SIGBUS, 3: its scales */
	uint64_t cancel_at;
	bool compare;
};

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

/* The slice's own scales that these rows bring, packed. */
static void keep_scales(struct held *h, const struct load_rows *rows)
{
	const struct plan_item *it = rows->item;
	uint64_t row_bytes = ckpt_scale_bytes(it->scale, it->scale_cols);
	uint64_t first = (it->row0 + rows->first) / it->block.rows - it->scale_row0;
	uint64_t end = DIV_UP(it->row0 + rows->first + rows->n, it->block.rows) - it->scale_row0;

	for (uint64_t i = first; i < end; i++)
		memcpy(h->scales + i * row_bytes, rows->scales + (i - first) * rows->scale_stride,
			row_bytes);
}

static bool keep_rows(struct held *h, const struct load_rows *rows)
{
	const struct plan_item *it = rows->item;

	assert_true(rows->n > 0 && rows->first % LOAD_ROWS == 0);
	assert_true(rows->first + rows->n <= it->rows);
	assert_true((rows->scales != NULL) == (it->scale_bytes != 0));
	if (!h->data) {
		h->data = malloc(it->bytes);
		h->scales = malloc(it->scale_bytes + 1);
		memset(h->data, 0xa5, it->bytes);
		memset(h->scales, 0xa5, it->scale_bytes);
	}
	for (uint64_t i = 0; i < rows->n; i++)
		memcpy(h->data + (rows->first + i) * it->row_bytes, rows->data + i * rows->stride,
			it->row_bytes);
	if (rows->scales)
		keep_scales(h, rows);
	h->rows += rows->n;
	return h->rows == it->rows;
}

/* Cuts the file behind an expert's data, in front of most of its scales; true: it was one. */
static bool cut_scales(const struct run *r, const struct load_rows *rows)
{
	const struct ckpt_entry *e = &r->ck->entries[rows->item->entry];

	if (e->expert < 0)
		return false;
	assert_true(e->scales.offset >= e->data.offset + e->data.bytes);
	assert_true(e->scales.bytes >= 8192);
	assert_int_equal(truncate(fix_path(r->m, "model.safetensors"),
				 (off_t)ALIGN_UP(e->scales.offset, (uint64_t)4096)),
		0);
	return true;
}

static int take_rows(void *user, const struct load_rows *rows, struct errbuf *err)
{
	struct run *r = user;
	struct held *h = &r->held[rows->item->entry];
	int ret = 0;

	pthread_mutex_lock(&r->lock);
	if (r->fault == 1 && r->calls == 0)
		assert_int_equal(truncate(fix_path(r->m, "model.safetensors"), 0), 0);
	if (r->fault == 2)
		raise(SIGBUS);
	if (r->fault == 3 && cut_scales(r, rows))
		ret = err_set(err, -EPROTO, 70, "scales of zero");
	r->calls++;
	if (keep_rows(h, rows)) {
		r->done++;
		if (r->compare)
			compare(r, rows->item, h->data, h->scales);
	}
	if (r->fail_rows && (int)r->calls == r->fail_rows)
		ret = err_set(err, -EPROTO, 70, "not wanted");
	pthread_mutex_unlock(&r->lock);
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
	struct load_ops ops = {take_rows, progress, r};
	struct plan p;
	int ret;

	err->text[0] = '\0';
	assert_int_equal(plan_build(r->ck, rank, world, &p, err), 0);
	r->calls = r->done = r->last = 0;
	pthread_mutex_init(&r->lock, NULL);
	r->held = calloc(r->ck->entry_n, sizeof(*r->held));
	ret = load_run(r->ck, &p, opts, &ops, stats, err);
	if (ret == 0) {
		assert_int_equal(r->done, p.n);
		assert_int_equal(r->last, p.bytes);
	}
	for (size_t i = 0; i < r->ck->entry_n; i++) {
		free(r->held[i].data);
		free(r->held[i].scales);
	}
	free(r->held);
	pthread_mutex_destroy(&r->lock);
	plan_fini(&p);
	return ret;
}

static void load_all(const struct fix_opts *o, const uint32_t *worlds, const struct load_opts *lo)
{
	struct fix_model *m = fix_new(o);
	struct run r = {.m = m, .ck = fix_open(m), .compare = true, .hf = o->hf_names};
	struct errbuf err = {"", 0};
	struct load_stats st;

	for (; *worlds; worlds++) {
		for (uint32_t rank = 0; rank < *worlds; rank++)
			if (load(&r, rank, *worlds, lo, &st, &err) < 0)
				fail_msg("%s", err.text);
	}
	ckpt_close(r.ck);
	fix_free(m);
}

static const uint32_t powers[] = {1, 2, 4, 8, 0};
static const uint32_t one_three[] = {1, 3, 0}, one_two[] = {1, 2, 0};

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

static void test_threads_give_the_same(void **state)
{
	struct fix_opts o = {.quantised = true, .shards = 2};

	(void)state;
	load_all(&o, powers, &(struct load_opts){.threads = 2, .chunk_bytes = 4096});
	load_all(&o, powers, &(struct load_opts){.threads = 5, .chunk_bytes = 4096, .depth = 7});
	load_all(&o, powers,
		&(struct load_opts){.threads = 3, .chunk_bytes = 8192, .direct = LOAD_DIRECT_ON});
	load_all(&o, powers, &(struct load_opts){.threads = 3, .direct = LOAD_DIRECT_OFF});
}

/*
 * Mapped pages are given back in ranges, and between the mappings of two files lies what is
 * somebody else's: buffers, libraries. Tensors are in shards at random, so neighbours in the plan
 * seldom share one; many small files lie in the holes among the libraries.
 */
static void test_many_files_are_given_back_apart(void **state)
{
	struct fix_opts o = {.quantised = true, .seed = fix_seed()};
	static const uint32_t shards[] = {8, 40};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(shards); i++) {
		o.shards = shards[i];
		load_all(&o, one_two, &(struct load_opts){.direct = LOAD_DIRECT_OFF});
		load_all(&o, one_two, &(struct load_opts){.threads = 2});
	}
	/* large enough for scales of a page and more, beside smaller ones that are copied */
	o = (struct fix_opts){.quantised = true,
		.f32_scales = true,
		.shards = 8,
		.hidden = 512,
		.inter = 256,
		.experts = 8,
		.seed = fix_seed()};
	load_all(&o, one_two, &(struct load_opts){.threads = 2});
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
	struct run r = {.m = m, .ck = fix_open(m), .compare = true};
	struct load_stats st;
	struct errbuf err;

	(void)state;
	for (uint32_t rank = 0; rank < 2; rank++) {
		assert_int_equal(load(&r, rank, 2, NULL, &st, &err), 0);
		/* only wo_b's narrow columns are read past: less than 2 % here */
		assert_true(st.read_bytes < r.total + r.total / 50);
	}
	ckpt_close(r.ck);
	fix_free(m);
}

/* Changes bytes of the model, writes it, expects load_run to refuse, or (0) not to. */
static void expect_refusal(
	struct fix_model *m, uint32_t rank, uint32_t world, int ret, const char *a, const char *b)
{
	struct run r = {.m = m, .ck = fix_open(m)};
	struct errbuf err = {"", 0};

	assert_int_equal(load(&r, rank, world, NULL, NULL, &err), ret);
	if (ret < 0) {
		fix_assert_says(err.text, a, b, NULL);
		assert_int_equal(err.exit_code, EXIT_DATA_ERR);
	}
	ckpt_close(r.ck);
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
	expect_refusal(
		m, 0, 1, -EINVAL, "layers.1.ffn.experts.3.w1.weight", "row 7, column 2 is 255");
	t->data[160 / 32 * 7 + 2] = byte;
	/* columns of other workers lie between one's own, and are theirs to refuse */
	t = fix_find(m, "layers.1.ffn.experts.3.w2.scale");
	byte = t->data[192 / 32 * 7 + 4];
	t->data[192 / 32 * 7 + 4] = 255;
	expect_refusal(m, 0, 2, 0, NULL, NULL);
	expect_refusal(m, 1, 2, -EINVAL, "experts.3.w2.weight", "row 7, column 4 is 255");
	t->data[192 / 32 * 7 + 4] = byte;
	t = fix_find(m, "layers.2.attn.wo_a.weight_scale_inv");
	memcpy(&old, t->data + 4 * 5, 4);
	memcpy(t->data + 4 * 5, &nan, 4);
	expect_refusal(
		m, 0, 1, -EINVAL, "layers.2.attn.wo_a.weight", "row 1, column 1 is not finite");
	memcpy(t->data + 4 * 5, &old, 4);
	t = fix_find(m, "layers.1.ffn.gate.tid2eid");
	memcpy(t->data + 8 * 2 * 70, &id, 8);
	expect_refusal(m, 0, 1, -EINVAL, "layers.1.ffn.gate.tid2eid", "token 70");
	memcpy(t->data + 8 * 2 * 70, &zero, 8);
	memcpy(t->data + 8 * 2 * 70 + 8, &zero, 8);
	expect_refusal(m, 0, 1, -EINVAL, "layers.1.ffn.gate.tid2eid", "different ids below 8");
	fix_free(m);
}

static void test_file_cut_after_opening_is_refused(void **state)
{
	struct fix_opts o = {.quantised = true};
	struct fix_model *m = fix_new(&o);
	struct run r = {.m = m, .ck = fix_open(m)};
	struct errbuf err;
	int null;

	(void)state;
	for (int direct = LOAD_DIRECT_OFF; direct <= LOAD_DIRECT_ON; direct++) {
		struct load_opts lo = {.direct = (enum load_direct)direct};

		assert_int_equal(truncate(fix_path(m, "model.safetensors"),
					 (off_t)r.ck->files[0].bytes - 100000 + direct),
			0);
		assert_int_equal(load(&r, 0, 2, &lo, NULL, &err), -ENODATA);
		fix_assert_says(
			err.text, "model.safetensors: reading ", "at byte", "the file ends", NULL);
		assert_int_equal(err.exit_code, EXIT_DATA_ERR);
	}
	null = open("/dev/null", O_WRONLY);
	assert_true(null >= 0);
	dup2(null, r.ck->files[0].fd); /* a descriptor that cannot be read: as an I/O error would */
	close(null);
	assert_int_equal(
		load(&r, 0, 2, &(struct load_opts){.direct = LOAD_DIRECT_OFF}, NULL, &err), -EBADF);
	fix_assert_says(err.text, "reading ", "Bad file descriptor", NULL);
	assert_int_equal(err.exit_code, EXIT_OS_ERR);
	ckpt_close(r.ck);
	fix_free(m);
}

/* While its rows are looked at, in a mapping: not before they are read. */
static void test_file_cut_under_its_rows_is_refused(void **state)
{
	struct fix_opts o = {.quantised = true};
	struct fix_model *m = fix_new(&o);
	struct run r = {.m = m, .fault = 1};
	struct sigaction before, after;
	struct errbuf err;

	(void)state;
	for (uint32_t threads = 1; threads < 4; threads++) {
		struct load_opts lo = {
			.threads = threads, .chunk_bytes = 4096, .direct = LOAD_DIRECT_OFF};

		r.ck = fix_open(m);
		sigaction(SIGBUS, NULL, &before);
		assert_int_equal(load(&r, 0, 2, &lo, NULL, &err), -ENODATA);
		fix_assert_says(err.text, "model.safetensors: reading ", "the file ends", NULL);
		assert_int_equal(err.exit_code, EXIT_DATA_ERR);
		sigaction(SIGBUS, NULL, &after);
		assert_ptr_equal(before.sa_sigaction, after.sa_sigaction);
		ckpt_close(r.ck);
	}
	fix_free(m);
}

/* Scales of experts are two pages. */
static const struct fix_opts paged = {
	.quantised = true, .hidden = 512, .inter = 512, .experts = 2, .vocab = 64};

/* Scales of a page and more are looked at in the mapping; smaller ones are copied. */
static void test_scales_around_a_page_give_the_same(void **state)
{
	struct fix_opts o = paged;

	(void)state;
	for (int direct = LOAD_DIRECT_AUTO; direct <= LOAD_DIRECT_ON; direct++) {
		load_all(&o, powers, &(struct load_opts){.direct = (enum load_direct)direct});
		load_all(&o, powers,
			&(struct load_opts){.direct = (enum load_direct)direct,
				.threads = 3,
				.chunk_bytes = 1 << 16});
	}
}

/* What the caller says of the zeros it found there is not the reason. */
static void test_file_cut_under_its_scales_is_refused_as_cut(void **state)
{
	struct fix_opts o = paged;
	struct fix_model *m = fix_new(&o);
	struct run r = {.m = m, .ck = fix_open(m), .fault = 3};
	struct errbuf err;

	(void)state;
	assert_int_equal(load(&r, 0, 1, &(struct load_opts){.direct = LOAD_DIRECT_OFF}, NULL, &err),
		-ENODATA);
	fix_assert_says(err.text, "model.safetensors: reading ", "the file ends", NULL);
	assert_int_equal(err.exit_code, EXIT_DATA_ERR);
	ckpt_close(r.ck);
	fix_free(m);
}

static void test_a_fault_elsewhere_is_not_hidden(void **state)
{
	struct fix_opts o = {.quantised = true};
	struct fix_model *m = fix_new(&o);
	struct run r = {.m = m, .ck = fix_open(m), .fault = 2};
	struct errbuf err;
	int status;
	pid_t pid;

	(void)state;
	pid = fork();
	if (pid == 0) {
		signal(SIGBUS, SIG_DFL);
		(void)load(&r, 0, 1, NULL, NULL, &err);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
	ckpt_close(r.ck);
	fix_free(m);
}

static void test_callers_failures_and_cancel_end_the_load(void **state)
{
	struct fix_opts o = {.quantised = true, .shards = 2};
	struct fix_model *m = fix_new(&o);
	struct run r = {.m = m, .ck = fix_open(m)};
	struct errbuf err;

	(void)state;
	for (int i = 1; i < 60; i += 7) {
		struct load_opts lo = {.threads = 1 + (uint32_t)i % 3};

		r.fail_rows = i;
		assert_int_equal(load(&r, 1, 2, &lo, NULL, &err), -EPROTO);
		fix_assert_says(err.text, "not wanted", NULL);
		r.fail_rows = 0;
		r.cancel_at = (uint64_t)i * 1000;
		assert_int_equal(load(&r, 1, 2, &lo, NULL, &err), -ECANCELED);
		r.cancel_at = 0;
	}
	ckpt_close(r.ck);
	fix_free(m);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_slices_of_every_world_equal_direct_slicing),
		cmocka_unit_test(test_small_chunks_and_depths_give_the_same),
		cmocka_unit_test(test_threads_give_the_same),
		cmocka_unit_test(test_many_files_are_given_back_apart),
		cmocka_unit_test(test_direct_reads_give_the_same),
		cmocka_unit_test(test_wide_columns_read_only_the_slice),
		cmocka_unit_test(test_bad_scales_and_ids_are_refused_at_load),
		cmocka_unit_test(test_file_cut_after_opening_is_refused),
		cmocka_unit_test(test_file_cut_under_its_rows_is_refused),
		cmocka_unit_test(test_scales_around_a_page_give_the_same),
		cmocka_unit_test(test_file_cut_under_its_scales_is_refused_as_cut),
		cmocka_unit_test(test_a_fault_elsewhere_is_not_hidden),
		cmocka_unit_test(test_callers_failures_and_cancel_end_the_load),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
