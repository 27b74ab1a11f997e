/* What the peer's tables permitted a queue pair the last time, for the next request that wants the same
 * region: not all of it is asked for again.
 *
 * Three words stand for all that was asked.  The queue pair's permission (iba/shown.h) has another leave
 * once it was taken back, and nothing else of its line that matters changes before.  The key's sequence
 * number is another one once the key means something else.  The PSN that the queue pair expects is compared
 * each time.  They are read after the announcement, as is all that vb_peer_mem_begin() reads; and each
 * request's range is held against the region, and against what is mapped of it. */
#ifndef VB_MEM_GRANT_H
#define VB_MEM_GRANT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "mem/peer_mem.h"

/* Written by vb_peer_mem_grant(), under the lock of the queue pair whose it is; zero: nothing is granted. */
struct vb_peer_mem_grant {
	uint32_t rkey; /* of a region that may be written */
	uint32_t may;  /* the queue pair's permission, with a leave */
	uint32_t seq;  /* the key's entry had this */
	uint32_t last; /* the R_Key that was used last, granted or not */
	const struct vb_key_entry *entry;
	const struct vb_peer_region *region; /* what is mapped of it; NULL: it is memory of this process */
	uint64_t word;			     /* what is announced */
	uint64_t iova, length, at; /* the region, as its key addresses it; and in its owner's process */
} __attribute__((aligned(VB_LINE)));

/* What it leads to is going.  No R_Key finds it then, not even 0. */
static inline void vb_grant_drop(struct vb_peer_mem_grant *g)
{
	g->rkey = 0;
	g->length = 0;
}

/* Whether [addr, addr+len), which is not empty, of the R_Key is in the region. */
static inline bool vb_grant_is_of(const struct vb_peer_mem_grant *g, uint32_t rkey, uint64_t addr,
				  uint32_t len)
{
	uint64_t off = addr - g->iova;

	return g->rkey == rkey && off <= g->length && len <= g->length - off;
}

/* Whether it is of that key and probably still stands; announces nothing. */
static inline bool vb_grant_stands(const struct vb_peer_mem_grant *g, const struct vb_shown_qp *qp,
				   uint32_t rkey)
{
	return g->rkey == rkey && atomic_load_explicit(&qp->may, memory_order_relaxed) == g->may &&
	       atomic_load_explicit(&g->entry->seq, memory_order_relaxed) == g->seq;
}

/* As vb_peer_mem_begin(), for what vb_grant_is_of(): announces it, and gives its address here.  qp: the
 * peer's entry; psn: as in struct vb_peer_mem_want.  NULL: something has changed, and nothing is announced.
 */
static inline uint8_t *vb_grant_begin(const struct vb_peer_mem_grant *g, const struct vb_shown_qp *qp,
				      struct vb_key_slot *slot, uint32_t psn, uint64_t addr, uint32_t len)
{
	const struct vb_peer_region *s = g->region;
	uint64_t at = g->at + (addr - g->iova), off;
	uint8_t *p;

	vb_announce_placing(slot, g->word); /* pairs with vb_peer_mem_wait() */
	if (vb_unlikely(atomic_load(&qp->may) != g->may || atomic_load(&g->entry->seq) != g->seq ||
			atomic_load_explicit(&qp->received, memory_order_acquire) !=
			    (VB_SHOWN_RECEIVED | psn)))
		goto changed;
	if (!s)
		return (uint8_t *)(uintptr_t)at;
	/* Announced before, so vb_peer_mem_drop() is seen here or sees us.  The key is read first: who unmaps
	 * what stood there for another key does not wait for us. */
	if (vb_unlikely(atomic_load(&s->rkey) != g->rkey))
		goto changed;
	p = atomic_load(&s->at);
	if (vb_unlikely(!p)) /* the rest may be written now, for the next mapping */
		goto changed;
	off = at - s->addr;
	if (vb_likely(atomic_load_explicit(&s->seq, memory_order_relaxed) == g->seq && off <= s->length &&
		      len <= s->length - off && s->write))
		return p + off;
changed:
	vb_announce_placing_end(slot);
	return NULL;
}

static inline void vb_grant_end(struct vb_key_slot *slot)
{
	vb_announce_placing_end(slot);
}

/* Notes what `u`, which is in hand and mapped, was permitted of f's memory by w, a wish to write.  Nothing is
 * noted of what may change without one of the three words. */
void vb_peer_mem_grant(struct vb_peer_mem *f, const struct vb_peer_mem_want *w, struct vb_peer_mem_grant *g);

#endif
