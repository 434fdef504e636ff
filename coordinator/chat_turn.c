/*
 * Messages to turns: each is checked, tool results find their calls, and neighbours join.
 */
#include "coordinator/chat_impl.h"

#include <stdlib.h>
#include <string.h>

static const char *const roles[CHAT_ROLE__COUNT] = {
	[CHAT_SYSTEM] = "system",
	[CHAT_DEVELOPER] = "developer",
	[CHAT_USER_ROLE] = "user",
	[CHAT_REMINDER] = "latest_reminder",
	[CHAT_ASSISTANT_ROLE] = "assistant",
	[CHAT_TOOL] = "tool",
};

static const char *const paths[CHAT_TEXT__COUNT] = {
#define CHAT_TEXT(name, path, text) [CHAT_##name] = path,
#include "coordinator/chat_text.def"
#undef CHAT_TEXT
};

/* The calls of the last assistant message that made any, while its results are read. */
struct calls {
	json_t *by_id;  /* id to index; -1 once it has its result */
	size_t message; /* where they were made */
	size_t open;    /* without a result */
};

/* enum chat_role, or -EINVAL. */
static int find_role(struct chat *c, const json_t *message, size_t index)
{
	const json_t *role = json_object_get(message, "role");
	char param[64], quoted[JSON_STR_QUOTE_MAX];

	snprintf(param, sizeof(param), "messages[%zu].role", index);
	for (int i = 0; i < CHAT_ROLE__COUNT; i++)
		if (json_str_is(role, roles[i]))
			return i;
	if (!json_is_string(role))
		return chat_bad(c, param, "must be a string");
	return chat_bad(c, param,
		"'%s' is none of system, developer, user, assistant, tool, latest_reminder",
		json_str_quote(json_string_value(role), json_string_length(role), quoted));
}

static int find_task(struct chat *c, const json_t *message, size_t index, int role, int *ret)
{
	const json_t *v = json_object_get(message, "task");
	char param[64];

	*ret = -1;
	if (!v || json_is_null(v))
		return 0;
	snprintf(param, sizeof(param), "messages[%zu].task", index);
	if (role != CHAT_USER_ROLE && role != CHAT_DEVELOPER)
		return chat_bad(c, param, "only a user or developer message has a task");
	for (int i = CHAT_TASK_ACTION; i <= CHAT_TASK_READ_URL; i++)
		if (json_str_is(v, strchr(paths[i], '.') + 1))
			*ret = i;
	if (*ret < 0)
		return chat_bad(c, param,
			"must be one of action, query, authority, domain, title, read_url");
	return 0;
}

/* Members that carry tools, a response format or reasoning, where they may stand. */
static int check_members(struct chat *c, const json_t *message, size_t index, int role)
{
	const json_t *tools = json_object_get(message, "tools");
	const json_t *format = json_object_get(message, "response_format");
	const char *reasoning[] = {"reasoning_content", "reasoning"};
	bool may = role == CHAT_SYSTEM || role == CHAT_DEVELOPER;
	char param[64];

	if (tools && !json_is_null(tools)) {
		snprintf(param, sizeof(param), "messages[%zu].tools", index);
		if (!may)
			return chat_bad(c, param, "only a system or developer message has tools");
		if (chat_check_tools(c, tools, param) < 0)
			return -EINVAL;
	}
	if (format && !json_is_null(format) && (!may || !json_is_object(format))) {
		snprintf(param, sizeof(param), "messages[%zu].response_format", index);
		return chat_bad(c, param, "must be an object in a system or developer message");
	}
	for (size_t i = 0; i < ARRAY_LEN(reasoning); i++) {
		const json_t *v = json_object_get(message, reasoning[i]);

		snprintf(param, sizeof(param), "messages[%zu].%s", index, reasoning[i]);
		if (v && !json_is_null(v) && !json_is_string(v))
			return chat_bad(c, param, "must be a string or null");
	}
	return chat_check_content(c, message, index);
}

/* Every call has its result by the time the assistant speaks again, or the list ends. */
static int calls_end(struct chat *c, struct calls *calls, size_t now)
{
	const char *id;
	json_t *v;
	char param[64];
	size_t end = json_array_size(c->messages);

	/* A list may end with the calls themselves: nothing has answered yet. */
	if (!calls->open || (now == end && end == calls->message + 1))
		return 0;
	snprintf(param, sizeof(param), "messages[%zu].tool_calls", calls->message);
	json_object_foreach (calls->by_id, id, v) {
		if (json_integer_value(v) >= 0)
			return chat_bad(c, param, "the call '%.60s' has no tool message", id);
	}
	return chat_bad(c, param, "a call without an id has no tool message");
}

static int calls_begin(struct chat *c, struct calls *calls, const json_t *message, size_t index)
{
	const json_t *list = json_object_get(message, "tool_calls"), *call;
	char param[64];
	size_t i;

	snprintf(param, sizeof(param), "messages[%zu].tool_calls", index);
	if (!list || json_is_null(list))
		return 0;
	if (!json_is_array(list))
		return chat_bad(c, param, "must be an array");
	if (!json_array_size(list))
		return 0;
	json_object_clear(calls->by_id);
	calls->message = index;
	calls->open = json_array_size(list);
	json_array_foreach (list, i, call) {
		const json_t *v = json_object_get(call, "id");
		const char *id = json_string_value(v);

		if (!id)
			continue;
		if (json_str_has_nul(v))
			return chat_bad(c, param, "an id must not hold the character U+0000");
		if (json_object_get(calls->by_id, id))
			return chat_bad(c, param, "two calls have the id '%.60s'", id);
		if (json_object_set_new(calls->by_id, id, json_integer((json_int_t)i)) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int answer(
	struct chat *c, struct calls *calls, const json_t *message, size_t index, size_t *ret_call)
{
	const json_t *asked = json_object_get(message, "tool_call_id");
	const char *id = json_string_value(asked);
	json_t *v = id && !json_str_has_nul(asked) ? json_object_get(calls->by_id, id) : NULL;
	char param[64], quoted[JSON_STR_QUOTE_MAX];

	snprintf(param, sizeof(param), "messages[%zu].tool_call_id", index);
	if (!id)
		return chat_bad(c, param, "must be a string, the id of a call");
	if (!v)
		return chat_bad(c, param, "no call of the assistant before it has the id '%s'",
			json_str_quote(id, json_string_length(asked), quoted));
	if (json_integer_value(v) < 0)
		return chat_bad(c, param, "the call '%.60s' has a result already", id);
	*ret_call = (size_t)json_integer_value(v);
	calls->open--;
	return json_object_set_new(calls->by_id, id, json_integer(-1)) < 0 ? -ENOMEM : 0;
}

/* A block for the user turn at the end, which begins one where there is none to join. */
static void add_block(struct chat *c, struct chat_block block, int task)
{
	struct chat_turn *last = c->turns_len ? &c->turns[c->turns_len - 1] : NULL;

	/* A turn with a task is complete: its token follows it. */
	if (!last || last->role != CHAT_USER_ROLE || last->task >= 0) {
		last = &c->turns[c->turns_len++];
		*last = (struct chat_turn){.role = CHAT_USER_ROLE,
			.message = block.message,
			.blocks_at = c->blocks_len,
			.task = -1};
	}
	last->task = task;
	last->blocks_len++;
	c->blocks[c->blocks_len++] = block;
}

static int collect_one(struct chat *c, struct calls *calls, size_t index)
{
	const json_t *message = json_array_get(c->messages, index);
	struct chat_block block = {.message = index};
	int role = find_role(c, message, index), r, task;

	if (role < 0)
		return role;
	if ((r = find_task(c, message, index, role, &task)) < 0 ||
		(r = check_members(c, message, index, role)) < 0)
		return r;
	if (role == CHAT_TOOL) {
		block.is_result = true;
		r = answer(c, calls, message, index, &block.call);
		if (r < 0)
			return r;
	}
	if (role == CHAT_TOOL || role == CHAT_USER_ROLE) {
		add_block(c, block, task);
		return 0;
	}
	c->turns[c->turns_len++] =
		(struct chat_turn){.role = (enum chat_role)role, .message = index, .task = task};
	if (role != CHAT_ASSISTANT_ROLE)
		return 0;
	r = calls_end(c, calls, index);
	return r < 0 ? r : calls_begin(c, calls, message, index);
}

static int by_call(const void *a, const void *b)
{
	const struct chat_block *x = a, *y = b;

	return x->call < y->call ? -1 : x->call > y->call;
}

/* Results in the order of the calls, in the places where results stood; texts keep theirs. */
static int sort_results(struct chat *c, const struct chat_turn *turn)
{
	struct chat_block *blocks = c->blocks + turn->blocks_at, *results;
	size_t n = 0;

	if (turn->blocks_len < 2)
		return 0;
	results = malloc(turn->blocks_len * sizeof(*results));
	if (!results)
		return -ENOMEM;
	for (size_t i = 0; i < turn->blocks_len; i++)
		if (blocks[i].is_result)
			results[n++] = blocks[i];
	qsort(results, n, sizeof(*results), by_call);
	for (size_t i = turn->blocks_len; i--;)
		if (blocks[i].is_result)
			blocks[i] = results[--n];
	free(results);
	return 0;
}

static bool has_tools(const struct chat *c)
{
	const json_t *message;
	size_t i;

	if (json_array_size(c->tools))
		return true;
	json_array_foreach (c->messages, i, message)
		if (json_array_size(json_object_get(message, "tools")))
			return true;
	return false;
}

static size_t find_last_user(const struct chat *c)
{
	for (size_t i = c->turns_len; i--;)
		if (c->turns[i].role == CHAT_USER_ROLE || c->turns[i].role == CHAT_DEVELOPER)
			return i;
	return SIZE_MAX;
}

/* Tools or a response format of the request stand in a system message, sent or not. */
static void add_system(struct chat *c)
{
	const json_t *message;
	size_t i;

	if (!json_array_size(c->tools) && !c->response_format)
		return;
	json_array_foreach (c->messages, i, message) {
		if (json_str_is(json_object_get(message, "role"), roles[CHAT_SYSTEM]))
			return;
	}
	c->turns[c->turns_len++] =
		(struct chat_turn){.role = CHAT_SYSTEM, .message = SIZE_MAX, .task = -1};
}

static void drop_developers(struct chat *c)
{
	size_t kept = 0;

	for (size_t i = 0; i < c->turns_len; i++)
		if (i >= c->last_user || c->turns[i].role != CHAT_DEVELOPER)
			c->turns[kept++] = c->turns[i];
	c->turns_len = kept;
	c->last_user = find_last_user(c);
}

int chat_collect(struct chat *c)
{
	size_t n = json_array_size(c->messages);
	struct calls calls = {.by_id = json_object()};
	int r = -ENOMEM;

	c->turns = calloc(n + 1, sizeof(*c->turns));
	c->blocks = calloc(n + 1, sizeof(*c->blocks));
	if (!calls.by_id || !c->turns || !c->blocks)
		goto out;
	r = 0;
	add_system(c);
	for (size_t i = 0; i < n && r == 0; i++)
		r = collect_one(c, &calls, i);
	if (r == 0)
		r = calls_end(c, &calls, n);
	for (size_t i = 0; i < c->turns_len && r == 0; i++)
		r = sort_results(c, &c->turns[i]);
	if (r < 0)
		goto out;
	c->last_user = find_last_user(c);
	c->keep_thinking = has_tools(c);
	if (c->opt->thinking && !c->keep_thinking && c->last_user != SIZE_MAX)
		drop_developers(c);
out:
	json_decref(calls.by_id);
	return r;
}
