/* Relaxed regions: pools of key table entries that are used again and again, so that making and ending a
 * region costs neither an allocation nor a wait.
 *
 * A pool serves one value of the access flags and regions of up to so many pages; pools come in pairs, short
 * regions and long ones, when the first region with these flags is made.  Deregistration hides the key, so
 * that no new access finds it, and waits for nobody: who is in the middle of a copy finishes that chunk.  The
 * entry comes back under another key only when nobody can be using it any more (vb_key_settled()), so a
 * lingering access never reaches the memory of a later region.
 *
 *     LIVE ──dereg──> USED ──settled, swept──> CLEAN ──> LIVE   with a key of another index
 *              │       └──────settled────────────────────> LIVE   with another variant
 *              └ after VB_RELAXED_REMAPS uses: on the list of those that are swept together
 *
 * Sweeping settles what it can and leaves the rest; a flush waits.  What is left to sweep is swept 50 ms
 * later by whoever makes progress; where nothing is left nothing ticks. */
#ifndef VB_OBJ_RELAXED_H
#define VB_OBJ_RELAXED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/lock.h"
#include "mem/keys.h"
#include "obj/pd.h"

#define VB_RELAXED_SHORT      3u /* pages of a region of the first pool of a pair: 8 KiB and one */
#define VB_RELAXED_LONG	      257u
#define VB_RELAXED_SHORTS     (32u << 10) /* regions of a pool */
#define VB_RELAXED_LONGS      (4u << 10)
#define VB_RELAXED_REMAPS     32u  /* uses of an entry before it has to be swept */
#define VB_RELAXED_WATERMARK  512u /* so many of these are swept at once */
#define VB_RELAXED_IDLE_FLUSH (50 * VB_MSEC)
#define VB_RELAXED_TAGGED     0x80000000u /* for protection domains that another process made */

struct vb_relaxed_pool;

enum vb_relaxed_state {
	VB_RELAXED_NEW, /* never used: no key yet */
	VB_RELAXED_LIVE,
	VB_RELAXED_USED, /* deregistered: the key leads nowhere, but somebody may still be in a copy */
	VB_RELAXED_CLEAN,
};

struct vb_relaxed_mr {
	struct vb_mr mr; /* first */
	struct vb_relaxed_pool *pool;
	/* Guarded by pool->lock. */
	struct vb_list idle; /* in pool->idle or pool->worn, unless LIVE or NEW */
	uint32_t lkey;	     /* 0: NEW or CLEAN */
	uint32_t round;	     /* USED: when its key was hidden */
	uint8_t state;	     /* enum vb_relaxed_state */
	uint8_t remaps;	     /* uses since it was clean */
};

struct vb_relaxed_pool {
	struct vb_relaxed_pool *next; /* set once */
	uint32_t access;	      /* of its regions, exactly, and VB_RELAXED_TAGGED; set once */
	uint32_t pages, size;	      /* set once */
	struct vb_relaxed_mr *mr;     /* [size]; set once */
	struct vb_lock lock;	      /* guards all that follows */
	struct vb_list idle, worn;    /* oldest first */
	uint32_t idles, worns;	      /* how many are in these */
	uint32_t fresh;		      /* below it nothing is NEW */
	uint32_t used;		      /* USED in either list */
	uint32_t cursor;	      /* where the next sweep goes on */
};

/* What the pools ask of the layer that knows of peers. */
struct vb_relaxed_ops {
	/* The key is settled: peers that keep something of its region may let go. */
	void (*gone)(void *owner, uint32_t lkey);
	/* Waits until no thread of this process and no peer uses the hidden key. */
	void (*wait)(void *owner, uint32_t lkey);
	/* `due` has become earlier. */
	void (*nudge)(void *owner);
};

/* All pools of an adapter. */
struct vb_relaxed {
	struct vb_keys *keys; /* set once, as the next two */
	const struct vb_relaxed_ops *ops;
	void *owner;
	_Atomic(struct vb_relaxed_pool *) pools; /* never taken out before the end */
	struct vb_lock lock;			 /* guards changes of pools */
	_Atomic uint64_t due;			 /* when to sweep; 0: nothing is left to */
};

void vb_relaxed_init(struct vb_relaxed *r, struct vb_keys *keys, const struct vb_relaxed_ops *ops,
		     void *owner);
void vb_relaxed_fini(struct vb_relaxed *r);

/* An entry for a region of that many pages, LIVE, in *out; its key leads nowhere yet: vb_key_set() at
 * (*out)->lkey publishes.  0, EINVAL: no pool has regions so long, EAGAIN: all that there are are in use,
 * ENOMEM. */
int vb_relaxed_take(struct vb_relaxed *r, uint32_t access, uint64_t pages, struct vb_relaxed_mr **out);
/* Gives an entry back whose key was never published. */
void vb_relaxed_untake(struct vb_relaxed *r, struct vb_relaxed_mr *m);
/* Deregisters: false, it is not LIVE.  No access begins under its key any more. */
bool vb_relaxed_drop(struct vb_relaxed *r, struct vb_relaxed_mr *m);
/* Waits until nobody uses any key that was deregistered before the call. */
void vb_relaxed_flush(struct vb_relaxed *r);
/* The idle flush, if it is due; returns when next (VB_NEVER: not). */
uint64_t vb_relaxed_tick(struct vb_relaxed *r, uint64_t now);
/* Regions that are LIVE now, for a refusal's sentence. */
uint32_t vb_relaxed_live(struct vb_relaxed *r);

#endif
