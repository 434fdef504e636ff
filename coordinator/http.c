#include "coordinator/http.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "coordinator/conn.h"

#define LOG_TAG "http"
#include "shm/log.h"

/* How long a listener rests after it could not accept: out of files, mostly. */
#define ACCEPT_RETRY_NS (100 * NS_PER_MS)

static void check_drained(struct http_server *s)
{
	void (*on_idle)(void *user) = s->on_idle;

	if (!s->draining || s->n_conns > 0 || !on_idle)
		return;
	s->on_idle = NULL;
	on_idle(s->on_idle_user);
}

/* Once a turn: connections that have something to send, to read on, or to end. */
static void on_turn_end(void *user)
{
	struct http_server *s = user;
	struct http_conn *c = s->dirty, *next;

	/* one touched again meanwhile gets its service in the next turn, which does not wait */
	s->dirty = NULL;
	for (; c; c = next) {
		next = c->dirty_next;
		c->is_dirty = false;
		conn_service(c);
	}
	check_drained(s);
}

/* Nothing of a request has come. The kernel is asked: the loop may get to it only later in this
 * turn. */
static bool is_silent(const struct http_conn *c)
{
	char byte;

	return !c->readable && recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
}

static struct http_conn *longest_silent(const struct conn_list *list)
{
	struct http_conn *c = list->first;

	while (c && !is_silent(c))
		c = c->idle_next;
	return c;
}

static void close_silent(const struct conn_list *list)
{
	struct http_conn *c, *next;

	for (c = list->first; c; c = next) {
		next = c->idle_next;
		if (is_silent(c))
			conn_close(c);
	}
}

/*
 * Makes room for a new connection. A client that has been answered knows that an idle connection
 * may end; one that has just connected does not, so it is only second.
 */
static bool evict_idle(struct http_server *s)
{
	struct http_conn *c = longest_silent(&s->kept);

	if (!c)
		c = longest_silent(&s->fresh);
	if (c)
		conn_close(c);
	return c != NULL;
}

static void take(struct http_listener *l, int fd)
{
	struct http_server *s = l->server;
	bool refuse = s->n_open >= s->limits.max_connections && !evict_idle(s);

	if (refuse && s->n_conns >= s->limits.max_connections + CONN_REFUSALS)
		close(fd);
	else if (!conn_new(s, fd, l->is_unix, refuse))
		log_warn("no memory for a connection");
}

static void on_accept(struct loop_event *ev, int res, bool more)
{
	struct http_listener *l = CONTAINER_OF(ev, struct http_listener, accept);
	struct http_server *s = l->server;

	if (res >= 0)
		take(l, res);
	if (more || s->draining)
		return;
	log_warn("cannot accept connections: %s; trying again", strerror(-res));
	loop_timer_set(s->loop, &l->retry, loop_now(s->loop) + ACCEPT_RETRY_NS);
}

static void on_retry(struct loop_timer *t, void *user)
{
	struct http_listener *l = user;

	if (loop_accept(l->server->loop, &l->accept, l->fd) < 0)
		log_err("cannot listen any more");
}

int http_server_new(struct loop *loop, const struct http_limits *limits,
	const struct http_server_ops *ops, struct http_server **ret_server)
{
	struct http_server *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->loop = loop;
	s->limits = *limits;
	s->ops = *ops;
	s->hook = (struct loop_hook){.fn = on_turn_end, .user = s};
	loop_at_turn_end(loop, &s->hook);
	*ret_server = s;
	return 0;
}

int http_server_add_listener(struct http_server *s, int listen_fd, bool is_unix)
{
	struct http_listener *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return -ENOMEM;
	l->server = s;
	l->fd = listen_fd;
	l->is_unix = is_unix;
	l->accept.fn = on_accept;
	l->retry = (struct loop_timer){.fn = on_retry, .user = l};
	r = loop_accept(s->loop, &l->accept, listen_fd);
	if (r < 0) {
		free(l);
		return r;
	}
	l->next = s->listeners;
	s->listeners = l;
	return 0;
}

void http_server_set_limits(struct http_server *s, const struct http_limits *limits)
{
	s->limits = *limits;
}

uint32_t http_server_connections(const struct http_server *s)
{
	return s->n_conns;
}

void http_server_drain(struct http_server *s, void (*on_idle)(void *user), void *user)
{
	s->draining = true;
	s->on_idle = on_idle;
	s->on_idle_user = user;
	for (struct http_listener *l = s->listeners; l; l = l->next) {
		loop_timer_stop(s->loop, &l->retry);
		loop_cancel(s->loop, &l->accept);
	}
	close_silent(&s->kept);
	close_silent(&s->fresh);
	loop_again(s->loop); /* on_idle comes from the hook even when there is nobody */
}

void http_server_refuse_parts(struct http_server *s, const char *code, const char *message)
{
	for (struct http_conn *c = s->conns; c; c = c->next)
		conn_refuse_part(c, 503, code, message);
}

struct http_server *http_server_free(struct http_server *s)
{
	struct http_listener *l;

	if (!s)
		return NULL;
	loop_settle(s->loop);
	loop_hook_remove(s->loop, &s->hook);
	while (s->conns) {
		loop_timer_stop(s->loop, &s->conns->deadline);
		conn_destroy(s->conns);
	}
	while ((l = s->listeners)) {
		s->listeners = l->next;
		loop_timer_stop(s->loop, &l->retry);
		free(l);
	}
	free(s);
	return NULL;
}
