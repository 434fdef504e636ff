/*
 * client.h: the subcommands of `heddle`, declared once in the table of main.c, and what they share.
 * Each is a function in a file of its own; it returns the program's exit code, having said on
 * stderr what was wrong, on one line, by client_fail().
 */
#ifndef CLIENT_CLIENT_H
#define CLIENT_CLIENT_H

#include <stdbool.h>

#include "coordinator/conf.h"
#include "shm/util.h"

/* What was given before the subcommand. */
struct client {
	const char *socket; /* -S; NULL: look in the environment and in heddle.ini */
};

struct client_cmd {
	const char *name;
	const char *args; /* after the options, for the usage line */
	const char *doc;  /* one line */
	int (*run)(
		const struct client *client, const struct client_cmd *self, int argc, char **argv);
};

int cmd_complete(const struct client *client, const struct client_cmd *self, int argc, char **argv);
int cmd_chat(const struct client *client, const struct client_cmd *self, int argc, char **argv);
int cmd_status(const struct client *client, const struct client_cmd *self, int argc, char **argv);
int cmd_config(const struct client *client, const struct client_cmd *self, int argc, char **argv);
int cmd_inspect(const struct client *client, const struct client_cmd *self, int argc, char **argv);

/* Prints "heddle: TEXT" and returns the error's exit code (71 where it has none). */
int client_fail(const struct errbuf *err);
PRINTF_LIKE(2, 3)
int client_fail_with(int exit_code, const char *fmt, ...);

/* Flushes stdout; an exit code other than 0 when what was printed could not be written. */
int client_finish(int exit_code);

/*
 * The configuration: defaults, then the file (path NULL: the installed heddle.ini, if there is
 * one). The caller calls conf_fini().
 */
int client_conf(const char *path, struct conf_set *ret_set, struct errbuf *err) MUST_CHECK;

/* The socket to call: -S, else HEDDLE_SOCKET, else listen.socket of heddle.ini. */
int client_socket(
	const struct client *client, char out[CONF_STR_MAX], struct errbuf *err) MUST_CHECK;

#endif
