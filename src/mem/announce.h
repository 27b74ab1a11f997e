/* Announcements: which thread is using which key, said where whoever takes a key back can read it.
 *
 * A thread that is about to touch memory behind a key first announces that in its own slot (seq_cst), then
 * checks the key, touches at most one chunk, and takes the announcement back.  Whoever takes the key back
 * makes it invisible first and then waits for announcements that name it, or looks from time to time.  So
 * either the user sees that the key is gone, or the owner sees the user.
 *
 * A slot has three words, since a thread may have three kinds of use in hand at once: a key of its own
 * adapter; the memory of another adapter that a key led to; a direct placement into another adapter.  The
 * slots stand in the adapter's segment, so that an owner reads those of its peers too.  A thread's slot has
 * the same number in every table of its process, so a table may go away before the thread does. */
#ifndef VB_MEM_ANNOUNCE_H
#define VB_MEM_ANNOUNCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"

#define VB_MEM_SLOTS 64 /* threads that announce without a lock; more share the last slot */

struct vb_key_slot {
	_Atomic uint32_t index; /* the entry in use, 0: none, VB_KEY_ANY: some.  Its thread writes; retractors
				   read */
	struct vb_lock shared;	/* last slot only: taken by threads beyond the table */
	_Atomic uint64_t
	    placing; /* a word, of what a direct placement uses; 0: nothing.  Its thread writes */
	/* Raised before each announcement: who waits for one need not wait for those that follow it. */
	_Atomic uint32_t turn, placing_turn;
	_Atomic uint64_t via; /* a word, of the memory of another adapter that a key led to; 0: none */
	_Atomic uint32_t via_turn;
} __attribute__((aligned(VB_LINE)));
#define VB_KEY_ANY UINT32_MAX

/* The slots of one adapter, as its own process has them. */
struct vb_slots {
	struct vb_key_slot *at; /* set once; [VB_MEM_SLOTS] */
	_Atomic uint32_t *used; /* set once; so many may hold something: whoever waits looks no further */
};

/* Who announces all keys at once (VB_KEY_ANY) may be using any that was hidden since.  Threads that place
 * without a pause do so nearly always: whoever looks now and then would find a key unused by chance only.
 * Hence rounds: one is over when all such announcements that stood at its beginning have ended. */
struct vb_key_rounds {
	_Atomic uint32_t now;	      /* written under the lock, read without it */
	struct vb_lock lock;	      /* guards what follows */
	uint64_t waits;		      /* slots whose announcement has not ended yet */
	uint32_t turns[VB_MEM_SLOTS]; /* of those, when the round began */
};

/* The patience of all who wait for announced users: spins, yields, then naps.  Begins zeroed; true: a second
 * has gone by (once). */
struct vb_patience {
	uint64_t began;
	uint32_t tries;
	bool told;
};
bool vb_patience_nap(struct vb_patience *p);

/* Using. */

/* This thread's slot number in every table, + 1; 0: none yet.  For the functions below. */
extern __thread uint8_t vb_slot_mine;
/* Gives this thread a number.  vb_slot_show(): lets those who wait look at the slot, before its first use in
 * this table. */
uint8_t vb_slot_number(void);
void vb_slots_handle_fork(void); /* as vb_log_handle_fork() */
void vb_slot_show(const struct vb_slots *s, uint32_t mine);

static inline uint32_t vb_slot_shown(const struct vb_slots *s)
{
	uint32_t mine = vb_slot_mine;

	if (vb_unlikely(!mine))
		mine = vb_slot_number();
	if (vb_unlikely(mine > atomic_load_explicit(s->used, memory_order_relaxed)))
		vb_slot_show(s, mine);
	return mine;
}

/* This thread's own slot, NULL: it has to share the last one. */
static inline struct vb_key_slot *vb_slot_own(const struct vb_slots *s)
{
	uint32_t mine = vb_slot_shown(s);

	return vb_unlikely(mine == VB_MEM_SLOTS) ? NULL : &s->at[mine - 1];
}

/* This thread's own slot, or the shared one, which then is this thread's until vb_slot_release(). */
static inline struct vb_key_slot *vb_slot_claim(const struct vb_slots *s)
{
	uint32_t mine = vb_slot_shown(s);
	struct vb_key_slot *slot = &s->at[mine - 1];

	if (vb_unlikely(mine == VB_MEM_SLOTS))
		vb_lock_take(&slot->shared); /* given by vb_slot_release() */
	return slot;
}

static inline void vb_slot_release(struct vb_key_slot *slot)
{
	/* Only the shared slot's lock is ever held, and then by us. */
	if (vb_unlikely(atomic_load_explicit(&slot->shared.held, memory_order_relaxed)))
		vb_lock_give(&slot->shared);
}

/* The slot's thread alone writes its turn. */
static inline void vb_slot_next_turn(_Atomic uint32_t *turn)
{
	atomic_store_explicit(turn, atomic_load_explicit(turn, memory_order_relaxed) + 1,
			      memory_order_release);
}

/* Each announcement is followed by the check of what was announced, and ended by its own function, which
 * pairs with those who wait. */
static inline void vb_announce_key(struct vb_key_slot *slot, uint32_t index)
{
	vb_slot_next_turn(&slot->turn);
	atomic_store(&slot->index, index); /* see vb_key_hide() */
}

static inline void vb_announce_key_end(struct vb_key_slot *slot)
{
	atomic_store_explicit(&slot->index, 0, memory_order_release); /* pairs with vb_slots_wait() */
}

static inline void vb_announce_via(struct vb_key_slot *slot, uint64_t word)
{
	vb_slot_next_turn(&slot->via_turn);
	atomic_store(&slot->via, word);
}

static inline void vb_announce_via_end(struct vb_key_slot *slot)
{
	atomic_store_explicit(&slot->via, 0, memory_order_release); /* pairs with vb_announced_wait() */
}

static inline void vb_announce_placing(struct vb_key_slot *slot, uint64_t word)
{
	vb_slot_next_turn(&slot->placing_turn);
	atomic_store(&slot->placing, word);
}

static inline void vb_announce_placing_end(struct vb_key_slot *slot)
{
	atomic_store_explicit(&slot->placing, 0, memory_order_release); /* pairs with vb_announced_wait() */
}

/* What is announced of another adapter, in one word so that one store makes it: the adapter's number, one of
 * its QPs (0: none) and the index of a key there (0: none). */
#define VB_WORD_USED (1ull << 63)
static inline uint64_t vb_announce_word(uint32_t number, uint32_t qpn, uint32_t index)
{
	return VB_WORD_USED | (uint64_t)number << 45 | (uint64_t)qpn << 21 | index;
}

/* The key index that such a word names, if it is one of the adapter `number`, else 0. */
uint32_t vb_announce_word_index(uint64_t word, uint32_t number);

/* Waiting, in one's own slots. */

/* Until no thread of this process announces the entry of that index, which has been made invisible.  A wait
 * of more than a second is logged, with the L_Key. */
void vb_slots_wait(const struct vb_slots *s, uint32_t index, uint32_t lkey);
/* Whether none announces it now, nor has announced all keys at once since `round` (vb_key_rounds.now) was
 * read; does not wait.  ever_any: such an announcement may mean this key. */
bool vb_slots_settled(const struct vb_slots *s, struct vb_key_rounds *r, uint32_t index, uint32_t round,
		      bool ever_any);

/* Waiting, in slots of any adapter, which may be a peer's: data from outside. */

/* Until no announcement there names the key index (0: any) and the QP (0: any) of the adapter `number`.  A
 * wait of more than a second is logged: `what` waits for the process `pid`, whose slots these are. */
void vb_announced_wait(const struct vb_key_slot *slots, const _Atomic uint32_t *used, uint32_t number,
		       uint32_t index, uint32_t qpn, const char *what, uint32_t pid);
/* Until no thread there touches memory of the adapter `number` that a key led to. */
void vb_announced_wait_via(const struct vb_key_slot *slots, const _Atomic uint32_t *used, uint32_t number,
			   const char *what, uint32_t pid);
/* Whether some announcement there names the key index of the adapter `number`; does not wait. */
bool vb_announced(const struct vb_key_slot *slots, const _Atomic uint32_t *used, uint32_t number,
		  uint32_t index);

#endif
