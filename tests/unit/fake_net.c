#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/unit/fake_net.h"

#define TIMERS_MAX 64

struct loop {
	mono_ns_t now;
	struct loop_timer *timers[TIMERS_MAX];
	struct loop_work *head, **tail;
	double run_s, done_s;
};

struct loop *fake_loop_new(void)
{
	struct loop *loop = calloc(1, sizeof(*loop));

	loop->now = 1000 * NS_PER_S;
	loop->tail = &loop->head;
	return loop;
}

struct loop *fake_loop_free(struct loop *loop)
{
	size_t i;

	for (i = 0; i < TIMERS_MAX; i++)
		if (loop->timers[i])
			fail_msg("a timer is still set");
	free(loop);
	return NULL;
}

mono_ns_t loop_now(const struct loop *loop)
{
	return loop->now;
}

void loop_timer_set(struct loop *loop, struct loop_timer *t, mono_ns_t when)
{
	size_t i;

	loop_timer_stop(loop, t);
	for (i = 0; i < TIMERS_MAX && loop->timers[i]; i++)
		;
	assert_true(i < TIMERS_MAX);
	loop->timers[i] = t;
	t->when = when;
}

void loop_timer_stop(struct loop *loop, struct loop_timer *t)
{
	size_t i;

	for (i = 0; i < TIMERS_MAX; i++)
		if (loop->timers[i] == t)
			loop->timers[i] = NULL;
	t->when = 0;
}

void fake_loop_advance(struct loop *loop, mono_ns_t ns)
{
	struct loop_timer *t;
	size_t i;

	loop->now += ns;
	for (i = 0; i < TIMERS_MAX; i++) {
		t = loop->timers[i];
		if (!t || t->when > loop->now)
			continue;
		loop->timers[i] = NULL;
		t->when = 0;
		t->fn(t, t->user);
	}
}

void loop_work_queue(struct loop *loop, struct loop_work *w)
{
	w->next = NULL;
	*loop->tail = w;
	loop->tail = &w->next;
}

size_t fake_loop_queued(const struct loop *loop)
{
	const struct loop_work *w;
	size_t n = 0;

	for (w = loop->head; w; w = w->next)
		n++;
	return n;
}

static double cpu_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void fake_loop_work(struct loop *loop)
{
	struct loop_work *w = loop->head, *next;
	double begin, middle;

	loop->run_s = loop->done_s = 0;
	loop->head = NULL;
	loop->tail = &loop->head;
	for (; w; w = next) {
		next = w->next;
		begin = cpu_s();
		w->run(w->user);
		middle = cpu_s();
		w->done(w->user);
		loop->run_s += middle - begin;
		loop->done_s += cpu_s() - middle;
	}
}

void fake_loop_cost(const struct loop *loop, double *ret_run_s, double *ret_done_s)
{
	*ret_run_s = loop->run_s;
	*ret_done_s = loop->done_s;
}

/* HTTP --------------------------------------------------------------------------------------- */

struct http_exchange *fake_exchange_new(const char *method, const char *path,
	const char *content_type, const char *body, size_t len)
{
	struct http_exchange *x = calloc(1, sizeof(*x));

	/* exactly as large as promised, so that reading on is seen */
	x->body_copy = malloc(len + 1);
	if (len)
		memcpy(x->body_copy, body, len);
	x->body_copy[len] = '\0';
	x->req = (struct http_request){
		.method = method,
		.path = path,
		.query = "",
		.headers = x->req_headers,
		.body = x->body_copy,
		.body_len = len,
		.id = "req-1",
		.arrived = 1000 * NS_PER_S,
		.peer_pid = -1,
		.peer = "unix",
	};
	if (content_type)
		x->req_headers[x->req.header_count++] =
			(struct http_header){"content-type", content_type};
	if (body)
		x->req_headers[x->req.header_count++] = (struct http_header){"content-length", "1"};
	return x;
}

void fake_exchange_free(struct http_exchange *x)
{
	free(x->body_copy);
	outbuf_fini(&x->out);
	free(x);
}

static void check_open(const struct http_exchange *x)
{
	if (x->end != FAKE_OPEN)
		fail_msg("the exchange is used after its end");
}

void fake_exchange_gone(struct http_exchange *x)
{
	check_open(x);
	assert_non_null(x->on_gone);
	x->end = FAKE_GONE;
	x->on_gone(x->gone_user);
}

bool fake_exchange_has(const struct http_exchange *x, const char *header_line)
{
	char line[1200];

	snprintf(line, sizeof(line), "%s\n", header_line);
	return strstr(x->headers, line) != NULL;
}

json_t *fake_exchange_json(const struct http_exchange *x)
{
	json_error_t why;
	json_t *v;

	assert_int_equal(x->end, FAKE_RESPONDED);
	v = json_loadb(x->out.data, x->out.len, JSON_ALLOW_NUL, &why);
	if (!v)
		fail_msg("no JSON: %s: %.*s", why.text, (int)x->out.len, x->out.data);
	return v;
}

const char *http_header_get(const struct http_request *req, const char *lower_name)
{
	size_t i;

	for (i = 0; i < req->header_count; i++)
		if (!strcmp(req->headers[i].name, lower_name))
			return req->headers[i].value;
	return NULL;
}

const struct http_request *http_request(const struct http_exchange *x)
{
	check_open(x);
	return &x->req;
}

void http_drop_body(struct http_exchange *x)
{
	check_open(x);
	free(x->body_copy);
	x->body_copy = NULL;
	x->req.body = NULL;
	x->body_dropped = true;
}

int http_add_header(struct http_exchange *x, const char *name, const char *value)
{
	size_t len = strlen(x->headers);
	const char *c;

	check_open(x);
	assert_int_equal(x->status, 0);
	for (c = value; *c; c++)
		assert_true((unsigned char)*c >= ' ' && *c != 0x7f);
	snprintf(x->headers + len, sizeof(x->headers) - len, "%s: %s\n", name, value);
	return 0;
}

static void begin(struct http_exchange *x, int status, const char *content_type)
{
	size_t len = strlen(x->headers);

	check_open(x);
	assert_int_equal(x->status, 0);
	x->status = status;
	snprintf(x->headers + len, sizeof(x->headers) - len, "content-type: %s\n", content_type);
}

void http_respond(
	struct http_exchange *x, int status, const char *content_type, const void *body, size_t len)
{
	begin(x, status, content_type);
	outbuf_add(&x->out, body, len);
	x->end = FAKE_RESPONDED;
}

void http_respond_error(struct http_exchange *x, int status, const char *type, const char *param,
	const char *code, const char *fmt, ...)
{
	char text[2048];
	va_list ap;
	char *body;
	json_t *v;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	v = json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", text, "type", type, "param",
		param, "code", code);
	assert_non_null(v);
	body = json_dumps(v, 0);
	http_respond(x, status, "application/json", body, strlen(body));
	free(body);
	json_decref(v);
}

void http_stream_begin(struct http_exchange *x, int status, const char *content_type)
{
	begin(x, status, content_type);
	x->streaming = true;
}

size_t http_stream_write(struct http_exchange *x, const void *data, size_t len)
{
	check_open(x);
	assert_true(x->streaming);
	outbuf_add(&x->out, data, len);
	return x->waiting + len;
}

void http_stream_end(struct http_exchange *x)
{
	check_open(x);
	assert_true(x->streaming);
	x->end = FAKE_STREAM_ENDED;
}

void http_stream_abort(struct http_exchange *x)
{
	check_open(x);
	assert_true(x->streaming);
	x->end = FAKE_STREAM_ABORTED;
}

void http_watch(struct http_exchange *x, void (*on_gone)(void *user), void *user)
{
	check_open(x);
	x->on_gone = on_gone;
	x->gone_user = user;
}
