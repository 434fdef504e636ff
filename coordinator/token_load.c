/*
 * From two files to a struct tokenizer. The parts of tokenizer.json have a file each: steps
 * (everything that is only checked), vocabulary (tokens), merges.
 */
#include "coordinator/one_line.h"
#include "coordinator/token_impl.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "shm/file.h"

#define FILE_MAX_BYTES (256u << 20) /* DeepSeek's has 8 MB */

struct tokenizer *tokenizer_free(struct tokenizer *tok)
{
	if (!tok)
		return NULL;
	for (uint32_t i = 0; i < tok->splits_len; i++)
		token_regex_fini(&tok->splits[i]);
	free(tok->added[0].nodes);
	free(tok->added[1].nodes);
	free(tok->entries);
	free(tok->blob);
	free(tok->merges);
	free(tok->words.slots);
	free(tok);
	return NULL;
}

/* A member of tokenizer_config.json that names a token: null, a string or {"content": string}. */
static int config_token(struct token_load *l, json_t *config, const char *key, int64_t *ret_id)
{
	json_t *v = json_object_get(config, key);
	int64_t id;

	if (json_is_object(v))
		v = json_object_get(v, "content");
	if (!v || json_is_null(v))
		return 0;
	if (!json_is_string(v))
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
			"%s: %s must be a string, an object with a content, or null", l->where,
			key);
	id = token_id_of(l->tok, json_string_value(v), json_string_length(v));
	if (id < 0)
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
			"%s: %s is '%.60s', which tokenizer.json does not have", l->where, key,
			json_string_value(v));
	*ret_id = id;
	return 0;
}

static int config_bool(struct token_load *l, json_t *config, const char *key, bool *ret)
{
	json_t *v = json_object_get(config, key);

	if (!v || json_is_null(v))
		return 0;
	if (!json_is_boolean(v))
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR, "%s: %s must be true or false",
			l->where, key);
	*ret = json_is_true(v);
	return 0;
}

/* Tokens that only tokenizer_config.json knows would be added by `transformers` while loading. */
static int config_added(struct token_load *l, json_t *config)
{
	json_t *all = json_object_get(config, "added_tokens_decoder"), *v;
	const char *key;

	json_object_foreach (all, key, v) {
		json_t *content = json_object_get(v, "content");
		int64_t id = -1;

		if (json_is_string(content))
			id = tokenizer_find(l->tok, json_string_value(content));
		if (id < 0 || id != strtoll(key, NULL, 10))
			return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
				"%s: added_tokens_decoder has id %.20s as '%.60s'; tokenizer.json "
				"does not list this added token",
				l->where, key,
				json_is_string(content) ? json_string_value(content) : "");
	}
	return 0;
}

int token_load_config(struct token_load *l, json_t *config, const char *where)
{
	bool eos = false, prefix = false;
	int r;

	if (!config)
		return 0;
	l->where = where;
	if (!json_is_object(config))
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR, "%s: must be an object", where);
	if ((r = config_token(l, config, "bos_token", &l->tok->bos)) < 0 ||
		(r = config_token(l, config, "eos_token", &l->tok->eos)) < 0 ||
		(r = config_bool(l, config, "add_bos_token", &l->tok->add_bos)) < 0 ||
		(r = config_bool(l, config, "add_eos_token", &eos)) < 0 ||
		(r = config_bool(l, config, "add_prefix_space", &prefix)) < 0 ||
		(r = config_added(l, config)) < 0)
		return r;
	if (eos)
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
			"%s: add_eos_token must be false; nothing can follow a prompt that has "
			"ended",
			where);
	if (prefix)
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
			"%s: add_prefix_space must be false; true is not supported", where);
	return 0;
}

static int parse_json(
	const void *bytes, size_t len, const char *where, json_t **ret, struct errbuf *err)
{
	json_error_t e;
	json_t *root = json_loadb(bytes, len, JSON_REJECT_DUPLICATES, &e);

	if (!root && json_error_code(&e) == json_error_out_of_memory)
		return -ENOMEM;
	if (!root)
		return err_set(err, -EINVAL, EXIT_DATA_ERR, "%s:%d:%d: %s", where, e.line, e.column,
			e.text);
	*ret = root;
	return 0;
}

static int build(struct token_load *l, json_t *root, json_t *config, const char *config_where)
{
	const char *where = l->where;
	json_t *model;
	int r;

	r = token_load_steps(l, root);
	if (r < 0)
		return r;
	model = json_object_get(root, "model");
	l->vocab = json_object_get(model, "vocab");
	if ((r = token_load_vocab(l, root)) < 0 || (r = token_load_merges(l, model)) < 0)
		return r;
	if (l->tok->ignore_merges && (r = token_words_build(l->tok)) < 0)
		return r;
	if (l->tok->bos >= 0 && !tokenizer_token_bytes(l->tok, (uint32_t)l->tok->bos, NULL))
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
			"%s: post_processor adds id %lld, which no token has", where,
			(long long)l->tok->bos);
	r = token_load_config(l, config, config_where);
	if (r < 0)
		return r;
	if (l->tok->add_bos && l->tok->bos < 0)
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
			"%s: add_bos_token is true but there is no bos_token", config_where);
	return 0;
}

static int parse(const void *json, size_t len, const char *where, const void *config_json,
	size_t config_len, const char *config_where, struct tokenizer **ret_tok, struct errbuf *err)
{
	struct token_load l = {.where = where, .err = err};
	json_t *root = NULL, *config = NULL;
	int r;

	r = parse_json(json, len, where, &root, err);
	if (r == 0 && config_json)
		r = parse_json(config_json, config_len, config_where, &config, err);
	if (r < 0)
		goto out;
	r = -ENOMEM;
	l.tok = calloc(1, sizeof(*l.tok));
	if (!l.tok)
		goto out;
	l.tok->bos = l.tok->eos = -1;
	r = build(&l, root, config, config_where);
out:
	if (r == -ENOMEM)
		err_set(err, r, EXIT_OS_ERR, "%s: no memory to load it", where);
	json_decref(root);
	json_decref(config);
	if (r == 0) {
		*ret_tok = l.tok;
		return 0;
	}
	if (err)
		one_line(err->text);
	tokenizer_free(l.tok);
	return r;
}

int tokenizer_parse(const void *json, size_t len, const void *config_json, size_t config_len,
	struct tokenizer **ret_tok, struct errbuf *err)
{
	return parse(json, len, "tokenizer.json", config_json, config_len, "tokenizer_config.json",
		ret_tok, err);
}

int tokenizer_load(const char *dir, struct tokenizer **ret_tok, struct errbuf *err)
{
	char path[PATH_MAX], config_path[PATH_MAX];
	char *json = NULL, *config = NULL;
	size_t len = 0, config_len = 0;
	int r;

	if (snprintf(config_path, sizeof(config_path), "%s/tokenizer_config.json", dir) >=
		(int)sizeof(config_path))
		return err_set(
			err, -ENAMETOOLONG, EXIT_NO_INPUT, "%.60s...: the path is too long", dir);
	snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
	r = file_read(AT_FDCWD, path, path, FILE_MAX_BYTES, &json, &len, err);
	if (r < 0)
		return r;
	/* Without the second file there are no BOS and EOS; whoever needs them says so. */
	r = file_read(
		AT_FDCWD, config_path, config_path, FILE_MAX_BYTES, &config, &config_len, err);
	if (r == 0 || r == -ENOENT)
		r = parse(json, len, path, config, config_len, config_path, ret_tok, err);
	free(json);
	free(config);
	return r;
}
