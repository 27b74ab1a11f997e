/* What an entry of a key table, this process's or a peer's, says to a wish for memory. */
#ifndef VB_MEM_CHECK_H
#define VB_MEM_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "iba/reason.h"
#include "mem/keys.h"

/* Who wants what of a key. */
struct vb_mem_want {
	uint32_t key; /* an R_Key if remote */
	bool remote;
	bool word;  /* 8 bytes that are to be seen all at once: other processes' memory has to be mapped */
	bool whole; /* of a check: all of the region is meant, whatever addr and len say */
	uint32_t access; /* enum ibv_access_flags bits needed beyond local read (0 for that) */
	uint32_t qpn;	 /* remote: the QP that the request came to */
	uint64_t pd;
	uint64_t addr, len; /* len 0 is never asked (rule 18) */
};

/* A key of this table, without a tag. */
static inline bool vb_key_is_plain(const struct vb_keys *t, const struct vb_mem_want *w)
{
	return !(w->key & VB_KEY_TAGGED) && (uint32_t)(w->pd >> 32) == t->home;
}

/* The wanted key as an L_Key: without the bit that it must have. */
static inline uint32_t vb_key_as_lkey(const struct vb_keys *t, const struct vb_mem_want *w)
{
	return w->key ^ (w->remote ? VB_KEY_REMOTE : t->local_bit);
}

/* Whether [addr, addr+len) is of a region. */
static inline bool vb_key_bounds(uint64_t iova, uint64_t length, uint64_t addr, uint64_t len)
{
	uint64_t off = addr - iova; /* below the region this wraps to more than any length (rule 19) */

	return addr >= iova && off <= length && len <= length - off;
}

_Static_assert(VB_KEY_WINDOW + 1 == VB_KEY_KINDS, "all before the last kind have an L_Key");

/* What an entry, which an announcement keeps as it is, says of the wanted range: its kind, and its address;
 * all of it checked.  VB_KEY_KINDS: not permitted, or being changed.  w->key: as an L_Key. */
static inline __attribute__((always_inline)) enum vb_key_kind
vb_key_resolve(const struct vb_key_entry *e, const struct vb_mem_want *w, uint64_t *at)
{
	uint32_t seq = atomic_load(&e->seq), qpn = 0;
	uint32_t kind = atomic_load_explicit(&e->kind, memory_order_acquire) & ~(uint32_t)VB_KEY_CHANGING;
	uint64_t iova = atomic_load_explicit(&e->iova, memory_order_acquire);

	if ((seq & 1) || atomic_load_explicit(&e->key, memory_order_acquire) != w->key ||
	    atomic_load_explicit(&e->pd, memory_order_acquire) != w->pd ||
	    (w->access & ~atomic_load_explicit(&e->access, memory_order_acquire)) ||
	    !vb_key_bounds(iova, atomic_load_explicit(&e->length, memory_order_acquire), w->addr, w->len))
		return VB_KEY_KINDS;
	*at = atomic_load_explicit(&e->addr, memory_order_acquire) + (w->addr - iova);
	if (w->remote) /* windows alone have one, and no L_Key */
		qpn = atomic_load_explicit(&e->qpn, memory_order_acquire);
	/* The entry's meaning may be exchanged under the announcement (vb_key_change): what was read must be
	 * all of one meaning, and none that came after the announcement. */
	if (atomic_load_explicit(&e->seq, memory_order_relaxed) != seq ||
	    kind >= (w->remote ? VB_KEY_KINDS : VB_KEY_WINDOW))
		return VB_KEY_KINDS;
	if (w->remote && vb_unlikely(kind == VB_KEY_WINDOW ? qpn && qpn != w->qpn : kind == VB_KEY_NULL))
		return VB_KEY_KINDS;
	return kind;
}

/* The reason that an entry gives against an access, VB_OK: none.  No facts are filled in. */
enum vb_reason vb_key_judge(const struct vb_keys *t, const struct vb_key_entry *e,
			    const struct vb_mem_want *w);

/* The reason of vb_key_judge(), with what the sentence needs: if f is not NULL, fills in the facts about key,
 * range, region and access.  e is NULL where the key names no entry. */
enum vb_reason vb_key_classify(struct vb_keys *t, const struct vb_key_entry *e, const struct vb_mem_want *w,
			       struct vb_facts *f);

/* Fills in the facts about a key of which nothing is known but the request. */
void vb_key_facts(struct vb_facts *f, enum vb_reason r, const struct vb_mem_want *w);

#endif
