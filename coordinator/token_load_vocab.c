/*
 * The tables of tokenizer.json: base tokens, added tokens, merges.
 */
#include "coordinator/token_impl.h"

#include <stdlib.h>
#include <string.h>

/*
 * GPT-2's alphabet, in which the base vocabulary is written: printable bytes stand for themselves,
 * the others, in their order, for the characters from U+0100 on.
 */
#define ALPHABET_END 0x144

static bool is_printable(unsigned b)
{
	return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

static void alphabet(uint16_t ret_char[256], int16_t ret_byte[ALPHABET_END])
{
	unsigned next = 256;

	for (unsigned c = 0; c < ALPHABET_END; c++)
		ret_byte[c] = -1;
	for (unsigned b = 0; b < 256; b++) {
		ret_char[b] = (uint16_t)(is_printable(b) ? b : next++);
		ret_byte[ret_char[b]] = (int16_t)b;
	}
}

static int blob_add(struct tokenizer *tok, const char *bytes, size_t len, uint32_t *ret_off)
{
	if (tok->blob_cap - tok->blob_len < len) {
		size_t cap = MAX(tok->blob_cap * 2, tok->blob_len + len + 65536);
		char *p = realloc(tok->blob, cap);

		if (!p)
			return -ENOMEM;
		tok->blob = p;
		tok->blob_cap = cap;
	}
	*ret_off = (uint32_t)tok->blob_len;
	memcpy(tok->blob + tok->blob_len, bytes, len);
	tok->blob_len += len;
	return 0;
}

/* Bytes of a base token. Returns false where some character is outside the alphabet. */
static bool to_bytes(
	const int16_t byte_of[ALPHABET_END], const char *text, char *out, size_t *ret_len)
{
	const unsigned char *p = (const unsigned char *)text;
	size_t n = 0;

	while (*p) {
		unsigned c = *p++;

		if (c >= 0xc2 && c <= 0xdf)
			c = (c & 0x1f) << 6 | (*p++ & 0x3f);
		else if (c >= 0x80)
			return false;
		if (c >= ALPHABET_END || byte_of[c] < 0)
			return false;
		out[n++] = (char)byte_of[c];
	}
	*ret_len = n;
	return true;
}

static int set_entry(
	struct token_load *l, uint32_t id, const char *bytes, size_t len, uint32_t flags)
{
	struct token_entry *e = &l->tok->entries[id];

	e->len = (uint32_t)len;
	e->flags |= TOKEN_PRESENT | flags;
	return blob_add(l->tok, bytes, len, &e->off);
}

static int check_id(struct token_load *l, json_t *v, const char *text)
{

	if (!json_is_integer(v) || json_integer_value(v) < 0 ||
		json_integer_value(v) > TOKEN_ID_MAX)
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
			"%s: the id of '%.60s' must be an integer from 0 to %u", l->where, text,
			TOKEN_ID_MAX);
	l->tok->vocab = MAX(l->tok->vocab, (uint32_t)json_integer_value(v) + 1);
	return 0;
}

static int base_tokens(struct token_load *l, const int16_t byte_of[ALPHABET_END])
{
	const char *text;
	char *bytes = NULL;
	size_t cap = 0, len;
	json_t *v;
	int r = 0;

	json_object_foreach (l->vocab, text, v) {
		uint32_t id = (uint32_t)json_integer_value(v);
		size_t n = strlen(text);

		if (!n || (l->tok->entries[id].flags & TOKEN_PRESENT)) {
			r = err_set(l->err, -EINVAL, EXIT_DATA_ERR,
				"%s: model.vocab: '%.60s' %s (id %u)", l->where, text,
				n ? "has the id of another token" : "is empty text", id);
			break;
		}
		if (cap < n) {
			char *p = realloc(bytes, n * 2);

			if (!p) {
				r = -ENOMEM;
				break;
			}
			bytes = p;
			cap = n * 2;
		}
		if (to_bytes(byte_of, text, bytes, &len))
			r = set_entry(l, id, bytes, len, TOKEN_WORD);
		else
			r = set_entry(l, id, text, n, 0);
		if (r < 0)
			break;
	}
	free(bytes);
	return r;
}

static int added_flags(struct token_load *l, json_t *v, const char *text)
{
	static const char *const must_be_false[] = {"single_word", "lstrip", "rstrip"};

	for (size_t i = 0; i < ARRAY_LEN(must_be_false); i++)
		if (!json_is_false(json_object_get(v, must_be_false[i])))
			return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
				"%s: added token '%.60s': %s must be false; true is not supported",
				l->where, text, must_be_false[i]);
	if (!json_is_boolean(json_object_get(v, "normalized")) ||
		!json_is_boolean(json_object_get(v, "special")))
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
			"%s: added token '%.60s': normalized and special must be true or false",
			l->where, text);
	return 0;
}

static int added_token(struct token_load *l, json_t *v)
{
	const char *text = json_string_value(json_object_get(v, "content"));
	uint32_t id = (uint32_t)json_integer_value(json_object_get(v, "id"));
	struct token_entry *e = &l->tok->entries[id];
	json_t *base = json_object_get(l->vocab, text);
	size_t len = strlen(text);
	uint32_t flags = TOKEN_ADDED, other;
	int r;

	r = added_flags(l, v, text);
	if (r < 0)
		return r;
	if (base ? json_integer_value(base) != id : (e->flags & TOKEN_PRESENT) != 0)
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
			"%s: added token '%.60s' with id %u contradicts model.vocab", l->where,
			text, id);
	if ((e->flags & TOKEN_ADDED) ||
		token_trie_match(&l->tok->added[0], text, len, NULL, &other) == len ||
		token_trie_match(&l->tok->added[1], text, len, NULL, &other) == len)
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
			"%s: added token '%.60s' with id %u is there twice", l->where, text, id);
	if (json_is_true(json_object_get(v, "special")))
		flags |= TOKEN_SPECIAL;
	r = set_entry(l, id, text, len, flags);
	if (r < 0)
		return r;
	return token_trie_add(
		&l->tok->added[json_is_true(json_object_get(v, "normalized"))], text, len, id);
}

static int check_ids(struct token_load *l, json_t *added)
{
	const char *text;
	json_t *v;
	size_t i;
	int r = 0;

	json_object_foreach (l->vocab, text, v)
		if ((r = check_id(l, v, text)) < 0)
			return r;
	json_array_foreach (added, i, v) {
		text = json_string_value(json_object_get(v, "content"));
		if (!text || !*text || strlen(text) > TOKEN_ADDED_LEN_MAX)
			return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
				"%s: added_tokens[%zu].content must be a string of 1 to %d bytes",
				l->where, i, TOKEN_ADDED_LEN_MAX);
		r = check_id(l, json_object_get(v, "id"), text);
		if (r < 0)
			return r;
	}
	return 0;
}

/* A token for each byte, so that every text has ids. UTF-8 never holds C0, C1 and F5 to FF. */
static int byte_tokens(struct token_load *l, const uint16_t char_of[256])
{
	for (unsigned b = 0; b < 256; b++) {
		char text[3] = {0};
		json_t *v;

		if (char_of[b] < 0x80) {
			text[0] = (char)char_of[b];
		} else {
			text[0] = (char)(0xc0 | char_of[b] >> 6);
			text[1] = (char)(0x80 | (char_of[b] & 0x3f));
		}
		v = json_object_get(l->vocab, text);
		l->tok->byte_id[b] = v ? (uint32_t)json_integer_value(v) : TOKEN_NONE;
		if (!v && b != 0xc0 && b != 0xc1 && b < 0xf5)
			return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
				"%s: model.vocab has no token for the byte 0x%02x ('%s')", l->where,
				b, text);
		if (v && (l->tok->entries[l->tok->byte_id[b]].flags & TOKEN_ADDED))
			return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
				"%s: the token of the byte 0x%02x ('%s') is an added token too, "
				"which text must never become",
				l->where, b, text);
	}
	return 0;
}

int token_load_vocab(struct token_load *l, json_t *root)
{
	json_t *added = json_object_get(root, "added_tokens"), *v;
	uint16_t char_of[256];
	int16_t byte_of[ALPHABET_END];
	size_t i;
	int r;

	if (added && !json_is_array(added))
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR, "%s: added_tokens must be an array",
			l->where);
	r = check_ids(l, added);
	if (r < 0)
		return r;
	l->tok->entries = calloc(MAX(l->tok->vocab, 1u), sizeof(*l->tok->entries));
	if (!l->tok->entries)
		return -ENOMEM;
	alphabet(char_of, byte_of);
	r = base_tokens(l, byte_of);
	if (r < 0)
		return r;
	json_array_foreach (added, i, v) {
		r = added_token(l, v);
		if (r < 0)
			return r;
	}
	return byte_tokens(l, char_of);
}

/* "a b" or ["a", "b"]. The left part is copied to buf (which has room), the right is borrowed. */
static bool merge_parts(json_t *v, char *buf, const char **ret_right)
{
	const char *s, *space;

	if (json_is_array(v)) {
		s = json_string_value(json_array_get(v, 0));
		*ret_right = json_string_value(json_array_get(v, 1));
		if (json_array_size(v) != 2 || !s || !*s || !*ret_right || !**ret_right)
			return false;
		strcpy(buf, s);
		return true;
	}
	s = json_string_value(v);
	space = s ? strchr(s, ' ') : NULL;
	if (!space || space == s || !space[1] || strchr(space + 1, ' '))
		return false;
	memcpy(buf, s, (size_t)(space - s));
	buf[space - s] = 0;
	*ret_right = space + 1;
	return true;
}

static size_t merge_len(json_t *v)
{
	if (json_is_array(v))
		return json_string_length(json_array_get(v, 0)) +
		       json_string_length(json_array_get(v, 1));
	return json_string_length(v);
}

static int one_merge(struct token_load *l, json_t *v, size_t rank, char *buf)
{
	json_t *left, *right, *both;
	const char *right_text;

	if (!merge_parts(v, buf, &right_text))
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
			"%s: model.merges[%zu] must be \"left right\" or [\"left\", \"right\"]",
			l->where, rank);
	left = json_object_get(l->vocab, buf);
	right = json_object_get(l->vocab, right_text);
	strcat(buf, right_text);
	both = json_object_get(l->vocab, buf);
	if (!left || !right || !both)
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
			"%s: model.merges[%zu] makes '%.60s', but %s is not in model.vocab",
			l->where, rank, buf,
			!left    ? "its left part"
			: !right ? "its right part"
				 : "that");
	if (l->tok->entries[json_integer_value(both)].flags & TOKEN_ADDED)
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
			"%s: model.merges[%zu] makes the added token '%.60s', which text must "
			"never "
			"become",
			l->where, rank, buf);
	token_merge_put(l->tok, (struct token_merge){
					(uint32_t)json_integer_value(left),
					(uint32_t)json_integer_value(right),
					(uint32_t)rank,
					(uint32_t)json_integer_value(both),
				});
	return 0;
}

int token_load_merges(struct token_load *l, json_t *model)
{
	json_t *merges = json_object_get(model, "merges"), *v;
	size_t i, cap = 0;
	char *buf;
	int r;

	if (json_array_size(merges) > TOKEN_ID_MAX)
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
			"%s: model.merges must have at most %u entries", l->where, TOKEN_ID_MAX);
	json_array_foreach (merges, i, v)
		cap = MAX(cap, merge_len(v));
	buf = malloc(cap + 1);
	r = buf ? token_merge_table(l->tok, json_array_size(merges)) : -ENOMEM;
	json_array_foreach (merges, i, v) {
		const char *s = json_string_value(v);

		if (r < 0)
			break;
		/* A head line of merges.txt that some converters copied; Hugging Face skips it too.
		 */
		if (s && !strncmp(s, "#version", 8))
			continue;
		r = one_merge(l, v, i, buf);
	}
	free(buf);
	return r;
}
