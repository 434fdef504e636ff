/*
 * conn.h: one connection of the HTTP server: what it waits for, whose turn it is, how it ends.
 * Internal to the server: http.c (connections as a set), http_answer.c (what goes out) and conn.c
 * (one of them) share these structs; everybody else sees http.h.
 *
 *	IDLE ─ first byte ─▶ READING ─ request ─▶ HANDLER ─ answer ─▶ SENDING ─┬─▶ IDLE
 *	                        │ refused (4xx, 5xx) ────────────────────▲     └─▶ LINGER ─▶ CLOSED
 *
 * LINGER: our side is shut, and what the client still sends is read and dropped within bounds, so
 * that it gets to read the answer instead of a reset. CLOSED, from any state: waits for the loop to
 * let go of its events, and for a handler that still holds the exchange.
 */
#ifndef COORDINATOR_CONN_H
#define COORDINATOR_CONN_H

#include "coordinator/http.h"
#include "coordinator/http_parse.h"
#include "coordinator/loop.h"
#include "coordinator/stream.h"

enum {
	CONN_READ_BYTES = 65536,       /* of one read */
	CONN_READS_PER_TURN = 16,      /* so that one upload does not hold up everybody */
	CONN_LINGER_BYTES = 256 << 20, /* dropped at most, after the last answer */
	CONN_BACKLOG_BYTES =
		64 << 20,         /* a streamed answer that waits; more and the client is cut */
	CONN_HEADER_BYTES = 8192, /* added to one answer */
	CONN_REFUSALS = 64,       /* connections over the limit that still get their 503 */
	CONN_BODIES_FACTOR = 16,  /* bodies held at a time, in units of max_body */
};
#define CONN_IDLE_NS   (75 * NS_PER_S) /* between two requests */
#define CONN_LINGER_NS (5 * NS_PER_S)

enum conn_state {
	CONN_IDLE,
	CONN_READING,
	CONN_HANDLER,
	CONN_SENDING,
	CONN_LINGER,
	CONN_CLOSED,
};

enum exchange_state {
	EXCHANGE_NONE,
	EXCHANGE_OPEN,      /* the handler owes an answer */
	EXCHANGE_STREAMING, /* the head is out */
	EXCHANGE_ANSWERED,  /* the handler is done with it */
};

struct http_exchange {
	enum exchange_state state;
	void (*on_gone)(void *user);
	void *user;
	int status;
	bool chunked, no_body;
	uint64_t body_bytes; /* of the answer, for the log */
	struct stream_buf headers;
	char id[36];
};

struct conn_list {
	struct http_conn *first, *last;
};

struct http_conn {
	struct http_server *server;
	struct http_conn *next, *prev;           /* server->conns */
	struct http_conn *idle_next, *idle_prev; /* of *idle, in order of falling idle */
	struct conn_list *idle;                  /* server->kept, server->fresh, or NULL */
	struct http_conn *dirty_next;
	bool is_dirty;
	int fd;
	enum conn_state state;
	bool readable, eof; /* what the last poll and read said */
	bool is_unix;
	bool peer_shut;   /* the other side will send nothing more */
	bool close_after; /* this answer is the last */
	struct loop_event poll;
	struct loop_timer deadline;
	struct stream out;
	struct http_parse parse;
	struct http_exchange x;
	char *ahead; /* bytes of the next request that came with this one's */
	size_t ahead_len;
	size_t body_charge; /* counted in server->body_bytes */
	size_t lingered;
	pid_t peer_pid;
	uid_t peer_uid;
	char peer[64];
};

struct http_listener {
	struct http_listener *next;
	struct http_server *server;
	struct loop_event accept;
	struct loop_timer retry;
	int fd;
	bool is_unix;
};

struct http_server {
	struct loop *loop;
	struct http_limits limits;
	struct http_server_ops ops;
	struct http_listener *listeners;
	struct http_conn *conns;
	struct conn_list kept;  /* answered, and waiting for another request */
	struct conn_list fresh; /* new, with nothing of a request yet */
	struct http_conn *dirty;
	uint32_t n_conns;  /* in memory */
	uint32_t n_open;   /* of these, not closed */
	size_t body_bytes; /* request bodies in memory */
	struct loop_hook hook;
	bool draining;
	void (*on_idle)(void *user);
	void *on_idle_user;
	char scratch[CONN_READ_BYTES];
};

/* Takes fd over. `refuse`: only to be told that there are too many. NULL: no memory, fd closed. */
struct http_conn *conn_new(struct http_server *s, int fd, bool is_unix, bool refuse);
/* Turn-end service: flushes, tells handlers whose client went, frees what is over. */
void conn_service(struct http_conn *c);
/* Sees to it that conn_service() runs at the end of this turn. */
void conn_touch(struct http_conn *c);
/* Ends it without a word. */
void conn_close(struct http_conn *c);
/* A request that has come in part is answered so, and the connection closes. */
void conn_refuse_part(struct http_conn *c, int status, const char *code, const char *message);
/* Frees it now; the loop is settled. */
void conn_destroy(struct http_conn *c);
/* Keeps the server's count of body bytes in memory, after the parser's buffer has changed. */
void conn_charge_body(struct http_conn *c);
/* The answer is complete: send it, then go on or close. */
void conn_answered(struct http_conn *c);

static inline struct http_conn *conn_of(const struct http_exchange *x)
{
	return (struct http_conn *)((uintptr_t)x - offsetof(struct http_conn, x));
}

#endif
