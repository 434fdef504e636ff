/*
 * A pre-tokeniser pattern of a tokenizer.json (Oniguruma's Ruby syntax, as Hugging Face compiles
 * it) as a PCRE2 pattern with the same meaning. Only constructs whose meaning is known to be the
 * same, or that can be rewritten to be, are taken; any other is refused by name:
 *
 *   - literals, escapes of punctuation, \r \n \t; "." (never a line feed)
 *   - \p{L} \p{M} \p{N} \p{P} \p{S} \p{Z} and \P{..}: PCRE2 10.42 knows Unicode 14, Oniguruma 16,
 *     so the characters added in between are listed (token_unicode.def)
 *   - \s and \S: Oniguruma counts U+0085 and not U+180E, PCRE2 both
 *   - [...] with the above and ranges, no nesting, no &&
 *   - (...) and (?:...), (?=...), (?!...), |
 *   - ? * + and their lazy (?) and possessive (+) forms; {n} {n,} {n,m}
 *
 * A pattern that can match nothing is refused too. Compiled patterns are immutable; each thread
 * matches with its own token_matcher.
 */
#ifndef COORDINATOR_TOKEN_REGEX_H
#define COORDINATOR_TOKEN_REGEX_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdbool.h>
#include <stddef.h>

#include "shm/util.h"

struct token_split {
	pcre2_code *code;
	bool jit;
};

struct token_matcher {
	pcre2_match_data *data;
	pcre2_match_context *context;
	pcre2_jit_stack *stack;
};

/* `where` names the pattern in err ("tokenizer.json: pre_tokenizer[2]"). -EINVAL, -ENOMEM. */
int token_regex_compile(struct token_split *ret_split, const char *pattern, size_t len,
	const char *where, struct errbuf *err) MUST_CHECK;
void token_regex_fini(struct token_split *split);

int token_matcher_init(struct token_matcher *m) MUST_CHECK;
void token_matcher_fini(struct token_matcher *m);

/*
 * First match in text[start..len), text being valid UTF-8 and start a character's first byte.
 * 1: found, from *ret_start to *ret_end, never empty; 0: none; -E2BIG: the match limit, which grows
 * with len so that linear patterns never meet it, was reached; -ENOMEM.
 */
int token_regex_search(const struct token_split *split, struct token_matcher *m, const char *text,
	size_t len, size_t start, size_t *ret_start, size_t *ret_end) MUST_CHECK;

#endif
