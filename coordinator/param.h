/*
 * param.h: the fields of a request body as a struct, by the one table coordinator/param.def: types,
 * ranges, defaults, which call takes which. Rules across fields are prep.c's. Pure; any thread.
 *
 * Every check ends in a sentence that names the field. Numbers out of range are refused, never
 * moved; null means absent; an integer may be written 5.0 or 5e0, up to 2^53 as doubles are exact.
 */
#ifndef COORDINATOR_PARAM_H
#define COORDINATOR_PARAM_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/outbuf.h"
#include "shm/conf_types.h"
#include "shm/util.h"

/* Where a field may stand: in a call's body, or in an object of one. */
enum param_scope {
	S_CHAT = 1,
	S_TEXT = 2, /* /v1/completions */
	S_TOKENIZE = 4,
	S_DETOKENIZE = 8,
	S_STREAM = 16,
	S_TEMPLATE = 32,
	S_THINKING = 64,
};

enum param_id {
#define PARAM_BOOL(scopes, name, field, ...) PARAM_ID_##field,
#define PARAM_INT(scopes, name, field, ...)  PARAM_ID_##field,
#define PARAM_REAL(scopes, name, field, ...) PARAM_ID_##field,
#define PARAM_STR(scopes, name, field, ...)  PARAM_ID_##field,
#define PARAM_WORD(scopes, name, field, ...) PARAM_ID_##field,
#define PARAM_JSON(scopes, name, field, ...) PARAM_ID_##field,
#define PARAM_SUB(...)
#define PARAM_QUIET(...)
#define PARAM_NOT(...)
#include "coordinator/param.def"
	PARAM__COUNT
};

/* Strings and JSON values are borrowed from the body's object. */
struct params {
	bool given[PARAM__COUNT]; /* by the request, not a default */
#define PARAM_BOOL(scopes, name, field, ...) bool field;
#define PARAM_INT(scopes, name, field, ...)  int64_t field;
#define PARAM_REAL(scopes, name, field, ...) double field;
#define PARAM_STR(scopes, name, field, ...)  const json_t *field;
#define PARAM_WORD(scopes, name, field, ...) int field;
#define PARAM_JSON(scopes, name, field, ...) const json_t *field;
#define PARAM_SUB(...)
#define PARAM_QUIET(...)
#define PARAM_NOT(...)
#include "coordinator/param.def"
};

enum param_effort {
	PARAM_EFFORT_NONE = 0, /* "none" is the first word of the row, "max" the last */
	PARAM_EFFORT_MAX = 6,
};

#define PARAM_NAME_MAX 96

/* What is wrong with a body: a sentence, and the field as "stream_options.include_usage". */
struct param_error {
	char name[PARAM_NAME_MAX];
	struct errbuf err;
};

/*
 * The defaults a request starts from, by precedence: heddle.ini, generation_config.json
 * (`generation`, an object or NULL), the table. -EINVAL (exit code 65) names a bad value of the
 * file, which err calls `where`.
 */
int param_defaults(const struct conf *conf, const json_t *generation, const char *where,
	struct params *ret_params, struct errbuf *err) MUST_CHECK;

/*
 * Reads `object` as the body of the call `scope` over *params, which holds the defaults. Names of
 * fields that the call does not know are listed in `unknown` ("max_token (did you mean
 * max_tokens?), x"), at most 8 of them; with `strict` the first is an error. Returns 0 or -EINVAL.
 */
int param_read(const json_t *object, enum param_scope scope, bool strict, struct params *params,
	struct outbuf *unknown, struct param_error *ret_error) MUST_CHECK;

/* Calls fn for each row in table order, for documentation and tests. */
void param_each(
	void (*fn)(void *user, const char *name, unsigned scopes, const char *help), void *user);

/* Fills *ret_error; returns -EINVAL. */
int param_fail(struct param_error *ret_error, const char *name, const char *fmt, ...)
	PRINTF_LIKE(3, 4);

#endif
