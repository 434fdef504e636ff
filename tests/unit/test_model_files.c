/* What the coordinator reads of a checkpoint: files that are damaged or do not fit each other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/conf.h"
#include "coordinator/model_files.h"
#include "tests/unit/text_fixture.h"

static const char *const names[] = {
	"tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json"};

struct model {
	char dir[64];
	struct conf_set set;
};

static void path_of(const struct model *m, const char *name, char path[256])
{
	snprintf(path, 256, "%s/%s", m->dir, name);
}

static void put_bytes(const struct model *m, const char *name, const char *text, size_t len)
{
	char path[256];
	FILE *f;

	path_of(m, name, path);
	(void)unlink(path);
	f = fopen(path, "w");
	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, len, f), len);
	fclose(f);
}

static void put_text(const struct model *m, const char *name, const char *text)
{
	put_bytes(m, name, text, strlen(text));
}

static void put_json(const struct model *m, const char *name, json_t *json)
{
	char *text = json_dumps(json, 0);

	put_text(m, name, text);
	free(text);
	json_decref(json);
}

/* A copy of the bundled model's small files. */
static void model_new(struct model *m)
{
	const char *dir = getenv("HEDDLE_SRCDIR");
	char path[4096], assignment[128], *text = malloc(1 << 20);
	struct errbuf err;
	size_t i, n;
	FILE *f;

	strcpy(m->dir, "/tmp/heddle-files.XXXXXX");
	assert_non_null(mkdtemp(m->dir));
	for (i = 0; i < ARRAY_LEN(names); i++) {
		snprintf(path, sizeof(path), "%s/models/heddle-mini/%s", dir ? dir : ".", names[i]);
		f = fopen(path, "r");
		assert_non_null(f);
		n = fread(text, 1, 1 << 20, f);
		fclose(f);
		put_bytes(m, names[i], text, n);
	}
	free(text);
	assert_int_equal(conf_init(&m->set), 0);
	snprintf(assignment, sizeof(assignment), "model.path=%s", m->dir);
	assert_int_equal(conf_override(&m->set, assignment, &err), 0);
}

static void model_free(struct model *m)
{
	char path[256];
	size_t i;

	for (i = 0; i < ARRAY_LEN(names); i++) {
		path_of(m, names[i], path);
		if (unlink(path) < 0)
			(void)rmdir(path);
	}
	assert_int_equal(rmdir(m->dir), 0);
	conf_fini(&m->set);
}

static json_t *load(const struct model *m, const char *name)
{
	json_error_t why;
	char path[256];
	json_t *json;

	path_of(m, name, path);
	json = json_load_file(path, 0, &why);
	if (!json)
		fail_msg("%s: %s", path, why.text);
	return json;
}

static void accepted(const struct model *m)
{
	struct model_files files;
	struct errbuf err;

	if (model_files_load(&m->set.conf, &files, &err))
		fail_msg("%s", err.text);
	model_files_fini(&files);
}

/* One line that names the file by its whole path and holds `says`. */
static void refused(const struct model *m, int code, const char *name, const char *says)
{
	struct model_files files;
	struct errbuf err = {"", 0};
	char path[256];

	path_of(m, name, path);
	if (!model_files_load(&m->set.conf, &files, &err))
		fail_msg("accepted, but it should say %s", says);
	if (err.exit_code != code || !strstr(err.text, says) || !strstr(err.text, path) ||
		strchr(err.text, '\n'))
		fail_msg("%d \"%s\" is not %d \"%s\"", err.exit_code, err.text, code, says);
}

static void test_end_tokens_must_be_in_the_vocabulary(void **state)
{
	static const struct {
		const char *value, *says;
	} rows[] = {
		{"[1, 5000]", "eos_token_id 5000 is outside the vocabulary of 4096 tokens"},
		{"4096", "eos_token_id 4096 is outside"},
		{"2147483648", "eos_token_id 2147483648 is outside"},
		{"4294967297", "eos_token_id 4294967297 is outside"}, /* not 1 */
		{"-1", "must be a token id"},
		{"\"1\"", "must be a token id"},
		{"[1, null]", "must be a token id"},
		{"1.0", "must be a token id"},
	};
	char text[128];
	struct model m;
	size_t i;

	(void)state;
	model_new(&m);
	for (i = 0; i < ARRAY_LEN(rows); i++) {
		snprintf(text, sizeof(text), "{\"eos_token_id\": %s}", rows[i].value);
		put_text(&m, "generation_config.json", text);
		refused(&m, EXIT_DATA_ERR, "generation_config.json", rows[i].says);
	}
	put_text(&m, "generation_config.json", "{\"eos_token_id\": [1, 4095, 1]}");
	accepted(&m);
	model_free(&m);
}

static void test_damaged_generation_config_is_named(void **state)
{
	static const char *const rows[][2] = {
		{"", ":1: "},
		{"{\"temperature\": 1", ":1: "},
		{"[]", "must hold a JSON object"},
		{"{\"top_p\": 1, \"top_p\": 0.5}", "duplicate"},
		{"{\"x\": \"\xff\"}", "unable to decode byte 0xff"},
		{"{\"x\": \"a\nb\"}", ":1: "},
		{"{\"temperature\": -1}", "temperature must be from 0"},
		{"{\"temperature\": \"hot\"}", "temperature must be a number"},
		{"{\"top_p\": 5}", "top_p must be from"},
		{"{\"top_k\": 1.5}", "top_k must be an integer"},
		{"{\"repetition_penalty\": 0}", "repetition_penalty must be from"},
	};
	struct model m;
	size_t i;

	(void)state;
	model_new(&m);
	for (i = 0; i < ARRAY_LEN(rows); i++) {
		put_text(&m, "generation_config.json", rows[i][0]);
		refused(&m, EXIT_DATA_ERR, "generation_config.json", rows[i][1]);
	}
	model_free(&m);
}

/* Takes an added token out of the list; its entry in the base vocabulary stays. */
static void drop(const struct model *m, const char *text)
{
	json_t *root = load(m, "tokenizer.json"), *list = json_object_get(root, "added_tokens"), *v;
	size_t i;

	json_array_foreach (list, i, v)
		if (!strcmp(json_string_value(json_object_get(v, "content")), text))
			break;
	assert_non_null(v);
	assert_int_equal(json_array_remove(list, i), 0);
	put_json(m, "tokenizer.json", root);
}

static void test_every_token_of_the_chat_format_must_be_there(void **state)
{
	static const char *const tokens[] = {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>",
		"<｜User｜>", "<｜Assistant｜>", "<｜latest_reminder｜>", "<think>", "</think>",
		"｜DSML｜"};
	char says[128];
	struct model m;
	json_t *root;
	size_t i;

	(void)state;
	for (i = 0; i < ARRAY_LEN(tokens); i++) {
		model_new(&m);
		put_text(&m, "tokenizer_config.json", "{}");
		drop(&m, tokens[i]);
		snprintf(says, sizeof(says), "added_tokens lacks '%s'", tokens[i]);
		refused(&m, EXIT_DATA_ERR, "tokenizer.json", says);
		model_free(&m);
	}
	model_new(&m);
	put_text(&m, "tokenizer_config.json", "{}");
	root = load(&m, "tokenizer.json");
	json_array_clear(json_object_get(root, "added_tokens"));
	put_json(&m, "tokenizer.json", root);
	refused(&m, EXIT_DATA_ERR, "tokenizer.json",
		"added_tokens lacks '<｜begin▁of▁sentence｜>'");
	model_free(&m);
}

static void set_vocab(const struct model *m, json_t *size)
{
	json_t *config = load(m, "config.json");

	json_object_set_new(config, "vocab_size", size);
	put_json(m, "config.json", config);
}

static json_t *added(int id, const char *text)
{
	return json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", id, "content", text,
		"single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 0);
}

static void test_every_id_must_be_in_the_vocabulary(void **state)
{
	struct model m;
	json_t *root;

	(void)state;
	model_new(&m);
	put_text(&m, "generation_config.json", "{}");
	set_vocab(&m, json_integer(4095));
	refused(&m, EXIT_DATA_ERR, "tokenizer.json", "the id 4095 of ");
	set_vocab(&m, json_integer(4097)); /* rows that no token uses: as in the released models */
	accepted(&m);
	root = load(&m, "tokenizer.json");
	json_array_append_new(json_object_get(root, "added_tokens"), added(5000, "<far>"));
	put_json(&m, "tokenizer.json", root);
	refused(&m, EXIT_DATA_ERR, "tokenizer.json",
		"the id 5000 of '<far>' is outside the vocabulary of 4097 tokens");
	set_vocab(&m, json_string("many")); /* the worker's to refuse */
	accepted(&m);
	model_free(&m);
}

/* V3's ids end, with many holes before, below the vocab_size of its model; V4's fill theirs. */
static void test_released_tokenizers_fit_their_vocabulary(void **state)
{
	static const char *const more[] = {
		"<think>", "</think>", "｜DSML｜", "<｜latest_reminder｜>"};
	size_t i, len;
	char *text = fixture_read("tests/data/tokenizer/deepseek-v3.json.xz", &len);
	json_t *root = json_loadb(text, len, 0, NULL);
	struct model m;

	(void)state;
	model_new(&m);
	set_vocab(&m, json_integer(129280));
	put_bytes(&m, "tokenizer.json", text, len);
	refused(&m, EXIT_DATA_ERR, "tokenizer.json", "added_tokens lacks '<｜latest_reminder｜>'");
	for (i = 0; i < ARRAY_LEN(more); i++)
		json_array_append_new(json_object_get(root, "added_tokens"),
			added(i ? 128820 + (int)i : 129279, more[i]));
	put_json(&m, "tokenizer.json", root);
	accepted(&m);
	set_vocab(&m, json_integer(129279));
	refused(&m, EXIT_DATA_ERR, "tokenizer.json", "the id 129279 of '<think>' is outside");
	model_free(&m);
	free(text);
}

static void test_what_is_no_regular_file_is_refused(void **state)
{
	struct model_files files;
	struct errbuf err;
	char path[256];
	struct model m;
	size_t i;

	(void)state;
	for (i = 0; i < 3; i++) {
		model_new(&m);
		path_of(&m, names[i], path);
		unlink(path);
		assert_int_equal(mkfifo(path, 0600), 0); /* opening it would wait for ever */
		refused(&m, EXIT_DATA_ERR, names[i], "is not a regular file");
		unlink(path);
		assert_int_equal(mkdir(path, 0700), 0);
		refused(&m, EXIT_DATA_ERR, names[i], "is not a regular file");
		rmdir(path);
		assert_int_equal(symlink("/dev/zero", path), 0);
		refused(&m, EXIT_DATA_ERR, names[i], "is not a regular file");
		model_free(&m);
	}
	model_new(&m);
	path_of(&m, "config.json", path);
	unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0); /* the worker's to refuse */
	accepted(&m);
	unlink(path);
	snprintf(m.set.conf.model_path, sizeof(m.set.conf.model_path), "%s/tokenizer.json", m.dir);
	assert_int_equal(model_files_load(&m.set.conf, &files, &err), -ENOTDIR);
	assert_int_equal(err.exit_code, EXIT_NO_INPUT);
	model_free(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_end_tokens_must_be_in_the_vocabulary),
		cmocka_unit_test(test_damaged_generation_config_is_named),
		cmocka_unit_test(test_every_token_of_the_chat_format_must_be_there),
		cmocka_unit_test(test_every_id_must_be_in_the_vocabulary),
		cmocka_unit_test(test_released_tokenizers_fit_their_vocabulary),
		cmocka_unit_test(test_what_is_no_regular_file_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
