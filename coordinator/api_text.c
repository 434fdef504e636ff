/* POST /tokenize and /detokenize. */
#include <stdlib.h>

#include "coordinator/api_impl.h"

static void text_free(struct api_task *t)
{
	free(t);
}

static void text_start(struct api *api, struct http_exchange *x, enum param_scope scope,
	void (*ready)(struct api_task *t))
{
	struct api_task *t = calloc(1, sizeof(*t));

	if (!t) {
		api->metrics.requests_failed++;
		api_error(x, 500, NULL, "internal_error", "out of memory");
		return;
	}
	t->ready = ready;
	t->free = text_free;
	task_start(t, api, x, scope);
}

/* Answers with what is in api->line. */
static void text_respond(struct api_task *t)
{
	struct api *api = t->api;

	if (!outbuf_ok(&api->line)) {
		outbuf_fini(&api->line);
		task_fail(t, 500, NULL, "internal_error", "out of memory");
		return;
	}
	api->metrics.requests_ok++;
	http_respond(t->x, 200, API_JSON, api->line.data, api->line.len);
	/* may hold megabytes: not kept for the next event */
	outbuf_fini(&api->line);
	task_end(t);
}

static void tokenize_ready(struct api_task *t)
{
	const struct token_ids *ids = &t->prep.prompts[0].ids;
	uint64_t context = engine_limits(t->api->engine).max_context;
	struct outbuf *out = &t->api->line;
	const char *bytes;
	size_t i, len;

	outbuf_puts(out, "{\"tokens\":[");
	for (i = 0; i < ids->len; i++)
		outbuf_printf(out, i ? ",%u" : "%u", ids->ids[i]);
	outbuf_printf(out, "],\"count\":%zu,\"max_model_len\":", ids->len);
	if (context)
		outbuf_printf(out, "%llu", (unsigned long long)context);
	else
		outbuf_puts(out, "null");
	outbuf_puts(out, ",\"token_strs\":");
	outbuf_puts(out, t->prep.params.return_token_strs ? "[" : "null");
	for (i = 0; t->prep.params.return_token_strs && i < ids->len; i++) {
		bytes = tokenizer_token_bytes(t->api->tok, ids->ids[i], &len);
		outbuf_puts(out, i ? "," : "");
		outbuf_json_string(out, bytes ? bytes : "", bytes ? len : 0);
	}
	outbuf_puts(out, t->prep.params.return_token_strs ? "]}" : "}");
	text_respond(t);
}

static void detokenize_ready(struct api_task *t)
{
	const struct token_ids *ids = &t->prep.prompts[0].ids;
	struct outbuf *out = &t->api->line;
	char *text;
	size_t len;

	text = tokenizer_decode(t->api->tok, ids->ids, ids->len, false, &len);
	if (!text) {
		task_fail(t, 500, NULL, "internal_error", "out of memory");
		return;
	}
	outbuf_puts(out, "{\"prompt\":");
	outbuf_json_string(out, text, len);
	outbuf_puts(out, "}");
	free(text);
	text_respond(t);
}

void api_tokenize(struct api *api, struct http_exchange *x, const char *rest)
{
	(void)rest;
	text_start(api, x, S_TOKENIZE, tokenize_ready);
}

void api_detokenize(struct api *api, struct http_exchange *x, const char *rest)
{
	(void)rest;
	text_start(api, x, S_DETOKENIZE, detokenize_ready);
}
