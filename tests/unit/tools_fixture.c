#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/unit/tools_fixture.h"

struct engine_seq *tools_start(
	struct fix *f, bool stream, const char *more, struct http_exchange **ret_x)
{
	char body[2048];

	snprintf(body, sizeof(body), "{%s,\"stream\":%s%s}", USER, stream ? "true" : "false", more);
	*ret_x = fix_post(f, CHAT, body);
	if ((*ret_x)->end != FAKE_OPEN)
		fail_msg("%s: %.*s", body, (int)(*ret_x)->out.len, (*ret_x)->out.data);
	return fake_engine_seq(f->engine, f->engine->submitted - 1);
}

void tools_answer(struct fix *f, bool stream, const char *more, const char *text, size_t batch,
	struct heard *h)
{
	struct http_exchange *x;
	struct engine_seq *s = tools_start(f, stream, more, &x);
	uint32_t *ids;
	size_t n;

	ids = fix_tokens(f, text, &n);
	if (fake_engine_make(s, ids, n, batch))
		fix_eos(s);
	free(ids);
	fix_hear(x, true, h);
	assert_null(h->error);
	assert_int_equal(h->choice_n, 1);
}

const char *tools_calls(const struct said *s, char text[CALLS_MAX])
{
	size_t i, n = 0;

	*text = '\0';
	for (i = 0; i < s->call_n; i++)
		n += (size_t)snprintf(text + n, CALLS_MAX - n, "%s%s%s", i ? " " : "",
			s->calls[i].name, s->calls[i].args);
	return text;
}
