/*
 * bell.h: how one process sleeps until another has done something, without a system call when
 * nobody sleeps. Not a lock, and it carries no data: what was done lies elsewhere (a ring's head, a
 * flag word, a slot).
 *
 * Each wait has two sides and two variables, each with one writer:
 *
 *	sleeper                              waker
 *	  armed = 1          (own memory)      head = h       (own memory)
 *	  seq_cst fence                        seq_cst fence
 *	  head?  nothing new -> sleep          armed?  yes -> wake
 *
 * Release and acquire are not enough: both sides store, then load the other's variable, and x86 may
 * let each load pass the own store, so that the sleeper misses the head and the waker misses the
 * flag. Without the fences wake-ups are lost (tests/model/bell.pml finds how; README.md counts).
 *
 * Three bells are built of this:
 *
 *	word  the sleeper is a worker or several: futex on a word in the waker's segment, which
 *	      the sleeper maps read-only. bell_wait(), bell_ring_word().
 *	flag  the word itself is the news (a collective's counter). bell_wait_reach(), bell_post().
 *	fd    the sleeper is the coordinator's loop: an eventfd polled by io_uring.
 *	      bell_arm(), bell_ring_fd().
 *
 * Every wait here has a liveness check and a deadline. Any thread may wait, but one struct
 * bell_armed serves one sleeping thread at a time.
 */
#ifndef SHM_BELL_H
#define SHM_BELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/clock.h"
#include "shm/util.h"

#define BELL_LINE 64 /* bytes of a cache line */

/* What a sleeper waits for: a waker looks only at its own kind of news. */
enum bell_news {
	BELL_DATA = 1,  /* a record, a state, a flag */
	BELL_SPACE = 2, /* room in a ring that was full */
};

/* Writer: the sleeper. enum bell_news bits it sleeps for, 0 while it is awake. */
struct bell_armed {
	_Alignas(BELL_LINE) _Atomic uint32_t news;
};

/* Writer: the waker. Changes by each ring (word) or is the news itself (flag). */
struct bell_word {
	_Alignas(BELL_LINE) _Atomic uint32_t value;
};

/* How to wait. */
struct bell_how {
	uint64_t spin_ns;   /* spin at most this long before sleeping; 0: never spin */
	uint64_t check_ns;  /* sleep at most this long between two liveness checks; 0: 100 ms */
	mono_ns_t deadline; /* give up at this time; 0: never */
	/*
	 * Is the other side alive? 0, or -errno (-EPIPE: gone), which ends the wait. Called before
	 * each sleep and after each check_ns. NULL only where the caller has another way to know.
	 */
	int (*alive)(void *user);
	void *alive_user;
};

/*
 * Waits until ready(user) is true. `word` may be mapped read-only; mine is armed with `news` while
 * sleeping. ready() must read with acquire what the waker stores before bell_ring_word().
 * Returns 0; -ETIMEDOUT; what alive() returned. ready() is asked once more before either error, so
 * that news which was already there is never lost to them.
 */
int bell_wait(const struct bell_word *word, struct bell_armed *mine, enum bell_news news,
	bool (*ready)(void *user), void *user, const struct bell_how *how) MUST_CHECK;

/*
 * Waits until the flag has reached `target`, counting modulo 2^32: (int32_t)(value - target) >= 0.
 * Returns as bell_wait(); the value is loaded with acquire.
 */
int bell_wait_reach(const struct bell_word *flag, uint32_t target, struct bell_armed *mine,
	const struct bell_how *how) MUST_CHECK;

/*
 * Rings for the sleepers in armed[0..n) that wait for `news` (one or more bits): call it after the
 * store (with release) of what is new. One fence and n loads when nobody sleeps; else the word
 * changes and all its sleepers wake. Returns 1 when it rang, else 0.
 */
int bell_ring_word(
	struct bell_word *word, const struct bell_armed *const *armed, size_t n, uint32_t news);

/* Stores the flag's new value (release) and wakes those of armed[0..n) that sleep. Returns as
 * bell_ring_word(). */
int bell_post(
	struct bell_word *flag, uint32_t value, const struct bell_armed *const *armed, size_t n);

/* Wakes all sleepers of a word or flag without news, so that they look at alive() now. The word may
 * be mapped read-only. */
void bell_wake(const struct bell_word *word);

/*
 * Arms before sleeping in poll or io_uring. After it the caller must look at everything that may be
 * new once more, and sleep only when there is nothing; bell_disarm() when awake.
 */
void bell_arm(struct bell_armed *mine, uint32_t news);
void bell_disarm(struct bell_armed *mine);

/* Writes to an eventfd when its owner is armed for `news`. Returns 1 when it rang, 0 when nobody
 * slept, -errno (-EPIPE never: a dead owner leaves the counter). */
int bell_ring_fd(const struct bell_armed *theirs, uint32_t news, int fd) MUST_CHECK;

/* An eventfd, non-blocking, close-on-exec; or -errno. bell_drain_fd() resets it. */
int bell_open_fd(void) MUST_CHECK;
void bell_drain_fd(int fd);

/* For struct bell_how: user is a pidfd in an int *. 0 while the process runs, else -EPIPE (also for
 * a zombie, whom kill(pid, 0) takes for alive). */
int bell_alive_pidfd(void *pidfd);

/* One breath of a spinning CPU. */
static inline void bell_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

#endif
