#include "config.h"

#include "coordinator/serve.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/api.h"
#include "coordinator/engine.h"
#include "coordinator/http.h"
#include "coordinator/loop.h"
#include "coordinator/notify.h"
#include "coordinator/signal.h"

#define LOG_TAG "main"
#include "shm/log.h"

#define LOOP_ENTRIES   256
#define WORK_THREADS   2
#define FLUSH_GRACE_NS (2 * NS_PER_S)  /* for last answers, after everything else has ended */
#define TELL_PERIOD_NS (10 * NS_PER_S) /* to the service manager, where it names no period */

struct serve {
	struct serve_args args;
	struct loop *loop;
	struct engine *engine;
	struct api *api;
	struct http_server *http;
	struct notify notify;
	struct signal_watch signals;
	bool watching, ready_told;
	bool draining, engine_idle, http_idle, stopping, stopped;
	struct loop_timer drain_timer, tell_timer;
	char health[600]; /* as last told to the service manager */
	int exit_code;
	struct errbuf refusal;
};

/* ---- the end ---- */

static void end_if_done(struct serve *s)
{
	if (s->stopped && s->http_idle)
		loop_stop(s->loop);
}

static void on_stopped(void *user)
{
	struct serve *s = user;

	s->stopped = true;
	loop_timer_set(s->loop, &s->drain_timer, mono_now() + FLUSH_GRACE_NS);
	end_if_done(s);
}

static void stop_engine(struct serve *s)
{
	if (s->stopping)
		return;
	s->stopping = true;
	loop_timer_stop(s->loop, &s->drain_timer);
	engine_stop(s->engine, on_stopped, s);
}

static void stop_if_drained(struct serve *s)
{
	if (s->engine_idle && s->http_idle)
		stop_engine(s);
	end_if_done(s);
}

static void on_engine_idle(void *user)
{
	struct serve *s = user;

	s->engine_idle = true;
	stop_if_drained(s);
}

static void on_http_idle(void *user)
{
	struct serve *s = user;

	s->http_idle = true;
	stop_if_drained(s);
}

static void on_drain_timer(struct loop_timer *t, void *user)
{
	struct serve *s = user;

	(void)t;
	if (s->stopped) {
		log_notice("some clients did not take their answers: leaving them");
		loop_stop(s->loop);
		return;
	}
	if (api_running(s->api) > 0)
		log_warn("%u requests are not finished after api.drain_seconds: ending them",
			api_running(s->api));
	api_abort_all(s->api, "the server is shutting down");
	http_server_refuse_parts(s->http, "unavailable", "the server is shutting down");
	stop_engine(s);
}

/*
 * Life signs for the service manager. A big model loads for longer than any timeout of a unit, and
 * api.drain_seconds may be set to more: so as long as the loop turns, it is told to wait on.
 */
static void tell(struct serve *s)
{
	mono_ns_t period = s->notify.watchdog_ns ? s->notify.watchdog_ns / 2 : TELL_PERIOD_NS;

	if (s->notify.watchdog_ns)
		(void)notify_watchdog(&s->notify);
	if (!s->ready_told || s->draining)
		(void)notify_extend(&s->notify, 3 * period);
	if (s->notify.fd >= 0)
		loop_timer_set(s->loop, &s->tell_timer, mono_now() + period);
}

static void on_tell_timer(struct loop_timer *t, void *user)
{
	(void)t;
	tell(user);
}

static void begin_drain(struct serve *s, int signo)
{
	s->draining = true;
	log_notice("%s: finishing %u requests, then stopping; once more stops at once",
		signo == SIGINT ? "SIGINT" : "SIGTERM", api_running(s->api));
	(void)notify_stopping(&s->notify, "finishing requests");
	tell(s);
	loop_timer_set(s->loop, &s->drain_timer,
		mono_now() + (mono_ns_t)s->args.conf->conf.api_drain_seconds);
	http_server_drain(s->http, on_http_idle, s);
	listen_close(s->args.listen); /* who comes now must be refused, not left waiting */
	engine_drain(s->engine, on_engine_idle, s);
}

/* ---- signals ---- */

static struct http_limits limits_of(const struct conf *c)
{
	return (struct http_limits){
		.max_body = (size_t)c->api_max_body,
		.max_connections = (uint32_t)c->api_max_connections,
		.header_timeout = (mono_ns_t)c->api_header_timeout,
		.write_timeout = (mono_ns_t)c->api_write_timeout,
	};
}

static void tell_locked(void *user, const char *name)
{
	(void)user;
	log_warn("%s has changed, which takes a restart of heddled; keeping the old value", name);
}

static void take_over(struct serve *s, struct conf_set *next)
{
	struct conf_set *conf = s->args.conf;
	struct http_limits limits;

	conf_reload(conf, next, tell_locked, NULL);
	limits = limits_of(&conf->conf);
	log_set_level((enum conf_level)conf->conf.log_level);
	http_server_set_limits(s->http, &limits);
	api_reload(s->api, conf);
	engine_reload(s->engine, &conf->conf);
}

static void reload(struct serve *s)
{
	bool tell_manager = s->ready_told && !s->draining; /* READY=1 would be untrue else */
	struct conf_set next;
	struct errbuf err = {"", 0};
	char status[sizeof(s->health) + sizeof(err.text) + 16];

	if (conf_init(&next) < 0) {
		log_err("reload: out of memory; keeping the old configuration");
		return;
	}
	if (tell_manager)
		(void)notify_reloading(&s->notify);
	if (s->args.read_conf(s->args.user, &next, &err) < 0) {
		log_err("reload: %s; keeping the old configuration", err.text);
	} else {
		take_over(s, &next);
		log_notice("configuration reloaded");
	}
	conf_fini(&next);
	snprintf(status, sizeof(status), "%s%s%s", s->health, err.text[0] ? "; not reloaded: " : "",
		err.text);
	if (tell_manager)
		(void)notify_ready(&s->notify, status);
}

static void reopen_log(void)
{
	struct errbuf err;

	if (log_reopen(&err) < 0)
		log_err("%s; still writing to the old file", err.text);
	else
		log_info("log reopened");
}

static void on_signal(void *user, int signo)
{
	struct serve *s = user;

	switch (signo) {
	case SIGHUP:
		reload(s);
		break;
	case SIGUSR1:
		reopen_log();
		break;
	default:
		if (!s->draining) {
			begin_drain(s, signo);
			return;
		}
		log_notice("second signal: stopping at once");
		loop_stop(s->loop);
	}
}

/* ---- health ---- */

static const char *health_text(enum engine_health health)
{
	switch (health) {
	case ENGINE_STARTING:
		return "starting";
	case ENGINE_READY:
		return "serving";
	case ENGINE_RESTARTING:
		return "restarting the workers";
	case ENGINE_FAILED_FOR_GOOD:
		return "the workers are gone for good";
	default:
		return "finishing requests";
	}
}

static void on_health(void *user, enum engine_health health, const char *why)
{
	struct serve *s = user;

	snprintf(s->health, sizeof(s->health), "%s%s%s", health_text(health), why[0] ? ": " : "",
		why);
	log_notice("%s", s->health);
	if (health == ENGINE_READY && !s->ready_told) {
		s->ready_told = true;
		(void)notify_ready(&s->notify, s->health);
		daemon_report(s->args.daemon, 0);
		return;
	}
	(void)notify_status(&s->notify, "%s", s->health);
}

static void on_refused(void *user, int exit_code, const char *text)
{
	struct serve *s = user;

	s->exit_code = exit_code;
	(void)err_set(&s->refusal, 0, exit_code, "%s", text);
	loop_stop(s->loop);
}

/* ---- begin ---- */

static int open_loop(struct serve *s, struct errbuf *err)
{
	static const int signos[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};
	int r = loop_new(LOOP_ENTRIES, &s->loop, err);

	if (r < 0)
		return r;
	s->signals = (struct signal_watch){.fn = on_signal, .user = s, .fd = -1};
	r = signal_watch(s->loop, &s->signals, signos, ARRAY_LEN(signos));
	if (r < 0)
		return err_set(err, r, EXIT_OS_ERR, "cannot watch signals: %s", strerror(-r));
	s->watching = true;
	r = loop_work_start(s->loop, WORK_THREADS);
	return r < 0 ? err_set(err, r, EXIT_OS_ERR, "cannot start threads: %s", strerror(-r)) : 0;
}

static int open_http(struct serve *s, struct errbuf *err)
{
	const struct http_limits limits = limits_of(&s->args.conf->conf);
	const struct http_server_ops ops = {
		.on_request = api_on_request, .on_refused = api_on_refused, .user = s->api};
	size_t i;
	int r = http_server_new(s->loop, &limits, &ops, &s->http);

	if (r < 0)
		return err_set(err, r, EXIT_OS_ERR, "cannot serve HTTP: %s", strerror(-r));
	for (i = 0; i < s->args.listen->n; i++) {
		const struct listen_socket *l = &s->args.listen->sockets[i];

		r = http_server_add_listener(s->http, l->fd, l->is_unix);
		if (r < 0)
			return err_set(err, r, EXIT_OS_ERR, "cannot accept on %s: %s", l->name,
				strerror(-r));
		log_notice("listening on %s", l->name);
	}
	return 0;
}

int serve_open(const struct serve_args *args, struct serve **ret_serve, struct errbuf *err)
{
	struct serve *s = calloc(1, sizeof(*s));
	const struct engine_hooks hooks = {.worker_path = args->worker_path,
		.on_health = on_health,
		.on_refused = on_refused,
		.user = s};
	int r;

	if (!s)
		return err_set(err, -ENOMEM, EXIT_OS_ERR, "out of memory");
	s->args = *args;
	s->drain_timer = (struct loop_timer){.fn = on_drain_timer, .user = s};
	s->tell_timer = (struct loop_timer){.fn = on_tell_timer, .user = s};
	if (notify_open(&s->notify) < 0)
		log_warn("NOTIFY_SOCKET is set but cannot be used");
	r = open_loop(s, err);
	if (r == 0)
		r = engine_new(s->loop, &args->conf->conf, &hooks, &s->engine, err);
	if (r == 0)
		r = api_new(s->loop, args->conf, s->engine, &s->api, err);
	if (r == 0)
		r = open_http(s, err);
	if (r == 0)
		r = engine_start(s->engine, err);
	if (r < 0) {
		serve_close(s);
		return r;
	}
	tell(s);
	*ret_serve = s;
	return 0;
}

int serve_run(struct serve *s, struct errbuf *err)
{
	int r = loop_run(s->loop);

	if (r < 0) {
		(void)err_set(err, r, EXIT_OS_ERR, "io_uring: %s", strerror(-r));
		return EXIT_OS_ERR;
	}
	*err = s->refusal;
	return s->exit_code;
}

struct serve *serve_close(struct serve *s)
{
	if (!s)
		return NULL;
	if (s->loop)
		loop_settle(s->loop);
	s->http = http_server_free(s->http);
	s->api = api_free(s->api);
	s->engine = engine_free(s->engine);
	if (s->watching)
		signal_unwatch(&s->signals);
	s->loop = loop_free(s->loop);
	notify_close(&s->notify);
	free(s);
	return NULL;
}
