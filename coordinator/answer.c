#include "coordinator/answer.h"

#include <stdlib.h>

size_t answer_count_chars(const char *text, size_t len)
{
	size_t n = 0, i;

	for (i = 0; i < len; i++)
		n += ((uint8_t)text[i] & 0xc0) != 0x80;
	return n;
}

static struct answer_call *answer_new_call(struct answer *a)
{
	size_t cap = a->call_cap ? a->call_cap * 2 : 4;
	struct answer_call *more;

	if (a->call_n == a->call_cap) {
		more = realloc(a->calls, cap * sizeof(*more));
		if (!more)
			return NULL;
		a->calls = more;
		a->call_cap = cap;
	}
	a->calls[a->call_n] = (struct answer_call){0};
	return &a->calls[a->call_n++];
}

/* Content goes through the stop strings; -ECANCELED: one was found. */
static int answer_content(struct answer *a, const struct dsml_event *e)
{
	size_t from = MIN(e->len, a->begun_len - MIN(e->at, a->begun_len));
	size_t armed = MIN(e->len, a->free_until - MIN(e->at, a->free_until));

	/* a call that was begun for the model, and that it made nothing of, is no text of its own
	 */
	armed = MAX(armed, from);
	(void)stop_scan_feed(&a->stop, e->text + from, armed - from, false, &a->content, NULL);
	a->stop_string =
		stop_scan_feed(&a->stop, e->text + armed, e->len - armed, true, &a->content, NULL);
	a->said |= a->content.len > 0;
	return a->stop_string < 0 ? 0 : -ECANCELED;
}

static int answer_event(void *user, const struct dsml_event *e)
{
	struct answer *a = user;
	struct answer_call *call;

	switch (e->kind) {
	case DSML_REASONING:
		outbuf_add(&a->thought, e->text, e->len);
		return 0;
	case DSML_CONTENT:
		return answer_content(a, e);
	case DSML_CALL:
		stop_scan_finish(&a->stop, &a->content);
		a->said |= a->content.len > 0;
		call = answer_new_call(a);
		if (!call)
			return -ENOMEM;
		outbuf_add(&call->name, e->text, e->len);
		return 0;
	case DSML_ARGUMENTS:
		outbuf_add(&a->calls[a->call_n - 1].args, e->text, e->len);
		return 0;
	default:
		a->calls[a->call_n - 1].complete = true;
		a->complete_n++;
		return a->one_call ? -ECANCELED : 0;
	}
}

/* What dsml said, as answer_push() says it. */
static int answer_result(int ret)
{
	return ret == -ECANCELED ? 1 : ret;
}

static int answer_text(struct answer *a, const char *text, size_t len, bool armed)
{
	a->chars += answer_count_chars(text, len);
	a->bytes += len;
	if (!armed)
		a->free_until = a->bytes;
	return dsml_push(&a->dsml, text, len);
}

int answer_init(struct answer *a, const struct answer_how *how)
{
	*a = (struct answer){.stop_string = -1,
		.skip_special = how->skip_special,
		.one_call = how->one_call,
		.markers = {-1, -1}};
	token_stream_init(&a->stream, how->tok, how->skip_special);
	dsml_init(&a->dsml, how->thinking, how->calls, how->pieces ? ANSWER_CALL_HOLD : DSML_WHOLE,
		answer_event, a);
	stop_scan_init(&a->stop, how->stops);
	if (how->thinking)
		a->markers[0] = tokenizer_find(how->tok, "</think>");
	if (how->calls)
		a->markers[1] = tokenizer_find(how->tok, "｜DSML｜");
	a->bytes = a->begun_len = how->begun_len;
	return how->begun_len ? dsml_push(&a->dsml, how->begun, how->begun_len) : 0;
}

void answer_fini(struct answer *a)
{
	size_t i;

	for (i = 0; i < a->call_n; i++) {
		outbuf_fini(&a->calls[i].name);
		outbuf_fini(&a->calls[i].args);
	}
	free(a->calls);
	token_stream_fini(&a->stream);
	dsml_fini(&a->dsml);
	outbuf_fini(&a->content);
	outbuf_fini(&a->thought);
}

bool answer_ok(const struct answer *a)
{
	bool ok = outbuf_ok(&a->content) && outbuf_ok(&a->thought);
	size_t i;

	for (i = 0; i < a->call_n; i++)
		ok = ok && outbuf_ok(&a->calls[i].name) && outbuf_ok(&a->calls[i].args);
	return ok;
}

int answer_push(struct answer *a, uint32_t token, bool armed)
{
	const char *text;
	size_t len;

	a->stream.skip_special =
		a->skip_special && token != a->markers[0] && token != a->markers[1];
	if (token_stream_push(&a->stream, token, &text, &len))
		return -ENOMEM;
	return answer_result(answer_text(a, text, len, armed));
}

int answer_finish(struct answer *a, bool cut)
{
	const char *text;
	size_t len;
	int ret;

	if (token_stream_finish(&a->stream, &text, &len))
		return -ENOMEM;
	/* a replacement character can end no stop string that the bytes before it did not */
	ret = answer_text(a, text, len, !len);
	if (!ret)
		ret = dsml_finish(&a->dsml, cut);
	if (!ret) {
		stop_scan_finish(&a->stop, &a->content);
		a->said |= a->content.len > 0;
	}
	return answer_result(ret);
}
