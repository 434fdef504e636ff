#include "client/opts.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

static void print_help(const struct client_cmd *cmd, const struct opt *table, size_t n)
{
	printf("usage: heddle [-S SOCKET] %s [OPTION]...%s%s\n%s\n\n", cmd->name,
		*cmd->args ? " " : "", cmd->args, cmd->doc);
	for (size_t i = 0; i <= n; i++) {
		static const struct opt help = {.name = "help", .letter = 'h', .help = "this text"};
		const struct opt *o = i < n ? &table[i] : &help;
		char left[48];

		snprintf(left, sizeof(left), "%c%c%s --%s%s%s", o->letter ? '-' : ' ',
			o->letter ? o->letter : ' ', o->letter ? "," : " ", o->name,
			o->arg ? " " : "", o->arg ? o->arg : "");
		printf("  %-30s %s\n", left, o->help);
	}
}

static int bad_value(
	const struct client_cmd *cmd, const struct opt *o, const char *text, const char *want)
{
	client_fail_with(
		EXIT_USAGE_ERR, "%s: --%s %s: it must be %s", cmd->name, o->name, text, want);
	return -EINVAL;
}

static int parse_int(
	const struct client_cmd *cmd, const struct opt *o, const char *text, int64_t *ret)
{
	char want[80], *end;
	long long n;

	errno = 0;
	n = strtoll(text, &end, 10);
	if (errno || end == text || *end || n < o->min || n > o->max) {
		snprintf(want, sizeof(want), "an integer from %lld to %lld", (long long)o->min,
			(long long)o->max);
		return bad_value(cmd, o, text, want);
	}
	*ret = n;
	return 0;
}

/* Sets, or appends to a list at, the option's name in a JSON object. */
static int put_json(const struct opt *o, json_t *value, bool append)
{
	json_t *body = o->into, *list;
	char key[64];
	size_t i;

	for (i = 0; o->name[i] && i + 1 < sizeof(key); i++)
		key[i] = o->name[i] == '-' ? '_' : o->name[i];
	key[i] = '\0';
	if (!value)
		return -EINVAL;
	if (!append)
		return json_object_set_new(body, key, value) < 0 ? -ENOMEM : 0;
	list = json_object_get(body, key);
	if (!list) {
		list = json_array();
		if (json_object_set_new(body, key, list) < 0) {
			json_decref(value);
			return -ENOMEM;
		}
	}
	return json_array_append_new(list, value) < 0 ? -ENOMEM : 0;
}

static int take(const struct client_cmd *cmd, const struct opt *o, const char *text)
{
	struct opt_list *list;
	int64_t n = 0;
	char *end;
	double x;
	int ret = 0;

	switch (o->kind) {
	case OPT_FLAG:
		*(bool *)o->into = true;
		return 0;
	case OPT_STR:
		*(const char **)o->into = text;
		return 0;
	case OPT_LIST:
		list = o->into;
		if (list->n == OPT_LIST_MAX)
			return bad_value(cmd, o, text, "given at most 64 times");
		list->items[list->n++] = text;
		return 0;
	case OPT_INT:
		return parse_int(cmd, o, text, o->into);
	case OPT_JSON_TRUE:
		return put_json(o, json_true(), false);
	case OPT_JSON_INT:
		ret = parse_int(cmd, o, text, &n);
		return ret < 0 ? ret : put_json(o, json_integer(n), false);
	case OPT_JSON_REAL:
		x = strtod(text, &end);
		if (end == text || *end || !isfinite(x))
			return bad_value(cmd, o, text, "a number");
		return put_json(o, json_real(x), false);
	case OPT_JSON_LIST:
		ret = put_json(o, json_string(text), true);
		return ret == -EINVAL ? bad_value(cmd, o, text, "valid UTF-8") : ret;
	}
	return -EINVAL;
}

/* getopt's view of the table. */
static void make_getopt(const struct opt *table, size_t n, struct option *longs, char *shorts)
{
	*shorts++ = ':'; /* tell a missing argument from an unknown option */
	for (size_t i = 0; i < n; i++) {
		longs[i] = (struct option){table[i].name,
			table[i].arg ? required_argument : no_argument, NULL, OPTS_LONG + (int)i};
		if (!table[i].letter)
			continue;
		*shorts++ = table[i].letter;
		if (table[i].arg)
			*shorts++ = ':';
	}
	longs[n] = (struct option){"help", no_argument, NULL, OPTS_LONG | 'h'};
	longs[n + 1] = (struct option){NULL, 0, NULL, 0};
	*shorts++ = 'h';
	*shorts = '\0';
}

int opts_refuse(const char *cmd, char **argv, int c)
{
	const char letter[] = {'-', (char)optopt, '\0'};
	const char *word = optopt > 0 && optopt < OPTS_LONG ? letter : argv[optind - 1];
	const char *see = cmd ? cmd : "", *space = cmd ? " " : "";

	if (c == ':')
		return client_fail_with(EXIT_USAGE_ERR,
			"option %.80s needs an argument; see heddle %s%s--help", word, see, space);
	if (optopt >= OPTS_LONG)
		return client_fail_with(EXIT_USAGE_ERR,
			"option %.80s: it takes no argument; see heddle %s%s--help", word, see,
			space);
	return client_fail_with(EXIT_USAGE_ERR, "unrecognised option %.80s; see heddle %s%s--help",
		word, see, space);
}

int opts_parse(const struct client_cmd *cmd, const struct opt *table, size_t n, int argc,
	char **argv, int *ret_rest)
{
	struct option longs[OPT_TABLE_MAX + 2];
	char shorts[2 * OPT_TABLE_MAX + 3];
	int c, ret;

	make_getopt(table, n, longs, shorts);
	opterr = 0; /* opts_refuse() says it */
	while ((c = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
		size_t i = 0;

		if (c == 'h' || c == (OPTS_LONG | 'h')) {
			print_help(cmd, table, n);
			return 1;
		}
		if (c == '?' || c == ':') {
			opts_refuse(cmd->name, argv, c);
			return -EINVAL;
		}
		while (i < n && c != OPTS_LONG + (int)i && c != table[i].letter)
			i++;
		ret = take(cmd, &table[i], optarg);
		if (ret < 0)
			return ret;
	}
	*ret_rest = optind;
	return 0;
}
