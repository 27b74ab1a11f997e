/* Keys of other processes: memory behind a key of a protection domain that several processes hold, or that
 * was imported.  For mem/keys.c, whose vb_mem_begin() and its relatives come here.
 *
 * The owner's tables are read in its segment, as for direct placement, and its memory is touched through a
 * mapping of our own where it is shareable, else by the kernel's copies (mem/peer_mem.h).  A thread announces
 * what it is about to touch in `via` of its slot, since a placement may be under way in `placing` at the same
 * time. The owner waits for both. */
#ifndef VB_MEM_PEER_KEY_H
#define VB_MEM_PEER_KEY_H

#include "mem/access.h"

/* What vb_mem_begin() and vb_mem_check() do with a key of which vb_key_is_peers() holds. */
enum vb_reason vb_peer_key_begin(struct vb_keys *t, struct vb_mem_use *u, const struct vb_mem_want *w,
				 struct vb_facts *f);
enum vb_reason vb_peer_key_check(struct vb_keys *t, const struct vb_mem_want *w, struct vb_facts *f);

/* u->how is VB_USE_PEER. */
bool vb_peer_key_get(const struct vb_mem_use *u, void *dst, uint32_t n);
bool vb_peer_key_put(const struct vb_mem_use *u, const void *src, uint32_t n);
enum vb_reason vb_peer_key_why(const struct vb_mem_use *u);
uint32_t vb_peer_key_pid(const struct vb_mem_use *u); /* the owner's process */

#endif
