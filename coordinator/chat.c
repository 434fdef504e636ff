#include "coordinator/chat_impl.h"
#include "coordinator/one_line.h"
#include "coordinator/token.h"

#include <stdlib.h>
#include <string.h>

const char *const chat_texts[CHAT_TEXT__COUNT] = {
#define CHAT_TEXT(name, path, text) [CHAT_##name] = text,
#include "coordinator/chat_text.def"
#undef CHAT_TEXT
};

int chat_bad(struct chat *c, const char *param, const char *fmt, ...)
{
	char text[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	one_line(text);
	if (c->ret_param)
		snprintf(c->ret_param, 64, "%s", param);
	return err_set(c->err, -EINVAL, 0, "%s: %s", param, text);
}

static const json_t *message_of(const struct chat *c, const struct chat_turn *t)
{
	return t->message == SIZE_MAX ? NULL : json_array_get(c->messages, t->message);
}

/* Tools and response format after the text, from the message itself and, once, the request. */
static int put_blocks(struct chat *c, const struct chat_turn *t, bool *request_done)
{
	const json_t *message = message_of(c, t);
	struct json_slice raw = {0};
	char param[64];
	int r;

	if (message && c->raw_messages)
		raw = c->raw_messages[t->message];
	snprintf(param, sizeof(param), "messages[%zu].tools", t->message);
	r = chat_put_tools(
		c, json_object_get(message, "tools"), chat_raw_member(raw, "tools"), param);
	if (r == 0 && t->role == CHAT_SYSTEM && !*request_done)
		r = chat_put_tools(c, c->tools, c->raw_tools, "tools");
	if (r < 0)
		return r;
	snprintf(param, sizeof(param), "messages[%zu].response_format", t->message);
	r = chat_put_format(c, json_object_get(message, "response_format"),
		chat_raw_member(raw, "response_format"), param);
	if (r == 0 && t->role == CHAT_SYSTEM && !*request_done)
		r = chat_put_format(c, c->response_format, c->raw_format, "response_format");
	if (t->role == CHAT_SYSTEM)
		*request_done = true;
	return r;
}

static void put_user(struct chat *c, const struct chat_turn *t)
{
	chat_put(c, CHAT_USER);
	for (size_t i = 0; i < t->blocks_len; i++) {
		const struct chat_block *b = &c->blocks[t->blocks_at + i];
		const json_t *message = json_array_get(c->messages, b->message);

		if (i)
			chat_put_fixed(c, "\n\n");
		if (b->is_result)
			chat_put_fixed(c, "<tool_result>");
		chat_put_content(c, json_object_get(message, "content"));
		if (b->is_result)
			chat_put_fixed(c, "</tool_result>");
	}
}

static int put_assistant(struct chat *c, const struct chat_turn *t, size_t index)
{
	const json_t *message = message_of(c, t);
	const json_t *reasoning = json_object_get(message, "reasoning_content");
	bool after_task = index && c->turns[index - 1].task >= 0;
	bool past = c->last_user != SIZE_MAX && index < c->last_user;
	int r;

	if (!json_is_string(reasoning))
		reasoning = json_object_get(message, "reasoning");
	if (c->opt->thinking && !after_task && (c->keep_thinking || !past)) {
		chat_put_content(c, reasoning);
		chat_put(c, CHAT_THINK_CLOSE);
	}
	chat_put_content(c, json_object_get(message, "content"));
	r = chat_put_calls(c, json_object_get(message, "tool_calls"), t->message);
	chat_put(c, CHAT_EOS);
	return r;
}

/* What opens the answer to this turn, where an answer, a reminder or nothing follows. */
static void put_transition(struct chat *c, const struct chat_turn *t, size_t index)
{
	bool now = c->keep_thinking || index >= c->last_user;

	if (index + 1 < c->turns_len) {
		enum chat_role next = c->turns[index + 1].role;

		if (next != CHAT_ASSISTANT_ROLE && next != CHAT_REMINDER)
			return;
	} else if (!c->opt->add_generation_prompt) {
		return;
	}
	if (t->task >= 0 && t->task != CHAT_TASK_ACTION) {
		chat_put(c, (enum chat_text)t->task);
		return;
	}
	if (t->role != CHAT_USER_ROLE && t->role != CHAT_DEVELOPER)
		return;
	chat_put(c, CHAT_ASSISTANT);
	chat_put(c, c->opt->thinking && (now || t->task >= 0) ? CHAT_THINK_OPEN : CHAT_THINK_CLOSE);
	if (t->task >= 0)
		chat_put(c, CHAT_TASK_ACTION);
}

static int put_turn(struct chat *c, size_t index, bool *request_done)
{
	const struct chat_turn *t = &c->turns[index];
	const json_t *content = json_object_get(message_of(c, t), "content");
	int r = 0;

	switch (t->role) {
	case CHAT_SYSTEM:
		chat_put_content(c, content);
		r = put_blocks(c, t, request_done);
		break;
	case CHAT_DEVELOPER:
		chat_put(c, CHAT_USER);
		chat_put_content(c, content);
		r = put_blocks(c, t, request_done);
		break;
	case CHAT_USER_ROLE:
		put_user(c, t);
		break;
	case CHAT_REMINDER:
		chat_put(c, CHAT_LATEST_REMINDER);
		chat_put_content(c, content);
		break;
	default:
		r = put_assistant(c, t, index);
	}
	if (r == 0)
		put_transition(c, t, index);
	return r;
}

/* Where each message stands in the request's own bytes; without it what the parser kept is used. */
static int find_raw(struct chat *c)
{
	struct json_slice body = {c->opt->raw_body, c->opt->raw_len}, list;
	size_t n = json_array_size(c->messages), at = 0;

	c->raw_tools = chat_raw_member(body, "tools");
	c->raw_format = chat_raw_member(body, "response_format");
	list = chat_raw_member(body, "messages");
	if (!list.p)
		return 0;
	c->raw_messages = calloc(n, sizeof(*c->raw_messages));
	if (!c->raw_messages)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		if (json_slice_item(list, &at, &c->raw_messages[i]) != 1)
			break;
	return 0;
}

static int check_request(struct chat *c)
{
	if (!json_is_array(c->messages) || !json_array_size(c->messages))
		return chat_bad(c, "messages", "must be an array with at least one message");
	if (json_is_null(c->tools))
		c->tools = NULL;
	if (json_is_null(c->response_format))
		c->response_format = NULL;
	if (c->response_format && !json_is_object(c->response_format))
		return chat_bad(c, "response_format", "must be an object");
	return c->tools ? chat_check_tools(c, c->tools, "tools") : 0;
}

static int render(struct chat *c)
{
	bool request_done = false;
	int r;

	if ((r = check_request(c)) < 0 || (r = find_raw(c)) < 0 || (r = chat_collect(c)) < 0)
		return r;
	chat_put(c, CHAT_BOS);
	if (c->opt->thinking && c->opt->effort == CHAT_EFFORT_MAX)
		chat_put(c, CHAT_EFFORT_MAX_TEXT);
	for (size_t i = 0; i < c->turns_len && r == 0; i++)
		r = put_turn(c, i, &request_done);
	c->begun = c->trusted.len;
	if (r == 0 && c->opt->force_call)
		chat_put_forced(c, c->opt->force_name);
	outbuf_add(&c->text, "", 1);
	if (r == 0 && (c->text.failed || c->trusted.failed))
		r = -ENOMEM;
	return r;
}

int chat_render(const json_t *messages, const json_t *tools, const json_t *response_format,
	const struct chat_options *opt, struct chat_prompt *ret_prompt, char ret_param[64],
	struct errbuf *err)
{
	struct chat c = {
		.messages = messages,
		.tools = tools,
		.response_format = response_format,
		.opt = opt,
		.ret_param = ret_param,
		.err = err,
	};
	int r = render(&c);

	if (r == 0) {
		ret_prompt->text = c.text.data;
		ret_prompt->trusted = (uint8_t *)c.trusted.data;
		ret_prompt->len = c.trusted.len;
		ret_prompt->begun = c.begun;
		ret_prompt->used = c.used;
	} else {
		outbuf_fini(&c.text);
		outbuf_fini(&c.trusted);
	}
	outbuf_fini(&c.scratch);
	free(c.raw_messages);
	free(c.turns);
	free(c.blocks);
	return r;
}

const char *chat_lacks(const struct tokenizer *tok, const struct chat_prompt *p)
{
	const uint32_t any = (1u << (CHAT_DSML + 1)) - (1u << CHAT_BOS);
	const uint32_t special = (1u << (CHAT_TASK_READ_URL + 1)) - (1u << CHAT_BOS);
	uint32_t used = p ? p->used & special : any;

	for (int i = CHAT_BOS; i <= CHAT_TASK_READ_URL; i++)
		if (used >> i & 1 && tokenizer_find(tok, chat_texts[i]) < 0)
			return chat_texts[i];
	return NULL;
}

void chat_prompt_free(struct chat_prompt *p)
{
	free(p->text);
	free(p->trusted);
	*p = (struct chat_prompt){0};
}
