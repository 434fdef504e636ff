/* A request's body on its way in: read here when it is small, on a pool thread when it is not. */
#include <stdarg.h>
#include <string.h>

#include "coordinator/api_impl.h"

/* A body of this size is parsed and tokenised within some milliseconds. */
#define TASK_INLINE_BYTES 8192

static struct token_scratch *task_take_scratch(struct api *api)
{
	return api->spare_n ? api->spares[--api->spare_n] : token_scratch_new(api->tok);
}

static void task_give_scratch(struct api *api, struct token_scratch *scratch)
{
	if (scratch && api->spare_n < API_SPARES_MAX)
		api->spares[api->spare_n++] = scratch;
	else
		token_scratch_free(scratch);
}

void task_end(struct api_task *t)
{
	struct api *api = t->api;

	if (t->prev)
		t->prev->next = t->next;
	else
		api->tasks = t->next;
	if (t->next)
		t->next->prev = t->prev;
	api->task_n--;
	task_give_scratch(api, t->prep.in.scratch);
	prep_fini(&t->prep);
	t->free(t);
}

void task_fail(
	struct api_task *t, int status, const char *param, const char *code, const char *fmt, ...)
{
	char text[768];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (status >= 500)
		t->api->metrics.requests_failed++;
	else
		t->api->metrics.requests_refused++;
	api_error(t->x, status, param && *param ? param : NULL, code, "%s", text);
	task_end(t);
}

/* Says what was not done as asked, and names the fields that were ignored. outbuf text is not
 * terminated; a header wants that. */
static void task_warn(struct api_task *t)
{
	struct outbuf *unknown = &t->prep.unknown;
	const char *note = t->prep.note;
	char text[1000];

	if (!unknown->len && !note)
		return;
	snprintf(text, sizeof(text), "%s%s%s%.*s", note ? note : "",
		note && unknown->len ? "; " : "", unknown->len ? "ignored unknown fields: " : "",
		(int)MIN(unknown->len, 850), unknown->len ? unknown->data : "");
	(void)!http_add_header(t->x, "x-heddle-warning", text);
}

static void task_run(void *user)
{
	struct api_task *t = user;

	prep_run(&t->prep);
	if (!t->prep.status && t->compose)
		t->compose(t);
}

static void task_done(void *user)
{
	struct api_task *t = user;
	struct prep *p = &t->prep;

	task_give_scratch(t->api, p->in.scratch);
	p->in.scratch = NULL;
	http_drop_body(t->x);
	p->in.body = NULL;
	if (p->status) {
		task_fail(t, p->status, p->error.name,
			p->code            ? p->code
			: p->status == 400 ? "invalid_value"
					   : "internal_error",
			"%s", p->error.err.text);
		return;
	}
	task_warn(t);
	t->ready(t);
}

void task_start(
	struct api_task *t, struct api *api, struct http_exchange *x, enum param_scope scope)
{
	const struct http_request *req = http_request(x);
	struct engine_limits limits = engine_limits(api->engine);
	struct prep *p = &t->prep;

	t->api = api;
	t->x = x;
	t->arrived = req->arrived;
	snprintf(t->id, sizeof(t->id), "%.128s", req->id);
	t->next = api->tasks;
	if (t->next)
		t->next->prev = t;
	api->tasks = t;
	api->task_n++;
	p->params = api->files.defaults;
	p->in = (struct prep_in){
		.scope = scope,
		.tok = api->tok,
		.scratch = task_take_scratch(api),
		.body = req->body,
		.body_len = req->body_len,
		.strict = api->conf->conf.api_strict,
		.eos = api->files.gendef.eos,
		.eos_n = api->files.gendef.eos_n,
		.vocab = limits.vocab ? limits.vocab : tokenizer_vocab(api->tok),
		.context = limits.max_context,
		.token_bytes = api->token_bytes,
	};
	if (!p->in.scratch) {
		task_fail(t, 500, NULL, "internal_error", "out of memory");
		return;
	}
	t->work = (struct loop_work){.run = task_run, .done = task_done, .user = t};
	if (req->body_len > TASK_INLINE_BYTES) {
		loop_work_queue(api->loop, &t->work);
		return;
	}
	task_run(t);
	task_done(t);
}
