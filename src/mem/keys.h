/* The key table: what every L_Key and R_Key means, and the only way to memory behind one.
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
 * taken for them.  What is another process's is mem/foreign.c's business.
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
#include "iba/limits.h"
#include "iba/reason.h"

#define VB_KEY_REMOTE 0x40000000u
#define VB_KEY_SHARED 0x80000000u
#define VB_KEY_PLACE(k) \
	(((k) >> 8) & ((1u << VB_KEY_BITS) - 1)) /* index plus offset, or what a tag has there */
#define VB_KEY_VARIANT(k) ((k)&0xffu)
#define VB_KEY_NUMBER(k)  (((k) >> 18) & (VB_ADAPTERS - 1)) /* of a tagged one */

#define VB_MEM_CHUNK (256u << 10) /* longest copy between two checks of a key */
#define VB_MEM_SLOTS 64		  /* threads that announce without a lock; more share the last slot */

/* What stands behind a key. */
enum vb_key_kind {
	VB_KEY_MEMORY,	  /* memory of the owner's process */
	VB_KEY_ON_DEMAND, /* likewise, whatever is mapped there at the moment: never mapped by peers */
	VB_KEY_NULL,	  /* nothing: reads as zeros, and what is written is lost.  No R_Key */
	VB_KEY_WINDOW,	  /* memory window: a part of a region, under an R_Key of its own.  No L_Key */
	VB_KEY_KINDS,
	VB_KEY_CHANGING = 0x80000000u, /* flag around an odd seq: the key stays, what it means is exchanged */
};

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
	/* How many variants were given out at this index, the last one and those just before it.  256:
	 * perhaps any, since they have come round, or a memory window had it, whose the program chooses. */
	_Atomic uint16_t variants;
	_Atomic uint32_t qpn;  /* window of type 2: the one QP that it serves; 0: every QP of the PD.  A
				  region: what it was made of (enum vb_mr_source), for tools */
	_Atomic uint64_t tied; /* windows that are bound to the region (see vb_key_tie()); a window: the
				  L_Key of its region */
} __attribute__((aligned(VB_LINE)));

struct vb_key_slot {
	_Atomic uint32_t index; /* the entry in use, 0: none, VB_KEY_ANY: some.  Its thread writes; retractors
				   read */
	struct vb_lock shared;	/* last slot only: taken by threads beyond the table */
	_Atomic uint64_t far;	/* what is in use of another adapter, 0: nothing (mem/far.h); likewise */
	/* Raised before each announcement: who waits for one need not wait for those that follow it. */
	_Atomic uint32_t turn, far_turn;
	/* The memory of another adapter that a key led to, as in `far`, which may be in use at the same
	 * time; likewise. */
	_Atomic uint64_t via;
	_Atomic uint32_t via_turn;
} __attribute__((aligned(VB_LINE)));
#define VB_KEY_ANY UINT32_MAX

/* How far a table is used: what is above holds nothing, and nobody reads there. */
struct vb_key_marks {
	_Atomic uint32_t keys;	 /* entries; its owner writes */
	_Atomic uint32_t slots;	 /* likewise */
	_Atomic uint32_t tagged; /* entries for tagged keys; likewise */
	/* The adapter's numbers that tagged keys carry, in the order of their entries; 0: not yet. */
	_Atomic uint16_t numbers[VB_ADAPTER_NUMBERS];
} __attribute__((aligned(VB_LINE)));

/* A protection domain's number is unique on the host, so that domains can be shared between processes: the
 * adapter that made it stands in its upper 12 bits. */
#define VB_PD_HOME(pd) ((uint32_t)((pd) >> 52))

struct vb_far;

/* What the table asks of the layer that knows of peers. */
struct vb_keys_ops {
	/* Whether a peer has announced that it uses this index; does not wait. */
	bool (*in_use)(void *owner, uint32_t index);
	/* Whether other processes may hold this protection domain. */
	bool (*held_elsewhere)(void *owner, uint64_t pd);
	/* For sentences: the process, other than this one, in which `rkey` is a live R_Key of a region that
	 * holds [addr, addr+len), or any region if len is 0; 0: none that is known. */
	uint32_t (*stranger)(void *owner, uint32_t rkey, uint64_t addr, uint64_t len);
	/* The adapter that has this number, NULL: not in contact.  It may leave at any time. */
	struct vb_far *(*find)(void *owner, uint32_t number);
	/* The k-th number of this adapter, perhaps by taking one more; 0: there is none. */
	uint32_t (*number)(void *owner, uint32_t k);
	/* Its owner is to be asked what memory stands behind the regions that are WANTED (mem/far.h). */
	void (*ask)(void *owner, struct vb_far *f);
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

/* Who announces all keys at once (VB_KEY_ANY) may be using any that was hidden since.  Threads that place
 * without a pause do so nearly always: whoever looks now and then would find a key unused by chance only.
 * Hence rounds: one is over when all such announcements that stood at its beginning have ended. */
struct vb_key_rounds {
	_Atomic uint32_t now;
	uint64_t waits;		      /* slots whose announcement has not ended yet */
	uint32_t turns[VB_MEM_SLOTS]; /* of those, when the round began */
};

struct vb_keys {
	struct vb_key_entry *entries; /* set once; [capacity] */
	struct vb_key_slot *slots;    /* set once; [VB_MEM_SLOTS] */
	struct vb_key_marks *marks;   /* set once */
	uint32_t capacity;	      /* set once */
	uint32_t home;		      /* upper half of the numbers of domains made here; set once */
	uint32_t local_bit; /* what L_Keys have as programs see them: 0, or VB_KEY_REMOTE; set once */
	uint32_t offset;    /* of untagged keys, up to VB_KEY_OFFSET_MAX; set once */
	uint32_t variant;   /* that an index begins with, by chance too; set once */
	const struct vb_keys_ops *ops; /* NULL: no peers (tests); set once */
	void *owner;		       /* ops' */
	struct vb_lock lock;	       /* guards what follows */
	struct vb_key_zone plain, tagged;
	struct vb_key_rounds rounds; /* `now` is read without it */
};

/* The entry that a key names in a table with these marks and this offset; 0: none.  It may be above what is
 * used, but never outside the array, whatever the offset. */
static inline uint32_t vb_key_index(const struct vb_key_marks *m, uint32_t offset, uint32_t key)
{
	if (!(key & VB_KEY_SHARED)) {
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

/* Whether a key, used for a domain, is one that only mem/foreign.c can resolve. */
static inline bool vb_key_is_elsewhere(const struct vb_keys *t, uint32_t key, uint64_t pd)
{
	return (key & VB_KEY_SHARED) ? !vb_keys_index(t, key) : (uint32_t)(pd >> 32) != t->home;
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

/* The same in two steps, for what is published more than once in its life.  vb_key_take(): an index that
 * leads nowhere yet, as an L_Key with a fresh variant, for use in this domain; 0: the table is full.
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
 * process (a wait of more than a second is logged), after which the caller waits for peers (vb_far_wait);
 * vb_key_retract() hides and waits.  vb_key_clear(): the index stays taken, for something of that kind, and
 * leads nowhere.  vb_key_give(): clears it, and the index may be given out again, with another variant. */
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
/* Its sequence number now, which another meaning, or another region, changes. */
uint32_t vb_key_seq(struct vb_keys *t, uint32_t lkey);
/* Likewise what stands at an index, and its key: as an L_Key, or an R_Key if `remote`. */
bool vb_key_at(const struct vb_keys *t, uint32_t index, bool remote, uint32_t *key, struct vb_key_spec *spec);
/* Likewise for an entry of any process's table, with its L_Key. */
bool vb_key_read(const struct vb_key_entry *e, uint32_t *lkey, struct vb_key_spec *spec);
/* Notes that the region's memory is mapped elsewhere, and asks: true once. */
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
enum vb_use_how {
	VB_USE_HERE, /* at ptr */
	VB_USE_NULL, /* a null region */
	VB_USE_FAR,  /* at ptr in another process, by the kernel's copies */
};
struct vb_mem_use {
	uint8_t *ptr; /* CPU address of the first byte (VB_USE_HERE) */
	enum vb_use_how how;
	struct vb_key_slot *slot; /* private, as is what follows */
	struct vb_far *far;	  /* another adapter's; NULL: this one's */
};

/* Who wants what of a key. */
struct vb_mem_want {
	uint32_t key; /* an R_Key if remote */
	bool remote;
	uint32_t access; /* enum ibv_access_flags bits needed beyond local read (0 for that) */
	uint32_t qpn;	 /* remote: the QP that the request came to */
	uint64_t pd;
	uint64_t addr, len; /* len 0 is never asked (rule 18) */
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

/* This thread's own slot in a table, NULL: it has to share the last one. */
struct vb_key_slot *vb_mem_slot(struct vb_keys *t);
/* For mem/foreign.c: likewise, or the shared one, which then is this thread's until vb_mem_end(). */
struct vb_key_slot *vb_mem_claim(struct vb_keys *t);
/* Likewise: fills in the facts about a key of which nothing is known but the request. */
void vb_key_facts(struct vb_facts *f, enum vb_reason r, const struct vb_mem_want *w);
/* What an entry says against an access, VB_OK: nothing; facts as in vb_mem_begin().  NULL: no entry. */
enum vb_reason vb_key_classify(struct vb_keys *t, struct vb_key_entry *e, const struct vb_mem_want *w,
			       struct vb_facts *f);

/* The wanted key as an L_Key: without the bit that it must have. */
static inline uint32_t vb_key_as_lkey(const struct vb_keys *t, const struct vb_mem_want *w)
{
	return w->key ^ (w->remote ? VB_KEY_REMOTE : t->local_bit);
}

/* What an entry, which an announcement keeps as it is, says of the wanted range: its kind, and its address;
 * all of it checked.  VB_KEY_KINDS: not permitted, or being changed.  w->key: as an L_Key. */
enum vb_key_kind vb_key_resolve(const struct vb_key_entry *e, const struct vb_mem_want *w, uint64_t *at);

/* The same check without an access (and without announcing): for requests that are checked before they start.
 */
enum vb_reason vb_mem_check(struct vb_keys *t, const struct vb_mem_want *w, struct vb_facts *f);

#endif
