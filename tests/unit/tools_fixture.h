/* tools_fixture.h: answers that hold tool calls, over the fakes of api_fixture.h. */
#ifndef TESTS_TOOLS_FIXTURE_H
#define TESTS_TOOLS_FIXTURE_H

#include "tests/unit/api_fixture.h"

/* The model's markup. */
#define BLOCK  "\n\n<" DSML "tool_calls>\n"
#define END    "</" DSML "tool_calls>"
#define CALL   "<" DSML "invoke name=\""
#define DONE   "</" DSML "invoke>\n"
#define STRING "\" string=\"true\">"
#define JSON   "\" string=\"false\">"
#define PARAM  "<" DSML "parameter name=\""
#define CLOSE  "</" DSML "parameter>\n"
#define PARIS  CALL "get_weather\">\n" PARAM "city" STRING "Paris" CLOSE DONE
#define THINK  ",\"reasoning_effort\":\"high\""

/* Sends a chat with `more` in its body; returns its (last) sequence. */
struct engine_seq *tools_start(
	struct fix *f, bool stream, const char *more, struct http_exchange **ret_x);
/*
 * One answer of text in the model's own tokens, `batch` a report, ended by the end token unless
 * something ended it before.
 */
void tools_answer(struct fix *f, bool stream, const char *more, const char *text, size_t batch,
	struct heard *h);
/* name{args} name{args} */
#define CALLS_MAX 8192
const char *tools_calls(const struct said *s, char text[CALLS_MAX]);

#endif
