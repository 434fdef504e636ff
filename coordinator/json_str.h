/*
 * json_str.h: a request's strings for what they are, bytes with a length. U+0000 may stand in them,
 * so as C strings "text\u0000x" would be "text": compare and quote them by these.
 */
#ifndef COORDINATOR_JSON_STR_H
#define COORDINATOR_JSON_STR_H

#include <jansson.h>
#include <stdbool.h>
#include <string.h>

#include "shm/util.h"

#define JSON_STR_QUOTE_MAX 61

/* Is v a string, and this word? */
static inline bool json_str_is(const json_t *v, const char *word)
{
	size_t len = strlen(word);

	return json_is_string(v) && json_string_length(v) == len &&
	       !memcmp(json_string_value(v), word, len);
}

static inline bool json_str_has_nul(const json_t *v)
{
	return json_is_string(v) && strlen(json_string_value(v)) != json_string_length(v);
}

/* Its beginning for an error text, NUL as '?', which one_line() makes of other such characters. */
static inline const char *json_str_quote(
	const char *text, size_t len, char quoted[JSON_STR_QUOTE_MAX])
{
	size_t n = MIN(len, (size_t)JSON_STR_QUOTE_MAX - 1), i;

	for (i = 0; i < n; i++)
		quoted[i] = text[i] ? text[i] : '?';
	quoted[n] = '\0';
	return quoted;
}

#endif
