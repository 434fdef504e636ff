#include "tests/unit/http_harness_app.h"

#include <errno.h>

/* An exchange that the application still owes something. */
struct pending {
	struct pending *next;
	struct harness *h;
	struct http_exchange *x;
	struct loop_timer pause; /* /pause */
	long left;               /* /drip */
	bool later;
};

static void forget(struct pending *p)
{
	struct pending **at = &p->h->pending;

	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	loop_timer_stop(p->h->loop, &p->pause);
	free(p);
}

static void count(struct harness *h, uint32_t *counter)
{
	pthread_mutex_lock(&h->lock);
	++*counter;
	pthread_cond_broadcast(&h->change);
	pthread_mutex_unlock(&h->lock);
}

static void on_gone(void *user)
{
	struct pending *p = user;
	struct harness *h = p->h;

	forget(p);
	count(h, &h->counts.gone);
}

static struct pending *hold(struct harness *h, struct http_exchange *x, bool watch)
{
	struct pending *p = calloc(1, sizeof(*p));

	p->h = h;
	p->x = x;
	p->next = h->pending;
	h->pending = p;
	if (watch)
		http_watch(x, on_gone, p);
	count(h, &h->counts.held);
	return p;
}

static void do_release(struct harness *h, void *arg)
{
	struct pending *next;

	for (struct pending *p = h->pending; p; p = next) {
		next = p->next;
		if (!p->later)
			continue;
		http_respond(p->x, 200, "text/plain", "late", 4);
		forget(p);
	}
}

void harness_release(struct harness *h)
{
	harness_call(h, do_release, NULL);
}

static void echo(struct http_exchange *x, const struct http_request *q)
{
	char uid[24];

	snprintf(uid, sizeof(uid), "%d", (int)q->peer_uid);
	if (http_add_header(x, "x-method", q->method) < 0 ||
		http_add_header(x, "x-path", q->path) < 0 ||
		http_add_header(x, "x-query", q->query) < 0 ||
		http_add_header(x, "x-uid", uid) < 0 || http_add_header(x, "x-peer", q->peer) < 0)
		http_respond(x, 500, NULL, "", 0);
	else
		http_respond(x, 200, "text/plain", q->body, q->body_len);
}

static void stream_all(struct http_exchange *x, long n)
{
	char text[32];

	http_stream_begin(x, 200, "text/event-stream");
	for (long i = 0; i < n; i++)
		http_stream_write(x, text, (size_t)sprintf(text, "data: %ld\n\n", i));
	http_stream_write(x, "", 0); /* must not end the stream */
	http_stream_write(x, "data: [DONE]\n\n", 14);
	http_stream_end(x);
}

/* One timer for all: what a step of the model brings, each stream gets in the same turn. */
static void on_drip(struct loop_timer *t, void *user)
{
	struct harness *h = user;
	struct pending *next;

	for (struct pending *p = h->pending; p; p = next) {
		char text[24], *at = text + sizeof(text);
		long n = p->left;

		next = p->next;
		if (n == 0)
			continue;
		*--at = ',';
		for (; n > 0; n /= 10)
			*--at = (char)('0' + n % 10);
		http_stream_write(p->x, at, (size_t)(text + sizeof(text) - at));
		if (--p->left > 0) {
			loop_timer_set(h->loop, t, 1); /* next turn */
			continue;
		}
		http_stream_end(p->x);
		forget(p);
	}
}

static void drip(struct harness *h, struct http_exchange *x, long n)
{
	struct pending *p = hold(h, x, true);

	http_stream_begin(x, 200, "text/plain");
	p->left = MAX(n, 1);
	h->drip.fn = on_drip;
	h->drip.user = h;
	loop_timer_set(h->loop, &h->drip, 1);
}

static void after_pause(struct loop_timer *t, void *user)
{
	struct pending *p = user;

	(void)t;
	http_stream_write(p->x, "after", 5);
	http_stream_end(p->x);
	forget(p);
}

static void pause_for(struct harness *h, struct http_exchange *x, long ms)
{
	struct pending *p = hold(h, x, true);

	http_stream_begin(x, 200, "text/plain");
	http_stream_write(x, "before ", 7);
	p->pause = (struct loop_timer){.fn = after_pause, .user = p};
	loop_timer_set(h->loop, &p->pause, loop_now(h->loop) + (mono_ns_t)ms * NS_PER_MS);
}

static void flood(struct harness *h, struct http_exchange *x)
{
	static char block[65536];
	size_t waiting = 0;

	memset(block, 'f', sizeof(block));
	hold(h, x, true);
	http_stream_begin(x, 200, "text/plain");
	while (waiting < (8 << 20))
		waiting = http_stream_write(x, block, sizeof(block));
	pthread_mutex_lock(&h->lock);
	h->counts.backlog = waiting;
	pthread_mutex_unlock(&h->lock);
}

static void big(struct http_exchange *x, size_t n)
{
	char *body = malloc(n + 1);

	for (size_t i = 0; i < n; i++)
		body[i] = (char)('a' + i % 26);
	http_respond(x, 200, "text/plain", body, n);
	free(body);
}

static void bad_headers(struct http_exchange *x)
{
	static char huge[16384];
	bool ok = http_add_header(x, "x-a", "b\r\nx-evil: 1") == -EINVAL &&
		  http_add_header(x, "x-a\r\n", "b") == -EINVAL &&
		  http_add_header(x, "x a", "b") == -EINVAL &&
		  http_add_header(x, "x:a", "b") == -EINVAL &&
		  http_add_header(x, "", "b") == -EINVAL;

	memset(huge, 'h', sizeof(huge) - 1);
	ok = ok && http_add_header(x, "x-huge", huge) == -E2BIG &&
	     http_add_header(x, "x-good", "g") == 0;
	http_respond(x, 200, "text/plain", ok ? "ok" : "bad", ok ? 2 : 3);
}

void app_on_refused(void *user, int status)
{
	struct harness *h = user;

	h->counts.refused_status = status;
	count(h, &h->counts.refused);
}

void app_on_request(void *user, struct http_exchange *x)
{
	struct harness *h = user;
	const struct http_request *q = http_request(x);
	long n = strtol(q->query, NULL, 10);

	count(h, &h->counts.requests);
	if (strncmp(q->path, "/echo", 5) == 0) {
		echo(x, q);
	} else if (strcmp(q->path, "/hold") == 0) {
		http_drop_body(x);
		hold(h, x, true);
	} else if (strcmp(q->path, "/later") == 0) {
		hold(h, x, true)->later = true;
	} else if (strcmp(q->path, "/later/nowatch") == 0) {
		hold(h, x, false)->later = true;
	} else if (strcmp(q->path, "/stream") == 0) {
		stream_all(x, n);
	} else if (strcmp(q->path, "/drip") == 0) {
		drip(h, x, n);
	} else if (strcmp(q->path, "/pause") == 0) {
		pause_for(h, x, n);
	} else if (strcmp(q->path, "/flood") == 0) {
		flood(h, x);
	} else if (strcmp(q->path, "/abort") == 0) {
		http_stream_begin(x, 200, "text/plain");
		http_stream_write(x, "half", 4);
		http_stream_abort(x);
	} else if (strcmp(q->path, "/big") == 0) {
		big(x, (size_t)n);
	} else if (strcmp(q->path, "/error") == 0) {
		http_respond_error(x, 422, "invalid_request_error", "n", NULL,
			"n must be \"1\", not \xff%s", "\xc3\xa4");
	} else if (strcmp(q->path, "/none") == 0) {
		http_respond(x, 204, NULL, "", 0);
	} else if (strcmp(q->path, "/headers") == 0) {
		bad_headers(x);
	} else {
		http_respond_error(
			x, 404, "invalid_request_error", NULL, "not_found", "no %s", q->path);
	}
}

void app_free(struct harness *h)
{
	while (h->pending)
		forget(h->pending);
}
