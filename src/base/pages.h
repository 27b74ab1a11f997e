/* Memory on pages of its own, zeroed.  Goes back with free().
 *
 * For what must be found in a forked child: a program, or a library of a device's driver, may keep pages from
 * children (MADV_DONTFORK), and what shares a page with its buffer on the heap vanishes there too. */
#ifndef VB_BASE_PAGES_H
#define VB_BASE_PAGES_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define VB_PAGE ((size_t)4096)

static inline void *vb_pages_alloc(size_t bytes) /* NULL: no memory */
{
	size_t whole = (bytes + VB_PAGE - 1) & ~(VB_PAGE - 1);
	void *p = aligned_alloc(VB_PAGE, whole);

	return p ? memset(p, 0, whole) : NULL;
}

#endif
