#include "config.h"

#include "worker/ckpt/load.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <liburing.h>

#include "worker/ckpt/dummy.h"
#include "worker/ckpt/load_file.h"
#include "worker/ckpt/load_piece.h"
#include "worker/ckpt/values.h"

enum {
	DEPTH_DEFAULT = 8,
	DEPTH_MAX = 256,
	CHUNK_DEFAULT = 2 << 20,
	CHUNK_MAX = 64 << 20,
};

/* An item some of whose bytes have been asked for and not all have come. */
struct open_item {
	const struct plan_item *item; /* NULL: free */
	uint8_t *data, *scales;
	uint64_t left; /* bytes still to come */
};

/* A read in flight. */
struct slot {
	bool busy, bounce, direct, scales;
	struct open_item *open;
	struct load_piece piece;
	uint32_t file;
	uint64_t offset, want, got; /* of the read itself: aligned for O_DIRECT */
	uint8_t *to;                /* where its first byte goes */
	uint8_t *buffer;            /* this slot's bounce buffer */
};

struct load {
	const struct ckpt *ck;
	const struct plan *plan;
	const struct load_ops *ops;
	struct errbuf *err;
	uint32_t depth;
	uint64_t chunk, buffer_bytes;

	struct io_uring ring;
	int *direct;     /* load_files_open_direct() */
	bool *no_direct; /* by file: O_DIRECT was refused at the first read */
	bool fixed;
	uint8_t *buffers;
	struct slot *slots;
	struct open_item *opens; /* depth of them: reads are asked for item by item */
	uint32_t busy;

	/* The next read to ask for. */
	size_t *order; /* items by file and offset */
	size_t next;
	struct open_item *open;
	struct load_part part;
	bool in_scales;
	uint64_t at;

	uint64_t done_bytes;
	struct load_stats stats;
};

/* What is being read, for messages. */
static void part_name(const struct plan_item *it, bool scales, char out[TENSOR_NAME_MAX + 16])
{
	char name[TENSOR_NAME_MAX];

	tensor_name(it->kind, it->layer, it->expert, name);
	snprintf(out, TENSOR_NAME_MAX + 16, "%s%s", scales ? "the scales of " : "", name);
}

static int fail_read(const struct load *l, const struct slot *s, int error, const char *why)
{
	char name[TENSOR_NAME_MAX + 16];

	part_name(s->open->item, s->scales, name);
	return err_set(l->err, error, error == -ENODATA ? EXIT_DATA_ERR : EXIT_OS_ERR,
		"%s/%s: reading %s at byte %" PRIu64 ": %s", l->ck->dir, l->ck->files[s->file].name,
		name, s->offset + s->got, why);
}

static int check_values(
	const struct load *l, const struct plan_item *it, const void *data, const void *scales)
{
	int64_t at = values_bad_scale(it->scale, scales, it->scale_rows * it->scale_cols);
	char name[TENSOR_NAME_MAX];

	tensor_name(it->kind, it->layer, it->expert, name);
	if (at >= 0)
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
			"%s: tensor %s: its scale at row %" PRIu64 ", column %" PRIu64 " is %s",
			l->ck->dir, name, it->scale_row0 + (uint64_t)at / it->scale_cols,
			it->scale_col0 + (uint64_t)at % it->scale_cols,
			it->scale == CKPT_SCALE_E8M0 ? "255, which is no number"
						     : "not finite or negative");
	if (it->kind != TENSOR_GATE_TID2EID)
		return 0;
	at = values_bad_ids(it->elem, data, it->rows, (uint32_t)it->cols, l->ck->cfg.experts);
	if (at >= 0)
		return err_set(l->err, -EINVAL, EXIT_DATA_ERR,
			"%s: tensor %s: the experts of token %" PRId64
			" are not %u different ids below %u",
			l->ck->dir, name, at, l->ck->cfg.experts_per_token, l->ck->cfg.experts);
	return 0;
}

/* All of an item has arrived. */
static int finish_item(struct load *l, const struct plan_item *it, void *data, void *scales)
{
	int ret = check_values(l, it, data, scales);

	if (ret == 0 && l->ops->done)
		ret = l->ops->done(l->ops->user, it, data, scales, l->err);
	return ret;
}

static int report(struct load *l, uint64_t bytes)
{
	l->done_bytes += bytes;
	if (l->ops->progress && l->ops->progress(l->ops->user, l->done_bytes, l->plan->bytes) != 0)
		return err_set(l->err, -ECANCELED, EXIT_SOFTWARE_ERR, "loading was cancelled");
	return 0;
}

static int place(struct load *l, const struct plan_item *it, void **data, void **scales)
{
	*data = *scales = NULL;
	return l->ops->place(l->ops->user, it, data, it->scale_bytes ? scales : NULL, l->err);
}

static int run_dummy(struct load *l, uint64_t seed)
{
	int ret = 0;

	for (size_t i = 0; i < l->plan->n && ret == 0; i++) {
		const struct plan_item *it = &l->plan->items[i];
		void *data, *scales;

		ret = place(l, it, &data, &scales);
		if (ret == 0) {
			dummy_fill(&l->ck->cfg, it, seed, data, scales);
			ret = finish_item(l, it, data, scales);
		}
		if (ret == 0)
			ret = report(l, it->bytes + it->scale_bytes);
	}
	return ret;
}

/* Opens the next item of the order: asks for its place. 0: there is none. */
static int open_next(struct load *l)
{
	const struct plan_item *it;
	struct open_item *o = l->opens;
	void *data, *scales;
	int ret;

	if (l->next == l->plan->n)
		return 0;
	it = &l->plan->items[l->order[l->next++]];
	while (o->item) /* at most depth - 1 have reads in flight, so one is free */
		o++;
	ret = place(l, it, &data, &scales);
	if (ret < 0)
		return ret;
	*o = (struct open_item){it, data, scales, it->bytes + it->scale_bytes};
	l->open = o;
	l->part = load_part_data(l->ck, it);
	l->in_scales = false;
	l->at = 0;
	return 1;
}

/* Takes the next piece to read into *s. 1, 0 when all has been asked for, or an error of place().
 */
static int next_piece(struct load *l, struct slot *s)
{
	uint64_t bytes;

	if (!l->open) {
		int ret = open_next(l);

		if (ret <= 0)
			return ret;
	}
	s->piece = load_piece_at(&l->part, l->at, l->chunk);
	s->scales = l->in_scales;
	s->open = l->open;
	s->file = l->part.file;
	bytes = l->in_scales ? l->open->item->scale_bytes : l->open->item->bytes;
	l->at += load_piece_bytes(&s->piece);
	if (l->at < bytes)
		return 1;
	if (!l->in_scales && l->open->item->scale_bytes) {
		l->part = load_part_scales(l->ck, l->open->item);
		l->in_scales = true;
		l->at = 0;
	} else {
		l->open = NULL;
	}
	return 1;
}

/* Where and how much to read for a slot's piece. */
static void aim(struct load *l, struct slot *s)
{
	uint8_t *slice = s->scales ? s->open->scales : s->open->data;

	s->direct = l->direct[s->file] >= 0 && !l->no_direct[s->file];
	s->bounce = s->direct || load_piece_is_narrow(&s->piece);
	s->offset = s->piece.offset;
	s->want = s->piece.span;
	s->got = 0;
	s->to = s->bounce ? s->buffer : slice + s->piece.at;
	if (s->direct) {
		uint64_t pad = s->offset % LOAD_DIRECT_ALIGN;

		s->offset -= pad;
		s->want += pad;
	}
}

/* Queues the read of what a slot still lacks. */
static void ask(struct load *l, struct slot *s)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&l->ring); /* never NULL: depth entries */
	int fd = s->direct ? l->direct[s->file] : l->ck->files[s->file].fd;
	uint64_t n = s->want - s->got;

	if (s->direct)
		n = ALIGN_UP(n, (uint64_t)LOAD_DIRECT_ALIGN);
	if (s->bounce && l->fixed)
		io_uring_prep_read_fixed(sqe, fd, s->to + s->got, (unsigned)n, s->offset + s->got,
			(int)(s - l->slots));
	else
		io_uring_prep_read(sqe, fd, s->to + s->got, (unsigned)n, s->offset + s->got);
	io_uring_sqe_set_data(sqe, s);
	l->stats.reads++;
}

/* A slot's piece is complete. */
static int finish_piece(struct load *l, struct slot *s)
{
	struct open_item *o = s->open;
	uint64_t bytes = load_piece_bytes(&s->piece);
	int ret = 0;

	l->stats.read_bytes += s->want;
	if (s->bounce)
		load_piece_gather(&s->piece, s->buffer + (s->piece.offset - s->offset),
			s->scales ? o->scales : o->data);
	o->left -= bytes;
	if (o->left == 0) {
		ret = finish_item(l, o->item, o->data, o->scales);
		o->item = NULL;
	}
	return ret < 0 ? ret : report(l, bytes);
}

/*
 * One completion. Returns 1 when the slot has been asked for again, 0 when it is free, or an error.
 */
static int complete(struct load *l, struct slot *s, int res)
{
	uint64_t before = s->got;

	if (res == -EINTR || res == -EAGAIN) {
		ask(l, s);
		return 1;
	}
	if (res == -EINVAL && s->direct) { /* the file system cannot after all */
		l->no_direct[s->file] = true;
		aim(l, s);
		ask(l, s);
		return 1;
	}
	if (res < 0)
		return fail_read(l, s, res, strerror(-res));
	s->got += (uint64_t)res;
	if (s->got >= s->want)
		return finish_piece(l, s);
	if (s->direct) /* a short read may end anywhere; what it did not bring whole it brings again
			*/
		s->got -= s->got % LOAD_DIRECT_ALIGN;
	if (s->got <= before)
		return fail_read(l, s, -ENODATA, "the file ends there; was it replaced meanwhile?");
	ask(l, s);
	return 1;
}

/* Keeps depth reads in flight until all items are done. */
static int pump(struct load *l)
{
	struct io_uring_cqe *cqe;
	bool more = true;
	int ret = 0;

	for (;;) {
		for (uint32_t i = 0; ret == 0 && more && i < l->depth; i++) {
			struct slot *s = &l->slots[i];
			int got;

			if (s->busy)
				continue;
			got = next_piece(l, s);
			more = got > 0;
			if (got < 0)
				ret = got;
			if (got <= 0)
				break;
			aim(l, s);
			ask(l, s);
			s->busy = true;
			l->busy++;
		}
		if (l->busy == 0)
			return ret;
		int n = io_uring_submit_and_wait(&l->ring, 1);

		/* Others would be a bug of ours (a bad ring), and leave reads in flight. */
		if (n < 0 && n != -EINTR && n != -EAGAIN && n != -EBUSY)
			return err_set(l->err, n, EXIT_OS_ERR, "io_uring: %s", strerror(-n));
		while (io_uring_peek_cqe(&l->ring, &cqe) == 0) {
			struct slot *s = io_uring_cqe_get_data(cqe);
			int res = cqe->res, again = 0;

			io_uring_cqe_seen(&l->ring, cqe);
			if (ret == 0) /* after an error only drain: no read may outlive the call */
				again = complete(l, s, res);
			if (again < 0)
				ret = again;
			if (again <= 0) {
				s->busy = false;
				l->busy--;
			}
		}
	}
}

/* Items in the order they lie in the files. */
static int by_place(const void *a, const void *b, void *user)
{
	const struct load *l = user;
	const struct ckpt_view *x = &l->ck->entries[l->plan->items[*(const size_t *)a].entry].data;
	const struct ckpt_view *y = &l->ck->entries[l->plan->items[*(const size_t *)b].entry].data;

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int start_ring(struct load *l)
{
	struct io_uring_params params = {0};
	int ret;

	/*
	 * One thread submits and reaps, so completions need no inter-processor interrupts: they run
	 * when this thread asks for them (kernel 6.1).
	 */
	params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
	ret = io_uring_queue_init_params(l->depth, &l->ring, &params);
	if (ret < 0)
		return err_set(l->err, ret, EXIT_OS_ERR,
			"io_uring: %s; it needs Linux 6.1 and sysctl kernel.io_uring_disabled=0",
			strerror(-ret));
	return 0;
}

/* Optional: saves pinning the buffers at each read. RLIMIT_MEMLOCK may forbid it; then without. */
static void register_buffers(struct load *l)
{
	struct iovec iov[DEPTH_MAX];

	for (uint32_t i = 0; i < l->depth; i++)
		iov[i] = (struct iovec){l->slots[i].buffer, l->buffer_bytes};
	l->fixed = io_uring_register_buffers(&l->ring, iov, l->depth) == 0;
}

static int alloc(struct load *l)
{
	size_t bytes;

	/* Room for a span and for what O_DIRECT reads around it. */
	l->buffer_bytes = MAX(l->chunk, (uint64_t)LOAD_WIDE_BYTES) + 2 * LOAD_DIRECT_ALIGN;
	bytes = l->depth * l->buffer_bytes;
	l->slots = calloc(l->depth, sizeof(*l->slots));
	l->opens = calloc(l->depth, sizeof(*l->opens));
	l->no_direct = calloc(l->ck->file_n + 1, sizeof(*l->no_direct));
	l->order = calloc(l->plan->n + 1, sizeof(*l->order));
	l->buffers = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (l->buffers == MAP_FAILED)
		l->buffers = NULL;
	if (!l->slots || !l->opens || !l->order || !l->buffers || !l->direct || !l->no_direct)
		return err_set(l->err, -ENOMEM, EXIT_OS_ERR, "no memory for the loader's buffers");
	for (uint32_t i = 0; i < l->depth; i++)
		l->slots[i].buffer = l->buffers + i * l->buffer_bytes;
	for (size_t i = 0; i < l->plan->n; i++)
		l->order[i] = i;
	qsort_r(l->order, l->plan->n, sizeof(*l->order), by_place, l);
	return 0;
}

/* Will any read go through a bounce buffer? */
static bool needs_bounce(const struct load *l)
{
	for (size_t i = 0; i < l->ck->file_n; i++)
		if (l->direct[i] >= 0)
			return true;
	for (size_t i = 0; i < l->plan->n; i++)
		if (l->plan->items[i].cols != l->plan->items[i].all_cols)
			return true;
	return false;
}

static int run_files(struct load *l, enum load_direct mode)
{
	int ret;

	l->direct = load_files_open_direct(l->ck, mode);
	ret = alloc(l);
	if (ret == 0)
		ret = start_ring(l);
	if (ret == 0) {
		for (size_t i = 0; i < l->ck->file_n; i++)
			l->stats.direct_files += l->direct[i] >= 0;
		if (needs_bounce(l))
			register_buffers(l);
		l->stats.fixed_buffers = l->fixed;
		ret = pump(l);
		io_uring_queue_exit(&l->ring);
	}
	load_files_close(l->direct, l->ck->file_n);
	if (l->buffers)
		munmap(l->buffers, l->depth * l->buffer_bytes);
	free(l->no_direct);
	free(l->slots);
	free(l->opens);
	free(l->order);
	return ret;
}

int load_run(const struct ckpt *ck, const struct plan *plan, const struct load_opts *opts,
	const struct load_ops *ops, struct load_stats *ret_stats, struct errbuf *err)
{
	static const struct load_opts defaults;
	struct load l = {.ck = ck, .plan = plan, .ops = ops, .err = err};
	int ret;

	if (!opts)
		opts = &defaults;
	l.depth = opts->depth ? MIN(opts->depth, (uint32_t)DEPTH_MAX) : DEPTH_DEFAULT;
	l.chunk = opts->chunk_bytes ? MIN(opts->chunk_bytes, (uint32_t)CHUNK_MAX) : CHUNK_DEFAULT;
	l.chunk = ALIGN_UP(l.chunk, (uint64_t)LOAD_DIRECT_ALIGN);
	if (ck->dummy)
		ret = run_dummy(&l, opts->dummy_seed);
	else
		ret = run_files(&l, opts->direct);
	if (ret < 0)
		return ret;
	if (ret_stats)
		*ret_stats = l.stats;
	return 0;
}
