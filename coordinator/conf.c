#include "coordinator/conf.h"

#include <ctype.h>
#include <fcntl.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/conf_rows.h"
#include "shm/file.h"

#define CONF_FILE_MAX (1 << 20)
#define BOM           "\xef\xbb\xbf" /* a byte order mark */

/*
 * inih cuts lines at INI_MAX_LINE bytes (200 as it is usually built), passes the cut value on and
 * miscounts from there; and it takes an indented line for more of the value before. So it is fed by
 * our own reader, which counts lines, keeps long values to itself and removes indentation.
 */
struct reader {
	struct conf_set *set;
	const char *name;
	const char *text, *end;
	uint32_t line;
	bool seen[CONF_ROW__COUNT];
	struct errbuf *err;
	int failed;        /* -errno of the first bad line */
	uint32_t bad_line; /* its number */
	/* the value of a line that inih could not hold; one byte more than any may have */
	char long_value[CONF_STR_MAX + 1];
	uint32_t long_line;
};

int conf_init(struct conf_set *set)
{
	size_t i;
	int r;

	memset(set, 0, sizeof(*set));
	set->origins = calloc(1, sizeof(*set->origins));
	if (!set->origins)
		return -ENOMEM;
	for (i = 0; i < CONF_ROW__COUNT; i++) {
		r = conf_row_parse(&conf_rows[i], conf_rows[i].def, &set->conf, NULL);
		if (r < 0)
			return r; /* a default outside its own range; test_conf covers every row */
	}
	return 0;
}

void conf_fini(struct conf_set *set)
{
	if (set->origins)
		free(set->origins->file);
	free(set->origins);
	set->origins = NULL;
}

/* Remembers the first bad line and puts "file:line: " before its sentence. */
static void fail_line(struct reader *rd, int ret, const struct errbuf *why)
{
	if (rd->failed)
		return;
	rd->failed = ret;
	rd->bad_line = rd->line;
	(void)err_set(rd->err, ret, EXIT_CONFIG_ERR, "%s:%u: %s", rd->name, rd->line, why->text);
}

/* The end of a line's part as inih sees it: one of `marks`, a comment, or the end of the line. */
static const char *part_end(const char *at, const char *end, const char *marks)
{
	bool space = false;

	for (; at < end && !strchr(marks, *at) && !(space && *at == ';'); at++)
		space = isspace((unsigned char)*at);
	return at;
}

static size_t trimmed(const char *at, const char *end)
{
	while (end > at && isspace((unsigned char)end[-1]))
		end--;
	return (size_t)(end - at);
}

/* A line longer than inih takes, as a short one that means the same; its value is kept aside. */
static void shorten(struct reader *rd, const char *line, const char *end, char *out, size_t cap)
{
	const char *mark = part_end(line, end, *line == '[' ? "]" : "=:"), *value;
	size_t name = trimmed(line, mark), len;

	if (*line == ';' || *line == '#') {
		snprintf(out, cap, ";\n");
	} else if (mark == end || *mark == ';' || name + 8 > cap) {
		snprintf(out, cap, "?\n"); /* neither a section nor a key that there could be */
	} else if (*line == '[') {
		snprintf(out, cap, "%.*s]\n", (int)name, line);
	} else {
		snprintf(out, cap, "%.*s = .\n", (int)name, line);
		value = mark + 1;
		end = part_end(value, end, "");
		while (value < end && isspace((unsigned char)*value))
			value++;
		len = MIN(trimmed(value, end), sizeof(rd->long_value) - 1);
		memcpy(rd->long_value, value, len);
		rd->long_value[len] = '\0';
		rd->long_line = rd->line;
	}
}

/* inih tells of a section only with its first key; one that has none is looked at here. */
static int check_section(struct reader *rd, char *line)
{
	char *name = line + 1, *end;
	struct errbuf why;
	int r;

	if (*line != '[')
		return 0;
	end = (char *)part_end(name, line + strlen(line), "]");
	if (*end != ']')
		return 0; /* inih's to refuse */
	*end = '\0';
	r = conf_section_find(name, &why);
	*end = ']';
	if (r < 0)
		fail_line(rd, r, &why);
	return r;
}

static char *refuse_line(struct reader *rd, const char *sentence)
{
	struct errbuf why;

	(void)err_set(&why, 0, 0, "%s", sentence);
	fail_line(rd, -EINVAL, &why);
	return NULL;
}

static bool begins_with_bom(const char *text, size_t len)
{
	return len >= strlen(BOM) && memcmp(text, BOM, strlen(BOM)) == 0;
}

/* fgets() for inih: the next line without its indentation. */
static char *read_line(char *out, int cap, void *stream)
{
	struct reader *rd = stream;
	const char *eol;
	size_t len;

	if (rd->text == rd->end || rd->failed)
		return NULL;
	eol = memchr(rd->text, '\n', (size_t)(rd->end - rd->text));
	len = (size_t)((eol ? eol : rd->end) - rd->text);
	rd->line++;
	if (memchr(rd->text, '\0', len))
		return refuse_line(rd, "a NUL byte; the file must be text");
	while (len && isspace((unsigned char)*rd->text)) {
		rd->text++;
		len--;
	}
	if (begins_with_bom(rd->text, len)) /* inih would take it for the file's */
		return refuse_line(rd, "a byte order mark (EF BB BF) behind the file's first "
				       "bytes: remove it");
	if (len + 2 > (size_t)cap)
		shorten(rd, rd->text, rd->text + len, out, (size_t)cap);
	else
		snprintf(out, (size_t)cap, "%.*s\n", (int)len, rd->text);
	rd->text = eol ? eol + 1 : rd->end;
	return check_section(rd, out) < 0 ? NULL : out;
}

static int take_value(void *user, const char *section, const char *key, const char *value)
{
	struct reader *rd = user;
	struct errbuf why;
	int row, r;

	if (rd->line == rd->long_line)
		value = rd->long_value;
	row = *section ? conf_row_find(section, key, &why)
		       : err_set(&why, -ENOENT, 0, "key %.64s stands in no [section]", key);
	if (row < 0) {
		fail_line(rd, row, &why);
		return 0;
	}
	if (rd->seen[row]) {
		(void)err_set(&why, 0, 0, "%s.%s is set twice; it was set at line %u", section, key,
			rd->set->origins->row[row].line);
		fail_line(rd, -EEXIST, &why);
		return 0;
	}
	r = conf_row_parse(&conf_rows[row], value, &rd->set->conf, &why);
	if (r < 0) {
		fail_line(rd, r, &why);
		return 0;
	}
	rd->seen[row] = true;
	rd->set->origins->row[row].kind = CONF_FROM_FILE;
	rd->set->origins->row[row].line = rd->line;
	return 1;
}

int conf_read(
	struct conf_set *set, const char *name, const char *text, size_t len, struct errbuf *err)
{
	struct reader rd = {.set = set, .name = name, .text = text, .end = text + len, .err = err};
	char *copy = strdup(name);
	int bad;

	if (!copy)
		return -ENOMEM;
	if (begins_with_bom(text, len))
		rd.text += strlen(BOM);
	free(set->origins->file);
	set->origins->file = copy;
	bad = ini_parse_stream(read_line, &rd, take_value, &rd);
	/* a line that is neither a section nor KEY = VALUE is inih's own complaint */
	if (bad > 0 && (!rd.failed || (uint32_t)bad < rd.bad_line))
		return err_set(err, -EINVAL, EXIT_CONFIG_ERR,
			"%s:%d: neither [section] nor KEY = VALUE", name, bad);
	if (bad < 0)
		return err_set(err, -ENOMEM, EXIT_OS_ERR, "%s: out of memory", name);
	return rd.failed;
}

int conf_read_file(struct conf_set *set, const char *path, struct errbuf *err)
{
	char *text = NULL;
	size_t len = 0;
	int r;

	if (file_is_null(path))
		return conf_read(set, path, "", 0, err);
	r = file_read(AT_FDCWD, path, path, CONF_FILE_MAX, &text, &len, err);
	if (r == -ENOENT)
		return err_set(err, r, EXIT_NO_INPUT,
			"%s: %s; give an ini file with -c, or -s for single keys", path,
			strerror(ENOENT));
	if (r == 0)
		r = conf_read(set, path, text, len, err);
	free(text);
	return r;
}

/* Splits "section.key"; returns the row or -errno. */
static int find_name(const char *name, size_t len, struct errbuf *err)
{
	const char *dot = memchr(name, '.', len);
	char section[64], key[64];

	if (!dot || (size_t)(dot - name) >= sizeof(section) ||
		len - (size_t)(dot - name) - 1 >= sizeof(key))
		return err_set(err, -EINVAL, EXIT_CONFIG_ERR, "%.*s: a key is named SECTION.KEY",
			(int)MIN(len, 80), name);
	snprintf(section, sizeof(section), "%.*s", (int)(dot - name), name);
	snprintf(key, sizeof(key), "%.*s", (int)(len - (size_t)(dot - name) - 1), dot + 1);
	return conf_row_find(section, key, err);
}

int conf_override(struct conf_set *set, const char *assignment, struct errbuf *err)
{
	const char *eq = strchr(assignment, '=');
	int row, r;

	if (!eq)
		return err_set(err, -EINVAL, EXIT_USAGE_ERR, "-s %.80s: must be SECTION.KEY=VALUE",
			assignment);
	row = find_name(assignment, (size_t)(eq - assignment), err);
	if (row < 0)
		return row;
	r = conf_row_parse(&conf_rows[row], eq + 1, &set->conf, err);
	if (r < 0)
		return r;
	set->origins->row[row].kind = CONF_FROM_COMMAND_LINE;
	return 0;
}

bool conf_was_set(const struct conf_set *set, const char *name)
{
	int row = find_name(name, strlen(name), NULL);

	return row >= 0 && set->origins->row[row].kind != CONF_FROM_DEFAULT;
}

int conf_value(const struct conf_set *set, const char *name, char *out, size_t cap)
{
	int row = find_name(name, strlen(name), NULL);

	if (row < 0)
		return -ENOENT;
	conf_row_print(&conf_rows[row], &set->conf, out, cap);
	return 0;
}

void conf_each(const struct conf_set *set,
	void (*fn)(void *user, const char *section, const char *key, const char *value,
		const char *origin),
	void *user)
{
	char value[CONF_VALUE_MAX], origin[CONF_STR_MAX];
	size_t i;

	for (i = 0; i < CONF_ROW__COUNT; i++) {
		conf_row_print(&conf_rows[i], &set->conf, value, sizeof(value));
		conf_row_origin(set, i, origin, sizeof(origin));
		fn(user, conf_rows[i].section, conf_rows[i].key, value, origin);
	}
}

void conf_reload(struct conf_set *set, const struct conf_set *next,
	void (*locked)(void *user, const char *name), void *user)
{
	char now[CONF_VALUE_MAX], then[CONF_VALUE_MAX], name[128];
	size_t i;

	for (i = 0; i < CONF_ROW__COUNT; i++) {
		const struct conf_row *row = &conf_rows[i];

		conf_row_print(row, &set->conf, now, sizeof(now));
		conf_row_print(row, &next->conf, then, sizeof(then));
		if (strcmp(now, then) == 0) {
			set->origins->row[i] = next->origins->row[i];
		} else if (row->reload == CONF_RELOAD_RELOAD) {
			if (conf_row_parse(row, then, &set->conf, NULL) == 0)
				set->origins->row[i] = next->origins->row[i];
		} else {
			snprintf(name, sizeof(name), "%s.%s", row->section, row->key);
			locked(user, name);
		}
	}
}

void conf_take_reloaded(struct conf *to, const struct conf *from)
{
	char value[CONF_VALUE_MAX];

	for (size_t i = 0; i < CONF_ROW__COUNT; i++) {
		if (conf_rows[i].reload != CONF_RELOAD_RELOAD)
			continue;
		conf_row_print(&conf_rows[i], from, value, sizeof(value));
		if (conf_row_parse(&conf_rows[i], value, to, NULL) < 0)
			continue; /* never: what was printed reads back, as test_conf tries */
	}
}
