/* Monotonic time as its own type, so that it cannot be mixed up with wall-clock time. */
#ifndef SHM_CLOCK_H
#define SHM_CLOCK_H

#include <stdint.h>
#include <time.h>

typedef uint64_t mono_ns_t;

#define NS_PER_US 1000ull
#define NS_PER_MS 1000000ull
#define NS_PER_S  1000000000ull

static inline mono_ns_t mono_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (mono_ns_t)ts.tv_sec * NS_PER_S + (mono_ns_t)ts.tv_nsec;
}

#endif
