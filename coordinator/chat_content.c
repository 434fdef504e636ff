/*
 * Bytes into the prompt, with their trust, and what a message's content may be.
 */
#include "coordinator/chat_impl.h"

#include <string.h>

static void put(struct chat *c, const char *text, size_t len, bool trusted)
{
	static const char marks[2][64] = {{0}, {[0 ... 63] = 1}};

	outbuf_add(&c->text, text, len);
	for (size_t n; len; len -= n) {
		n = MIN(len, sizeof(marks[0]));
		outbuf_add(&c->trusted, marks[trusted], n);
	}
}

void chat_put_trusted(struct chat *c, const char *text, size_t len)
{
	put(c, text, len, true);
}

void chat_put_fixed(struct chat *c, const char *text)
{
	put(c, text, strlen(text), true);
}

void chat_put(struct chat *c, enum chat_text text)
{
	c->used |= 1u << text;
	chat_put_fixed(c, chat_texts[text]);
}

void chat_put_untrusted(struct chat *c, const char *text, size_t len)
{
	put(c, text, len, false);
}

static int check_part(struct chat *c, const json_t *part, size_t index, size_t at)
{
	const json_t *type = json_object_get(part, "type");
	char param[64], quoted[JSON_STR_QUOTE_MAX];

	snprintf(param, sizeof(param), "messages[%zu].content[%zu]", index, at);
	if (!json_is_string(type))
		return chat_bad(c, param, "a part must be an object with a type");
	/* A picture turned into "[Unsupported image_url]" would have the model speak of something
	 * it has not seen. */
	if (!json_str_is(type, "text"))
		return chat_bad(c, param, "a part of type '%s' is not supported, only 'text' is",
			json_str_quote(json_string_value(type), json_string_length(type), quoted));
	if (!json_is_string(json_object_get(part, "text")))
		return chat_bad(c, param, "text must be a string");
	return 0;
}

int chat_check_content(struct chat *c, const json_t *message, size_t index)
{
	const json_t *content = json_object_get(message, "content"), *part;
	char param[64];
	size_t i;
	int r;

	if (!content || json_is_null(content) || json_is_string(content))
		return 0;
	snprintf(param, sizeof(param), "messages[%zu].content", index);
	if (!json_is_array(content))
		return chat_bad(c, param, "must be a string, an array of parts, or null");
	json_array_foreach (content, i, part) {
		r = check_part(c, part, index, i);
		if (r < 0)
			return r;
	}
	return 0;
}

void chat_put_content(struct chat *c, const json_t *content)
{
	const json_t *part, *text;
	size_t i;

	if (json_is_string(content))
		chat_put_untrusted(c, json_string_value(content), json_string_length(content));
	if (!json_is_array(content))
		return;
	json_array_foreach (content, i, part) {
		text = json_object_get(part, "text");
		if (i)
			chat_put_fixed(c, "\n\n");
		chat_put_untrusted(c, json_string_value(text), json_string_length(text));
	}
}
