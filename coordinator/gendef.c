#include "coordinator/gendef.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>

#include "coordinator/one_line.h"
#include "shm/file.h"

#define GENDEF_BYTES_MAX (1u << 20)

/* What is said with and checked against. */
struct gendef_where {
	const char *path;
	uint32_t vocab;
};

static int gendef_add_eos(
	struct gendef *def, const json_t *id, const struct gendef_where *w, struct errbuf *err)
{
	size_t i;

	if (!json_is_integer(id) || json_integer_value(id) < 0)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"%s: eos_token_id must be a token id or a list of them", w->path);
	if (json_integer_value(id) >= w->vocab)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"%s: eos_token_id %lld is outside the vocabulary of %u tokens", w->path,
			(long long)json_integer_value(id), w->vocab);
	for (i = 0; i < def->eos_n; i++)
		if (def->eos[i] == (uint32_t)json_integer_value(id))
			return 0;
	if (def->eos_n == GENDEF_EOS_MAX)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"%s: eos_token_id lists more than %d tokens", w->path, GENDEF_EOS_MAX);
	def->eos[def->eos_n++] = (uint32_t)json_integer_value(id);
	return 0;
}

static int gendef_read_eos(struct gendef *def, const struct gendef_where *w, struct errbuf *err)
{
	json_t *eos = json_object_get(def->json, "eos_token_id"), *one;
	size_t i;
	int ret;

	if (!eos || json_is_null(eos))
		return 0;
	if (!json_is_array(eos))
		return gendef_add_eos(def, eos, w, err);
	json_array_foreach (eos, i, one) {
		ret = gendef_add_eos(def, one, w, err);
		if (ret)
			return ret;
	}
	return 0;
}

int gendef_load(const char *dir, int64_t tokenizer_eos, uint32_t vocab, struct gendef *ret_def,
	struct errbuf *err)
{
	struct gendef def = {0};
	char path[PATH_MAX], *text;
	const struct gendef_where where = {path, vocab};
	json_error_t why;
	size_t len;
	int ret;

	if (snprintf(path, sizeof(path), "%s/" GENDEF_FILE, dir) >= (int)sizeof(path))
		return err_set(err, -ENAMETOOLONG, EXIT_CONFIG_ERR, "model.path is too long");
	if (tokenizer_eos >= 0)
		def.eos[def.eos_n++] = (uint32_t)tokenizer_eos;
	ret = file_read(AT_FDCWD, path, path, GENDEF_BYTES_MAX, &text, &len, err);
	if (ret == -ENOENT) {
		*ret_def = def;
		return 0;
	}
	if (ret < 0)
		return ret;
	def.json = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
	free(text);
	if (!def.json) {
		ret = err_set(err, -EINVAL, EXIT_DATA_ERR, "%s:%d: %s", path, why.line, why.text);
		if (err)
			one_line(err->text);
		return ret;
	}
	ret = json_is_object(def.json)
		      ? gendef_read_eos(&def, &where, err)
		      : err_set(err, -EINVAL, EXIT_DATA_ERR, "%s must hold a JSON object", path);
	if (ret)
		gendef_fini(&def);
	else
		*ret_def = def;
	return ret;
}

void gendef_fini(struct gendef *def)
{
	json_decref(def->json);
	*def = (struct gendef){0};
}
