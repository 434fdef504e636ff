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
 * inside the reasoning is reasoning. A call is handed over whole, when its </｜DSML｜invoke> has
 * arrived, so that there is never half a call to take back; meanwhile dsml_pending() says that
 * something is on its way. What is not exactly a block of calls (doubled bars, bare closers, a
 * parameter that does not end within its call, one that is there twice, a block without calls) is
 * content, from where it stopped being one: nothing the model wrote is lost. A parameter marked
 * string="false" whose value is no JSON is handed over as a string.
 */
#ifndef COORDINATOR_DSML_H
#define COORDINATOR_DSML_H

#include <stdbool.h>
#include <stddef.h>

#include "coordinator/outbuf.h"
#include "shm/util.h"

enum dsml_kind { DSML_REASONING, DSML_CONTENT, DSML_CALL, DSML_KIND__COUNT };

/* text: a piece of reasoning or content. Of a call: its arguments, a JSON object. */
struct dsml_event {
	enum dsml_kind kind;
	const char *text;
	size_t len;
	const char *name; /* of a call; not NUL-terminated */
	size_t name_len;
	unsigned index; /* of a call: 0, 1, ... */
};

/* Memory of the event lasts for the call only. A negative return ends the push with it. */
typedef int (*dsml_sink)(void *arg, const struct dsml_event *event);

enum dsml_state { DSML_IN_REASONING, DSML_IN_CONTENT, DSML_IN_BLOCK, DSML_IN_CALL };

struct dsml {
	dsml_sink sink;
	void *arg;
	enum dsml_state state;
	bool calls;         /* false: DSML is content like anything else */
	struct outbuf held; /* text that is not handed over yet; offsets below are in it */
	size_t at;          /* what is looked at next */
	size_t from;        /* in a block: where the text that is not part of a good call begins */
	size_t call;        /* in a call: its name */
	size_t looked;      /* no call's closing begins before here */
	bool opening;       /* `from` is the block's own opening: no call was good yet */
	unsigned next_index;
};

/*
 * thinking: the prompt ended with <think>, so the text begins with reasoning. calls: whether tool
 * calls are looked for (a request without tools wants the text as it is).
 */
void dsml_init(struct dsml *d, bool thinking, bool calls, dsml_sink sink, void *arg);

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
