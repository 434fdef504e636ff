#include "worker/comm_shm.h"

#include <errno.h>

#include "shm/clock.h"

enum what_op { WHAT_REDUCE = 1, WHAT_GATHER, WHAT_BROADCAST };

/* What a round does, so that ranks that are out of step notice instead of adding up garbage. */
struct what {
	uint32_t op, root;
	uint64_t bytes; /* left of the collective, this round included */
};

#define LINE_FLOATS      16
#define SUM_BLOCK_FLOATS 32
#define AHEAD_FLOATS     256
#define PIECE_FLOATS     ((size_t)8192)

#define TILES_OFFSET     64 /* two struct what, then the tiles */
_Static_assert(
	2 * sizeof(struct what) <= TILES_OFFSET, "what of both rounds fits before the tiles");

static struct comm_shm *self(struct comm *c)
{
	return CONTAINER_OF(c, struct comm_shm, comm);
}

static struct what *what_of(const struct comm_shm *s, uint32_t rank, uint32_t parity)
{
	return (struct what *)s->opts.areas[rank] + parity;
}

static unsigned char *tile_of(const struct comm_shm *s, uint32_t rank, uint32_t parity)
{
	return s->opts.areas[rank] + TILES_OFFSET + parity * s->tile_bytes;
}

/* How long a peer has been silent, as seen by looks that were made. */
struct patience {
	const struct comm_shm *comm;
	mono_ns_t looked; /* last */
	uint64_t silent_ns;
};

/*
 * Between two looks counts at most what should lie between them: when the machine or the whole
 * group stood still (a paused guest, a frozen cgroup), the peer did not have that time either.
 */
static int look(void *user)
{
	struct patience *p = user;
	const struct comm_shm_opts *o = &p->comm->opts;
	uint64_t most = 2 * (o->how.check_ns ? o->how.check_ns : 100 * NS_PER_MS);
	mono_ns_t now = mono_now();

	p->silent_ns += MIN(now - p->looked, most);
	p->looked = now;
	if (o->timeout_ns && p->silent_ns > o->timeout_ns)
		return -ETIMEDOUT;
	return o->how.alive ? o->how.alive(o->how.alive_user) : 0;
}

static int wait_for(struct comm_shm *s, uint32_t rank, uint32_t round)
{
	const struct bell_word *flag = s->opts.flags[rank];
	struct bell_how how = s->opts.how;
	struct patience patience = {.comm = s};
	mono_ns_t start;
	int r;

	if ((int32_t)(atomic_load_explicit(&flag->value, memory_order_acquire) - round) >= 0)
		return 0;
	start = patience.looked = mono_now();
	how.alive = look;
	how.alive_user = &patience;
	r = bell_wait_reach(flag, round, s->opts.armed[s->comm.rank], &how);
	s->wait_ns += mono_now() - start;
	return r;
}

/*
 * One round: posts this rank's tile, already written, and waits until every peer has posted its
 * own; the peers' tiles of this round may then be read.
 */
static int run_round(struct comm_shm *s, struct what mine, size_t put_bytes)
{
	uint32_t parity = s->round % 2;

	*what_of(s, s->comm.rank, parity) = mine;
	s->round++;
	s->bytes += put_bytes;
	bell_post(s->opts.flags[s->comm.rank], s->round, s->peers, s->comm.world - 1);
	for (uint32_t i = 0; i < s->comm.world; i++) {
		const struct what *theirs = what_of(s, i, parity);
		int r;

		if (i == s->comm.rank)
			continue;
		r = wait_for(s, i, s->round);
		if (r < 0)
			return r == -ETIMEDOUT ? r : -ECONNABORTED;
		if (theirs->op != mine.op || theirs->root != mine.root ||
			theirs->bytes != mine.bytes)
			return -EPROTO;
	}
	return 0;
}

/*
 * x = part 0 + part 1 + ... in this order, each part read once. A part may be x itself. A block is
 * what stays in registers, or near them, while the ranks are gone through. Lines come from another
 * CPU's cache, so they are asked for ahead; the CPU's own look-ahead is a third slower. (Beyond the
 * end this asks for lines that nobody needs, once.)
 */
static void sum_parts(float *x, const float *const *part, uint32_t parts, size_t n)
{
	float sum[SUM_BLOCK_FLOATS];
	size_t k, j;

	for (k = 0; k + SUM_BLOCK_FLOATS <= n; k += SUM_BLOCK_FLOATS) {
		for (uint32_t i = 0; i < parts; i++)
			for (j = 0; j < SUM_BLOCK_FLOATS; j += LINE_FLOATS)
				__builtin_prefetch(part[i] + k + AHEAD_FLOATS + j);
		memcpy(sum, part[0] + k, sizeof(sum));
		for (uint32_t i = 1; i < parts; i++)
			for (j = 0; j < SUM_BLOCK_FLOATS; j++)
				sum[j] += part[i][k + j];
		memcpy(x + k, sum, sizeof(sum));
	}
	for (; k < n; k++) {
		sum[0] = part[0][k];
		for (uint32_t i = 1; i < parts; i++)
			sum[0] += part[i][k];
		x[k] = sum[0];
	}
}

/* Half a line: one register with AVX2, two without. Of floats anywhere. */
typedef float half_line __attribute__((vector_size(32), aligned(4), may_alias));

/*
 * x = a + b for two ranks; x is one of them, `theirs` the other. In wider registers than
 * sum_parts(), and without asking for x, which its CPU finds by itself: an all-reduce takes 0.85 to
 * 0.95 of the time from 4 KiB on. (With a loop over any number of parts in a line it gained
 * nothing.)
 */
static inline __attribute__((always_inline)) void sum_lines(
	float *x, const float *a, const float *b, const float *theirs, size_t n)
{
	size_t k;

	for (k = 0; k + LINE_FLOATS <= n; k += LINE_FLOATS) {
		const half_line *p = (const half_line *)(a + k), *q = (const half_line *)(b + k);
		half_line low, high, *to = (half_line *)(x + k);

		__builtin_prefetch(theirs + k + AHEAD_FLOATS);
		low = p[0] + q[0];
		high = p[1] + q[1];
		to[0] = low;
		to[1] = high;
	}
	for (; k < n; k++)
		x[k] = a[k] + b[k];
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void sum_two_avx2(
	float *x, const float *a, const float *b, const float *theirs, size_t n)
{
	sum_lines(x, a, b, theirs, n);
}
#endif

static void sum_two(float *x, const float *const *part, size_t n)
{
	const float *theirs = part[0] == x ? part[1] : part[0];

#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx2")) {
		sum_two_avx2(x, part[0], part[1], theirs, n);
		return;
	}
#endif
	sum_lines(x, part[0], part[1], theirs, n);
}

/*
 * The tiles of a round, summed up into x, which holds this rank's part of them. Between two pieces
 * of them a piece of the next_n floats behind them goes into the tile of the next round, which is
 * free since every peer has posted this one: lines are taken from the peers and fetched from them
 * at the same time. Measured: smaller pieces and whole tiles are both slower.
 */
static void reduce_tile(struct comm_shm *s, float *x, size_t n, size_t next_n)
{
	const uint32_t parity = (s->round - 1) % 2;
	unsigned char *next = tile_of(s, s->comm.rank, s->round % 2);
	const float *part[COMM_WORLD_MAX];

	for (size_t k = 0; k < n; k += PIECE_FLOATS) {
		size_t m = MIN(PIECE_FLOATS, n - k);

		for (uint32_t i = 0; i < s->comm.world; i++)
			part[i] = (const float *)tile_of(s, i, parity) + k;
		part[s->comm.rank] = x + k;
		if (s->comm.world == 2)
			sum_two(x + k, part, m);
		else
			sum_parts(x + k, part, s->comm.world, m);
		if (k < next_n)
			memcpy(next + k * sizeof(float), x + n + k,
				MIN(PIECE_FLOATS, next_n - k) * sizeof(float));
	}
}

static int gather_tile(struct comm_shm *s, const unsigned char *mine, size_t n, unsigned char *all,
	size_t stride, uint64_t left)
{
	uint32_t parity = s->round % 2;
	int r;

	memcpy(tile_of(s, s->comm.rank, parity), mine, n);
	r = run_round(s, (struct what){WHAT_GATHER, 0, left}, n);
	if (r < 0 || !all)
		return r;
	for (uint32_t i = 0; i < s->comm.world; i++)
		if (all + i * stride != mine)
			memcpy(all + i * stride, tile_of(s, i, parity), n);
	return 0;
}

static int broadcast_tile(
	struct comm_shm *s, uint32_t root, unsigned char *buf, size_t n, uint64_t left)
{
	uint32_t parity = s->round % 2;
	int r;

	if (s->comm.rank == root)
		memcpy(tile_of(s, root, parity), buf, n);
	r = run_round(s, (struct what){WHAT_BROADCAST, root, left}, s->comm.rank == root ? n : 0);
	if (r < 0)
		return r;
	if (s->comm.rank != root)
		memcpy(buf, tile_of(s, root, parity), n);
	return 0;
}

static int finish(struct comm_shm *s, mono_ns_t start, int r)
{
	s->comm.busy_ns += mono_now() - start;
	if (r < 0)
		s->error = r;
	return r;
}

static int all_reduce_f32(struct comm *c, float *x, size_t n)
{
	struct comm_shm *s = self(c);
	const size_t tile = s->tile_bytes / sizeof(float);
	mono_ns_t start = mono_now();
	size_t m = MIN(tile, n);
	int r = s->error;

	if (r == 0)
		memcpy(tile_of(s, c->rank, s->round % 2), x, m * sizeof(float));
	for (; r == 0 && n > 0; m = MIN(tile, n)) {
		r = run_round(
			s, (struct what){WHAT_REDUCE, 0, n * sizeof(float)}, m * sizeof(float));
		n -= m;
		if (r == 0)
			reduce_tile(s, x, m, MIN(tile, n));
		x += m;
	}
	return finish(s, start, r);
}

static int all_gather(struct comm *c, const void *mine, size_t bytes, void *ret_all)
{
	const unsigned char *from = mine;
	unsigned char *to = ret_all;
	struct comm_shm *s = self(c);
	mono_ns_t start = mono_now();
	int r = s->error;

	for (size_t i = 0; r == 0 && i < bytes; i += s->tile_bytes)
		r = gather_tile(s, from + i, MIN(s->tile_bytes, bytes - i), to ? to + i : NULL,
			bytes, bytes - i);
	return finish(s, start, r);
}

static int broadcast(struct comm *c, uint32_t root, void *buf, size_t bytes)
{
	struct comm_shm *s = self(c);
	unsigned char *p = buf;
	mono_ns_t start = mono_now();
	int r = s->error;

	for (size_t i = 0; r == 0 && i < bytes; i += s->tile_bytes)
		r = broadcast_tile(s, root, p + i, MIN(s->tile_bytes, bytes - i), bytes - i);
	return finish(s, start, r);
}

static const struct comm_ops ops = {
	.all_reduce_f32 = all_reduce_f32,
	.all_gather = all_gather,
	.broadcast = broadcast,
};

int comm_shm_init(struct comm_shm *c, const struct comm_shm_opts *opts)
{
	uint32_t n = 0;

	if (opts->world < 1 || opts->world > COMM_WORLD_MAX || opts->rank >= opts->world ||
		opts->area_bytes < COMM_SHM_AREA_MIN)
		return -EINVAL;
	*c = (struct comm_shm){
		.comm = {.ops = &ops, .rank = opts->rank, .world = opts->world},
		.opts = *opts,
		.tile_bytes = (opts->area_bytes - TILES_OFFSET) / 2 / 64 * 64,
	};
	for (uint32_t r = 0; r < opts->world; r++)
		if (r != opts->rank)
			c->peers[n++] = opts->armed[r];
	return 0;
}
