#include "config.h"

#include "coordinator/dsml_impl.h"

#define THINK_CLOSE "</think>"
#define BLOCK_OPEN  "<" DSML_BAR "tool_calls>"
#define BLOCK_CLOSE "</" DSML_BAR "tool_calls>"
#define CALL_OPEN   "<" DSML_BAR "invoke name=\""
#define LEN(s)      DSML_LEN(s)

/* What only an opening begins with. */
#define OPENING "<｜"
/* Newlines that belong to the block's opening. */
#define NEWLINES_MAX 2

const char *view_find(const struct view *v, const char *text, size_t len)
{
	return view_left(v) ? memmem(v->p, view_left(v), text, len) : NULL;
}

void dsml_init(struct dsml *d, bool thinking, bool calls, size_t hold, dsml_sink sink, void *arg)
{
	*d = (struct dsml){
		.sink = sink,
		.arg = arg,
		.state = thinking ? DSML_IN_REASONING : DSML_IN_CONTENT,
		.calls = calls,
		.hold = hold,
	};
}

void dsml_fini(struct dsml *d)
{
	outbuf_fini(&d->held);
	dsml_call_fini(&d->call);
}

/* Hands the next n bytes over as what they are in this state. */
static int give(struct dsml *d, size_t n)
{
	const struct dsml_event e = {
		.kind = d->state == DSML_IN_REASONING ? DSML_REASONING : DSML_CONTENT,
		.text = d->held.data + d->at,
		.len = n,
		.at = d->base + d->at,
	};

	d->at += n;
	return n ? d->sink(d->arg, &e) : 0;
}

static struct view rest(const struct dsml *d)
{
	return (struct view){d->held.data + d->at, d->held.data + d->held.len};
}

/* What is held is no block of calls, or none any more: it is content, which may hold the next. */
static int give_up(struct dsml *d)
{
	int r;

	d->state = DSML_IN_CONTENT;
	d->at = d->from;
	/* Past its "<" an opening cannot open anything again. */
	r = give(d, d->opening ? d->mark + 1 : 0);
	d->opening = false;
	return r < 0 ? r : 1;
}

/* Newlines just before `at`, as many as a block's opening may have. */
static size_t newlines_before(const struct view *v, const char *at)
{
	size_t n = 0;

	while (n < NEWLINES_MAX && at - n > v->p && at[-1 - (ptrdiff_t)n] == '\n')
		n++;
	return n;
}

/* Each step: 1 when there may be more to do, 0 when more text is needed, or a negative error. */
static int step_reasoning(struct dsml *d)
{
	struct view v = rest(d);
	const char *at = view_find(&v, THINK_CLOSE, LEN(THINK_CLOSE));
	int r;

	if (!at)
		return give(d, view_left(&v) - view_begun(&v, THINK_CLOSE, LEN(THINK_CLOSE)));
	r = give(d, (size_t)(at - v.p));
	if (r < 0)
		return r;
	d->at += LEN(THINK_CLOSE);
	d->state = DSML_IN_CONTENT;
	return 1;
}

static int step_content(struct dsml *d)
{
	struct view v = rest(d);
	const char *at;
	size_t n;
	int r;

	if (!d->calls)
		return give(d, view_left(&v));
	at = view_find(&v, BLOCK_OPEN, LEN(BLOCK_OPEN));
	if (!at) {
		n = view_begun(&v, BLOCK_OPEN, LEN(BLOCK_OPEN));
		n += newlines_before(&v, v.end - n);
		return give(d, view_left(&v) - n);
	}
	d->mark = newlines_before(&v, at);
	r = give(d, (size_t)(at - v.p) - d->mark);
	if (r < 0)
		return r;
	d->from = d->at;
	d->at += d->mark + LEN(BLOCK_OPEN);
	d->opening = true;
	d->state = DSML_IN_BLOCK;
	return 1;
}

static int step_block(struct dsml *d)
{
	struct view v = rest(d);

	view_skip_space(&v);
	if (!d->opening && view_take(&v, BLOCK_CLOSE, LEN(BLOCK_CLOSE))) {
		d->at = (size_t)(v.p - d->held.data);
		d->state = DSML_IN_CONTENT;
		return 1;
	}
	if (view_take(&v, CALL_OPEN, LEN(CALL_OPEN))) {
		d->at = d->looked = (size_t)(v.p - d->held.data);
		d->state = DSML_IN_CALL;
		dsml_call_begin(&d->call);
		return 1;
	}
	if (view_begins(&v, CALL_OPEN, LEN(CALL_OPEN)) ||
		view_begins(&v, BLOCK_CLOSE, LEN(BLOCK_CLOSE)))
		return 0;
	return give_up(d);
}

static int step_call(struct dsml *d)
{
	struct view v = rest(d);
	const char *end;
	int r;

	v.p = MAX(v.p, d->held.data + d->looked);
	end = view_find(&v, DSML_CALL_CLOSE, LEN(DSML_CALL_CLOSE));
	d->looked = end ? (size_t)(end - d->held.data)
			: d->held.len - MIN(view_left(&v), LEN(DSML_CALL_CLOSE) - 1);
	r = dsml_call_read(d, end ? end : v.end, end);
	if (r == -EINVAL)
		return give_up(d);
	if (r <= 0)
		return r;
	d->at = d->from = (size_t)(end - d->held.data) + LEN(DSML_CALL_CLOSE);
	d->opening = false;
	d->state = DSML_IN_BLOCK;
	return 1;
}

static int run(struct dsml *d)
{
	static int (*const steps[])(struct dsml *) = {
		[DSML_IN_REASONING] = step_reasoning,
		[DSML_IN_CONTENT] = step_content,
		[DSML_IN_BLOCK] = step_block,
		[DSML_IN_CALL] = step_call,
	};
	int r;

	do
		r = steps[d->state](d);
	while (r == 1);
	return r;
}

/* Forgets what is handed over. */
static void compact(struct dsml *d)
{
	size_t n = d->state >= DSML_IN_BLOCK ? d->from : d->at;

	if (!n)
		return;
	memmove(d->held.data, d->held.data + n, d->held.len - n);
	d->held.len -= n;
	d->base += n;
	d->at -= n;
	d->from -= MIN(d->from, n);
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
		view_skip_space(&v);
		/* Good calls whose block was never closed. */
		if (d->state == DSML_IN_BLOCK && !d->opening && !view_left(&v))
			return 0;
		r = give_up(d);
		if (r > 0)
			r = run(d);
	}
	if (r < 0 || d->state >= DSML_IN_BLOCK)
		return r;
	v = rest(d);
	/* a lone "<" may be anything, but with a bar it was to be an opening */
	if (cut && d->calls && view_find(&v, OPENING, LEN(OPENING)))
		return 0;
	return give(d, view_left(&v));
}

size_t dsml_pending(const struct dsml *d)
{
	return d->state >= DSML_IN_BLOCK ? d->held.len - d->from : 0;
}
