#include "worker/comm_shm.h"

#include <errno.h>

#include "shm/clock.h"

enum what_op { WHAT_REDUCE = 1, WHAT_GATHER, WHAT_BROADCAST };

/* What a round does, so that ranks that are out of step notice instead of adding up garbage. */
struct what {
	uint32_t op, root;
	uint64_t bytes; /* left of the collective, this round included */
};

#define TILES_OFFSET 64 /* two struct what, then the tiles */
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

static int reduce_tile(struct comm_shm *s, float *x, size_t n, uint64_t left)
{
	uint32_t parity = s->round % 2;
	int r;

	memcpy(tile_of(s, s->comm.rank, parity), x, n * sizeof(float));
	r = run_round(s, (struct what){WHAT_REDUCE, 0, left}, n * sizeof(float));
	if (r < 0)
		return r;
	memcpy(x, tile_of(s, 0, parity), n * sizeof(float));
	for (uint32_t i = 1; i < s->comm.world; i++) {
		const float *part = (const float *)tile_of(s, i, parity);

		for (size_t k = 0; k < n; k++)
			x[k] += part[k];
	}
	return 0;
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
	int r = s->error;

	for (size_t i = 0; r == 0 && i < n; i += tile)
		r = reduce_tile(s, x + i, MIN(tile, n - i), (n - i) * sizeof(float));
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
