#include "config.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "shm/seg.h"

/* An eventfd out of the way of the numbers that the children get. */
static int open_bell(void)
{
	int fd = bell_open_fd(), high;

	if (fd < 0)
		return fd;
	high = fcntl(fd, F_DUPFD_CLOEXEC, SEG_FD__END);
	if (high < 0)
		high = -errno;
	close(fd);
	return high;
}

int seg_group_create(struct seg_group *g, const struct seg_geometry *geometry,
	const struct conf *conf, struct errbuf *err)
{
	uint32_t i;
	int r;

	memset(g, 0, sizeof(*g));
	g->geometry = *geometry;
	g->coord_pid = getpid();
	g->rank = -1;
	g->bell_fd = -1;
	r = seg_create(&g->coord, SEG_COORD, 0, geometry, conf, err);
	for (i = 0; r == 0 && i < geometry->workers; i++)
		r = seg_create(&g->workers[i], SEG_WORKER, i, geometry, NULL, err);
	if (r == 0) {
		g->bell_fd = open_bell();
		if (g->bell_fd < 0)
			r = err_set(err, g->bell_fd, EXIT_OS_ERR, "cannot make an eventfd: %s",
				strerror(-g->bell_fd));
	}
	if (r < 0)
		seg_group_close(g);
	return r;
}

/* A worker's segment must be of the same group as the coordinator's. */
static int check_same_group(const struct seg *coord, const struct seg *worker, struct errbuf *err)
{
	const struct seg_geometry *a = &coord->hdr.geometry, *b = &worker->hdr.geometry;

	if (a->generation != b->generation || a->workers != b->workers ||
		a->step_ring_bytes != b->step_ring_bytes ||
		a->reply_ring_bytes != b->reply_ring_bytes || a->comm_bytes != b->comm_bytes ||
		coord->hdr.pid != worker->hdr.pid)
		return err_set(err, -EBADMSG, EXIT_SOFTWARE_ERR,
			"bad segment: worker %u's is of another group (generation %llu, the "
			"coordinator's is %llu)",
			worker->hdr.rank, (unsigned long long)b->generation,
			(unsigned long long)a->generation);
	return 0;
}

int seg_group_attach_fds(struct seg_group *g, uint32_t rank, int coord_fd, int bell_fd,
	const int *worker_fds, struct errbuf *err)
{
	uint32_t i;
	int r;

	memset(g, 0, sizeof(*g));
	g->bell_fd = -1;
	r = seg_attach(&g->coord, coord_fd, SEG_COORD, 0, false, err);
	if (r < 0)
		return r;
	g->geometry = g->coord.hdr.geometry;
	g->coord_pid = g->coord.hdr.pid;
	g->rank = (int)rank;
	if (rank >= g->geometry.workers)
		r = err_set(err, -EINVAL, EXIT_SOFTWARE_ERR, "rank %u of a group of %u workers",
			rank, g->geometry.workers);
	for (i = 0; r == 0 && i < g->geometry.workers; i++) {
		r = seg_attach(&g->workers[i], worker_fds[i], SEG_WORKER, i, i == rank, err);
		if (r == 0)
			r = check_same_group(&g->coord, &g->workers[i], err);
	}
	if (r < 0) {
		seg_group_close(g);
		return r;
	}
	g->bell_fd = bell_fd;
	return 0;
}

int seg_group_attach(struct seg_group *g, uint32_t rank, struct errbuf *err)
{
	int fds[SEG_WORKERS_MAX], r;
	uint32_t i;

	for (i = 0; i < SEG_WORKERS_MAX; i++)
		fds[i] = SEG_FD_WORKER + (int)i;
	r = seg_group_attach_fds(g, rank, SEG_FD_COORD, SEG_FD_BELL, fds, err);
	if (r < 0)
		return r;
	/* a child of the worker has no business with them */
	(void)fcntl(g->coord.fd, F_SETFD, FD_CLOEXEC);
	(void)fcntl(g->bell_fd, F_SETFD, FD_CLOEXEC);
	for (i = 0; i < g->geometry.workers; i++)
		(void)fcntl(g->workers[i].fd, F_SETFD, FD_CLOEXEC);
	return 0;
}

void seg_group_close(struct seg_group *g)
{
	uint32_t i;

	if (!g->coord.hdr.magic)
		return;
	for (i = 0; i < SEG_WORKERS_MAX; i++)
		seg_close(&g->workers[i]);
	seg_close(&g->coord);
	if (g->bell_fd >= 0)
		close(g->bell_fd);
	memset(g, 0, sizeof(*g));
	g->bell_fd = -1;
}

void seg_group_set_lost(struct seg_group *g)
{
	uint32_t i, j;

	atomic_store_explicit(&g->coord.ctl->lost, 1, memory_order_release);
	bell_wake(&g->coord.ctl->word);
	for (i = 0; i < g->geometry.workers; i++)
		for (j = 0; j < SEG_FLAGS; j++)
			bell_wake(&g->workers[i].flags[j]);
}

int seg_group_alive(void *group)
{
	const struct seg_group *g = group;
	uint32_t i;

	if (g->rank < 0)
		return 0;
	if (atomic_load_explicit(&g->coord.ctl->lost, memory_order_acquire))
		return -EPIPE;
	if (getppid() != g->coord_pid)
		return -EPIPE;
	for (i = 0; i < g->geometry.workers; i++) {
		enum worker_state state = slot_state(g->workers[i].slot);

		if ((int)i != g->rank && (state == WORKER_FAILED || state == WORKER_STOPPED))
			return -EPIPE;
	}
	return 0;
}
