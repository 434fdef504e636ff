/* The routes that only tell: models, health, status, version, metrics. */
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "coordinator/api_impl.h"

static json_t *api_model_json(const struct api *api)
{
	struct engine_limits limits = engine_limits(api->engine);

	return json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", api->files.name, "object", "model",
		"created", (json_int_t)api->started, "owned_by", "heddle", "root",
		api->conf->conf.model_path, "max_model_len",
		limits.max_context ? json_integer((json_int_t)limits.max_context) : json_null());
}

void api_models(struct api *api, struct http_exchange *x, const char *rest)
{
	(void)rest;
	api_respond_json(
		x, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", api_model_json(api)));
}

void api_model(struct api *api, struct http_exchange *x, const char *rest)
{
	if (strcmp(rest, api->files.name))
		api_error(x, 404, "model", "model_not_found",
			"there is no model %.200s; heddle serves %s", rest, api->files.name);
	else
		api_respond_json(x, 200, api_model_json(api));
}

static const char *api_health_name(enum engine_health health)
{
	switch (health) {
	case ENGINE_STARTING:
		return "starting";
	case ENGINE_READY:
		return "ready";
	case ENGINE_RESTARTING:
		return "restarting";
	case ENGINE_FAILED_FOR_GOOD:
		return "failed";
	case ENGINE_DRAINING:
		return "draining";
	}
	return "unknown";
}

/* "reason": why the workers are not there, when they were. */
static void api_add_reason(const struct api *api, json_t *answer)
{
	const char *reason = engine_reason(api->engine);

	if (answer && reason[0])
		json_object_set_new(answer, "reason", json_string(reason));
}

void api_health(struct api *api, struct http_exchange *x, const char *rest)
{
	enum engine_health health = engine_health(api->engine);
	json_t *answer = json_pack("{s:s}", "status", api_health_name(health));

	(void)rest;
	api_add_reason(api, answer);
	api_respond_json(x, health == ENGINE_READY ? 200 : 503, answer);
}

/* conf_each(): {"section": {"key": "value"}} */
static void api_add_key(
	void *user, const char *section, const char *key, const char *value, const char *origin)
{
	json_t *all = user, *one = json_object_get(all, section);

	(void)origin;
	if (!one) {
		one = json_object();
		if (json_object_set_new(all, section, one))
			return;
	}
	json_object_set_new(one, key, json_string(value));
}

void api_status(struct api *api, struct http_exchange *x, const char *rest)
{
	enum engine_health health = engine_health(api->engine);
	json_t *configuration = json_object(), *status;

	(void)rest;
	conf_each(api->conf, api_add_key, configuration);
	status = json_pack("{s:s, s:s, s:s, s:f, s:i, s:o}", "version", PACKAGE_VERSION, "model",
		api->files.name, "health", api_health_name(health), "uptime_seconds",
		(double)(mono_now() - api->started_ns) / (double)NS_PER_S, "requests",
		(int)api->task_n, "configuration", configuration);
	api_add_reason(api, status);
	if (status && engine_status_json(api->engine, status)) {
		json_decref(status);
		status = NULL;
	}
	api_respond_json(x, 200, status);
}

void api_version(struct api *api, struct http_exchange *x, const char *rest)
{
	(void)api;
	(void)rest;
	api_respond_json(x, 200, json_pack("{s:s}", "version", PACKAGE_VERSION));
}

void api_metrics(struct api *api, struct http_exchange *x, const char *rest)
{
	json_t *status = json_object();
	struct outbuf *out = &api->line;

	(void)rest;
	if (status && engine_status_json(api->engine, status))
		json_object_clear(status);
	metric_print(&api->metrics, status, PACKAGE_VERSION, out);
	json_decref(status);
	if (outbuf_ok(out))
		http_respond(
			x, 200, "text/plain; version=0.0.4; charset=utf-8", out->data, out->len);
	else
		api_error(x, 500, NULL, NULL, "out of memory");
	outbuf_fini(out);
}
