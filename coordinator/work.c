#include "coordinator/work.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct work_list {
	struct loop_work *first, **end;
};

struct work_pool {
	pthread_mutex_t lock; /* todo, done, quit */
	pthread_cond_t wake;
	struct work_list todo, done;
	bool quit;
	int fd;
	uint32_t n_threads;
	pthread_t threads[];
};

static void list_init(struct work_list *l)
{
	l->first = NULL;
	l->end = &l->first;
}

static void list_append(struct work_list *l, struct loop_work *w)
{
	w->next = NULL;
	*l->end = w;
	l->end = &w->next;
}

static struct loop_work *list_pop(struct work_list *l)
{
	struct loop_work *w = l->first;

	if (!w)
		return NULL;
	l->first = w->next;
	if (!l->first)
		l->end = &l->first;
	return w;
}

static void *thread_main(void *user)
{
	struct work_pool *pool = user;
	struct loop_work *w;
	bool first;

	pthread_mutex_lock(&pool->lock);
	for (;;) {
		while (!pool->quit && !pool->todo.first)
			pthread_cond_wait(&pool->wake, &pool->lock);
		if (pool->quit)
			break;
		w = list_pop(&pool->todo);
		pthread_mutex_unlock(&pool->lock);
		w->run(w->user);
		pthread_mutex_lock(&pool->lock);
		first = !pool->done.first;
		list_append(&pool->done, w);
		/* work_reap() empties the list, so one ring of the bell is enough until then */
		if (first)
			(void)eventfd_write(pool->fd, 1);
	}
	pthread_mutex_unlock(&pool->lock);
	return NULL;
}

/* Threads inherit the mask they are made with; signals are for the loop's signalfd alone. */
static int start_threads(struct work_pool *pool, uint32_t n)
{
	sigset_t all, old;
	int r = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (pool->n_threads < n && r == 0) {
		r = -pthread_create(&pool->threads[pool->n_threads], NULL, thread_main, pool);
		if (r == 0)
			pool->n_threads++;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return r;
}

int work_new(uint32_t threads, struct work_pool **ret_pool)
{
	struct work_pool *pool;
	int r;

	pool = calloc(1, sizeof(*pool) + threads * sizeof(pool->threads[0]));
	if (!pool)
		return -ENOMEM;
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->wake, NULL);
	list_init(&pool->todo);
	list_init(&pool->done);
	pool->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = pool->fd < 0 ? -errno : start_threads(pool, threads);
	if (r < 0) {
		work_free(pool);
		return r;
	}
	*ret_pool = pool;
	return 0;
}

struct work_pool *work_free(struct work_pool *pool)
{
	if (!pool)
		return NULL;
	pthread_mutex_lock(&pool->lock);
	pool->quit = true;
	pthread_cond_broadcast(&pool->wake);
	pthread_mutex_unlock(&pool->lock);
	for (uint32_t i = 0; i < pool->n_threads; i++)
		pthread_join(pool->threads[i], NULL);
	if (pool->fd >= 0)
		close(pool->fd);
	pthread_cond_destroy(&pool->wake);
	pthread_mutex_destroy(&pool->lock);
	free(pool);
	return NULL;
}

int work_fd(const struct work_pool *pool)
{
	return pool->fd;
}

void work_queue(struct work_pool *pool, struct loop_work *w)
{
	pthread_mutex_lock(&pool->lock);
	list_append(&pool->todo, w);
	pthread_cond_signal(&pool->wake);
	pthread_mutex_unlock(&pool->lock);
}

void work_reap(struct work_pool *pool)
{
	struct loop_work *w, *next;
	eventfd_t rings;

	(void)eventfd_read(pool->fd, &rings);
	pthread_mutex_lock(&pool->lock);
	w = pool->done.first;
	list_init(&pool->done);
	pthread_mutex_unlock(&pool->lock);
	for (; w; w = next) {
		next = w->next; /* done() may queue w again or free it */
		w->done(w->user);
	}
}
