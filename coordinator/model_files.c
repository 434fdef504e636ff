#include "coordinator/model_files.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include "coordinator/chat.h"
#include "shm/file.h"

#define CONFIG_BYTES_MAX ((size_t)4 << 20)

static int find_name(struct model_files *m, const struct conf *conf, struct errbuf *err)
{
	char real[PATH_MAX], *slash;
	struct stat st;
	int error = 0;

	/* before the worker looks, in its words: the tokenizer would name a file */
	if (!realpath(conf->model_path, real) || stat(real, &st) < 0)
		error = errno;
	else if (!S_ISDIR(st.st_mode))
		error = ENOTDIR;
	if (error)
		return err_set(err, -error, file_exit_code(error),
			"%.400s: %s; a directory with config.json and *.safetensors is needed",
			conf->model_path, strerror(error));
	slash = strrchr(real, '/');
	snprintf(m->name, sizeof(m->name), "%.1000s",
		*conf->model_name ? conf->model_name
		: slash           ? slash + 1
				  : real);
	if (!utf8_valid(m->name, strlen(m->name)))
		return err_set(err, -EINVAL, EXIT_CONFIG_ERR,
			"the model's name is not valid UTF-8: set model.name");
	return 0;
}

/*
 * Ids are below this: vocab_size of config.json. UINT32_MAX where that file does not say it: the
 * worker reads all of it, and has the words for what is wrong there.
 */
static uint32_t find_vocab(const char *dir)
{
	char path[PATH_MAX], *text;
	uint32_t vocab = UINT32_MAX;
	json_int_t value;
	json_t *root;
	size_t len;

	if (snprintf(path, sizeof(path), "%s/config.json", dir) >= (int)sizeof(path) ||
		file_read(AT_FDCWD, path, path, CONFIG_BYTES_MAX, &text, &len, NULL) < 0)
		return vocab;
	root = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
	free(text);
	value = json_integer_value(json_object_get(root, "vocab_size"));
	if (value > 0 && value < vocab)
		vocab = (uint32_t)value;
	json_decref(root);
	return vocab;
}

static int check_tokenizer(
	const struct tokenizer *tok, const char *dir, uint32_t vocab, struct errbuf *err)
{
	const uint32_t last = tokenizer_vocab(tok) - 1;
	size_t len = 0;
	const char *text;

	if (last >= vocab) {
		text = tokenizer_token_bytes(tok, last, &len);
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"%s/tokenizer.json: the id %u of '%.*s' is outside the vocabulary of %u "
			"tokens (vocab_size of config.json)",
			dir, last, (int)MIN(len, 60), text ? text : "", vocab);
	}
	text = chat_lacks(tok, NULL);
	if (text)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"%s/tokenizer.json: added_tokens lacks '%s', a token of DeepSeek V4's "
			"chat format",
			dir, text);
	return 0;
}

static int load(struct model_files *m, const struct conf *conf, struct errbuf *err)
{
	const char *dir = conf->model_path;
	uint32_t vocab = find_vocab(dir);
	char where[PATH_MAX];
	int ret;

	ret = tokenizer_load(dir, &m->tok, err);
	if (ret == 0)
		ret = check_tokenizer(m->tok, dir, vocab, err);
	if (ret == 0)
		ret = gendef_load(dir, tokenizer_eos(m->tok), vocab, &m->gendef, err);
	if (ret < 0)
		return ret;
	if (!m->gendef.eos_n)
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"no token ends an answer: neither tokenizer_config.json nor " GENDEF_FILE
			" in %s names an end token",
			dir);
	snprintf(where, sizeof(where), "%s/" GENDEF_FILE, dir);
	return param_defaults(conf, m->gendef.json, where, &m->defaults, err);
}

int model_files_load(const struct conf *conf, struct model_files *ret_files, struct errbuf *err)
{
	struct model_files m = {.tok = NULL};
	int ret = find_name(&m, conf, err);

	if (ret == 0)
		ret = load(&m, conf, err);
	if (ret == 0)
		*ret_files = m;
	else
		model_files_fini(&m);
	return ret;
}

void model_files_fini(struct model_files *m)
{
	m->tok = tokenizer_free(m->tok);
	gendef_fini(&m->gendef);
}
