/*
 * ring.h: a ring of variable-length records with one writer and one or more readers, each of whom
 * sees every record. Not a wait (bell.h), not a mapping (seg.h): it works on any memory. Lock-free,
 * no system calls; each end belongs to one thread.
 *
 *	      tail of reader 0       tail of reader 1     head
 *	             │                      │               │
 *	... free ... │ rec | rec | rec | rec │ rec | rec | rec │ ... free ...
 *
 * A record begins with a line of its own, whose first word says that it is there: the line that a
 * waiting reader watches brings it length and sum, too, and a payload of up to RING_INLINE bytes; a
 * larger one begins on the line after. That line is written once, all at the end, for the reader
 * takes it back after every store to it. The writer clears the word where the next record will
 * begin before it sets this one's, so that what lies there from the lap before is never taken for a
 * record; behind the head one line is therefore always free. Each tail lies in its reader's memory;
 * what lies before every tail is free.
 *
 * head and tails count bytes from the beginning of time; the offset is position mod size. The data
 * is mapped twice back to back ("mirrored"), so that every record is contiguous. Where it is not
 * (TSan builds, which are blind across two mappings of one page) the writer pads at the wrap;
 * readers accept padding either way.
 *
 * A record says its length, its number (1, 2, 3 ...) and a checksum over the three and the payload.
 * Payloads begin on 16 bytes at least and may be empty; the largest is ring_record_max().
 *
 * The other side's memory is input: positions and lengths are checked before use and anything
 * impossible is -EBADMSG, which stays: a ring that lied once is not read again. A reader who does
 * not trust the writer takes ring_pop(), which checks the copy it returns, not ring_peek().
 *
 * Order of calls: writer  init, (reserve, commit)*, close; readers  init, (peek, release | pop)*,
 * close. After reserve a writer may drop the reservation by calling reserve again.
 */
#ifndef SHM_RING_H
#define SHM_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/util.h"

#define RING_LINE        64   /* bytes of a cache line; records begin on one */
#define RING_BYTES_MIN   4096 /* of the data */
#define RING_BYTES_MAX   (1ull << 30)
#define RING_READERS_MAX 64

/* Writer: the ring's writer. Readers wait on records, not on this. */
struct ring_head {
	_Alignas(RING_LINE) _Atomic uint64_t pos; /* bytes published, for ring_reader_backlog() */
	_Alignas(RING_LINE) _Atomic uint32_t closed; /* 1: no more records will come */
};

/* Writer: this reader. */
struct ring_tail {
	_Alignas(RING_LINE) _Atomic uint64_t pos; /* bytes released */
	_Atomic uint32_t closed;                  /* 1: this reader will release no more */
};

/* In front of each payload. */
struct ring_record {
	/* 0: not there yet; else RING_MARK() of its number, 1 for the first record; stored last */
	_Atomic uint64_t mark;
	_Atomic uint32_t bytes; /* of the payload, or RING_PAD: skip to the end of the data */
	_Atomic uint32_t sum;   /* of number, bytes and payload */
};
#define RING_PAD    UINT32_MAX
#define RING_INLINE (RING_LINE - sizeof(struct ring_record)) /* payload bytes beside the header */
/* At least two bits are set, so that no single flipped one makes a record look not yet there. */
#define RING_MARK(number) (2 * (number) + 1)

/* The data of a ring. */
struct ring_data {
	uint8_t *base;  /* aligned to a line; read-only for readers */
	uint64_t bytes; /* a power of two, RING_BYTES_MIN .. RING_BYTES_MAX */
	bool mirrored;  /* base[i + bytes] is base[i] */
};

struct ring_writer {
	struct ring_data data;
	struct ring_head *head;
	const struct ring_tail *tails[RING_READERS_MAX];
	uint32_t readers;
	uint64_t seen[RING_READERS_MAX]; /* each reader's tail when last looked at */
	uint64_t pos, number, limit;     /* limit: pos may grow up to this without looking */
	uint64_t pad;                    /* to be skipped before the record reserved */
	uint64_t reserved;               /* payload bytes reserved, behind the padding */
	uint64_t last_span;              /* bytes the last record took */
};

struct ring_reader {
	struct ring_data data;
	const struct ring_head *head;
	struct ring_tail *tail;
	uint64_t pos, number;
	uint64_t next; /* position after the record peeked at; 0: none */
};

/* Payload bytes of the largest record of a ring: just under half, so that with padding, too, any
 * record and the line behind it fit an empty ring. */
static inline uint64_t ring_record_max(uint64_t ring_bytes)
{
	return ring_bytes / 2 - RING_LINE;
}

/*
 * Ends of a new ring whose head and tails are all zero. -EINVAL when a size, an alignment or a
 * count is not as above.
 */
int ring_writer_init(struct ring_writer *w, const struct ring_data *data, struct ring_head *head,
	const struct ring_tail *const *tails, uint32_t readers) MUST_CHECK;
int ring_reader_init(struct ring_reader *r, const struct ring_data *data,
	const struct ring_head *head, struct ring_tail *tail) MUST_CHECK;

/*
 * Room for a record of up to `bytes`, to be filled in place. Returns 0; -EAGAIN while a reader is
 * too far behind; -EPIPE when it is and has closed; -EMSGSIZE when no ring of this size can hold
 * it; -EBADMSG when a reader's tail is impossible.
 */
int ring_reserve(struct ring_writer *w, size_t bytes, void **ret_payload) MUST_CHECK;

/* Publishes the first `bytes` (<= reserved) of the reservation. Ring the bell after it. */
void ring_commit(struct ring_writer *w, size_t bytes);

/* A hint, after the bell, while the writer has nothing to do but wait: gives the lines of the last
 * record towards its readers, and asks for those that a next one as large would fill. */
void ring_warm(const struct ring_writer *w);

/* reserve, copy, commit. */
int ring_push(struct ring_writer *w, const void *payload, size_t bytes) MUST_CHECK;

/* No more records; readers get -EPIPE once they have read what is there. */
void ring_close_writer(struct ring_writer *w);

/*
 * The next record, in place, checked; valid until ring_release(). Peeking again returns the same
 * record. 0; -EAGAIN when there is none; -EPIPE when there is none and the writer has closed;
 * -EBADMSG. Outputs are untouched on failure.
 */
int ring_peek(struct ring_reader *r, const void **ret_payload, size_t *ret_bytes) MUST_CHECK;
/* Gives the record peeked at back to the writer; nothing when none was. */
void ring_release(struct ring_reader *r);

/*
 * Copies the next record to buf, checks the copy and releases it. As ring_peek(), and -EMSGSIZE
 * when it is larger than cap (it stays; *ret_bytes then says how large it claims to be).
 */
int ring_pop(struct ring_reader *r, void *buf, size_t cap, size_t *ret_bytes) MUST_CHECK;

/* Would ring_peek() return something other than -EAGAIN? Cheap; for wait predicates. */
bool ring_readable(const struct ring_reader *r);
/* Would ring_reserve() return something other than -EAGAIN? */
bool ring_writable(const struct ring_writer *w, size_t bytes);

/* This reader will release no more. */
void ring_close_reader(struct ring_reader *r);

/* Bytes published and not yet released by this reader / by the slowest reader; for people: a
 * hostile writer may say anything up to the ring's size. */
uint64_t ring_reader_backlog(const struct ring_reader *r);
uint64_t ring_writer_backlog(const struct ring_writer *w);

#endif
