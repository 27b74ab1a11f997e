/* Whether peers can map memory of another process, seen from outside. */
#ifndef VB_TOOLS_MR_SHARED_H
#define VB_TOOLS_MR_SHARED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* NULL: they can; else why not, as far as /proc tells.  mem/share.c decides by the same rules in the process
 * itself. */
const char *vb_why_not_shared(pid_t pid, uint64_t addr, uint64_t length, bool write);

#endif
