/* Copies to and from application memory, and atomics on it.
 *
 * A copy into application memory makes its last up to 8 aligned bytes visible last, with release, as one
 * store if they fit a naturally aligned power of two: a program that polls the last byte of a buffer sees the
 * rest. (Ours, after what adapters do; perftest's ib_write_lat relies on it.)
 *
 * All return false when the memory cannot be reached (it vanished under its region: mem/guard.h), and true
 * otherwise.  What was copied before the fault stays; the last bytes then have not been stored. */
#ifndef VB_MEM_COPY_H
#define VB_MEM_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool vb_copy_to_app(void *dst, const void *src, size_t n);
bool vb_copy_app(void *dst, const void *src, size_t n); /* from application memory to application memory */
bool vb_copy_from_app(void *dst, const void *src, size_t n);

/* Aligned 8-byte atomics (sequentially consistent); *orig receives the value before. */
bool vb_atomic_cmp_swap(void *addr, uint64_t compare, uint64_t swap, uint64_t *orig);
bool vb_atomic_fetch_add(void *addr, uint64_t add, uint64_t *orig);

#endif
