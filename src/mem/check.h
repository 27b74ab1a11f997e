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
	uint32_t access; /* enum ibv_access_flags bits needed beyond local read (0 for that) */
	uint32_t qpn;	 /* remote: the QP that the request came to */
	uint64_t pd;
	uint64_t addr, len; /* len 0 is never asked (rule 18) */
};

/* The wanted key as an L_Key: without the bit that it must have. */
static inline uint32_t vb_key_as_lkey(const struct vb_keys *t, const struct vb_mem_want *w)
{
	return w->key ^ (w->remote ? VB_KEY_REMOTE : t->local_bit);
}

/* What an entry, which an announcement keeps as it is, says of the wanted range: its kind, and its address;
 * all of it checked.  VB_KEY_KINDS: not permitted, or being changed.  w->key: as an L_Key. */
enum vb_key_kind vb_key_resolve(const struct vb_key_entry *e, const struct vb_mem_want *w, uint64_t *at);

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
