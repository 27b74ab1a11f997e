/* The key table: what every L_Key and R_Key means, and the only way to memory behind one.
 *
 * An entry is one cache line, in the adapter's segment (peers read it for direct placement) or wherever a
 * test puts it.  The owner alone writes, between an odd and an even sequence number.  A key is
 *
 *     31         30        29         28....8   7.....0
 *     shared     remote    0          index     variant
 *
 * so that L_Key and R_Key of a region differ in bit 30 and never pass for one another, a key that was made
 * for an earlier region at the same index differs in its variant, and bit 31 is left for keys that carry
 * their adapter's number (shared protection domains).  Key 0 is never given out: index 0 is not used.
 *
 * Users announce themselves: a thread that is about to touch a region first stores the index in its own slot
 * (seq_cst), then checks the entry, copies at most one chunk, and clears the slot.  Retracting an entry is an
 * odd sequence number (seq_cst) followed by a wait for slots that name it: those of this process, and those
 * of peers, which announce in their own tables' slots what they use of ours (mem/far.h).  After that no byte
 * of the region is touched any more.  A thread's slot has the same number in every table, so a table may go
 * away before the thread does. */
#ifndef VB_MEM_KEYS_H
#define VB_MEM_KEYS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/lock.h"
#include "iba/reason.h"

#define VB_KEY_REMOTE	  0x40000000u
#define VB_KEY_SHARED	  0x80000000u
#define VB_KEY_INDEX(k)	  (((k) >> 8) & 0x1fffffu)
#define VB_KEY_VARIANT(k) ((k)&0xffu)

#define VB_MEM_CHUNK (256u << 10) /* longest copy between two checks of a key */
#define VB_MEM_SLOTS 64		  /* threads that announce without a lock; more share the last slot */

struct vb_key_entry {
	_Atomic uint32_t seq; /* even: stable; odd: being changed or retracted.  All fields: owner writes */
	_Atomic uint32_t key; /* the L_Key, 0: free */
	_Atomic uint32_t pd;
	_Atomic uint32_t access; /* enum ibv_access_flags */
	_Atomic uint64_t iova;	 /* first address, as the key addresses it */
	_Atomic uint64_t length;
	_Atomic uint64_t addr; /* address of the first byte in the owner's process */
	_Atomic uint32_t told; /* a peer may have mapped the region's memory: it is told when the key goes */
	uint32_t spare;
	uint64_t reserved[2];
} __attribute__((aligned(VB_LINE)));

struct vb_key_slot {
	_Atomic uint32_t index; /* the entry in use, 0: none, VB_KEY_ANY: some.  Its thread writes; retractors
				   read */
	struct vb_lock shared;	/* last slot only: taken by threads beyond the table */
	_Atomic uint64_t far;	/* what is in use of another adapter, 0: nothing (mem/far.h); likewise */
	/* Raised before each announcement: who waits for one need not wait for those that follow it. */
	_Atomic uint32_t turn, far_turn;
} __attribute__((aligned(VB_LINE)));
#define VB_KEY_ANY UINT32_MAX

/* How far a table is used: what is above holds nothing, and nobody reads there. */
struct vb_key_marks {
	_Atomic uint32_t keys;	/* entries; its owner writes */
	_Atomic uint32_t slots; /* likewise */
} __attribute__((aligned(VB_LINE)));

struct vb_keys {
	struct vb_key_entry *entries;  /* set once; [capacity] */
	struct vb_key_slot *slots;     /* set once; [VB_MEM_SLOTS] */
	struct vb_key_marks *marks;    /* set once */
	uint32_t capacity;	       /* set once */
	struct vb_lock lock;	       /* guards what follows */
	uint32_t used;		       /* high-water mark: indices given so far */
	uint32_t live;		       /* regions now */
	uint32_t free_head, free_tail; /* indices given back, oldest first (entry->addr links them,
					  entry->iova keeps the last L_Key) */
};

/* entries, slots and marks must be zero, and stay the caller's.  */
void vb_keys_init(struct vb_keys *t, struct vb_key_entry *entries, uint32_t capacity,
		  struct vb_key_slot *slots, struct vb_key_marks *marks);

/* Takes an index and publishes the region; returns its L_Key (the R_Key is that | VB_KEY_REMOTE), 0: the
 * table is full. */
uint32_t vb_key_publish(struct vb_keys *t, uint32_t pd, uint32_t access, uint64_t iova, uint64_t addr,
			uint64_t length);

/* Taking a key back, in two steps.  vb_key_retract(): nobody finds the key any more; waits for its announced
 * users in this process.  A wait of more than a second is logged.  Then the caller waits for those of peers
 * (vb_far_wait_key).  vb_key_give(): the index may be given out again, with another variant. */
void vb_key_retract(struct vb_keys *t, uint32_t lkey);
void vb_key_give(struct vb_keys *t, uint32_t lkey);

/* What a published key says at the moment, for whoever answers a peer's question; false: it is not published.
 */
struct vb_key_view {
	uint32_t access;
	uint64_t addr, length;
};
bool vb_key_look(struct vb_keys *t, uint32_t lkey, struct vb_key_view *v);
/* Notes that the region's memory is mapped elsewhere, and asks: true once. */
void vb_key_tell(struct vb_keys *t, uint32_t lkey);
bool vb_key_told(struct vb_keys *t, uint32_t lkey);

/* The patience of all who wait for announced users: spins, yields, then naps.  Begins zeroed; true: a second
 * has gone by (once). */
struct vb_patience {
	uint64_t began;
	uint32_t tries;
	bool told;
};
bool vb_patience_nap(struct vb_patience *p);

/* One permitted access: valid between vb_mem_begin() == VB_OK and vb_mem_end().  A thread has one at a time.
 */
struct vb_mem_use {
	uint8_t *ptr;		  /* CPU address of the first byte */
	struct vb_key_slot *slot; /* private */
};

/* The choke point.  `key` is an R_Key if remote; want: enum ibv_access_flags bits needed beyond local read
 * (0 for that).  On failure returns the reason and, if f is not NULL, fills in the facts about key, range,
 * region and access.  len 0 is never asked (rule 18).  At most VB_MEM_CHUNK of [addr, addr+len) may be
 * touched before vb_mem_end(); the check covers all of it. */
enum vb_reason vb_mem_begin(struct vb_keys *t, struct vb_mem_use *u, uint32_t key, bool remote, uint32_t pd,
			    uint64_t addr, uint64_t len, uint32_t want, struct vb_facts *f);
void vb_mem_end(struct vb_mem_use *u);

/* For accesses that name several keys at once: announces them all, then vb_mem_find() checks one and gives
 * its address (NULL: not permitted, or not yet), valid until vb_mem_end().  false: this thread has no slot of
 * its own. */
bool vb_mem_begin_any(struct vb_keys *t, struct vb_mem_use *u);
uint8_t *vb_mem_find(struct vb_keys *t, uint32_t lkey, uint32_t pd, uint64_t addr, uint64_t len,
		     uint32_t want);

/* This thread's own slot in a table, NULL: it has to share the last one. */
struct vb_key_slot *vb_mem_slot(struct vb_keys *t);

/* The address of [addr, addr+len) by an entry that an announcement keeps as it is: all of it checked, want as
 * above.  false: not permitted, or being changed. */
bool vb_key_resolve(const struct vb_key_entry *e, uint32_t lkey, uint32_t pd, uint64_t addr, uint64_t len,
		    uint32_t want, uint64_t *at);

/* The same check without an access (and without announcing): for requests that are checked before they start.
 */
enum vb_reason vb_mem_check(struct vb_keys *t, uint32_t key, bool remote, uint32_t pd, uint64_t addr,
			    uint64_t len, uint32_t want, struct vb_facts *f);

#endif
