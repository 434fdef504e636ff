#include "client/gen.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/call.h"
#include "client/sse.h"
#include "client/text.h"

#define DIM   "\x1b[2m"
#define PLAIN "\x1b[0m"

enum { TEXT_FILE_MAX = 64 << 20 };

size_t gen_opts(struct opt rows[GEN_OPTS_MAX], json_t *body)
{
	static const struct opt table[] = {
		{"max-tokens", 'n', "N", OPT_JSON_INT, NULL, 0, 1 << 30, "longest answer"},
		{"min-tokens", 0, "N", OPT_JSON_INT, NULL, 0, 1 << 30, "no stop before this many"},
		{"temperature", 't', "X", OPT_JSON_REAL, NULL, 0, 0,
			"0 takes the most probable token"},
		{"top-p", 0, "X", OPT_JSON_REAL, NULL, 0, 0, "share of probability to sample from"},
		{"top-k", 0, "N", OPT_JSON_INT, NULL, -1, INT32_MAX,
			"how many tokens to sample from"},
		{"min-p", 0, "X", OPT_JSON_REAL, NULL, 0, 0,
			"least probability, relative to the best"},
		{"seed", 0, "N", OPT_JSON_INT, NULL, INT64_MIN, INT64_MAX, "fixes sampling"},
		{"stop", 0, "TEXT", OPT_JSON_LIST, NULL, 0, 0,
			"end just before this text; repeatable"},
		{"frequency-penalty", 0, "X", OPT_JSON_REAL, NULL, 0, 0,
			"per occurrence in the answer"},
		{"presence-penalty", 0, "X", OPT_JSON_REAL, NULL, 0, 0, "for having occurred"},
		{"repetition-penalty", 0, "X", OPT_JSON_REAL, NULL, 0, 0,
			"divides logits of seen tokens"},
		{"ignore-eos", 0, NULL, OPT_JSON_TRUE, NULL, 0, 0, "go on after the end token"},
	};

	for (size_t i = 0; i < ARRAY_LEN(table); i++) {
		rows[i] = table[i];
		rows[i].into = body;
	}
	return ARRAY_LEN(table);
}

/* A generation while its answer arrives. */
struct run {
	const struct gen *gen;
	struct gen_result *r;
	struct sse sse;
	double start;
	bool terminal, in_reasoning, done;
	struct errbuf own; /* of the stream's own errors: the caller's is the call's to fill */
	int ret;
};

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void gen_result_fini(struct gen_result *r)
{
	free(r->text);
	memset(r, 0, sizeof(*r));
}

static int keep(struct gen_result *r, const char *bytes, size_t n)
{
	if (r->len + n + 1 > r->cap) {
		size_t want = MAX(2 * r->cap, r->len + n + 256);
		char *bigger = realloc(r->text, want);

		if (!bigger)
			return -ENOMEM;
		r->text = bigger;
		r->cap = want;
	}
	memcpy(r->text + r->len, bytes, n);
	r->len += n;
	r->text[r->len] = '\0';
	return 0;
}

/* Ends what show_reasoning() began. */
static void end_reasoning(struct run *run)
{
	if (!run->in_reasoning)
		return;
	fputs(run->terminal ? PLAIN "\n\n" : "\n", run->terminal ? stdout : stderr);
	run->in_reasoning = false;
}

/* The first piece of text has come (an event before it may only say the role). */
static void note_first(struct run *run)
{
	if (run->r->first_s == 0)
		run->r->first_s = now_s() - run->start;
}

static void show_reasoning(struct run *run, const json_t *v)
{
	size_t n = json_string_length(v);
	FILE *out = run->terminal ? stdout : stderr;

	if (n == 0)
		return;
	note_first(run);
	if (!run->in_reasoning && run->terminal)
		fputs(DIM, out);
	run->in_reasoning = true;
	text_put(out, json_string_value(v), n, run->terminal);
	fflush(out);
}

static int show_text(struct run *run, const json_t *v)
{
	size_t n = json_string_length(v);

	if (n == 0)
		return 0;
	note_first(run);
	end_reasoning(run);
	text_put(stdout, json_string_value(v), n, run->terminal);
	fflush(stdout);
	return keep(run->r, json_string_value(v), n);
}

/* usage, wherever it comes. */
static void take_usage(struct run *run, const json_t *root)
{
	const json_t *usage = json_object_get(root, "usage");
	const json_t *details = json_object_get(usage, "prompt_tokens_details");

	if (!json_is_object(usage))
		return;
	run->r->prompt_tokens =
		(uint64_t)json_integer_value(json_object_get(usage, "prompt_tokens"));
	run->r->generated_tokens =
		(uint64_t)json_integer_value(json_object_get(usage, "completion_tokens"));
	run->r->cached_tokens =
		(uint64_t)json_integer_value(json_object_get(details, "cached_tokens"));
}

/* A choice: of a stream (delta), of a chat answer (message), of a completion (text). */
static int take_choice(struct run *run, const json_t *choice)
{
	const json_t *part = json_object_get(choice, "delta");
	const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
	const json_t *text;

	if (!part)
		part = json_object_get(choice, "message");
	text = part ? json_object_get(part, "content") : json_object_get(choice, "text");
	show_reasoning(run, json_object_get(part, "reasoning_content"));
	if (finish)
		snprintf(run->r->finish, sizeof(run->r->finish), "%s", finish);
	return show_text(run, text);
}

/* A whole answer or an event of a stream. */
static int take_json(struct run *run, const char *data, size_t len)
{
	json_t *root = json_loadb(data, len, 0, NULL);
	const json_t *error = json_object_get(root, "error");
	const char *why = json_string_value(json_object_get(error, "message"));
	int ret = 0;

	if (!json_is_object(root))
		ret = err_set(&run->own, -EPROTO, EXIT_SOFTWARE_ERR,
			"the daemon's answer is not what it should be: %.80s", data);
	else if (error)
		ret = err_set(&run->own, -EPROTO, EXIT_UNAVAILABLE_ERR, "the answer broke off: %s",
			why ? why : "the daemon does not say why");
	else
		ret = take_choice(run, json_array_get(json_object_get(root, "choices"), 0));
	if (ret == 0)
		take_usage(run, root);
	json_decref(root);
	return ret;
}

static int on_event(void *user, const char *data, size_t len)
{
	struct run *run = user;

	if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
		run->done = true;
		return 0;
	}
	if (run->gen->json) {
		printf("%s\n", data);
		fflush(stdout);
	}
	return run->gen->json ? 0 : take_json(run, data, len);
}

static int on_stream(void *user, const char *bytes, size_t n)
{
	struct run *run = user;

	run->ret = sse_feed(&run->sse, bytes, n, on_event, run);
	return run->ret;
}

/* Output ends with a line end, also where the answer does not. */
static void end_line(const struct run *run)
{
	if (run->r->len == 0 || run->r->text[run->r->len - 1] != '\n')
		putchar('\n');
}

/* The answer of a call that was no stream. */
static int take_reply(struct run *run, const struct call_reply *reply)
{
	int ret;

	if (run->gen->json) {
		printf("%s\n", reply->body ? reply->body : "");
		return 0;
	}
	ret = take_json(run, reply->body ? reply->body : "", reply->len);
	run->r->first_s = 0; /* it came all at once */
	end_reasoning(run);
	if (ret == 0)
		end_line(run);
	return ret;
}

/* A stream is complete only when it said so. */
static int end_stream(struct run *run)
{
	end_reasoning(run);
	if (!run->gen->json)
		end_line(run);
	if (run->done)
		return 0;
	return err_set(&run->own, -EPIPE, EXIT_UNAVAILABLE_ERR,
		"the daemon closed the connection before its answer was complete");
}

static int add_stream_fields(const struct gen *gen, json_t *body)
{
	if (!gen->stream) {
		json_object_del(body, "stream");
		return 0;
	}
	if (json_object_set_new(body, "stream", json_true()) < 0 ||
		json_object_set_new(
			body, "stream_options", json_pack("{s:b}", "include_usage", 1)) < 0)
		return -ENOMEM;
	return 0;
}

int gen_run(const struct gen *gen, json_t *body, struct gen_result *ret_result, struct errbuf *err)
{
	struct run run = {.gen = gen, .r = ret_result};
	struct call call = {gen->socket, gen->path, NULL, gen->cancel_fd, on_stream, &run};
	struct call_reply reply = {0};
	char *text;
	int ret;

	memset(ret_result, 0, sizeof(*ret_result));
	run.terminal = isatty(STDOUT_FILENO);
	if (add_stream_fields(gen, body) < 0 || !(text = json_dumps(body, JSON_COMPACT)))
		return err_set(err, -ENOMEM, EXIT_OS_ERR, "no memory for the request");
	call.body = text;
	run.start = now_s();
	ret = call_run(&call, &reply, err);
	ret_result->total_s = now_s() - run.start;
	if (run.ret == -ENOMEM || run.ret == -EMSGSIZE) /* the event parser's, without a sentence */
		err_set(&run.own, run.ret, EXIT_OS_ERR, "the answer is too long: %s",
			strerror(-run.ret));
	if (run.ret == 0 && ret == 0)
		run.ret = reply.body ? take_reply(&run, &reply) : end_stream(&run);
	if (run.ret < 0) {
		ret = run.ret;
		if (err)
			*err = run.own;
	}
	if (ret < 0)
		end_reasoning(&run);
	call_reply_fini(&reply);
	sse_fini(&run.sse);
	free(text);
	return ret;
}

void gen_print_stats(const struct gen_result *r, FILE *out)
{
	char a[TEXT_SHORT], b[TEXT_SHORT], c[TEXT_SHORT], d[TEXT_SHORT];
	double rest = r->total_s - r->first_s;

	fprintf(out, "prompt %s tokens", text_count(r->prompt_tokens, a));
	if (r->cached_tokens)
		fprintf(out, " (%s cached)", text_count(r->cached_tokens, a));
	if (r->first_s > 0)
		fprintf(out, ", first token after %s", text_seconds(r->first_s, b));
	fprintf(out, ", %s tokens", text_count(r->generated_tokens, c));
	if (r->first_s > 0 && r->generated_tokens > 1 && rest > 0)
		fprintf(out, " at %.1f tokens/s", (double)(r->generated_tokens - 1) / rest);
	fprintf(out, ", %s in all\n", text_seconds(r->total_s, d));
}

/* Index of the first byte that is not UTF-8, or -1. */
static long bad_utf8(const char *text, size_t len)
{
	size_t i = 0;

	while (i < len) {
		unsigned char c = (unsigned char)text[i];
		uint32_t cp, n = c < 0x80   ? 0
				 : c < 0xc2 ? 9
				 : c < 0xe0 ? 1
				 : c < 0xf0 ? 2
				 : c < 0xf5 ? 3
					    : 9;

		if (n > 3 || n >= len - i)
			return (long)i;
		cp = n == 0 ? c : c & (0x3fu >> n);
		for (uint32_t k = 1; k <= n; k++) {
			if (((unsigned char)text[i + k] & 0xc0) != 0x80)
				return (long)i;
			cp = cp << 6 | ((unsigned char)text[i + k] & 0x3f);
		}
		if ((n == 2 && cp < 0x800) || (n == 3 && (cp < 0x10000 || cp > 0x10ffff)) ||
			(cp >= 0xd800 && cp < 0xe000))
			return (long)i;
		i += n + 1;
	}
	return -1;
}

static int read_all(FILE *f, char **ret_text, size_t *ret_len)
{
	char *text = NULL, *bigger;
	size_t len = 0, cap = 0, got;

	do {
		if (cap - len < 65536) {
			cap = cap * 2 + 65536;
			bigger =
				cap > TEXT_FILE_MAX * (size_t)2 + 65536 ? NULL : realloc(text, cap);
			if (!bigger) {
				free(text);
				return -EFBIG;
			}
			text = bigger;
		}
		got = fread(text + len, 1, cap - len - 1, f);
		len += got;
	} while (got > 0);
	if (ferror(f)) {
		got = (size_t)errno;
		free(text);
		return -(int)got;
	}
	text[len] = '\0';
	*ret_text = text;
	*ret_len = len;
	return 0;
}

int gen_read_text(const char *path, char **ret_text, size_t *ret_len, struct errbuf *err)
{
	bool in = strcmp(path, "-") == 0;
	FILE *f = in ? stdin : fopen(path, "rb");
	const char *name = in ? "stdin" : path;
	long bad;
	int ret;

	if (!f)
		return err_set(err, -errno, errno == EACCES ? EXIT_NO_PERM : EXIT_NO_INPUT,
			"%s: %s", path, strerror(errno));
	ret = read_all(f, ret_text, ret_len);
	if (!in)
		fclose(f);
	if (ret < 0)
		return err_set(err, ret, EXIT_OS_ERR, "%s: %s", name, strerror(-ret));
	bad = bad_utf8(*ret_text, *ret_len);
	if (bad >= 0) {
		free(*ret_text);
		return err_set(err, -EILSEQ, EXIT_DATA_ERR, "%s: not UTF-8 at byte %ld", name, bad);
	}
	return 0;
}
