/*
 * The JSON of answers, whole and streamed, of both calls. Log-probabilities and ids are written as
 * array elements when their token comes and wait in struct choice_lists.
 */
#include <string.h>

#include "coordinator/job.h"

static struct outbuf *const *choice_lists_all(const struct choice_lists *l, struct outbuf *all[6])
{
	struct choice_lists *w = (struct choice_lists *)l;

	all[0] = &w->entries;
	all[1] = &w->tokens;
	all[2] = &w->values;
	all[3] = &w->tops;
	all[4] = &w->offsets;
	all[5] = &w->ids;
	return all;
}

void choice_lists_clear(struct choice_lists *l)
{
	struct outbuf *all[6];
	size_t i;

	for (i = 0; i < 6; i++)
		outbuf_clear(choice_lists_all(l, all)[i]);
}

void choice_lists_fini(struct choice_lists *l)
{
	struct outbuf *all[6];
	size_t i;

	for (i = 0; i < 6; i++)
		outbuf_fini(choice_lists_all(l, all)[i]);
}

bool choice_lists_ok(const struct choice_lists *l)
{
	struct outbuf *all[6];
	bool ok = true;
	size_t i;

	for (i = 0; i < 6; i++)
		ok = ok && outbuf_ok(choice_lists_all(l, all)[i]);
	return ok;
}

static void shape_comma(struct outbuf *list)
{
	if (list->len)
		outbuf_add(list, ",", 1);
}

int shape_head(struct job *job)
{
	const struct params *r = job_params(job);
	const char *own = job->task.api->files.name;
	struct outbuf *b = &job->head;
	char id[160];

	snprintf(id, sizeof(id), "%s-%s", job->chat ? "chatcmpl" : "cmpl", job->task.id);
	outbuf_puts(b, "\"id\":");
	outbuf_json_string(b, id, strlen(id));
	outbuf_printf(b, ",\"object\":\"%s\",\"created\":%lld,\"model\":",
		!job->chat  ? "text_completion"
		: r->stream ? "chat.completion.chunk"
			    : "chat.completion",
		(long long)time(NULL));
	outbuf_json_string(b, r->model ? json_string_value(r->model) : own,
		r->model ? json_string_length(r->model) : strlen(own));
	return outbuf_ok(b) ? 0 : -ENOMEM;
}

/* Tokens ------------------------------------------------------------------------------------- */

static const char *shape_bytes(const struct choice *c, uint32_t token, size_t *ret_len)
{
	const char *bytes = tokenizer_token_bytes(c->job->task.api->tok, token, ret_len);

	if (!bytes) /* an id the model has and the tokenizer has not */
		*ret_len = 0;
	return bytes ? bytes : "";
}

/* A token as text; one that holds a part of a character as OpenAI writes it, bytes:\xe2\x80. */
static void shape_token_text(const struct choice *c, uint32_t token, struct outbuf *out)
{
	const char *bytes;
	size_t len, i;

	bytes = shape_bytes(c, token, &len);
	if (utf8_valid(bytes, len)) {
		outbuf_json_string(out, bytes, len);
		return;
	}
	outbuf_puts(out, "\"bytes:");
	for (i = 0; i < len; i++)
		outbuf_printf(out, "\\\\x%02x", (uint8_t)bytes[i]);
	outbuf_puts(out, "\"");
}

/* {"token":…,"logprob":…,"bytes":[…] without the closing brace */
static void shape_chat_token(
	const struct choice *c, uint32_t token, float logprob, struct outbuf *out)
{
	const char *bytes;
	size_t len, i;

	outbuf_puts(out, "{\"token\":");
	shape_token_text(c, token, out);
	outbuf_puts(out, ",\"logprob\":");
	outbuf_json_float(out, logprob);
	outbuf_puts(out, ",\"bytes\":[");
	bytes = shape_bytes(c, token, &len);
	for (i = 0; i < len; i++)
		outbuf_printf(out, i ? ",%u" : "%u", (uint8_t)bytes[i]);
	outbuf_puts(out, "]");
}

static void shape_chat_logprob(struct choice *c, const struct engine_token *t)
{
	struct outbuf *out = &c->lists.entries;
	uint32_t i;

	shape_comma(out);
	shape_chat_token(c, t->token, t->logprob, out);
	outbuf_puts(out, ",\"top_logprobs\":[");
	for (i = 0; i < t->alt_n && i < c->job->top_n; i++) {
		outbuf_puts(out, i ? "," : "");
		shape_chat_token(c, t->alts[i].token, t->alts[i].logprob, out);
		outbuf_puts(out, "}");
	}
	outbuf_puts(out, "]}");
}

/* The parallel arrays. The chosen token is always among top_logprobs, as lm-eval expects. */
static void shape_text_logprob(struct choice *c, const struct engine_token *t, size_t offset)
{
	struct choice_lists *l = &c->lists;
	bool chosen = false;
	uint32_t i;

	shape_comma(&l->tokens);
	shape_token_text(c, t->token, &l->tokens);
	shape_comma(&l->values);
	outbuf_json_float(&l->values, t->logprob);
	shape_comma(&l->offsets);
	outbuf_printf(&l->offsets, "%zu", offset);
	shape_comma(&l->tops);
	outbuf_puts(&l->tops, "{");
	for (i = 0; i < t->alt_n && i < c->job->top_n; i++) {
		outbuf_puts(&l->tops, i ? "," : "");
		shape_token_text(c, t->alts[i].token, &l->tops);
		outbuf_puts(&l->tops, ":");
		outbuf_json_float(&l->tops, t->alts[i].logprob);
		chosen |= t->alts[i].token == t->token;
	}
	if (!chosen) {
		outbuf_puts(&l->tops, i ? "," : "");
		shape_token_text(c, t->token, &l->tops);
		outbuf_puts(&l->tops, ":");
		outbuf_json_float(&l->tops, t->logprob);
	}
	outbuf_puts(&l->tops, "}");
}

/* Takes the next prompt token into the echoed text; an added BOS has none. */
static void shape_echo_push(struct choice *c, uint32_t token, bool silent, struct outbuf *text)
{
	const char *piece;
	size_t len;

	if (silent)
		return;
	if (token_stream_push(&c->echo, token, &piece, &len)) {
		c->answer.content.failed = true;
		return;
	}
	c->echo_chars += answer_count_chars(piece, len);
	if (text)
		outbuf_add(text, piece, len);
}

void shape_echo(struct choice *c)
{
	const struct prep_prompt *prompt = choice_prompt(c);
	const struct token_ids *ids = &prompt->ids;
	struct outbuf *text = &c->answer.content;
	struct choice_lists *l = &c->lists;
	const char *piece;
	size_t i, len;

	for (i = 0; i < ids->len; i++)
		shape_echo_push(c, ids->ids[i], !i && prompt->bos_added, text);
	if (token_stream_finish(&c->echo, &piece, &len)) {
		text->failed = true;
		return;
	}
	outbuf_add(text, piece, len);
	c->echo_chars += answer_count_chars(piece, len);
	if (!c->job->logprobs)
		return;
	/* nothing comes before the first token, so nothing predicts it */
	shape_token_text(c, ids->ids[0], &l->tokens);
	outbuf_puts(&l->values, "null");
	outbuf_puts(&l->tops, "null");
	outbuf_puts(&l->offsets, "0");
	/* once more, now token by token as their log-probabilities arrive */
	token_stream_fini(&c->echo);
	token_stream_init(&c->echo, c->job->task.api->tok, false);
	c->echo_chars = 0;
	shape_echo_push(c, ids->ids[0], prompt->bos_added, NULL);
}

void shape_prompt_token(struct choice *c, const struct engine_token *t)
{
	if (!c->job->logprobs)
		return;
	shape_text_logprob(c, t, c->echo_chars);
	shape_echo_push(c, t->token, false, NULL);
}

void shape_token(struct choice *c, const struct engine_token *t)
{
	if (c->job->logprobs && c->job->chat)
		shape_chat_logprob(c, t);
	else if (c->job->logprobs)
		shape_text_logprob(c, t, c->echo_chars + c->answer.chars);
	if (job_params(c->job)->return_token_ids) {
		shape_comma(&c->lists.ids);
		outbuf_printf(&c->lists.ids, "%u", t->token);
	}
}

/* Objects ------------------------------------------------------------------------------------ */

static void shape_list(struct outbuf *out, const char *name, const struct outbuf *list)
{
	outbuf_printf(out, "\"%s\":[", name);
	outbuf_join(out, list);
	outbuf_puts(out, "]");
}

static void shape_logprobs(const struct choice *c, struct outbuf *out)
{
	const struct choice_lists *l = &c->lists;

	outbuf_puts(out, ",\"logprobs\":");
	if (!c->job->logprobs) {
		outbuf_puts(out, "null");
	} else if (c->job->chat) {
		outbuf_puts(out, "{");
		shape_list(out, "content", &l->entries);
		outbuf_puts(out, "}");
	} else {
		outbuf_puts(out, "{");
		shape_list(out, "tokens", &l->tokens);
		outbuf_puts(out, ",");
		shape_list(out, "token_logprobs", &l->values);
		outbuf_puts(out, ",");
		shape_list(out, "top_logprobs", &l->tops);
		outbuf_puts(out, ",");
		shape_list(out, "text_offset", &l->offsets);
		outbuf_puts(out, "}");
	}
}

static void shape_prompt_ids(const struct prep_prompt *prompt, struct outbuf *out)
{
	size_t i;

	outbuf_puts(out, ",\"prompt_token_ids\":[");
	for (i = 0; i < prompt->ids.len; i++)
		outbuf_printf(out, i ? ",%u" : "%u", prompt->ids.ids[i]);
	outbuf_puts(out, "]");
}

/* stop_reason: which stop string or stop_token_ids it was; null for the end token and the limit. */
static void shape_reason(const struct choice *c, struct outbuf *out)
{
	const struct prep *p = &c->job->task.prep;
	const char *text;
	size_t len, i;

	if (!c->done) {
		outbuf_puts(out, ",\"finish_reason\":null");
		return;
	}
	outbuf_printf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":", choice_reason(c));
	if (c->answer.stop_string >= 0) {
		text = prep_stop_text(p, (size_t)c->answer.stop_string, &len);
		outbuf_json_string(out, text, len);
		return;
	}
	for (i = p->end_token_n; i < p->stop_token_n && !c->by_length; i++) {
		if (p->stop_tokens[i] == c->last_token) {
			outbuf_printf(out, "%u", c->last_token);
			return;
		}
	}
	outbuf_puts(out, "null");
}

static void shape_text(struct outbuf *out, const char *name, const struct outbuf *text)
{
	outbuf_puts(out, "\"");
	outbuf_puts(out, name);
	outbuf_puts(out, "\":");
	outbuf_json_string(out, text->data ? text->data : "", text->len);
}

static void shape_event_begin(const struct choice *c, struct outbuf *out)
{
	outbuf_puts(out, "{");
	outbuf_join(out, &c->job->head);
	outbuf_puts(out, ",\"choices\":[{\"index\":");
	outbuf_uint(out, c->index);
	outbuf_puts(out, ",");
}

static void shape_event_end(const struct job *job, struct outbuf *out)
{
	outbuf_puts(out, "}]");
	outbuf_puts(out, job_params(job)->include_usage ? ",\"usage\":null" : "");
}

bool shape_first(const struct choice *c, struct outbuf *out)
{
	const struct job *job = c->job;
	bool ids = job_params(job)->return_token_ids;

	if (!job->chat && !ids)
		return false;
	shape_event_begin(c, out);
	if (job->chat)
		outbuf_puts(out, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
	else
		outbuf_puts(out, "\"text\":\"\"");
	outbuf_puts(out, ",\"logprobs\":null,\"finish_reason\":null");
	if (ids && !job->chat)
		shape_prompt_ids(choice_prompt(c), out);
	shape_event_end(job, out);
	if (ids && job->chat && !c->index)
		shape_prompt_ids(choice_prompt(c), out);
	outbuf_puts(out, "}");
	return true;
}

static void shape_chat_delta(struct choice *c, struct outbuf *out)
{
	const struct answer *a = &c->answer;
	bool calls = shape_calls_new(c);
	const char *comma = "";

	outbuf_puts(out, "\"delta\":{");
	if (a->thought.len) {
		shape_text(out, "reasoning_content", &a->thought);
		comma = ",";
	}
	if (a->content.len || (!a->thought.len && !calls)) {
		outbuf_puts(out, comma);
		shape_text(out, "content", &a->content);
		comma = ",";
	}
	if (calls) {
		outbuf_puts(out, comma);
		shape_calls_delta(c, out);
	}
	outbuf_puts(out, "}");
}

bool shape_delta(struct choice *c, struct outbuf *out)
{
	struct answer *a = &c->answer;
	struct choice_lists *l = &c->lists;

	if (!a->content.len && !a->thought.len && !l->entries.len && !l->tokens.len &&
		!l->ids.len && !shape_calls_new(c))
		return false;
	shape_event_begin(c, out);
	if (c->job->chat)
		shape_chat_delta(c, out);
	else
		shape_text(out, "text", &a->content);
	shape_logprobs(c, out);
	outbuf_puts(out, ",\"finish_reason\":null");
	if (job_params(c->job)->return_token_ids) {
		outbuf_puts(out, ",");
		shape_list(out, "token_ids", &l->ids);
	}
	shape_event_end(c->job, out);
	outbuf_puts(out, "}");
	outbuf_clear(&a->content);
	outbuf_clear(&a->thought);
	choice_lists_clear(l);
	return true;
}

void shape_finish(const struct choice *c, struct outbuf *out)
{
	shape_event_begin(c, out);
	outbuf_puts(out, c->job->chat ? "\"delta\":{}" : "\"text\":\"\"");
	outbuf_puts(out, ",\"logprobs\":null");
	shape_reason(c, out);
	shape_event_end(c->job, out);
	outbuf_puts(out, "}");
}

static void shape_usage_value(const struct job *job, struct outbuf *out)
{
	uint64_t prompt = job_prompt_tokens(job), made = job_generated_tokens(job), thought = 0;
	size_t i;

	for (i = 0; i < job->choice_n; i++)
		thought += job->choices[i].thought_tokens;
	/* cached_tokens: the engine keeps no prefixes yet, so every prompt token was computed */
	outbuf_printf(out,
		"{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu,"
		"\"prompt_tokens_details\":{\"cached_tokens\":0},"
		"\"completion_tokens_details\":{\"reasoning_tokens\":%llu}}",
		(unsigned long long)prompt, (unsigned long long)made,
		(unsigned long long)(prompt + made), (unsigned long long)thought);
}

void shape_usage(const struct job *job, struct outbuf *out)
{
	outbuf_puts(out, "{");
	outbuf_join(out, &job->head);
	outbuf_puts(out, ",\"choices\":[],\"usage\":");
	shape_usage_value(job, out);
	outbuf_puts(out, "}");
}

static void shape_choice(const struct choice *c, struct outbuf *out)
{
	const struct answer *a = &c->answer;

	outbuf_printf(out, "%s{\"index\":%u,", c->index ? "," : "", c->index);
	if (c->job->chat) {
		outbuf_puts(out, "\"message\":{\"role\":\"assistant\",");
		if (c->job->task.prep.thinking) {
			shape_text(out, "reasoning_content", &a->thought);
			outbuf_puts(out, ",");
		}
		if (a->call_n && !a->content.len)
			outbuf_puts(out, "\"content\":null");
		else
			shape_text(out, "content", &a->content);
		if (a->call_n) {
			outbuf_puts(out, ",");
			shape_calls(c, out);
		}
		outbuf_puts(out, "}");
	} else {
		shape_text(out, "text", &a->content);
	}
	shape_logprobs(c, out);
	shape_reason(c, out);
	if (job_params(c->job)->return_token_ids) {
		if (!c->job->chat)
			shape_prompt_ids(choice_prompt(c), out);
		outbuf_puts(out, ",");
		shape_list(out, "token_ids", &c->lists.ids);
	}
	outbuf_puts(out, "}");
}

void shape_answer(struct job *job, struct outbuf *out)
{
	size_t i;

	outbuf_puts(out, "{");
	outbuf_join(out, &job->head);
	outbuf_puts(out, ",\"choices\":[");
	for (i = 0; i < job->choice_n; i++)
		shape_choice(&job->choices[i], out);
	outbuf_puts(out, "],\"usage\":");
	shape_usage_value(job, out);
	if (job->chat && job_params(job)->return_token_ids)
		shape_prompt_ids(&job->task.prep.prompts[0], out);
	outbuf_puts(out, "}");
}

void shape_error(int status, const char *code, const char *text, struct outbuf *out)
{
	outbuf_puts(out, "{\"error\":{\"message\":");
	outbuf_json_string(out, text, strlen(text));
	outbuf_printf(out, ",\"type\":\"%s\",\"param\":null,\"code\":\"%s\"}}",
		api_error_type(status), code);
}
