#include "kernels/cpu/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

struct kern_threads {
	unsigned n;
	uint64_t spin_ns;
	/* written by the caller before it moves `round` on, read by workers after they see it */
	void (*f)(void *arg, unsigned i);
	void *arg;
	int stop;
	atomic_uint round;     /* written by the caller: one step up for each run */
	atomic_uint remaining; /* workers that have not finished this round */
	atomic_uint sleepers;  /* workers about to wait, or waiting, on `wake` */
	atomic_uint waiting;   /* the caller is about to wait, or waits, on `finished` */
	pthread_mutex_t mutex;
	pthread_cond_t wake, finished;
	struct worker {
		struct kern_threads *pool;
		pthread_t thread;
		unsigned i;
	} * workers; /* [n], [0] unused */
};

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Spins until *v differs from (or, with want, equals) x, at most spin_ns. */
static int spin_until(atomic_uint *v, unsigned x, int equal, uint64_t spin_ns)
{
	uint64_t end;

	if ((atomic_load(v) == x) == equal)
		return 1;
	if (!spin_ns)
		return 0;
	end = now_ns() + spin_ns;
	do {
		for (int i = 0; i < 64; i++) {
			if ((atomic_load(v) == x) == equal)
				return 1;
			__builtin_ia32_pause();
		}
	} while (now_ns() < end);
	return 0;
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
		if (!spin_until(&p->round, seen, 0, p->spin_ns)) {
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
		if (atomic_fetch_sub(&p->remaining, 1) == 1 && atomic_load(&p->waiting)) {
			pthread_mutex_lock(&p->mutex);
			pthread_cond_signal(&p->finished);
			pthread_mutex_unlock(&p->mutex);
		}
	}
}

static void start_round(struct kern_threads *p)
{
	atomic_fetch_add(&p->round, 1);
	if (atomic_load(&p->sleepers)) {
		pthread_mutex_lock(&p->mutex);
		pthread_cond_broadcast(&p->wake);
		pthread_mutex_unlock(&p->mutex);
	}
}

void kern_threads_run(struct kern_threads *p, void (*f)(void *arg, unsigned i), void *arg)
{
	if (p->n == 1) {
		f(arg, 0);
		return;
	}
	p->f = f;
	p->arg = arg;
	atomic_store(&p->remaining, p->n - 1);
	start_round(p);
	f(arg, 0);
	if (spin_until(&p->remaining, 0, 1, p->spin_ns))
		return;
	pthread_mutex_lock(&p->mutex);
	atomic_store(&p->waiting, 1);
	while (atomic_load(&p->remaining))
		pthread_cond_wait(&p->finished, &p->mutex);
	atomic_store(&p->waiting, 0);
	pthread_mutex_unlock(&p->mutex);
}

/* Ends the threads 1 .. started and frees the pool. */
static void stop_threads(struct kern_threads *p, unsigned started)
{
	p->stop = 1;
	start_round(p);
	for (unsigned i = 1; i <= started; i++)
		pthread_join(p->workers[i].thread, NULL);
	pthread_cond_destroy(&p->finished);
	pthread_cond_destroy(&p->wake);
	pthread_mutex_destroy(&p->mutex);
	free(p->workers);
	free(p);
}

int kern_threads_new(unsigned n, uint64_t spin_ns, struct kern_threads **ret_pool)
{
	struct kern_threads *p = calloc(1, sizeof(*p));
	sigset_t all, old;
	int rc = 0;

	if (!p)
		return -ENOMEM;
	p->n = MAX(n, 1u);
	p->spin_ns = spin_ns;
	p->workers = calloc(p->n, sizeof(*p->workers));
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
		p->workers[i] = (struct worker){.pool = p, .i = i};
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
