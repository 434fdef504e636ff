#include "config.h"

#include "shm/fault.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/util.h"

#ifdef HEDDLE_FAULTS

enum fault_action { FAULT_KILL, FAULT_STOP, FAULT_EXIT, FAULT_ERR_RETURN };
static const char *const action_names[] = {"kill", "stop", "exit", "err"};

struct fault {
	char name[64];
	int any_rank, rank;
	uint64_t generation; /* 0: any */
	long count;
	enum fault_action action;
	_Atomic long passes;
};

/* Fault points are hit from everywhere, so that what is armed is the process's own. */
static struct {
	pthread_once_t once;
	struct fault faults[8];
	size_t n;
	_Atomic int rank;
	_Atomic uint64_t generation;
} fault_state = {.once = PTHREAD_ONCE_INIT, .rank = -2};

/* NAME[@RANK[.GENERATION]][:COUNT]=ACTION, cut up in place. A word that is not one ends the
 * process: a test that arms nothing would pass for the wrong reason. */
static int parse_one(char *word, struct fault *f)
{
	char *action = strchr(word, '='), *count, *rank, *generation;
	size_t i;

	if (!action)
		return -EINVAL;
	*action++ = '\0';
	for (i = 0; i < ARRAY_LEN(action_names); i++)
		if (strcmp(action, action_names[i]) == 0)
			break;
	if (i == ARRAY_LEN(action_names))
		return -EINVAL;
	f->action = (enum fault_action)i;
	f->count = 1;
	f->any_rank = 1;
	count = strchr(word, ':');
	if (count) {
		*count++ = '\0';
		f->count = atol(count);
	}
	rank = strchr(word, '@');
	if (rank) {
		*rank++ = '\0';
		f->any_rank = 0;
		generation = strchr(rank, '.');
		if (generation) {
			*generation++ = '\0';
			f->generation = strtoull(generation, NULL, 10);
		}
		f->rank = atoi(rank);
	}
	if (!*word || strlen(word) >= sizeof(f->name) || f->count < 1)
		return -EINVAL;
	strcpy(f->name, word);
	return 0;
}

static void arm(void)
{
	const char *env = getenv("HEDDLE_FAULT");
	char text[1024], *word, *save = NULL;

	if (!env)
		return;
	snprintf(text, sizeof(text), "%s", env);
	for (word = strtok_r(text, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
		if (fault_state.n == ARRAY_LEN(fault_state.faults) ||
			parse_one(word, &fault_state.faults[fault_state.n]) < 0) {
			fprintf(stderr, "HEDDLE_FAULT: cannot arm %s\n", env);
			_exit(EXIT_USAGE_ERR);
		}
		fault_state.n++;
	}
}

void fault_identity(int rank, uint64_t generation)
{
	atomic_store(&fault_state.rank, rank);
	atomic_store(&fault_state.generation, generation);
}

static int act(const struct fault *f, long pass)
{
	if (f->action == FAULT_ERR_RETURN)
		return pass >= f->count ? -EIO : 0;
	if (pass != f->count)
		return 0;
	if (f->action == FAULT_EXIT)
		_exit(EXIT_SOFTWARE_ERR);
	kill(getpid(), f->action == FAULT_KILL ? SIGKILL : SIGSTOP);
	return 0;
}

int fault_hit(const char *name)
{
	size_t i;

	pthread_once(&fault_state.once, arm);
	for (i = 0; i < fault_state.n; i++) {
		struct fault *f = &fault_state.faults[i];

		if (strcmp(f->name, name) != 0)
			continue;
		if (!f->any_rank && f->rank != atomic_load(&fault_state.rank))
			continue;
		if (f->generation && f->generation != atomic_load(&fault_state.generation))
			continue;
		return act(f, atomic_fetch_add(&f->passes, 1) + 1);
	}
	return 0;
}

#endif
