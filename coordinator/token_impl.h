/*
 * What the files of the tokenizer share; nobody else includes it (tests do).
 *
 * token_load.c fills struct tokenizer once; afterwards nothing writes to it. All that changes while
 * encoding lives in struct token_scratch.
 */
#ifndef COORDINATOR_TOKEN_IMPL_H
#define COORDINATOR_TOKEN_IMPL_H

#include <jansson.h>

#include "coordinator/token.h"
#include "coordinator/token_regex.h"

/* Ids from 16 Mi up are refused: they would only make the tables below huge. */
#define TOKEN_ID_MAX        ((1u << 24) - 1)
#define TOKEN_SPLIT_MAX     8    /* Split steps in a pre-tokeniser sequence */
#define TOKEN_ADDED_LEN_MAX 1024 /* bytes of one added token; bounds the work for each position */
#define TOKEN_NONE          UINT32_MAX

enum token_flag { TOKEN_PRESENT = 1, TOKEN_ADDED = 2, TOKEN_SPECIAL = 4, TOKEN_WORD = 8 };

struct token_entry {
	uint32_t off, len; /* in blob: the bytes it decodes to */
	uint32_t flags;    /* TOKEN_WORD: reachable as text (every character maps to a byte) */
};

/* Pair of ids to rank and resulting id; open addressing, left == TOKEN_NONE marks a free slot. */
struct token_merge {
	uint32_t left, right, rank, id;
};

/* Bytes to id, for `ignore_merges`; open addressing, TOKEN_NONE marks a free slot. */
struct token_words {
	uint32_t *slots;
	uint32_t mask;
};

/* A node's children form a list. Node 0 is the root; 0 as child or sibling means none. */
struct token_trie_node {
	uint32_t child, sibling, id;
	uint8_t byte;
};

struct token_trie {
	struct token_trie_node *nodes;
	uint32_t len, cap;
	bool first[256]; /* bytes with which some added token begins */
};

struct tokenizer {
	uint32_t vocab; /* highest id + 1 */
	struct token_entry *entries;
	char *blob;
	size_t blob_len, blob_cap;
	uint32_t byte_id[256]; /* TOKEN_NONE for bytes that UTF-8 never holds, if without a token */
	struct token_merge *merges;
	uint32_t merges_mask;
	bool ignore_merges;
	struct token_words words;
	/* Hugging Face matches tokens with "normalized": false over the whole text first, then the
	 * others in what is left. */
	struct token_trie added[2];
	struct token_split splits[TOKEN_SPLIT_MAX];
	uint32_t splits_len;
	bool add_bos;
	int64_t bos, eos;
};

/* token_load_*.c: one part of the file each. `where` is the file's name for err. */
struct token_load {
	struct tokenizer *tok;
	const char *where;
	json_t *vocab; /* borrowed: text (as the file writes it) to id */
	struct errbuf *err;
};
int token_load_steps(struct token_load *l, json_t *root) MUST_CHECK;
int token_load_vocab(struct token_load *l, json_t *root) MUST_CHECK;

int token_load_merges(struct token_load *l, json_t *model) MUST_CHECK;
int token_load_config(struct token_load *l, json_t *config, const char *where) MUST_CHECK;

/* The id of an added token or, failing that, of a base token by its decoded bytes; or -1. */
int64_t token_id_of(const struct tokenizer *tok, const char *bytes, size_t len);

/* Longest added token that starts at text and lies in its first `len` bytes, all of them trusted
 * (trusted may be NULL). Returns its length, 0 for none. */
size_t token_trie_match(const struct token_trie *t, const char *text, size_t len,
	const uint8_t *trusted, uint32_t *ret_id);
int token_trie_add(struct token_trie *t, const char *text, size_t len, uint32_t id) MUST_CHECK;

/* token_bpe.c */
uint64_t token_hash(const void *bytes, size_t len);
const struct token_merge *token_merge_find(
	const struct tokenizer *tok, uint32_t left, uint32_t right);
int token_merge_table(struct tokenizer *tok, size_t n) MUST_CHECK;
/* Adds or replaces: of two merges of the same pair the later counts, as in Hugging Face. */
void token_merge_put(struct tokenizer *tok, struct token_merge m);
int token_words_build(struct tokenizer *tok) MUST_CHECK;
int token_ids_push(struct token_ids *ids, uint32_t id) MUST_CHECK;
int token_bpe_word(const struct tokenizer *tok, struct token_scratch *s, const char *word,
	size_t len, struct token_ids *ret_ids) MUST_CHECK;

/* token_decode.c: UTF-8 that arrives in pieces. held_len <= 3 between calls. Writes at most
 * 3 * (held_len + len) bytes. */
size_t token_utf8_feed(
	uint8_t held[8], uint32_t *held_len, const char *bytes, size_t len, char *ret_out);
bool token_utf8_valid(const char *text, size_t len);

#endif
