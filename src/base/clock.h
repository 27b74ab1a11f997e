/* The one clock: CLOCK_MONOTONIC in nanoseconds.  The protocol never reads it; it is told the time. */
#ifndef VB_BASE_CLOCK_H
#define VB_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define VB_NEVER UINT64_MAX /* a deadline that does not come */
#define VB_USEC	 1000ull
#define VB_MSEC	 1000000ull
#define VB_SEC	 1000000000ull

static inline uint64_t vb_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * VB_SEC + (uint64_t)t.tv_nsec;
}

#endif
