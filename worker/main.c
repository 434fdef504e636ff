/* heddle-worker: the command line. See serve.h for what it does then. */
#define _GNU_SOURCE
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "shm/escape.h"
#include "shm/log.h"
#include "worker/conf_sane.h"
#include "worker/rank.h"
#include "worker/serve.h"

enum opt {
	OPT_RANK = 256,
	OPT_WORLD,
	OPT_COORD,
	OPT_WORKERS,
	OPT_BELL,
	OPT_GENERATION,
	OPT_CHECK,
	OPT_CONF
};

static const struct option options[] = {
	{"rank", required_argument, NULL, OPT_RANK},
	{"world", required_argument, NULL, OPT_WORLD},
	{"coord-fd", required_argument, NULL, OPT_COORD},
	{"worker-fds", required_argument, NULL, OPT_WORKERS},
	{"bell-fd", required_argument, NULL, OPT_BELL},
	{"generation", required_argument, NULL, OPT_GENERATION},
	{"check", no_argument, NULL, OPT_CHECK},
	{"conf-fd", required_argument, NULL, OPT_CONF},
	{"version", no_argument, NULL, 'V'},
	{"help", no_argument, NULL, 'h'},
	{NULL, 0, NULL, 0},
};

static const char usage[] =
	"usage: heddle-worker --rank R --world W --coord-fd N --worker-fds N,N,... --bell-fd N "
	"--generation G\n"
	"       heddle-worker --check --conf-fd N\n"
	"       heddle-worker --version | --help\n"
	"Started by heddled only; see heddled(8).\n";

struct args {
	struct serve_opts serve;
	bool check;
	int conf_fd;
	int given; /* of the options that serving needs */
	int worker_n;
};

/* A decimal number and nothing else. */
static int number(const char *text, uint64_t max, uint64_t *ret_value)
{
	unsigned long long v;
	char *end;

	errno = 0;
	v = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-' || v > max)
		return -EINVAL;
	*ret_value = v;
	return 0;
}

static int fd_list(char *text, int fds[SEG_WORKERS_MAX])
{
	uint64_t fd;
	int n = 0;

	for (char *save, *part = strtok_r(text, ",", &save); part;
		part = strtok_r(NULL, ",", &save)) {
		if (n == SEG_WORKERS_MAX || number(part, INT32_MAX, &fd) < 0)
			return -EINVAL;
		fds[n++] = (int)fd;
	}
	return n;
}

static int take(struct args *a, int opt, char *value)
{
	uint64_t v = 0;

	if (opt == OPT_WORKERS)
		return a->given++, a->worker_n = fd_list(value, a->serve.worker_fds);
	if (number(value, opt == OPT_GENERATION ? UINT64_MAX : INT32_MAX, &v) < 0)
		return -EINVAL;
	a->given++;
	switch (opt) {
	case OPT_RANK:
		a->serve.rank = (uint32_t)v;
		break;
	case OPT_WORLD:
		a->serve.world = (uint32_t)v;
		break;
	case OPT_COORD:
		a->serve.coord_fd = (int)v;
		break;
	case OPT_BELL:
		a->serve.bell_fd = (int)v;
		break;
	case OPT_GENERATION:
		a->serve.generation = v;
		break;
	default:
		a->conf_fd = (int)v;
	}
	return 0;
}

static int check(int conf_fd)
{
	static struct conf conf;
	struct errbuf err = {0};
	int ret;

	signal(SIGXFSZ, SIG_IGN);
	ret = conf_read_fd(conf_fd, &conf, &err);
	if (ret == 0)
		ret = rank_check(&conf, (uint32_t)conf.fabric_workers, &err);
	if (ret == 0)
		return 0;
	escape_print(stderr, "", err.text);
	return err.exit_code ? err.exit_code : EXIT_SOFTWARE_ERR;
}

/*
 * The worker's life is heddled's to end, by MSG_STOP or SIGKILL: what a terminal, systemd or a
 * stray kill sends must not end or stop it. Left alone are faults, abort(), the CPU limit that
 * somebody set, and what cannot be ignored. SIGXFSZ and SIGPIPE become errors of the writes that
 * cause them.
 */
static void leave_signals_to_heddled(void)
{
	static const int kept[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS,
		SIGXCPU, SIGCHLD, SIGCONT};
	int i;

	for (i = 1; i <= SIGRTMAX; i++)
		signal(i, SIG_IGN); /* KILL, STOP and libc's own refuse: fine */
	for (i = 0; i < (int)ARRAY_LEN(kept); i++)
		signal(kept[i], SIG_DFL);
}

/* ---- stacks: of a size that ulimit -s does not decide ---- */

#define STACK_BYTES (8u << 20)

struct on_stack {
	const struct args *args;
	int code;
};

static void *run_on_stack(void *user)
{
	struct on_stack *o = user;

	o->code = o->args->check ? check(o->args->conf_fd) : serve_run(&o->args->serve);
	return NULL;
}

/* Runs the worker, and what threads it starts, with STACK_BYTES each: they are touched as used. */
static int run(const struct args *args)
{
	struct on_stack o = {.args = args};
	pthread_attr_t attr;
	pthread_t thread;
	int r = pthread_attr_init(&attr);

	if (r == 0)
		r = pthread_attr_setstacksize(&attr, STACK_BYTES);
	if (r == 0)
		r = pthread_setattr_default_np(&attr); /* of compute and loading threads */
	if (r == 0)
		r = pthread_create(&thread, &attr, run_on_stack, &o);
	if (r) {
		fprintf(stderr, "cannot start a thread: %s\n", strerror(r));
		return EXIT_OS_ERR;
	}
	pthread_attr_destroy(&attr);
	pthread_join(thread, NULL);
	return o.code;
}

static int misused(void)
{
	fputs(usage, stderr);
	return EXIT_USAGE_ERR;
}

int main(int argc, char **argv)
{
	struct args a = {.conf_fd = -1};
	int opt;

	while ((opt = getopt_long(argc, argv, "Vh", options, NULL)) != -1) {
		if (opt == 'V') {
			puts("heddle-worker " PACKAGE_VERSION);
			return 0;
		}
		if (opt == 'h') {
			fputs(usage, stdout);
			return 0;
		}
		if (opt == OPT_CHECK)
			a.check = true;
		else if (opt == '?' || take(&a, opt, optarg) < 0)
			return misused();
	}
	if (optind != argc)
		return misused();
	if (a.check)
		return a.given == 1 && a.conf_fd >= 0 ? run(&a) : misused();
	if (a.given != 6 || a.conf_fd >= 0 || a.serve.world < 1 ||
		a.serve.world > SEG_WORKERS_MAX || a.worker_n != (int)a.serve.world ||
		a.serve.rank >= a.serve.world)
		return misused();
	leave_signals_to_heddled();
	log_own_stderr();
	return run(&a);
}
