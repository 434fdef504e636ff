/*
 * Tools, response format and calls: the parts of a prompt that are JSON or made from it.
 */
#include "config.h"

#include "coordinator/chat_impl.h"

#include <stdlib.h>
#include <string.h>

struct json_slice chat_raw_member(struct json_slice obj, const char *key)
{
	struct json_slice v;

	return obj.p && json_slice_member(obj, key, &v) == 0 ? v : (struct json_slice){0};
}

static int check_tool(struct chat *c, const json_t *tool, const char *param)
{
	const json_t *type = json_object_get(tool, "type");
	const json_t *function = json_object_get(tool, "function");
	const json_t *name = json_object_get(function, "name");

	if (!json_is_object(tool))
		return chat_bad(c, param, "must be an object");
	if (type && !json_str_is(type, "function"))
		return chat_bad(c, param, "type must be 'function'");
	if (!json_is_object(function))
		return chat_bad(c, param, "function must be an object");
	if (!json_is_string(name) || !json_string_length(name))
		return chat_bad(c, param, "function.name must be a string that is not empty");
	return 0;
}

int chat_check_tools(struct chat *c, const json_t *tools, const char *param)
{
	const json_t *tool;
	char at[64];
	size_t i;
	int r;

	if (!json_is_array(tools))
		return chat_bad(c, param, "must be an array");
	json_array_foreach (tools, i, tool) {
		snprintf(at, sizeof(at), "%.32s[%zu]", param, i);
		r = check_tool(c, tool, at);
		if (r < 0)
			return r;
	}
	return 0;
}

/*
 * Into c->scratch, which is emptied: the value in Python's form, from where it stands in the
 * request, or else from what the parser kept of it.
 */
static int print_value(struct chat *c, const json_t *v, struct json_slice raw, const char *param)
{
	const char *why = "";
	char *text = NULL;
	int r;

	outbuf_clear(&c->scratch);
	if (!raw.p) {
		text = json_dumps(v, JSON_ENCODE_ANY);
		if (!text)
			return -ENOMEM;
		raw = (struct json_slice){text, strlen(text)};
	}
	r = json_print_python(raw, &c->scratch, &why);
	free(text);
	if (r == -EINVAL)
		return chat_bad(c, param, "holds %s", why);
	return r;
}

static int put_value(struct chat *c, const json_t *v, struct json_slice raw, const char *param)
{
	int r = print_value(c, v, raw, param);

	if (r == 0)
		chat_put_untrusted(c, c->scratch.data, c->scratch.len);
	return r;
}

/* The template up to its place to fill, or from it on. */
static void put_around(struct chat *c, enum chat_text text, const char *place, bool before)
{
	const char *at = strstr(chat_texts[text], place);
	size_t from = before ? 0 : (size_t)(at - chat_texts[text]) + strlen(place);
	size_t len = before ? (size_t)(at - chat_texts[text]) : strlen(at + strlen(place));

	chat_put_trusted(c, chat_texts[text] + from, len);
}

int chat_put_tools(struct chat *c, const json_t *tools, struct json_slice raw, const char *param)
{
	struct json_slice tool = {0};
	const json_t *v;
	size_t i, at = 0;
	char where[64];
	int r;

	if (!json_array_size(tools))
		return 0;
	chat_put_fixed(c, "\n\n");
	put_around(c, CHAT_TOOLS_BLOCK, "{tool_schemas}", true);
	json_array_foreach (tools, i, v) {
		if (raw.p && json_slice_item(raw, &at, &tool) != 1)
			raw = tool = (struct json_slice){0};
		snprintf(where, sizeof(where), "%.32s[%zu].function", param, i);
		if (i)
			chat_put_fixed(c, "\n");
		r = put_value(c, json_object_get(v, "function"), chat_raw_member(tool, "function"),
			where);
		if (r < 0)
			return r;
	}
	put_around(c, CHAT_TOOLS_BLOCK, "{tool_schemas}", false);
	return 0;
}

int chat_put_format(struct chat *c, const json_t *format, struct json_slice raw, const char *param)
{
	const json_t *type = json_object_get(format, "type");
	const json_t *schema = json_object_get(json_object_get(format, "json_schema"), "schema");
	int r;

	if (!json_object_size(format) || json_str_is(type, "text"))
		return 0;
	/* OpenAI wraps a schema up with its name; the model is shown the schema. */
	if (json_str_is(type, "json_schema") && json_is_object(schema)) {
		format = schema;
		raw = chat_raw_member(chat_raw_member(raw, "json_schema"), "schema");
	}
	chat_put_fixed(c, "\n\n");
	put_around(c, CHAT_FORMAT_BLOCK, "{schema}", true);
	r = put_value(c, format, raw, param);
	put_around(c, CHAT_FORMAT_BLOCK, "{schema}", false);
	return r;
}

bool chat_name_fits(const char *name, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (name[i] == '"' || (unsigned char)name[i] < 0x20)
			return false;
	return true;
}

static int check_name(struct chat *c, const char *name, size_t len, const char *param)
{
	char quoted[JSON_STR_QUOTE_MAX];

	if (chat_name_fits(name, len))
		return 0;
	return chat_bad(c, param,
		"the name '%s' holds a quote or a control character, which the model's call format "
		"cannot carry",
		json_str_quote(name, len, quoted));
}

static void put_dsml(struct chat *c, const char *head, const char *tail)
{
	chat_put_fixed(c, head);
	chat_put(c, CHAT_DSML);
	chat_put_fixed(c, tail);
}

static int put_parameter(
	struct chat *c, struct json_slice key, struct json_slice value, const char *param)
{
	static const char end[] = "parameter>";
	bool is_text = json_slice_kind(value) == '"';
	size_t dsml = strlen(chat_texts[CHAT_DSML]);
	char closing[64];
	int r;

	outbuf_clear(&c->scratch);
	r = json_print_decoded(key, &c->scratch);
	if (r < 0)
		return r;
	r = check_name(c, c->scratch.data, c->scratch.len, param);
	if (r < 0)
		return r;
	put_dsml(c, "<", "parameter name=\"");
	chat_put_untrusted(c, c->scratch.data, c->scratch.len);
	chat_put_fixed(c, is_text ? "\" string=\"true\">" : "\" string=\"false\">");
	outbuf_clear(&c->scratch);
	r = is_text ? json_print_decoded(value, &c->scratch)
		    : json_print_python(value, &c->scratch, NULL);
	if (r < 0)
		return r;
	snprintf(closing, sizeof(closing), "</%.*sparameter", (int)dsml, chat_texts[CHAT_DSML]);
	if (c->scratch.len && memmem(c->scratch.data, c->scratch.len, closing, strlen(closing)))
		return chat_bad(c, param,
			"a value holds '%s', with which the model's call format ends a value and "
			"which it cannot carry",
			closing);
	chat_put_untrusted(c, c->scratch.data, c->scratch.len);
	put_dsml(c, "</", end);
	return 0;
}

static bool is_blank(const json_t *v)
{
	const char *s = json_string_value(v);

	return s && strspn(s, " \t\r\n") == json_string_length(v);
}

/*
 * The text of the arguments, an object: as a string that holds it, or as the object itself (its
 * bytes in the request, or printed into *ret_own). An empty slice: no arguments.
 */
static int find_arguments(struct chat *c, const json_t *v, struct json_slice raw, const char *param,
	struct json_slice *ret, char **ret_own)
{
	*ret = (struct json_slice){0};
	*ret_own = NULL;
	if (!v || json_is_null(v) || is_blank(v))
		return 0;
	if (json_is_string(v)) {
		*ret = (struct json_slice){json_string_value(v), json_string_length(v)};
	} else if (raw.p) {
		*ret = raw;
	} else {
		*ret_own = json_dumps(v, JSON_ENCODE_ANY);
		if (!*ret_own)
			return -ENOMEM;
		*ret = (struct json_slice){*ret_own, strlen(*ret_own)};
	}
	if (json_slice_kind(*ret) != '{')
		return chat_bad(c, param, "must be a JSON object, or a string that holds one");
	return 0;
}

static int put_arguments(struct chat *c, struct json_slice args, const char *param)
{
	struct json_slice key, value;
	const char *why = "";
	size_t at = 0;
	int r;

	if (!args.p)
		return 0;
	/* Once through all of it: whatever is broken or doubled is found here. */
	outbuf_clear(&c->scratch);
	r = json_print_python(args, &c->scratch, &why);
	if (r == -EINVAL)
		return chat_bad(c, param, "must be a JSON object; it holds %s", why);
	for (size_t n = 0; r == 0; n++) {
		r = json_slice_pair(args, &at, &key, &value);
		if (r <= 0)
			break;
		if (n)
			chat_put_fixed(c, "\n");
		r = put_parameter(c, key, value, param);
	}
	return r;
}

static int put_call(struct chat *c, const json_t *call, struct json_slice raw, const char *param)
{
	const json_t *type = json_object_get(call, "type");
	const json_t *function = json_object_get(call, "function");
	const json_t *name = json_object_get(function, "name");
	struct json_slice args;
	char at[64], *own;
	int r;

	if (!json_is_object(function) || !json_is_string(name) || !json_string_length(name))
		return chat_bad(c, param, "must be an object with a function, which has a name");
	if (type && !json_str_is(type, "function"))
		return chat_bad(c, param, "type must be 'function'");
	r = check_name(c, json_string_value(name), json_string_length(name), param);
	if (r < 0)
		return r;
	snprintf(at, sizeof(at), "%.40s.function.arguments", param);
	raw = chat_raw_member(chat_raw_member(raw, "function"), "arguments");
	r = find_arguments(c, json_object_get(function, "arguments"), raw, at, &args, &own);
	if (r == 0) {
		put_dsml(c, "<", "invoke name=\"");
		chat_put_untrusted(c, json_string_value(name), json_string_length(name));
		chat_put_fixed(c, "\">\n");
		r = put_arguments(c, args, at);
		chat_put_fixed(c, "\n");
		put_dsml(c, "</", "invoke>");
	}
	free(own);
	return r;
}

/*
 * An answer that has to be a call begins as the model would begin it, up to where its own choice
 * begins: the name, or the first parameter. Both are places where a word of the tokenizer ends.
 */
void chat_put_forced(struct chat *c, const char *name)
{
	put_dsml(c, "\n\n<", "tool_calls>\n");
	put_dsml(c, "<", "invoke name=\"");
	if (name) {
		chat_put_untrusted(c, name, strlen(name));
		chat_put_fixed(c, "\">\n");
	}
}

int chat_put_calls(struct chat *c, const json_t *calls, size_t message)
{
	struct json_slice raw = {0}, call = {0};
	const json_t *v;
	size_t i, at = 0;
	char param[64];
	int r;

	if (!json_array_size(calls))
		return 0;
	if (c->raw_messages)
		raw = chat_raw_member(c->raw_messages[message], "tool_calls");
	put_dsml(c, "\n\n<", "tool_calls>\n");
	json_array_foreach (calls, i, v) {
		if (raw.p && json_slice_item(raw, &at, &call) != 1)
			raw = call = (struct json_slice){0};
		snprintf(param, sizeof(param), "messages[%zu].tool_calls[%zu]", message, i);
		r = put_call(c, v, call, param);
		if (r < 0)
			return r;
		chat_put_fixed(c, "\n");
	}
	put_dsml(c, "</", "tool_calls>");
	return 0;
}
