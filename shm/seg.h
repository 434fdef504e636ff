/*
 * seg.h: the shared memory of a worker group: who may write what, where everything lies, and how a
 * process gets hold of it. Not the protocol (msg.h), not the waiting (bell.h, chan.h).
 *
 * Two kinds of memfd, sized and sealed, inherited by fd:
 *
 *   the coordinator's segment, one       written by the coordinator only
 *	header · struct conf · control words · step ring head · reply tails [W] · step ring data
 *   a worker's segment, one per worker   written by that worker only
 *	header · slot · control · stats · step tail · reply ring head · flags · reply ring data ·
 *	collective area
 *
 * Whoever does not own a segment maps it read-only, and cannot do otherwise: F_SEAL_FUTURE_WRITE is
 * set once the owner has mapped it. SHRINK and GROW are sealed from the start, so that a mapping
 * that was valid stays valid. There are offsets in it, never pointers.
 *
 * The coordinator creates all segments before it spawns the workers. A group that is lost is never
 * repaired: seg_group_close(), then seg_group_create() with the next generation.
 *
 * What a header says is checked against the seals, against fstat and against the layout that this
 * very program computes from the header's sizes. Two programs that disagree on a key of the
 * configuration, on the size of a struct in a segment or of a message, or on SEG_LAYOUT refuse each
 * other.
 */
#ifndef SHM_SEG_H
#define SHM_SEG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/bell.h"
#include "shm/conf_types.h"
#include "shm/ring.h"
#include "shm/slot.h"
#include "shm/stats.h"
#include "shm/util.h"

#define SEG_MAGIC       0x31656c6464656864ull /* "dheddle1" in little-endian bytes */
#define SEG_LAYOUT      1 /* raise when a struct or message changes its meaning, not its size */
#define SEG_WORKERS_MAX 64
#define SEG_FLAGS       32 /* flag words of a worker's collectives */
#define SEG_COMM_MAX    (1ull << 40)

/*
 * Where a worker finds its inheritance: fixed fd numbers, set by the supervisor (dup2). All fds of
 * seg_group_create() lie at SEG_FD__END or above, so that none of those dup2 hits another.
 */
enum seg_fd {
	SEG_FD_COORD = 3,  /* the coordinator's segment */
	SEG_FD_BELL = 4,   /* the coordinator's eventfd */
	SEG_FD_WORKER = 5, /* + rank: that worker's segment */
	SEG_FD__END = SEG_FD_WORKER + SEG_WORKERS_MAX
};

enum seg_kind { SEG_COORD = 1, SEG_WORKER = 2 };

/* X(name, kind, bytes, alignment): the parts of both segments, in the order they lie. `g` is the
 * struct seg_geometry. */
#define SEG_PARTS(X)                                                                               \
	X(CONF, COORD, sizeof(struct conf), 64)                                                    \
	X(CTL, COORD, sizeof(struct seg_ctl), 64)                                                  \
	X(STEP_HEAD, COORD, sizeof(struct ring_head), 64)                                          \
	X(REPLY_TAILS, COORD, sizeof(struct ring_tail) * g->workers, 64)                           \
	X(STEP_DATA, COORD, g->step_ring_bytes, SEG_PAGE)                                          \
	X(SLOT, WORKER, sizeof(struct worker_slot), 64)                                            \
	X(WORKER_CTL, WORKER, sizeof(struct seg_worker_ctl), 64)                                   \
	X(STATS, WORKER, sizeof(struct worker_stats), 64)                                          \
	X(STEP_TAIL, WORKER, sizeof(struct ring_tail), 64)                                         \
	X(REPLY_HEAD, WORKER, sizeof(struct ring_head), 64)                                        \
	X(FLAGS, WORKER, sizeof(struct bell_word) * SEG_FLAGS, 64)                                 \
	X(REPLY_DATA, WORKER, g->reply_ring_bytes, SEG_PAGE)                                       \
	X(COMM, WORKER, g->comm_bytes, SEG_PAGE)

#define SEG_PAGE                        4096 /* parts that are mapped on their own; the system's page must divide it */

#define X(name, kind, bytes, alignment) SEG_PART_##name,
enum seg_part { SEG_PARTS(X) SEG_PART__COUNT };
#undef X

/* What the coordinator chooses. */
struct seg_geometry {
	uint64_t generation;                        /* from 1 */
	uint32_t workers;                           /* 1 .. SEG_WORKERS_MAX */
	uint64_t step_ring_bytes, reply_ring_bytes; /* powers of two, RING_BYTES_MIN.. */
	uint64_t comm_bytes;                        /* of each worker's collective area; 0: none */
};

/* Offset 0 of every segment. Writer: the coordinator, before anyone else has it; then constant. */
struct seg_hdr {
	uint64_t magic;
	uint32_t layout; /* of SEG_LAYOUT, the configuration's keys and the structs' sizes */
	uint32_t kind;   /* enum seg_kind */
	uint32_t rank;   /* of its worker; UINT32_MAX in the coordinator's */
	int32_t pid;     /* of the coordinator */
	uint64_t bytes;  /* of the segment */
	struct seg_geometry geometry;
	struct {
		uint64_t off, bytes;
	} parts[SEG_PART__COUNT]; /* zero where the part is of the other kind */
	uint64_t conf_sum;        /* sum_bytes() of struct conf, in the coordinator's */
	uint64_t sum;             /* sum_bytes() of all fields above */
};

/* Writer: the coordinator. */
struct seg_ctl {
	struct bell_word word;   /* workers sleep on it for steps and for reply room */
	struct bell_armed armed; /* the loop sleeps: BELL_DATA for replies and slots, BELL_SPACE
				    for room in the step ring */
	_Alignas(64) _Atomic uint32_t lost; /* 1: the group is lost; every wait ends with -EPIPE */
};

/* Writer: the worker. */
struct seg_worker_ctl {
	struct bell_armed armed;      /* its step thread sleeps on the coordinator's word */
	struct bell_armed comm_armed; /* its step thread sleeps on a peer's flag */
};

/* One segment as this process has mapped it. The pointers that its kind lacks are NULL. Those of a
 * segment that is mapped read-only must not be written through: it would be a SIGSEGV. */
struct seg {
	int fd; /* -1 when closed */
	bool writable;
	void *base;
	uint64_t bytes;
	void *mirror; /* the ring's data, twice */
	uint64_t mirror_bytes;
	struct seg_hdr hdr; /* checked copy: never look at the mapped one again */

	struct ring_data ring; /* step ring or reply ring */
	/* coordinator's */
	const struct conf *conf;
	struct seg_ctl *ctl;
	struct ring_head *step_head;
	struct ring_tail *reply_tails; /* [workers] */
	/* worker's */
	struct worker_slot *slot;
	struct seg_worker_ctl *worker_ctl;
	struct worker_stats *stats;
	struct ring_tail *step_tail;
	struct ring_head *reply_head;
	struct bell_word *flags; /* [SEG_FLAGS] */
	uint8_t *comm;           /* comm_bytes; NULL when 0 */
};

/* All segments of a group as this process has mapped them. Large: keep it out of small stacks. */
struct seg_group {
	struct seg_geometry geometry;
	int32_t coord_pid;
	int rank;    /* this process's worker; -1 in the coordinator */
	int bell_fd; /* eventfd that wakes the coordinator */
	struct seg coord;
	struct seg workers[SEG_WORKERS_MAX];
};

/*
 * The coordinator: makes the memfds and the eventfd, maps its own segment to write and the others
 * to read, copies conf in (resolve "auto" values before), seals. All fds are close-on-exec and at
 * SEG_FD__END or above. -EINVAL for a bad geometry, else -errno with err.
 */
int seg_group_create(struct seg_group *g, const struct seg_geometry *geometry,
	const struct conf *conf, struct errbuf *err) MUST_CHECK;

/*
 * A worker: takes the fds at SEG_FD_*, checks everything, maps its own segment to write (and seals
 * it), the coordinator's and the peers' to read. -EBADMSG (exit code 70) with err when a segment is
 * not what it should be. seg_group_attach_fds() takes other fd numbers, for tests.
 */
int seg_group_attach(struct seg_group *g, uint32_t rank, struct errbuf *err) MUST_CHECK;
int seg_group_attach_fds(struct seg_group *g, uint32_t rank, int coord_fd, int bell_fd,
	const int *worker_fds, struct errbuf *err) MUST_CHECK;

/* Unmaps and closes everything. Does nothing to a group that is closed or all zero. */
void seg_group_close(struct seg_group *g);

/* Coordinator: the group is lost. Ends every wait of its workers with -EPIPE. */
void seg_group_set_lost(struct seg_group *g);

/*
 * For struct bell_how, user is a struct seg_group *: in a worker, -EPIPE when the group is lost,
 * the coordinator has died or a peer says FAILED or STOPPED.
 */
int seg_group_alive(void *group);

/*
 * One segment by itself (used by the group functions, tests and tools). seg_attach() takes the fd
 * over when it succeeds and leaves it alone when it fails; with `writable` it takes the segment for
 * good: nobody can map it to write after that.
 */
int seg_create(struct seg *seg, enum seg_kind kind, uint32_t rank, const struct seg_geometry *g,
	const struct conf *conf, struct errbuf *err) MUST_CHECK;
int seg_attach(struct seg *seg, int fd, enum seg_kind kind, uint32_t rank, bool writable,
	struct errbuf *err) MUST_CHECK;
void seg_close(struct seg *seg);

#endif
