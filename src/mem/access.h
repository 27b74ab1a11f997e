/* The only way to memory behind a key: permitted and announced between vb_mem_begin() and vb_mem_end(), and
 * touched by the functions here.
 *
 * The memory may be this process's or, in a protection domain that several processes hold, a peer's. */
#ifndef VB_MEM_ACCESS_H
#define VB_MEM_ACCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "iba/reason.h"
#include "mem/announce.h"
#include "mem/check.h"
#include "mem/keys.h"

/* One permitted access: valid between vb_mem_begin() == VB_OK and vb_mem_end().  A thread has one at a time.
 */
enum vb_use_how {
	VB_USE_HERE, /* at ptr */
	VB_USE_NULL, /* a null region */
	VB_USE_PEER, /* at ptr in another process, by the kernel's copies */
};
struct vb_mem_use {
	uint8_t *ptr; /* CPU address of the first byte (VB_USE_HERE) */
	enum vb_use_how how;
	struct vb_key_slot *slot; /* private, as is what follows */
	struct vb_peer_mem *peer; /* another adapter's; NULL: this one's */
};

/* What vb_mem_begin() also says, of an atomic on memory of another process: whether it can be done is being
 * found out, ask again. */
#define VB_MEM_LATER VB_REASONS

/* The choke point.  On failure returns the reason and, if f is not NULL, fills in the facts about key, range,
 * region and access.  At most VB_MEM_CHUNK of [addr, addr+len) may be touched before vb_mem_end(); the check
 * covers all of it. */
enum vb_reason vb_mem_begin(struct vb_keys *t, struct vb_mem_use *u, const struct vb_mem_want *w,
			    struct vb_facts *f);
void vb_mem_end(struct vb_mem_use *u);

/* Touching what was permitted: the first n bytes of it.  put: with the last bytes last (mem/copy.h).  false:
 * the memory is not there.  Atomics: 8 bytes, the address is aligned. */
bool vb_mem_get(const struct vb_mem_use *u, void *dst, uint32_t n);
bool vb_mem_put(const struct vb_mem_use *u, const void *src, uint32_t n);
bool vb_mem_cmp_swap(const struct vb_mem_use *u, uint64_t compare, uint64_t swap, uint64_t *orig);
bool vb_mem_fetch_add(const struct vb_mem_use *u, uint64_t add, uint64_t *orig);
/* Why the last of these found no memory: facts about it, for the range that was wanted. */
enum vb_reason vb_mem_why(const struct vb_mem_use *u, uint32_t key, uint64_t addr, uint64_t len,
			  struct vb_facts *f);

/* For accesses that name several keys at once: announces them all, then vb_mem_find() checks one, for local
 * use (vb_key_settled() counts on that), and gives its address (NULL: not permitted, not memory of this
 * process, or not yet), valid until vb_mem_end(). false: this thread has no slot of its own. */
bool vb_mem_begin_any(struct vb_keys *t, struct vb_mem_use *u);
uint8_t *vb_mem_find(struct vb_keys *t, const struct vb_mem_want *w);

/* The check of vb_mem_begin() without an access (and without announcing): for requests that are checked
 * before they start. */
enum vb_reason vb_mem_check(struct vb_keys *t, const struct vb_mem_want *w, struct vb_facts *f);

#endif
