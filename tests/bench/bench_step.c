/*
 * bench_step: what a step costs the coordinator, in CPU time of its process: schedule, encode,
 * publish, collect, detokenise; and the same with each sequence's event written and handed to the
 * kernel. The daemon is whole, its worker is fake (tests/proc/fake_worker.c) and answers at once or
 * after 1 ms; this process reads. A step gives each stream one event, so events tell how many steps
 * there were.
 *
 *	bench_step [SEQUENCES...]
 */
#include "config.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shm/clock.h"
#include "shm/util.h"
#include "tests/bench/bench.h"
#include "tests/bench/report.h"

#define SEQUENCES_MAX 256
#define EVENTS        10000 /* that one stretch looks at; all together are fewer than max_tokens */
#define STEPS_MIN     200
#define STEPS_MAX     4000
#define TURNS         5
#define PATIENCE_NS   (60 * NS_PER_S)

struct daemon {
	pid_t pid;
	char dir[64], path[96];
	clockid_t cpu;
};

struct streams {
	int fd[SEQUENCES_MAX], ep, n;
	int answered; /* of whom anything came */
	int begun;    /* of whom an event came */
	uint64_t seen[SEQUENCES_MAX], events;
	char last[SEQUENCES_MAX]; /* an event may be cut between its two newlines */
};

static void die(const char *what)
{
	bench_die("%s: %s", what, strerror(errno));
}

static void run_daemon(const struct daemon *d, int sequences, const char *step_ms)
{
	const char *src = getenv("HEDDLE_SRCDIR");
	char model[4096], sock[160], most[64];

	prctl(PR_SET_PDEATHSIG, SIGTERM);
	snprintf(model, sizeof(model), "model.path=%s/models/heddle-mini", src ? src : "..");
	snprintf(sock, sizeof(sock), "listen.socket=%s", d->path);
	snprintf(most, sizeof(most), "schedule.max_sequences=%d", sequences);
	setenv("HEDDLE_WORKER", "./fake-worker", 1);
	setenv("FAKE_SLOTS", "256", 1);
	setenv("FAKE_STEP_MS", step_ms, 1);
	execl("./heddled", "heddled", "-f", "-c", "/dev/null", "-s", model, "-s", sock, "-s", most,
		"-s", "log.level=warning", (char *)NULL);
	die("./heddled");
}

static int connect_to(const struct daemon *d)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", d->path);
	if (fd < 0)
		die("socket");
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0)
		return fd;
	close(fd);
	return -1;
}

static void say(int fd, const char *text)
{
	if (send(fd, text, strlen(text), MSG_NOSIGNAL) != (ssize_t)strlen(text))
		die("send");
}

static bool is_ready(const struct daemon *d)
{
	int fd = connect_to(d);
	char answer[64] = "";

	if (fd < 0)
		return false;
	say(fd, "GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
	if (recv(fd, answer, sizeof(answer) - 1, MSG_WAITALL) < 0)
		answer[0] = '\0';
	close(fd);
	return strncmp(answer, "HTTP/1.1 200", 12) == 0;
}

static void start(struct daemon *d, int sequences, const char *step_ms)
{
	mono_ns_t patience = mono_now() + PATIENCE_NS;

	snprintf(d->dir, sizeof(d->dir), "/tmp/heddle-bench.XXXXXX");
	if (!mkdtemp(d->dir))
		die("mkdtemp");
	snprintf(d->path, sizeof(d->path), "%s/s", d->dir);
	d->pid = fork();
	if (d->pid == 0)
		run_daemon(d, sequences, step_ms);
	while (!is_ready(d)) {
		if (waitpid(d->pid, NULL, WNOHANG) != 0 || mono_now() > patience)
			bench_die("the daemon does not become ready");
		usleep(20000); /* between two looks */
	}
	if (clock_getcpuclockid(d->pid, &d->cpu) != 0)
		die("clock_getcpuclockid");
}

static void stop(struct daemon *d)
{
	kill(d->pid, SIGTERM);
	waitpid(d->pid, NULL, 0);
	rmdir(d->dir);
}

static uint64_t cpu_ns(const struct daemon *d)
{
	struct timespec ts;

	if (clock_gettime(d->cpu, &ts) < 0)
		die("the daemon's clock");
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

static void ask(struct streams *s, const struct daemon *d, int n, int tokens, bool stream)
{
	char body[160], request[512];

	snprintf(body, sizeof(body),
		"{\"prompt\": \"the needle is in the hay\", \"max_tokens\": %d, \"ignore_eos\": "
		"true, "
		"\"stream\": %s}",
		tokens, stream ? "true" : "false");

	*s = (struct streams){.n = n, .ep = epoll_create1(EPOLL_CLOEXEC)};
	snprintf(request, sizeof(request),
		"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
		"Content-Length: %zu\r\n\r\n%s",
		strlen(body), body);
	for (int i = 0; i < n; i++) {
		struct epoll_event ev = {.events = EPOLLIN, .data.u32 = (uint32_t)i};

		s->fd[i] = connect_to(d);
		if (s->fd[i] < 0 || epoll_ctl(s->ep, EPOLL_CTL_ADD, s->fd[i], &ev) < 0)
			die("connect");
		say(s->fd[i], request);
	}
}

static void count(struct streams *s, uint32_t i, const char *bytes, size_t n)
{
	uint64_t before = s->seen[i];

	s->answered += s->last[i] == '\0';
	for (size_t k = 0; k < n; k++) {
		s->seen[i] += bytes[k] == '\n' && s->last[i] == '\n';
		s->last[i] = bytes[k];
	}
	s->begun += before == 0 && s->seen[i] > 0;
	s->events += s->seen[i] - before;
}

static void read_more(struct streams *s)
{
	static char buf[65536];
	struct epoll_event ev[64];
	int ready = epoll_wait(s->ep, ev, (int)ARRAY_LEN(ev), (int)(PATIENCE_NS / NS_PER_MS));

	if (ready <= 0)
		die("no events came");
	for (int i = 0; i < ready; i++) {
		ssize_t got = recv(s->fd[ev[i].data.u32], buf, sizeof(buf), 0);

		if (got <= 0)
			bench_die("a stream has ended: %.200s", buf);
		count(s, ev[i].data.u32, buf, (size_t)got);
	}
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Microseconds of CPU a step, the median of several stretches of one run. */
static double measure(int sequences, const char *step_ms)
{
	uint64_t steps = EVENTS / (uint64_t)sequences;
	struct daemon d;
	struct streams s;
	double us[TURNS];

	steps = MIN(MAX(steps, STEPS_MIN), *step_ms == '0' ? STEPS_MAX : STEPS_MIN);
	start(&d, sequences, step_ms);
	ask(&s, &d, sequences, 60000, true);
	while (s.begun < sequences)
		read_more(&s);
	for (int turn = 0; turn < TURNS; turn++) {
		uint64_t cpu = cpu_ns(&d), events = s.events;

		while (s.events < events + steps * (uint64_t)sequences)
			read_more(&s);
		us[turn] = (double)(cpu_ns(&d) - cpu) / NS_PER_US * sequences /
			   (double)(s.events - events);
	}
	for (int i = 0; i < sequences; i++)
		close(s.fd[i]);
	close(s.ep);
	stop(&d);
	qsort(us, TURNS, sizeof(us[0]), compare);
	return us[TURNS / 2];
}

/*
 * The same for answers that are sent whole, at their end: plan, encode, publish, collect,
 * detokenise, and nothing for the sockets. All of the daemon's CPU from the first request to the
 * last answer, over the tokens of each, which are so many that reading requests and writing answers
 * vanish.
 */
static double measure_whole(int sequences, const char *step_ms)
{
	int tokens = *step_ms == '0' ? 8000 : 2000;
	struct daemon d;
	struct streams s;
	uint64_t cpu;

	start(&d, sequences, step_ms);
	cpu = cpu_ns(&d);
	ask(&s, &d, sequences, tokens, false);
	while (s.answered < sequences)
		read_more(&s);
	cpu = cpu_ns(&d) - cpu;
	for (int i = 0; i < sequences; i++)
		close(s.fd[i]);
	close(s.ep);
	stop(&d);
	return (double)cpu / NS_PER_US / tokens;
}

/* Sending is measured apart (bench_stream), so the target is on the step alone. */
static void add(struct report *r, int sequences, const char *step_ms)
{
	const char *when = *step_ms == '0' ? "at once" : "after 1 ms";
	char what[80];

	snprintf(what, sizeof(what), "%d sequence%s, answered %s", sequences,
		sequences == 1 ? "" : "s", when);
	report_add(r, &(struct report_row){.what = what,
			      .value = measure_whole(sequences, step_ms),
			      .unit = "us",
			      .most = 20 + 2.0 * sequences});
	snprintf(what, sizeof(what), "%d sequence%s, answered %s, events sent", sequences,
		sequences == 1 ? "" : "s", when);
	report_add(r, &(struct report_row){
			      .what = what, .value = measure(sequences, step_ms), .unit = "us"});
}

int main(int argc, char **argv)
{
	static const int all[] = {1, 4, 16, 64, 256};
	struct bench_args args = bench_args(argc, argv, argc, "[SEQUENCES...], each 1 to 256");
	int n = args.n ? args.n : (int)ARRAY_LEN(all);
	struct report r;

	for (int i = 0; i < args.n; i++)
		(void)bench_number(&args, i, SEQUENCES_MAX, 0);
	if (access("./heddled", X_OK) < 0 || access("./fake-worker", X_OK) < 0) {
		printf("no ./heddled with ./fake-worker here: run it in the build directory\n");
		return 77;
	}
	report_open(&r, "step", "A step of the coordinator, CPU time");
	for (int i = 0; i < n; i++) {
		int sequences = args.n ? (int)bench_number(&args, i, SEQUENCES_MAX, 0) : all[i];

		add(&r, sequences, "0");
		add(&r, sequences, "1");
	}
	return report_close(&r);
}
