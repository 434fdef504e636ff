/*
 * turns.h: several ways to do the same thing, each between this process and children of its own,
 * measured in turn (A B C A B C ...) so that a machine that grows slow does so for all, and by
 * their medians. Only the processes of the way whose turn it is run; the others sleep.
 */
#pragma once

#include <stdint.h>

#define TURNS_CHILDREN_MAX 2
/* Round trips of a turn before its clock starts: processes wake up, lines come near. */
#define TURNS_WARM_UP 20

struct turns_way {
	const char *what;
	int children;
	/* Both run `rounds` round trips; `from` counts those before, the warming-up, too. */
	void (*here)(void *user, uint32_t from, uint32_t rounds);
	void (*there)(void *user, int child, uint32_t from, uint32_t rounds);
	/* In a child once, after fork; may be NULL. */
	void (*born)(void *user, int child);
	void *user;
	uint32_t rounds; /* of one turn */
	/* results */
	double median_ns; /* of half a round trip */
	/* its own */
	int pid[TURNS_CHILDREN_MAX], to[TURNS_CHILDREN_MAX], from[TURNS_CHILDREN_MAX];
	double *ns;
};

/*
 * Runs all ways `turns` times, and fills in their medians. CPUs: this process stays on the first of
 * those allowed, child 0 goes to the second, child 1 to the first. Exits when a child dies.
 */
void turns_run(struct turns_way *ways, int n, int turns);

/* How many CPUs this process may use, 2 at most. */
int turns_cpus(void);
