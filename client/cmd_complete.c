/* heddle complete: continues a text. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/gen.h"
#include "client/text.h"

/* The prompt: the arguments joined by blanks, or a file, or stdin. */
static int get_prompt(
	const char *file, int argc, char **argv, int rest, json_t *body, struct errbuf *err)
{
	char *text = NULL;
	size_t len = 0;
	int ret = 0;

	if (file && rest < argc)
		return err_set(err, -EINVAL, EXIT_USAGE_ERR, "give a prompt or -f FILE, not both");
	if (!file && rest == argc && isatty(STDIN_FILENO))
		return err_set(err, -EINVAL, EXIT_USAGE_ERR,
			"a prompt is needed: as argument, by -f FILE, or on stdin");
	if (file || rest == argc) {
		ret = gen_read_text(file ? file : "-", &text, &len, err);
		if (ret < 0)
			return ret;
		ret = json_object_set_new(body, "prompt", json_stringn(text, len));
		free(text);
	} else {
		json_t *all = json_string("");

		for (int i = rest; i < argc && all; i++) {
			json_t *next = json_sprintf(
				"%s%s%s", json_string_value(all), i > rest ? " " : "", argv[i]);

			json_decref(all);
			all = next;
		}
		ret = json_object_set_new(body, "prompt", all);
	}
	return ret < 0 ? err_set(err, -EILSEQ, EXIT_DATA_ERR,
				 "the prompt is not valid UTF-8 (or there is no memory for it)")
		       : 0;
}

static int run(const char *socket, bool stream, bool json, bool stats, json_t *body)
{
	struct gen gen = {socket, "/v1/completions", stream, json, stats, -1};
	struct gen_result r;
	struct errbuf err = {"", 0};
	int code = 0;

	if (gen_run(&gen, body, &r, &err) < 0)
		code = client_fail(&err);
	else if (stats && !json)
		gen_print_stats(&r, stderr);
	gen_result_fini(&r);
	return code;
}

int cmd_complete(const struct client *client, const struct client_cmd *self, int argc, char **argv)
{
	json_t *body = json_object();
	const char *file = NULL;
	bool stream = false, whole = false, json = false, stats = false;
	struct opt table[GEN_OPTS_MAX + 8] = {
		{"file", 'f', "FILE", OPT_STR, &file, 0, 0,
			"read the prompt from FILE; - is stdin"},
		{"stream", 0, NULL, OPT_FLAG, &stream, 0, 0,
			"print as it comes (as on a terminal, and with --stats)"},
		{"no-stream", 0, NULL, OPT_FLAG, &whole, 0, 0, "print when it is complete"},
		{"stats", 0, NULL, OPT_FLAG, &stats, 0, 0,
			"then tokens, time to the first, and speed, on stderr"},
		{"json", 0, NULL, OPT_FLAG, &json, 0, 0, "print the server's JSON"},
		{"echo", 0, NULL, OPT_JSON_TRUE, body, 0, 0, "begin with the prompt"},
		{"logprobs", 0, "N", OPT_JSON_INT, body, 0, 20,
			"and of the N best; see them by --json"},
	};
	char socket[CONF_STR_MAX];
	struct errbuf err = {"", 0};
	int rest, code;

	code = opts_parse(self, table, 7 + gen_opts(table + 7, body), argc, argv, &rest);
	if (code != 0)
		code = code < 0 ? EXIT_USAGE_ERR : 0;
	else if (get_prompt(file, argc, argv, rest, body, &err) < 0 ||
		 client_socket(client, socket, &err) < 0)
		code = client_fail(&err);
	else
		code = run(socket, !whole && (stream || stats || isatty(STDOUT_FILENO)), json,
			stats, body);
	json_decref(body);
	return code;
}
