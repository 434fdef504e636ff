#include "tests/unit/http_harness.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/http_harness_app.h"

#define PATIENCE_S 30

void harness_wait_min(struct harness *h, const uint32_t *counter, uint32_t n)
{
	struct timespec until;
	int r = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_S;
	pthread_mutex_lock(&h->lock);
	while (*counter < n && r == 0)
		r = pthread_cond_timedwait(&h->change, &h->lock, &until);
	pthread_mutex_unlock(&h->lock);
	assert_int_equal(r, 0);
}

void harness_wait(struct harness *h, const uint32_t *counter, uint32_t n)
{
	struct timespec until;
	uint32_t seen;
	int r = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_S;
	pthread_mutex_lock(&h->lock);
	while (*counter != n && r == 0)
		r = pthread_cond_timedwait(&h->change, &h->lock, &until);
	seen = *counter;
	pthread_mutex_unlock(&h->lock);
	assert_int_equal(seen, n);
}

struct harness_counts harness_counts(struct harness *h)
{
	struct harness_counts c;

	pthread_mutex_lock(&h->lock);
	c = h->counts;
	pthread_mutex_unlock(&h->lock);
	return c;
}

static void on_bell(struct loop_event *ev, int res, bool more)
{
	struct harness *h = CONTAINER_OF(ev, struct harness, bell_event);
	void (*call)(struct harness * h, void *arg);
	eventfd_t v;

	if (res < 0)
		return;
	(void)eventfd_read(h->bell, &v);
	pthread_mutex_lock(&h->lock);
	call = h->call;
	pthread_mutex_unlock(&h->lock);
	if (!call)
		return;
	call(h, h->call_arg);
	pthread_mutex_lock(&h->lock);
	h->call = NULL;
	pthread_cond_broadcast(&h->change);
	pthread_mutex_unlock(&h->lock);
}

void harness_call(struct harness *h, void (*fn)(struct harness *h, void *arg), void *arg)
{
	pthread_mutex_lock(&h->lock);
	h->call_arg = arg;
	h->call = fn;
	(void)eventfd_write(h->bell, 1);
	while (h->call)
		pthread_cond_wait(&h->change, &h->lock);
	pthread_mutex_unlock(&h->lock);
}

/* Registered after the server's hook: what it counts is what the turn left. */
static void on_turn(void *user)
{
	struct harness *h = user;

	pthread_mutex_lock(&h->lock);
	h->counts.connections = http_server_connections(h->server);
	h->counts.turns++;
	pthread_cond_broadcast(&h->change);
	pthread_mutex_unlock(&h->lock);
}

/* The loop belongs to the thread that made it, so all of it is made here. */
static int serve_start(struct harness *h, struct errbuf *err)
{
	struct http_server_ops ops = {
		.on_request = app_on_request, .on_refused = app_on_refused, .user = h};
	int r = loop_new(64, &h->loop, err);

	if (r < 0)
		return r;
	r = http_server_new(h->loop, &h->limits, &ops, &h->server);
	for (size_t i = 0; i < h->listen.n && r == 0; i++)
		r = http_server_add_listener(
			h->server, h->listen.sockets[i].fd, h->listen.sockets[i].is_unix);
	h->bell_event.fn = on_bell;
	if (r == 0)
		r = loop_poll(h->loop, &h->bell_event, h->bell, POLLIN);
	h->hook = (struct loop_hook){.fn = on_turn, .user = h};
	loop_at_turn_end(h->loop, &h->hook);
	return r;
}

static void *serve(void *user)
{
	struct harness *h = user;
	struct errbuf err = {0};
	int r = serve_start(h, &err);

	if (r < 0)
		print_error("harness: %s (%d)\n", err.text, r);
	pthread_mutex_lock(&h->lock);
	h->ready = r < 0 ? r : 1;
	pthread_cond_broadcast(&h->change);
	pthread_mutex_unlock(&h->lock);
	if (r == 0 && loop_run(h->loop) < 0)
		print_error("harness: the loop failed\n");
	loop_settle(h->loop);
	app_free(h);
	http_server_free(h->server);
	loop_free(h->loop);
	return NULL;
}

struct harness *harness_start(const struct http_limits *limits, bool tcp)
{
	struct harness *h = calloc(1, sizeof(*h));
	struct errbuf err = {0};
	const char *tmp = getenv("TMPDIR");
	int r;

	assert_non_null(h);
	h->limits = limits ? *limits : (struct http_limits){0};
	if (!h->limits.max_body)
		h->limits.max_body = 4 << 20;
	if (!h->limits.max_connections)
		h->limits.max_connections = 4096;
	if (!h->limits.header_timeout)
		h->limits.header_timeout = 60 * NS_PER_S;
	if (!h->limits.write_timeout)
		h->limits.write_timeout = 60 * NS_PER_S;
	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->change, NULL);
	h->bell = eventfd(0, EFD_NONBLOCK);
	snprintf(h->dir, sizeof(h->dir), "%.40s/heddle-XXXXXX",
		tmp && strlen(tmp) <= 40 ? tmp : "/tmp");
	assert_non_null(mkdtemp(h->dir));
	snprintf(h->path, sizeof(h->path), "%s/s", h->dir);
	r = tcp ? listen_tcp(&h->listen, "127.0.0.1:0", &err)
		: listen_unix(&h->listen, h->path, 0600, "", &err);
	if (r < 0)
		fail_msg("%s", err.text);
	assert_int_equal(pthread_create(&h->thread, NULL, serve, h), 0);
	pthread_mutex_lock(&h->lock);
	while (h->ready == 0)
		pthread_cond_wait(&h->change, &h->lock);
	pthread_mutex_unlock(&h->lock);
	assert_int_equal(h->ready, 1);
	return h;
}

static void do_stop(struct harness *h, void *arg)
{
	loop_stop(h->loop);
}

void harness_stop(struct harness *h)
{
	harness_call(h, do_stop, NULL);
	pthread_join(h->thread, NULL);
	listen_close(&h->listen);
	close(h->bell);
	assert_int_equal(rmdir(h->dir), 0); /* the socket is gone with listen_close() */
	pthread_cond_destroy(&h->change);
	pthread_mutex_destroy(&h->lock);
	free(h);
}

static socklen_t address_of(struct harness *h, struct sockaddr_storage *addr)
{
	socklen_t len = sizeof(*addr);

	assert_int_equal(getsockname(h->listen.sockets[0].fd, (struct sockaddr *)addr, &len), 0);
	return len;
}

int client_socket(struct harness *h)
{
	struct timeval patience = {.tv_sec = PATIENCE_S};
	struct sockaddr_storage addr;
	int fd;

	address_of(h, &addr);
	fd = socket(addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
	return fd;
}

void client_connect_with(struct harness *h, int fd)
{
	struct sockaddr_storage addr;
	socklen_t len = address_of(h, &addr);

	if (connect(fd, (struct sockaddr *)&addr, len) < 0)
		fail_msg("connect: %s", strerror(errno));
}

int client_connect(struct harness *h)
{
	int fd = client_socket(h);

	client_connect_with(h, fd);
	return fd;
}

void client_send_bytes(int fd, const void *data, size_t len)
{
	const char *p = data;
	ssize_t n;

	for (; len > 0; p += n, len -= (size_t)n) {
		n = send(fd, p, len, MSG_NOSIGNAL);
		if (n < 0)
			fail_msg("send: %s", strerror(errno));
	}
}

void client_send(int fd, const char *text)
{
	client_send_bytes(fd, text, strlen(text));
}

/* -1 never: fails on a timeout. A reset is an end. */
static ssize_t client_read(int fd, void *buf, size_t len)
{
	ssize_t n = recv(fd, buf, len, 0);

	if (n < 0 && errno != ECONNRESET && errno != EPIPE)
		fail_msg("recv: %s", strerror(errno));
	return n < 0 ? 0 : n;
}

char *client_read_all(int fd, size_t *ret_len)
{
	size_t len = 0, cap = 65536;
	char *buf = malloc(cap + 1);
	ssize_t n;

	while ((n = client_read(fd, buf + len, cap - len)) > 0) {
		len += (size_t)n;
		if (len == cap)
			buf = realloc(buf, (cap *= 2) + 1);
	}
	buf[len] = '\0';
	if (ret_len)
		*ret_len = len;
	return buf;
}

/* Reads a line with its CRLF, a byte at a time: the next answer's bytes stay in the socket. */
static size_t read_line(int fd, char *line, size_t cap)
{
	size_t n = 0;

	while (n + 1 < cap && (n == 0 || line[n - 1] != '\n') && client_read(fd, line + n, 1) == 1)
		n++;
	line[n] = '\0';
	return n;
}

static void read_exactly(int fd, char **body, size_t *len, size_t more)
{
	*body = realloc(*body, *len + more + 1);
	for (ssize_t n; more > 0; more -= (size_t)n, *len += (size_t)n) {
		n = client_read(fd, *body + *len, more);
		if (n == 0)
			fail_msg("the answer ends %zu bytes early", more);
	}
	(*body)[*len] = '\0';
}

static int read_head(int fd, char *head, size_t cap, long *ret_length, bool *ret_chunked)
{
	size_t n = 0, line;
	int status = 0;

	*ret_length = 0;
	*ret_chunked = false;
	while ((line = read_line(fd, head + n, cap - n)) > 2) {
		char *at = head + n;

		if (n == 0)
			assert_int_equal(sscanf(at, "HTTP/1.1 %d ", &status), 1);
		if (strncasecmp(at, "content-length:", 15) == 0)
			*ret_length = strtol(at + 15, NULL, 10);
		if (strcasecmp(at, "transfer-encoding: chunked\r\n") == 0)
			*ret_chunked = true;
		n += line;
	}
	return status;
}

int client_read_answer(int fd, char **ret_head, char **ret_body, size_t *ret_len)
{
	char head[16384], line[64], *body = calloc(1, 1);
	size_t len = 0, chunk;
	bool chunked;
	long length;
	int status;

	do {
		status = read_head(fd, head, sizeof(head), &length, &chunked);
	} while (status == 100);
	if (status != 204 && !chunked)
		read_exactly(fd, &body, &len, (size_t)length);
	while (chunked) {
		if (read_line(fd, line, sizeof(line)) == 0)
			break; /* broken off */
		chunk = strtoul(line, NULL, 16);
		read_exactly(fd, &body, &len, chunk);
		assert_int_equal(read_line(fd, line, sizeof(line)), 2);
		if (chunk == 0)
			break;
	}
	if (ret_head)
		*ret_head = strdup(head);
	if (ret_len)
		*ret_len = len;
	if (ret_body)
		*ret_body = body;
	else
		free(body);
	return status;
}

void client_expect(int fd, int status, const char *want)
{
	char *body = NULL;

	assert_int_equal(client_read_answer(fd, NULL, &body, NULL), status);
	if (want)
		assert_string_equal(body, want);
	free(body);
}

void client_expect_end(int fd)
{
	char c;

	assert_int_equal(client_read(fd, &c, 1), 0);
}

void harness_expect_healthy(struct harness *h)
{
	int fd;

	harness_wait(h, &h->counts.connections, 0);
	fd = client_connect(h);
	client_send(fd, GET("/echo"));
	client_expect(fd, 200, "");
	close(fd);
	harness_wait(h, &h->counts.connections, 0);
}
