/*
 * gen.h: one generation: sends a request, shows the answer as it comes, measures it. Shared by
 * complete and chat.
 */
#ifndef CLIENT_GEN_H
#define CLIENT_GEN_H

#include <jansson.h>

#include "client/opts.h"

/* Rows of options that set request parameters; `body` receives them. Returns how many. */
enum { GEN_OPTS_MAX = 24 };
size_t gen_opts(struct opt rows[GEN_OPTS_MAX], json_t *body);

struct gen {
	const char *socket;
	const char *path; /* /v1/completions or /v1/chat/completions */
	bool stream;      /* ask for events, print as they come */
	bool json;        /* print the server's answer as it is */
	bool stats;       /* a line on stderr at the end */
	int cancel_fd;    /* -1: none */
};

struct gen_result {
	char *text; /* the answer, without reasoning; freed by gen_result_fini() */
	size_t len, cap;
	char finish[32];
	uint64_t prompt_tokens, cached_tokens, generated_tokens; /* 0: not told */
	double first_s, total_s; /* from sending to the first piece, and to the end */
};

/*
 * Runs a request; `body` is the request without the stream's own fields, which are added. The
 * answer goes to stdout; reasoning to stdout before it on a terminal (dim), else to stderr.
 * -ECANCELED by cancel_fd (what had come is in the result), else as call_run(); -EPROTO for an
 * error inside the stream or an answer that is none. The result is to be freed in every case.
 */
int gen_run(
	const struct gen *gen, json_t *body, struct gen_result *ret, struct errbuf *err) MUST_CHECK;
void gen_result_fini(struct gen_result *r);

/* The line of --stats. */
void gen_print_stats(const struct gen_result *r, FILE *out);

/* A whole file, stdin ("-") included; NUL-terminated, the caller frees. Checked to be UTF-8. */
int gen_read_text(
	const char *path, char **ret_text, size_t *ret_len, struct errbuf *err) MUST_CHECK;

#endif
