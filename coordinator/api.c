#define LOG_TAG "api"
#include "coordinator/api.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/api_impl.h"
#include "shm/log.h"

/*
 * TO ADD AN ENDPOINT: one row here, its handler (api_info.c for a plain GET, else a file of its
 * own), its row in docs/api.md (test_api looks for it) and its cases in tests/unit/test_api.c. A
 * path that ends in "/" stands for all below it; the handler gets the rest.
 */
static const struct api_route {
	const char *method, *path;
	api_handler handler;
	const char *doc;
} api_routes[] = {
	{"POST", "/v1/chat/completions", api_chat, "answers to a conversation"},
	{"POST", "/v1/completions", api_completions, "text that goes on from a prompt"},
	{"POST", "/tokenize", api_tokenize, "text or a conversation to token ids"},
	{"POST", "/detokenize", api_detokenize, "token ids to text"},
	{"GET", "/v1/models", api_models, "the model served"},
	{"GET", "/v1/models/", api_model, "one model by its id"},
	{"GET", "/health", api_health, "200 when every worker is ready"},
	{"GET", "/status", api_status, "configuration, workers, queue, cache"},
	{"GET", "/version", api_version, "the version of heddle"},
	{"GET", "/metrics", api_metrics, "metrics as Prometheus text"},
};

void api_each_route(
	void (*fn)(void *user, const char *method, const char *path, const char *doc), void *user)
{
	size_t i;

	for (i = 0; i < ARRAY_LEN(api_routes); i++)
		fn(user, api_routes[i].method, api_routes[i].path, api_routes[i].doc);
}

/* Does the path match? *ret_rest is what follows a route that ends in "/". */
static bool api_match(const char *route, const char *path, const char **ret_rest)
{
	size_t len = strlen(route);

	*ret_rest = "";
	if (route[len - 1] != '/')
		return !strcmp(route, path);
	*ret_rest = path + len;
	return !strncmp(route, path, len) && path[len];
}

/* No route has this method here: 405 with the methods the path does have, or 404 with all paths. */
static void api_no_route(struct http_exchange *x, const struct http_request *req)
{
	char text[400] = "", allow[64] = "";
	const char *rest;
	size_t i, n = 0;

	for (i = 0; i < ARRAY_LEN(api_routes); i++) {
		const char *path = api_routes[i].path;

		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s%s", i ? ", " : "", path,
			path[strlen(path) - 1] == '/' ? "ID" : "");
		n = MIN(n, sizeof(text) - 1);
		if (api_match(api_routes[i].path, req->path, &rest))
			snprintf(allow, sizeof(allow), "%s", api_routes[i].method);
	}
	if (!*allow) {
		api_error(x, 404, NULL, "not_found", "there is no %.100s; there are %s", req->path,
			text);
		return;
	}
	(void)!http_add_header(x, "allow", allow);
	api_error(x, 405, NULL, "method_not_allowed", "%.100s takes %s, not %.16s", req->path,
		allow, req->method);
}

/* A browser cannot send this type across origins without asking first; curl -d forgets it. */
static bool api_type_ok(const struct http_request *req)
{
	const char *type = http_header_get(req, "content-type");

	if (!type)
		return true;
	type += strspn(type, " \t");
	return !strncasecmp(type, API_JSON, strlen(API_JSON)) &&
	       strchr("; \t", type[strlen(API_JSON)]);
}

/* The body is read as it comes: nothing here unpacks one. */
static bool api_encoding_ok(const struct http_request *req)
{
	size_t i;

	for (i = 0; i < req->header_count; i++)
		if (!strcmp(req->headers[i].name, "content-encoding") && *req->headers[i].value &&
			strcasecmp(req->headers[i].value, "identity"))
			return false;
	return true;
}

/* What is wrong with a POST before its body is looked at: a status, or 0. */
static int api_check_post(struct http_exchange *x, const struct http_request *req)
{
	if (!http_header_get(req, "content-length") && !http_header_get(req, "transfer-encoding")) {
		api_error(x, 411, NULL, "length_required",
			"%.100s takes a body: send it with content-length, or chunked", req->path);
		return 411;
	}
	if (!api_type_ok(req)) {
		api_error(x, 415, NULL, "unsupported_media_type",
			"content-type must be application/json");
		return 415;
	}
	if (!api_encoding_ok(req)) {
		(void)!http_add_header(x, "accept-encoding", "identity");
		api_error(x, 415, NULL, "unsupported_media_type",
			"content-encoding must be identity: send the body as it is");
		return 415;
	}
	return 0;
}

void api_on_request(void *user, struct http_exchange *x)
{
	const struct http_request *req = http_request(x);
	struct api *api = user;
	const char *rest;
	size_t i;

	for (i = 0; i < ARRAY_LEN(api_routes); i++) {
		if (strcmp(api_routes[i].method, req->method) ||
			!api_match(api_routes[i].path, req->path, &rest))
			continue;
		if (strcmp(req->method, "POST") || !api_check_post(x, req))
			api_routes[i].handler(api, x, rest);
		else
			api->metrics.requests_refused++;
		return;
	}
	api->metrics.requests_refused++;
	api_no_route(x, req);
}

void api_on_refused(void *user, int status)
{
	static const struct {
		int status;
		size_t offset;
	} by_status[] = {
#define API_REFUSED(status) {status, offsetof(struct metrics, http_##status)}
		API_REFUSED(400),
		API_REFUSED(408),
		API_REFUSED(413),
		API_REFUSED(414),
		API_REFUSED(417),
		API_REFUSED(431),
		API_REFUSED(501),
		API_REFUSED(503),
		API_REFUSED(505),
	};
	struct api *api = user;
	size_t i;

	++*(status < 500 ? &api->metrics.requests_refused : &api->metrics.requests_failed);
	for (i = 0; i < ARRAY_LEN(by_status); i++)
		if (by_status[i].status == status)
			++*(uint64_t *)((char *)&api->metrics + by_status[i].offset);
}

const char *api_error_type(int status)
{
	if (status == 429)
		return "rate_limit_error";
	if (status == 503)
		return "service_unavailable_error";
	return status >= 500 ? "server_error" : "invalid_request_error";
}

void api_error(struct http_exchange *x, int status, const char *param, const char *code,
	const char *fmt, ...)
{
	char text[768];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	/* a full queue moves within seconds; a group of workers needs some more to come back */
	if (status == 429 || status == 503)
		(void)!http_add_header(x, "retry-after", status == 429 ? "1" : HTTP_RETRY_503);
	http_respond_error(x, status, api_error_type(status), param, code, "%s", text);
}

void api_respond_json(struct http_exchange *x, int status, json_t *value)
{
	char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;

	json_decref(value);
	if (text)
		http_respond(x, status, API_JSON, text, strlen(text));
	else
		api_error(x, 500, NULL, NULL, "out of memory");
	free(text);
}

/* Bytes of the longest token, or of what is to be taken for one. */
static uint32_t api_longest_token(const struct tokenizer *tok)
{
	size_t most = 1, len;
	uint32_t id;

	for (id = 0; id < tokenizer_vocab(tok); id++)
		if (tokenizer_token_bytes(tok, id, &len))
			most = MAX(most, len);
	return (uint32_t)MIN(most, (size_t)API_TOKEN_BYTES);
}

int api_new(struct loop *loop, const struct conf_set *conf, struct engine *engine,
	struct api **ret_api, struct errbuf *err)
{
	struct api *api = calloc(1, sizeof(*api));
	int ret;

	if (!api)
		return err_set(err, -ENOMEM, EXIT_OS_ERR, "out of memory");
	json_object_seed(0); /* not first by two pool threads at once */
	api->loop = loop;
	api->conf = conf;
	api->engine = engine;
	api->started = time(NULL);
	api->started_ns = mono_now();
	ret = model_files_load(&conf->conf, &api->files, err);
	if (ret) {
		free(api);
		return ret;
	}
	api->tok = api->files.tok;
	if (!tokenizer_has_jit(api->tok))
		log_notice("no memory for compiled patterns: tokenising is several times slower");
	api->token_bytes = api_longest_token(api->tok);
	*ret_api = api;
	return 0;
}

void api_reload(struct api *api, const struct conf_set *conf)
{
	struct params defaults;

	api->conf = conf;
	/* the file was read at start and is good: with these keys in range this cannot fail */
	if (!param_defaults(&conf->conf, api->files.gendef.json, GENDEF_FILE, &defaults, NULL))
		api->files.defaults = defaults;
}

uint32_t api_running(const struct api *api)
{
	return api->task_n;
}

void api_abort_all(struct api *api, const char *why)
{
	struct api_task *t, *next;

	api->closing = true;
	for (t = api->tasks; t; t = next) {
		next = t->next;
		/* one that a pool thread is reading meets `closing` when it comes back */
		if (t->abort)
			t->abort(t, why);
	}
}

struct api *api_free(struct api *api)
{
	if (!api)
		return NULL;
	while (api->tasks)
		task_end(api->tasks);
	while (api->spare_n)
		token_scratch_free(api->spares[--api->spare_n]);
	model_files_fini(&api->files);
	outbuf_fini(&api->line);
	free(api);
	return NULL;
}
