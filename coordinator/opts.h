/* opts.h: heddled's command line, as data. Parses only; what the options mean is main.c's. */
#ifndef COORDINATOR_OPTS_H
#define COORDINATOR_OPTS_H

#include <stdbool.h>
#include <stdio.h>

#include "shm/util.h"

#define OPTS_SETS_MAX 256

struct opts {
	const char *file;                /* -c; NULL: the installed one, if there is one */
	const char *sets[OPTS_SETS_MAX]; /* -s, in order */
	size_t set_n;
	bool foreground, check, version, help;
};

/* 0, or -EINVAL with err (exit code 64). Strings stay argv's. */
int opts_parse(int argc, char **argv, struct opts *ret_opts, struct errbuf *err) MUST_CHECK;
void opts_usage(FILE *out);

#endif
