/*
 * token.h: text to token ids and back, from a Hugging Face tokenizer.json (byte-level BPE with the
 * pre-tokeniser sequence it declares). A tokenizer is immutable once loaded and may be used by
 * several threads at once, each with its own struct token_scratch.
 */
#ifndef COORDINATOR_TOKEN_H
#define COORDINATOR_TOKEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/util.h"

struct tokenizer;
struct token_scratch; /* PCRE2 match data, work arrays; grows as needed */

/* Loads DIR/tokenizer.json and DIR/tokenizer_config.json. err names file and what was expected. */
int tokenizer_load(const char *dir, struct tokenizer **ret_tok, struct errbuf *err) MUST_CHECK;
/* The same from bytes (fuzzers, tests); config_json may be NULL. */
int tokenizer_parse(const void *json, size_t len, const void *config_json, size_t config_len,
	struct tokenizer **ret_tok, struct errbuf *err) MUST_CHECK;
struct tokenizer *tokenizer_free(struct tokenizer *tok);

struct token_scratch *token_scratch_new(const struct tokenizer *tok);
struct token_scratch *token_scratch_free(struct token_scratch *s);

/* Growing array of ids; zero-initialise, free with token_ids_free. */
struct token_ids {
	uint32_t *ids;
	size_t len, cap;
};
void token_ids_free(struct token_ids *ids);

/*
 * Text with trust: an added token ("<|User|>", "<think>", ...) is matched only where every one of
 * its bytes is trusted; elsewhere the same characters stay text. trusted may be NULL (all trusted)
 * or text_len bytes of 0/1. Appends to ret_ids; on failure ret_ids keeps what it had.
 * -EILSEQ: text is not valid UTF-8. -EFBIG: 2 GiB or more. -E2BIG: a pre-tokeniser pattern gave up
 * (its match limit), so no split can be trusted. -ENOMEM.
 */
int tokenizer_encode(const struct tokenizer *tok, struct token_scratch *s, const char *text,
	size_t text_len, const uint8_t *trusted, bool add_bos_if_configured,
	struct token_ids *ret_ids) MUST_CHECK;

/* Bytes of one token (not always whole UTF-8 characters). Returns NULL for an unknown id. */
const char *tokenizer_token_bytes(const struct tokenizer *tok, uint32_t id, size_t *ret_len);
bool tokenizer_is_special(const struct tokenizer *tok, uint32_t id); /* "special": true */
bool tokenizer_is_added(const struct tokenizer *tok, uint32_t id);
uint32_t tokenizer_vocab(const struct tokenizer *tok); /* highest id + 1 */
/* Id of an added token by its exact text, or -1. */
int64_t tokenizer_find(const struct tokenizer *tok, const char *text);
int64_t tokenizer_bos(const struct tokenizer *tok); /* -1: none */
int64_t tokenizer_eos(const struct tokenizer *tok);

/*
 * False: the system refused memory for compiled patterns and the interpreter is used, several times
 * slower with the same result. Whoever loads a tokenizer says so once; this module does not log.
 */
bool tokenizer_has_jit(const struct tokenizer *tok);

/*
 * All of ids as text, special tokens shown or skipped; invalid UTF-8 becomes U+FFFD, one for each
 * maximal broken part as Unicode recommends; unknown ids give nothing. malloc'd, with a NUL after
 * it; NULL when there is no memory.
 */
char *tokenizer_decode(const struct tokenizer *tok, const uint32_t *ids, size_t n,
	bool skip_special, size_t *ret_len);

/*
 * Streaming decode: holds back the bytes of an unfinished UTF-8 character. token_stream_push
 * appends what became printable to out (a growing buffer owned by the stream, valid until the next
 * call); token_stream_finish gives what is left, an incomplete tail as one U+FFFD. The
 * concatenation equals tokenizer_decode of the same ids.
 */
struct token_stream {
	const struct tokenizer *tok;
	bool skip_special;
	uint8_t held[8];
	uint32_t held_len;
	char *out;
	size_t out_len, out_cap;
};
void token_stream_init(struct token_stream *st, const struct tokenizer *tok, bool skip_special);
int token_stream_push(
	struct token_stream *st, uint32_t id, const char **ret_text, size_t *ret_len) MUST_CHECK;
int token_stream_finish(struct token_stream *st, const char **ret_text, size_t *ret_len) MUST_CHECK;
void token_stream_fini(struct token_stream *st);

#endif
