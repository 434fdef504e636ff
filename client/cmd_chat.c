/* heddle chat: a conversation on a terminal, or one question with -m. */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "client/gen.h"
#include "client/text.h"

struct chat {
	struct gen gen;
	json_t *body;     /* parameters */
	json_t *messages; /* of the conversation so far */
	const char *system;
	bool thinking;
};

static int add_message(json_t *messages, const char *role, const char *text, size_t len)
{
	json_t *content = json_stringn(text, len);

	if (!content)
		return -EILSEQ;
	return json_array_append_new(
		messages, json_pack("{s:s, s:o}", "role", role, "content", content));
}

/* Empties the conversation; the system text stays. */
static int reset(struct chat *c)
{
	json_array_clear(c->messages);
	return c->system ? add_message(c->messages, "system", c->system, strlen(c->system)) : 0;
}

/*
 * Asks with the conversation and this message; keeps both turns when an answer came. Returns 0,
 * -ECANCELED (the turn is dropped), or an error with err filled.
 */
static int ask(struct chat *c, const char *text, size_t len, struct errbuf *err)
{
	size_t before = json_array_size(c->messages);
	struct gen_result r;
	json_t *body;
	int ret;

	if (add_message(c->messages, "user", text, len) < 0)
		return err_set(err, -EILSEQ, EXIT_DATA_ERR, "the message is not valid UTF-8");
	body = json_copy(c->body);
	json_object_set(body, "messages", c->messages);
	if (c->thinking)
		json_object_set_new(
			body, "chat_template_kwargs", json_pack("{s:b}", "thinking", 1));
	ret = gen_run(&c->gen, body, &r, err);
	json_decref(body);
	if (ret == 0 && add_message(c->messages, "assistant", r.text ? r.text : "", r.len) < 0)
		ret = err_set(err, -ENOMEM, EXIT_OS_ERR, "no memory for the conversation");
	if (ret < 0)
		while (json_array_size(c->messages) > before)
			json_array_remove(c->messages, before);
	else if (c->gen.stats && !c->gen.json)
		gen_print_stats(&r, stderr);
	gen_result_fini(&r);
	return ret;
}

/* ---- on a terminal ------------------------------------------------------------------------- */

/* Waits for a line of input. 0: there is one; -EINTR after Ctrl-C. */
static int wait_line(int cancel_fd)
{
	struct pollfd fds[2] = {{STDIN_FILENO, POLLIN, 0}, {cancel_fd, POLLIN, 0}};
	struct signalfd_siginfo info;

	while (poll(fds, 2, -1) < 0)
		if (errno != EINTR)
			return -errno;
	if (!fds[1].revents)
		return 0;
	return read(cancel_fd, &info, sizeof(info)) > 0 ? -EINTR : -EIO;
}

static void drain_signals(int cancel_fd)
{
	struct signalfd_siginfo info;

	while (read(cancel_fd, &info, sizeof(info)) > 0)
		;
}

/* A line that begins with '/'. 1: leave. */
static int command(struct chat *c, const char *line)
{
	if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0)
		return 1;
	if (strcmp(line, "/reset") == 0) {
		if (reset(c) == 0)
			fputs("(a new conversation)\n", stderr);
		return 0;
	}
	fputs("/reset  begin a new conversation\n/quit   leave (or Ctrl-D)\n"
	      "Ctrl-C  stop the answer\n",
		stderr);
	return 0;
}

/* One line of the user; 1: leave, 0: go on, or an exit code that ends the program, negated. */
static int take_line(struct chat *c, const char *line, size_t len)
{
	struct errbuf err = {"", 0};
	int ret;

	if (len == 0)
		return 0;
	if (line[0] == '/')
		return command(c, line);
	drain_signals(c->gen.cancel_fd);
	ret = ask(c, line, len, &err);
	if (ret == -ECANCELED) {
		fputs("\n(stopped; this turn is forgotten)\n", stderr);
		return 0;
	}
	if (ret < 0) {
		ret = client_fail(&err);
		return ret == EXIT_UNAVAILABLE_ERR || ret == EXIT_NO_PERM ? -ret : 0;
	}
	putchar('\n');
	return 0;
}

static int interactive(struct chat *c)
{
	char *line = NULL;
	size_t cap = 0;
	ssize_t n;
	sigset_t set;
	int ret = 0;

	/* Ctrl-C becomes readable data: it stops an answer, never the program. */
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	c->gen.cancel_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (c->gen.cancel_fd < 0)
		return client_fail_with(EXIT_OS_ERR, "signalfd: %s", strerror(errno));
	setvbuf(stdin, NULL, _IONBF, 0); /* nothing may wait in a buffer that poll() cannot see */
	while (ret == 0) {
		fputs("> ", stdout);
		fflush(stdout);
		ret = wait_line(c->gen.cancel_fd);
		if (ret == -EINTR) {
			fputs("\n(Ctrl-D leaves)\n", stdout);
			ret = 0;
			continue;
		}
		if (ret < 0)
			ret = -client_fail_with(
				EXIT_OS_ERR, "waiting for input: %s", strerror(-ret));
		if (ret < 0)
			break;
		n = getline(&line, &cap, stdin);
		if (n < 0) {
			putchar('\n');
			break;
		}
		if (n > 0 && line[n - 1] == '\n')
			line[--n] = '\0';
		ret = take_line(c, line, (size_t)n);
	}
	free(line);
	close(c->gen.cancel_fd);
	return ret < 0 ? -ret : 0;
}

/* ---- one question ---------------------------------------------------------------------------- */

/* The message of -m: TEXT, @FILE, or - for stdin. */
static int get_message(const char *m, char **ret_text, size_t *ret_len, struct errbuf *err)
{
	if (strcmp(m, "-") == 0)
		return gen_read_text("-", ret_text, ret_len, err);
	if (m[0] == '@')
		return gen_read_text(m + 1, ret_text, ret_len, err);
	*ret_text = strdup(m);
	*ret_len = strlen(m);
	return *ret_text ? 0 : err_set(err, -ENOMEM, EXIT_OS_ERR, "no memory for the message");
}

static int one_shot(struct chat *c, const char *message)
{
	struct errbuf err = {"", 0};
	char *text;
	size_t len;
	int ret = get_message(message, &text, &len, &err);

	if (ret == 0) {
		ret = ask(c, text, len, &err);
		free(text);
	}
	return ret < 0 ? client_fail(&err) : 0;
}

int cmd_chat(const struct client *client, const struct client_cmd *self, int argc, char **argv)
{
	json_t *body = json_object();
	const char *message = NULL;
	bool stream = false, whole = false;
	struct chat c = {.gen = {.path = "/v1/chat/completions", .cancel_fd = -1}, .body = body};
	struct opt table[GEN_OPTS_MAX + 8] = {
		{"message", 'm', "TEXT", OPT_STR, &message, 0, 0,
			"ask this and leave; @FILE reads a file, - stdin"},
		{"system", 0, "TEXT", OPT_STR, &c.system, 0, 0, "the system text"},
		{"thinking", 0, NULL, OPT_FLAG, &c.thinking, 0, 0,
			"let the model think first; shown dim, or on stderr"},
		{"stream", 0, NULL, OPT_FLAG, &stream, 0, 0,
			"print as it comes (as on a terminal, and with --stats)"},
		{"no-stream", 0, NULL, OPT_FLAG, &whole, 0, 0, "print when it is complete"},
		{"stats", 0, NULL, OPT_FLAG, &c.gen.stats, 0, 0,
			"then tokens, time to the first, and speed, on stderr"},
		{"json", 0, NULL, OPT_FLAG, &c.gen.json, 0, 0, "print the server's JSON; with -m"},
	};
	char socket[CONF_STR_MAX];
	struct errbuf err = {"", 0};
	int rest, code;

	c.messages = json_array();
	code = opts_parse(self, table, 7 + gen_opts(table + 7, body), argc, argv, &rest);
	if (code != 0)
		code = code < 0 ? EXIT_USAGE_ERR : 0;
	else if (rest < argc)
		code = client_fail_with(
			EXIT_USAGE_ERR, "chat: %s: a question goes behind -m", argv[rest]);
	else if (reset(&c) < 0)
		code = client_fail_with(EXIT_DATA_ERR, "the system text is not valid UTF-8");
	else if (client_socket(client, socket, &err) < 0)
		code = client_fail(&err);
	else {
		c.gen.socket = socket;
		c.gen.stream = !whole && (stream || c.gen.stats || isatty(STDOUT_FILENO));
		if (!message && !isatty(STDIN_FILENO))
			message = "-"; /* a question from a pipe */
		code = message ? one_shot(&c, message) : interactive(&c);
	}
	json_decref(c.messages);
	json_decref(body);
	return code;
}
