/* The tool calls of an answer as JSON, whole and streamed. */
#include <inttypes.h>

#include "coordinator/job.h"

/*
 * One element of "tool_calls". An id is unlike those of any other answer, for clients keep the
 * calls of a whole conversation in one table.
 */
static void shape_call(const struct choice *c, size_t i, bool index, bool whole, struct outbuf *out)
{
	const struct answer_call *call = &c->answer.calls[i];

	outbuf_puts(out, "{");
	if (index)
		outbuf_printf(out, "\"index\":%zu,", i);
	if (whole) {
		outbuf_printf(out, "\"id\":\"call_%016" PRIx64 "_%u_%zu\",\"type\":\"function\",",
			c->job->call_nonce, c->index, i);
		outbuf_puts(out, "\"function\":{\"name\":");
		outbuf_json_string(out, call->name.data, call->name.len);
		outbuf_puts(out, ",\"arguments\":");
	} else {
		outbuf_puts(out, "\"function\":{\"arguments\":");
	}
	outbuf_json_string(out, call->args.data ? call->args.data : "", call->args.len);
	outbuf_puts(out, "}}");
}

void shape_calls(const struct choice *c, struct outbuf *out)
{
	size_t i;

	outbuf_puts(out, "\"tool_calls\":[");
	for (i = 0; i < c->answer.call_n; i++) {
		outbuf_puts(out, i ? "," : "");
		shape_call(c, i, false, true, out);
	}
	outbuf_puts(out, "]");
}

bool shape_calls_new(const struct choice *c)
{
	const struct answer *a = &c->answer;
	size_t i;

	for (i = c->calls_sent; i < a->call_n; i++)
		if (!a->calls[i].sent || a->calls[i].args.len)
			return true;
	return false;
}

void shape_calls_delta(struct choice *c, struct outbuf *out)
{
	struct answer *a = &c->answer;
	struct answer_call *call;
	bool first = true;
	size_t i;

	outbuf_puts(out, "\"tool_calls\":[");
	for (i = c->calls_sent; i < a->call_n; i++) {
		call = &a->calls[i];
		if (call->sent && !call->args.len)
			continue;
		outbuf_puts(out, first ? "" : ",");
		shape_call(c, i, true, !call->sent, out);
		first = false;
		call->sent = true;
		outbuf_clear(&call->args);
		if (call->complete) {
			outbuf_fini(&call->name);
			outbuf_fini(&call->args);
		}
	}
	outbuf_puts(out, "]");
	/* the last one may go on */
	c->calls_sent = a->call_n - !a->calls[a->call_n - 1].complete;
}
