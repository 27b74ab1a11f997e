/* A page's size, and memory on pages of its own, zeroed, that goes back with free().
 *
 * The latter is for what must be found in a forked child: a program, or a library of a device's driver, may
 * keep pages from children (MADV_DONTFORK), and what shares a page with its buffer on the heap vanishes there
 * too. */
#ifndef VB_BASE_PAGES_H
#define VB_BASE_PAGES_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The unit of layouts that are the same on every machine.  Kernels may have larger pages: vb_page_size(). */
#define VB_PAGE ((size_t)4096)

static inline uint64_t vb_page_size(void) /* the kernel's; the C library has it without a system call */
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

static inline uint64_t vb_page_start(uint64_t at) /* of the page with that byte */
{
	return at & ~(vb_page_size() - 1);
}

static inline uint64_t vb_page_offset(uint64_t at) /* in that page */
{
	return at & (vb_page_size() - 1);
}

static inline uint64_t vb_page_round(uint64_t bytes) /* up to whole pages */
{
	return vb_page_start(bytes + vb_page_size() - 1);
}

static inline void *vb_pages_alloc(size_t bytes) /* NULL: no memory */
{
	size_t whole = vb_page_round(bytes);
	void *p = aligned_alloc(vb_page_size(), whole);

	return p ? memset(p, 0, whole) : NULL;
}

#endif
