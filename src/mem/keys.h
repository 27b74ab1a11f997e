/* The key table: what every L_Key and R_Key means.
 *
 * An entry is one cache line, in the adapter's segment (peers read it for direct placement) or wherever a
 * test puts it.  The owner alone writes, between an odd and an even sequence number.  A key is
 *
 *     31         30        29..............8   7.....0
 *     shared     remote    offset + index      variant
 *
 * so that L_Key and R_Key of a region differ in bit 30 and never pass for one another, and a key that was
 * made for an earlier region at the same index differs in its variant.  The offset is the table's own, by
 * chance: a program that sends a peer's R_Key back to it by mistake for its own, or its own for the peer's,
 * meets no region there, as it would with two adapters; and the table is dense all the same.  Peers read the
 * offset once.  Key 0 is never given out: index 0 is not used, and offsets are such that nothing wraps.
 * In the profile in which the two keys of a region are equal both have bit 30: so peers, whatever their
 * profile, find what they always find, and only the owner takes such a key for a local one as well.
 *
 * A protection domain may be held by several processes.  A key is resolved for the queue pair's domain: one
 * without bit 31 in the table of the domain's home, the adapter that made it; whoever else registers memory
 * in the domain gives out tagged keys, which say whose they are:
 *
 *     31         30        29....18   17....8   7.....0
 *     1          remote    number     index     variant
 *
 * Their entries stand in the same array behind the others, 1,024 for each number of the adapter that has been
 * taken for them.
 *
 * Users announce themselves (mem/announce.h) before they check an entry.  Retracting an entry is an odd
 * sequence number (seq_cst) followed by a wait for slots that name it: those of this process, and those of
 * peers, which announce in their own tables' slots what they use of ours.  After that no byte of the region
 * is touched any more.  mem/check.h says what an entry permits, mem/access.h touches the memory; this file
 * calls neither. */
#ifndef VB_MEM_KEYS_H
#define VB_MEM_KEYS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/lock.h"
#include "iba/limits.h"
#include "mem/announce.h"

#define VB_KEY_REMOTE 0x40000000u
#define VB_KEY_TAGGED 0x80000000u
#define VB_KEY_PLACE(k) \
	(((k) >> 8) & ((1u << VB_KEY_BITS) - 1)) /* index plus offset, or what a tag has there */
#define VB_KEY_VARIANT(k) ((k)&0xffu)
#define VB_KEY_NUMBER(k)  (((k) >> 18) & (VB_ADAPTERS - 1)) /* of a tagged one */

#define VB_MEM_CHUNK (256u << 10) /* longest copy between two checks of a key */

/* What stands behind a key. */
enum vb_key_kind {
	VB_KEY_MEMORY,	  /* memory of the owner's process */
	VB_KEY_ON_DEMAND, /* what is mapped in the owner's process at the moment: never mapped by peers */
	VB_KEY_NULL,	  /* nothing: reads as zeros, and what is written is lost.  No R_Key */
	VB_KEY_WINDOW,	  /* memory window: a part of a region, under an R_Key of its own.  No L_Key */
	VB_KEY_KINDS,
	VB_KEY_CHANGING = 0x80000000u, /* flag around an odd seq: the key stays, what it means is exchanged */
};

enum { VB_KEY_ANY_VARIANT = 256 };

struct vb_key_entry {
	_Atomic uint32_t seq; /* even: stable; odd: being changed or retracted.  All fields: owner writes */
	_Atomic uint32_t key; /* the L_Key, 0: free */
	_Atomic uint64_t pd;  /* VB_PD_HOME() of it made it; unique on the host */
	_Atomic uint32_t access; /* enum ibv_access_flags */
	_Atomic uint32_t kind;	 /* enum vb_key_kind; where the key is 0, of what had it last */
	_Atomic uint64_t iova;	 /* first address, as the key addresses it */
	_Atomic uint64_t length;
	_Atomic uint64_t addr; /* address of the first byte in the owner's process */
	_Atomic uint16_t told; /* a peer may have mapped the region's memory: it is told when the key goes */
	/* How many variants were given out at this index, the last one and those just before it.
	 * VB_KEY_ANY_VARIANT: perhaps any, since they have come round, or a memory window had it, whose the
	 * program chooses. */
	_Atomic uint16_t variants;
	_Atomic uint32_t qpn;  /* window of type 2: the one QP that it serves; 0: every QP of the PD.  A
				  region: what it was made of (enum vb_mr_source), for tools */
	_Atomic uint64_t tied; /* windows that are bound to the region (see vb_key_tie()); a window: the
				  L_Key of its region */
} __attribute__((aligned(VB_LINE)));

/* How far a table is used: what is above holds nothing, and nobody reads there.  Its owner writes. */
struct vb_key_marks {
	_Atomic uint32_t keys;	 /* entries */
	_Atomic uint32_t slots;	 /* of threads that announce */
	_Atomic uint32_t tagged; /* entries for tagged keys */
	/* The adapter's numbers that tagged keys carry, in the order of their entries; 0: not yet. */
	_Atomic uint16_t numbers[VB_ADAPTER_NUMBERS];
} __attribute__((aligned(VB_LINE)));

/* A protection domain's number is unique on the host, so that domains can be shared between processes: the
 * adapter that made it stands in its upper 12 bits. */
#define VB_PD_HOME(pd) ((uint32_t)((pd) >> 52))

struct vb_peer_mem;

/* What the table asks of the layer that knows of peers. */
struct vb_keys_ops {
	/* Whether a peer has announced that it uses this index; does not wait. */
	bool (*in_use)(void *owner, uint32_t index);
	/* Whether other processes may hold this protection domain. */
	bool (*peers_hold)(void *owner, uint64_t pd);
	/* For sentences: the process, other than this one, in which `rkey` is a live R_Key of a region that
	 * holds [addr, addr+len), or any region if len is 0; 0: none that is known. */
	uint32_t (*whose)(void *owner, uint32_t rkey, uint64_t addr, uint64_t len);
	/* The adapter that has this number, NULL: not in contact.  It may leave at any time. */
	struct vb_peer_mem *(*find)(void *owner, uint32_t number);
	/* The k-th number of this adapter, perhaps by taking one more; 0: there is none. */
	uint32_t (*number)(void *owner, uint32_t k);
	/* Has the peer asked what memory stands behind its regions that are WANTED (mem/peer_mem.h). */
	void (*ask)(void *owner, struct vb_peer_mem *f);
};

/* Indices of one kind of keys. */
struct vb_key_zone {
	uint32_t base;		       /* of its entries */
	uint32_t room;		       /* how many there may be now */
	uint32_t used;		       /* high-water mark: indices given so far */
	uint32_t live;		       /* regions now */
	uint32_t reserve;	       /* indices given back wait for so many others */
	uint32_t free_head, free_tail; /* indices given back, oldest first (entry->addr links them,
					  entry->iova keeps the last L_Key) */
};

struct vb_keys {
	struct vb_key_entry *entries; /* set once; [capacity] */
	struct vb_slots slots;	      /* set once */
	uint32_t capacity;	      /* set once */
	uint32_t quick; /* so many of the entries are found the short way (mem/access.h): capacity, or 0 where
			   the process is checked, which is told of each access; set once */
	uint32_t home;	/* upper half of the numbers of domains made here; set once */
	uint32_t local_bit; /* what L_Keys have as programs see them: 0, or VB_KEY_REMOTE; set once */
	uint32_t offset;    /* of untagged keys, up to VB_KEY_OFFSET_MAX; set once */
	uint32_t variant;   /* that an index begins with, by chance too; set once */
	const struct vb_keys_ops *ops; /* NULL: no peers (tests); set once */
	void *owner;		       /* ops' */
	struct vb_key_marks *marks;    /* set once */
	struct vb_key_rounds rounds;
	struct vb_lock lock; /* guards what follows */
	struct vb_key_zone plain, tagged;
};

/* The entry that a key names in a table with these marks and this offset; 0: none.  It may be above what is
 * used, but never outside the array, whatever the offset. */
static inline uint32_t vb_key_index(const struct vb_key_marks *m, uint32_t offset, uint32_t key)
{
	if (!(key & VB_KEY_TAGGED)) {
		uint32_t index = VB_KEY_PLACE(key) - offset;

		return index < VB_KEY_PLAIN ? index : 0;
	}
	for (uint32_t k = 0; k < VB_ADAPTER_NUMBERS; k++) {
		uint32_t number = atomic_load_explicit(&m->numbers[k], memory_order_acquire);

		if (number == VB_KEY_NUMBER(key))
			return VB_KEY_PLAIN + k * VB_TAGGED_KEYS + VB_KEY_PLACE(key) % VB_TAGGED_KEYS;
		if (!number)
			break;
	}
	return 0;
}

static inline uint32_t vb_keys_index(const struct vb_keys *t, uint32_t key)
{
	return vb_key_index(t->marks, t->offset, key);
}

/* Whether something was ever there: what is above a peer's mark is not looked at, since the look alone would
 * make its sparse file grow. */
static inline bool vb_key_used(const struct vb_key_marks *m, uint32_t index)
{
	return index < VB_KEY_PLAIN
		   ? index < atomic_load_explicit(&m->keys, memory_order_acquire)
		   : index - VB_KEY_PLAIN < atomic_load_explicit(&m->tagged, memory_order_acquire) &&
			 index < VB_KEY_ENTRIES;
}

/* The next one behind index (0: the first), of those; 0: there is none. */
static inline uint32_t vb_key_next(const struct vb_key_marks *m, uint32_t index)
{
	if (vb_key_used(m, index + 1))
		return index + 1;
	return index < VB_KEY_PLAIN && vb_key_used(m, VB_KEY_PLAIN) ? VB_KEY_PLAIN : 0;
}

/* Whether a key, used for a domain, stands in another adapter's table. */
static inline bool vb_key_is_peers(const struct vb_keys *t, uint32_t key, uint64_t pd)
{
	return (key & VB_KEY_TAGGED) ? !vb_keys_index(t, key) : (uint32_t)(pd >> 32) != t->home;
}

/* entries, slots and marks must be zero, and stay the caller's.  capacity counts untagged keys; where there
 * are to be others too (ops->number) the array has VB_KEY_ENTRIES. */
void vb_keys_init(struct vb_keys *t, struct vb_key_entry *entries, uint32_t capacity,
		  struct vb_key_slot *slots, struct vb_key_marks *marks);

/* What a key is to mean. */
struct vb_key_spec {
	uint64_t pd;
	uint32_t access; /* enum ibv_access_flags */
	enum vb_key_kind kind;
	uint64_t iova, addr, length; /* as in the entry */
	uint32_t qpn;
	uint64_t tied;
};

/* Takes an index and publishes the region; returns its L_Key (which programs see as vb_key_local(); the R_Key
 * is that | VB_KEY_REMOTE), 0: the table is full. */
uint32_t vb_key_publish(struct vb_keys *t, const struct vb_key_spec *s);

/* vb_key_publish() in two steps, for what is published more than once in its life.  vb_key_take(): an index
 * that leads nowhere yet, as an L_Key with a fresh variant, for use in this domain; 0: the table is full.
 * vb_key_set(): publishes at it; lkey may have another variant each time. */
uint32_t vb_key_take(struct vb_keys *t, uint64_t pd);
void vb_key_set(struct vb_keys *t, uint32_t lkey, const struct vb_key_spec *s);

/* Exchanges what a published key means, at one instant for all who look: an access that began before goes by
 * the old meaning, any other by the new one.  Returns once no thread of this process uses the old meaning;
 * then the caller waits for peers (vb_direct_key_retracted).  By one thread at a time for one key. */
void vb_key_change(struct vb_keys *t, uint32_t lkey, const struct vb_key_spec *s);

/* Taking a key back, in steps.  vb_key_hide(): nobody finds the key any more; returns the round in which that
 * was.  Then nobody may be using it: vb_key_settled() looks, at threads of this process and at peers (a
 * window's round does not matter); vb_key_wait() waits for threads of this
 * process (a wait of more than a second is logged), after which the caller waits for peers
 * (vb_peer_mem_wait); vb_key_retract() hides and waits.  vb_key_clear(): the index stays taken, for something
 * of that kind, and leads nowhere.  vb_key_give(): clears it, and the index may be given out again, with
 * another variant. */
uint32_t vb_key_hide(struct vb_keys *t, uint32_t lkey);
bool vb_key_settled(struct vb_keys *t, uint32_t lkey, uint32_t round);
void vb_key_wait(struct vb_keys *t, uint32_t lkey);
void vb_key_retract(struct vb_keys *t, uint32_t lkey);
void vb_key_clear(struct vb_keys *t, uint32_t lkey, enum vb_key_kind kind);
void vb_key_give(struct vb_keys *t, uint32_t lkey);

/* Windows hold their region.  vb_key_tie(): one more; false: the key is not published, or is going.
 * vb_key_untie(): one less.  vb_key_close(): the region is going, no window can be bound to it from now on;
 * false: some are (the region stays open), or it is closed already.  vb_key_open(): it does not go after all.
 * vb_key_tied(): how many. */
bool vb_key_tie(struct vb_keys *t, uint32_t lkey);
void vb_key_untie(struct vb_keys *t, uint32_t lkey);
bool vb_key_close(struct vb_keys *t, uint32_t lkey);
void vb_key_open(struct vb_keys *t, uint32_t lkey);
uint32_t vb_key_tied(struct vb_keys *t, uint32_t lkey);

/* What a published key means at the moment; false: it is not published. */
bool vb_key_look(struct vb_keys *t, uint32_t lkey, struct vb_key_spec *spec);
/* The sequence number of a key's entry, which another meaning, or another region, changes. */
uint32_t vb_key_seq(struct vb_keys *t, uint32_t lkey);
/* What stands at an index means at the moment, and its key, as an L_Key, or an R_Key if `remote`; false:
 * nothing is published there. */
bool vb_key_at(const struct vb_keys *t, uint32_t index, bool remote, uint32_t *key, struct vb_key_spec *spec);
/* What an entry of any process's table means at the moment, and its L_Key; false: nothing is published there.
 */
bool vb_key_read(const struct vb_key_entry *e, uint32_t *lkey, struct vb_key_spec *spec);
/* What an entry said at one moment; odd if it was being changed (then the rest may be mixed). */
struct vb_key_shot {
	struct vb_key_spec spec;
	uint32_t key, last; /* the L_Key, 0: free; the one that was given out last */
	uint32_t variants;
	bool odd;
};
void vb_key_shoot(const struct vb_key_entry *e, struct vb_key_shot *s);

/* Notes that the region's memory is mapped by a peer, and asks: true once. */
void vb_key_tell(struct vb_keys *t, uint32_t lkey);
bool vb_key_told(struct vb_keys *t, uint32_t lkey);

/* An L_Key as programs see it, and back.  The functions of this table take either. */
static inline uint32_t vb_key_local(const struct vb_keys *t, uint32_t lkey)
{
	return lkey | t->local_bit;
}

static inline uint32_t vb_key_bare(const struct vb_keys *t, uint32_t lkey)
{
	return lkey & ~t->local_bit;
}

#endif
