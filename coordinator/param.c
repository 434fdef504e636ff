#include "coordinator/param.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/json_str.h"

enum param_type {
	TYPE_BOOL,
	TYPE_INT,
	TYPE_REAL,
	TYPE_STR,
	TYPE_WORD,
	TYPE_JSON,
	TYPE_SUB,
	TYPE_QUIET,
	TYPE_NOT
};
enum param_kind { K_STRING = 1, K_ARRAY = 2, K_OBJECT = 4 };
enum param_from { FROM_OWN, FROM_MODEL, FROM_CONF_MODEL };

#define UNKNOWN_MAX 8

struct param_row {
	const char *name, *help;
	enum param_type type;
	unsigned scopes;
	enum param_id id;
	size_t offset; /* in struct params */
	union {
		bool b;
		int64_t i;
		double r;
		int w;
	} def;
	int64_t imin, imax;
	double rmin, rmax;
	enum param_from from;
	size_t conf_offset;   /* in struct conf, FROM_CONF_MODEL */
	unsigned kinds;       /* TYPE_JSON */
	unsigned inner;       /* TYPE_SUB */
	const char *choices;  /* TYPE_WORD */
	const char *neutrals; /* TYPE_NOT */
};

#define CONF_AT_OWN(key)        0
#define CONF_AT_MODEL(key)      0
#define CONF_AT_CONF_MODEL(key) offsetof(struct conf, key)
#define FIELD(f)                .id = PARAM_ID_##f, .offset = offsetof(struct params, f)

static const struct param_row param_rows[] = {
#define PARAM_BOOL(s, n, f, d, h)                                                                  \
	{.name = n, .help = h, .type = TYPE_BOOL, .scopes = s, FIELD(f), .def.b = d},
#define PARAM_INT(s, n, f, d, min, max, src, key, h)                                               \
	{.name = n,                                                                                \
		.help = h,                                                                         \
		.type = TYPE_INT,                                                                  \
		.scopes = s,                                                                       \
		FIELD(f),                                                                          \
		.def.i = d,                                                                        \
		.imin = min,                                                                       \
		.imax = max,                                                                       \
		.from = FROM_##src,                                                                \
		.conf_offset = CONF_AT_##src(key)},
#define PARAM_REAL(s, n, f, d, min, max, src, key, h)                                              \
	{.name = n,                                                                                \
		.help = h,                                                                         \
		.type = TYPE_REAL,                                                                 \
		.scopes = s,                                                                       \
		FIELD(f),                                                                          \
		.def.r = d,                                                                        \
		.rmin = min,                                                                       \
		.rmax = max,                                                                       \
		.from = FROM_##src,                                                                \
		.conf_offset = CONF_AT_##src(key)},
#define PARAM_STR(s, n, f, h) {.name = n, .help = h, .type = TYPE_STR, .scopes = s, FIELD(f)},
#define PARAM_WORD(s, n, f, c, d, h)                                                               \
	{.name = n, .help = h, .type = TYPE_WORD, .scopes = s, FIELD(f), .choices = c, .def.w = d},
#define PARAM_JSON(s, n, f, k, h)                                                                  \
	{.name = n, .help = h, .type = TYPE_JSON, .scopes = s, FIELD(f), .kinds = k},
#define PARAM_SUB(s, n, in, h) {.name = n, .help = h, .type = TYPE_SUB, .scopes = s, .inner = in},
#define PARAM_QUIET(s, n, h)   {.name = n, .help = h, .type = TYPE_QUIET, .scopes = s},
#define PARAM_NOT(s, n, v, why)                                                                    \
	{.name = n, .help = why, .type = TYPE_NOT, .scopes = s, .neutrals = v},
#include "coordinator/param.def"
};

int param_fail(struct param_error *ret_error, const char *name, const char *fmt, ...)
{
	va_list ap;

	snprintf(ret_error->name, sizeof(ret_error->name), "%s", name);
	va_start(ap, fmt);
	vsnprintf(ret_error->err.text, sizeof(ret_error->err.text), fmt, ap);
	va_end(ap);
	ret_error->err.exit_code = 0;
	return -EINVAL;
}

static const char *param_type_name(const json_t *v)
{
	switch (json_typeof(v)) {
	case JSON_OBJECT:
		return "an object";
	case JSON_ARRAY:
		return "an array";
	case JSON_STRING:
		return "a string";
	case JSON_INTEGER:
		return "an integer";
	case JSON_REAL:
		return "a number";
	case JSON_NULL:
		return "null";
	default:
		return "a boolean";
	}
}

static int param_read_int(
	const struct param_row *row, const json_t *v, int64_t *ret, struct errbuf *err)
{
	/* 2^53: beyond it a double may be the nearest one to another integer that was written */
	const double exact = 9007199254740992.0;
	double real = json_real_value(v);
	int64_t value;

	if (json_is_integer(v))
		value = json_integer_value(v);
	else if (json_is_real(v) && fabs(real) <= exact && floor(real) == real)
		value = (int64_t)real;
	else if (json_is_real(v) && floor(real) == real && real > (double)row->imin &&
		 real < (double)row->imax)
		return err_set(err, -EINVAL, 0,
			"must be written without . and e where it is beyond 2^53: as %.17g it is "
			"not exact",
			real);
	else if (json_is_real(v))
		return err_set(err, -EINVAL, 0, "must be an integer from %lld to %lld, not %.17g",
			(long long)row->imin, (long long)row->imax, real);
	else
		return err_set(err, -EINVAL, 0, "must be an integer, not %s", param_type_name(v));
	if (value < row->imin || value > row->imax)
		return err_set(err, -EINVAL, 0, "must be from %lld to %lld, not %lld",
			(long long)row->imin, (long long)row->imax, (long long)value);
	*ret = value;
	return 0;
}

static int param_read_real(
	const struct param_row *row, const json_t *v, double *ret, struct errbuf *err)
{
	double value;

	if (!json_is_number(v))
		return err_set(err, -EINVAL, 0, "must be a number, not %s", param_type_name(v));
	value = json_number_value(v);
	if (!(value >= row->rmin && value <= row->rmax))
		return err_set(err, -EINVAL, 0, "must be from %g to %g, not %g", row->rmin,
			row->rmax, value);
	*ret = value;
	return 0;
}

static int param_read_word(
	const struct param_row *row, const json_t *v, int *ret, struct errbuf *err)
{
	char quoted[JSON_STR_QUOTE_MAX];
	const char *at = row->choices;
	size_t len;
	int i;

	if (!json_is_string(v))
		return err_set(err, -EINVAL, 0, "must be a string, not %s", param_type_name(v));
	for (i = 0;; i++) {
		len = strcspn(at, "|");
		if (len == json_string_length(v) && !memcmp(at, json_string_value(v), len)) {
			*ret = i;
			return 0;
		}
		if (!at[len])
			break;
		at += len + 1;
	}
	return err_set(err, -EINVAL, 0, "must be one of %s, not \"%s\"", row->choices,
		json_str_quote(json_string_value(v), json_string_length(v), quoted));
}

static bool param_is_kind(const json_t *v, unsigned kinds)
{
	return (json_is_string(v) && (kinds & K_STRING)) ||
	       (json_is_array(v) && (kinds & K_ARRAY)) || (json_is_object(v) && (kinds & K_OBJECT));
}

static int param_read_json(
	const struct param_row *row, const json_t *v, const json_t **ret, struct errbuf *err)
{
	static const char *const kinds[8] = {"", "a string", "an array", "a string or an array",
		"an object", "a string or an object", "an array or an object",
		"a string, an array or an object"};

	if (!param_is_kind(v, row->kinds))
		return err_set(err, -EINVAL, 0, "must be %s, not %s", kinds[row->kinds],
			param_type_name(v));
	*ret = v;
	return 0;
}

/* A value that asks for nothing is let through: SDKs send their defaults along. */
static int param_read_not(const struct param_row *row, const json_t *v, struct errbuf *err)
{
	json_t *neutrals = json_loads(row->neutrals, 0, NULL), *one;
	bool same = false;
	size_t i;

	json_array_foreach (neutrals, i, one)
		same |= json_equal(one, v) ||
			(json_is_number(one) && json_is_number(v) &&
				json_number_value(one) == json_number_value(v));
	json_decref(neutrals);
	if (same)
		return 0;
	return err_set(err, -EINVAL, 0, "is not supported: %s", row->help);
}

/* One value into its field. The sentence lacks the name, which the caller puts before it. */
static int param_read_value(
	const struct param_row *row, const json_t *v, struct params *params, struct errbuf *err)
{
	void *field = (char *)params + row->offset;

	switch (row->type) {
	case TYPE_BOOL:
		if (!json_is_boolean(v))
			return err_set(err, -EINVAL, 0, "must be true or false, not %s",
				param_type_name(v));
		*(bool *)field = json_is_true(v);
		return 0;
	case TYPE_INT:
		return param_read_int(row, v, field, err);
	case TYPE_REAL:
		return param_read_real(row, v, field, err);
	case TYPE_STR:
		if (!json_is_string(v))
			return err_set(
				err, -EINVAL, 0, "must be a string, not %s", param_type_name(v));
		*(const json_t **)field = v;
		return 0;
	case TYPE_WORD:
		return param_read_word(row, v, field, err);
	case TYPE_JSON:
		return param_read_json(row, v, field, err);
	case TYPE_NOT:
		return param_read_not(row, v, err);
	case TYPE_SUB:
	case TYPE_QUIET:
		return 0;
	}
	return 0;
}

static bool param_has_field(const struct param_row *row)
{
	return row->type <= TYPE_JSON;
}

static const struct param_row *param_find(const char *name, unsigned scope)
{
	size_t i;

	for (i = 0; i < ARRAY_LEN(param_rows); i++)
		if ((param_rows[i].scopes & scope) && !strcmp(param_rows[i].name, name))
			return &param_rows[i];
	return NULL;
}

/* Edits from a to b: insert, delete, replace one byte. Both at most 40 bytes. */
static size_t param_distance(const char *a, const char *b)
{
	size_t row[41], la = strlen(a), lb = strlen(b), i, j, diagonal, above;

	if (la > 40 || lb > 40)
		return SIZE_MAX;
	for (j = 0; j <= lb; j++)
		row[j] = j;
	for (i = 1; i <= la; i++) {
		diagonal = row[0];
		row[0] = i;
		for (j = 1; j <= lb; j++) {
			above = row[j];
			row[j] = MIN(MIN(above, row[j - 1]) + 1, diagonal + (a[i - 1] != b[j - 1]));
			diagonal = above;
		}
	}
	return row[lb];
}

static const char *param_nearest(const char *name, unsigned scope)
{
	size_t i, best = 3, d; /* further apart than 2 edits is no slip of the finger */
	const char *found = NULL;

	for (i = 0; i < ARRAY_LEN(param_rows); i++) {
		if (!(param_rows[i].scopes & scope) || param_rows[i].type >= TYPE_QUIET)
			continue;
		d = param_distance(name, param_rows[i].name);
		if (d < best) {
			best = d;
			found = param_rows[i].name;
		}
	}
	return found;
}

/* The name is the client's: only what a header may hold of it is repeated. */
static void param_quote(const char *name, char quoted[PARAM_NAME_MAX / 2])
{
	size_t i;

	for (i = 0; name[i] && i < PARAM_NAME_MAX / 2 - 1; i++)
		quoted[i] = name[i] > ' ' && name[i] < 0x7f ? name[i] : '?';
	quoted[i] = '\0';
}

struct param_reader {
	bool strict;
	struct params *params;
	struct outbuf *unknown;
	size_t unknown_n;
	struct param_error *error;
};

static int param_unknown(
	struct param_reader *r, const char *prefix, const char *name, unsigned scope)
{
	const char *nearest = param_nearest(name, scope);
	char quoted[PARAM_NAME_MAX / 2], full[PARAM_NAME_MAX];

	param_quote(name, quoted);
	if (r->strict) {
		snprintf(full, sizeof(full), "%s%s", prefix, quoted);
		return param_fail(r->error, full, "unknown field %s%s%s%s", full,
			nearest ? " (did you mean " : "", nearest ? nearest : "",
			nearest ? "?)" : "");
	}
	if (r->unknown_n++ >= UNKNOWN_MAX)
		return 0;
	outbuf_printf(r->unknown, "%s%s%s%s%s%s", r->unknown_n > 1 ? ", " : "", prefix, quoted,
		nearest ? " (did you mean " : "", nearest ? nearest : "", nearest ? "?)" : "");
	return 0;
}

static int param_read_object(
	struct param_reader *r, const json_t *object, unsigned scope, const char *prefix)
{
	const struct param_row *row;
	char full[PARAM_NAME_MAX], inner[PARAM_NAME_MAX];
	struct errbuf err = {0};
	const char *name;
	json_t *v;
	int ret;

	json_object_foreach ((json_t *)object, name, v) {
		row = param_find(name, scope);
		if (!row) {
			ret = param_unknown(r, prefix, name, scope);
			if (ret)
				return ret;
			continue;
		}
		if (json_is_null(v))
			continue;
		snprintf(full, sizeof(full), "%s%s", prefix, row->name);
		if (row->type == TYPE_SUB) {
			if (!json_is_object(v))
				return param_fail(r->error, full, "%s must be an object, not %s",
					full, param_type_name(v));
			snprintf(inner, sizeof(inner), "%s.", row->name);
			ret = param_read_object(r, v, row->inner, inner);
			if (ret)
				return ret;
			continue;
		}
		ret = param_read_value(row, v, r->params, &err);
		if (ret)
			return param_fail(r->error, full, "%s %.400s", full, err.text);
		if (param_has_field(row))
			r->params->given[row->id] = true;
	}
	return 0;
}

int param_read(const json_t *object, enum param_scope scope, bool strict, struct params *params,
	struct outbuf *unknown, struct param_error *ret_error)
{
	struct param_reader r = {
		.strict = strict, .params = params, .unknown = unknown, .error = ret_error};

	return param_read_object(&r, object, scope, "");
}

static void param_set_default(const struct param_row *row, struct params *params)
{
	void *field = (char *)params + row->offset;

	if (row->type == TYPE_BOOL)
		*(bool *)field = row->def.b;
	else if (row->type == TYPE_INT)
		*(int64_t *)field = row->def.i;
	else if (row->type == TYPE_REAL)
		*(double *)field = row->def.r;
	else if (row->type == TYPE_WORD)
		*(int *)field = row->def.w;
}

int param_defaults(const struct conf *conf, const json_t *generation, const char *where,
	struct params *ret_params, struct errbuf *err)
{
	struct params params = {0};
	const struct param_row *row;
	struct errbuf why;
	json_t *v;
	double real;
	size_t i;

	for (i = 0; i < ARRAY_LEN(param_rows); i++) {
		row = &param_rows[i];
		param_set_default(row, &params);
		if (row->from == FROM_OWN || !param_has_field(row))
			continue;
		v = generation ? json_object_get(generation, row->name) : NULL;
		if (v && !json_is_null(v) && param_read_value(row, v, &params, &why))
			return err_set(err, -EINVAL, EXIT_DATA_ERR, "%s: %s %.300s", where,
				row->name, why.text);
		if (row->from != FROM_CONF_MODEL)
			continue;
		memcpy(&real, (const char *)conf + row->conf_offset, sizeof(real));
		if (real != CONF_REAL_AUTO)
			*(double *)((char *)&params + row->offset) = real;
	}
	*ret_params = params;
	return 0;
}

void param_each(
	void (*fn)(void *user, const char *name, unsigned scopes, const char *help), void *user)
{
	size_t i;

	for (i = 0; i < ARRAY_LEN(param_rows); i++)
		fn(user, param_rows[i].name, param_rows[i].scopes, param_rows[i].help);
}
