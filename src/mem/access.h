/* The only way to memory behind a key: permitted and announced between vb_mem_begin() and vb_mem_end(), and
 * touched by the functions here.
 *
 * The memory may be this process's or, in a protection domain that several processes hold, a peer's. */
#ifndef VB_MEM_ACCESS_H
#define VB_MEM_ACCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/fault.h"
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
	VB_USE_TOLD, /* at ptr, in a process that is checked: each access is told to the checkers */
};
struct vb_mem_use {
	uint8_t *ptr; /* CPU address of the first byte (VB_USE_HERE) */
	enum vb_use_how how;
	bool remote; /* private, as is what follows.  VB_USE_TOLD: as they were wanted */
	uint32_t key, qpn;
	struct vb_key_slot *slot;
	struct vb_peer_mem *peer; /* another adapter's; NULL: this one's */
};

/* What vb_mem_begin() also says, of an atomic on memory of another process: whether it can be done is being
 * found out, ask again. */
#define VB_MEM_LATER VB_REASONS

/* Announces the entry `index`, and checks it.  false: not permitted, or being changed, and announced no more.
 */
static inline __attribute__((always_inline)) bool
vb_mem_try(struct vb_keys *t, uint32_t index, struct vb_mem_use *u, const struct vb_mem_want *want)
{
	struct vb_mem_want w = *want;
	enum vb_key_kind kind;
	uint64_t at;

	w.key = vb_key_as_lkey(t, want);
	u->peer = NULL;
	u->slot = vb_slot_claim(&t->slots);
	vb_announce_key(u->slot, index);
	kind = vb_key_resolve(&t->entries[index], &w, &at);
	if (vb_likely(kind < VB_KEY_KINDS)) {
		u->how = kind == VB_KEY_NULL ? VB_USE_NULL : VB_USE_HERE;
		u->ptr = (uint8_t *)(uintptr_t)at;
		VB_FAULT_POINT("memory announced, not yet touched");
		return true;
	}
	vb_announce_key_end(u->slot);
	vb_slot_release(u->slot);
	return false;
}

/* The choke point.  On failure returns the reason and, if f is not NULL, fills in the facts about key, range,
 * region and access.  At most VB_MEM_CHUNK of [addr, addr+len) may be touched before vb_mem_end(); the check
 * covers all of it. */
enum vb_reason vb_mem_begin_any_key(struct vb_keys *t, struct vb_mem_use *u, const struct vb_mem_want *w,
				    struct vb_facts *f);

/* The common case is a key without a tag that permits it: inline, since every message comes by here.  false:
 * vb_mem_begin_any_key() knows. */
static inline __attribute__((always_inline)) bool vb_mem_begin_plain(struct vb_keys *t, struct vb_mem_use *u,
								     const struct vb_mem_want *w)
{
	uint32_t index = VB_KEY_PLACE(w->key) - t->offset;

	return vb_likely(vb_key_is_plain(t, w) && index < t->quick && vb_mem_try(t, index, u, w));
}

static inline enum vb_reason vb_mem_begin(struct vb_keys *t, struct vb_mem_use *u,
					  const struct vb_mem_want *w, struct vb_facts *f)
{
	return vb_mem_begin_plain(t, u, w) ? VB_OK : vb_mem_begin_any_key(t, u, w, f);
}

static inline void vb_mem_end(struct vb_mem_use *u)
{
	if (vb_unlikely(u->peer))
		vb_announce_via_end(u->slot);
	else
		vb_announce_key_end(u->slot);
	vb_slot_release(u->slot);
}

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
