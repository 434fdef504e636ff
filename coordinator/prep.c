#include "coordinator/prep.h"

#include <stdlib.h>
#include <string.h>

#include "coordinator/body.h"
#include "coordinator/json_str.h"
#include "coordinator/one_line.h"

/* A scalar where one is meant, an array's element otherwise. */
static const json_t *prep_stop_at(const struct prep *p, size_t i)
{
	return json_is_array(p->params.stop) ? json_array_get(p->params.stop, i) : p->params.stop;
}

const char *prep_stop_text(const struct prep *p, size_t i, size_t *ret_len)
{
	const json_t *s = prep_stop_at(p, i);

	*ret_len = json_string_length(s);
	return json_string_value(s);
}

static int prep_read_stops(struct prep *p)
{
	size_t n = json_is_array(p->params.stop) ? json_array_size(p->params.stop) : 1, i;
	struct stop_string stops[PREP_STOPS_MAX];
	const json_t *s;

	if (!p->params.stop)
		n = 0;
	if (n > PREP_STOPS_MAX)
		return param_fail(&p->error, "stop", "stop takes up to %d strings, not %zu",
			PREP_STOPS_MAX, n);
	for (i = 0; i < n; i++) {
		s = prep_stop_at(p, i);
		if (!json_is_string(s))
			return param_fail(
				&p->error, "stop", "stop must be a string or an array of strings");
		stops[i].text = json_string_value(s);
		stops[i].len = json_string_length(s);
		if (!stops[i].len)
			return param_fail(&p->error, "stop", "stop must not hold an empty string");
		if (stops[i].len > PREP_STOP_BYTES_MAX)
			return param_fail(&p->error, "stop",
				"a stop string may have %d bytes, not %zu", PREP_STOP_BYTES_MAX,
				stops[i].len);
	}
	return stop_set_new(stops, n, &p->stops);
}

static int prep_read_stop_tokens(struct prep *p)
{
	struct token_ids ids = {0};
	size_t eos_n = p->params.ignore_eos ? 0 : p->in.eos_n;
	int ret;

	if (p->params.stop_token_ids) {
		if (json_array_size(p->params.stop_token_ids) > PREP_STOP_TOKENS_MAX)
			return param_fail(&p->error, "stop_token_ids",
				"stop_token_ids takes up to %d ids", PREP_STOP_TOKENS_MAX);
		ret = prep_read_ids(p, "stop_token_ids", p->params.stop_token_ids, &ids);
		if (ret)
			goto out;
	}
	ret = -ENOMEM;
	p->stop_tokens = calloc(eos_n + ids.len + 1, sizeof(*p->stop_tokens));
	if (!p->stop_tokens)
		goto out;
	if (eos_n)
		memcpy(p->stop_tokens, p->in.eos, eos_n * sizeof(*p->stop_tokens));
	if (ids.len)
		memcpy(p->stop_tokens + eos_n, ids.ids, ids.len * sizeof(*ids.ids));
	p->end_token_n = eos_n;
	p->stop_token_n = eos_n + ids.len;
	ret = 0;
out:
	token_ids_free(&ids);
	return ret;
}

/* A token id written as an object's key: digits alone, in the one way each has. */
static int64_t prep_key_id(const char *key)
{
	int64_t id = 0;

	if (!*key || (key[0] == '0' && key[1]))
		return -1;
	for (; *key; key++) {
		if (*key < '0' || *key > '9' || id > INT32_MAX)
			return -1;
		id = id * 10 + (*key - '0');
	}
	return id;
}

static int prep_read_bias(struct prep *p)
{
	json_t *object = (json_t *)p->params.logit_bias, *v;
	const char *key;
	double bias;
	int64_t id;

	if (!object)
		return 0;
	if (json_object_size(object) > PREP_BIAS_MAX)
		return param_fail(
			&p->error, "logit_bias", "logit_bias takes up to %d tokens", PREP_BIAS_MAX);
	p->bias = calloc(json_object_size(object) + 1, sizeof(*p->bias));
	if (!p->bias)
		return -ENOMEM;
	json_object_foreach (object, key, v) {
		id = prep_key_id(key);
		if (id < 0 || id >= p->in.vocab)
			return param_fail(&p->error, "logit_bias",
				"logit_bias: \"%.20s\" is no token id: a decimal number below %u "
				"without sign or leading zeros",
				key, p->in.vocab);
		bias = json_number_value(v);
		if (!json_is_number(v) || !(bias >= -100 && bias <= 100))
			return param_fail(&p->error, "logit_bias",
				"logit_bias: the bias of token %lld must be a number from -100 to "
				"100",
				(long long)id);
		p->bias[p->bias_n++] = (struct msg_bias){(uint32_t)id, (float)bias};
	}
	return 0;
}

static int prep_check_generate(struct prep *p)
{
	struct params *r = &p->params;

	if (r->given[PARAM_ID_max_completion_tokens]) {
		r->max_tokens = r->max_completion_tokens;
		r->given[PARAM_ID_max_tokens] = true;
	}
	if (r->given[PARAM_ID_max_tokens] && !r->max_tokens && !r->echo)
		return param_fail(&p->error, "max_tokens", "max_tokens must be at least 1%s",
			p->in.scope == S_TEXT ? " (0 needs echo)" : "");
	if (r->given[PARAM_ID_max_tokens] && r->min_tokens > r->max_tokens)
		return param_fail(&p->error, "min_tokens",
			"min_tokens (%lld) must not be above max_tokens (%lld)",
			(long long)r->min_tokens, (long long)r->max_tokens);
	if (r->given[PARAM_ID_top_logprobs] && r->top_logprobs && !r->logprobs)
		return param_fail(
			&p->error, "top_logprobs", "top_logprobs needs \"logprobs\": true");
	if (r->given[PARAM_ID_include_usage] && !r->stream)
		return param_fail(
			&p->error, "stream_options", "stream_options needs \"stream\": true");
	return 0;
}

static int prep_check_chat(struct prep *p)
{
	const json_t *format = p->params.response_format, *type;

	if (!format)
		return 0;
	type = json_object_get(format, "type");
	if (json_str_is(type, "text"))
		return 0;
	return param_fail(&p->error, "response_format",
		"response_format.type must be \"text\": answers cannot be held to a JSON form");
}

/*
 * The switch has three names, which must not contradict one another; it wins over the effort, which
 * wins over the default, off.
 */
static int prep_read_thinking(struct prep *p)
{
	const struct params *r = &p->params;
	const struct {
		enum param_id id;
		bool on;
		const char *name;
	} switches[] = {
		{PARAM_ID_thinking_type, r->thinking_type != 0, "thinking.type"},
		{PARAM_ID_template_thinking, r->template_thinking, "chat_template_kwargs.thinking"},
		{PARAM_ID_template_enable_thinking, r->template_enable_thinking,
			"chat_template_kwargs.enable_thinking"},
	};
	const char *decided = NULL;
	size_t i;

	p->thinking = r->reasoning_effort != PARAM_EFFORT_NONE;
	for (i = 0; i < ARRAY_LEN(switches); i++) {
		if (!r->given[switches[i].id])
			continue;
		if (decided && switches[i].on != p->thinking)
			return param_fail(&p->error, switches[i].name,
				"%s turns thinking %s, but %s turns it %s", switches[i].name,
				switches[i].on ? "on" : "off", decided, p->thinking ? "on" : "off");
		decided = switches[i].name;
		p->thinking = switches[i].on;
	}
	return 0;
}

static int prep_parse(struct prep *p)
{
	struct params *r = &p->params;
	int ret;

	ret = body_parse(p->in.body, p->in.body_len, &p->root, &p->error.err);
	if (ret)
		return ret;
	ret = param_read(p->root, p->in.scope, p->in.strict, r, &p->unknown, &p->error);
	if (ret)
		return ret;
	ret = prep_read_thinking(p);
	if (!ret && (p->in.scope & (S_CHAT | S_TOKENIZE)))
		ret = prep_check_tools(p);
	if (ret)
		return ret;
	if (p->in.scope & (S_CHAT | S_TEXT)) {
		ret = prep_check_generate(p);
		if (!ret && p->in.scope == S_CHAT)
			ret = prep_check_chat(p);
		if (!ret)
			ret = prep_read_stops(p);
		if (!ret)
			ret = prep_read_stop_tokens(p);
		if (!ret)
			ret = prep_read_bias(p);
		if (ret)
			return ret;
	}
	ret = prep_read_prompts(p);
	if (ret)
		return ret;
	if (p->prompt_n * (size_t)r->n > PREP_CHOICES_MAX)
		return param_fail(&p->error, "n",
			"%zu prompts with n = %lld make more than %d answers", p->prompt_n,
			(long long)r->n, PREP_CHOICES_MAX);
	return 0;
}

void prep_run(struct prep *p)
{
	static const char *const large[] = {"messages", "prompt", "tools", "tokens"};
	struct params *r = &p->params;
	int ret = prep_parse(p);
	size_t i;

	if (!ret && !outbuf_ok(&p->unknown))
		ret = -ENOMEM;
	/* freeing a large tree takes as long as making it: not on the loop's thread */
	if (p->root)
		for (i = 0; i < ARRAY_LEN(large); i++)
			json_object_del(p->root, large[i]);
	r->messages = r->prompt = r->tools = r->tokens = NULL;
	one_line(p->error.err.text); /* which may quote the request */
	if (ret == -EINVAL) {
		p->status = 400;
	} else if (ret) {
		p->status = 500;
		(void)param_fail(
			&p->error, "", "%s", ret == -ENOMEM ? "out of memory" : strerror(-ret));
	}
}

void prep_fini(struct prep *p)
{
	size_t i;

	for (i = 0; i < p->prompt_n; i++)
		token_ids_free(&p->prompts[i].ids);
	free(p->prompts);
	json_decref(p->root);
	stop_set_free(p->stops);
	free(p->stop_tokens);
	free(p->bias);
	free(p->begun);
	outbuf_fini(&p->unknown);
	*p = (struct prep){0};
}
