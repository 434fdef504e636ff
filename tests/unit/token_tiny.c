#include "tests/unit/token_tiny.h"

#include <stdlib.h>
#include <string.h>

static const char *const tiny_text =
	"{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":["
	"{\"id\":261,\"content\":\"<s>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
	"\"normalized\":false,\"special\":true},"
	"{\"id\":262,\"content\":\"<x>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
	"\"normalized\":true,\"special\":false}],"
	"\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[]},"
	"\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
	"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{L}+\"},\"behavior\":\"Isolated\","
	"\"invert\":false},"
	"{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
	"\"use_regex\":false}]},"
	"\"post_processor\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
	"\"trim_offsets\":false,\"use_regex\":true},"
	"\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,"
	"\"use_regex\":true},"
	"\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
	"\"continuing_subword_prefix\":null,\"end_of_word_suffix\":\"\",\"fuse_unk\":false,"
	"\"byte_fallback\":false,\"ignore_merges\":false,"
	"\"vocab\":{\"ab\":256,\"abc\":257,\"bc\":258,\"dd\":259,\"xyz\":260},"
	"\"merges\":[\"a b\",\"ab c\",\"b c\",\"d d\"]}}";

/* Characters of the byte alphabet in order: '!'..'~', U+00A1..AC, AE..FF, U+0100..0143. */
static void add_bytes(json_t *vocab)
{
	int id = 0;

	for (unsigned c = '!'; c < 0x144; c++) {
		char text[3] = {(char)c};

		if ((c > '~' && c < 0xa1) || c == 0xad)
			continue;
		if (c >= 0x80) {
			text[0] = (char)(0xc0 | c >> 6);
			text[1] = (char)(0x80 | (c & 0x3f));
		}
		json_object_set_new(vocab, text, json_integer(id++));
	}
}

json_t *tiny_json(void)
{
	json_t *json = json_loads(tiny_text, 0, NULL);

	if (!json)
		abort();
	add_bytes(json_object_get(json_object_get(json, "model"), "vocab"));
	return json;
}

void tiny_set(json_t *json, const char *path, const char *value)
{
	json_t *v = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
	const char *dot;
	char key[64];

	if (value && !v)
		abort();
	for (; (dot = strchr(path, '.')); path = dot + 1) {
		snprintf(key, sizeof(key), "%.*s", (int)(dot - path), path);
		json = json_is_array(json) ? json_array_get(json, strtoul(key, NULL, 10))
					   : json_object_get(json, key);
		if (!json)
			abort();
	}
	if (!json_is_array(json) && v)
		json_object_set_new(json, path, v);
	else if (!json_is_array(json))
		json_object_del(json, path);
	else if (strtoul(path, NULL, 10) >= json_array_size(json))
		json_array_append_new(json, v);
	else
		json_array_set_new(json, strtoul(path, NULL, 10), v);
}

struct tokenizer *tiny_parse(json_t *json, const char *config, struct errbuf *err)
{
	char *text = json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY);
	struct tokenizer *tok = NULL;
	struct errbuf own = {0};
	int r = tokenizer_parse(
		text, strlen(text), config, config ? strlen(config) : 0, &tok, err ? err : &own);

	if (r < 0 && !err) {
		fprintf(stderr, "tiny tokenizer: %s\n", own.text);
		abort();
	}
	free(text);
	json_decref(json);
	return r < 0 ? NULL : tok;
}
