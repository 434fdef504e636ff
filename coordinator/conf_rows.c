#include "coordinator/conf_rows.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shm/utf8.h"

/* One NULL-terminated list of names for each list of choices in etc/conf_choices.def. */
#define X(name, suffix) name,
static const char *const choices_LOAD[] = {CONF_LOAD(X) NULL};
static const char *const choices_BACKEND[] = {CONF_BACKEND(X) NULL};
static const char *const choices_COLLECTIVE[] = {CONF_COLLECTIVE(X) NULL};
static const char *const choices_INDEX_KEY[] = {CONF_INDEX_KEY(X) NULL};
static const char *const choices_STORE[] = {CONF_STORE(X) NULL};
static const char *const choices_KV[] = {CONF_KV(X) NULL};
static const char *const choices_NUMERICS[] = {CONF_NUMERICS(X) NULL};
static const char *const choices_ACT[] = {CONF_ACT(X) NULL};
static const char *const choices_POLICY[] = {CONF_POLICY(X) NULL};
static const char *const choices_LEVEL[] = {CONF_LEVEL(X) NULL};
static const char *const choices_FORMAT[] = {CONF_FORMAT(X) NULL};
#undef X

#define FIELD(s, k)        .section = #s, .key = #k, .offset = offsetof(struct conf, s##_##k)
#define COMMON(t, d, r, h) .type = CONF_TYPE_##t, .def = (d), .reload = CONF_RELOAD_##r, .help = (h)

const struct conf_row conf_rows[CONF_ROW__COUNT] = {
#define CONF_SECTION(s, help)
#define CONF_STR(s, k, d, r, h)  {FIELD(s, k), COMMON(STR, d, r, h), .word = ""},
#define CONF_BOOL(s, k, d, r, h) {FIELD(s, k), COMMON(BOOL, d, r, h), .word = ""},
#define CONF_ENUM(s, k, d, c, r, h)                                                                \
	{FIELD(s, k), COMMON(ENUM, d, r, h), .word = "", .choices = choices_##c},
#define CONF_OCT(s, k, d, lo, hi, r, h)                                                            \
	{FIELD(s, k), COMMON(OCT, d, r, h), .word = "", .min = (lo), .max = (hi)},
#define CONF_INT(s, k, d, w, lo, hi, r, h)                                                         \
	{FIELD(s, k), COMMON(INT, d, r, h), .word = (w), .min = (lo), .max = (hi)},
#define CONF_SIZE(s, k, d, w, lo, hi, r, h)                                                        \
	{FIELD(s, k), COMMON(SIZE, d, r, h), .word = (w), .min = (lo), .max = (hi)},
#define CONF_TIME(s, k, d, w, lo, hi, r, h)                                                        \
	{FIELD(s, k), COMMON(TIME, d, r, h), .word = (w), .min = (lo), .max = (hi)},
#define CONF_REAL(s, k, d, w, lo, hi, r, h)                                                        \
	{FIELD(s, k), COMMON(REAL, d, r, h), .word = (w), .real_min = (lo), .real_max = (hi)},
#include "etc/conf.def"
#include "etc/conf_undef.def"
};

const struct conf_section conf_sections[] = {
#define CONF_SECTION(s, h) {#s, h},
#define CONF_STR(s, k, ...)
#define CONF_BOOL(s, k, ...)
#define CONF_ENUM(s, k, ...)
#define CONF_OCT(s, k, ...)
#define CONF_INT(s, k, ...)
#define CONF_SIZE(s, k, ...)
#define CONF_TIME(s, k, ...)
#define CONF_REAL(s, k, ...)
#include "etc/conf.def"
#include "etc/conf_undef.def"
};
const size_t conf_section_count = ARRAY_LEN(conf_sections);

struct unit {
	const char *name;
	int64_t scale;
};

/* Largest first, so that printing takes the largest that divides. */
static const struct unit size_units[] = {{"G", 1 << 30}, {"M", 1 << 20}, {"K", 1 << 10}, {"", 1}};
static const struct unit time_units[] = {
	{"s", 1000000000}, {"ms", 1000000}, {"us", 1000}, {"ns", 1}};

/* Edit distance, for "did you mean"; names are short. */
static size_t edit_distance(const char *a, const char *b)
{
	size_t row[64], la = strlen(a), lb = strlen(b), i, j, diag, up;

	if (la >= ARRAY_LEN(row) || lb >= ARRAY_LEN(row))
		return SIZE_MAX;
	for (j = 0; j <= lb; j++)
		row[j] = j;
	for (i = 1; i <= la; i++) {
		diag = row[0];
		row[0] = i;
		for (j = 1; j <= lb; j++) {
			up = row[j];
			row[j] = MIN(diag + (a[i - 1] != b[j - 1]), MIN(up, row[j - 1]) + 1);
			diag = up;
		}
	}
	return row[lb];
}

int conf_section_find(const char *section, struct errbuf *err)
{
	size_t i, d, best = SIZE_MAX;
	const char *near = "";

	for (i = 0; i < conf_section_count; i++) {
		if (strcmp(section, conf_sections[i].name) == 0)
			return 0;
		d = edit_distance(section, conf_sections[i].name);
		if (d < best) {
			best = d;
			near = conf_sections[i].name;
		}
	}
	return err_set(err, -ENOENT, EXIT_CONFIG_ERR,
		"unknown section [%.64s]; the nearest is [%s]", section, near);
}

int conf_row_find(const char *section, const char *key, struct errbuf *err)
{
	size_t i, d, best = SIZE_MAX, near = 0;
	int r = conf_section_find(section, err);

	if (r < 0)
		return r;
	for (i = 0; i < CONF_ROW__COUNT; i++)
		if (strcmp(conf_rows[i].section, section) == 0 &&
			strcmp(conf_rows[i].key, key) == 0)
			return (int)i;
	for (i = 0; i < CONF_ROW__COUNT; i++) {
		/* the right word in the wrong section is nearer than any other word */
		d = 2 * edit_distance(key, conf_rows[i].key) +
		    (strcmp(conf_rows[i].section, section) != 0);
		if (d < best) {
			best = d;
			near = i;
		}
	}
	return err_set(err, -ENOENT, EXIT_CONFIG_ERR,
		"unknown key %.64s in [%s]; the nearest is %s.%s", key, section,
		conf_rows[near].section, conf_rows[near].key);
}

static void *field(const struct conf_row *row, const struct conf *conf)
{
	return (char *)(uintptr_t)conf + row->offset;
}

static int bad_value(const struct conf_row *row, const char *text, struct errbuf *err)
{
	char range[256];

	conf_row_range(row, range, sizeof(range));
	return err_set(err, -EINVAL, EXIT_CONFIG_ERR, "%s.%s = %.80s: must be %s", row->section,
		row->key, text, range);
}

static int parse_units(const char *text, const struct unit *units, size_t n, int64_t *ret_value)
{
	const char *digits = text;
	char *end;
	double fraction = 0;
	int64_t whole;
	size_t i;

	if (!isdigit((unsigned char)*digits))
		return -EINVAL;
	errno = 0;
	whole = strtoll(digits, &end, 10);
	if (errno)
		return -ERANGE;
	if (*end == '.' && isdigit((unsigned char)end[1])) { /* 1.5s */
		digits = end + 1 + strspn(end + 1, "0123456789");
		fraction = strtod(end, &end);
		if (end != digits) /* strtod also takes .5e9, which is no fraction */
			return -EINVAL;
	}
	while (*end == ' ')
		end++;
	for (i = 0; i < n; i++)
		if (strcasecmp(end, units[i].name) == 0)
			break;
	/* a bare number is seconds, and bytes */
	if (i == n && *end == '\0' && units == time_units)
		i = 0;
	if (i == n)
		return -EINVAL;
	if (__builtin_mul_overflow(whole, units[i].scale, &whole) ||
		__builtin_add_overflow(whole, (int64_t)(fraction * (double)units[i].scale), &whole))
		return -ERANGE;
	*ret_value = whole;
	return 0;
}

static int parse_integer(const struct conf_row *row, const char *text, int64_t *ret_value)
{
	char *end;
	int64_t value;
	int r = 0;

	switch (row->type) {
	case CONF_TYPE_SIZE:
		r = parse_units(text, size_units, ARRAY_LEN(size_units), &value);
		break;
	case CONF_TYPE_TIME:
		r = parse_units(text, time_units, ARRAY_LEN(time_units), &value);
		break;
	default:
		errno = 0;
		value = strtoll(text, &end, row->type == CONF_TYPE_OCT ? 8 : 10);
		if (errno || end == text || *end)
			r = -EINVAL;
	}
	if (r < 0 || value < row->min || value > row->max)
		return -EINVAL;
	*ret_value = value;
	return 0;
}

static int parse_choice(const struct conf_row *row, const char *text, int64_t *ret_value)
{
	static const char *const bools[][2] = {
		{"off", "on"}, {"no", "yes"}, {"false", "true"}, {"0", "1"}};
	size_t i;

	if (row->type == CONF_TYPE_BOOL) {
		for (i = 0; i < 2 * ARRAY_LEN(bools); i++) {
			if (strcasecmp(text, bools[i / 2][i % 2]) == 0) {
				*ret_value = (int64_t)(i % 2);
				return 0;
			}
		}
		return -EINVAL;
	}
	for (i = 0; row->choices[i]; i++) {
		if (strcmp(text, row->choices[i]) == 0) {
			*ret_value = (int64_t)i;
			return 0;
		}
	}
	return -EINVAL;
}

static int parse_real(const struct conf_row *row, const char *text, double *ret_value)
{
	char *end;
	double value = strtod(text, &end);

	/* strtod also takes hex, inf and nan: only plain decimals are meant */
	if (end == text || *end || !isfinite(value) || strpbrk(text, "xXpPiInN"))
		return -EINVAL;
	if (value < row->real_min || value > row->real_max)
		return -EINVAL;
	*ret_value = value;
	return 0;
}

/* Text that a file could not hold as it is: a comment's start, or bytes that are not text. */
static bool unwritable(const char *text)
{
	if (*text == ';' || strstr(text, " ;"))
		return true;
	for (; *text; text++)
		if ((unsigned char)*text < 0x20 || *text == 0x7f)
			return true;
	return false;
}

int conf_row_parse(
	const struct conf_row *row, const char *text, struct conf *conf, struct errbuf *err)
{
	bool is_word = row->word[0] && strcmp(text, row->word) == 0;
	void *to = field(row, conf);
	int r;

	switch (row->type) {
	case CONF_TYPE_STR:
		if (strlen(text) >= CONF_STR_MAX)
			return err_set(err, -EINVAL, EXIT_CONFIG_ERR, "%s.%s: longer than %d bytes",
				row->section, row->key, CONF_STR_MAX - 1);
		if (unwritable(text))
			return err_set(err, -EINVAL, EXIT_CONFIG_ERR,
				"%s.%s: must not hold control characters, \" ;\" or begin with ;",
				row->section, row->key);
		if (!utf8_valid(text, strlen(text)))
			return err_set(err, -EINVAL, EXIT_CONFIG_ERR, "%s.%s: is not valid UTF-8",
				row->section, row->key);
		/* the whole field is defined, since struct conf is copied into shared memory */
		memset(to, 0, CONF_STR_MAX);
		memcpy(to, text, strlen(text));
		return 0;
	case CONF_TYPE_BOOL:
	case CONF_TYPE_ENUM:
		r = parse_choice(row, text, to);
		break;
	case CONF_TYPE_REAL:
		if (is_word) {
			*(double *)to = CONF_REAL_AUTO;
			return 0;
		}
		r = parse_real(row, text, to);
		break;
	default:
		if (is_word) {
			*(int64_t *)to = CONF_AUTO;
			return 0;
		}
		r = parse_integer(row, text, to);
	}
	return r < 0 ? bad_value(row, text, err) : 0;
}

static void print_units(int64_t value, const struct unit *units, size_t n, char *out, size_t cap)
{
	size_t i;

	for (i = 0; i + 1 < n; i++)
		if (value % units[i].scale == 0)
			break;
	if (value == 0)
		snprintf(out, cap, "0");
	else
		snprintf(out, cap, "%" PRId64 "%s", value / units[i].scale, units[i].name);
}

static void print_integer(const struct conf_row *row, int64_t value, char *out, size_t cap)
{
	switch (row->type) {
	case CONF_TYPE_OCT:
		snprintf(out, cap, "%04" PRIo64, value);
		break;
	case CONF_TYPE_SIZE:
		print_units(value, size_units, ARRAY_LEN(size_units), out, cap);
		break;
	case CONF_TYPE_TIME:
		print_units(value, time_units, ARRAY_LEN(time_units), out, cap);
		break;
	default:
		snprintf(out, cap, "%" PRId64, value);
	}
}

void conf_row_print(const struct conf_row *row, const struct conf *conf, char *out, size_t cap)
{
	const void *from = field(row, conf);
	int64_t value;

	if (row->type == CONF_TYPE_STR) {
		snprintf(out, cap, "%s", (const char *)from);
		return;
	}
	if (row->type == CONF_TYPE_REAL) {
		if (*(const double *)from < 0)
			snprintf(out, cap, "%s", row->word);
		else
			snprintf(out, cap, "%.12g", *(const double *)from);
		return;
	}
	value = *(const int64_t *)from;
	if (value == CONF_AUTO)
		snprintf(out, cap, "%s", row->word);
	else if (row->type == CONF_TYPE_BOOL)
		snprintf(out, cap, "%s", value ? "on" : "off");
	else if (row->type == CONF_TYPE_ENUM)
		snprintf(out, cap, "%s", row->choices[value]);
	else
		print_integer(row, value, out, cap);
}

void conf_row_range(const struct conf_row *row, char *out, size_t cap)
{
	char min[32], max[32];
	size_t i, n = 0;

	out[0] = '\0';
	switch (row->type) {
	case CONF_TYPE_STR:
		snprintf(out, cap, "text of at most %d bytes", CONF_STR_MAX - 1);
		return;
	case CONF_TYPE_BOOL:
		snprintf(out, cap, "on or off");
		return;
	case CONF_TYPE_ENUM:
		for (i = 0; row->choices[i] && n < cap; i++)
			n += (size_t)snprintf(out + n, cap - n, "%s%s",
				i == 0                ? ""
				: row->choices[i + 1] ? ", "
						      : " or ",
				row->choices[i]);
		return;
	case CONF_TYPE_REAL:
		snprintf(min, sizeof(min), "%g", row->real_min);
		snprintf(max, sizeof(max), "%g", row->real_max);
		break;
	default:
		print_integer(row, row->min, min, sizeof(min));
		print_integer(row, row->max, max, sizeof(max));
	}
	snprintf(out, cap, "%s to %s%s%s", min, max, row->word[0] ? ", or " : "", row->word);
}

void conf_row_origin(const struct conf_set *set, size_t row, char *out, size_t cap)
{
	const struct conf_origins *o = set->origins;

	switch (o->row[row].kind) {
	case CONF_FROM_DEFAULT:
		snprintf(out, cap, "default");
		break;
	case CONF_FROM_FILE:
		snprintf(out, cap, "%s:%u", o->file, o->row[row].line);
		break;
	case CONF_FROM_COMMAND_LINE:
		snprintf(out, cap, "command line");
		break;
	}
}
