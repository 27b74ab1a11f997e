/* What the two programs of the bench share: the clock, CPUs, and one line per figure. */
#ifndef VB_BENCH_COMMON_H
#define VB_BENCH_COMMON_H

#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static inline double now(void) /* nanoseconds */
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* The n-th CPU that this process may use, counted round; where there is one only, both sides share it.
 * unpin() gives all back: what a library starts meanwhile should not be bound. */
static cpu_set_t all_cpus;

static inline void pin(unsigned n)
{
	cpu_set_t one;

	if (!CPU_COUNT(&all_cpus) && sched_getaffinity(0, sizeof(all_cpus), &all_cpus))
		return;
	n %= (unsigned)CPU_COUNT(&all_cpus);
	for (int c = 0; c < CPU_SETSIZE; c++) {
		if (!CPU_ISSET(c, &all_cpus) || n--)
			continue;
		CPU_ZERO(&one);
		CPU_SET(c, &one);
		sched_setaffinity(0, sizeof(one), &one);
		return;
	}
}

static inline void unpin(void)
{
	if (CPU_COUNT(&all_cpus))
		sched_setaffinity(0, sizeof(all_cpus), &all_cpus);
}

static inline void figure(const char *name, double value)
{
	printf("%s\t%.3f\n", name, value);
	fflush(stdout);
}

static inline void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

#endif
