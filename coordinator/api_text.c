/*
 * POST /tokenize and /detokenize. Their answers are as large as their bodies, some times over, so
 * they are written where the body is read.
 */
#include <stdlib.h>

#include "coordinator/api_impl.h"

struct text_task {
	struct api_task task; /* first: freed as one */
	struct outbuf out;    /* the answer */
};

static struct text_task *text_of(struct api_task *t)
{
	return CONTAINER_OF(t, struct text_task, task);
}

static void text_free(struct api_task *t)
{
	outbuf_fini(&text_of(t)->out);
	free(text_of(t));
}

static void text_ready(struct api_task *t)
{
	struct outbuf *out = &text_of(t)->out;

	if (!outbuf_ok(out)) {
		task_fail(t, 500, NULL, "internal_error", "out of memory");
		return;
	}
	t->api->metrics.requests_ok++;
	http_respond(t->x, 200, API_JSON, out->data, out->len);
	task_end(t);
}

static void text_start(struct api *api, struct http_exchange *x, enum param_scope scope,
	void (*compose)(struct api_task *t))
{
	struct text_task *text = calloc(1, sizeof(*text));

	if (!text) {
		api->metrics.requests_failed++;
		api_error(x, 500, NULL, "internal_error", "out of memory");
		return;
	}
	text->task.compose = compose;
	text->task.ready = text_ready;
	text->task.free = text_free;
	task_start(&text->task, api, x, scope);
}

static void text_put_strs(const struct prep *p, const struct token_ids *ids, struct outbuf *out)
{
	const char *bytes;
	size_t i, len;

	outbuf_puts(out, "[");
	for (i = 0; i < ids->len; i++) {
		bytes = tokenizer_token_bytes(p->in.tok, ids->ids[i], &len);
		outbuf_puts(out, i ? "," : "");
		outbuf_json_string(out, bytes ? bytes : "", bytes ? len : 0);
	}
	outbuf_puts(out, "]");
}

static void tokenize_compose(struct api_task *t)
{
	struct prep *p = &t->prep;
	struct token_ids *ids = &p->prompts[0].ids;
	struct outbuf *out = &text_of(t)->out;
	size_t i;

	outbuf_puts(out, "{\"tokens\":[");
	for (i = 0; i < ids->len; i++)
		outbuf_printf(out, i ? ",%u" : "%u", ids->ids[i]);
	outbuf_printf(out, "],\"count\":%zu,\"max_model_len\":", ids->len);
	if (p->in.context)
		outbuf_printf(out, "%llu", (unsigned long long)p->in.context);
	else
		outbuf_puts(out, "null");
	outbuf_puts(out, ",\"token_strs\":");
	if (p->params.return_token_strs)
		text_put_strs(p, ids, out);
	else
		outbuf_puts(out, "null");
	outbuf_puts(out, "}");
	token_ids_free(ids);
}

static void detokenize_compose(struct api_task *t)
{
	struct token_ids *ids = &t->prep.prompts[0].ids;
	struct outbuf *out = &text_of(t)->out;
	size_t len;
	char *text = tokenizer_decode(t->prep.in.tok, ids->ids, ids->len, false, &len);

	out->failed = !text;
	if (!text)
		return;
	token_ids_free(ids);
	outbuf_puts(out, "{\"prompt\":");
	outbuf_json_string(out, text, len);
	outbuf_puts(out, "}");
	free(text);
}

void api_tokenize(struct api *api, struct http_exchange *x, const char *rest)
{
	(void)rest;
	text_start(api, x, S_TOKENIZE, tokenize_compose);
}

void api_detokenize(struct api *api, struct http_exchange *x, const char *rest)
{
	(void)rest;
	text_start(api, x, S_DETOKENIZE, detokenize_compose);
}
