#include "coordinator/gendef.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

static int gendef_add_eos(struct gendef *def, const json_t *id, struct errbuf *err)
{
	json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
	size_t i;

	if (value < 0 || value > INT32_MAX)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"generation_config.json: eos_token_id must be a token id or a list of "
			"them");
	for (i = 0; i < def->eos_n; i++)
		if (def->eos[i] == (uint32_t)value)
			return 0;
	if (def->eos_n == GENDEF_EOS_MAX)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"generation_config.json: eos_token_id lists more than %d tokens",
			GENDEF_EOS_MAX);
	def->eos[def->eos_n++] = (uint32_t)value;
	return 0;
}

static int gendef_read_eos(struct gendef *def, struct errbuf *err)
{
	json_t *eos = json_object_get(def->json, "eos_token_id"), *one;
	size_t i;
	int ret;

	if (!eos || json_is_null(eos))
		return 0;
	if (!json_is_array(eos))
		return gendef_add_eos(def, eos, err);
	json_array_foreach (eos, i, one) {
		ret = gendef_add_eos(def, one, err);
		if (ret)
			return ret;
	}
	return 0;
}

int gendef_load(const char *dir, int64_t tokenizer_eos, struct gendef *ret_def, struct errbuf *err)
{
	struct gendef def = {0};
	char path[PATH_MAX];
	json_error_t why;
	int ret;

	if (snprintf(path, sizeof(path), "%s/generation_config.json", dir) >= (int)sizeof(path))
		return err_set(err, -ENAMETOOLONG, EXIT_CONFIG_ERR, "model.path is too long");
	if (tokenizer_eos >= 0)
		def.eos[def.eos_n++] = (uint32_t)tokenizer_eos;
	if (access(path, R_OK)) {
		ret = -errno;
		if (ret != -ENOENT)
			return err_set(err, ret, EXIT_NO_INPUT, "%s cannot be read", path);
		*ret_def = def;
		return 0;
	}
	def.json = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
	if (!def.json)
		return err_set(err, -EINVAL, EXIT_DATA_ERR, "%s:%d: %s", path, why.line, why.text);
	if (!json_is_object(def.json)) {
		ret = err_set(err, -EINVAL, EXIT_DATA_ERR, "%s must hold a JSON object", path);
		goto fail;
	}
	ret = gendef_read_eos(&def, err);
	if (ret)
		goto fail;
	*ret_def = def;
	return 0;
fail:
	gendef_fini(&def);
	return ret;
}

void gendef_fini(struct gendef *def)
{
	json_decref(def->json);
	*def = (struct gendef){0};
}
