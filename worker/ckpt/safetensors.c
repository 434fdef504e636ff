#include "worker/ckpt/safetensors.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

static const struct {
	const char *name;
	uint8_t bytes;
} dtypes[ST__COUNT] = {
#define X(name, suffix, bytes) {name, bytes},
	ST_DTYPES(X)
#undef X
};

const char *st_dtype_name(enum st_dtype dtype)
{
	return dtypes[dtype].name;
}

uint64_t st_dtype_bytes(enum st_dtype dtype)
{
	return dtypes[dtype].bytes;
}

int st_json_len(const char *name, const uint8_t prefix[ST_PREFIX_BYTES], uint64_t file_bytes,
	uint64_t *ret_len, struct errbuf *err)
{
	uint64_t len = 0;

	for (int i = ST_PREFIX_BYTES - 1; i >= 0; i--)
		len = len << 8 | prefix[i];
	if (len < 2 || len > ST_JSON_MAX)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"%s: not a safetensors file: its header would be %" PRIu64
			" bytes long (2 to %d are possible)",
			name, len, ST_JSON_MAX);
	if (file_bytes < ST_PREFIX_BYTES || len > file_bytes - ST_PREFIX_BYTES)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"%s: truncated inside its header: the file has %" PRIu64
			" bytes, the header alone needs %" PRIu64 "; copy it again",
			name, file_bytes, len + ST_PREFIX_BYTES);
	*ret_len = len;
	return 0;
}

/* Names go into messages and terminals. */
static bool name_ok(const char *name)
{
	size_t len = strlen(name);

	if (len == 0 || len > ST_NAME_MAX)
		return false;
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
			return false;
	return true;
}

static int parse_dtype(const json_t *v, enum st_dtype *ret)
{
	if (!json_is_string(v))
		return -EINVAL;
	for (int i = 0; i < ST__COUNT; i++) {
		if (strcmp(json_string_value(v), dtypes[i].name) == 0) {
			*ret = (enum st_dtype)i;
			return 0;
		}
	}
	return -EINVAL;
}

/* Dimensions, and the bytes they make; -EOVERFLOW where that leaves 63 bits. */
static int parse_shape(const json_t *v, struct st_tensor *t, uint64_t *ret_bytes)
{
	uint64_t n = dtypes[t->dtype].bytes;

	if (!json_is_array(v) || json_array_size(v) > ST_NDIM_MAX)
		return -EINVAL;
	t->ndim = (uint32_t)json_array_size(v);
	for (uint32_t i = 0; i < t->ndim; i++) {
		const json_t *dim = json_array_get(v, i);

		if (!json_is_integer(dim) || json_integer_value(dim) < 0)
			return -EINVAL;
		t->shape[i] = (uint64_t)json_integer_value(dim);
		if (__builtin_mul_overflow(n, t->shape[i], &n) || n > INT64_MAX)
			return -EOVERFLOW;
	}
	*ret_bytes = n;
	return 0;
}

/* [begin, end), relative to the data. */
static int parse_range(const json_t *v, uint64_t *ret_begin, uint64_t *ret_end)
{
	const json_t *a = json_array_get(v, 0), *b = json_array_get(v, 1);

	if (!json_is_array(v) || json_array_size(v) != 2 || !json_is_integer(a) ||
		!json_is_integer(b) || json_integer_value(a) < 0 ||
		json_integer_value(b) < json_integer_value(a))
		return -EINVAL;
	*ret_begin = (uint64_t)json_integer_value(a);
	*ret_end = (uint64_t)json_integer_value(b);
	return 0;
}

/* One member of the object. t->offset stays relative to the data until check_ranges(). */
static int parse_tensor(const char *file, const char *name, const json_t *v, struct st_tensor *t,
	struct errbuf *err)
{
	const json_t *dtype = json_object_get(v, "dtype");
	uint64_t begin, end, bytes;
	int ret;

	if (!name_ok(name))
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"%s: a tensor's name is empty, longer than %d bytes or not printable", file,
			ST_NAME_MAX);
	if (!json_is_object(v))
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"%s: tensor %s: its description is not an object", file, name);
	if (parse_dtype(dtype, &t->dtype) < 0)
		return err_set(err, -EINVAL, EXIT_DATA_ERR, "%s: tensor %s: unknown dtype %.32s",
			file, name, json_is_string(dtype) ? json_string_value(dtype) : "(none)");
	ret = parse_shape(json_object_get(v, "shape"), t, &bytes);
	if (ret < 0)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			ret == -EOVERFLOW ? "%s: tensor %s: its shape exceeds 2^63 bytes"
					  : "%s: tensor %s: its shape is not a list of at most 8 "
					    "sizes",
			file, name);
	if (parse_range(json_object_get(v, "data_offsets"), &begin, &end) < 0)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"%s: tensor %s: data_offsets is not a range [begin, end]", file, name);
	if (end - begin != bytes)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"%s: tensor %s: its shape needs %" PRIu64
			" bytes, but data_offsets gives it %" PRIu64,
			file, name, bytes, end - begin);
	t->offset = begin;
	t->bytes = bytes;
	return 0;
}

static int by_offset(const void *a, const void *b)
{
	const struct st_tensor *x = a, *y = b;

	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	if (x->bytes != y->bytes) /* empty tensors first: they end where the next begins */
		return x->bytes < y->bytes ? -1 : 1;
	return strcmp(x->name, y->name);
}

/* The ranges must tile the data exactly, and the data must be all there; makes offsets absolute. */
static int check_ranges(const char *file, struct st_header *h, uint64_t data0, uint64_t file_bytes,
	struct errbuf *err)
{
	uint64_t at = 0, have, want = data0;

	if (file_bytes < data0)
		return err_set(
			err, -EINVAL, EXIT_DATA_ERR, "%s: truncated inside its header", file);
	have = file_bytes - data0;
	qsort(h->tensors, h->n, sizeof(*h->tensors), by_offset);
	if (h->n) /* both terms are below 2^63; checked against the file below */
		want += h->tensors[h->n - 1].offset + h->tensors[h->n - 1].bytes;
	for (size_t i = 0; i < h->n; i++) {
		struct st_tensor *t = &h->tensors[i];

		if (t->offset != at)
			return err_set(err, -EINVAL, EXIT_DATA_ERR,
				"%s: tensor %s begins at byte %" PRIu64 " of the data, which %s "
				"(%" PRIu64 " was due)",
				file, t->name, t->offset,
				t->offset < at ? "overlaps another" : "leaves a hole", at);
		at += t->bytes; /* both below 2^63 */
		if (at > have)
			return err_set(err, -EINVAL, EXIT_DATA_ERR,
				"%s: truncated: tensor %s ends at byte %" PRIu64
				", the whole file should have %" PRIu64
				" bytes, but it has %" PRIu64 "; copy it again",
				file, t->name, data0 + at, want, file_bytes);
		t->offset += data0;
	}
	if (at != have)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"%s: the file has %" PRIu64 " bytes, but its header accounts for %" PRIu64,
			file, file_bytes, data0 + at);
	return 0;
}

/* Allocates for every member but __metadata__. */
static int alloc_header(json_t *root, struct st_header *h)
{
	const char *key;
	json_t *v;
	size_t n = 0, bytes = 1;

	json_object_foreach (root, key, v) {
		bytes += strlen(key) + 1;
		n++;
	}
	h->tensors = calloc(n ? n : 1, sizeof(*h->tensors));
	h->names = malloc(bytes);
	return h->tensors && h->names ? 0 : -ENOMEM;
}

static int fill_header(const char *file, json_t *root, struct st_header *h, struct errbuf *err)
{
	const char *key;
	char *at = h->names;
	json_t *v;
	int ret;

	json_object_foreach (root, key, v) {
		size_t len = strlen(key) + 1;

		if (strcmp(key, "__metadata__") == 0)
			continue;
		ret = parse_tensor(file, key, v, &h->tensors[h->n], err);
		if (ret < 0)
			return ret;
		memcpy(at, key, len);
		h->tensors[h->n++].name = at;
		at += len;
	}
	return 0;
}

int st_parse(const char *name, const void *json, size_t len, uint64_t file_bytes,
	struct st_header *ret_header, struct errbuf *err)
{
	struct st_header h = {0};
	json_error_t jerr;
	json_t *root;
	int ret;

	root = json_loadb(json, len, JSON_REJECT_DUPLICATES, &jerr);
	if (!root)
		return err_set(err, -EINVAL, EXIT_DATA_ERR, "%s: its header is not valid JSON: %s",
			name, jerr.text);
	if (!json_is_object(root)) {
		json_decref(root);
		return err_set(
			err, -EINVAL, EXIT_DATA_ERR, "%s: its header is not a JSON object", name);
	}
	ret = alloc_header(root, &h);
	if (ret == 0)
		ret = fill_header(name, root, &h, err);
	else
		err_set(err, ret, EXIT_OS_ERR, "%s: no memory for its header", name);
	json_decref(root);
	if (ret == 0)
		ret = check_ranges(name, &h, ST_PREFIX_BYTES + len, file_bytes, err);
	if (ret < 0) {
		st_fini(&h);
		return ret;
	}
	*ret_header = h;
	return 0;
}

void st_fini(struct st_header *header)
{
	free(header->tensors);
	free(header->names);
	memset(header, 0, sizeof(*header));
}
