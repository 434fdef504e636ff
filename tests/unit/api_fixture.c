#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "shm/log.h"
#include "tests/unit/api_fixture.h"

static void find_bytes(struct fix *f)
{
	uint32_t id, n = tokenizer_vocab(f->api->tok);
	const char *bytes;
	size_t len;

	for (id = 0; id < n; id++) {
		bytes = tokenizer_token_bytes(f->api->tok, id, &len);
		if (bytes && len == 1 && !tokenizer_is_added(f->api->tok, id))
			f->byte_token[(uint8_t)bytes[0]] = id;
	}
	for (id = 0; id < 256; id++)
		assert_true(f->byte_token[id] != 0);
}

int fix_setup(void **state)
{
	const char *dir = getenv("HEDDLE_SRCDIR");
	struct fix *f = calloc(1, sizeof(*f));
	char assignment[2048];
	struct errbuf err = {0};

	snprintf(assignment, sizeof(assignment), "model.path=%s/models/heddle-mini",
		dir ? dir : ".");
	assert_int_equal(conf_init(&f->set), 0);
	assert_int_equal(conf_override(&f->set, assignment, &err), 0);
	log_set_level(CONF_LEVEL_ERROR);
	f->loop = fake_loop_new();
	f->engine = fake_engine_new(4096, 4096);
	if (api_new(f->loop, &f->set, f->engine, &f->api, &err))
		fail_msg("%s", err.text);
	f->engine->limits.vocab = tokenizer_vocab(f->api->tok);
	find_bytes(f);
	*state = f;
	return 0;
}

int fix_teardown(void **state)
{
	struct fix *f = *state;

	assert_int_equal(api_running(f->api), 0);
	api_free(f->api);
	fake_engine_free(f->engine);
	fake_loop_free(f->loop);
	conf_fini(&f->set);
	free(f);
	return 0;
}

struct http_exchange *fix_send(
	struct fix *f, const char *method, const char *path, const char *body)
{
	struct http_exchange *x = fake_exchange_new(method, path,
		strcmp(method, "POST") ? NULL : "application/json", body, body ? strlen(body) : 0);

	api_on_request(f->api, x);
	return x;
}

uint32_t *fix_bytes(const struct fix *f, const char *text, size_t len)
{
	uint32_t *ids = malloc((len + 1) * sizeof(*ids));
	size_t i;

	for (i = 0; i < len; i++)
		ids[i] = f->byte_token[(uint8_t)text[i]];
	return ids;
}

uint32_t *fix_tokens(const struct fix *f, const char *text, size_t *ret_n)
{
	static const char *const markers[] = {"</think>", DSML};
	uint32_t *ids = malloc((strlen(text) + 1) * sizeof(*ids));
	size_t i, len;

	for (*ret_n = 0; *text; text += len) {
		ids[*ret_n] = f->byte_token[(uint8_t)*text];
		len = 1;
		for (i = 0; i < ARRAY_LEN(markers); i++) {
			if (strncmp(text, markers[i], strlen(markers[i])))
				continue;
			ids[*ret_n] = (uint32_t)tokenizer_find(f->api->tok, markers[i]);
			len = strlen(markers[i]);
		}
		++*ret_n;
	}
	return ids;
}

bool fix_say(struct fix *f, struct engine_seq *s, const char *text, size_t batch)
{
	uint32_t *ids = fix_bytes(f, text, strlen(text));
	bool live = fake_engine_make(s, ids, strlen(text), batch);

	free(ids);
	return live;
}

void fix_eos(struct engine_seq *s)
{
	const uint32_t eos = EOS;

	assert_false(fake_engine_make(s, &eos, 1, 1));
}

void fix_check_error(struct http_exchange *x, int status, const char *param, const char *says)
{
	json_t *v = fake_exchange_json(x), *e = json_object_get(v, "error");
	const char *message = json_string_value(json_object_get(e, "message"));
	const char *blamed = json_string_value(json_object_get(e, "param"));

	if (x->status != status || !message || !strstr(message, says))
		fail_msg("%d \"%s\" is not %d \"%s\"", x->status, message, status, says);
	if (param ? !blamed || strcmp(blamed, param) : blamed != NULL)
		fail_msg("\"%s\" blames %s, not %s", message, blamed, param);
	assert_non_null(json_string_value(json_object_get(e, "type")));
	json_decref(v);
	fake_exchange_free(x);
}

void fix_refused(struct fix *f, const char *path, const char *body, int status, const char *param,
	const char *says)
{
	size_t before = f->engine->submitted;
	struct http_exchange *x = fix_post(f, path, body);

	if (x->end == FAKE_OPEN)
		fail_msg("%s was accepted", body);
	fix_check_error(x, status, param, says);
	assert_int_equal(f->engine->submitted, before);
}

json_int_t json_at(const json_t *v, const char *path)
{
	char name[64];
	size_t len;

	while (*path) {
		len = strcspn(path, ".");
		snprintf(name, sizeof(name), "%.*s", (int)len, path);
		v = json_is_array(v) ? json_array_get(v, (size_t)atoi(name))
				     : json_object_get(v, name);
		path += len + (path[len] == '.');
	}
	if (!json_is_integer(v))
		fail_msg("no integer at the path");
	return json_integer_value(v);
}

/* Hearing ------------------------------------------------------------------------------------ */

static void add_text(char *to, size_t *len, const json_t *text)
{
	size_t n = json_string_length(text);

	if (!n)
		return;
	assert_true(*len + n < 8192);
	assert_true(utf8_valid(json_string_value(text), n));
	memcpy(to + *len, json_string_value(text), n);
	*len += n;
	to[*len] = '\0';
}

static void extend(json_t **list, json_t *more)
{
	if (!json_is_array(more))
		return;
	if (!*list)
		*list = json_array();
	assert_int_equal(json_array_extend(*list, more), 0);
}

/* Both forms of logprobs end as what the whole answer holds. */
static void add_logprobs(struct said *s, const json_t *lp)
{
	static const char *const names[] = {
		"tokens", "token_logprobs", "top_logprobs", "text_offset"};
	json_t *list;
	size_t i;

	if (!json_is_object(lp))
		return;
	if (json_object_get(lp, "content")) {
		extend(&s->entries, json_object_get(lp, "content"));
		return;
	}
	if (!s->entries)
		s->entries = json_object();
	for (i = 0; i < ARRAY_LEN(names); i++) {
		list = json_object_get(s->entries, names[i]);
		if (!list) {
			list = json_array();
			json_object_set_new(s->entries, names[i], list);
		}
		assert_int_equal(json_array_extend(list, json_object_get(lp, names[i])), 0);
	}
}

/* A call whole, or the next piece of one: only its first has id, type and name. */
static void hear_call(struct said *s, const json_t *v, size_t index, bool delta)
{
	const json_t *function = json_object_get(v, "function");
	const json_t *args = json_object_get(function, "arguments");
	struct said_call *call = &s->calls[index];

	assert_true(index <= s->call_n && index < 8);
	assert_true(json_is_string(args));
	if (index == s->call_n) {
		s->call_n++;
		assert_string_equal(json_string_value(json_object_get(v, "type")), "function");
		snprintf(call->id, sizeof(call->id), "%s",
			json_string_value(json_object_get(v, "id")));
		snprintf(call->name, sizeof(call->name), "%s",
			json_string_value(json_object_get(function, "name")));
		assert_int_equal(strncmp(call->id, "call_", 5), 0);
	} else {
		assert_int_equal(index, s->call_n - 1); /* no call goes on once the next began */
		assert_null(json_object_get(v, "id"));
		assert_null(json_object_get(function, "name"));
	}
	if (delta && call->deltas++)
		assert_true(json_string_length(args) > 0);
	assert_true(call->args_len + json_string_length(args) < sizeof(call->args));
	memcpy(call->args + call->args_len, json_string_value(args), json_string_length(args) + 1);
	call->args_len += json_string_length(args);
}

static void hear_calls(struct said *s, const json_t *list, bool delta)
{
	json_t *v;
	size_t i;

	if (!list)
		return;
	assert_true(json_array_size(list) > 0);
	if (!s->calls)
		s->calls = calloc(8, sizeof(*s->calls));
	json_array_foreach (list, i, v) {
		assert_true(delta == (json_object_get(v, "index") != NULL));
		hear_call(s, v, delta ? (size_t)json_at(v, "index") : i, delta);
	}
}

static void hear_choice(struct heard *h, const json_t *c, const char *where)
{
	size_t index = (size_t)json_at(c, "index");
	const json_t *text = where ? json_object_get(c, where) : c;
	struct said *s = &h->said[index];
	const char *finish = json_string_value(json_object_get(c, "finish_reason"));

	assert_true(index < ARRAY_LEN(h->said));
	assert_int_equal(*s->finish, 0); /* nothing follows a choice's end */
	h->choice_n = MAX(h->choice_n, index + 1);
	if (json_string_length(json_object_get(text, where ? "content" : "text")) ||
		json_string_length(json_object_get(text, "reasoning_content")))
		s->events++;
	add_text(s->content, &s->content_len, json_object_get(text, where ? "content" : "text"));
	add_text(s->thought, &s->thought_len, json_object_get(text, "reasoning_content"));
	s->null_content |= json_is_null(json_object_get(text, "content"));
	hear_calls(s, json_object_get(text, "tool_calls"), where && !strcmp(where, "delta"));
	add_logprobs(s, json_object_get(c, "logprobs"));
	extend(&s->ids, json_object_get(c, "token_ids"));
	if (finish) {
		snprintf(s->finish, sizeof(s->finish), "%s", finish);
		s->stop_reason = json_object_get(c, "stop_reason");
		assert_non_null(s->stop_reason);
	}
}

static void hear_event(struct heard *h, const char *line, size_t len, bool chat)
{
	json_t *v, *c;
	size_t i;

	assert_true(utf8_valid(line, len));
	if (len == 6 && !memcmp(line, "[DONE]", 6)) {
		h->done = true;
		return;
	}
	v = json_loadb(line, len, JSON_ALLOW_NUL, NULL);
	if (!v)
		fail_msg("no JSON in an event: %.*s", (int)len, line);
	json_array_append_new(h->root, v);
	if (json_object_get(v, "error")) {
		h->error = json_object_get(v, "error");
		return;
	}
	assert_null(h->usage); /* usage is last */
	if (json_is_object(json_object_get(v, "usage")))
		h->usage = json_object_get(v, "usage");
	json_array_foreach (json_object_get(v, "choices"), i, c) {
		if (chat && !h->said[json_at(c, "index")].events &&
			json_object_get(json_object_get(c, "delta"), "role"))
			h->role_first = true;
		hear_choice(h, c, chat ? "delta" : NULL);
	}
}

static void hear_stream(const struct http_exchange *x, bool chat, struct heard *h)
{
	const char *at = x->out.data, *end = at + x->out.len, *stop;

	assert_true(fake_exchange_has(x, "content-type: text/event-stream; charset=utf-8"));
	h->root = json_array();
	while (at < end) {
		assert_false(h->done || h->error); /* nothing follows */
		stop = memchr(at, '\n', (size_t)(end - at));
		assert_non_null(stop);
		assert_true(stop + 1 < end && stop[1] == '\n');
		if (*at == ':') {
			h->comments++;
			snprintf(h->comment, sizeof(h->comment), "%.*s", (int)(stop - at), at);
		} else {
			assert_true(!strncmp(at, "data: ", 6));
			hear_event(h, at + 6, (size_t)(stop - at) - 6, chat);
		}
		at = stop + 2;
	}
}

void fix_hear(struct http_exchange *x, bool chat, struct heard *h)
{
	json_t *c;
	size_t i;

	*h = (struct heard){0};
	assert_int_equal(x->status, 200);
	if (x->streaming) {
		hear_stream(x, chat, h);
		assert_true(h->done == (x->end == FAKE_STREAM_ENDED));
	} else {
		h->root = fake_exchange_json(x);
		h->usage = json_object_get(h->root, "usage");
		json_array_foreach (json_object_get(h->root, "choices"), i, c)
			hear_choice(h, c, chat ? "message" : NULL);
	}
	fake_exchange_free(x);
}

void fix_unhear(struct heard *h)
{
	size_t i;

	json_decref(h->root);
	for (i = 0; i < ARRAY_LEN(h->said); i++) {
		json_decref(h->said[i].entries);
		json_decref(h->said[i].ids);
		free(h->said[i].calls);
	}
}
