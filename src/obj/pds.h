/* The table of protection domains: what an adapter shows of its own to other processes, so that they can
 * share or import one without asking its process anything.
 *
 * A domain's number has 64 bits and is unique on the host: 12 bits of the adapter that made it (its home), 20
 * bits of chance, since that adapter's number may later be another process's, 32 bits of its handle there.
 * A handle is 16 bits of generation over 16 bits of index.  Each process that holds a shared domain has an
 * entry for it: whoever is to join finds number and share key at any of them.
 *
 * Owners write, peers read: an entry between two equal even sequence numbers. */
#ifndef VB_OBJ_PDS_H
#define VB_OBJ_PDS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"

struct vb_pd_slot {
	_Atomic uint32_t seq;	 /* odd: being changed */
	_Atomic uint32_t handle; /* 0 and no number: free.  The index is the slot's, the generation moves */
	_Atomic uint64_t id;	 /* the domain's number, 0: free */
	_Atomic uint64_t share_key;
	_Atomic uint32_t shared; /* share_key counts */
	uint32_t reserved;
};

struct vb_pd_marks {
	_Atomic uint32_t used; /* slots; what is above was never written */
} __attribute__((aligned(VB_LINE)));

/* What is published of one. */
struct vb_pd_view {
	uint64_t id;
	uint64_t share_key;
	bool shared;
};

struct vb_pds {
	struct vb_pd_slot *slots; /* [VB_MAX_PD]; set once, as are marks and base */
	struct vb_pd_marks *marks;
	uint64_t base;		       /* upper half of the numbers made here */
	struct vb_lock lock;	       /* guards what follows */
	uint32_t free_head, free_tail; /* slots given back, oldest first: index + 1, linked by share_key */
	uint32_t waiting;	       /* how many those are */
};

/* slots and marks must be zero, and stay the caller's. */
void vb_pds_init(struct vb_pds *t, struct vb_pd_slot *slots, struct vb_pd_marks *marks, uint64_t base);

/* A new domain if id is 0, else one more holder of that domain, which others may join with *key (NULL: not).
 * False: the table is full. */
bool vb_pds_take(struct vb_pds *t, uint64_t id, const uint64_t *key, uint32_t *handle, uint64_t *new_id);
void vb_pds_give(struct vb_pds *t, uint32_t handle);
/* From now on others may join it with this key.  False: they may already. */
bool vb_pds_share(struct vb_pds *t, uint32_t handle, uint64_t key);

/* For readers of any process's table. */
bool vb_pds_look(const struct vb_pd_slot *slots, const struct vb_pd_marks *marks, uint32_t handle,
		 struct vb_pd_view *v);
/* The shared domain that other processes call by this handle (struct ibv_shpd), `nth` entry of it. */
bool vb_pds_find(const struct vb_pd_slot *slots, const struct vb_pd_marks *marks, uint32_t domain,
		 uint32_t nth, struct vb_pd_view *v);

/* The handle by which processes call a domain among one another: 12 bits of its home, 20 of its handle there.
 */
static inline uint32_t vb_pd_domain(uint64_t id)
{
	return (uint32_t)(id >> 52) << 20 | ((uint32_t)id & 0xfffff);
}
static inline uint32_t vb_pd_domain_home(uint32_t domain)
{
	return domain >> 20;
}

#endif
