/* What `verbena run --check` finds in the use of buffers, and what its parts share. */
#ifndef VB_MEM_CHECK_BUFFERS_H
#define VB_MEM_CHECK_BUFFERS_H

#include <stdbool.h>

#include "check/check.h"
#include "mem/check_guard.h"

extern const struct vb_checker vb_check_buffers; /* --check */

bool vb_check_is_active(void); /* whether the row is at work */

/* The request's name in sentences, with where it was posted; for the row --check, of requests that it has. */
vb_check_whose_fn vb_check_whose;

/* The library is about to look whether [from, to) can be accessed: it is guarded no more. */
void vb_check_looks(uintptr_t from, uintptr_t to);

/* By what a key ends that a peer may still have. */
enum vb_check_end {
	VB_CHECK_DEREGISTERED,
	VB_CHECK_UNBOUND,
	VB_CHECK_DEALLOCATED,
	VB_CHECK_QUEUE_PAIR_GONE, /* on which the window was bound */
	VB_CHECK_INVALIDATED,	  /* by the peer, and by no call of this program */
};

/* The key, an L_Key or R_Key, ends by the call that this thread is in.  And a request names such a key.  Both
 * do nothing without --check. */
void vb_check_key_ended(uint32_t key, enum vb_check_end how);
void vb_check_key_is_stale(uint32_t key, bool remote);

#endif
