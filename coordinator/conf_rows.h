/*
 * conf_rows.h: etc/conf.def as a table of rows, and the text form of one value. Private to conf*.c.
 */
#ifndef COORDINATOR_CONF_ROWS_H
#define COORDINATOR_CONF_ROWS_H

#include "coordinator/conf.h"

enum conf_type {
	CONF_TYPE_STR,
	CONF_TYPE_BOOL,
	CONF_TYPE_ENUM,
	CONF_TYPE_OCT,
	CONF_TYPE_INT,
	CONF_TYPE_SIZE,
	CONF_TYPE_TIME,
	CONF_TYPE_REAL,
};

struct conf_row {
	const char *section, *key;
	enum conf_type type;
	const char *def;
	const char *word;           /* stands for CONF_AUTO; "" if the row has none */
	int64_t min, max;           /* OCT, INT, SIZE, TIME */
	double real_min, real_max;  /* REAL */
	const char *const *choices; /* ENUM: names, NULL-terminated */
	enum conf_reload reload;
	const char *help;
	size_t offset; /* of the field in struct conf */
};

struct conf_section {
	const char *name, *help;
};

/* X-macro constants, so that arrays can be sized by them */
enum {
#define CONF_SECTION(s, help)
#define CONF_STR(s, k, ...)  CONF_ROW_##s##_##k,
#define CONF_BOOL(s, k, ...) CONF_ROW_##s##_##k,
#define CONF_ENUM(s, k, ...) CONF_ROW_##s##_##k,
#define CONF_OCT(s, k, ...)  CONF_ROW_##s##_##k,
#define CONF_INT(s, k, ...)  CONF_ROW_##s##_##k,
#define CONF_SIZE(s, k, ...) CONF_ROW_##s##_##k,
#define CONF_TIME(s, k, ...) CONF_ROW_##s##_##k,
#define CONF_REAL(s, k, ...) CONF_ROW_##s##_##k,
#include "etc/conf.def"
#include "etc/conf_undef.def"
	CONF_ROW__COUNT
};

extern const struct conf_row conf_rows[CONF_ROW__COUNT];
extern const struct conf_section conf_sections[];
extern const size_t conf_section_count;

/* Longest text form of a value: a string's own length. */
#define CONF_VALUE_MAX CONF_STR_MAX

enum conf_origin_kind { CONF_FROM_DEFAULT, CONF_FROM_FILE, CONF_FROM_COMMAND_LINE };

struct conf_origins {
	char *file; /* name of the file read last */
	struct {
		enum conf_origin_kind kind;
		uint32_t line;
	} row[CONF_ROW__COUNT];
};

/* Is there such a section? 0, or -ENOENT with a sentence that proposes the nearest one. */
int conf_section_find(const char *section, struct errbuf *err) MUST_CHECK;

/* Finds a row; -ENOENT with a sentence that proposes the nearest section or key. */
int conf_row_find(const char *section, const char *key, struct errbuf *err) MUST_CHECK;

/* Parses text into the row's field of conf. -EINVAL or -ERANGE with a sentence (no file name). */
int conf_row_parse(const struct conf_row *row, const char *text, struct conf *conf,
	struct errbuf *err) MUST_CHECK;

/* Prints the row's value in conf as a file would hold it. */
void conf_row_print(const struct conf_row *row, const struct conf *conf, char *out, size_t cap);

/* "on or off", "one of bf16, fp8, ...", "16 to 4096, or auto": what would be right. */
void conf_row_range(const struct conf_row *row, char *out, size_t cap);

/* Where the value came from: "default", "FILE:LINE", "command line". */
void conf_row_origin(const struct conf_set *set, size_t row, char *out, size_t cap);

#endif
