/*
 * dsml.h: what a model of the V4 format writes, taken apart while it arrives: reasoning up to
 * </think>, then content, and tool calls in DSML. Pure: text in, calls of a function out.
 *
 *     reasoning</think>content\n\n<｜DSML｜tool_calls>\n
 *     <｜DSML｜invoke name="f">\n
 *     <｜DSML｜parameter name="a" string="true">text</｜DSML｜parameter>\n
 *     </｜DSML｜invoke>\n
 *     </｜DSML｜tool_calls>
 *
 * What comes out never depends on how the text was cut, but for how much comes at once. Markup
 * inside the reasoning is reasoning. Up to two newlines before a block belong to it. What is not
 * exactly a block of calls (doubled bars, bare closers, a parameter that does not end within its
 * call, one that is there twice, a block without calls) is content, from where it stopped being
 * one: nothing the model wrote is lost. A parameter marked string="false" whose value is no JSON is
 * handed over as a string.
 *
 * A call begins with its name, then come pieces of its arguments, a JSON object, then its end. It
 * is held back until its arguments have more than `hold` bytes, or all: a call that is cut or turns
 * out to be none before that never was one. What has been handed over cannot be taken back: a
 * longer call that breaks off later has no end, and what it had not become yet is content. With
 * hold = DSML_WHOLE only whole calls come out. dsml_pending() says that something is on its way.
 */
#ifndef COORDINATOR_DSML_H
#define COORDINATOR_DSML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/outbuf.h"
#include "shm/util.h"

#define DSML_WHOLE SIZE_MAX

enum dsml_kind {
	DSML_REASONING,
	DSML_CONTENT,
	DSML_CALL,      /* a call begins: text is its name */
	DSML_ARGUMENTS, /* a piece of its arguments; together they are a JSON object */
	DSML_CALL_END,  /* the arguments are complete; no text */
	DSML_KIND__COUNT
};

struct dsml_event {
	enum dsml_kind kind;
	const char *text; /* not NUL-terminated; len >= 1 but for DSML_CALL_END */
	size_t len;
	size_t at;      /* of reasoning and content: where it stands in all that was pushed */
	unsigned index; /* of a call: 0, 1, ... */
};

/* Memory of the event lasts for the call only. A negative return ends the push with it. */
typedef int (*dsml_sink)(void *arg, const struct dsml_event *event);

enum dsml_state { DSML_IN_REASONING, DSML_IN_CONTENT, DSML_IN_BLOCK, DSML_IN_CALL };

/* The call that is being read (dsml_call.c). */
struct dsml_call {
	enum { DSML_NAME, DSML_BETWEEN, DSML_TEXT, DSML_JSON } part;
	bool given;    /* DSML_CALL went out */
	size_t looked; /* in a JSON value: its closing does not begin before this byte of it */
	unsigned params;
	struct outbuf name;
	struct outbuf args; /* not handed over yet */
	struct outbuf keys; /* names of the parameters so far, each as ,"name", */
};

struct dsml {
	dsml_sink sink;
	void *arg;
	enum dsml_state state;
	bool calls; /* false: DSML is content like anything else */
	size_t hold;
	struct outbuf held; /* text that is not handed over yet; offsets below are in it */
	size_t base;        /* where held begins in all that was pushed */
	size_t at;          /* what is looked at next */
	size_t from;        /* in a block: where the text that is not part of a good call begins */
	size_t looked;      /* no call's closing begins before here */
	size_t mark;        /* of the block's opening: bytes up to its "<" */
	bool opening;       /* `from` is the block's own opening: no call was good yet */
	unsigned next_index;
	struct dsml_call call;
};

/*
 * thinking: the prompt ended with <think>, so the text begins with reasoning. calls: whether tool
 * calls are looked for (a request without tools wants the text as it is). hold: see above.
 */
void dsml_init(struct dsml *d, bool thinking, bool calls, size_t hold, dsml_sink sink, void *arg);

/* Feeds text, cut anywhere. 0, -ENOMEM, or what the sink returned. */
int dsml_push(struct dsml *d, const char *text, size_t len) MUST_CHECK;

/*
 * The end. What is held back is handed over as what it then is: where the model ended its turn, as
 * content; where it was cut (a limit on tokens, a stop string), a call not finished and the
 * beginning of its markup are dropped instead.
 */
int dsml_finish(struct dsml *d, bool cut) MUST_CHECK;
void dsml_fini(struct dsml *d);

/* Bytes of a call that has begun and is not handed over yet. */
size_t dsml_pending(const struct dsml *d);

#endif
