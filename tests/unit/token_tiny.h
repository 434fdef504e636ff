/*
 * A tokenizer small enough to reason about: the 256 bytes (ids 0..255 in the order of their
 * characters), five tokens more, two added ones, and words split from the rest.
 */
#ifndef TESTS_TOKEN_TINY_H
#define TESTS_TOKEN_TINY_H

#include <jansson.h>

#include "coordinator/token.h"

enum tiny_id {
	TINY_AB = 256,
	TINY_ABC,
	TINY_BC,
	TINY_DD,
	TINY_XYZ, /* no merges lead to it */
	TINY_S,   /* <s>: added, special, not normalized */
	TINY_X,   /* <x>: added, normalized */
};

#define TINY_TEMPLATE                                                                              \
	"{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\","          \
	"\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],"                \
	"\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[261],\"tokens\":[\"<s>\"]}}}"

json_t *tiny_json(void);

/*
 * Sets what `path` ("model.vocab.word", "added_tokens.1.id"; a number is an index) names to the
 * JSON in `value`, adds it at the end of an array, or deletes it where value is NULL.
 */
void tiny_set(json_t *json, const char *path, const char *value);

/* Parses and releases json. Where err is NULL a failure ends the program. */
struct tokenizer *tiny_parse(json_t *json, const char *config, struct errbuf *err);

#endif
