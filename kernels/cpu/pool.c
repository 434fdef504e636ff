#include "kernels/cpu/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LINE = 64 }; /* of the cache */

/*
 * How long a thread spins before it sleeps. Where others want the CPUs, a spinning thread keeps
 * its partner from running, and what it waits for does not come: each wait in vain halves the next
 * one, each that was worth it doubles it again. None is shorter than a sleeper takes to wake: else
 * two that sleep at each other's every wait would never find out that their CPUs are free.
 */
struct patience {
	uint64_t ns, most_ns; /* most_ns 0: none at all */
};

enum { WAKING_NS = 50000 };

/*
 * A round is one line moved each way: what starts it, and for each worker a line that ends it. What
 * sleepers write lies elsewhere, where those that spin need not wait for it.
 */
struct kern_threads {
	/* written by the caller before it moves `round` on, read by workers after they see it */
	_Alignas(LINE) atomic_uint round;
	int stop;
	void (*f)(void *arg, unsigned i);
	void *arg;

	_Alignas(LINE) atomic_uint sleepers; /* workers that wait on `wake`, or are about to */
	atomic_uint waiting;                 /* the caller waits on `finished`, or is about to */
	unsigned n;
	struct patience mine; /* the caller's */
	pthread_mutex_t mutex;
	pthread_cond_t wake, finished;
	struct worker {
		_Alignas(LINE) atomic_uint done; /* the last round it has finished */
		unsigned i;
		struct patience patience;
		struct kern_threads *pool;
		pthread_t thread;
	} * workers; /* [n], [0] unused */
};

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

enum until { UNTIL_IS, UNTIL_IS_NOT };

static bool is_over(atomic_uint *v, enum until until, unsigned x)
{
	return (atomic_load(v) == x) == (until == UNTIL_IS);
}

/* Spins until *v is x, or is not, for as long as patience has it; false when that was not long
 * enough. Most waits are over before a look at the clock would be. */
static bool spin(atomic_uint *v, enum until until, unsigned x, struct patience *patience)
{
	uint64_t now, end = 0;

	if (is_over(v, until, x))
		return true;
	if (!patience->most_ns)
		return false;
	do {
		for (int i = 0; i < 64; i++) {
			if (is_over(v, until, x)) {
				if (patience->ns < patience->most_ns)
					patience->ns = MIN(2 * patience->ns, patience->most_ns);
				return true;
			}
			__builtin_ia32_pause();
		}
		now = now_ns();
		end = end ? end : now + patience->ns;
	} while (now < end);
	patience->ns = MAX(patience->ns / 2, MIN(patience->most_ns, (uint64_t)WAKING_NS));
	return false;
}

/*
 * Sleeping: the sleeper counts itself, then looks at `round` again under the mutex; the waker moves
 * `round`, then looks at the count. All four are sequentially consistent, so one of them sees the
 * other and no wake-up is lost.
 */
static void *worker_main(void *arg)
{
	struct worker *w = arg;
	struct kern_threads *p = w->pool;
	unsigned seen = 0;

	for (;;) {
		if (!spin(&p->round, UNTIL_IS_NOT, seen, &w->patience)) {
			pthread_mutex_lock(&p->mutex);
			atomic_fetch_add(&p->sleepers, 1);
			while (atomic_load(&p->round) == seen)
				pthread_cond_wait(&p->wake, &p->mutex);
			atomic_fetch_sub(&p->sleepers, 1);
			pthread_mutex_unlock(&p->mutex);
		}
		seen++;
		if (p->stop)
			return NULL;
		p->f(p->arg, w->i);
		atomic_store(&w->done, seen);
		if (atomic_load(&p->waiting)) {
			pthread_mutex_lock(&p->mutex);
			pthread_cond_signal(&p->finished);
			pthread_mutex_unlock(&p->mutex);
		}
	}
}

static unsigned start_round(struct kern_threads *p)
{
	unsigned round = atomic_fetch_add(&p->round, 1) + 1;

	if (atomic_load(&p->sleepers)) {
		pthread_mutex_lock(&p->mutex);
		pthread_cond_broadcast(&p->wake);
		pthread_mutex_unlock(&p->mutex);
	}
	return round;
}

/* Waits for a worker to finish this round; sleeps as worker_main() does, the other way round. */
static void wait_done(struct kern_threads *p, struct worker *w, unsigned round)
{
	if (spin(&w->done, UNTIL_IS, round, &p->mine))
		return;
	pthread_mutex_lock(&p->mutex);
	atomic_store(&p->waiting, 1);
	while (atomic_load(&w->done) != round)
		pthread_cond_wait(&p->finished, &p->mutex);
	atomic_store(&p->waiting, 0);
	pthread_mutex_unlock(&p->mutex);
}

void kern_threads_run(struct kern_threads *p, void (*f)(void *arg, unsigned i), void *arg)
{
	unsigned round;

	if (p->n == 1) {
		f(arg, 0);
		return;
	}
	p->f = f;
	p->arg = arg;
	round = start_round(p);
	f(arg, 0);
	for (unsigned i = 1; i < p->n; i++)
		wait_done(p, &p->workers[i], round);
}

/* Ends the threads 1 .. started and frees the pool. */
static void stop_threads(struct kern_threads *p, unsigned started)
{
	p->stop = 1;
	(void)start_round(p);
	for (unsigned i = 1; i <= started; i++)
		pthread_join(p->workers[i].thread, NULL);
	pthread_cond_destroy(&p->finished);
	pthread_cond_destroy(&p->wake);
	pthread_mutex_destroy(&p->mutex);
	free(p->workers);
	free(p);
}

static void *zeroed_lines(size_t bytes)
{
	void *p = aligned_alloc(LINE, ALIGN_UP(bytes, (size_t)LINE));

	return p ? memset(p, 0, bytes) : NULL;
}

int kern_threads_new(unsigned n, uint64_t spin_ns, struct kern_threads **ret_pool)
{
	struct kern_threads *p = zeroed_lines(sizeof(*p));
	sigset_t all, old;
	int rc = 0;

	if (!p)
		return -ENOMEM;
	p->n = MAX(n, 1u);
	p->mine = (struct patience){spin_ns, spin_ns};
	p->workers = zeroed_lines(p->n * sizeof(*p->workers));
	if (!p->workers) {
		free(p);
		return -ENOMEM;
	}
	pthread_mutex_init(&p->mutex, NULL);
	pthread_cond_init(&p->wake, NULL);
	pthread_cond_init(&p->finished, NULL);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	for (unsigned i = 1; i < p->n && !rc; i++) {
		p->workers[i] = (struct worker){.pool = p, .i = i, .patience = p->mine};
		rc = -pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]);
		if (rc)
			stop_threads(p, i - 1);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!rc)
		*ret_pool = p;
	return rc;
}

void kern_threads_free(struct kern_threads *p)
{
	if (p)
		stop_threads(p, p->n - 1);
}
