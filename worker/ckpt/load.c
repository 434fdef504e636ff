#include "config.h"

#include "worker/ckpt/load.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "worker/ckpt/dummy.h"
#include "worker/ckpt/load_file.h"
#include "worker/ckpt/load_piece.h"
#include "worker/ckpt/load_read.h"
#include "worker/ckpt/values.h"

enum {
	THREADS_MAX = 16,
	DEPTH_DEFAULT = 8,
	DEPTH_MAX = 256,
	CHUNK_DEFAULT = 1 << 20,
	CHUNK_MAX = 64 << 20,
	STRETCH_CHUNKS = 8,
	TOGETHER_BYTES =
		128, /* rows of scales so narrow share lines, or are read with their gaps */
};

/* A place in the plan, between two pieces. */
struct cursor {
	size_t next; /* of the order */
	uint64_t row;
};

/* What a thread has to itself. */
struct stretch {
	struct cursor at, end;
};

struct load {
	const struct ckpt *ck;
	const struct plan *plan;
	const struct load_ops *ops;
	uint32_t threads, depth; /* depth: of each thread */
	uint64_t chunk, seed;
	enum load_direct mode;

	struct load_file *files;
	uint64_t span_bytes, scale_bytes; /* of the largest piece */
	bool any_direct;
	size_t *order; /* items by file and offset */

	pthread_mutex_t lock; /* of what follows, and of err and progress() */
	struct cursor at;     /* what has been handed out */
	uint64_t done_bytes;
	struct load_stats stats;
	int ret; /* of the first failure, which ends the load */
	struct errbuf *err;
};

/* ---- handing out ---------------------------------------------------------------------------- */

/* The piece at a cursor, which moves behind it. */
static const struct plan_item *step(
	const struct load *l, struct cursor *at, uint64_t *ret_first, uint64_t *ret_n)
{
	const struct plan_item *it = &l->plan->items[l->order[at->next]];

	*ret_first = at->row;
	*ret_n = MIN(load_piece_rows(it, l->chunk), it->rows - at->row);
	at->row += *ret_n;
	if (at->row == it->rows)
		*at = (struct cursor){at->next + 1, 0};
	return it;
}

/*
 * The next piece of a thread's stretch, or of a new one. Stretches are several pieces long, for
 * two threads that touch a fresh huge page at once both clear one, and one of them in vain.
 * False: there is none, or the load has failed.
 */
static bool take_piece(struct load *l, struct stretch *s, const struct plan_item **ret_item,
	uint64_t *ret_first, uint64_t *ret_n)
{
	bool ended;

	pthread_mutex_lock(&l->lock);
	if (s->at.next == s->end.next && s->at.row == s->end.row) {
		s->at = l->at;
		for (uint64_t bytes = 0;
			l->at.next < l->plan->n && bytes < STRETCH_CHUNKS * l->chunk;) {
			const struct plan_item *it = step(l, &l->at, ret_first, ret_n);

			bytes += *ret_n * it->row_bytes;
		}
		s->end = l->at;
	}
	ended = l->ret != 0 || s->at.next == l->plan->n;
	pthread_mutex_unlock(&l->lock);
	if (!ended)
		*ret_item = step(l, &s->at, ret_first, ret_n);
	return !ended;
}

static void fail(struct load *l, int ret, const struct errbuf *err)
{
	pthread_mutex_lock(&l->lock);
	if (l->ret == 0) {
		l->ret = ret;
		if (l->err)
			*l->err = *err;
	}
	pthread_mutex_unlock(&l->lock);
}

/* Does no other worker read these bytes? */
static bool is_private(const struct load *l, const struct plan_item *it)
{
	return l->plan->world == 1 || (it->rows != it->all_rows && it->cols == it->all_cols) ||
	       (it->expert >= 0 && l->plan->experts_by_id);
}

/* ---- taking in ------------------------------------------------------------------------------ */

static int check_scales(const struct load *l, const struct plan_item *part, const uint8_t *scales,
	size_t stride, struct errbuf *err)
{
	uint64_t row_bytes = ckpt_scale_bytes(part->scale, part->scale_cols);
	uint64_t bytes = (part->scale_rows - 1) * stride + row_bytes;
	char name[TENSOR_NAME_MAX];

	/* Mostly all are good, and one look is enough; between rows lie scales of other workers. */
	if ((stride == row_bytes || stride <= TOGETHER_BYTES) &&
		values_bad_scale(part->scale, scales, bytes / ckpt_scale_bytes(part->scale, 1)) < 0)
		return 0;
	for (uint64_t i = 0; i < part->scale_rows; i++) {
		int64_t at = values_bad_scale(part->scale, scales + i * stride, part->scale_cols);

		if (at < 0)
			continue;
		tensor_name(part->kind, part->layer, part->expert, name);
		return err_set(err, -EINVAL, EXIT_DATA_ERR,
			"%s: tensor %s: its scale at row %" PRIu64 ", column %" PRIu64 " is %s",
			l->ck->dir, name, part->scale_row0 + i, part->scale_col0 + (uint64_t)at,
			part->scale == CKPT_SCALE_E8M0 ? "255, which is no number"
						       : "not finite or negative");
	}
	return 0;
}

static int check_ids(
	const struct load *l, const struct plan_item *part, const uint8_t *data, struct errbuf *err)
{
	int64_t at = values_bad_ids(
		part->elem, data, part->rows, (uint32_t)part->cols, l->ck->cfg.experts);
	char name[TENSOR_NAME_MAX];

	if (at < 0)
		return 0;
	tensor_name(part->kind, part->layer, part->expert, name);
	return err_set(err, -EINVAL, EXIT_DATA_ERR,
		"%s: tensor %s: the experts of token %" PRIu64 " are not %u different ids below %u",
		l->ck->dir, name, part->row0 + (uint64_t)at, l->ck->cfg.experts_per_token,
		l->ck->cfg.experts);
}

static int report(struct load *l, uint64_t bytes, struct errbuf *err)
{
	int ret = 0;

	pthread_mutex_lock(&l->lock);
	l->done_bytes += bytes;
	if (l->ret == 0 && l->ops->progress)
		ret = l->ops->progress(l->ops->user, l->done_bytes, l->plan->bytes);
	pthread_mutex_unlock(&l->lock);
	if (ret)
		return err_set(err, -ECANCELED, EXIT_SOFTWARE_ERR, "loading was cancelled");
	return 0;
}

/* Rows have arrived. */
static int deliver(struct load *l, const struct load_rows *rows, const struct plan_item *part,
	struct errbuf *err)
{
	int ret = 0;

	if (rows->scales)
		ret = check_scales(l, part, rows->scales, rows->scale_stride, err);
	if (ret == 0 && part->kind == TENSOR_GATE_TID2EID) /* its rows are never cut */
		ret = check_ids(l, part, rows->data, err);
	if (ret == 0)
		ret = l->ops->rows(l->ops->user, rows, err);
	if (ret == 0)
		ret = report(l, load_piece_bytes(rows->item, rows->first, rows->n), err);
	return ret;
}

/* ---- a thread ------------------------------------------------------------------------------- */

static int run_reads(struct load *l, struct load_reader *r, struct errbuf *err)
{
	struct stretch stretch = {0};
	const struct plan_item *item;
	struct plan_item part;
	struct load_rows rows;
	uint64_t first, n;

	for (;;) {
		struct errbuf why = {0};
		int ret, lost;

		while (load_reader_count(r) < l->depth &&
			take_piece(l, &stretch, &item, &first, &n))
			load_reader_begin(r, item, first, n,
				l->mode == LOAD_DIRECT_ON || is_private(l, item));
		if (load_reader_count(r) == 0)
			return 0;
		ret = load_reader_end(r, &rows, &part, err);
		if (ret < 0)
			return ret;
		ret = deliver(l, &rows, &part, err);
		/* what is amiss with the zeros that a lost file leaves is the file's fault */
		lost = load_reader_release(r, &why);
		if (lost < 0)
			*err = why;
		if (ret < 0 || lost < 0)
			return lost < 0 ? lost : ret;
	}
}

static int read_files(struct load *l, struct errbuf *err)
{
	const struct load_reader_opts opts = {
		.ck = l->ck,
		.files = l->files,
		.depth = l->depth,
		.span_bytes = l->span_bytes,
		.scale_bytes = l->scale_bytes,
		.any_direct = l->any_direct,
	};
	struct load_reader *r = NULL;
	struct load_stats stats = {0};
	int ret;

	ret = load_reader_open(&opts, &r, err);
	if (ret == 0)
		ret = run_reads(l, r, err);
	load_reader_close(r, &stats);
	pthread_mutex_lock(&l->lock);
	l->stats.read_bytes += stats.read_bytes;
	l->stats.reads += stats.reads;
	l->stats.fixed_buffers |= stats.fixed_buffers;
	pthread_mutex_unlock(&l->lock);
	return ret;
}

static int make_dummy(struct load *l, struct errbuf *err)
{
	uint8_t *data = malloc(l->span_bytes), *scales = malloc(l->scale_bytes + 1);
	struct stretch stretch = {0};
	const struct plan_item *item;
	uint64_t first, n;
	int ret = 0;

	if (!data || !scales)
		ret = err_set(err, -ENOMEM, EXIT_OS_ERR, "no memory for the loader's buffers");
	while (ret == 0 && take_piece(l, &stretch, &item, &first, &n)) {
		struct plan_item part = load_piece_part(item, first, n);
		struct load_rows rows = {
			.item = item,
			.first = first,
			.n = n,
			.data = data,
			.stride = part.row_bytes,
			.scales = part.scale_bytes ? scales : NULL,
			.scale_stride = ckpt_scale_bytes(part.scale, part.scale_cols),
		};

		dummy_fill(&l->ck->cfg, &part, l->seed, data, scales);
		ret = deliver(l, &rows, &part, err);
	}
	free(data);
	free(scales);
	return ret;
}

static void *run_thread(void *user)
{
	struct load *l = user;
	struct errbuf err = {0};
	int ret = l->ck->dummy ? make_dummy(l, &err) : read_files(l, &err);

	if (ret < 0)
		fail(l, ret, &err);
	return NULL;
}

/* This thread and as many others as can be had; none of them takes signals but load_file.c's. */
static void run_threads(struct load *l)
{
	pthread_t others[THREADS_MAX];
	sigset_t all, old;
	uint32_t n = 0;

	sigfillset(&all);
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (n + 1 < l->threads && pthread_create(&others[n], NULL, run_thread, l) == 0)
		n++;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	run_thread(l);
	while (n > 0)
		pthread_join(others[--n], NULL);
}

/* ---- the whole ------------------------------------------------------------------------------ */

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

/* The room that the largest piece takes in a buffer. */
static void measure(struct load *l)
{
	for (size_t i = 0; i < l->plan->n; i++) {
		const struct plan_item *it = &l->plan->items[i];
		struct plan_item part = load_piece_part(it, 0, load_piece_rows(it, l->chunk));
		uint64_t bytes = part.rows * ckpt_elem_bytes(it->elem, it->all_cols);

		l->span_bytes = MAX(l->span_bytes, bytes);
		if (it->scale_bytes) /* one row more where a later piece begins inside a block */
			l->scale_bytes = MAX(l->scale_bytes,
				(part.scale_rows + 1) *
					ckpt_scale_bytes(it->scale, it->scale_all_cols));
	}
}

static int open_files(struct load *l, struct errbuf *err)
{
	l->files = load_files_open(l->ck, l->mode);
	l->order = calloc(l->plan->n + 1, sizeof(*l->order));
	if (!l->files || !l->order)
		return err_set(err, -ENOMEM, EXIT_OS_ERR, "no memory for the loader's tables");
	for (size_t i = 0; i < l->ck->file_n; i++)
		l->stats.direct_files += l->files[i].direct >= 0;
	l->any_direct = l->stats.direct_files > 0;
	for (size_t i = 0; i < l->plan->n; i++)
		l->order[i] = i;
	if (!l->ck->dummy)
		qsort_r(l->order, l->plan->n, sizeof(*l->order), by_place, l);
	return 0;
}

int load_run(const struct ckpt *ck, const struct plan *plan, const struct load_opts *opts,
	const struct load_ops *ops, struct load_stats *ret_stats, struct errbuf *err)
{
	static const struct load_opts defaults;
	struct load l = {.ck = ck, .plan = plan, .ops = ops, .err = err};
	int ret;

	if (!opts)
		opts = &defaults;
	l.threads = MIN(MAX(opts->threads, 1U), (uint32_t)THREADS_MAX);
	l.depth = opts->depth ? DIV_UP(MIN(opts->depth, (uint32_t)DEPTH_MAX), l.threads)
			      : DEPTH_DEFAULT;
	l.chunk = opts->chunk_bytes ? MIN(opts->chunk_bytes, (uint32_t)CHUNK_MAX) : CHUNK_DEFAULT;
	l.seed = opts->dummy_seed;
	l.mode = opts->direct;
	ret = pthread_mutex_init(&l.lock, NULL);
	if (ret)
		return err_set(err, -ret, EXIT_OS_ERR, "no lock for the loader");
	measure(&l);
	ret = open_files(&l, err);
	if (ret == 0) {
		run_threads(&l);
		ret = l.ret;
	}
	load_files_close(l.files, ck->file_n);
	free(l.order);
	pthread_mutex_destroy(&l.lock);
	if (ret == 0 && ret_stats)
		*ret_stats = l.stats;
	return ret;
}
