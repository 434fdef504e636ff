/*
 * heddled: the coordinator daemon. Reads its options and configuration, prepares the process, and
 * serves (serve.c). Every error a person can cause is one line on stderr and an exit code of
 * sysexits(3).
 */
#include "config.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/conf.h"
#include "coordinator/daemon.h"
#include "coordinator/listen.h"
#include "coordinator/model_files.h"
#include "coordinator/opts.h"
#include "coordinator/place.h"
#include "coordinator/preflight.h"
#include "coordinator/serve.h"
#include "coordinator/start_check.h"
#include "shm/escape.h"

#define LOG_TAG "main"
#include "shm/log.h"

/* The one line for the person who started it. stderr does not block (log.h): wait a moment for room
 * in a pipe, but not for a reader that has gone to sleep. */
static int complain(const struct errbuf *err)
{
	struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};

	(void)poll(&p, 1, 1000);
	escape_print(stderr, "heddled: ", err->text);
	return err->exit_code ? err->exit_code : EXIT_SOFTWARE_ERR;
}

/* Everything the configuration comes from, in order: defaults, file, -s, rules across keys. */
static int read_conf(void *user, struct conf_set *set, struct errbuf *err)
{
	const struct opts *opts = user;
	size_t i;
	int r = 0;

	if (opts->file)
		r = conf_read_file(set, opts->file, err);
	else if (access(HEDDLE_INI, F_OK) == 0)
		r = conf_read_file(set, HEDDLE_INI, err);
	for (i = 0; i < opts->set_n && r == 0; i++)
		r = conf_override(set, opts->sets[i], err);
	if (!opts->foreground && strcmp(set->conf.log_target, "stderr") == 0)
		strcpy(set->conf.log_target, "syslog"); /* nobody will read our stderr */
	return r < 0 ? r : conf_check(set, err);
}

static const char *worker_path(void)
{
	const char *path = getenv("HEDDLE_WORKER");

	return path && path[0] ? path : HEDDLE_LIBEXECDIR "/heddle-worker";
}

/* ---- heddled -t ---- */

/* What a start asks, in its order, by the same functions; but nothing is opened, made or loaded. */
static int check_model(const struct conf *conf, struct errbuf *err)
{
	struct place_plan *plan = malloc(sizeof(*plan));
	struct conf *resolved = malloc(sizeof(*resolved));
	struct model_files files = {.tok = NULL};
	int r = plan && resolved ? place_discover(conf, plan, err) : -ENOMEM;

	if (r == 0)
		r = model_files_load(conf, &files, err);
	if (r == 0) {
		*resolved = *conf;
		place_resolve(resolved, plan);
		r = preflight_run(worker_path(), resolved, err);
	}
	model_files_fini(&files);
	free(resolved);
	free(plan);
	return r;
}

static int check_only(const struct conf_set *set)
{
	struct errbuf err = {"out of memory", EXIT_OS_ERR};
	const struct conf *c = &set->conf;

	if (daemon_raise_limits(&err) < 0 || start_check(c, true, &err) < 0 ||
		daemon_become(c->daemon_user, c->daemon_group, &err) < 0 ||
		log_check(c->log_target, &err) < 0 || check_model(c, &err) < 0)
		return complain(&err);
	printf("the configuration and the model in %s are fine\n", set->conf.model_path);
	return 0;
}

/* ---- serving ---- */

static int open_sockets(struct listen_set *set, const struct conf *c, struct errbuf *err)
{
	int r = 0;

	if (c->listen_socket[0]) {
		r = listen_unix(
			set, c->listen_socket, (mode_t)c->listen_mode, c->listen_group, err);
		if (r == 0)
			r = daemon_give(c->listen_socket, c->daemon_user, c->daemon_group,
				c->listen_group[0], err);
	}
	if (r == 0 && c->listen_tcp[0])
		r = listen_tcp(set, c->listen_tcp, err);
	return r;
}

/*
 * From the pidfile on, somebody may ask for a reload: until serve.c reads signals these two wait,
 * where their default would end us.
 */
static void hold_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
}

/* What needs the rights we were started with, in the order that needs them. */
static int prepare(struct daemon *d, struct listen_set *sockets, const struct opts *opts,
	struct conf *c, struct errbuf *err)
{
	int r = 0, handed = 0;

	if (!opts->foreground)
		r = daemon_background(d, err);
	umask(027);
	if (r == 0)
		r = daemon_raise_limits(err);
	hold_signals();
	if (r == 0)
		handed = r = listen_inherit(sockets, err);
	if (r >= 0)
		r = start_check(c, handed == 0, err);
	if (r == 0 && c->daemon_pidfile[0])
		r = daemon_pidfile(d, c->daemon_pidfile, err);
	if (r == 0 && !handed)
		r = open_sockets(sockets, c, err);
	if (r == 0)
		r = daemon_become(c->daemon_user, c->daemon_group, err);
	if (r == 0)
		r = log_open(c->log_target, (enum conf_level)c->log_level,
			(enum conf_format)c->log_format, "heddled", err);
	if (r == 0)
		listen_warn_kept(sockets);
	return r;
}

/* On stderr for who started us, and in the log, once it is open, for who looks later. */
static int fail(bool log_is_elsewhere, const struct errbuf *err)
{
	int code = complain(err);

	if (log_is_elsewhere)
		log_err("%s", err->text);
	return code;
}

static int serve(const struct opts *opts, struct conf_set *set)
{
	struct daemon d = {.report_fd = -1, .pidfile_fd = -1};
	struct listen_set sockets = {0};
	struct serve_args args = {.conf = set,
		.listen = &sockets,
		.daemon = &d,
		.worker_path = worker_path(),
		.read_conf = read_conf,
		.user = (void *)opts};
	struct serve *s = NULL;
	struct errbuf err = {"", 0};
	bool elsewhere = false;
	int r = prepare(&d, &sockets, opts, &set->conf, &err), code = 0;

	if (r == 0) {
		elsewhere = strcmp(set->conf.log_target, "stderr") != 0;
		r = serve_open(&args, &s, &err);
	}
	if (r == 0 && serve_run(s, &err) == 0)
		log_notice("stopped");
	else
		code = fail(elsewhere, &err);
	serve_close(s);
	listen_close(&sockets);
	daemon_pidfile_remove(&d);
	/* The last thing: who hears of a start that failed finds nothing left of it. */
	if (code)
		daemon_report(&d, code);
	return code;
}

int main(int argc, char **argv)
{
	struct opts opts;
	struct conf_set set;
	struct errbuf err;
	int code;

	log_own_stderr();
	/* a write that fails says so: EPIPE, EFBIG */
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	if (opts_parse(argc, argv, &opts, &err) < 0)
		return complain(&err);
	if (opts.help) {
		opts_usage(stdout);
		return 0;
	}
	if (opts.version) {
		puts("heddled " PACKAGE_VERSION);
		return 0;
	}
	if (conf_init(&set) < 0)
		return EXIT_OS_ERR;
	if (read_conf(&opts, &set, &err) < 0)
		code = complain(&err);
	else
		code = opts.check ? check_only(&set) : serve(&opts, &set);
	conf_fini(&set);
	return code;
}
