#include "config.h"

#include "shm/bell.h"

#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shm/fault.h"

#define CHECK_NS_DEFAULT (100 * NS_PER_MS)
#define SPINS_PER_CLOCK  64 /* a clock read costs about as much as two of these spins */

/*
 * The fence of the bell. TSan does not model fences (gcc warns of each) and needs none here: what
 * is handed over is ordered by the release and acquire of its own variables. It gets the machine's
 * full barrier from a locked instruction instead.
 */
static inline void bell_fence(void)
{
#ifdef BELL_WITHOUT_FENCE /* tests: shows that the stress test finds the lost wake-up */
	atomic_signal_fence(memory_order_seq_cst);
#elif defined(HEDDLE_TSAN)
	_Atomic uint32_t here = 0;

	atomic_fetch_add_explicit(&here, 1, memory_order_seq_cst);
#else
	atomic_thread_fence(memory_order_seq_cst);
#endif
}

/*
 * Not FUTEX_PRIVATE: the word is found by file and offset, so that processes meet on it through
 * different mappings. The kernel only reads it; a read-only mapping serves for both calls.
 */
static void futex_wait(const struct bell_word *word, uint32_t value, uint64_t timeout_ns)
{
	struct timespec ts = {.tv_sec = (time_t)(timeout_ns / NS_PER_S),
		.tv_nsec = (long)(timeout_ns % NS_PER_S)};

	/* woken, changed, timed out, interrupted: the caller looks again in each case */
	(void)syscall(SYS_futex, &word->value, FUTEX_WAIT, value, &ts, NULL, 0);
}

void bell_wake(const struct bell_word *word)
{
	(void)syscall(SYS_futex, &word->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void bell_arm(struct bell_armed *mine, uint32_t news)
{
	atomic_store_explicit(&mine->news, news, memory_order_relaxed);
	bell_fence();
}

void bell_disarm(struct bell_armed *mine)
{
	atomic_store_explicit(&mine->news, 0, memory_order_relaxed);
}

static bool spin(bool (*ready)(void *), void *user, uint64_t spin_ns)
{
	mono_ns_t now = 0, end = 0;
	int i;

	if (ready(user))
		return true;
	if (!spin_ns)
		return false;
	/* the first spins come before the first look at the clock: news is often that quick */
	do {
		for (i = 0; i < SPINS_PER_CLOCK; i++) {
			bell_pause();
			if (ready(user))
				return true;
		}
		now = mono_now();
		end = end ? end : now + spin_ns;
	} while (now < end);
	return false;
}

/* How long one sleep may last, or 0 when the deadline has passed. */
static uint64_t sleep_ns(const struct bell_how *how)
{
	uint64_t ns = how->check_ns ? how->check_ns : CHECK_NS_DEFAULT;
	mono_ns_t now;

	if (!how->deadline)
		return ns;
	now = mono_now();
	if (now >= how->deadline)
		return 0;
	return MIN(ns, how->deadline - now);
}

int bell_wait(const struct bell_word *word, struct bell_armed *mine, enum bell_news news,
	bool (*ready)(void *user), void *user, const struct bell_how *how)
{
	int r = 0;

	if (spin(ready, user, how->spin_ns))
		return 0;
	for (;;) {
		uint32_t value;
		uint64_t ns;

		bell_arm(mine, news);
		/* The word before ready(): a ring that comes between the two changes the word,
		 * and the futex does not sleep. */
		value = atomic_load_explicit(&word->value, memory_order_acquire);
		if (ready(user))
			break;
		if (how->alive)
			r = how->alive(how->alive_user);
		ns = r < 0 ? 0 : sleep_ns(how);
		if (!ns) {
			if (r == 0)
				r = -ETIMEDOUT;
			/* what the other side did before it went is still there */
			if (ready(user))
				r = 0;
			break;
		}
		FAULT_POINT("bell.sleep");
		futex_wait(word, value, ns);
	}
	bell_disarm(mine);
	return r;
}

struct reach {
	const struct bell_word *flag;
	uint32_t target;
};

static inline bool flag_reached(const struct bell_word *flag, uint32_t target)
{
	uint32_t value = atomic_load_explicit(&flag->value, memory_order_acquire);

	return (int32_t)(value - target) >= 0;
}

static bool reach_ready(void *user)
{
	const struct reach *reach = user;

	return flag_reached(reach->flag, reach->target);
}

int bell_wait_reach(const struct bell_word *flag, uint32_t target, struct bell_armed *mine,
	const struct bell_how *how)
{
	struct reach reach = {flag, target};

	if (flag_reached(flag, target))
		return 0;
	return bell_wait(flag, mine, BELL_DATA, reach_ready, &reach, how);
}

/* After the caller's store: does anyone sleep for this? */
static bool anyone_armed(const struct bell_armed *const *armed, size_t n, uint32_t news)
{
	size_t i;

	bell_fence();
	for (i = 0; i < n; i++)
		if (atomic_load_explicit(&armed[i]->news, memory_order_relaxed) & news)
			return true;
	return false;
}

int bell_ring_word(
	struct bell_word *word, const struct bell_armed *const *armed, size_t n, uint32_t news)
{
	uint32_t value;

	if (!anyone_armed(armed, n, news))
		return 0;
	value = atomic_load_explicit(&word->value, memory_order_relaxed);
	atomic_store_explicit(&word->value, value + 1, memory_order_release);
	FAULT_POINT("bell.ring.mid");
	bell_wake(word);
	return 1;
}

int bell_post(
	struct bell_word *flag, uint32_t value, const struct bell_armed *const *armed, size_t n)
{
	atomic_store_explicit(&flag->value, value, memory_order_release);
	if (!anyone_armed(armed, n, BELL_DATA))
		return 0;
	FAULT_POINT("bell.post.mid");
	bell_wake(flag);
	return 1;
}

int bell_ring_fd(const struct bell_armed *theirs, uint32_t news, int fd)
{
	const struct bell_armed *const one[] = {theirs};
	uint64_t value = 1;

	if (!anyone_armed(one, 1, news))
		return 0;
	while (write(fd, &value, sizeof(value)) < 0) {
		if (errno == EAGAIN) /* 2^64 - 2 rings unread: it is signalled */
			break;
		if (errno != EINTR)
			return -errno;
	}
	return 1;
}

int bell_open_fd(void)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	return fd < 0 ? -errno : fd;
}

void bell_drain_fd(int fd)
{
	uint64_t value;

	while (read(fd, &value, sizeof(value)) < 0 && errno == EINTR)
		;
}

int bell_alive_pidfd(void *pidfd)
{
	struct pollfd p = {.fd = *(int *)pidfd, .events = POLLIN};

	return poll(&p, 1, 0) > 0 ? -EPIPE : 0;
}
