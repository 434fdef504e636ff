/* tool_choice: which tools the model sees, and whether it has to call one. */
#include "coordinator/chat.h"
#include "coordinator/json_str.h"
#include "coordinator/prep.h"

static bool prep_same(const json_t *a, const json_t *b)
{
	return json_is_string(a) && json_is_string(b) && json_equal((json_t *)a, (json_t *)b);
}

/* Has one of these tools this name? Their form is checked with the prompt. */
static bool prep_has_tool(const json_t *tools, const json_t *name)
{
	const json_t *tool;
	size_t i;

	json_array_foreach (tools, i, tool)
		if (prep_same(json_object_get(json_object_get(tool, "function"), "name"), name))
			return true;
	return false;
}

/* Tools of the request, or those that DeepSeek's format has in system and developer messages. */
static bool prep_any_tools(const struct params *r, const json_t *name)
{
	const json_t *message, *tools;
	size_t i;

	if (json_array_size(r->tools) && (!name || prep_has_tool(r->tools, name)))
		return true;
	json_array_foreach (r->messages, i, message) {
		tools = json_object_get(message, "tools");
		if (json_array_size(tools) && (!name || prep_has_tool(tools, name)))
			return true;
	}
	return false;
}

/* The name of {"type": "function", "function": {"name": ...}}, or NULL. */
static const json_t *prep_named(const json_t *choice)
{
	const json_t *name = json_object_get(json_object_get(choice, "function"), "name");

	return json_str_is(json_object_get(choice, "type"), "function") && json_string_length(name)
		       ? name
		       : NULL;
}

static int prep_check_named(struct prep *p)
{
	const json_t *choice = p->params.tool_choice, *name = prep_named(choice);
	const char *text = json_string_value(name);
	size_t len = json_string_length(name);
	char quoted[JSON_STR_QUOTE_MAX];

	if (!name)
		return param_fail(&p->error, "tool_choice",
			"tool_choice must be auto, none, required, or {\"type\": \"function\", "
			"\"function\": {\"name\": ...}}");
	if (!prep_any_tools(&p->params, name))
		return param_fail(&p->error, "tool_choice",
			"tool_choice names the function \"%s\", which is not among the tools",
			json_str_quote(text, len, quoted));
	if (!chat_name_fits(text, len))
		return param_fail(&p->error, "tool_choice",
			"the name in tool_choice holds a quote or a control character, "
			"which the model's call format cannot carry");
	return 0;
}

int prep_check_tools(struct prep *p)
{
	struct params *r = &p->params;
	const json_t *choice = r->tool_choice;

	p->calls = prep_any_tools(r, NULL);
	if (!choice || json_str_is(choice, "auto"))
		return 0;
	if (json_str_is(choice, "none")) {
		r->tools = NULL;
		p->calls = false;
		return 0;
	}
	if (!p->calls)
		return param_fail(&p->error, "tool_choice",
			"tool_choice asks for a call, but there "
			"are no tools");
	if (!json_str_is(choice, "required") && prep_check_named(p))
		return -EINVAL;
	/* the answer begins with the call, so there is no place to think before it */
	if (p->thinking)
		p->note = "thinking is off: tool_choice asks for a call at once";
	p->thinking = false;
	p->forced = true;
	return 0;
}
