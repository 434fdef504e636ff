#include "coordinator/token_impl.h"
#include "coordinator/token_scratch.h"

#include <stdlib.h>
#include <string.h>

/* Scratch arrays over this size are given back after the word that needed them. */
#define KEEP_BYTES (8u << 20)

uint64_t token_hash(const void *bytes, size_t len)
{
	const uint8_t *p = bytes;
	uint64_t h = 0x9e3779b97f4a7c15u ^ len, w;

	for (; len >= 8; p += 8, len -= 8) {
		memcpy(&w, p, 8);
		h = (h ^ w) * 0xff51afd7ed558ccdu;
		h ^= h >> 32;
	}
	for (w = 0; len; len--)
		w = w << 8 | *p++;
	h = (h ^ w) * 0xff51afd7ed558ccdu;
	h ^= h >> 32;
	h *= 0xc4ceb9fe1a85ec53u;
	return h ^ h >> 29;
}

static uint32_t pair_slot(uint32_t left, uint32_t right, uint32_t mask)
{
	uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;

	return (uint32_t)(h >> 32) & mask;
}

const struct token_merge *token_merge_find(
	const struct tokenizer *tok, uint32_t left, uint32_t right)
{
	uint32_t i = pair_slot(left, right, tok->merges_mask);

	for (;; i = (i + 1) & tok->merges_mask) {
		const struct token_merge *m = &tok->merges[i];

		if (m->left == left && m->right == right)
			return m;
		if (m->left == TOKEN_NONE)
			return NULL;
	}
}

/* Slots for n entries at most half full. */
static uint32_t table_size(size_t n)
{
	uint32_t size = 16;

	while (size < n * 2)
		size *= 2;
	return size;
}

int token_merge_table(struct tokenizer *tok, size_t n)
{
	uint32_t size = table_size(n);

	tok->merges = malloc(size * sizeof(*tok->merges));
	if (!tok->merges)
		return -ENOMEM;
	for (uint32_t i = 0; i < size; i++)
		tok->merges[i].left = TOKEN_NONE;
	tok->merges_mask = size - 1;
	return 0;
}

void token_merge_put(struct tokenizer *tok, struct token_merge m)
{
	uint32_t i = pair_slot(m.left, m.right, tok->merges_mask);

	while (tok->merges[i].left != TOKEN_NONE &&
		(tok->merges[i].left != m.left || tok->merges[i].right != m.right))
		i = (i + 1) & tok->merges_mask;
	tok->merges[i] = m;
}

static uint32_t word_find(const struct tokenizer *tok, const char *word, size_t len)
{
	uint32_t i = (uint32_t)token_hash(word, len) & tok->words.mask;

	for (; tok->words.slots[i] != TOKEN_NONE; i = (i + 1) & tok->words.mask) {
		const struct token_entry *e = &tok->entries[tok->words.slots[i]];

		if (e->len == len && !memcmp(tok->blob + e->off, word, len))
			return tok->words.slots[i];
	}
	return TOKEN_NONE;
}

int token_words_build(struct tokenizer *tok)
{
	uint32_t size = table_size(tok->vocab), i;

	tok->words.slots = malloc(size * sizeof(*tok->words.slots));
	if (!tok->words.slots)
		return -ENOMEM;
	for (i = 0; i < size; i++)
		tok->words.slots[i] = TOKEN_NONE;
	tok->words.mask = size - 1;
	for (uint32_t id = 0; id < tok->vocab; id++) {
		const struct token_entry *e = &tok->entries[id];

		/* Text must never become an added token, so those are left out. */
		if (!(e->flags & TOKEN_WORD) || (e->flags & TOKEN_ADDED))
			continue;
		i = (uint32_t)token_hash(tok->blob + e->off, e->len) & tok->words.mask;
		while (tok->words.slots[i] != TOKEN_NONE)
			i = (i + 1) & tok->words.mask;
		tok->words.slots[i] = id;
	}
	return 0;
}

int token_ids_push(struct token_ids *ids, uint32_t id)
{
	if (ids->len == ids->cap) {
		size_t cap = MAX(ids->cap * 2, (size_t)64);
		uint32_t *p = realloc(ids->ids, cap * sizeof(*p));

		if (!p)
			return -ENOMEM;
		ids->ids = p;
		ids->cap = cap;
	}
	ids->ids[ids->len++] = id;
	return 0;
}

void token_ids_free(struct token_ids *ids)
{
	free(ids->ids);
	*ids = (struct token_ids){0};
}

static int heap_push(struct token_scratch *s, uint32_t rank, uint32_t pos)
{
	uint64_t key = (uint64_t)rank << 32 | pos;
	size_t i = s->heap_len, up;

	if (i == s->heap_cap) {
		size_t cap = MAX(s->heap_cap * 2, (size_t)64);
		uint64_t *p = realloc(s->heap, cap * sizeof(*p));

		if (!p)
			return -ENOMEM;
		s->heap = p;
		s->heap_cap = cap;
	}
	s->heap_len++;
	for (; i && s->heap[up = (i - 1) / 2] > key; i = up)
		s->heap[i] = s->heap[up];
	s->heap[i] = key;
	return 0;
}

static uint64_t heap_pop(struct token_scratch *s)
{
	uint64_t top = s->heap[0], last = s->heap[--s->heap_len];
	size_t i = 0, down;

	for (; (down = 2 * i + 1) < s->heap_len; i = down) {
		if (down + 1 < s->heap_len && s->heap[down + 1] < s->heap[down])
			down++;
		if (s->heap[down] >= last)
			break;
		s->heap[i] = s->heap[down];
	}
	s->heap[i] = last;
	return top;
}

/* Offers the pair that begins at symbol pos, if there is a merge for it. */
static int offer(const struct tokenizer *tok, struct token_scratch *s, int32_t pos)
{
	const struct token_symbol *a = &s->symbols[pos];
	const struct token_merge *m;

	if (a->next < 0)
		return 0;
	m = token_merge_find(tok, a->id, s->symbols[a->next].id);
	return m ? heap_push(s, m->rank, (uint32_t)pos) : 0;
}

/*
 * Merges the pair of the lowest rank, the leftmost of several, until none is left. An entry of the
 * heap whose pair has changed since is recognised by its rank: a rank belongs to one pair.
 */
static int merge_all(const struct tokenizer *tok, struct token_scratch *s)
{
	while (s->heap_len) {
		uint64_t key = heap_pop(s);
		int32_t pos = (int32_t)(uint32_t)key, right;
		struct token_symbol *a = &s->symbols[pos];
		const struct token_merge *m;

		if (a->id == TOKEN_NONE || a->next < 0)
			continue;
		right = a->next;
		m = token_merge_find(tok, a->id, s->symbols[right].id);
		if (!m || m->rank != (uint32_t)(key >> 32))
			continue;
		a->id = m->id;
		a->next = s->symbols[right].next;
		s->symbols[right].id = TOKEN_NONE;
		if (a->next >= 0)
			s->symbols[a->next].prev = pos;
		if (a->prev >= 0 && offer(tok, s, a->prev) < 0)
			return -ENOMEM;
		if (offer(tok, s, pos) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int bpe(const struct tokenizer *tok, struct token_scratch *s, const uint8_t *word,
	size_t len, struct token_ids *ret_ids)
{
	int r = 0;

	if (s->symbols_cap < len) {
		struct token_symbol *p = realloc(s->symbols, len * sizeof(*p));

		if (!p)
			return -ENOMEM;
		s->symbols = p;
		s->symbols_cap = len;
	}
	for (size_t i = 0; i < len; i++)
		s->symbols[i] = (struct token_symbol){
			tok->byte_id[word[i]], (int32_t)i - 1, i + 1 < len ? (int32_t)i + 1 : -1};
	s->heap_len = 0;
	for (size_t i = 0; i + 1 < len && r == 0; i++)
		r = offer(tok, s, (int32_t)i);
	if (r == 0)
		r = merge_all(tok, s);
	for (int32_t i = 0; i >= 0 && r == 0; i = s->symbols[i].next)
		r = token_ids_push(ret_ids, s->symbols[i].id);
	return r;
}

static void shrink(struct token_scratch *s)
{
	if (s->symbols_cap * sizeof(*s->symbols) > KEEP_BYTES) {
		free(s->symbols);
		s->symbols = NULL;
		s->symbols_cap = 0;
	}
	if (s->heap_cap * sizeof(*s->heap) > KEEP_BYTES) {
		free(s->heap);
		s->heap = NULL;
		s->heap_cap = 0;
	}
}

static int ids_append(struct token_ids *ids, const uint32_t *add, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (token_ids_push(ids, add[i]) < 0)
			return -ENOMEM;
	return 0;
}

int token_bpe_word(const struct tokenizer *tok, struct token_scratch *s, const char *word,
	size_t len, struct token_ids *ret_ids)
{
	struct token_cached *c = NULL;
	size_t from = ret_ids->len;
	int r;

	if (len == 1)
		return token_ids_push(ret_ids, tok->byte_id[(uint8_t)word[0]]);
	if (tok->ignore_merges) {
		uint32_t id = word_find(tok, word, len);

		if (id != TOKEN_NONE)
			return token_ids_push(ret_ids, id);
	}
	if (len <= TOKEN_CACHE_BYTES) {
		c = &s->cache[token_hash(word, len) % TOKEN_CACHE_SLOTS];
		if (c->len == len && !memcmp(c->bytes, word, len))
			return ids_append(ret_ids, c->ids, c->n);
	}
	r = bpe(tok, s, (const uint8_t *)word, len, ret_ids);
	shrink(s);
	if (r == 0 && c && ret_ids->len - from <= TOKEN_CACHE_IDS) {
		c->len = (uint8_t)len;
		c->n = (uint8_t)(ret_ids->len - from);
		memcpy(c->bytes, word, len);
		memcpy(c->ids, ret_ids->ids + from, c->n * sizeof(*c->ids));
	}
	return r;
}
