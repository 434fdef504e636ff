/*
 * The inside of a call: its name, then parameters, read as far as they have come and turned into
 * the JSON of its arguments.
 */
#include "config.h"

#include "coordinator/dsml_impl.h"
#include "coordinator/json_text.h"

#define PARAM_OPEN  "<" DSML_BAR "parameter name=\""
#define PARAM_CLOSE "</" DSML_BAR "parameter>"
#define IS_TEXT     " string=\"true\">"
#define IS_JSON     " string=\"false\">"
#define LEN(s)      DSML_LEN(s)

/* What a part says besides a negative error. */
enum { NEEDS_MORE, GOES_ON, COMPLETE };

void dsml_call_begin(struct dsml_call *c)
{
	c->part = DSML_NAME;
	c->given = false;
	c->params = 0;
	outbuf_clear(&c->name);
	outbuf_clear(&c->args);
	outbuf_clear(&c->keys);
	outbuf_puts(&c->keys, ",");
}

void dsml_call_fini(struct dsml_call *c)
{
	outbuf_fini(&c->name);
	outbuf_fini(&c->args);
	outbuf_fini(&c->keys);
}

/* Up to a quote, which is passed over too. */
static bool take_name(struct view *v, struct view *ret_name)
{
	const char *at = view_find(v, "\"", 1);

	if (!at)
		return false;
	*ret_name = (struct view){v->p, at};
	v->p = at + 1;
	return true;
}

static int read_name(struct dsml_call *c, struct view *v)
{
	struct view to = *v, name;

	if (!take_name(&to, &name) || !view_left(&to))
		return NEEDS_MORE;
	if (!view_left(&name) || !view_take(&to, ">", 1))
		return -EINVAL;
	outbuf_add(&c->name, name.p, view_left(&name));
	outbuf_puts(&c->args, "{");
	c->part = DSML_BETWEEN;
	*v = to;
	return GOES_ON;
}

/* Remembers a parameter's name; false: it was there. A name holds no quote, so keys stay apart. */
static bool remember(struct dsml_call *c, const struct view *name)
{
	size_t before = c->keys.len;
	const char *key;

	outbuf_json_string(&c->keys, name->p, view_left(name));
	outbuf_puts(&c->keys, ",");
	if (!outbuf_ok(&c->keys))
		return true;
	key = c->keys.data + before - 1;
	return !memmem(c->keys.data, before, key, c->keys.len - before + 1);
}

static int read_between(struct dsml_call *c, struct view *v, bool closed)
{
	struct view to = *v, name;
	bool is_text;

	view_skip_space(&to);
	if (closed && !view_left(&to)) {
		outbuf_puts(&c->args, "}");
		return COMPLETE;
	}
	if (view_begins(&to, PARAM_OPEN, LEN(PARAM_OPEN)) ||
		view_begins(&to, DSML_CALL_CLOSE, LEN(DSML_CALL_CLOSE)))
		return NEEDS_MORE;
	if (!view_take(&to, PARAM_OPEN, LEN(PARAM_OPEN)))
		return -EINVAL;
	if (!take_name(&to, &name) || view_begins(&to, IS_TEXT, LEN(IS_TEXT)) ||
		view_begins(&to, IS_JSON, LEN(IS_JSON)))
		return NEEDS_MORE;
	is_text = view_take(&to, IS_TEXT, LEN(IS_TEXT));
	if (!is_text && !view_take(&to, IS_JSON, LEN(IS_JSON)))
		return -EINVAL;
	if (!remember(c, &name))
		return -EINVAL;
	outbuf_puts(&c->args, c->params++ ? ", " : "");
	outbuf_json_string(&c->args, name.p, view_left(&name));
	outbuf_puts(&c->args, is_text ? ": \"" : ": ");
	c->part = is_text ? DSML_TEXT : DSML_JSON;
	c->looked = 0;
	*v = to;
	return GOES_ON;
}

/* The last bytes that may be the beginning of a character. */
static size_t cut_character(const char *text, size_t len)
{
	size_t n;

	for (n = 1; n <= MIN(len, (size_t)3); n++) {
		uint8_t byte = (uint8_t)text[len - n];

		if (byte >= 0xc0)
			return n < (byte < 0xe0 ? 2u : byte < 0xf0 ? 3u : 4u) ? n : 0;
		if (byte < 0x80)
			return 0;
	}
	return 0;
}

/* Inside a JSON string that is open: without the quotes. */
static void add_text(struct outbuf *out, const char *text, size_t len)
{
	size_t at = out->len;

	if (!len)
		return;
	outbuf_json_string(out, text, len);
	if (!outbuf_ok(out))
		return;
	out->len -= 2;
	memmove(out->data + at, out->data + at + 1, out->len - at);
}

/* All of a text that can be no part of a closing is read at once. */
static int read_text(struct dsml_call *c, struct view *v, bool closed)
{
	const char *close = view_find(v, PARAM_CLOSE, LEN(PARAM_CLOSE));
	size_t n = view_left(v);

	if (close) {
		n = (size_t)(close - v->p);
	} else if (!closed) {
		n -= MAX(view_begun(v, PARAM_CLOSE, LEN(PARAM_CLOSE)),
			view_begun(v, DSML_CALL_CLOSE, LEN(DSML_CALL_CLOSE)));
		n -= cut_character(v->p, n);
	}
	add_text(&c->args, v->p, n);
	v->p += n;
	if (close) {
		outbuf_puts(&c->args, "\"");
		v->p += LEN(PARAM_CLOSE);
		c->part = DSML_BETWEEN;
		return GOES_ON;
	}
	/* Even of a value that does not end within its call: it would be, if the rest came later.
	 */
	return NEEDS_MORE;
}

/* A value that is to be JSON is looked at when it is complete, and stays as it is if it is some. */
static int read_json(struct dsml_call *c, struct view *v)
{
	struct view value = {v->p + c->looked, v->end};
	const char *close = view_find(&value, PARAM_CLOSE, LEN(PARAM_CLOSE));
	struct outbuf printed = {0};
	int r;

	if (!close) {
		c->looked = view_left(v) - MIN(view_left(&value), LEN(PARAM_CLOSE) - 1);
		return NEEDS_MORE;
	}
	value = (struct view){v->p, close};
	r = json_print_python((struct json_slice){value.p, view_left(&value)}, &printed, NULL);
	outbuf_fini(&printed);
	if (r == -ENOMEM)
		return r;
	if (r < 0)
		outbuf_json_string(&c->args, value.p, view_left(&value));
	else
		outbuf_add(&c->args, value.p, view_left(&value));
	v->p = close + LEN(PARAM_CLOSE);
	c->part = DSML_BETWEEN;
	return GOES_ON;
}

static int read_part(struct dsml_call *c, struct view *v, bool closed)
{
	switch (c->part) {
	case DSML_NAME:
		return read_name(c, v);
	case DSML_BETWEEN:
		return read_between(c, v, closed);
	case DSML_TEXT:
		return read_text(c, v, closed);
	default:
		return read_json(c, v);
	}
}

static int tell(struct dsml *d, enum dsml_kind kind, const struct outbuf *text)
{
	const struct dsml_event e = {
		.kind = kind,
		.text = text ? text->data : "",
		.len = text ? text->len : 0,
		.index = d->next_index - 1,
	};

	return d->sink(d->arg, &e);
}

/* Hands over what there is of the arguments, and before them the name. */
static int hand_over(struct dsml *d)
{
	struct dsml_call *c = &d->call;
	int r = 0;

	if (!c->given) {
		c->given = true;
		d->next_index++;
		d->opening = false;
		r = tell(d, DSML_CALL, &c->name);
	}
	if (r >= 0 && c->args.len)
		r = tell(d, DSML_ARGUMENTS, &c->args);
	outbuf_clear(&c->args);
	d->from = d->at;
	return r;
}

int dsml_call_read(struct dsml *d, const char *end, bool closed)
{
	struct dsml_call *c = &d->call;
	struct view v = {d->held.data + d->at, end};
	int part, r;

	do {
		part = read_part(c, &v, closed);
		if (part < 0)
			return part;
		if (!outbuf_ok(&c->name) || !outbuf_ok(&c->args) || !outbuf_ok(&c->keys))
			return -ENOMEM;
		d->at = (size_t)(v.p - d->held.data);
		if (part == COMPLETE || c->given || c->args.len > d->hold) {
			r = hand_over(d);
			if (r < 0)
				return r;
		}
	} while (part == GOES_ON);
	if (part == COMPLETE)
		return (r = tell(d, DSML_CALL_END, NULL)) < 0 ? r : 1;
	return closed ? -EINVAL : 0;
}
