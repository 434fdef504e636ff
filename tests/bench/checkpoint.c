#include "tests/bench/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "worker/ckpt/ckpt.h"
#include "worker/ckpt/dummy.h"
#include "worker/ckpt/plan.h"

enum { SHARDS = 4, HEADER_MAX = 1 << 20 };

static const char config[] =
	"{\"model_type\": \"deepseek_v4\", \"hidden_size\": 2048, \"num_hidden_layers\": 6,\n"
	" \"num_attention_heads\": 16, \"q_lora_rank\": 512, \"o_groups\": 4, \"o_lora_rank\": "
	"256,\n"
	" \"sliding_window\": 128, \"index_n_heads\": 8, \"index_topk\": 512, \"index_head_dim\": "
	"128,\n"
	" \"head_dim\": 512, \"qk_rope_head_dim\": 64, \"hc_mult\": 4, \"hc_sinkhorn_iters\": 20,\n"
	" \"hc_eps\": 1e-06, \"rms_norm_eps\": 1e-06, \"n_routed_experts\": 80, "
	"\"n_shared_experts\": 1,\n"
	" \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 1024, \"num_hash_layers\": 2,\n"
	" \"vocab_size\": 32768, \"max_position_embeddings\": 65536, \"routed_scaling_factor\": "
	"1.5,\n"
	" \"scoring_func\": \"sqrtsoftplus\", \"swiglu_limit\": 10.0, \"rope_theta\": 10000,\n"
	" \"compress_rope_theta\": 160000, \"compress_ratios\": [0, 0, 4, 128, 4, 128, 0],\n"
	" \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 16, \"beta_fast\": 32, \"beta_slow\": "
	"1,\n"
	"  \"original_max_position_embeddings\": 65536},\n"
	" \"num_nextn_predict_layers\": 0, \"expert_dtype\": \"fp4\",\n"
	" \"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"scale_fmt\": "
	"\"ue8m0\",\n"
	"  \"activation_scheme\": \"dynamic\", \"weight_block_size\": [128, 128]}}\n";

static const char *const dtype[CKPT_ELEM__COUNT] = {
	"F32", "BF16", "F16", "F8_E4M3", "I8", "I64", "I32"};

struct writer {
	const char *dir;
	const struct ckpt *ck;
	struct plan plan; /* the whole model as one worker's */
	FILE *index;
	bool any; /* tensor in the index */
	char *header;
	size_t header_n;
	uint64_t offset; /* of the next tensor in its shard */
};

static int fail(const struct writer *w, struct errbuf *err)
{
	return err_set(err, -errno, EXIT_OS_ERR, "%s: %s", w->dir, strerror(errno));
}

/* One line of the shard's header and one of the index. */
static void name_tensor(struct writer *w, unsigned shard, const char *name, const char *type,
	uint64_t rows, uint64_t cols, unsigned dims, uint64_t bytes)
{
	char shape[64];

	if (dims == 1)
		snprintf(shape, sizeof(shape), "%" PRIu64, rows);
	else
		snprintf(shape, sizeof(shape), "%" PRIu64 ",%" PRIu64, rows, cols);
	w->header_n += (size_t)snprintf(w->header + w->header_n, HEADER_MAX - w->header_n,
		"%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%" PRIu64 ",%" PRIu64
		"]}",
		w->header_n > 1 ? "," : "", name, type, shape, w->offset, w->offset + bytes);
	w->offset += bytes;
	fprintf(w->index, "%s\n\"%s\": \"model-%05u-of-%05u.safetensors\"", w->any ? "," : "", name,
		shard + 1, SHARDS);
	w->any = true;
}

static void name_item(struct writer *w, unsigned shard, const struct plan_item *it)
{
	char name[TENSOR_NAME_MAX], scale[TENSOR_NAME_MAX + 8];
	uint64_t cols = it->elem == CKPT_F4_E2M1 ? it->cols / 2 : it->cols;

	tensor_name(it->kind, it->layer, it->expert, name);
	name_tensor(w, shard, name, dtype[it->elem], it->rows, cols, tensor_row(it->kind)->ndim,
		it->bytes);
	if (!it->scale_bytes)
		return;
	snprintf(scale, sizeof(scale), "%.*sscale", (int)(strlen(name) - strlen("weight")), name);
	name_tensor(w, shard, scale, "F8_E8M0", it->scale_rows, it->scale_cols, 2, it->scale_bytes);
}

static int write_item(struct writer *w, FILE *f, const struct plan_item *it)
{
	uint8_t *data = malloc(it->bytes + it->scale_bytes + 8);
	size_t scales = ALIGN_UP(it->bytes, (uint64_t)8);
	bool ok = data != NULL;

	if (ok)
		dummy_fill(&w->ck->cfg, it, 1, data, data + scales);
	ok = ok && fwrite(data, it->bytes, 1, f) == 1 &&
	     (!it->scale_bytes || fwrite(data + scales, it->scale_bytes, 1, f) == 1);
	free(data);
	return ok ? 0 : -1;
}

/* Items first .. end of the plan. */
static int write_shard(
	struct writer *w, unsigned shard, size_t first, size_t end, struct errbuf *err)
{
	char path[4096];
	uint64_t bytes;
	FILE *f;
	int ret = 0;

	snprintf(
		path, sizeof(path), "%s/model-%05u-of-%05u.safetensors", w->dir, shard + 1, SHARDS);
	f = fopen(path, "we");
	if (!f)
		return fail(w, err);
	w->offset = 0;
	w->header[0] = '{';
	w->header_n = 1;
	for (size_t i = first; i < end; i++)
		name_item(w, shard, &w->plan.items[i]);
	w->header[w->header_n++] = '}';
	while (w->header_n % 8)
		w->header[w->header_n++] = ' ';
	bytes = w->header_n;
	fwrite(&bytes, sizeof(bytes), 1, f);
	fwrite(w->header, w->header_n, 1, f);
	for (size_t i = first; i < end && ret == 0; i++)
		ret = write_item(w, f, &w->plan.items[i]);
	if (fflush(f) || fdatasync(fileno(f)) || ret < 0)
		ret = fail(w, err);
	fclose(f);
	return ret;
}

/* Shards of about the same size, then the index, which says that all is there. */
static int write_all(struct writer *w, struct errbuf *err)
{
	char path[4096], last[4096];
	uint64_t bytes = 0;
	size_t first = 0;
	unsigned shard = 0;
	int ret = 0;

	snprintf(path, sizeof(path), "%s/index.new", w->dir);
	snprintf(last, sizeof(last), "%s/model.safetensors.index.json", w->dir);
	w->index = fopen(path, "we");
	if (!w->index)
		return fail(w, err);
	fputs("{\"weight_map\": {", w->index);
	for (size_t i = 0; i < w->plan.n && ret == 0; i++) {
		bytes += w->plan.items[i].bytes + w->plan.items[i].scale_bytes;
		if (i + 1 < w->plan.n && bytes < w->plan.bytes / SHARDS * (shard + 1))
			continue;
		if (i + 1 < w->plan.n && shard + 1 == SHARDS)
			continue;
		ret = write_shard(w, shard++, first, i + 1, err);
		first = i + 1;
	}
	fputs("\n}}\n", w->index);
	if (fclose(w->index) || (ret == 0 && rename(path, last) < 0))
		ret = fail(w, err);
	return ret;
}

static int write_config(const struct writer *w, struct errbuf *err)
{
	char path[4096];
	FILE *f;

	if (mkdir(w->dir, 0777) < 0 && errno != EEXIST)
		return fail(w, err);
	snprintf(path, sizeof(path), "%s/config.json", w->dir);
	f = fopen(path, "we");
	if (!f)
		return fail(w, err);
	fputs(config, f);
	return fclose(f) ? fail(w, err) : 0;
}

/* The files of one: its shards, then the others. */
enum { FILES = SHARDS + 3 };

static void file_path(const char *dir, unsigned i, char *path, size_t size)
{
	static const char *const others[] = {
		"model.safetensors.index.json", "index.new", "config.json"};

	_Static_assert(SHARDS + ARRAY_LEN(others) == FILES, "one name each");
	if (i < SHARDS)
		snprintf(path, size, "%s/model-%05u-of-%05u.safetensors", dir, i + 1, SHARDS);
	else
		snprintf(path, size, "%s/%s", dir, others[i - SHARDS]);
}

bool checkpoint_begun(const char *dir)
{
	char path[4096];
	bool any = false;

	for (unsigned i = 0; i < FILES && !any; i++) {
		file_path(dir, i, path, sizeof(path));
		any = access(path, F_OK) == 0;
	}
	return any;
}

int checkpoint_make(const char *dir, bool *ret_made, struct errbuf *err)
{
	struct writer w = {.dir = dir};
	struct ckpt *ck;
	int ret;

	if (ckpt_open(dir, &ck, NULL) == 0) {
		ckpt_close(ck);
		*ret_made = false;
		return 0;
	}
	if (checkpoint_begun(dir))
		return err_set(err, -EEXIST, EXIT_USAGE_ERR,
			"%s: neither a whole checkpoint nor free for one", dir);
	w.header = malloc(HEADER_MAX);
	if (!w.header)
		return err_set(err, -ENOMEM, EXIT_OS_ERR, "no memory");
	ret = write_config(&w, err);
	if (ret == 0)
		ret = ckpt_open_dummy(dir, &ck, err);
	if (ret < 0)
		goto out;
	w.ck = ck;
	ret = plan_build(ck, 0, 1, &w.plan, err);
	if (ret == 0) {
		ret = write_all(&w, err);
		plan_fini(&w.plan);
	}
	ckpt_close(ck);
	*ret_made = true;
out:
	free(w.header);
	return ret;
}

void checkpoint_remove(const char *dir, bool dir_too)
{
	char path[4096];

	for (unsigned i = 0; i < FILES; i++) {
		file_path(dir, i, path, sizeof(path));
		unlink(path);
	}
	if (dir_too)
		rmdir(dir);
}
