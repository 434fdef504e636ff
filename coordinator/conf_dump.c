/* The table as people read it: the sample file, the man page, the values in force. */
#include <ctype.h>
#include <string.h>

#include "coordinator/conf_rows.h"

/* Writes text in lines of at most 98 columns, each behind `lead`. */
static void wrap(FILE *out, const char *lead, const char *text)
{
	size_t room = 98 - strlen(lead), len;

	while (*text) {
		len = strlen(text);
		if (len > room) {
			len = room;
			while (len > 1 && text[len] != ' ')
				len--;
		}
		fprintf(out, "%s%.*s\n", lead, (int)len, text);
		text += len;
		while (*text == ' ')
			text++;
	}
}

static void dump_ini_row(const struct conf_row *row, FILE *out)
{
	char range[256], help[1024];

	conf_row_range(row, range, sizeof(range));
	if (row->type == CONF_TYPE_STR)
		snprintf(help, sizeof(help), "%s%s", row->help,
			row->reload == CONF_RELOAD_RELOAD ? " Reloads." : "");
	else
		snprintf(help, sizeof(help), "%s Values: %s.%s", row->help, range,
			row->reload == CONF_RELOAD_RELOAD ? " Reloads." : "");
	wrap(out, "# ", help);
	fprintf(out, "#%s =%s%s\n", row->key, row->def[0] ? " " : "", row->def);
}

static void dump_ini(FILE *out)
{
	size_t s, i;

	fputs("# heddle.ini: configuration of heddled(8). Every key is shown with its default, "
	      "commented\n"
	      "# out. Made from etc/conf.def by `heddle config --ini`; see heddle.ini(5).\n"
	      "# Sizes take K, M, G; times take us, ms, s. Text is UTF-8; \" ;\" starts a "
	      "comment.\n"
	      "# \"Reloads\" marks what SIGHUP takes over without a restart.\n",
		out);
	for (s = 0; s < conf_section_count; s++) {
		fputs("\n", out);
		wrap(out, "# ", conf_sections[s].help);
		fprintf(out, "[%s]\n", conf_sections[s].name);
		for (i = 0; i < CONF_ROW__COUNT; i++) {
			if (strcmp(conf_rows[i].section, conf_sections[s].name) == 0)
				dump_ini_row(&conf_rows[i], out);
		}
	}
}

/* roff takes a leading dot or quote for a request, and a backslash and a hyphen for its own. */
static void roff(FILE *out, const char *text)
{
	for (; *text; text++) {
		if (*text == '\\')
			fputs("\\e", out);
		else if (*text == '-')
			fputs("\\-", out);
		else
			fputc(*text, out);
	}
}

static void dump_man_row(const struct conf_row *row, FILE *out)
{
	char range[256];

	conf_row_range(row, range, sizeof(range));
	fprintf(out, ".TP\n\\fB%s\\fR = ", row->key);
	roff(out, row->def[0] ? row->def : "(empty)");
	fputs("\n", out);
	roff(out, row->help);
	if (row->type != CONF_TYPE_STR) {
		fputs("\nValues: ", out);
		roff(out, range);
		fputs(".", out);
	}
	fputs(row->reload == CONF_RELOAD_RELOAD ? "\nReloads.\n" : "\n", out);
}

static void dump_man(FILE *out)
{
	size_t s, i;

	fputs(".\\\" Made from etc/conf.def by `heddle config --man`; do not edit.\n"
	      ".TH HEDDLE.INI 5 2026-11-29 heddle \"File formats\"\n"
	      ".SH NAME\nheddle.ini \\- configuration of heddled\n"
	      ".SH DESCRIPTION\n"
	      "heddled(8) reads one ini file, /etc/heddle/heddle.ini unless \\fB\\-c\\fR names "
	      "another. A line is\n"
	      "\\fB[section]\\fR, \\fBkey = value\\fR, or a comment that starts with # or ;. A "
	      "value ends before\n"
	      "\" ;\"; text is UTF-8 of at most 1023 bytes. An unknown section or key, a value out "
	      "of "
	      "range and a key\n"
	      "set twice are refused with file and line. Sizes take K, M and G (powers of 1024); "
	      "times take\n"
	      "us, ms and s, and a bare number is seconds. \\fB\\-s SECTION.KEY=VALUE\\fR on the "
	      "command line\n"
	      "wins over the file. Keys marked \"Reloads\" are taken over on SIGHUP; the others "
	      "need a restart.\n"
	      "\\fBheddle config\\fR prints the values in force and where each came from.\n",
		out);
	for (s = 0; s < conf_section_count; s++) {
		fprintf(out, ".SH [%s]\n", conf_sections[s].name);
		roff(out, conf_sections[s].help);
		fputs("\n", out);
		for (i = 0; i < CONF_ROW__COUNT; i++) {
			if (strcmp(conf_rows[i].section, conf_sections[s].name) == 0)
				dump_man_row(&conf_rows[i], out);
		}
	}
	fputs(".SH SEE ALSO\nheddled(8), heddle(1)\n", out);
}

static void dump_effective(const struct conf_set *set, FILE *out)
{
	char value[CONF_VALUE_MAX], origin[CONF_STR_MAX];
	const char *section = "";
	size_t i;

	for (i = 0; i < CONF_ROW__COUNT; i++) {
		const struct conf_row *row = &conf_rows[i];

		if (strcmp(section, row->section) != 0)
			fprintf(out, "%s[%s]\n", *section ? "\n" : "", row->section);
		section = row->section;
		conf_row_print(row, &set->conf, value, sizeof(value));
		conf_row_origin(set, i, origin, sizeof(origin));
		fprintf(out, "%-17s = %-24s ; %s\n", row->key, value, origin);
	}
}

int conf_dump(const struct conf_set *set, enum conf_dump what, FILE *out)
{
	switch (what) {
	case CONF_DUMP_INI:
		dump_ini(out);
		break;
	case CONF_DUMP_MAN:
		dump_man(out);
		break;
	case CONF_DUMP_EFFECTIVE:
		dump_effective(set, out);
		break;
	}
	return ferror(out) ? -EIO : 0;
}
