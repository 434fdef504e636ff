#include "worker/ckpt/ckpt.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/ckpt/ckpt_files.h"

#define CONFIG_FILE      "config.json"
#define CONFIG_BYTES_MAX ((size_t)4 << 20)

/* Where the tensors of a checkpoint are looked for while its table is made. */
struct resolver {
	struct ckpt *ck;
	struct ckpt_files *files; /* NULL: a dummy */
	struct errbuf *err;
	char name[TENSOR_NAME_MAX]; /* the tensor at hand, for messages */
};

static int bad(const struct resolver *r, const char *what)
{
	return err_set(
		r->err, -EINVAL, EXIT_DATA_ERR, "%s: tensor %s: %s", r->ck->dir, r->name, what);
}

static const char *file_of(const struct resolver *r, const struct ckpt_name *t)
{
	return r->files->files[t->file].name;
}

static int bad_type(const struct resolver *r, const struct ckpt_name *t, const char *want)
{
	return err_set(r->err, -EINVAL, EXIT_DATA_ERR,
		"%s/%s: tensor %s has type %s; it must be %s", r->ck->dir, file_of(r, t),
		t->tensor->name, st_dtype_name(t->tensor->dtype), want);
}

/* "[2048, 4096]" */
static void shape_text(const uint64_t *dims, uint32_t n, char *out, size_t cap)
{
	size_t at = 0;

	out[0] = '\0';
	for (uint32_t i = 0; i < n && at < cap; i++)
		at += (size_t)snprintf(out + at, cap - at, "%s%" PRIu64, i ? ", " : "", dims[i]);
}

static int check_shape(
	const struct resolver *r, const struct ckpt_name *t, const uint64_t *dims, uint32_t ndim)
{
	char have[192], want[192];

	if (t->tensor->ndim == ndim && memcmp(t->tensor->shape, dims, ndim * sizeof(*dims)) == 0)
		return 0;
	shape_text(t->tensor->shape, t->tensor->ndim, have, sizeof(have));
	shape_text(dims, ndim, want, sizeof(want));
	return err_set(r->err, -EINVAL, EXIT_DATA_ERR,
		"%s/%s: tensor %s has shape [%s]; by config.json it must be [%s]", r->ck->dir,
		file_of(r, t), t->tensor->name, have, want);
}

/* The element type a tensor of the file has, if its row of tensor.def and the config allow it. */
static int elem_type(const struct resolver *r, const struct ckpt_name *t, enum tensor_types types,
	enum ckpt_elem *ret)
{
	const struct model_config *cfg = &r->ck->cfg;
	bool fp8 = cfg->fp8 && (types == TENSOR_TYPES_LINEAR || types == TENSOR_TYPES_EXPERT);
	bool fp4 = cfg->expert_type == MODEL_EXPERT_FP4 && types == TENSOR_TYPES_EXPERT;
	bool real = types != TENSOR_TYPES_INT;

	switch (t->tensor->dtype) {
	case ST_F32:
		*ret = CKPT_F32;
		return real ? 0 : bad_type(r, t, "I64 or I32");
	case ST_BF16:
		*ret = CKPT_BF16;
		return real ? 0 : bad_type(r, t, "I64 or I32");
	case ST_F16:
		*ret = CKPT_F16;
		return real ? 0 : bad_type(r, t, "I64 or I32");
	case ST_F8_E4M3:
		*ret = CKPT_F8_E4M3;
		if (fp8)
			return 0;
		break;
	case ST_I8:
	case ST_U8:
		*ret = CKPT_F4_E2M1;
		if (fp4)
			return 0;
		break;
	case ST_I64:
		*ret = CKPT_I64;
		return real ? bad_type(r, t, "BF16, F16 or F32") : 0;
	case ST_I32:
		*ret = CKPT_I32;
		return real ? bad_type(r, t, "BF16, F16 or F32") : 0;
	default:
		break;
	}
	return bad_type(r, t,
		!real ? "I64 or I32"
		: fp4 ? "BF16, F16, F32, F8_E4M3, or I8 (two FP4 in a byte)"
		: fp8 ? "BF16, F16, F32 or F8_E4M3"
		      : "BF16, F16 or F32 (or config.json lacks its quantization_config)");
}

struct tensor_shape ckpt_scale_shape(const struct model_config *cfg, const struct ckpt_entry *e)
{
	struct tensor_block b = tensor_block(cfg, e->elem);

	if (e->scale == CKPT_SCALE_NONE)
		return (struct tensor_shape){0, 0};
	return (struct tensor_shape){DIV_UP(e->shape.rows, b.rows), DIV_UP(e->shape.cols, b.cols)};
}

uint64_t ckpt_entry_bytes(const struct ckpt_entry *e)
{
	return e->data.bytes + e->scales.bytes;
}

static struct ckpt_name *find(const struct resolver *r, const char *name)
{
	struct ckpt_name *t = ckpt_files_find(r->files, name);

	if (t)
		t->used = true;
	return t;
}

/* "X.weight" -> its scales, "X.scale" or the older "X.weight_scale_inv". */
static int resolve_scales(
	const struct resolver *r, const struct ckpt_name *weight, struct ckpt_entry *e)
{
	static const char *const suffixes[] = {".scale", ".weight_scale_inv"};
	size_t stem = strlen(weight->name) - strlen(".weight");
	char name[ST_NAME_MAX + 32];
	const struct ckpt_name *t = NULL;
	struct tensor_shape s;
	uint64_t dims[2];
	int ret;

	for (size_t i = 0; i < ARRAY_LEN(suffixes) && !t; i++) {
		snprintf(name, sizeof(name), "%.*s%s", (int)stem, weight->name, suffixes[i]);
		t = find(r, name);
	}
	if (!t)
		return err_set(r->err, -EINVAL, EXIT_DATA_ERR,
			"%s/%s: tensor %s is %s, but its scales (%.*s.scale) are missing",
			r->ck->dir, file_of(r, weight), weight->tensor->name,
			ckpt_elem_name(e->elem), (int)stem, weight->name);
	if (t->tensor->dtype == ST_F8_E8M0)
		e->scale = CKPT_SCALE_E8M0;
	else if (t->tensor->dtype == ST_F32 && e->elem == CKPT_F8_E4M3)
		e->scale = CKPT_SCALE_F32;
	else
		return bad_type(r, t, e->elem == CKPT_F8_E4M3 ? "F8_E8M0 or F32" : "F8_E8M0");
	s = ckpt_scale_shape(&r->ck->cfg, e);
	dims[0] = s.rows;
	dims[1] = s.cols;
	ret = check_shape(r, t, dims, 2);
	e->scales = (struct ckpt_view){t->file, t->tensor->offset, t->tensor->bytes};
	return ret;
}

/* An expert as a part of transformers' tensor of all experts: [E, 2 inter, d] or [E, d, inter]. */
static int resolve_packed(const struct resolver *r, const struct ckpt_name *t, struct ckpt_entry *e)
{
	bool pair = e->kind != TENSOR_EXPERT_W2; /* w1 and w3 lie behind each other */
	uint64_t dims[3] = {r->ck->cfg.experts, e->shape.rows * (pair ? 2 : 1), e->shape.cols};
	uint64_t bytes, part;
	int ret;

	ret = elem_type(r, t, TENSOR_TYPES_FLOAT, &e->elem);
	if (ret == 0)
		ret = check_shape(r, t, dims, 3);
	if (ret < 0)
		return ret;
	bytes = e->shape.rows * ckpt_elem_bytes(e->elem, e->shape.cols);
	part = (uint64_t)e->expert * (pair ? 2 : 1) + (e->kind == TENSOR_EXPERT_W3);
	e->data = (struct ckpt_view){t->file, t->tensor->offset + part * bytes, bytes};
	return 0;
}

/* Finds one tensor by its released or transformers' name, checks it, fills the rest of e. */
static int resolve(struct resolver *r, struct ckpt_entry *e)
{
	const struct tensor_row *row = tensor_row(e->kind);
	char hf[TENSOR_NAME_MAX];
	const struct ckpt_name *t;
	uint64_t dims[2];
	int ret;

	tensor_name(e->kind, e->layer, e->expert, r->name);
	t = find(r, r->name);
	for (int i = 0; !t && tensor_hf_name(e->kind, e->layer, i, hf); i++)
		t = find(r, hf);
	if (t && t->tensor->ndim == 3 && row->hf_name[0] == '@')
		return resolve_packed(r, t, e);
	if (!t)
		return bad(r, "missing in the files of the checkpoint");
	ret = elem_type(r, t, row->types, &e->elem);
	if (ret < 0)
		return ret;
	dims[0] = e->shape.rows;
	dims[1] = e->elem == CKPT_F4_E2M1 ? e->shape.cols / 2 : e->shape.cols;
	ret = check_shape(r, t, dims, row->ndim);
	if (ret < 0)
		return ret;
	e->data = (struct ckpt_view){t->file, t->tensor->offset, t->tensor->bytes};
	if (e->elem == CKPT_F8_E4M3 || e->elem == CKPT_F4_E2M1)
		ret = resolve_scales(r, t, e);
	return ret;
}

/* A dummy's tensor: the types the released models have. */
static void make_up(const struct model_config *cfg, struct ckpt_entry *e)
{
	struct tensor_shape s;

	e->elem = tensor_released_elem(cfg, e->kind);
	e->scale = e->elem == CKPT_F8_E4M3 || e->elem == CKPT_F4_E2M1 ? CKPT_SCALE_E8M0
								      : CKPT_SCALE_NONE;
	s = ckpt_scale_shape(cfg, e);
	e->data.bytes = e->shape.rows * ckpt_elem_bytes(e->elem, e->shape.cols);
	e->scales.bytes = ckpt_scale_bytes(e->scale, s.rows * s.cols);
}

static size_t copies(const struct model_config *cfg, enum tensor_kind kind, int layer)
{
	if (!tensor_exists(cfg, kind, layer))
		return 0;
	return tensor_row(kind)->scope == TENSOR_IN_EXPERT ? cfg->experts : 1;
}

static int add_entries(struct resolver *r, enum tensor_kind kind, int layer)
{
	struct ckpt *ck = r->ck;
	size_t n = copies(&ck->cfg, kind, layer);
	int ret;

	for (size_t i = 0; i < n; i++) {
		struct ckpt_entry *e = &ck->entries[ck->entry_n];

		e->kind = kind;
		e->layer = layer;
		e->expert = tensor_row(kind)->scope == TENSOR_IN_EXPERT ? (int)i : -1;
		e->shape = tensor_shape(&ck->cfg, kind, layer);
		if (!r->files) {
			make_up(&ck->cfg, e);
		} else {
			ret = resolve(r, e);
			if (ret < 0)
				return ret;
		}
		ck->entry_n++;
	}
	return 0;
}

/* The table of all tensors the configuration asks for. */
static int make_entries(struct resolver *r)
{
	struct ckpt *ck = r->ck;
	int layers = (int)ck->cfg.layers, ret = 0;
	size_t n = 0;

	for (int layer = -1; layer < layers; layer++)
		for (int k = 0; k < TENSOR__COUNT; k++)
			n += copies(&ck->cfg, (enum tensor_kind)k, layer);
	ck->entries = calloc(n, sizeof(*ck->entries));
	if (!ck->entries)
		return err_set(
			r->err, -ENOMEM, EXIT_OS_ERR, "no memory for the checkpoint's tables");
	for (int layer = -1; layer < layers && ret == 0; layer++)
		for (int k = 0; k < TENSOR__COUNT && ret == 0; k++)
			ret = add_entries(r, (enum tensor_kind)k, layer);
	return ret;
}

static int read_config(struct ckpt_files *f, struct model_config *cfg, struct errbuf *err)
{
	char path[4096], *bytes;
	size_t len;
	int ret;

	ret = ckpt_files_read(f, CONFIG_FILE, CONFIG_BYTES_MAX, &bytes, &len, err);
	if (ret < 0)
		return ret;
	snprintf(path, sizeof(path), "%s/" CONFIG_FILE, f->dir);
	ret = model_config_parse(path, bytes, len, cfg, err);
	free(bytes);
	return ret;
}

int ckpt_read_config(const char *dir, struct model_config *ret_cfg, struct errbuf *err)
{
	struct ckpt_files f;
	int ret = ckpt_files_init(dir, &f, err);

	if (ret < 0)
		return ret;
	ret = read_config(&f, ret_cfg, err);
	ckpt_files_fini(&f);
	return ret;
}

struct ckpt *ckpt_close(struct ckpt *ck)
{
	if (!ck)
		return NULL;
	for (size_t i = 0; i < ck->file_n; i++) {
		free(ck->files[i].name);
		close(ck->files[i].fd);
	}
	free(ck->files);
	free(ck->entries);
	free(ck->dir);
	free(ck);
	return NULL;
}

static struct ckpt *ckpt_new(const char *dir)
{
	struct ckpt *ck = calloc(1, sizeof(*ck));

	if (ck)
		ck->dir = strdup(dir);
	if (!ck || !ck->dir)
		return ckpt_close(ck);
	return ck;
}

/* The layer a tensor is named after, or -1. */
static long layer_of(const char *name)
{
	char *end;
	long layer;

	if (strncmp(name, "layers.", 7) != 0 || name[7] < '0' || name[7] > '9')
		return -1;
	layer = strtol(name + 7, &end, 10);
	return *end == '.' ? layer : -1;
}

/* Tensors that the model does not use may be there, but not layers that would be left out. */
static int count_extra(struct ckpt *ck, const struct ckpt_files *f, struct errbuf *err)
{
	for (size_t i = 0; i < f->name_n; i++) {
		const struct ckpt_name *t = &f->names[i];

		if (t->used)
			continue;
		if (layer_of(t->name) >= (long)ck->cfg.layers)
			return err_set(err, -EINVAL, EXIT_DATA_ERR,
				"%s/%s: tensor %s belongs to a layer that the model has not: "
				"num_hidden_layers in config.json is %u",
				ck->dir, f->files[t->file].name, t->tensor->name, ck->cfg.layers);
		ck->extra_n++;
		ck->extra_bytes += t->tensor->bytes;
	}
	return 0;
}

int ckpt_open(const char *dir, struct ckpt **ret_ckpt, struct errbuf *err)
{
	struct ckpt_files f;
	struct resolver r = {NULL, &f, err, ""};
	int ret;

	ret = ckpt_files_init(dir, &f, err);
	if (ret < 0)
		return ret;
	r.ck = ckpt_new(dir);
	ret = r.ck ? read_config(&f, &r.ck->cfg, err)
		   : err_set(err, -ENOMEM, EXIT_OS_ERR, "no memory for the checkpoint's tables");
	if (ret == 0)
		ret = ckpt_files_scan(&f, err);
	if (ret == 0)
		ret = make_entries(&r);
	if (ret == 0)
		ret = count_extra(r.ck, &f, err);
	if (ret == 0) {
		r.ck->files = f.files;
		r.ck->file_n = f.n;
		f.files = NULL;
		*ret_ckpt = r.ck;
	} else {
		ckpt_close(r.ck);
	}
	ckpt_files_fini(&f);
	return ret;
}

int ckpt_new_dummy(const struct model_config *cfg, struct ckpt **ret_ckpt)
{
	struct resolver r = {ckpt_new("(dummy)"), NULL, NULL, ""};

	if (!r.ck)
		return -ENOMEM;
	r.ck->cfg = *cfg;
	r.ck->dummy = true;
	if (make_entries(&r) < 0) {
		ckpt_close(r.ck);
		return -ENOMEM;
	}
	*ret_ckpt = r.ck;
	return 0;
}

int ckpt_open_dummy(const char *dir, struct ckpt **ret_ckpt, struct errbuf *err)
{
	struct model_config cfg;
	int ret = ckpt_read_config(dir, &cfg, err);

	if (ret < 0)
		return ret;
	ret = ckpt_new_dummy(&cfg, ret_ckpt);
	if (ret < 0)
		return err_set(err, ret, EXIT_OS_ERR, "no memory for the checkpoint's tables");
	return 0;
}
