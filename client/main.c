/* heddle: the command for people. This file holds the table of subcommands and nothing they do. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"

#include "client/opts.h"

/* TO ADD A SUBCOMMAND: a row here, its prototype in client.h, its file. */
static const struct client_cmd cmds[] = {
	{"complete", "[PROMPT]", "continue a text: PROMPT, -f FILE, or what comes on stdin",
		cmd_complete},
	{"chat", "", "talk to the model, or ask one question with -m", cmd_chat},
	{"status", "", "what the daemon and its workers are doing", cmd_status},
	{"config", "", "print the configuration and where each value came from", cmd_config},
	{"inspect", "DIR", "look into a checkpoint: layers, types, memory; --verify its contents",
		cmd_inspect},
};

static void usage(FILE *out)
{
	fputs("usage: heddle [-S SOCKET] COMMAND [OPTION]...\n\n", out);
	for (size_t i = 0; i < ARRAY_LEN(cmds); i++)
		fprintf(out, "  %-10s %s\n", cmds[i].name, cmds[i].doc);
	fputs("\n  -S, --socket SOCKET  of the daemon; else $HEDDLE_SOCKET, else heddle.ini's\n"
	      "  -V, --version        print the version\n"
	      "  -h, --help           this text; `heddle COMMAND --help` for a command's own\n",
		out);
}

static const struct client_cmd *find(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(cmds); i++)
		if (strcmp(cmds[i].name, name) == 0)
			return &cmds[i];
	return NULL;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"socket", required_argument, NULL, OPTS_LONG | 'S'},
		{"version", no_argument, NULL, OPTS_LONG | 'V'},
		{"help", no_argument, NULL, OPTS_LONG | 'h'},
		{NULL, 0, NULL, 0},
	};
	struct client client = {NULL};
	const struct client_cmd *cmd;
	int c;

	opterr = 0; /* opts_refuse() says it */
	while ((c = getopt_long(argc, argv, "+:S:Vh", options, NULL)) != -1) {
		switch (c & ~OPTS_LONG) {
		case 'S':
			client.socket = optarg;
			break;
		case 'V':
			puts("heddle " PACKAGE_VERSION);
			return client_finish(0);
		case 'h':
			usage(stdout);
			return client_finish(0);
		default:
			return opts_refuse(NULL, argv, c);
		}
	}
	if (optind == argc) {
		usage(stderr);
		return EXIT_USAGE_ERR;
	}
	cmd = find(argv[optind]);
	if (!cmd)
		return client_fail_with(EXIT_USAGE_ERR,
			"there is no command %s; `heddle --help` lists them", argv[optind]);
	argc -= optind;
	argv += optind;
	optind = 0; /* glibc: start over with the subcommand's own options */
	return client_finish(cmd->run(&client, cmd, argc, argv));
}
