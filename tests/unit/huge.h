/* Huge pages for a test, where it may have them: reserve_pages and give_pages_back are its setup and
 * teardown.  (Tests that use this take turns, see extra.cmake.) */
#ifndef VB_TESTS_HUGE_H
#define VB_TESTS_HUGE_H

#include <stdio.h>

static const char pool[] = "/proc/sys/vm/nr_hugepages";

static inline long pages_reserved(void)
{
	FILE *f = fopen(pool, "re");
	long n = -1;

	if (f && fscanf(f, "%ld", &n) != 1)
		n = -1;
	if (f)
		fclose(f);
	return n;
}

static inline void reserve(long n)
{
	FILE *f = fopen(pool, "we");

	if (f) {
		fprintf(f, "%ld\n", n);
		fclose(f);
	}
}

static inline int reserve_pages(void **state)
{
	static long before;

	before = pages_reserved();
	*state = &before;
	if (before >= 0)
		reserve(before + 8);
	return 0;
}

static inline int give_pages_back(void **state)
{
	long before = *(long *)*state;

	if (before >= 0)
		reserve(before);
	return 0;
}

#endif
