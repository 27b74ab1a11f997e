/* Memory of the program is made present, as pinning it would, but not pinned. */
#ifndef VB_MEM_POPULATE_H
#define VB_MEM_POPULATE_H

#include <stdbool.h>
#include <stdint.h>

/* All pages that [addr, addr + length) touches, for writing if `write`, else for reading.  0, or the errno
 * that pinning them would give: EFAULT (a hole, a permission that is missing, a page that nothing is behind),
 * ENOMEM (no memory for them). */
int vb_populate(uint64_t addr, uint64_t length, bool write);

/* 0: every page is mapped, with whatever permission, else EFAULT.  Makes nothing present. */
int vb_populate_look(uint64_t addr, uint64_t length);

#endif
