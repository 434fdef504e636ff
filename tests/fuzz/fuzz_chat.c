/*
 * A chat request as the input, after one byte of options. What is accepted must give a prompt of
 * valid UTF-8 whose trusted bytes are the format's own.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/chat.h"
#include "coordinator/token_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct chat_prompt *p)
{
	if (strlen(p->text) > p->len || p->text[p->len])
		abort();
	if (!token_utf8_valid(p->text, p->len) || !p->len || !p->trusted[0])
		abort();
	for (size_t i = 0; i < p->len; i++)
		if (p->trusted[i] > 1)
			abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct chat_options opt = {.add_generation_prompt = true};
	struct chat_prompt p = {0};
	struct errbuf err = {0};
	char param[64] = "";
	json_t *body;
	int r;

	if (!size)
		return 0;
	opt.thinking = data[0] != 'p';
	opt.effort = data[0] == 'm' ? CHAT_EFFORT_MAX : CHAT_EFFORT_NORMAL;
	body = json_loadb((const char *)data + 1, size - 1, JSON_ALLOW_NUL, NULL);
	if (!body)
		return 0;
	for (int raw = 0; raw < 2; raw++) {
		opt.raw_body = raw ? (const char *)data + 1 : NULL;
		opt.raw_len = raw ? size - 1 : 0;
		r = chat_render(json_object_get(body, "messages"), json_object_get(body, "tools"),
			json_object_get(body, "response_format"), &opt, &p, param, &err);
		if (r == 0)
			check(&p);
		else if (r != -EINVAL || !err.text[0] || !param[0] || strchr(err.text, '\n') ||
			 !token_utf8_valid(err.text, strlen(err.text)))
			abort();
		if (r == 0)
			chat_prompt_free(&p);
	}
	json_decref(body);
	return 0;
}
