/*
 * Everything in tokenizer.json that is not a table: each component is either exactly what this
 * tokenizer does or refused by name, since one that is ignored would give wrong ids in silence.
 */
#include "coordinator/token_impl.h"

#include <limits.h>
#include <string.h>

#define LIST_END NULL

static int bad(struct token_load *l, const char *at, const char *must)
{
	return err_set(l->err, -EINVAL, EXIT_DATA_ERR, "%s: %s must be %s", l->where, at, must);
}

static int unsupported(struct token_load *l, const char *at, json_t *step)
{
	const char *type = json_string_value(json_object_get(step, "type"));

	if (!type)
		return bad(l, at, "an object with a type");
	return err_set(l->err, -EINVAL, EXIT_DATA_ERR, "%s: %s of type '%.60s' is not supported",
		l->where, at, type);
}

static bool is_type(json_t *step, const char *type)
{
	const char *t = json_string_value(json_object_get(step, "type"));

	return t && !strcmp(t, type);
}

static bool is_unset(json_t *v)
{
	return !v || json_is_null(v);
}

/* An unknown key may change what the ids are. */
static int known_keys(struct token_load *l, json_t *obj, const char *at, const char *const *keys)
{
	const char *key;
	json_t *v;

	json_object_foreach (obj, key, v) {
		size_t i = 0;

		while (keys[i] && strcmp(keys[i], key) != 0)
			i++;
		if (!keys[i])
			return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
				"%s: %s%s%.60s is not a key that is supported", l->where, at,
				*at ? "." : "", key);
	}
	return 0;
}

static int normalizer(struct token_load *l, json_t *v)
{
	json_t *list;

	if (is_unset(v))
		return 0;
	list = json_object_get(v, "normalizers");
	if (!is_type(v, "Sequence"))
		return unsupported(l, "normalizer", v);
	if (!json_is_array(list))
		return bad(l, "normalizer.normalizers", "an array");
	if (json_array_size(list))
		return unsupported(l, "normalizer.normalizers[0]", json_array_get(list, 0));
	return 0;
}

static int split(struct token_load *l, json_t *v, const char *at)
{
	static const char *const keys[] = {"type", "pattern", "behavior", "invert", LIST_END};
	json_t *pattern = json_object_get(v, "pattern"), *regex = json_object_get(pattern, "Regex");
	const char *behavior = json_string_value(json_object_get(v, "behavior"));
	char where[PATH_MAX + 64];
	int r;

	r = known_keys(l, v, at, keys);
	if (r < 0)
		return r;
	if (!json_is_string(regex) || json_object_size(pattern) != 1)
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
			"%s: %s.pattern must be {\"Regex\": string}; other patterns are not "
			"supported",
			l->where, at);
	if (!behavior || strcmp(behavior, "Isolated") != 0)
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
			"%s: %s.behavior must be 'Isolated'; '%.60s' is not supported", l->where,
			at, behavior ? behavior : "");
	if (!json_is_false(json_object_get(v, "invert")))
		return bad(l, at, "without invert (false); true is not supported");
	if (l->tok->splits_len == TOKEN_SPLIT_MAX)
		return bad(l, "pre_tokenizer", "of at most 8 Split steps");
	snprintf(where, sizeof(where), "%s: %s.pattern", l->where, at);
	r = token_regex_compile(&l->tok->splits[l->tok->splits_len], json_string_value(regex),
		json_string_length(regex), where, l->err);
	if (r == 0)
		l->tok->splits_len++;
	return r;
}

static int byte_level(struct token_load *l, json_t *v, const char *at)
{
	static const char *const keys[] = {
		"type", "add_prefix_space", "trim_offsets", "use_regex", LIST_END};
	int r = known_keys(l, v, at, keys);

	if (r < 0)
		return r;
	if (!json_is_false(json_object_get(v, "add_prefix_space")))
		return bad(l, at, "without add_prefix_space (false); true is not supported");
	if (!json_is_false(json_object_get(v, "use_regex")))
		return bad(l, at, "without use_regex (false); true, its default, is not supported");
	return 0;
}

static int pre_tokenizer(struct token_load *l, json_t *v)
{
	json_t *list = json_object_get(v, "pretokenizers");
	size_t n;
	int r;

	if (is_type(v, "ByteLevel"))
		return byte_level(l, v, "pre_tokenizer");
	if (is_unset(v))
		return bad(l, "pre_tokenizer", "a Sequence that ends in ByteLevel");
	if (!is_type(v, "Sequence"))
		return unsupported(l, "pre_tokenizer", v);
	n = json_array_size(list);
	if (!n || !is_type(json_array_get(list, n - 1), "ByteLevel"))
		return bad(l, "pre_tokenizer", "a Sequence that ends in ByteLevel");
	for (size_t i = 0; i < n; i++) {
		json_t *step = json_array_get(list, i);
		char at[64];

		snprintf(at, sizeof(at), "pre_tokenizer.pretokenizers[%zu]", i);
		if (i + 1 == n)
			r = byte_level(l, step, at);
		else if (is_type(step, "Split"))
			r = split(l, step, at);
		else
			r = unsupported(l, at, step);
		if (r < 0)
			return r;
	}
	return 0;
}

/* {"SpecialToken": {"id": text}} or {"Sequence": {"id": "A"}}: the text's id, or -1 for A. */
static int template_item(
	struct token_load *l, json_t *post, json_t *item, const char *at, int64_t *ret_id)
{
	json_t *special = json_object_get(item, "SpecialToken"), *ids;
	const char *name = json_string_value(json_object_get(special, "id"));
	const char *seq =
		json_string_value(json_object_get(json_object_get(item, "Sequence"), "id"));

	if (seq && !strcmp(seq, "A")) {
		*ret_id = -1;
		return 0;
	}
	if (!name)
		return bad(l, at, "made of SpecialToken and Sequence A");
	ids = json_object_get(
		json_object_get(json_object_get(post, "special_tokens"), name), "ids");
	if (json_array_size(ids) != 1 || !json_is_integer(json_array_get(ids, 0)) ||
		json_integer_value(json_array_get(ids, 0)) < 0 ||
		json_integer_value(json_array_get(ids, 0)) > TOKEN_ID_MAX)
		return bad(l, at, "of special tokens with one id each");
	*ret_id = json_integer_value(json_array_get(ids, 0));
	return 0;
}

static int template(struct token_load *l, json_t *v, const char *at)
{
	json_t *single = json_object_get(v, "single");
	size_t n = json_array_size(single);
	int64_t first = -1, last = -1;
	int r = 0;

	if (n >= 1)
		r = template_item(l, v, json_array_get(single, 0), at, &first);
	if (r == 0 && n == 2)
		r = template_item(l, v, json_array_get(single, 1), at, &last);
	if (r < 0)
		return r;
	/* Anything after the text, an EOS for one, would end the prompt. */
	if ((n == 1 && first >= 0) || (n == 2 && (first < 0 || last >= 0)) || n < 1 || n > 2)
		return bad(l, at, "the text alone or one special token before it");
	if (n == 2) {
		l->tok->add_bos = true;
		l->tok->bos = first;
	}
	return 0;
}

static int post_processor(struct token_load *l, json_t *v, const char *at, bool nested)
{
	json_t *list = json_object_get(v, "processors"), *step;
	size_t i;
	int r;

	if (is_unset(v))
		return 0;
	/* ByteLevel here moves offsets, which we do not have, and never an id. */
	if (is_type(v, "ByteLevel"))
		return 0;
	if (is_type(v, "TemplateProcessing"))
		return template(l, v, at);
	if (!is_type(v, "Sequence") || nested)
		return unsupported(l, at, v);
	if (!json_is_array(list))
		return bad(l, at, "a Sequence with processors");
	json_array_foreach (list, i, step) {
		char where[64];

		snprintf(where, sizeof(where), "%s.processors[%zu]", at, i);
		r = post_processor(l, step, where, true);
		if (r < 0)
			return r;
	}
	return 0;
}

static int decoder(struct token_load *l, json_t *v)
{
	json_t *list = json_object_get(v, "decoders");

	if (is_type(v, "ByteLevel"))
		return 0;
	if (is_unset(v))
		return bad(l, "decoder", "ByteLevel");
	if (!is_type(v, "Sequence"))
		return unsupported(l, "decoder", v);
	if (json_array_size(list) != 1)
		return bad(l, "decoder", "ByteLevel or a Sequence of it alone");
	if (!is_type(json_array_get(list, 0), "ByteLevel"))
		return unsupported(l, "decoder.decoders[0]", json_array_get(list, 0));
	return 0;
}

/* null or "": both mean none. */
static bool is_empty_text(json_t *v)
{
	return is_unset(v) || (json_is_string(v) && json_string_length(v) == 0);
}

static int model(struct token_load *l, json_t *v)
{
	static const char *const keys[] = {"type", "dropout", "unk_token",
		"continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback",
		"ignore_merges", "vocab", "merges", LIST_END};
	json_t *flag;
	int r;

	if (!json_is_object(v))
		return bad(l, "model", "an object");
	if (!is_type(v, "BPE"))
		return unsupported(l, "model", v);
	r = known_keys(l, v, "model", keys);
	if (r < 0)
		return r;
	if (!is_unset(json_object_get(v, "dropout")))
		return bad(l, "model.dropout", "null; dropout is not supported");
	if (!is_empty_text(json_object_get(v, "continuing_subword_prefix")))
		return bad(l, "model.continuing_subword_prefix", "null; a prefix is not supported");
	if (!is_empty_text(json_object_get(v, "end_of_word_suffix")))
		return bad(l, "model.end_of_word_suffix", "null; a suffix is not supported");
	flag = json_object_get(v, "byte_fallback");
	if (!is_unset(flag) && !json_is_false(flag))
		return bad(l, "model.byte_fallback", "false; true is not supported");
	/* unk_token and fuse_unk have no say: token_load_vocab insists on a token for each byte. */
	flag = json_object_get(v, "ignore_merges");
	if (!is_unset(flag) && !json_is_boolean(flag))
		return bad(l, "model.ignore_merges", "true or false");
	l->tok->ignore_merges = json_is_true(flag);
	if (!json_is_object(json_object_get(v, "vocab")))
		return bad(l, "model.vocab", "an object");
	if (!json_is_array(json_object_get(v, "merges")))
		return bad(l, "model.merges", "an array");
	return 0;
}

int token_load_steps(struct token_load *l, json_t *root)
{
	static const char *const keys[] = {"version", "truncation", "padding", "added_tokens",
		"normalizer", "pre_tokenizer", "post_processor", "decoder", "model", LIST_END};
	json_t *version;
	int r;

	if (!json_is_object(root))
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR, "%s: must be an object", l->where);
	r = known_keys(l, root, "", keys);
	if (r < 0)
		return r;
	version = json_object_get(root, "version");
	if (version && (!json_is_string(version) || strcmp(json_string_value(version), "1.0") != 0))
		return bad(l, "version", "\"1.0\"");
	if (!is_unset(json_object_get(root, "truncation")))
		return bad(l, "truncation", "null; truncation is not supported");
	if (!is_unset(json_object_get(root, "padding")))
		return bad(l, "padding", "null; padding is not supported");
	if ((r = model(l, json_object_get(root, "model"))) < 0 ||
		(r = normalizer(l, json_object_get(root, "normalizer"))) < 0 ||
		(r = pre_tokenizer(l, json_object_get(root, "pre_tokenizer"))) < 0 ||
		(r = decoder(l, json_object_get(root, "decoder"))) < 0)
		return r;
	return post_processor(l, json_object_get(root, "post_processor"), "post_processor", false);
}
