/*
 * opts.h: options of a subcommand as a table: parsing and --help come from the same rows.
 */
#ifndef CLIENT_OPTS_H
#define CLIENT_OPTS_H

#include <stddef.h>
#include <stdint.h>

#include "client/client.h"

enum opt_kind {
	OPT_FLAG, /* bool *: true */
	OPT_STR,  /* const char **: the argument; one that may be repeated is OPT_LIST */
	OPT_LIST, /* struct opt_list * */
	OPT_INT,  /* int64_t *: from min to max */
	/* These go into a json_t object under the option's name, with _ for -. */
	OPT_JSON_TRUE,
	OPT_JSON_INT,
	OPT_JSON_REAL,
	OPT_JSON_LIST,
};

enum { OPT_LIST_MAX = 64, OPT_TABLE_MAX = 64 };

/* Codes of long options for getopt have this bit, so that none is taken for a letter. */
enum { OPTS_LONG = 256 };

struct opt_list {
	const char *items[OPT_LIST_MAX];
	size_t n;
};

struct opt {
	const char *name; /* long */
	char letter;      /* short, or 0 */
	const char *arg;  /* how --help names the argument; NULL: it has none */
	enum opt_kind kind;
	void *into;
	int64_t min, max; /* OPT_INT, OPT_JSON_INT */
	const char *help;
};

/*
 * Parses argv (argv[0] is the subcommand). Returns 0 with *ret_rest the index of the first argument
 * that is no option; 1 when --help was printed; -EINVAL after a line on stderr (exit code 64).
 */
int opts_parse(const struct client_cmd *cmd, const struct opt *table, size_t n, int argc,
	char **argv, int *ret_rest) MUST_CHECK;

/*
 * After getopt_long() has returned '?' or ':' (`c`): says what is wrong with the option and which
 * help to read; `cmd` is the subcommand's name, NULL before it. Returns the exit code, 64.
 */
int opts_refuse(const char *cmd, char **argv, int c);

#endif
