/*
 * bench_handoff: what it costs to hand a step to workers and get their replies, beside what the
 * machine asks for the bare thing. Half round trips, medians, all measured in turn in one call.
 *
 * To one worker that spins, on a CPU of its own:
 *	one line         two processes turn one word back and forth: the reference
 *	a line each way  a word for each direction, since a word has one writer: the floor of the
 *	                 empty hand-off
 *	bare 4 KiB       4 KiB filled in place, a word stored, all of it read on the other side, a
 *	                 word back, with every hint to the CPU that makes it faster: the floor of
 *	                 the hand-off of 4 KiB
 *	chan             a record through the step ring, 8 bytes back through the reply ring
 *
 * How long a line takes depends on which line it is, by as much as a half: on where in the shared
 * cache its address lies. The bare ways take another line each turn, as records do each step.
 *
 * To two workers asleep, and back from both:
 *	raw futex        both wait on one futex; the last of them wakes the one who waits for both
 *	chan             as above; coordinator asleep on its eventfd
 *
 * ZeroMQ's REQ and REP over ipc do the same for one peer asleep, where libzmq was found.
 */
#include "config.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/poll.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifdef HAVE_ZMQ
#include <zmq.h>
#endif

#include "shm/chan.h"
#include "shm/line.h"
#include "tests/bench/bench.h"
#include "tests/bench/report.h"
#include "tests/bench/turns.h"

#define TURNS     61
#define SPINNING  1000 /* round trips of a turn: a busy machine spoils long ones */
#define ASLEEP    40
#define PAYLOAD   4096
#define RAW_BYTES (1u << 20)

static void *share(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		bench_die("cannot map %zu bytes: %s", bytes, strerror(errno));
	memset(at, 0, bytes);
	return at;
}

/* ---- the bare thing, spinning ---- */

struct words {
	_Alignas(128) _Atomic uint32_t to;
	_Alignas(128) _Atomic uint32_t back;
};

struct raw {
	struct words words[TURNS];
	_Alignas(4096) uint8_t bytes[RAW_BYTES];
};

/* Those of the turn that spins and begins, or goes on, at this round. */
static struct words *words_of(struct raw *raw, uint32_t from)
{
	return &raw->words[from / (SPINNING + TURNS_WARM_UP) % TURNS];
}

static void spin_until(const _Atomic uint32_t *word, uint32_t value)
{
	while (atomic_load_explicit(word, memory_order_acquire) != value)
		bell_pause();
}

static void store(_Atomic uint32_t *word, uint32_t value)
{
	atomic_store_explicit(word, value, memory_order_release);
}

static void one_line_here(void *user, uint32_t from, uint32_t rounds)
{
	struct words *words = words_of(user, from);

	for (uint32_t i = from; i < from + rounds; i++) {
		store(&words->to, 2 * i + 1);
		spin_until(&words->to, 2 * i + 2);
	}
}

static void one_line_there(void *user, int child, uint32_t from, uint32_t rounds)
{
	struct words *words = words_of(user, from);

	(void)child;
	for (uint32_t i = from; i < from + rounds; i++) {
		spin_until(&words->to, 2 * i + 1);
		store(&words->to, 2 * i + 2);
	}
}

static void two_lines_here(void *user, uint32_t from, uint32_t rounds)
{
	struct words *words = words_of(user, from);

	for (uint32_t i = from + 1; i <= from + rounds; i++) {
		store(&words->to, i);
		spin_until(&words->back, i);
	}
}

static void two_lines_there(void *user, int child, uint32_t from, uint32_t rounds)
{
	struct words *words = words_of(user, from);

	(void)child;
	for (uint32_t i = from + 1; i <= from + rounds; i++) {
		spin_until(&words->to, i);
		store(&words->back, i);
	}
}

/* Line by line: memset() of this many bytes begins with a pause. */
static void fill(uint8_t *to, int value, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += RING_LINE)
		memset(to + at, value, RING_LINE);
}

/* Through a buffer as large as the step ring, as records go through it. */
static uint8_t *bytes_of(struct raw *raw, uint32_t i)
{
	return raw->bytes + (uint64_t)i * PAYLOAD % RAW_BYTES;
}

static void bare_bytes_here(void *user, uint32_t from, uint32_t rounds)
{
	struct raw *raw = user;
	struct words *words = words_of(raw, from);

	for (uint32_t i = from + 1; i <= from + rounds; i++) {
		fill(bytes_of(raw, i), (int)i, PAYLOAD);
		store(&words->to, i);
		for (size_t at = 0; at < PAYLOAD; at += RING_LINE)
			line_give(bytes_of(raw, i) + at);
		for (size_t at = 0; at < PAYLOAD; at += RING_LINE)
			line_want(bytes_of(raw, i + 1) + at);
		spin_until(&words->back, i);
	}
}

static void bare_bytes_there(void *user, int child, uint32_t from, uint32_t rounds)
{
	static uint8_t copy[PAYLOAD];
	struct raw *raw = user;
	struct words *words = words_of(raw, from);

	(void)child;
	for (uint32_t i = from + 1; i <= from + rounds; i++) {
		spin_until(&words->to, i);
		memcpy(copy, bytes_of(raw, i), PAYLOAD);
		__asm__ volatile("" : : "r"(copy) : "memory");
		store(&words->back, i);
	}
}

/* ---- the bare thing, asleep ---- */

static void futex_until(_Atomic uint32_t *word, uint32_t value)
{
	uint32_t now;

	while ((now = atomic_load_explicit(word, memory_order_acquire)) != value)
		syscall(SYS_futex, word, FUTEX_WAIT, now, NULL, NULL, 0);
}

static void wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void futex_here(void *user, uint32_t from, uint32_t rounds)
{
	struct words *words = ((struct raw *)user)->words;

	for (uint32_t i = from + 1; i <= from + rounds; i++) {
		store(&words->to, i);
		wake(&words->to);
		futex_until(&words->back, 2 * i);
	}
}

static void futex_there(void *user, int child, uint32_t from, uint32_t rounds)
{
	struct words *words = ((struct raw *)user)->words;

	(void)child;
	for (uint32_t i = from + 1; i <= from + rounds; i++) {
		futex_until(&words->to, i);
		if (atomic_fetch_add(&words->back, 1) + 1 == 2 * i)
			wake(&words->back);
	}
}

/* ---- through the rings ---- */

struct through {
	struct seg_group group; /* the coordinator's, and inherited by workers for its fds */
	struct chan_coord coord;
	struct seg_group theirs;
	struct chan_worker worker;
	uint32_t workers;
	size_t bytes;
	bool sleeps;
};

static struct through *through_new(uint32_t workers, size_t bytes, bool sleeps)
{
	const struct seg_geometry geometry = {.generation = 1,
		.workers = workers,
		.step_ring_bytes = RAW_BYTES,
		.reply_ring_bytes = 65536};
	struct through *t = bench_zeroes(sizeof(*t));
	static struct conf conf;
	struct errbuf err = {.text = ""};

	if (seg_group_create(&t->group, &geometry, &conf, &err) < 0)
		bench_die("%s", err.text);
	if (chan_coord_init(&t->coord, &t->group) < 0)
		bench_die("the rings are not usable");
	t->workers = workers;
	t->bytes = bytes;
	t->sleeps = sleeps;
	return t;
}

static void chan_born(void *user, int child)
{
	struct through *t = user;
	int fds[TURNS_CHILDREN_MAX];
	struct errbuf err = {.text = ""};

	for (uint32_t i = 0; i < t->workers; i++)
		fds[i] = t->group.workers[i].fd;
	if (seg_group_attach_fds(&t->theirs, (uint32_t)child, t->group.coord.fd, t->group.bell_fd,
		    fds, &err) < 0)
		bench_die("%s", err.text);
	if (chan_worker_init(&t->worker, &t->theirs, t->sleeps ? 0 : NS_PER_S, 0) < 0)
		bench_die("the rings are not usable");
}

static void chan_there(void *user, int child, uint32_t from, uint32_t rounds)
{
	struct through *t = user;

	(void)child;
	for (uint32_t i = from; i < from + rounds; i++) {
		const void *in;
		uint64_t *out;
		size_t n;

		if (chan_step_next(&t->worker, 0, &in, &n) < 0 ||
			chan_reply_reserve(&t->worker, sizeof(*out), 0, (void **)&out) < 0)
			_exit(1);
		*out = i;
		chan_reply_commit(&t->worker, sizeof(*out));
		chan_step_done(&t->worker);
	}
}

/* Takes one reply of each worker that has not answered yet. */
static uint32_t collect(struct through *t, uint32_t *answered, uint64_t expected)
{
	uint32_t rank, left = 0;
	uint64_t reply;
	size_t n;

	for (rank = 0; rank < t->workers; rank++) {
		int r = -EAGAIN;

		if (*answered & 1u << rank)
			continue;
		r = chan_reply_pop(&t->coord, rank, &reply, sizeof(reply), &n);
		if (r == 0 && reply == expected)
			*answered |= 1u << rank;
		else if (r == -EAGAIN)
			left++;
		else
			exit(1);
	}
	return left;
}

static void chan_here(void *user, uint32_t from, uint32_t rounds)
{
	struct through *t = user;

	for (uint32_t i = from; i < from + rounds; i++) {
		uint32_t answered = 0;
		void *at;

		if (chan_step_reserve(&t->coord, t->bytes, &at) < 0)
			exit(1);
		fill(at, (int)i, t->bytes);
		chan_step_commit(&t->coord, t->bytes);
		while (collect(t, &answered, i) > 0) {
			struct pollfd p = {.fd = t->group.bell_fd, .events = POLLIN};

			if (!t->sleeps) {
				bell_pause();
				continue;
			}
			if (chan_sleep(&t->coord, 0))
				(void)poll(&p, 1, 1000);
			chan_wake(&t->coord);
		}
	}
}

/* ---- ZeroMQ ---- */

#ifdef HAVE_ZMQ
struct queue {
	void *socket;
	size_t bytes;
	char where[64];
};

static struct queue *queue_new(size_t bytes)
{
	struct queue *q = bench_zeroes(sizeof(*q));

	q->bytes = bytes;
	snprintf(q->where, sizeof(q->where), "ipc://@heddle-bench-%d-%zu", (int)getpid(), bytes);
	return q;
}

/* Sockets are made after fork: a context has threads. */
static void queue_open(struct queue *q, int type)
{
	if (q->socket)
		return;
	q->socket = zmq_socket(zmq_ctx_new(), type);
	if (!q->socket || (type == ZMQ_REP ? zmq_bind(q->socket, q->where)
					   : zmq_connect(q->socket, q->where)) < 0)
		bench_die("%s: %s", q->where, zmq_strerror(zmq_errno()));
}

static void queue_here(void *user, uint32_t from, uint32_t rounds)
{
	static char bytes[PAYLOAD];
	struct queue *q = user;

	queue_open(q, ZMQ_REQ);
	for (uint32_t i = from; i < from + rounds; i++) {
		memset(bytes, (int)i, q->bytes);
		if (zmq_send(q->socket, bytes, q->bytes, 0) < 0 ||
			zmq_recv(q->socket, bytes, sizeof(bytes), 0) != 8)
			bench_die("%s: %s", q->where, zmq_strerror(zmq_errno()));
	}
}

static void queue_there(void *user, int child, uint32_t from, uint32_t rounds)
{
	static char bytes[PAYLOAD];
	struct queue *q = user;

	(void)child;
	queue_open(q, ZMQ_REP);
	for (uint32_t i = from; i < from + rounds; i++)
		if (zmq_recv(q->socket, bytes, sizeof(bytes), 0) < 0 ||
			zmq_send(q->socket, bytes, 8, 0) < 0)
			bench_die("%s: %s", q->where, zmq_strerror(zmq_errno()));
}
#endif

/* ---- the table ---- */

enum {
	ONE_LINE,
	TWO_LINES,
	BARE_BYTES,
	CHAN_EMPTY,
	CHAN_BYTES,
	FUTEX,
	CHAN_ASLEEP,
	CHAN_ASLEEP_BYTES,
#ifdef HAVE_ZMQ
	ZMQ_EMPTY,
	ZMQ_BYTES,
#endif
	WAYS
};

static struct turns_way ways[WAYS] = {
	[ONE_LINE] = {"raw spin, one line", 1, one_line_here, one_line_there, .rounds = SPINNING},
	[TWO_LINES] = {"raw spin, a line each way", 1, two_lines_here, two_lines_there,
		.rounds = SPINNING},
	[BARE_BYTES] = {"bare 4 KiB, a line back", 1, bare_bytes_here, bare_bytes_there,
		.rounds = SPINNING},
	[CHAN_EMPTY] = {"chan, spinning, empty", 1, chan_here, chan_there, chan_born,
		.rounds = SPINNING},
	[CHAN_BYTES] = {"chan, spinning, 4 KiB", 1, chan_here, chan_there, chan_born,
		.rounds = SPINNING},
	[FUTEX] = {"raw futex, two asleep", 2, futex_here, futex_there, .rounds = ASLEEP},
	[CHAN_ASLEEP] = {"chan, two asleep, empty", 2, chan_here, chan_there, chan_born,
		.rounds = ASLEEP},
	[CHAN_ASLEEP_BYTES] = {"chan, two asleep, 4 KiB", 2, chan_here, chan_there, chan_born,
		.rounds = ASLEEP},
#ifdef HAVE_ZMQ
	[ZMQ_EMPTY] = {"ZeroMQ ipc, empty", 1, queue_here, queue_there, .rounds = ASLEEP},
	[ZMQ_BYTES] = {"ZeroMQ ipc, 4 KiB", 1, queue_here, queue_there, .rounds = ASLEEP},
#endif
};

static void add(struct report *r, int way, int beside, double most)
{
	report_add(r, &(struct report_row){.what = ways[way].what,
			      .value = ways[way].median_ns,
			      .unit = "ns",
			      .beside = beside < 0 ? NULL : ways[beside].what,
			      .beside_value = beside < 0 ? 0 : ways[beside].median_ns,
			      .most = most});
}

int main(int argc, char **argv)
{
	struct report r;

	(void)bench_args(argc, argv, 0, "");
	if (turns_cpus() < 2) {
		printf("one CPU allowed: nothing may spin\n");
		return 77;
	}
	ways[ONE_LINE].user = share(sizeof(struct raw));
	ways[TWO_LINES].user = share(sizeof(struct raw));
	ways[BARE_BYTES].user = share(sizeof(struct raw));
	ways[FUTEX].user = share(sizeof(struct raw));
	ways[CHAN_EMPTY].user = through_new(1, 0, false);
	ways[CHAN_BYTES].user = through_new(1, PAYLOAD, false);
	ways[CHAN_ASLEEP].user = through_new(2, 0, true);
	ways[CHAN_ASLEEP_BYTES].user = through_new(2, PAYLOAD, true);
#ifdef HAVE_ZMQ
	ways[ZMQ_EMPTY].user = queue_new(0);
	ways[ZMQ_BYTES].user = queue_new(PAYLOAD);
#endif
	turns_run(ways, WAYS, TURNS);
	report_open(&r, "handoff", "Hand-off to workers, half a round trip, medians");
	add(&r, ONE_LINE, -1, 0);
	add(&r, TWO_LINES, ONE_LINE, 0);
	add(&r, CHAN_EMPTY, ONE_LINE, 3);
	add(&r, BARE_BYTES, ONE_LINE, 0);
	add(&r, CHAN_BYTES, ONE_LINE, 6);
	add(&r, CHAN_EMPTY, TWO_LINES, 0);
	add(&r, CHAN_BYTES, BARE_BYTES, 0);
	add(&r, FUTEX, -1, 0);
	add(&r, CHAN_ASLEEP, FUTEX, 1.3);
	add(&r, CHAN_ASLEEP_BYTES, FUTEX, 1.3);
#ifdef HAVE_ZMQ
	add(&r, ZMQ_EMPTY, FUTEX, 0);
	add(&r, ZMQ_BYTES, FUTEX, 0);
#else
	printf("ZeroMQ: not found when this was configured (libzmq, Debian: libzmq3-dev)\n");
#endif
	return report_close(&r);
}
