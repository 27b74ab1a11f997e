/* Bytes that tests of all kinds use: a page of them, and a pattern. */
#ifndef VB_TESTS_BYTES_H
#define VB_TESTS_BYTES_H

#include <stddef.h>
#include <stdint.h>

enum { PAGE = 4096 };

/* The byte at i of the pattern with that seed.  Neighbours differ, and so do bytes that are 256 apart. */
static inline uint8_t kit_byte(size_t i, unsigned seed)
{
	return (uint8_t)(i * 7 + i / 251 + seed);
}

static inline void kit_fill(void *at, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		((uint8_t *)at)[i] = kit_byte(i, seed);
}

/* How many bytes at the beginning have the pattern: n, or the first one that has not. */
static inline size_t kit_filled(const void *at, size_t n, unsigned seed)
{
	size_t i = 0;

	while (i < n && ((const uint8_t *)at)[i] == kit_byte(i, seed))
		i++;
	return i;
}

#endif
