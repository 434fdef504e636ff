#include "coordinator/token_impl.h"
#include "coordinator/token_scratch.h"

#include <stdlib.h>
#include <string.h>

struct token_scratch *token_scratch_new(const struct tokenizer *tok)
{
	struct token_scratch *s = calloc(1, sizeof(*s));

	(void)tok;
	if (!s || token_matcher_init(&s->matcher) < 0)
		return token_scratch_free(s);
	return s;
}

struct token_scratch *token_scratch_free(struct token_scratch *s)
{
	if (!s)
		return NULL;
	token_matcher_fini(&s->matcher);
	free(s->symbols);
	free(s->heap);
	free(s);
	return NULL;
}

int token_trie_add(struct token_trie *t, const char *text, size_t len, uint32_t id)
{
	uint32_t at = 0, child;

	if (t->cap - t->len < len + 1) {
		uint32_t cap = MAX(t->cap * 2, t->len + (uint32_t)len + 64);
		struct token_trie_node *p = realloc(t->nodes, cap * sizeof(*p));

		if (!p)
			return -ENOMEM;
		t->nodes = p;
		t->cap = cap;
	}
	if (!t->len)
		t->nodes[t->len++] = (struct token_trie_node){.id = TOKEN_NONE};
	for (size_t i = 0; i < len; i++) {
		uint8_t b = (uint8_t)text[i];

		child = t->nodes[at].child;
		while (child && t->nodes[child].byte != b)
			child = t->nodes[child].sibling;
		if (!child) {
			child = t->len++;
			t->nodes[child] = (struct token_trie_node){
				.sibling = t->nodes[at].child, .id = TOKEN_NONE, .byte = b};
			t->nodes[at].child = child;
		}
		at = child;
	}
	t->nodes[at].id = id;
	t->first[(uint8_t)text[0]] = true;
	return 0;
}

size_t token_trie_match(const struct token_trie *t, const char *text, size_t len,
	const uint8_t *trusted, uint32_t *ret_id)
{
	uint32_t at = 0;
	size_t found = 0;

	if (!t->len)
		return 0;
	for (size_t i = 0; i < len && (!trusted || trusted[i]); i++) {
		at = t->nodes[at].child;
		while (at && t->nodes[at].byte != (uint8_t)text[i])
			at = t->nodes[at].sibling;
		if (!at)
			break;
		if (t->nodes[at].id != TOKEN_NONE) {
			found = i + 1;
			*ret_id = t->nodes[at].id;
		}
	}
	return found;
}

/* What is being encoded; the pieces below are parts of one text. */
struct encode {
	const struct tokenizer *tok;
	struct token_scratch *s;
	struct token_ids *ids;
};

/* Applies the Split steps from `step` on to one piece, each step seeing only its piece. */
static int encode_words(struct encode *e, const char *text, size_t len, uint32_t step)
{
	size_t at = 0, start, end;
	int r;

	if (!len)
		return 0;
	if (step == e->tok->splits_len)
		return token_bpe_word(e->tok, e->s, text, len, e->ids);
	while (at < len) {
		r = token_regex_search(
			&e->tok->splits[step], &e->s->matcher, text, len, at, &start, &end);
		if (r < 0)
			return r;
		if (r == 0)
			start = end = len;
		r = encode_words(e, text + at, start - at, step + 1);
		if (r == 0)
			r = encode_words(e, text + start, end - start, step + 1);
		if (r < 0)
			return r;
		at = end;
	}
	return 0;
}

/*
 * Leftmost-longest matches of the added tokens of one pass; what lies between goes through the next
 * pass and then to the pre-tokeniser, piece by piece.
 */
static int encode_pass(
	struct encode *e, const char *text, size_t len, const uint8_t *trusted, unsigned pass)
{
	const struct token_trie *t = &e->tok->added[pass];
	size_t from = 0, at = 0, n;
	uint32_t id = TOKEN_NONE;
	int r;

	if (pass == ARRAY_LEN(e->tok->added))
		return encode_words(e, text, len, 0);
	while (at < len) {
		n = 0;
		if (t->first[(uint8_t)text[at]])
			n = token_trie_match(
				t, text + at, len - at, trusted ? trusted + at : NULL, &id);
		if (!n) {
			at++;
			continue;
		}
		r = encode_pass(
			e, text + from, at - from, trusted ? trusted + from : NULL, pass + 1);
		if (r == 0)
			r = token_ids_push(e->ids, id);
		if (r < 0)
			return r;
		from = at += n;
	}
	return encode_pass(e, text + from, len - from, trusted ? trusted + from : NULL, pass + 1);
}

int tokenizer_encode(const struct tokenizer *tok, struct token_scratch *s, const char *text,
	size_t text_len, const uint8_t *trusted, bool add_bos_if_configured,
	struct token_ids *ret_ids)
{
	struct encode e = {tok, s, ret_ids};
	size_t had = ret_ids->len;
	int r = 0;

	if (text_len > INT32_MAX)
		return -EFBIG;
	if (!token_utf8_valid(text, text_len))
		return -EILSEQ;
	if (add_bos_if_configured && tok->add_bos)
		r = token_ids_push(ret_ids, (uint32_t)tok->bos);
	if (r == 0)
		r = encode_pass(&e, text, text_len, trusted, 0);
	if (r < 0)
		ret_ids->len = had;
	return r;
}

const char *tokenizer_token_bytes(const struct tokenizer *tok, uint32_t id, size_t *ret_len)
{
	if (id >= tok->vocab || !(tok->entries[id].flags & TOKEN_PRESENT))
		return NULL;
	if (ret_len)
		*ret_len = tok->entries[id].len;
	return tok->blob + tok->entries[id].off;
}

bool tokenizer_is_special(const struct tokenizer *tok, uint32_t id)
{
	return id < tok->vocab && (tok->entries[id].flags & TOKEN_SPECIAL);
}

bool tokenizer_is_added(const struct tokenizer *tok, uint32_t id)
{
	return id < tok->vocab && (tok->entries[id].flags & TOKEN_ADDED);
}

uint32_t tokenizer_vocab(const struct tokenizer *tok)
{
	return tok->vocab;
}

int64_t token_id_of(const struct tokenizer *tok, const char *bytes, size_t len)
{
	uint32_t id = TOKEN_NONE;

	for (size_t i = 0; i < ARRAY_LEN(tok->added); i++)
		if (len && token_trie_match(&tok->added[i], bytes, len, NULL, &id) == len)
			return id;
	for (id = 0; id < tok->vocab; id++)
		if ((tok->entries[id].flags & TOKEN_PRESENT) && tok->entries[id].len == len &&
			!memcmp(tok->blob + tok->entries[id].off, bytes, len))
			return id;
	return -1;
}

int64_t tokenizer_find(const struct tokenizer *tok, const char *text)
{
	uint32_t id = TOKEN_NONE;
	size_t len = strlen(text);

	for (size_t i = 0; i < ARRAY_LEN(tok->added); i++)
		if (len && token_trie_match(&tok->added[i], text, len, NULL, &id) == len)
			return id;
	return -1;
}

int64_t tokenizer_bos(const struct tokenizer *tok)
{
	return tok->bos;
}

int64_t tokenizer_eos(const struct tokenizer *tok)
{
	return tok->eos;
}

bool tokenizer_has_jit(const struct tokenizer *tok)
{
	for (uint32_t i = 0; i < tok->splits_len; i++)
		if (!tok->splits[i].jit)
			return false;
	return true;
}
