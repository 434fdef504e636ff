#include "config.h"

#include "tests/bench/turns.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/clock.h"
#include "tests/bench/bench.h"

static int cpus[2];

int turns_cpus(void)
{
	cpu_set_t set;
	int cpu, n = 0;

	if (sched_getaffinity(0, sizeof(set), &set) < 0)
		return 0;
	for (cpu = 0; cpu < CPU_SETSIZE && n < 2; cpu++)
		if (CPU_ISSET(cpu, &set))
			cpus[n++] = cpu;
	return n;
}

static void pin(int which)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpus[which], &set);
	(void)sched_setaffinity(0, sizeof(set), &set);
}

/* A child of this way is gone. If it could say why, that is enough. */
static _Noreturn void lost(const struct turns_way *w, int child)
{
	int status = 0;

	if (waitpid(w->pid[child], &status, 0) == w->pid[child] && WIFEXITED(status) &&
		WEXITSTATUS(status) == EXIT_OS_ERR)
		exit(EXIT_OS_ERR);
	if (WIFSIGNALED(status))
		bench_die("%s: its process died: %s", w->what, strsignal(WTERMSIG(status)));
	bench_die("%s: its process has ended", w->what);
}

/* Says when it is ready, then sleeps in read() until told to take a turn. */
static void live(const struct turns_way *w, int child, int in, int out)
{
	uint32_t from = 0, rounds = w->rounds + TURNS_WARM_UP;
	char go = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	pin(1 - child % 2);
	if (w->born)
		w->born(w->user, child);
	if (write(out, &go, 1) != 1)
		_exit(1);
	while (read(in, &go, 1) == 1) {
		if (write(out, &go, 1) != 1)
			_exit(1);
		w->there(w->user, child, from, rounds);
		from += rounds;
		if (write(out, &go, 1) != 1)
			_exit(1);
	}
	_exit(0);
}

static void bear(struct turns_way *w, int child)
{
	int to[2], from[2];
	char ready;

	if (pipe(to) < 0 || pipe(from) < 0)
		bench_die("cannot make a pipe: %s", strerror(errno));
	w->pid[child] = fork();
	if (w->pid[child] < 0)
		bench_die("cannot start a process: %s", strerror(errno));
	if (w->pid[child] == 0) {
		close(to[1]);
		close(from[0]);
		live(w, child, to[0], from[1]);
	}
	close(to[0]);
	close(from[1]);
	w->to[child] = to[1];
	w->from[child] = from[0];
	if (read(from[0], &ready, 1) != 1)
		lost(w, child);
}

static void tell(const struct turns_way *w)
{
	for (int c = 0; c < w->children; c++)
		if (write(w->to[c], "", 1) != 1)
			lost(w, c);
}

static void hear(const struct turns_way *w)
{
	char byte;

	for (int c = 0; c < w->children; c++)
		if (read(w->from[c], &byte, 1) != 1)
			lost(w, c);
}

static double take_turn(struct turns_way *w, int turn)
{
	uint32_t from = (uint32_t)turn * (w->rounds + TURNS_WARM_UP);
	mono_ns_t start;
	double ns;

	tell(w);
	hear(w);
	w->here(w->user, from, TURNS_WARM_UP);
	start = mono_now();
	w->here(w->user, from + TURNS_WARM_UP, w->rounds);
	ns = (double)(mono_now() - start) / w->rounds / 2;
	hear(w);
	return ns;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

void turns_run(struct turns_way *ways, int n, int turns)
{
	int i, turn, child;

	if (turns_cpus() < 1)
		bench_die("cannot tell which CPUs are allowed");
	signal(SIGPIPE, SIG_IGN); /* of a child that has died; children inherit it */
	for (i = 0; i < n; i++) {
		ways[i].ns = bench_zeroes((size_t)turns * sizeof(*ways[i].ns));
		for (child = 0; child < ways[i].children; child++)
			bear(&ways[i], child);
	}
	pin(0);
	for (turn = 0; turn < turns; turn++)
		for (i = 0; i < n; i++)
			ways[i].ns[turn] = take_turn(&ways[i], turn);
	for (i = 0; i < n; i++) {
		for (child = 0; child < ways[i].children; child++) {
			/* not by closing its pipe: children born later have that end, too */
			kill(ways[i].pid[child], SIGKILL);
			close(ways[i].to[child]);
			close(ways[i].from[child]);
			waitpid(ways[i].pid[child], NULL, 0);
		}
		qsort(ways[i].ns, (size_t)turns, sizeof(*ways[i].ns), compare);
		ways[i].median_ns = ways[i].ns[turns / 2];
		free(ways[i].ns);
	}
}
