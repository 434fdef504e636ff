/* Opening a checkpoint: names, shapes, types, shards, and every way they can be wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/ckpt_fixture.h"
#include "worker/ckpt/ckpt.h"

/* Writes the model, opens it, and expects a refusal that says all of the parts. */
#define assert_refused(m, ret_, code_, ...)                                                        \
	do {                                                                                       \
		struct ckpt *ck_ = NULL;                                                           \
		struct errbuf err_ = {"", 0};                                                      \
		assert_int_equal(ckpt_open((m)->dir, &ck_, &err_), ret_);                          \
		assert_null(ck_);                                                                  \
		fix_assert_says(err_.text, (m)->dir, __VA_ARGS__, NULL);                           \
		assert_int_equal(err_.exit_code, code_);                                           \
	} while (0)

static const struct ckpt_entry *entry(
	const struct ckpt *ck, enum tensor_kind kind, int layer, int expert)
{
	for (size_t i = 0; i < ck->entry_n; i++)
		if (ck->entries[i].kind == kind && ck->entries[i].layer == layer &&
			ck->entries[i].expert == expert)
			return &ck->entries[i];
	fail_msg("no such entry");
	return NULL;
}

/* Do the bytes at the entry's place equal the fixture's? */
static void check_bytes(const struct ckpt *ck, const struct ckpt_view *v, const uint8_t *want)
{
	uint8_t *have = malloc(v->bytes + 1);

	assert_int_equal(pread(ck->files[v->file].fd, have, v->bytes, (off_t)v->offset), v->bytes);
	assert_memory_equal(have, want, v->bytes);
	free(have);
}

static void open_and_compare(const struct fix_opts *o, const char *wo_b)
{
	struct fix_model *m = fix_new(o);
	struct fix_tensor *t = fix_find(m, wo_b);
	struct ckpt *ck;

	assert_non_null(t);
	ck = fix_open(m);
	assert_int_equal(ck->extra_n, 0);
	assert_int_equal(ck->file_n, o->shards ? o->shards : 1);
	check_bytes(ck, &entry(ck, TENSOR_WO_B, 3, -1)->data, t->data);
	assert_null(ckpt_close(ck));
	fix_free(m);
}

static void test_all_spellings_of_a_checkpoint_open(void **state)
{
	(void)state;
	open_and_compare(&(struct fix_opts){0}, "layers.3.attn.wo_b.weight");
	open_and_compare(
		&(struct fix_opts){.quantised = true, .shards = 3}, "layers.3.attn.wo_b.weight");
	open_and_compare(
		&(struct fix_opts){.prefix = true, .shards = 2}, "model.layers.3.attn.wo_b.weight");
	open_and_compare(&(struct fix_opts){.quantised = true, .f32_scales = true, .i32_ids = true},
		"layers.3.attn.wo_b.weight");
	open_and_compare(
		&(struct fix_opts){.hf_names = true}, "model.layers.3.self_attn.o_b_proj.weight");
}

static void test_types_and_scales_are_recorded(void **state)
{
	struct fix_opts o = {.quantised = true, .shards = 2};
	struct fix_model *m = fix_new(&o);
	const struct ckpt_entry *e;
	struct tensor_shape s;
	struct ckpt *ck;

	(void)state;
	ck = fix_open(m);
	e = entry(ck, TENSOR_WO_A, 2, -1);
	assert_int_equal(e->elem, CKPT_F8_E4M3);
	assert_int_equal(e->scale, CKPT_SCALE_E8M0);
	s = ckpt_scale_shape(&ck->cfg, e);
	assert_int_equal(s.rows, 2); /* 192 rows in blocks of 128 */
	assert_int_equal(s.cols, 4);
	check_bytes(ck, &e->scales, fix_find(m, "layers.2.attn.wo_a.scale")->data);
	e = entry(ck, TENSOR_EXPERT_W2, 1, 5);
	assert_int_equal(e->elem, CKPT_F4_E2M1);
	assert_int_equal(e->shape.rows, 160);
	assert_int_equal(e->shape.cols, 192);
	assert_int_equal(e->data.bytes, 160 * 96);
	check_bytes(ck, &e->scales, fix_find(m, "layers.1.ffn.experts.5.w2.scale")->data);
	assert_int_equal(entry(ck, TENSOR_GATE_TID2EID, 0, -1)->elem, CKPT_I64);
	assert_int_equal(entry(ck, TENSOR_GATE_BIAS, 2, -1)->elem, CKPT_F32);
	assert_int_equal(entry(ck, TENSOR_HEAD, -1, -1)->elem, CKPT_BF16);
	ckpt_close(ck);
	fix_free(m);
}

/* What transformers 5.24 makes of attn.kv_norm when it saves under released names. */
static void test_kv_norm_is_found_under_its_saved_name(void **state)
{
	struct fix_opts o = {0};
	struct fix_model *m = fix_new(&o);
	struct ckpt *ck;

	(void)state;
	strcpy(fix_find(m, "layers.2.attn.kv_norm.weight")->name, "layers.2.attn.norm.weight");
	ck = fix_open(m);
	check_bytes(ck, &entry(ck, TENSOR_KV_NORM, 2, -1)->data,
		fix_find(m, "layers.2.attn.norm.weight")->data);
	ckpt_close(ck);
	fix_free(m);
}

static void test_packed_experts_are_found_within_their_tensor(void **state)
{
	struct fix_opts o = {.hf_names = true};
	struct fix_model *m = fix_new(&o);
	const uint8_t *pair, *down;
	size_t half = 192 * 160 * 2;
	struct ckpt *ck;

	(void)state;
	ck = fix_open(m);
	pair = fix_find(m, "model.layers.1.mlp.experts.gate_up_proj")->data;
	down = fix_find(m, "model.layers.1.mlp.experts.down_proj")->data;
	for (int e = 0; e < 8; e++) {
		check_bytes(ck, &entry(ck, TENSOR_EXPERT_W1, 1, e)->data,
			pair + (2 * (size_t)e) * half);
		check_bytes(ck, &entry(ck, TENSOR_EXPERT_W3, 1, e)->data,
			pair + (2 * (size_t)e + 1) * half);
		check_bytes(ck, &entry(ck, TENSOR_EXPERT_W2, 1, e)->data, down + (size_t)e * half);
	}
	ckpt_close(ck);
	fix_free(m);
}

static void test_tensors_of_other_parts_are_ignored_and_counted(void **state)
{
	struct fix_opts o = {.shards = 2};
	struct fix_model *m = fix_new(&o);
	uint64_t shape[2] = {3, 5};
	struct ckpt *ck;

	(void)state;
	fix_add(m, "mtp.0.e_proj.weight", "BF16", 2, shape);
	fix_add(m, "mtp.0.norm.weight", "BF16", 1, shape);
	ck = fix_open(m);
	assert_int_equal(ck->extra_n, 2);
	assert_int_equal(ck->extra_bytes, 36);
	ckpt_close(ck);
	fix_free(m);
}

/* A model with its last layers left out would load, and speak nonsense. */
static void test_layers_beyond_the_configuration_are_refused(void **state)
{
	static const char *const names[] = {"layers.4.ffn_norm.weight", "model.layers.4.x",
		"layers.61.attn.wq_a.weight", "layers.99999999999999999999.x"};
	static const char *const good[] = {"layers.3.x", "layers.x.4", "layers.4", "layersx.4.x"};
	struct fix_opts o = {.shards = 2};
	uint64_t shape[1] = {5};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct fix_model *m = fix_new(&o);

		fix_add(m, names[i], "BF16", 1, shape);
		fix_write(m);
		assert_refused(m, -EINVAL, EXIT_DATA_ERR, names[i], "num_hidden_layers");
		fix_free(m);
	}
	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		struct fix_model *m = fix_new(&o);
		struct ckpt *ck;

		fix_add(m, good[i], "BF16", 1, shape);
		ck = fix_open(m);
		assert_int_equal(ck->extra_n, 1);
		ckpt_close(ck);
		fix_free(m);
	}
}

static void test_missing_tensor_is_named(void **state)
{
	static const char *const names[] = {"embed.weight", "layers.1.attn.indexer.wq_b.weight",
		"layers.2.attn.compressor.ape", "layers.0.ffn.gate.tid2eid",
		"layers.3.ffn.gate.bias", "layers.3.ffn.experts.7.w3.weight"};
	struct fix_opts o = {.quantised = true, .shards = 2};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct fix_model *m = fix_new(&o);

		fix_remove(m, names[i]);
		fix_write(m);
		assert_refused(m, -EINVAL, EXIT_DATA_ERR, names[i], "missing");
		fix_free(m);
	}
}

static void test_missing_scales_are_named(void **state)
{
	struct fix_opts o = {.quantised = true};
	struct fix_model *m = fix_new(&o);

	(void)state;
	fix_remove(m, "layers.3.ffn.experts.7.w3.scale");
	fix_write(m);
	assert_refused(m, -EINVAL, EXIT_DATA_ERR, "layers.3.ffn.experts.7.w3.weight is FP4",
		"layers.3.ffn.experts.7.w3.scale", "missing");
	fix_free(m);
}

static void test_wrong_shape_is_shown_beside_the_right_one(void **state)
{
	struct fix_opts o = {.quantised = true};
	struct fix_model *m = fix_new(&o);
	struct fix_tensor *t = fix_find(m, "layers.1.attn.wkv.weight");

	(void)state;
	t->shape[0] = 160;
	t->shape[1] = 512;
	fix_write(m);
	assert_refused(m, -EINVAL, EXIT_DATA_ERR, "model.safetensors", "layers.1.attn.wkv.weight",
		"[160, 512]", "[512, 160]");
	t->shape[0] = 512;
	t->shape[1] = 160;
	t = fix_find(m, "layers.1.attn.wkv.scale");
	t->shape[0] = 2;
	t->shape[1] = 4;
	fix_write(m);
	assert_refused(m, -EINVAL, EXIT_DATA_ERR, "layers.1.attn.wkv.scale", "[2, 4]", "[4, 2]");
	t->shape[0] = 8;
	t->ndim = 1;
	fix_write(m);
	assert_refused(m, -EINVAL, EXIT_DATA_ERR, "[8]", "[4, 2]");
	fix_free(m);
}

/* name, type put there, what the sentence must ask for */
static const struct {
	const char *name, *dtype, *says;
} wrong_types[] = {
	{"norm.weight", "I16", "BF16, F16 or F32"},
	{"norm.weight", "F8_E4M3", "BF16, F16 or F32"},
	{"layers.0.attn.wq_a.weight", "U8", "F8_E4M3"},
	{"layers.0.attn.wq_a.weight", "F8_E5M2", "F8_E4M3"},
	{"layers.0.attn.wq_a.scale", "U8", "F8_E8M0 or F32"},
	{"layers.0.ffn.gate.tid2eid", "F32", "I64 or I32"},
	{"layers.0.ffn.experts.0.w1.weight", "BOOL", "I8"},
	{"layers.0.ffn.experts.0.w1.scale", "U8", "F8_E8M0"},
	{"layers.2.ffn.gate.bias", "I32", "BF16, F16 or F32"},
};

static uint64_t bytes_of(const char *dtype)
{
	return !strcmp(dtype, "F32") || !strcmp(dtype, "I32") ? 4 : !strcmp(dtype, "I16") ? 2 : 1;
}

static void test_wrong_type_is_refused_with_what_is_possible(void **state)
{
	struct fix_opts o = {.quantised = true};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(wrong_types); i++) {
		struct fix_model *m = fix_new(&o);
		struct fix_tensor *t = fix_find(m, wrong_types[i].name);

		t->dtype = wrong_types[i].dtype;
		t->bytes = bytes_of(t->dtype);
		for (uint32_t d = 0; d < t->ndim; d++)
			t->bytes *= t->shape[d];
		free(t->data);
		t->data = calloc(1, t->bytes);
		fix_write(m);
		assert_refused(m, -EINVAL, EXIT_DATA_ERR, t->name, t->dtype, wrong_types[i].says);
		fix_free(m);
	}
}

static void test_fp8_without_quantization_config_is_refused(void **state)
{
	struct fix_opts o = {.quantised = true};
	struct fix_model *m = fix_new(&o);

	(void)state;
	json_object_del(m->config, "quantization_config");
	json_object_del(m->config, "expert_dtype");
	fix_write(m);
	assert_refused(m, -EINVAL, EXIT_DATA_ERR, "layers.0.attn.wq_a.weight", "F8_E4M3",
		"quantization_config");
	fix_free(m);
}

static void test_missing_files_are_named(void **state)
{
	struct fix_opts o = {.shards = 3};
	struct fix_model *m = fix_new(&o);
	struct model_config cfg;
	struct ckpt *ck;
	struct errbuf err;

	(void)state;
	fix_write(m);
	unlink(fix_path(m, "model-00002-of-00003.safetensors"));
	assert_refused(
		m, -ENOENT, EXIT_NO_INPUT, "model-00002-of-00003.safetensors", "No such file");
	unlink(fix_path(m, "model.safetensors.index.json"));
	assert_refused(m, -ENOENT, EXIT_NO_INPUT,
		"neither model.safetensors.index.json nor "
		"model.safetensors");
	unlink(fix_path(m, "config.json"));
	assert_refused(m, -ENOENT, EXIT_NO_INPUT, "config.json", "No such file");
	assert_int_equal(ckpt_read_config(m->dir, &cfg, &err), -ENOENT);
	assert_int_equal(ckpt_open_dummy(m->dir, &ck, &err), -ENOENT);
	assert_int_equal(ckpt_open("/nonexistent/model", &ck, &err), -ENOENT);
	fix_assert_says(err.text, "/nonexistent/model: No such file", NULL);
	assert_int_equal(err.exit_code, EXIT_NO_INPUT);
	fix_free(m);
}

static void test_truncated_shards_are_refused_with_sizes(void **state)
{
	struct fix_opts o = {.shards = 2};
	struct fix_model *m = fix_new(&o);
	const char *name = "model-00002-of-00002.safetensors";
	char real[32], want[32];
	struct stat st;

	(void)state;
	fix_write(m);
	assert_int_equal(stat(fix_path(m, name), &st), 0);
	snprintf(want, sizeof(want), "%lld", (long long)st.st_size);
	for (off_t cut = 1; cut < st.st_size; cut = cut * 3) {
		assert_int_equal(truncate(fix_path(m, name), st.st_size - cut), 0);
		snprintf(real, sizeof(real), "%lld", (long long)(st.st_size - cut));
		assert_refused(m, -EINVAL, EXIT_DATA_ERR, name, "truncated", real);
		if (st.st_size - cut > 60000) /* behind the header */
			assert_refused(m, -EINVAL, EXIT_DATA_ERR, "tensor ", want);
		fix_write(m);
	}
	for (off_t left = 0; left <= 9; left++) {
		assert_int_equal(truncate(fix_path(m, name), left), 0);
		assert_refused(m, -EINVAL, EXIT_DATA_ERR, name, "truncated inside its header");
		fix_write(m);
	}
	fix_free(m);
}

/* Puts an index of one's own beside the shards. */
static void write_index(struct fix_model *m, const char *text)
{
	fix_write_file(fix_path(m, "model.safetensors.index.json"), text, strlen(text));
}

static void test_index_may_only_name_files_of_the_directory(void **state)
{
	static const char *const names[] = {
		"../x.safetensors", "/etc/passwd", "a/b", "", ".", "..", ".hidden"};
	struct fix_opts o = {.shards = 2};
	struct fix_model *m = fix_new(&o);
	char text[256];

	(void)state;
	fix_write(m);
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		snprintf(
			text, sizeof(text), "{\"weight_map\":{\"embed.weight\":\"%s\"}}", names[i]);
		write_index(m, text);
		assert_refused(m, -EINVAL, EXIT_DATA_ERR, "index.json", "embed.weight",
			"not the name of a file");
	}
	write_index(m, "{\"weight_map\":{\"embed.weight\":7}}");
	assert_refused(m, -EINVAL, EXIT_DATA_ERR, "not the name of a file");
	write_index(m, "{\"weight_map\":{}}");
	assert_refused(m, -EINVAL, EXIT_DATA_ERR, "weight_map");
	write_index(m, "{");
	assert_refused(m, -EINVAL, EXIT_DATA_ERR, "index.json:1: not valid JSON");
	write_index(m, "{\"weight_map\":{\"ghost\":\"model-00001-of-00002.safetensors\"}}");
	assert_refused(m, -EINVAL, EXIT_DATA_ERR, "ghost", "model-00001-of-00002.safetensors",
		"no such tensor");
	fix_free(m);
}

static void test_stray_files_are_not_opened_and_links_may_not_leave(void **state)
{
	struct fix_opts o = {.shards = 1};
	struct fix_model *m = fix_new(&o), *other = fix_new(&o);
	const char *shard = "model-00001-of-00001.safetensors";
	char target[512], inside[512];
	struct errbuf err;
	struct ckpt *ck;

	(void)state;
	fix_write(other);
	fix_write_file(fix_path(m, "stray.safetensors"), "junk", 4);
	ck = fix_open(m);
	assert_int_equal(ck->file_n, 1);
	ckpt_close(ck);
	snprintf(target, sizeof(target), "%s", fix_path(other, shard));
	unlink(fix_path(m, shard));
	assert_int_equal(symlink(target, fix_path(m, shard)), 0);
	assert_refused(m, -EINVAL, EXIT_DATA_ERR, shard, "link out of the directory", target);
	snprintf(inside, sizeof(inside), "%s", fix_path(m, "real.bin"));
	assert_int_equal(rename(target, inside), 0);
	unlink(fix_path(m, shard));
	assert_int_equal(symlink("real.bin", fix_path(m, shard)), 0);
	assert_int_equal(ckpt_open(m->dir, &ck, &err), 0); /* a link within is fine */
	ckpt_close(ck);
	unlink(inside);
	assert_refused(m, -ENOENT, EXIT_NO_INPUT, shard, "link to nothing");
	unlink(fix_path(m, shard));
	assert_int_equal(mkfifo(fix_path(m, shard), 0600), 0);
	assert_refused(m, -EINVAL, EXIT_DATA_ERR, shard, "not a regular file");
	fix_free(other);
	fix_free(m);
}

/* A cache: models--X--Y/snapshots/REV/ with links to models--X--Y/blobs/. */
static void test_hugging_face_cache_layout_opens(void **state)
{
	static const char *const files[] = {"config.json", "model.safetensors"};
	struct fix_opts o = {0};
	struct fix_model *m = fix_new(&o);
	char base[256], snap[512], from[1024], to[1024];
	struct errbuf err = {"", 0};
	struct ckpt *ck;

	(void)state;
	fix_write(m);
	fix_tempdir(base, sizeof(base));
	snprintf(to, sizeof(to), "%s/blobs", base);
	assert_int_equal(mkdir(to, 0700), 0);
	snprintf(to, sizeof(to), "%s/snapshots", base);
	assert_int_equal(mkdir(to, 0700), 0);
	snprintf(snap, sizeof(snap), "%s/snapshots/rev", base);
	assert_int_equal(mkdir(snap, 0700), 0);
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		snprintf(to, sizeof(to), "%s/blobs/%zu", base, i);
		assert_int_equal(rename(fix_path(m, files[i]), to), 0);
		snprintf(from, sizeof(from), "../../blobs/%zu", i);
		snprintf(to, sizeof(to), "%s/%s", snap, files[i]);
		assert_int_equal(symlink(from, to), 0);
	}
	if (ckpt_open(snap, &ck, &err) < 0)
		fail_msg("%s", err.text);
	ckpt_close(ck);
	fix_remove_dir(snap);
	snprintf(to, sizeof(to), "%s/blobs", base);
	fix_remove_dir(to);
	snprintf(to, sizeof(to), "%s/snapshots", base);
	rmdir(to);
	rmdir(base);
	fix_free(m);
}

static void test_same_tensor_with_and_without_prefix_is_refused(void **state)
{
	struct fix_opts o = {0};
	struct fix_model *m = fix_new(&o);
	uint64_t shape[1] = {160};

	(void)state;
	fix_add(m, "model.norm.weight", "BF16", 1, shape);
	fix_write(m);
	assert_refused(m, -EINVAL, EXIT_DATA_ERR, "norm.weight", "twice");
	fix_free(m);
}

static void test_dummy_has_the_released_types(void **state)
{
	struct fix_opts o = {.quantised = true, .shards = 2};
	struct fix_model *m = fix_new(&o);
	struct ckpt *real, *dummy;
	struct errbuf err;

	(void)state;
	real = fix_open(m);
	unlink(fix_path(m, "model-00001-of-00002.safetensors"));
	assert_int_equal(ckpt_open_dummy(m->dir, &dummy, &err), 0); /* needs config.json only */
	assert_int_equal(dummy->entry_n, real->entry_n);
	for (size_t i = 0; i < real->entry_n; i++) {
		assert_int_equal(dummy->entries[i].elem, real->entries[i].elem);
		assert_int_equal(dummy->entries[i].scale, real->entries[i].scale);
		assert_int_equal(dummy->entries[i].data.bytes, real->entries[i].data.bytes);
		assert_int_equal(dummy->entries[i].scales.bytes, real->entries[i].scales.bytes);
	}
	ckpt_close(real);
	ckpt_close(dummy);
	fix_free(m);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_spellings_of_a_checkpoint_open),
		cmocka_unit_test(test_types_and_scales_are_recorded),
		cmocka_unit_test(test_kv_norm_is_found_under_its_saved_name),
		cmocka_unit_test(test_packed_experts_are_found_within_their_tensor),
		cmocka_unit_test(test_tensors_of_other_parts_are_ignored_and_counted),
		cmocka_unit_test(test_layers_beyond_the_configuration_are_refused),
		cmocka_unit_test(test_missing_tensor_is_named),
		cmocka_unit_test(test_missing_scales_are_named),
		cmocka_unit_test(test_wrong_shape_is_shown_beside_the_right_one),
		cmocka_unit_test(test_wrong_type_is_refused_with_what_is_possible),
		cmocka_unit_test(test_fp8_without_quantization_config_is_refused),
		cmocka_unit_test(test_missing_files_are_named),
		cmocka_unit_test(test_truncated_shards_are_refused_with_sizes),
		cmocka_unit_test(test_index_may_only_name_files_of_the_directory),
		cmocka_unit_test(test_stray_files_are_not_opened_and_links_may_not_leave),
		cmocka_unit_test(test_hugging_face_cache_layout_opens),
		cmocka_unit_test(test_same_tensor_with_and_without_prefix_is_refused),
		cmocka_unit_test(test_dummy_has_the_released_types),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
