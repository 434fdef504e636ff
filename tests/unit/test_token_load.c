/*
 * What a tokenizer.json may not hold, each with its sentence, and loading from a directory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/token_impl.h"
#include "tests/unit/text_fixture.h"
#include "tests/unit/token_tiny.h"

#define SPLIT "pre_tokenizer.pretokenizers.0"
#define BYTES "pre_tokenizer.pretokenizers.1"
#define REGEX SPLIT ".pattern.Regex"

/* One change to the tiny tokenizer and what the sentence must hold. */
static const struct {
	const char *path, *value, *says;
} refused[] = {
	{"version", "\"2.0\"", "version must be \"1.0\""},
	{"surprise", "1", "surprise is not a key that is supported"},
	{"truncation", "{\"max_length\":512}", "truncation must be null"},
	{"padding", "{\"strategy\":\"BatchLongest\"}", "padding must be null"},
	{"normalizer", "{\"type\":\"NFC\"}", "normalizer of type 'NFC' is not supported"},
	{"normalizer", "[]", "normalizer must be an object with a type"},
	{"normalizer.normalizers", "[{\"type\":\"NFKC\"}]", "normalizers[0] of type 'NFKC'"},
	{"normalizer.normalizers", "{}", "normalizer.normalizers must be an array"},
	{"pre_tokenizer", "null", "pre_tokenizer must be a Sequence that ends in ByteLevel"},
	{"pre_tokenizer", "{\"type\":\"Metaspace\"}", "pre_tokenizer of type 'Metaspace'"},
	{"pre_tokenizer", "7", "pre_tokenizer must be an object with a type"},
	{"pre_tokenizer.pretokenizers", "[]", "Sequence that ends in ByteLevel"},
	{SPLIT ".type", "\"Whitespace\"", "pretokenizers[0] of type 'Whitespace'"},
	{SPLIT ".type", "\"ByteLevel\"", "pretokenizers[0] of type 'ByteLevel'"},
	{SPLIT ".behavior", "\"Removed\"", "'Removed' is not supported"},
	{SPLIT ".behavior", "\"MergedWithPrevious\"", "'MergedWithPrevious' is not supported"},
	{SPLIT ".behavior", NULL, "behavior must be 'Isolated'"},
	{SPLIT ".invert", "true", "without invert (false); true is not supported"},
	{SPLIT ".more", "1", "pretokenizers[0].more is not a key"},
	{SPLIT ".pattern", "{\"String\":\" \"}", "pattern must be {\"Regex\": string}"},
	{REGEX, "5", "pattern must be {\"Regex\": string}"},
	{REGEX, "\"\"", "must have 1 to 65536 bytes"},
	{REGEX, "\"a*\"", "can match nothing at all"},
	{REGEX, "\"a|\"", "can match nothing at all"},
	{REGEX, "\"\\\\w+\"", "uses '\\w', which is not supported"},
	{REGEX, "\"\\\\d\"", "uses '\\d'"},
	{REGEX, "\"\\\\h\"", "uses '\\h'"},
	{REGEX, "\"a\\\\b\"", "uses '\\b'"},
	{REGEX, "\"\\\\1\"", "uses '\\1'"},
	{REGEX, "\"\\\\p{Lu}\"", "uses '\\p{Lu}'"},
	{REGEX, "\"\\\\p{^L}\"", "uses '\\p{^L}'"},
	{REGEX, "\"\\\\pL\"", "uses '\\pL'"},
	{REGEX, "\"[\\\\S]\"", "uses '\\S inside [...]'"},
	{REGEX, "\"[\\\\P{L}]\"", "uses '\\P{..} inside [...]'"},
	{REGEX, "\"[[:alpha:]]\"", "uses 'a [ inside [...]'"},
	{REGEX, "\"[a-c&&b]\"", "uses '&& inside [...]'"},
	{REGEX, "\"[]a]\"", "uses 'an empty [...]'"},
	{REGEX, "\"[^]a]\"", "uses 'an empty [...]'"},
	{REGEX, "\"[\\\\s-a]\"", "a range that begins with a class"},
	{REGEX, "\"[a-\\\\s]\"", "a range that ends in a class"},
	{REGEX, "\"[z-a]\"", "bad regular expression"},
	{REGEX, "\"[a\"", "uses 'a [ without its ]'"},
	{REGEX, "\"(a\"", "uses 'a ( without its )'"},
	{REGEX, "\"a)\"", "uses 'a ) without its ('"},
	{REGEX, "\"a\\\\\"", "ends in a backslash"},
	{REGEX, "\"(?<=a)b\"", "uses '(?<='"},
	{REGEX, "\"(?i:a)\"", "uses '(?i:'"},
	{REGEX, "\"(?>a)\"", "uses '(?>a'"},
	{REGEX, "\"^a\"", "uses '^'"},
	{REGEX, "\"a$\"", "uses '$'"},
	{REGEX, "\"+a\"", "uses 'a quantifier of nothing'"},
	{REGEX, "\"(?:*a)\"", "uses 'a quantifier of nothing'"},
	{REGEX, "\"a+++\"", "uses 'a quantifier of a quantifier'"},
	{REGEX, "\"a{1,2}+\"", "uses '{1,2}+'"},
	{REGEX, "\"a{1}?\"", "uses '{1}?'"},
	{REGEX, "\"a{,2}\"", "uses '{,2}'"},
	{REGEX, "\"a{x\"", "uses '{x'"},
	{REGEX, "\"a{2,1}\"", "bad regular expression"},
	{REGEX, "\"a\\\\\\n\"", "uses '\\?', which is not supported"},
	{BYTES ".add_prefix_space", "true", "add_prefix_space (false); true is not supported"},
	{BYTES ".use_regex", "true", "use_regex (false)"},
	{BYTES ".use_regex", NULL, "use_regex (false)"},
	{BYTES ".other", "0", "pretokenizers[1].other is not a key"},
	{"decoder", "null", "decoder must be ByteLevel"},
	{"decoder", "{\"type\":\"Metaspace\"}", "decoder of type 'Metaspace'"},
	{"decoder", "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"}]}", "of type 'Fuse'"},
	{"decoder", "{\"type\":\"Sequence\",\"decoders\":[]}", "a Sequence of it alone"},
	{"post_processor", "{\"type\":\"BertProcessing\"}", "of type 'BertProcessing'"},
	{"post_processor", "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"Sequence\"}]}",
		"processors[0] of type 'Sequence'"},
	{"post_processor", "{\"type\":\"TemplateProcessing\"}", "one special token before it"},
	{"post_processor",
		"{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}},"
		"{\"SpecialToken\":{\"id\":\"<s>\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[261]}}"
		"}",
		"one special token before it"},
	{"post_processor",
		"{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"
		"{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[1,2]}}}",
		"with one id each"},
	{"post_processor",
		"{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"
		"{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[999]}}}",
		"adds id 999, which no token has"},
	{"model", "[]", "model must be an object"},
	{"model.type", "\"Unigram\"", "model of type 'Unigram' is not supported"},
	{"model.type", NULL, "model must be an object with a type"},
	{"model.dropout", "0.1", "model.dropout must be null"},
	{"model.continuing_subword_prefix", "\"##\"", "a prefix is not supported"},
	{"model.end_of_word_suffix", "\"</w>\"", "a suffix is not supported"},
	{"model.byte_fallback", "true", "model.byte_fallback must be false"},
	{"model.ignore_merges", "1", "model.ignore_merges must be true or false"},
	{"model.cleverness", "1", "model.cleverness is not a key"},
	{"model.vocab", "[]", "model.vocab must be an object"},
	{"model.vocab", "{}", "no token for the byte 0x00"},
	{"model.vocab.a", NULL, "no token for the byte 0x61 ('a')"},
	{"model.vocab.ab", "257", "has the id of another token (id 257)"},
	{"model.vocab.ab", "-1", "the id of 'ab' must be an integer from 0 to 16777215"},
	{"model.vocab.ab", "16777216", "from 0 to 16777215"},
	{"model.vocab.ab", "1.5", "from 0 to 16777215"},
	{"model.vocab.ab", "\"1\"", "from 0 to 16777215"},
	{"model.vocab.", "263", "is empty text"},
	{"model.merges", "{}", "model.merges must be an array"},
	{"model.merges.0", "\"a\"", "model.merges[0] must be \"left right\""},
	{"model.merges.0", "\"a b c\"", "model.merges[0] must be"},
	{"model.merges.0", "\" b\"", "model.merges[0] must be"},
	{"model.merges.0", "\"a \"", "model.merges[0] must be"},
	{"model.merges.0", "3", "model.merges[0] must be"},
	{"model.merges.0", "[\"a\"]", "model.merges[0] must be"},
	{"model.merges.0", "[\"a\",\"b\",\"c\"]", "model.merges[0] must be"},
	{"model.merges.0", "[\"a\",\"\"]", "model.merges[0] must be"},
	{"model.merges.0", "[\"a\",7]", "model.merges[0] must be"},
	{"model.merges.1", "\"qq c\"", "makes 'qqc', but its left part is not in model.vocab"},
	{"model.merges.1", "\"a qq\"", "makes 'aqq', but its right part is not"},
	{"model.merges.1", "\"a c\"", "makes 'ac', but that is not in model.vocab"},
	{"added_tokens", "{}", "added_tokens must be an array"},
	{"added_tokens.0", "1", "added_tokens[0].content must be a string of 1 to 1024"},
	{"added_tokens.0.content", "\"\"", "added_tokens[0].content must be"},
	{"added_tokens.0.id", "\"x\"", "the id of '<s>' must be an integer"},
	{"added_tokens.0.id", "5", "'<s>' with id 5 contradicts model.vocab"},
	{"added_tokens.0.content", "\"ab\"", "'ab' with id 261 contradicts model.vocab"},
	{"added_tokens.1.id", "261", "'<x>' with id 261 contradicts model.vocab"},
	{"added_tokens.1.content", "\"<s>\"", "'<s>' with id 262 is there twice"},
	{"added_tokens.0.single_word", "true", "'<s>': single_word must be false"},
	{"added_tokens.0.lstrip", "true", "'<s>': lstrip must be false"},
	{"added_tokens.0.rstrip", "true", "'<s>': rstrip must be false"},
	{"added_tokens.0.rstrip", NULL, "'<s>': rstrip must be false"},
	{"added_tokens.0.normalized", NULL, "normalized and special must be true or false"},
	{"added_tokens.0.special", "0", "normalized and special must be true or false"},
};

static void check_sentence(const struct errbuf *err, const char *says, const char *what)
{
	if (!strstr(err->text, says) || strchr(err->text, '\n')) {
		fprintf(stderr, "%s: got \"%s\", want \"%s\"\n", what, err->text, says);
		fail();
	}
	assert_int_equal(err->exit_code, EXIT_DATA_ERR);
}

static void test_unsupported_parts_are_refused_by_name(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
		struct errbuf err = {0};
		json_t *json = tiny_json();

		tiny_set(json, refused[i].path, refused[i].value);
		assert_null(tiny_parse(json, NULL, &err));
		check_sentence(&err, refused[i].says, refused[i].path);
		assert_non_null(strstr(err.text, "tokenizer.json"));
	}
}

/* Text must not reach an added token by way of the base vocabulary. */
static void test_added_token_that_text_could_become_is_refused(void **state)
{
	struct errbuf err = {0};
	json_t *json = tiny_json();

	(void)state;
	tiny_set(json, "added_tokens.0.content", "\"ab\"");
	tiny_set(json, "added_tokens.0.id", "256");
	assert_null(tiny_parse(json, NULL, &err));
	check_sentence(&err, "model.merges[0] makes the added token 'ab'", "merge");
	json = tiny_json();
	tiny_set(json, "added_tokens.0.content", "\"a\"");
	tiny_set(json, "added_tokens.0.id", "64");
	assert_null(tiny_parse(json, NULL, &err));
	check_sentence(&err, "the token of the byte 0x61 ('a') is an added token too", "byte");
}

static void test_bad_configuration_is_refused(void **state)
{
	static const char *const rows[][2] = {
		{"[]", "tokenizer_config.json: must be an object"},
		{"{", "tokenizer_config.json:1:1: "},
		{"{\"bos_token\":\"<y>\"}",
			"bos_token is '<y>', which tokenizer.json does not have"},
		{"{\"eos_token\":5}", "eos_token must be a string"},
		{"{\"eos_token\":{\"content\":5}}", "eos_token must be a string"},
		{"{\"add_bos_token\":true}", "add_bos_token is true but there is no bos_token"},
		{"{\"add_bos_token\":1}", "add_bos_token must be true or false"},
		{"{\"add_eos_token\":true}", "add_eos_token must be false"},
		{"{\"add_prefix_space\":true}", "add_prefix_space must be false"},
		{"{\"added_tokens_decoder\":{\"262\":{\"content\":\"<y>\"}}}",
			"has id 262 as '<y>'; tokenizer.json does not list"},
		{"{\"added_tokens_decoder\":{\"7\":{\"content\":\"<x>\"}}}", "has id 7 as '<x>'"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct errbuf err = {0};

		assert_null(tiny_parse(tiny_json(), rows[i][0], &err));
		check_sentence(&err, rows[i][1], rows[i][0]);
	}
}

static void test_broken_json_is_refused_with_its_place(void **state)
{
	static const char *const rows[][2] = {
		{"", "tokenizer.json:1:0: "},
		{"{\"a\":1,\n\"a\":2}", "tokenizer.json:2:3: duplicate object key"},
		{"{\"model\":", "tokenizer.json:1:"},
		{"[1]", "tokenizer.json: must be an object"},
		{"{}", "model must be an object"},
		{"\"\xff\"", "tokenizer.json:1:"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct tokenizer *tok = NULL;
		struct errbuf err = {0};

		assert_int_equal(
			tokenizer_parse(rows[i][0], strlen(rows[i][0]), NULL, 0, &tok, &err),
			-EINVAL);
		check_sentence(&err, rows[i][1], rows[i][0]);
		assert_null(tok);
	}
}

/* Every prefix of the file is refused or, at its end, accepted; nothing leaks or reads past. */
static void test_cut_files_are_refused(void **state)
{
	json_t *json = tiny_json();
	char *text = json_dumps(json, JSON_COMPACT);
	size_t len = strlen(text);

	(void)state;
	for (size_t n = 0; n <= len; n += n + 1 < len ? 1 + len / 200 : 1) {
		char *exact = malloc(n + !n);
		struct tokenizer *tok = NULL;
		int r;

		memcpy(exact, text, n);
		r = tokenizer_parse(exact, n, NULL, 0, &tok, NULL);
		assert_int_equal(r, n == len ? 0 : -EINVAL);
		tokenizer_free(tok);
		free(exact);
	}
	free(text);
	json_decref(json);
}

static void write_file(const char *dir, const char *name, const char *text)
{
	char path[4096];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	assert_int_equal(fclose(f), 0);
}

static void remove_file(const char *dir, const char *name)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	(void)unlink(path);
}

static void test_load_names_the_file(void **state)
{
	char dir[] = "/tmp/heddle-token-XXXXXX";
	struct tokenizer *tok = NULL;
	struct errbuf err = {0};
	json_t *json = tiny_json();
	char *text = json_dumps(json, 0);

	(void)state;
	assert_non_null(mkdtemp(dir));
	assert_int_equal(tokenizer_load(dir, &tok, &err), -ENOENT);
	assert_int_equal(err.exit_code, EXIT_NO_INPUT);
	assert_non_null(strstr(err.text, dir));
	write_file(dir, "tokenizer.json", "{}");
	assert_int_equal(tokenizer_load(dir, &tok, &err), -EINVAL);
	assert_non_null(strstr(err.text, "/tokenizer.json: model must be"));
	write_file(dir, "tokenizer.json", text);
	assert_int_equal(tokenizer_load(dir, &tok, &err), 0);
	assert_int_equal(tokenizer_eos(tok), -1);
	tokenizer_free(tok);
	write_file(dir, "tokenizer_config.json", "{\"eos_token\":\"<s>\"}");
	assert_int_equal(tokenizer_load(dir, &tok, &err), 0);
	assert_int_equal(tokenizer_eos(tok), TINY_S);
	tokenizer_free(tok);
	write_file(dir, "tokenizer_config.json", "{\"eos_token\":\"<q>\"}");
	assert_int_equal(tokenizer_load(dir, &tok, &err), -EINVAL);
	assert_non_null(strstr(err.text, "/tokenizer_config.json: eos_token"));
	remove_file(dir, "tokenizer.json");
	remove_file(dir, "tokenizer_config.json");
	rmdir(dir);
	free(text);
	json_decref(json);
}

static void test_bundled_tokenizers_have_their_tokens(void **state)
{
	struct tokenizer *mini = fixture_mini(), *big = fixture_deepseek();

	(void)state;
	assert_int_equal(tokenizer_vocab(mini), 4096);
	assert_int_equal(tokenizer_bos(mini), 0);
	assert_int_equal(tokenizer_eos(mini), 1);
	assert_int_equal(tokenizer_vocab(big), 128815);
	assert_int_equal(tokenizer_find(big, "<｜User｜>"), 128803);
	assert_true(big->add_bos && !mini->add_bos);
	tokenizer_free(mini);
	tokenizer_free(big);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_unsupported_parts_are_refused_by_name),
		cmocka_unit_test(test_added_token_that_text_could_become_is_refused),
		cmocka_unit_test(test_bad_configuration_is_refused),
		cmocka_unit_test(test_broken_json_is_refused_with_its_place),
		cmocka_unit_test(test_cut_files_are_refused),
		cmocka_unit_test(test_load_names_the_file),
		cmocka_unit_test(test_bundled_tokenizers_have_their_tokens),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
