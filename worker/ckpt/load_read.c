#include "config.h"

#include "worker/ckpt/load_read.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <liburing.h>

enum { DATA, SCALES, PARTS };
enum {
	HUGE_BYTES = 2 << 20,
	USED_BYTES =
		8 << 20,  /* mapped pages are given back in as much: each time stops all cores */
	MAP_LEAST = 4096, /* fewer scales are sooner copied than shown */
};

/* The data or the scales of a piece on their way. */
struct op {
	struct load_span span;
	bool direct, flying;
	int error;
	uint64_t offset, want, got; /* of the read itself: aligned for O_DIRECT */
	uint8_t *buffer;
	int index; /* of the registered buffer */
};

struct slot {
	const struct plan_item *item;
	uint64_t first;
	struct plan_item part;
	struct op op[PARTS];
};

/* Bytes of one file's mapping that are to be given back. */
struct used {
	const struct load_file *file;
	uint8_t *from, *end;
};

struct load_reader {
	struct load_reader_opts o;
	struct io_uring ring;
	bool has_ring, fixed;
	uint32_t head, n; /* a queue of slots */
	uint32_t flying;  /* reads in the ring */
	struct slot *slots, *ended;
	uint8_t *memory, *shared[PARTS];
	struct used used[PARTS]; /* each in an order of its own */
	uint64_t memory_bytes;
	struct load_stats stats;
};

/* What is being read, for messages. */
static int fail_read(const struct load_reader *r, const struct slot *s, bool scales, uint64_t at,
	int error, struct errbuf *err)
{
	const struct op *op = &s->op[scales];
	char name[TENSOR_NAME_MAX];

	tensor_name(s->item->kind, s->item->layer, s->item->expert, name);
	return err_set(err, error, error == -ENODATA ? EXIT_DATA_ERR : EXIT_OS_ERR,
		"%s/%s: reading %s%s at byte %" PRIu64 ": %s", r->o.ck->dir,
		r->o.ck->files[op->span.file].name, scales ? "the scales of " : "", name, at,
		error == -ENODATA ? "the file ends there; was it replaced meanwhile?"
				  : strerror(-error));
}

/* ---- past the page cache ------------------------------------------------------------------- */

static void ask(struct load_reader *r, struct op *op)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring); /* never NULL: 2 x depth entries */
	const struct load_file *file = &r->o.files[op->span.file];
	unsigned n = (unsigned)ALIGN_UP(op->want - op->got, (uint64_t)LOAD_DIRECT_ALIGN);

	if (r->fixed)
		io_uring_prep_read_fixed(sqe, file->direct, op->buffer + op->got, n,
			op->offset + op->got, op->index);
	else
		io_uring_prep_read(
			sqe, file->direct, op->buffer + op->got, n, op->offset + op->got);
	io_uring_sqe_set_data(sqe, op);
	op->flying = true;
	r->flying++;
	r->stats.reads++;
}

static void complete(struct load_reader *r, struct op *op, int res)
{
	uint64_t before = op->got;

	op->flying = false;
	r->flying--;
	if (res == -EINTR || res == -EAGAIN) {
		ask(r, op);
		return;
	}
	if (res == -EINVAL) { /* the file system cannot after all */
		r->o.files[op->span.file].refused = true;
		op->direct = false;
		return;
	}
	if (res < 0) {
		op->error = res;
		return;
	}
	op->got += (uint64_t)res;
	if (op->got >= op->want)
		return;
	/* A short read may end anywhere; what it did not bring whole it brings again. */
	op->got -= op->got % LOAD_DIRECT_ALIGN;
	if (op->got <= before)
		op->error = -ENODATA;
	else
		ask(r, op);
}

/* Submits what was asked for and takes what has come, at least one. */
static int reap(struct load_reader *r)
{
	struct io_uring_cqe *cqe;
	int n = io_uring_submit_and_wait(&r->ring, 1);

	if (n < 0 && n != -EINTR && n != -EAGAIN && n != -EBUSY)
		return n;
	while (io_uring_peek_cqe(&r->ring, &cqe) == 0) {
		struct op *op = io_uring_cqe_get_data(cqe);
		int res = cqe->res;

		io_uring_cqe_seen(&r->ring, cqe);
		complete(r, op, res);
	}
	return 0;
}

static void begin_direct(struct load_reader *r, struct op *op)
{
	uint64_t pad = op->span.offset % LOAD_DIRECT_ALIGN;

	op->offset = op->span.offset - pad;
	op->want = load_span_bytes(&op->span) + pad;
	op->got = 0;
	op->error = 0;
	ask(r, op);
}

/* ---- through the page cache ---------------------------------------------------------------- */

/* Where the range ends the file was cut: -ENODATA. *at says how far it came. */
static int read_range(struct load_reader *r, int fd, uint8_t *to, uint64_t n, uint64_t *at)
{
	while (n) {
		ssize_t got = pread(fd, to, n, (off_t)*at);

		r->stats.reads++;
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? -errno : -ENODATA;
		to += got;
		*at += (uint64_t)got;
		n -= (uint64_t)got;
		r->stats.read_bytes += (uint64_t)got;
	}
	return 0;
}

/* Brings a span into the shared buffer; *ret_stride is how far apart its rows lie there. */
static int read_span(struct load_reader *r, const struct load_span *s, uint8_t *to,
	size_t *ret_stride, uint64_t *at)
{
	int fd = r->o.files[s->file].fd, ret = 0;

	*at = s->offset;
	*ret_stride = s->stride;
	if (!load_span_is_sparse(s))
		return read_range(r, fd, to, load_span_bytes(s), at);
	*ret_stride = s->row_bytes;
	for (uint64_t i = 0; i < s->rows && ret == 0; i++) {
		*at = s->offset + i * s->stride;
		ret = read_range(r, fd, to + i * s->row_bytes, s->row_bytes, at);
	}
	return ret;
}

/* Is it to be used where the file is mapped? */
static bool is_mapped(const struct load_reader *r, const struct slot *s, int i)
{
	const struct load_span *span = &s->op[i].span;

	return s->item->kind != TENSOR_GATE_TID2EID && !s->op[i].direct &&
	       r->o.files[span->file].map && (i == DATA || load_span_bytes(span) >= MAP_LEAST);
}

static uint8_t *mapped_pages(const struct load_file *file, const struct load_span *s)
{
	return file->map + s->offset / LOAD_DIRECT_ALIGN * LOAD_DIRECT_ALIGN;
}

/* What fails here fails again where it is touched. */
static void show(const struct load_file *file, const struct load_span *s, uint8_t **ret_at)
{
	uint8_t *from = mapped_pages(file, s);

	*ret_at = file->map + s->offset;
	if (!load_span_is_sparse(s))
		(void)madvise(
			from, (size_t)(*ret_at - from) + load_span_bytes(s), MADV_POPULATE_READ);
}

static void advise(const struct load_reader *r, const struct load_span *s)
{
	const struct load_file *file = &r->o.files[s->file];

	if (!file->cached && !load_span_is_sparse(s))
		(void)posix_fadvise(
			file->fd, (off_t)s->offset, (off_t)load_span_bytes(s), POSIX_FADV_WILLNEED);
}

/* ---- pieces -------------------------------------------------------------------------------- */

uint32_t load_reader_count(const struct load_reader *r)
{
	return r->n;
}

void load_reader_begin(struct load_reader *r, const struct plan_item *item, uint64_t first,
	uint64_t rows, bool direct)
{
	struct slot *s = &r->slots[(r->head + r->n++) % r->o.depth];
	bool any = false;

	s->item = item;
	s->first = first;
	s->part = load_piece_part(item, first, rows);
	s->op[DATA].span = load_span_data(r->o.ck, &s->part);
	s->op[SCALES].span = load_span_scales(r->o.ck, &s->part);
	for (int i = 0; i < PARTS; i++) {
		struct op *op = &s->op[i];
		const struct load_file *file = &r->o.files[op->span.file];

		op->direct = direct && op->span.rows && file->direct >= 0 && !file->refused;
		any |= op->direct;
		if (op->direct)
			begin_direct(r, op);
		else if (op->span.rows)
			advise(r, &op->span);
	}
	if (any)
		(void)io_uring_submit(&r->ring); /* what it cannot yet, reap() does */
}

static int end_op(struct load_reader *r, struct slot *s, int i, uint8_t **ret_at,
	size_t *ret_stride, struct errbuf *err)
{
	struct op *op = &s->op[i];
	uint64_t at;
	int ret = 0;

	while (op->flying && ret == 0)
		ret = reap(r);
	if (ret < 0)
		return err_set(err, ret, EXIT_OS_ERR, "io_uring: %s", strerror(-ret));
	if (op->direct) {
		if (op->error)
			return fail_read(r, s, i == SCALES, op->offset + op->got, op->error, err);
		*ret_at = op->buffer + (op->span.offset - op->offset);
		*ret_stride = op->span.stride;
		r->stats.read_bytes += op->want;
		return 0;
	}
	if (is_mapped(r, s, i)) {
		show(&r->o.files[op->span.file], &op->span, ret_at);
		*ret_stride = op->span.stride;
		r->stats.read_bytes += op->span.rows * op->span.row_bytes;
		return 0;
	}
	*ret_at = r->shared[i];
	ret = read_span(r, &op->span, r->shared[i], ret_stride, &at);
	return ret < 0 ? fail_read(r, s, i == SCALES, at, ret, err) : 0;
}

int load_reader_end(struct load_reader *r, struct load_rows *ret_rows, struct plan_item *ret_part,
	struct errbuf *err)
{
	struct slot *s = r->ended = &r->slots[r->head];
	uint8_t *at[PARTS] = {0};
	size_t stride[PARTS] = {0};
	int ret;

	ret = end_op(r, s, DATA, &at[DATA], &stride[DATA], err);
	if (ret == 0 && s->op[SCALES].span.rows)
		ret = end_op(r, s, SCALES, &at[SCALES], &stride[SCALES], err);
	if (ret < 0)
		return ret;
	r->head = (r->head + 1) % r->o.depth;
	r->n--;
	*ret_part = s->part;
	*ret_rows = (struct load_rows){
		.item = s->item,
		.first = s->first,
		.n = s->part.rows,
		.data = at[DATA],
		.stride = stride[DATA],
		.scales = at[SCALES],
		.scale_stride = stride[SCALES],
	};
	return 0;
}

/*
 * Else all of the file would count as this process's memory. Never from one file's mapping to
 * another's: what lies between them would be lost, and may be anybody's.
 */
static void give_back(struct used *u)
{
	if (u->from < u->end)
		(void)madvise(u->from, (size_t)(u->end - u->from), MADV_DONTNEED);
	*u = (struct used){0};
}

static int release_part(struct load_reader *r, struct slot *s, int i, struct errbuf *err)
{
	const struct load_span *span = &s->op[i].span;
	const struct load_file *file = &r->o.files[span->file];
	uint64_t at, lost = file->lost;
	struct used *u = &r->used[i];
	uint8_t byte, *from, *end;
	int ret;

	if (lost) {
		at = lost - 1;
		ret = read_range(r, file->fd, &byte, 1, &at);
		return fail_read(r, s, i == SCALES, at, ret < 0 ? ret : -EIO, err);
	}
	from = mapped_pages(file, span);
	end = file->map + span->offset + load_span_bytes(span);
	if (u->file != file || from < u->from || from - u->from > USED_BYTES) {
		give_back(u);
		*u = (struct used){file, from, end};
	}
	u->end = MAX(u->end, end);
	return 0;
}

int load_reader_release(struct load_reader *r, struct errbuf *err)
{
	int ret = 0;

	for (int i = 0; i < PARTS && ret == 0; i++)
		if (is_mapped(r, r->ended, i))
			ret = release_part(r, r->ended, i, err);
	return ret;
}

/* ---- life ---------------------------------------------------------------------------------- */

/* Optional: saves pinning the buffers at each read. RLIMIT_MEMLOCK may forbid it; then without. */
static void register_buffers(struct load_reader *r, const uint64_t bytes[PARTS])
{
	struct iovec *iov = calloc(PARTS * (size_t)r->o.depth, sizeof(*iov));

	if (!iov)
		return;
	for (uint32_t i = 0; i < PARTS * r->o.depth; i++)
		iov[i] = (struct iovec){r->slots[i / PARTS].op[i % PARTS].buffer, bytes[i % PARTS]};
	r->fixed = io_uring_register_buffers(&r->ring, iov, PARTS * r->o.depth) == 0;
	r->stats.fixed_buffers = r->fixed;
	free(iov);
}

static int start_ring(struct load_reader *r, struct errbuf *err)
{
	struct io_uring_params params = {0};
	int ret;

	/*
	 * One thread submits and reaps, so completions need no inter-processor interrupts: they run
	 * when this thread asks for them (kernel 6.1).
	 */
	params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
	ret = io_uring_queue_init_params(PARTS * r->o.depth, &r->ring, &params);
	if (ret < 0)
		return err_set(err, ret, EXIT_OS_ERR,
			"io_uring: %s; it needs Linux 6.1 and sysctl kernel.io_uring_disabled=0",
			strerror(-ret));
	r->has_ring = true;
	return 0;
}

/* The shared buffer, and with a ring one for each slot behind it. */
static int alloc(struct load_reader *r, struct errbuf *err)
{
	uint64_t bytes[PARTS] = {r->o.span_bytes, r->o.scale_bytes}, one = 0;
	uint32_t sets = r->has_ring ? r->o.depth + 1 : 1;
	uint8_t *p;

	for (int i = 0; i < PARTS; i++) {
		/* what O_DIRECT reads around a span */
		bytes[i] = ALIGN_UP(bytes[i], (uint64_t)LOAD_DIRECT_ALIGN) + LOAD_DIRECT_ALIGN;
		one += bytes[i];
	}
	r->memory_bytes = sets * one;
	if (r->has_ring)
		r->memory_bytes = ALIGN_UP(r->memory_bytes, (uint64_t)HUGE_BYTES) + HUGE_BYTES;
	p = mmap(NULL, r->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	r->slots = calloc(r->o.depth, sizeof(*r->slots));
	r->memory = p == MAP_FAILED ? NULL : p;
	if (!r->slots || !r->memory)
		return err_set(err, -ENOMEM, EXIT_OS_ERR, "no memory for the loader's buffers");
	if (r->has_ring) {
		/* A device takes a read in as few requests as its memory has stretches. */
		p = (uint8_t *)ALIGN_UP((uintptr_t)p, (uintptr_t)HUGE_BYTES);
		(void)madvise(p, r->memory_bytes - HUGE_BYTES, MADV_HUGEPAGE);
	}
	r->shared[DATA] = p;
	r->shared[SCALES] = p + bytes[DATA];
	for (uint32_t i = 0; i < PARTS * r->o.depth && r->has_ring; i++) {
		struct op *op = &r->slots[i / PARTS].op[i % PARTS];

		op->buffer = p + (i / PARTS + 1) * one + (i % PARTS ? bytes[DATA] : 0);
		op->index = (int)i;
	}
	if (r->has_ring)
		register_buffers(r, bytes);
	return 0;
}

int load_reader_open(
	const struct load_reader_opts *opts, struct load_reader **ret_reader, struct errbuf *err)
{
	struct load_reader *r = calloc(1, sizeof(*r));
	int ret = 0;

	if (!r)
		return err_set(err, -ENOMEM, EXIT_OS_ERR, "no memory for the loader's buffers");
	r->o = *opts;
	if (opts->any_direct)
		ret = start_ring(r, err);
	if (ret == 0)
		ret = alloc(r, err);
	if (ret < 0) {
		load_reader_close(r, NULL);
		return ret;
	}
	*ret_reader = r;
	return 0;
}

void load_reader_close(struct load_reader *r, struct load_stats *stats)
{
	if (!r)
		return;
	while (r->flying && reap(r) == 0)
		;
	for (int i = 0; i < PARTS; i++)
		give_back(&r->used[i]);
	if (r->has_ring)
		io_uring_queue_exit(&r->ring);
	if (r->memory)
		munmap(r->memory, r->memory_bytes);
	if (stats) {
		stats->read_bytes += r->stats.read_bytes;
		stats->reads += r->stats.reads;
		stats->fixed_buffers |= r->stats.fixed_buffers;
	}
	free(r->slots);
	free(r);
}
