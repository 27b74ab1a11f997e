/* --check=guard, for the row of --check (mem/check_buffers.c).  All under vb_check_lock but open(). */
#ifndef VB_MEM_CHECK_GUARD_H
#define VB_MEM_CHECK_GUARD_H

#include "check/check.h"

struct vb_guarded; /* what is guarded for a request */

/* From now on; without it nothing is guarded.  whose: names a request in a sentence. */
enum { VB_CHECK_WHOSE = 330 };
typedef const char *vb_check_whose_fn(char text[VB_CHECK_WHOSE], const struct vb_check_request *r);
void vb_check_guard_open(vb_check_whose_fn *whose);
/* A request is about to be posted: its memory can be read. */
void vb_check_guard_prepare(const struct vb_check_request *r);
/* Guards its pages; NULL: none of them.  Pairs with _end(). */
struct vb_guarded *vb_check_guard_begin(const struct vb_check_request *r);
void vb_check_guard_end(struct vb_guarded *g);
/* As _end(), but that what *g has stays allocated. */
void vb_check_guard_give(struct vb_guarded *g);
/* Whatever is guarded in [from, to) is guarded no more: whole requests. */
void vb_check_guard_drop(uintptr_t from, uintptr_t to);
/* The adapter touches memory between the two, which is not guarded any more. */
void vb_check_guard_touches(uintptr_t at, uint64_t length);
void vb_check_guard_touched(uintptr_t at, uint64_t length);
/* In a child of fork(); _give() was called for all. */
void vb_check_guard_forked(void);

#endif
