/* first, for _GNU_SOURCE: struct ucred, POLLRDHUP */
#include "config.h"

#include "coordinator/conn.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "coordinator/http_answer.h"
#include "shm/utf8.h"

#define LOG_TAG "http"
#include "shm/log.h"

static void handle_input(struct http_conn *c);

void conn_touch(struct http_conn *c)
{
	struct http_server *s = c->server;

	if (!c->is_dirty) {
		c->is_dirty = true;
		c->dirty_next = s->dirty;
		s->dirty = c;
	}
	/* another module's hook may be the one that calls, after ours has run in this turn */
	loop_again(s->loop);
}

static void set_deadline(struct http_conn *c, mono_ns_t ns)
{
	loop_timer_set(c->server->loop, &c->deadline, loop_now(c->server->loop) + ns);
}

static void leave_idle(struct http_conn *c)
{
	struct conn_list *l = c->idle;

	if (!l)
		return;
	c->idle = NULL;
	*(c->idle_prev ? &c->idle_prev->idle_next : &l->first) = c->idle_next;
	*(c->idle_next ? &c->idle_next->idle_prev : &l->last) = c->idle_prev;
}

static void enter_idle(struct http_conn *c, struct conn_list *l, mono_ns_t patience_ns)
{
	c->state = CONN_IDLE;
	c->idle = l;
	c->idle_next = NULL;
	c->idle_prev = l->last;
	*(l->last ? &l->last->idle_next : &l->first) = c;
	l->last = c;
	set_deadline(c, patience_ns);
}

void conn_charge_body(struct http_conn *c)
{
	c->server->body_bytes += c->parse.body_cap - c->body_charge;
	c->body_charge = c->parse.body_cap;
}

static void forget_request(struct http_conn *c)
{
	http_parse_reset(&c->parse);
	conn_charge_body(c);
	free(c->x.headers.data);
	c->x = (struct http_exchange){0};
}

/* One line for each request; 499: the client went before it had the whole answer. */
static void log_request(const struct http_conn *c, int status)
{
	const struct http_request *req = &c->parse.req;
	double ms = req->arrived ? (double)(mono_now() - req->arrived) / NS_PER_MS : 0;
	const char *method = req->method ? req->method : "-", *path = req->path ? req->path : "-";
	int shown = (int)utf8_fit(path, strlen(path), 200);

	log_info("%s %.*s %d %llu bytes %.1f ms %s %s", c->parse.is_head ? "HEAD" : method, shown,
		path, status, (unsigned long long)c->x.body_bytes, ms, req->id ? req->id : "-",
		c->peer);
}

void conn_close(struct http_conn *c)
{
	if (c->state == CONN_CLOSED)
		return;
	if (c->x.state != EXCHANGE_NONE)
		log_request(c, 499);
	leave_idle(c);
	c->state = CONN_CLOSED;
	c->server->n_open--;
	loop_timer_stop(c->server->loop, &c->deadline);
	loop_cancel(c->server->loop, &c->poll);
	stream_cancel(&c->out);
	conn_touch(c);
}

static void begin_exchange(struct http_conn *c)
{
	struct http_request *req = &c->parse.req;
	unsigned long long r = 0;

	c->x = (struct http_exchange){.state = EXCHANGE_OPEN, .no_body = c->parse.is_head};
	c->state = CONN_HANDLER;
	loop_timer_stop(c->server->loop, &c->deadline);
	if (getrandom(&r, sizeof(r), GRND_NONBLOCK) < 0)
		r = mono_now();
	snprintf(c->x.id, sizeof(c->x.id), "req-%016llx", r);
	req->id = http_answer_id(req);
	if (!req->id)
		req->id = c->x.id;
	if (!req->arrived)
		req->arrived = loop_now(c->server->loop);
	req->peer = c->peer;
	req->peer_pid = c->peer_pid;
	req->peer_uid = c->peer_uid;
}

/* The parser has refused what came; nothing after it can be understood. */
static void refuse(struct http_conn *c)
{
	struct http_parse *p = &c->parse;

	leave_idle(c);
	begin_exchange(c);
	c->close_after = true;
	if (c->server->ops.on_refused)
		c->server->ops.on_refused(c->server->ops.user, p->status);
	if (p->status == 503)
		(void)!http_add_header(&c->x, "retry-after", HTTP_RETRY_503);
	http_respond_error(&c->x, p->status,
		p->status < 500 ? "invalid_request_error" : "server_error", NULL, p->code, "%s",
		p->message);
}

static void shut_and_linger(struct http_conn *c)
{
	if (c->eof || shutdown(c->fd, SHUT_WR) < 0) {
		conn_close(c);
		return;
	}
	c->state = CONN_LINGER;
	set_deadline(c, CONN_LINGER_NS);
	free(c->ahead);
	c->ahead = NULL;
	c->ahead_len = 0;
	handle_input(c);
}

/* The whole answer is with the kernel. */
static void finish_answer(struct http_conn *c)
{
	log_request(c, c->x.status);
	forget_request(c);
	if (c->close_after || c->server->draining) {
		shut_and_linger(c);
		return;
	}
	enter_idle(c, &c->server->kept, CONN_IDLE_NS);
	handle_input(c);
}

void conn_answered(struct http_conn *c)
{
	if (c->state == CONN_CLOSED) {
		/* its client is gone, and nobody told the handler because it did not ask */
		c->x.state = EXCHANGE_NONE;
	} else {
		c->x.state = EXCHANGE_ANSWERED;
		c->state = CONN_SENDING;
	}
	conn_touch(c);
}

static void on_sent(struct stream *out, int res, bool idle)
{
	struct http_conn *c = CONTAINER_OF(out, struct http_conn, out);

	if (c->state == CONN_CLOSED || res < 0) {
		conn_close(c);
		conn_touch(c);
	} else if (stream_waiting(out) > 0) {
		if (c->state == CONN_HANDLER || c->state == CONN_SENDING)
			set_deadline(c, c->server->limits.write_timeout); /* it reads */
		stream_flush(out);
	} else if (c->state == CONN_SENDING) {
		finish_answer(c);
	}
}

void conn_refuse_part(struct http_conn *c, int status, const char *code, const char *message)
{
	if (c->state != CONN_READING)
		return;
	http_parse_refuse(&c->parse, status, code, "%s", message);
	refuse(c);
}

static void on_deadline(struct loop_timer *t, void *user)
{
	struct http_conn *c = user;

	/* All was sent in time, and the timer left to run out: stopping it for each of thousands
	 * of events a second costs more. */
	if (c->state == CONN_HANDLER && !stream_in_flight(&c->out))
		return;
	if (c->state != CONN_READING) {
		conn_close(c);
		return;
	}
	conn_refuse_part(c, 408, "request_timeout",
		c->parse.state == HTTP_PARSE_BODY
			? "the body of the request paused for longer than api.header_timeout"
			: "the head of the request took longer than api.header_timeout");
}

static void on_poll(struct loop_event *ev, int res, bool more)
{
	struct http_conn *c = CONTAINER_OF(ev, struct http_conn, poll);

	if (!more || res < 0 || (res & (POLLHUP | POLLERR))) {
		conn_close(c);
		conn_touch(c);
		return;
	}
	c->readable = true;
	if (res & POLLRDHUP) {
		c->peer_shut = true;
		conn_touch(c);
	}
	handle_input(c);
}

/* Gives the parser bytes; what belongs to the next request is kept for later. */
static void feed(struct http_conn *c, const char *data, size_t len)
{
	struct http_server *s = c->server;
	struct http_parse *p = &c->parse;
	bool had_begun = p->state != HTTP_PARSE_IDLE;
	size_t used;
	char *rest;

	if (!had_begun)
		p->max_body = s->limits.max_body; /* it may have been reloaded */
	http_parse_feed(p, data, len, &used);
	conn_charge_body(c);
	if (p->state == HTTP_PARSE_IDLE) { /* blank lines */
		if (s->draining)
			conn_close(c);
		return;
	}
	leave_idle(c);
	c->state = CONN_READING;
	if (!had_begun)
		p->req.arrived = loop_now(s->loop);
	if (!had_begun || p->state == HTTP_PARSE_BODY)
		set_deadline(c, s->limits.header_timeout);
	if (p->state == HTTP_PARSE_BODY && s->body_bytes > s->limits.max_body * CONN_BODIES_FACTOR)
		http_parse_refuse(
			p, 503, "overloaded", "too many large requests at a time: try again later");
	if (p->state == HTTP_PARSE_DONE && used < len) {
		rest = malloc(len - used);
		if (rest)
			memcpy(rest, data + used, len - used);
		else
			c->close_after = true; /* the next request is lost, this one is not */
		free(c->ahead);
		c->ahead = rest;
		c->ahead_len = rest ? len - used : 0;
	} else if (p->state == HTTP_PARSE_BODY && p->expect_continue) {
		p->expect_continue = false;
		if (p->body_len == 0 && http_answer_continue(c) < 0)
			conn_close(c);
	}
}

static void dispatch(struct http_conn *c)
{
	struct http_server *s = c->server;

	if (c->parse.state == HTTP_PARSE_REFUSED) {
		refuse(c);
	} else if (c->parse.state == HTTP_PARSE_DONE) {
		if (!c->parse.keep_alive)
			c->close_after = true;
		begin_exchange(c);
		s->ops.on_request(s->ops.user, &c->x);
	}
}

static void end_of_input(struct http_conn *c)
{
	c->eof = true;
	if (c->state != CONN_READING) {
		conn_close(c);
		return;
	}
	http_parse_refuse(&c->parse, 400, "incomplete_request",
		"the connection was shut in the middle of the request");
	refuse(c);
}

/* One read. Returns whether there may be more. */
static bool read_some(struct http_conn *c)
{
	char *buf = c->server->scratch;
	ssize_t n = recv(c->fd, buf, CONN_READ_BYTES, MSG_DONTWAIT);

	if (n > 0 && c->state == CONN_LINGER) {
		c->lingered += (size_t)n;
		if (c->lingered > CONN_LINGER_BYTES)
			conn_close(c);
	} else if (n > 0) {
		feed(c, buf, (size_t)n);
	} else if (n == 0) {
		end_of_input(c);
	} else if (errno == EAGAIN) {
		c->readable = false;
	} else if (errno != EINTR) {
		conn_close(c);
	}
	return c->readable;
}

static bool wants_input(const struct http_conn *c)
{
	return c->state == CONN_IDLE || c->state == CONN_READING || c->state == CONN_LINGER;
}

/* Reads until there is nothing, a request is whole, or it is others' turn. */
static void handle_input(struct http_conn *c)
{
	int reads = CONN_READS_PER_TURN;
	size_t len;
	char *data;

	while (wants_input(c)) {
		if (c->ahead_len > 0) {
			data = c->ahead;
			len = c->ahead_len;
			c->ahead = NULL;
			c->ahead_len = 0;
			feed(c, data, len);
			free(data);
		} else if (!c->readable || c->eof) {
			return;
		} else if (reads-- == 0) {
			conn_touch(c);
			return;
		} else if (!read_some(c)) {
			return;
		}
		if (c->state == CONN_READING)
			dispatch(c);
	}
}

/* Over: what is left depends on the loop's last callbacks and on the handler. */
static void service_closed(struct http_conn *c)
{
	struct http_exchange *x = &c->x;
	void (*on_gone)(void *user) = x->on_gone;

	if (x->state == EXCHANGE_ANSWERED)
		x->state = EXCHANGE_NONE;
	if (x->state != EXCHANGE_NONE && on_gone) {
		x->state = EXCHANGE_NONE;
		on_gone(x->user);
	}
	if (!loop_is_idle(&c->poll) || stream_in_flight(&c->out))
		return;
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	if (x->state == EXCHANGE_NONE)
		conn_destroy(c);
}

void conn_service(struct http_conn *c)
{
	if (c->state != CONN_CLOSED)
		handle_input(c);
	/* TCP does not tell a client that has closed from one that still listens (http.h) */
	if (c->state == CONN_HANDLER && c->peer_shut && !c->is_unix)
		conn_close(c);
	if (c->state == CONN_CLOSED) {
		service_closed(c);
		return;
	}
	if (stream_waiting(&c->out) > CONN_BACKLOG_BYTES && c->state == CONN_HANDLER) {
		log_info("%s: cut off: %zu bytes of the answer wait for %s", c->parse.req.id,
			stream_waiting(&c->out), c->peer);
		conn_close(c);
		return;
	}
	if (!stream_in_flight(&c->out)) {
		stream_flush(&c->out);
		if (stream_in_flight(&c->out)) {
			if (c->state == CONN_HANDLER || c->state == CONN_SENDING)
				set_deadline(c, c->server->limits.write_timeout);
		} else if (c->state == CONN_SENDING) {
			finish_answer(c);
		}
	}
}

static void find_peer(struct http_conn *c, bool is_unix)
{
	struct sockaddr_storage addr;
	socklen_t len = sizeof(addr);
	struct ucred cred;
	char host[48], port[8];
	int one = 1;

	snprintf(c->peer, sizeof(c->peer), "unix");
	c->peer_pid = -1;
	c->peer_uid = (uid_t)-1;
	if (is_unix) {
		len = sizeof(cred);
		if (getsockopt(c->fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0) {
			c->peer_pid = cred.pid;
			c->peer_uid = cred.uid;
			snprintf(c->peer, sizeof(c->peer), "unix pid %d uid %u", (int)cred.pid,
				(unsigned)cred.uid);
		}
		return;
	}
	(void)setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	snprintf(c->peer, sizeof(c->peer), "tcp");
	if (getpeername(c->fd, (struct sockaddr *)&addr, &len) == 0 &&
		getnameinfo((struct sockaddr *)&addr, len, host, sizeof(host), port, sizeof(port),
			NI_NUMERICHOST | NI_NUMERICSERV) == 0)
		snprintf(c->peer, sizeof(c->peer), addr.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s",
			host, port);
}

struct http_conn *conn_new(struct http_server *s, int fd, bool is_unix, bool refuse_it)
{
	struct http_conn *c = calloc(1, sizeof(*c));

	if (!c) {
		close(fd);
		return NULL;
	}
	c->server = s;
	c->fd = fd;
	c->is_unix = is_unix;
	c->poll.fn = on_poll;
	c->deadline = (struct loop_timer){.fn = on_deadline, .user = c};
	stream_init(&c->out, s->loop, fd, on_sent);
	http_parse_init(&c->parse, s->limits.max_body);
	find_peer(c, is_unix);
	c->next = s->conns;
	if (s->conns)
		s->conns->prev = c;
	s->conns = c;
	s->n_conns++;
	s->n_open++;
	if (loop_poll(s->loop, &c->poll, fd, POLLIN | POLLRDHUP) < 0) {
		c->state = CONN_CLOSED;
		s->n_open--;
		conn_touch(c);
		return c;
	}
	enter_idle(c, &s->fresh, s->limits.header_timeout);
	if (refuse_it) {
		http_parse_refuse(&c->parse, 503, "overloaded",
			"more than %u connections (api.max_connections): try again later",
			s->limits.max_connections);
		refuse(c);
	}
	return c;
}

void conn_destroy(struct http_conn *c)
{
	struct http_server *s = c->server;

	forget_request(c);
	http_parse_fini(&c->parse);
	stream_fini(&c->out);
	free(c->ahead);
	if (c->fd >= 0)
		close(c->fd);
	*(c->prev ? &c->prev->next : &s->conns) = c->next;
	if (c->next)
		c->next->prev = c->prev;
	s->n_conns--;
	free(c);
}
