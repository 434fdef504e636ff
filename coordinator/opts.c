#include "config.h"

#include "coordinator/opts.h"

#include <string.h>

/* X(letter, argument or NULL, help) */
#define OPTIONS(X)                                                                                 \
	X('c', "FILE", "read this configuration (default " HEDDLE_INI ", if it is there)")         \
	X('s', "SECTION.KEY=VALUE", "set one key, over the file; may be repeated")                 \
	X('f', NULL, "stay in the foreground")                                                     \
	X('t', NULL, "check the configuration and the model's files, and exit")                    \
	X('V', NULL, "print the version and exit")                                                 \
	X('h', NULL, "print this help and exit")

struct option_row {
	char letter;
	const char *argument, *help;
};

#define X(letter, argument, help) {letter, argument, help},
static const struct option_row options[] = {OPTIONS(X)};
#undef X

void opts_usage(FILE *out)
{
	size_t i;

	fputs("usage: heddled [-c FILE] [-s SECTION.KEY=VALUE]... [-f] [-t] [-V] [-h]\n"
	      "The coordinator of heddle: serves a DeepSeek V4 model over a Unix socket.\n\n",
		out);
	for (i = 0; i < ARRAY_LEN(options); i++)
		fprintf(out, "  -%c %-18s %s\n", options[i].letter,
			options[i].argument ? options[i].argument : "", options[i].help);
	fputs("\nKeys are explained in heddle.ini(5). HEDDLE_WORKER in the environment names the\n"
	      "worker program, for a build that is not installed.\n",
		out);
}

static const struct option_row *find(char letter)
{
	size_t i;

	for (i = 0; i < ARRAY_LEN(options); i++)
		if (options[i].letter == letter)
			return &options[i];
	return NULL;
}

static int apply(struct opts *o, char letter, const char *argument, struct errbuf *err)
{
	switch (letter) {
	case 'c':
		o->file = argument;
		break;
	case 's':
		if (o->set_n == OPTS_SETS_MAX)
			return err_set(err, -EINVAL, EXIT_USAGE_ERR,
				"more than %d options -s: write them into a file", OPTS_SETS_MAX);
		o->sets[o->set_n++] = argument;
		break;
	case 'f':
		o->foreground = true;
		break;
	case 't':
		o->check = true;
		break;
	case 'V':
		o->version = true;
		break;
	default:
		o->help = true;
	}
	return 0;
}

/* One word "-xyz" with what follows it; moves *i on when the next word is an argument. */
static int parse_word(int argc, char **argv, int *i, struct opts *o, struct errbuf *err)
{
	const char *at = argv[*i] + 1;
	int r = 0;

	for (; *at && r == 0; at++) {
		const struct option_row *row = find(*at);

		if (!row)
			return err_set(err, -EINVAL, EXIT_USAGE_ERR,
				"unknown option -%c; heddled -h lists them", *at);
		if (!row->argument) {
			r = apply(o, *at, NULL, err);
			continue;
		}
		if (at[1])
			return apply(o, *at, at + 1, err);
		if (*i + 1 >= argc)
			return err_set(err, -EINVAL, EXIT_USAGE_ERR, "option -%c needs %s", *at,
				row->argument);
		return apply(o, *at, argv[++*i], err);
	}
	return r;
}

static int parse_long(const char *word, struct opts *o, struct errbuf *err)
{
	if (strcmp(word, "--help") == 0)
		return apply(o, 'h', NULL, err);
	if (strcmp(word, "--version") == 0)
		return apply(o, 'V', NULL, err);
	return err_set(
		err, -EINVAL, EXIT_USAGE_ERR, "unknown option %.60s; heddled -h lists them", word);
}

int opts_parse(int argc, char **argv, struct opts *ret_opts, struct errbuf *err)
{
	struct opts o = {0};
	int i, r = 0;

	for (i = 1; i < argc && r == 0; i++) {
		if (argv[i][0] != '-' || !argv[i][1])
			return err_set(err, -EINVAL, EXIT_USAGE_ERR,
				"\"%.60s\" is not expected here; heddled -h shows the usage",
				argv[i]);
		if (argv[i][1] == '-')
			r = parse_long(argv[i], &o, err);
		else
			r = parse_word(argc, argv, &i, &o, err);
	}
	if (r == 0)
		*ret_opts = o;
	return r;
}
