/* What pinning a region's pages would do, in profiles of devices that pin: counting against RLIMIT_MEMLOCK
 * (pin.c), and fork() (fork.c). */
#ifndef VB_VERBS_PIN_H
#define VB_VERBS_PIN_H

#include <stdbool.h>
#include <stdint.h>

#include "obj/pd.h"

/* For an ordinary region of this memory, before its pages are made present.  0, or errno that has been said:
 * what the program would get from a device that pins; *marking: it failed at vb_fork_mark().  Pairs with
 * vb_unpin().  Nothing in other profiles. */
int vb_pin(const char *call, uint64_t addr, uint64_t length, bool *marking);
void vb_unpin(uint64_t addr, uint64_t length);
void vb_pin_release(struct vb_mr *mr); /* as vb_mr.release: unpins the region's memory as it is now */

uint64_t vb_pin_regions(void); /* regions that count at the moment */

/* In a forked child: nothing is pinned. */
void vb_pin_forked(void);

/* Keeps the pages from children, if ibv_fork_init() was called, until as many vb_fork_unmark(); pages of
 * overlapping regions count.  0 or errno that has been said. */
int vb_fork_mark(const char *call, uint64_t addr, uint64_t length);
void vb_fork_unmark(uint64_t addr, uint64_t length);

#endif
