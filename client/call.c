#include "client/call.h"

#include <stdlib.h>
#include <string.h>

#include <curl/curl.h>
#include <jansson.h>

enum { REPLY_MAX = 256 << 20, CONNECT_TIMEOUT_S = 10, POLL_MS = 1000 };

/* One call while it runs. */
struct transfer {
	const struct call *call;
	CURL *easy;
	struct call_reply reply;
	size_t cap;
	int stop; /* non-zero: given up, with this error */
};

void call_reply_fini(struct call_reply *reply)
{
	free(reply->body);
	memset(reply, 0, sizeof(*reply));
}

static int collect(struct transfer *t, const char *bytes, size_t n)
{
	if (n > REPLY_MAX - t->reply.len)
		return -EMSGSIZE;
	if (t->reply.len + n + 1 > t->cap) {
		size_t want = MAX(2 * t->cap, t->reply.len + n + 1024);
		char *bigger = realloc(t->reply.body, want);

		if (!bigger)
			return -ENOMEM;
		t->reply.body = bigger;
		t->cap = want;
	}
	memcpy(t->reply.body + t->reply.len, bytes, n);
	t->reply.len += n;
	t->reply.body[t->reply.len] = '\0';
	return 0;
}

static size_t on_body(char *bytes, size_t size, size_t n, void *user)
{
	struct transfer *t = user;
	const char *type = NULL;
	long status = 0;

	n *= size;
	curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
	curl_easy_getinfo(t->easy, CURLINFO_CONTENT_TYPE, &type);
	if (t->call->on_stream && status == 200 && type &&
		strncmp(type, "text/event-stream", 17) == 0)
		t->stop = t->call->on_stream(t->call->user, bytes, n) ? -ECANCELED : 0;
	else
		t->stop = collect(t, bytes, n);
	return t->stop ? 0 : n; /* fewer than given makes curl give up */
}

/* Runs the handle until it is done or cancelled. */
static CURLcode perform(struct transfer *t, CURLM *multi)
{
	struct curl_waitfd cancel = {t->call->cancel_fd, CURL_WAIT_POLLIN, 0};
	unsigned int nfds = t->call->cancel_fd >= 0;
	int running = 1, left;
	CURLMsg *msg;

	for (;;) {
		if (curl_multi_perform(multi, &running) != CURLM_OK)
			return CURLE_FAILED_INIT;
		if (!running)
			break;
		cancel.revents = 0;
		if (curl_multi_poll(multi, &cancel, nfds, POLL_MS, NULL) != CURLM_OK)
			return CURLE_FAILED_INIT;
		if (cancel.revents) {
			t->stop = -ECANCELED;
			return CURLE_ABORTED_BY_CALLBACK;
		}
	}
	msg = curl_multi_info_read(multi, &left);
	return msg ? msg->data.result : CURLE_FAILED_INIT;
}

static int explain_failure(const struct transfer *t, CURLcode code, struct errbuf *err)
{
	const char *socket = t->call->socket;
	long os = 0;

	if (t->stop == -ECANCELED)
		return err_set(err, -ECANCELED, 0, "given up");
	if (t->stop)
		return err_set(err, t->stop, EXIT_OS_ERR, "the answer is too long: %s",
			strerror(-t->stop));
	curl_easy_getinfo(t->easy, CURLINFO_OS_ERRNO, &os);
	if (code == CURLE_COULDNT_CONNECT || code == CURLE_OPERATION_TIMEDOUT) {
		if (os == EACCES)
			return err_set(err, -EACCES, EXIT_NO_PERM,
				"%s: you may not connect; see listen.mode and listen.group in "
				"heddle.ini",
				socket);
		return err_set(err, -ECONNREFUSED, EXIT_UNAVAILABLE_ERR,
			"nobody answers on %s%s%s; start heddled, or name its socket with -S or "
			"HEDDLE_SOCKET",
			socket, os ? ": " : "", os ? strerror((int)os) : "");
	}
	if (code == CURLE_GOT_NOTHING || code == CURLE_RECV_ERROR || code == CURLE_SEND_ERROR ||
		code == CURLE_PARTIAL_FILE)
		return err_set(err, -EPIPE, EXIT_UNAVAILABLE_ERR,
			"the daemon on %s closed the connection before its answer was complete",
			socket);
	return err_set(err, -EIO, EXIT_SOFTWARE_ERR, "calling %s on %s: %s", t->call->path, socket,
		curl_easy_strerror(code));
}

/* The sentence of an error reply. */
static int explain_status(const struct transfer *t, struct errbuf *err)
{
	long status = t->reply.status;
	int code = status == 429 || status == 503  ? EXIT_UNAVAILABLE_ERR
		   : status >= 400 && status < 500 ? EXIT_DATA_ERR
						   : EXIT_SOFTWARE_ERR;
	json_t *root = t->reply.body ? json_loadb(t->reply.body, t->reply.len, 0, NULL) : NULL;
	const char *text =
		json_string_value(json_object_get(json_object_get(root, "error"), "message"));

	err_set(err, -EPROTO, code, "%s (HTTP %ld)", text ? text : "the daemon refused", status);
	json_decref(root);
	return -EPROTO;
}

static int set_up(struct transfer *t, struct curl_slist *headers)
{
	char url[256];
	CURL *e = t->easy;
	int bad = 0;

	/* The host is only a header here: the socket decides who is called. */
	if ((size_t)snprintf(url, sizeof(url), "http://heddle%s", t->call->path) >= sizeof(url))
		return -ENAMETOOLONG;
	bad |= curl_easy_setopt(e, CURLOPT_URL, url) != CURLE_OK;
	bad |= curl_easy_setopt(e, CURLOPT_UNIX_SOCKET_PATH, t->call->socket) != CURLE_OK;
	bad |= curl_easy_setopt(e, CURLOPT_PROXY, "") !=
	       CURLE_OK; /* whatever the environment says */
	bad |= curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L) != CURLE_OK;
	bad |= curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_TIMEOUT_S) != CURLE_OK;
	bad |= curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body) != CURLE_OK;
	bad |= curl_easy_setopt(e, CURLOPT_WRITEDATA, t) != CURLE_OK;
	bad |= curl_easy_setopt(e, CURLOPT_HTTPHEADER, headers) != CURLE_OK;
	if (t->call->body) {
		curl_off_t n = (curl_off_t)strlen(t->call->body);

		bad |= curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, n) != CURLE_OK;
		bad |= curl_easy_setopt(e, CURLOPT_POSTFIELDS, t->call->body) != CURLE_OK;
	}
	return bad ? -EINVAL : 0;
}

int call_run(const struct call *call, struct call_reply *ret_reply, struct errbuf *err)
{
	struct transfer t = {.call = call, .easy = curl_easy_init()};
	struct curl_slist *headers = NULL;
	CURLM *multi = curl_multi_init();
	CURLcode code = CURLE_FAILED_INIT;
	int ret;

	headers = curl_slist_append(headers, "Content-Type: application/json");
	headers = curl_slist_append(headers, "Expect:"); /* no pause before a large body */
	if (!t.easy || !multi || set_up(&t, headers) < 0 ||
		curl_multi_add_handle(multi, t.easy) != CURLM_OK) {
		ret = err_set(
			err, -ENOMEM, EXIT_OS_ERR, "libcurl cannot be set up for %s", call->socket);
		goto out;
	}
	code = perform(&t, multi);
	curl_easy_getinfo(t.easy, CURLINFO_RESPONSE_CODE, &t.reply.status);
	if (code != CURLE_OK)
		ret = explain_failure(&t, code, err);
	else if (t.reply.status < 200 || t.reply.status > 299)
		ret = explain_status(&t, err);
	else
		ret = 0;
	curl_multi_remove_handle(multi, t.easy);
out:
	if (ret == 0)
		*ret_reply = t.reply;
	else
		call_reply_fini(&t.reply);
	curl_slist_free_all(headers);
	curl_easy_cleanup(t.easy);
	curl_multi_cleanup(multi);
	return ret;
}
