/* What the programs of the bench share: the clock, CPUs, and one line per figure. */
#ifndef VB_BENCH_COMMON_H
#define VB_BENCH_COMMON_H

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define BUFFER (4u << 20) /* what is copied from and to */
#define LINE   64u
#define GATHER 16u /* small requests posted, or gathered into one system call, at a time */

static inline double now(void) /* nanoseconds */
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* A clock that costs less to read, for times of single messages; of an unknown unit, see spread.c. */
static inline uint64_t ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t t;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
	return t;
#else
	return (uint64_t)now();
#endif
}

/* A round goes by in laps of which the quickest counts: others may use the machine too. */
struct laps {
	double began, least;
};

static inline void lap(struct laps *l)
{
	double t = now();

	if (l->began != 0 && (l->least == 0 || t - l->began < l->least))
		l->least = t - l->began;
	l->began = t;
}

static inline int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static inline double median(double *v, unsigned n)
{
	qsort(v, n, sizeof(*v), by_value);
	return v[n / 2];
}

static cpu_set_t all_cpus;

/* This thread, and those that it starts, may use so many CPUs from the first-th on that this process may use,
 * counted round. */
static inline void confine(unsigned first, unsigned count)
{
	cpu_set_t some;
	unsigned n = 0;

	if (!CPU_COUNT(&all_cpus) && sched_getaffinity(0, sizeof(all_cpus), &all_cpus))
		return;
	CPU_ZERO(&some);
	first %= (unsigned)CPU_COUNT(&all_cpus);
	for (int c = 0; c < CPU_SETSIZE; c++) {
		if (!CPU_ISSET(c, &all_cpus))
			continue;
		if (n >= first && n < first + count)
			CPU_SET(c, &some);
		n++;
	}
	sched_setaffinity(0, sizeof(some), &some);
}

/* One CPU; where there is one only, both sides share it.  unpin() gives all back: what a library starts
 * meanwhile should not be bound. */
static inline void pin(unsigned n)
{
	confine(n, 1);
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

/* Bytes that are present: a process's own, or of a file in memory that others could open (*fd; else -1).
 * The limits are measured in memory of the same kind as Verbena. */
static inline char *memory(size_t bytes, bool shared, int *fd)
{
	char *at;

	*fd = shared ? memfd_create("bench", MFD_CLOEXEC) : -1;
	if (shared && (*fd < 0 || ftruncate(*fd, (off_t)bytes)))
		die("memfd");
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, *fd,
		  0);
	if (at == MAP_FAILED)
		die("mmap");
	memset(at, 1, bytes);
	return at;
}

static inline char *buffer(bool shared, int *fd)
{
	return memory(BUFFER, shared, fd);
}

#endif
