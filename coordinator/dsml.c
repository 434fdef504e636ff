#include "config.h"

#include "coordinator/dsml.h"

#include <string.h>

#include "coordinator/json_text.h"

#define BAR         "｜DSML｜"
#define THINK_CLOSE "</think>"
#define BLOCK_OPEN  "\n\n<" BAR "tool_calls>"
#define BLOCK_CLOSE "</" BAR "tool_calls>"
#define CALL_OPEN   "<" BAR "invoke name=\""
#define CALL_CLOSE  "</" BAR "invoke>"
#define PARAM_OPEN  "<" BAR "parameter name=\""
#define PARAM_CLOSE "</" BAR "parameter>"
#define LEN(s)      (sizeof(s) - 1)

struct view {
	const char *p, *end;
};

static size_t left(const struct view *v)
{
	return (size_t)(v->end - v->p);
}

static void skip_space(struct view *v)
{
	while (v->p < v->end && (*v->p == ' ' || *v->p == '\n' || *v->p == '\t' || *v->p == '\r'))
		v->p++;
}

static bool take(struct view *v, const char *text, size_t len)
{
	if (left(v) < len || memcmp(v->p, text, len) != 0)
		return false;
	v->p += len;
	return true;
}

static const char *find(const struct view *v, const char *text, size_t len)
{
	return left(v) ? memmem(v->p, left(v), text, len) : NULL;
}

/* Up to text, which is passed over too. */
static bool take_until(struct view *v, const char *text, size_t len, struct view *ret)
{
	const char *at = find(v, text, len);

	if (!at)
		return false;
	*ret = (struct view){v->p, at};
	v->p = at + len;
	return true;
}

void dsml_init(struct dsml *d, bool thinking, bool calls, dsml_sink sink, void *arg)
{
	*d = (struct dsml){
		.sink = sink,
		.arg = arg,
		.state = thinking ? DSML_IN_REASONING : DSML_IN_CONTENT,
		.calls = calls,
	};
}

void dsml_fini(struct dsml *d)
{
	outbuf_fini(&d->held);
}

/* Hands the next n bytes over as what they are in this state. */
static int give(struct dsml *d, size_t n)
{
	const struct dsml_event e = {
		.kind = d->state == DSML_IN_REASONING ? DSML_REASONING : DSML_CONTENT,
		.text = d->held.data + d->at,
		.len = n,
	};

	d->at += n;
	return n ? d->sink(d->arg, &e) : 0;
}

static struct view rest(const struct dsml *d)
{
	return (struct view){d->held.data + d->at, d->held.data + d->held.len};
}

/* How many of the last bytes may be the beginning of text. */
static size_t begun(const struct view *v, const char *text, size_t len)
{
	size_t n = MIN(left(v), len - 1);

	while (n && memcmp(v->end - n, text, n) != 0)
		n--;
	return n;
}

/*
 * One parameter, after its opening, into the arguments. A value that is to be JSON stays as it was
 * written if it is some.
 */
static bool parameter(struct view *v, struct outbuf *args)
{
	struct outbuf valid = {0};
	struct view name, value;
	bool is_text;

	if (!take_until(v, "\"", 1, &name))
		return false;
	is_text = take(v, " string=\"true\">", LEN(" string=\"true\">"));
	if (!is_text && !take(v, " string=\"false\">", LEN(" string=\"false\">")))
		return false;
	if (!take_until(v, PARAM_CLOSE, LEN(PARAM_CLOSE), &value))
		return false;
	outbuf_puts(args, args->len > 1 ? ", " : "");
	outbuf_json_string(args, name.p, left(&name));
	outbuf_puts(args, ": ");
	if (!is_text)
		is_text = json_print_python(
				  (struct json_slice){value.p, left(&value)}, &valid, NULL) < 0;
	outbuf_fini(&valid);
	if (is_text)
		outbuf_json_string(args, value.p, left(&value));
	else
		outbuf_add(args, value.p, left(&value));
	return true;
}

/* The whole of a call, from its name to before its closing: 0, -EINVAL if it is none, -ENOMEM. */
static int give_call(struct dsml *d, struct view v)
{
	struct outbuf args = {0}, valid = {0};
	struct dsml_event e = {.kind = DSML_CALL, .index = d->next_index};
	struct view name;
	int r = -EINVAL;

	if (!take_until(&v, "\"", 1, &name) || !left(&name) || !take(&v, ">", 1))
		return -EINVAL;
	outbuf_puts(&args, "{");
	for (skip_space(&v); left(&v); skip_space(&v))
		if (!take(&v, PARAM_OPEN, LEN(PARAM_OPEN)) || !parameter(&v, &args))
			goto out;
	outbuf_puts(&args, "}");
	r = -ENOMEM;
	if (!outbuf_ok(&args))
		goto out;
	/* Printing refuses a parameter that is there twice. */
	r = json_print_python((struct json_slice){args.data, args.len}, &valid, NULL);
	if (r < 0)
		goto out;
	e.text = args.data;
	e.len = args.len;
	e.name = name.p;
	e.name_len = left(&name);
	d->next_index++;
	r = d->sink(d->arg, &e);
out:
	outbuf_fini(&args);
	outbuf_fini(&valid);
	return r;
}

/* What is held is no block of calls, or none any more: it is content, which may hold the next. */
static int give_up(struct dsml *d)
{
	int r;

	d->state = DSML_IN_CONTENT;
	d->at = d->from;
	/* Past its first byte an opening cannot open anything again. */
	r = give(d, d->opening ? 1 : 0);
	return r < 0 ? r : 1;
}

/* Each step: 1 when there may be more to do, 0 when more text is needed, or a negative error. */
static int step_text(struct dsml *d)
{
	bool reasoning = d->state == DSML_IN_REASONING;
	const char *marker = reasoning ? THINK_CLOSE : BLOCK_OPEN;
	size_t len = reasoning ? LEN(THINK_CLOSE) : LEN(BLOCK_OPEN);
	struct view v = rest(d);
	const char *at;
	int r;

	if (!reasoning && !d->calls)
		return give(d, left(&v));
	at = find(&v, marker, len);
	if (!at)
		return give(d, left(&v) - begun(&v, marker, len));
	r = give(d, (size_t)(at - v.p));
	if (r < 0)
		return r;
	d->from = d->at;
	d->at += len;
	d->opening = true;
	d->state = reasoning ? DSML_IN_CONTENT : DSML_IN_BLOCK;
	return 1;
}

static int step_block(struct dsml *d)
{
	struct view v = rest(d);

	skip_space(&v);
	if (!d->opening && take(&v, BLOCK_CLOSE, LEN(BLOCK_CLOSE))) {
		d->at = (size_t)(v.p - d->held.data);
		d->state = DSML_IN_CONTENT;
		return 1;
	}
	if (take(&v, CALL_OPEN, LEN(CALL_OPEN))) {
		d->at = d->call = (size_t)(v.p - d->held.data);
		d->state = DSML_IN_CALL;
		return 1;
	}
	if (left(&v) < LEN(CALL_OPEN) && !memcmp(v.p, CALL_OPEN, left(&v)))
		return 0;
	if (left(&v) < LEN(BLOCK_CLOSE) && !memcmp(v.p, BLOCK_CLOSE, left(&v)))
		return 0;
	return give_up(d);
}

static int step_call(struct dsml *d)
{
	struct view v = rest(d), inside = {d->held.data + d->call, NULL};
	int r;

	v.p = MAX(v.p, d->held.data + d->looked);
	inside.end = find(&v, CALL_CLOSE, LEN(CALL_CLOSE));
	if (!inside.end) {
		d->looked = d->held.len - MIN(left(&v), LEN(CALL_CLOSE) - 1);
		return 0;
	}
	r = give_call(d, inside);
	if (r == -EINVAL)
		return give_up(d);
	if (r < 0)
		return r;
	d->at = d->from = (size_t)(inside.end - d->held.data) + LEN(CALL_CLOSE);
	d->opening = false;
	d->state = DSML_IN_BLOCK;
	return 1;
}

static int run(struct dsml *d)
{
	int r = 1;

	while (r == 1) {
		if (d->state == DSML_IN_CALL)
			r = step_call(d);
		else if (d->state == DSML_IN_BLOCK)
			r = step_block(d);
		else
			r = step_text(d);
	}
	return r;
}

/* Forgets what is handed over. */
static void compact(struct dsml *d)
{
	size_t n = dsml_pending(d) ? d->from : d->at;

	if (!n)
		return;
	memmove(d->held.data, d->held.data + n, d->held.len - n);
	d->held.len -= n;
	d->at -= n;
	d->from -= MIN(d->from, n);
	d->call -= MIN(d->call, n);
	d->looked -= MIN(d->looked, n);
}

int dsml_push(struct dsml *d, const char *text, size_t len)
{
	int r;

	outbuf_add(&d->held, text, len);
	if (!outbuf_ok(&d->held))
		return -ENOMEM;
	if (!d->held.len)
		return 0;
	r = run(d);
	compact(d);
	return r;
}

int dsml_finish(struct dsml *d, bool cut)
{
	struct view v;
	int r = 0;

	if (!d->held.len)
		return 0;
	while (r == 0 && !cut && d->state >= DSML_IN_BLOCK) {
		v = rest(d);
		skip_space(&v);
		/* Good calls whose block was never closed. */
		if (d->state == DSML_IN_BLOCK && !d->opening && !left(&v))
			return 0;
		r = give_up(d);
		if (r > 0)
			r = run(d);
	}
	if (r < 0 || d->state >= DSML_IN_BLOCK)
		return r;
	v = rest(d);
	if (cut && find(&v, BAR, LEN(BAR)))
		return 0;
	return give(d, left(&v));
}

size_t dsml_pending(const struct dsml *d)
{
	return d->state >= DSML_IN_BLOCK ? d->held.len - d->from : 0;
}
