/* Prompts: rendered from messages, tokenised from text, or taken as token ids. */
#include <stdlib.h>
#include <string.h>

#include "coordinator/chat.h"
#include "coordinator/json_str.h"
#include "coordinator/prep.h"

int prep_read_ids(struct prep *p, const char *name, const json_t *list, struct token_ids *ret_ids)
{
	size_t n = json_array_size(list), i;
	const json_t *v;
	json_int_t id;

	ret_ids->ids = malloc((n + 1) * sizeof(*ret_ids->ids));
	if (!ret_ids->ids)
		return -ENOMEM;
	ret_ids->cap = n + 1;
	for (i = 0; i < n; i++) {
		v = json_array_get(list, i);
		if (!json_is_integer(v))
			return param_fail(&p->error, name, "%s[%zu] must be a token id", name, i);
		id = json_integer_value(v);
		if (id < 0 || id >= p->in.vocab)
			return param_fail(&p->error, name,
				"%s[%zu] is %lld, which is no token id below %u", name, i,
				(long long)id, p->in.vocab);
		ret_ids->ids[i] = (uint32_t)id;
	}
	ret_ids->len = n;
	return 0;
}

static int prep_alloc(struct prep *p, size_t n)
{
	p->prompts = calloc(n, sizeof(*p->prompts));
	if (!p->prompts)
		return -ENOMEM;
	p->prompt_n = n;
	return 0;
}

static int prep_encode(struct prep *p, const char *text, size_t len, const uint8_t *trusted,
	bool special, struct token_ids *ret_ids)
{
	uint64_t most = p->in.context * p->in.token_bytes;
	int ret;

	/*
	 * As good as nothing has so many bytes a token; splitting it would take long to find out.
	 * To count goes as far: past the context by as much as text has less.
	 */
	if (p->in.context && len > most) {
		p->code = "context_length_exceeded";
		return param_fail(&p->error, p->params.messages ? "messages" : "prompt",
			"this model's maximum context length is %llu tokens, but the prompt has "
			"%zu bytes: more than %u for each of them",
			(unsigned long long)p->in.context, len, p->in.token_bytes);
	}
	ret = tokenizer_encode(p->in.tok, p->in.scratch, text, len, trusted, special, ret_ids);

	if (ret == -EILSEQ)
		return param_fail(&p->error, "prompt", "the prompt is not valid UTF-8");
	if (ret == -EFBIG)
		return param_fail(&p->error, "prompt", "the prompt is longer than 2 GiB");
	if (ret == -E2BIG)
		return param_fail(&p->error, "prompt",
			"a part of the prompt is too involved to be split into tokens");
	return ret;
}

/* Did the tokenizer put a BOS first that the text itself does not begin with? */
static void prep_note_bos(
	const struct prep *p, struct prep_prompt *prompt, const char *text, size_t len)
{
	int64_t bos = tokenizer_bos(p->in.tok);
	const char *bytes;
	size_t n;

	if (bos < 0 || !prompt->ids.len || prompt->ids.ids[0] != (uint32_t)bos)
		return;
	bytes = tokenizer_token_bytes(p->in.tok, (uint32_t)bos, &n);
	if (!p->params.parse_special || !bytes || n > len || memcmp(text, bytes, n))
		prompt->bos_added = true;
}

static int prep_text(struct prep *p, const json_t *text, struct prep_prompt *prompt)
{
	size_t len = json_string_length(text);
	const char *s = json_string_value(text);
	uint8_t *trusted = NULL;
	int ret;

	if (!p->params.parse_special) {
		trusted = calloc(len + 1, 1);
		if (!trusted)
			return -ENOMEM;
	}
	ret = prep_encode(p, s, len, trusted, p->params.add_special_tokens, &prompt->ids);
	free(trusted);
	if (!ret)
		prep_note_bos(p, prompt, s, len);
	return ret;
}

static int prep_chat(struct prep *p)
{
	const struct params *r = &p->params;
	struct chat_options opt = {
		.thinking = p->thinking,
		.effort = !p->thinking                              ? CHAT_EFFORT_NONE
			  : r->reasoning_effort == PARAM_EFFORT_MAX ? CHAT_EFFORT_MAX
								    : CHAT_EFFORT_NORMAL,
		.add_generation_prompt = p->in.scope == S_CHAT || r->add_generation_prompt,
		.force_call = p->forced,
		.force_name = json_string_value(
			json_object_get(json_object_get(r->tool_choice, "function"), "name")),
		.raw_body = p->in.body,
		.raw_len = p->in.body_len,
	};
	struct chat_prompt prompt = {0};
	char name[64] = "messages";
	const char *lacks;
	int ret;

	ret = chat_render(r->messages, r->tools, NULL, &opt, &prompt, name, &p->error.err);
	if (ret == -EINVAL)
		snprintf(p->error.name, sizeof(p->error.name), "%s", name);
	if (ret)
		return ret;
	lacks = chat_lacks(p->in.tok, &prompt);
	ret = lacks ? param_fail(&p->error, "messages",
			      "messages: this model's tokenizer has no token '%s'", lacks)
		    : prep_alloc(p, 1);
	if (!ret)
		ret = prep_encode(
			p, prompt.text, prompt.len, prompt.trusted, false, &p->prompts[0].ids);
	if (!ret && p->forced) {
		p->begun = strdup(prompt.text + prompt.begun);
		ret = p->begun ? 0 : -ENOMEM;
	}
	chat_prompt_free(&prompt);
	return ret;
}

static int prep_prompt_list(struct prep *p, const json_t *list)
{
	size_t n = json_array_size(list), i;
	char name[PARAM_NAME_MAX / 2];
	const json_t *one;
	int ret;

	if (n > PREP_PROMPTS_MAX)
		return param_fail(&p->error, "prompt", "prompt holds %zu prompts; %d are the limit",
			n, PREP_PROMPTS_MAX);
	ret = prep_alloc(p, n);
	for (i = 0; !ret && i < n; i++) {
		one = json_array_get(list, i);
		snprintf(name, sizeof(name), "prompt[%zu]", i);
		if (json_typeof(one) != json_typeof(json_array_get(list, 0)))
			ret = param_fail(&p->error, "prompt",
				"prompt[%zu] is of another type than prompt[0]", i);
		else if (json_is_string(one))
			ret = prep_text(p, one, &p->prompts[i]);
		else
			ret = prep_read_ids(p, name, one, &p->prompts[i].ids);
	}
	return ret;
}

static int prep_prompt(struct prep *p)
{
	const json_t *prompt = p->params.prompt, *first;
	int ret;

	if (json_is_string(prompt)) {
		ret = prep_alloc(p, 1);
		return ret ? ret : prep_text(p, prompt, &p->prompts[0]);
	}
	if (p->in.scope == S_TOKENIZE)
		return param_fail(&p->error, "prompt", "prompt must be a string");
	if (!json_array_size(prompt))
		return param_fail(&p->error, "prompt", "prompt is empty");
	first = json_array_get(prompt, 0);
	if (json_is_integer(first)) {
		ret = prep_alloc(p, 1);
		return ret ? ret : prep_read_ids(p, "prompt", prompt, &p->prompts[0].ids);
	}
	if (json_is_string(first) || json_is_array(first))
		return prep_prompt_list(p, prompt);
	return param_fail(&p->error, "prompt",
		"prompt must be a string, a list of strings, token ids, or a list of lists of "
		"them");
}

/* A turn of the assistant at the end leaves the model nothing to answer. */
static int prep_check_last(struct prep *p)
{
	size_t n = json_array_size(p->params.messages);
	const json_t *role = json_object_get(json_array_get(p->params.messages, n - 1), "role");

	if (json_str_is(role, "assistant"))
		return param_fail(&p->error, "messages",
			"the last message is the assistant's: there is nothing to answer");
	return 0;
}

int prep_read_prompts(struct prep *p)
{
	const struct params *r = &p->params;
	size_t i;
	int ret;

	if (p->in.scope == S_DETOKENIZE) {
		if (!r->tokens)
			return param_fail(&p->error, "tokens", "tokens is missing");
		ret = prep_alloc(p, 1);
		return ret ? ret : prep_read_ids(p, "tokens", r->tokens, &p->prompts[0].ids);
	}
	if (r->messages && r->prompt)
		return param_fail(&p->error, "prompt", "give messages or prompt, not both");
	if (!r->messages && !r->prompt)
		return p->in.scope == S_CHAT
			       ? param_fail(&p->error, "messages", "messages is missing")
			       : param_fail(&p->error, "prompt", "prompt is missing");
	if (r->messages && !json_array_size(r->messages))
		return param_fail(&p->error, "messages", "messages is empty");
	if (p->in.scope == S_CHAT) {
		ret = prep_check_last(p);
		if (ret)
			return ret;
	}
	ret = r->messages ? prep_chat(p) : prep_prompt(p);
	if (ret || p->in.scope == S_TOKENIZE)
		return ret;
	for (i = 0; i < p->prompt_n; i++)
		if (!p->prompts[i].ids.len)
			return param_fail(&p->error, "prompt",
				"prompt %zu of %zu is empty: there must be a token to go on from",
				i + 1, p->prompt_n);
	return 0;
}
