/* Memory windows: which there are, what each is bound to, and binding and unbinding them.
 *
 * A window has an index of the key table for its life (kind VB_KEY_WINDOW while it is bound).  Its key's
 * variant changes: a window of type 1 gets another one with each bind, for type 2 the application chooses.
 * Requests remember a window by index and id, never by pointer: it may be gone when their turn comes.
 *
 * Taking a binding back has two steps.  The key is hidden at once; the region stays tied (its deregistration
 * fails) until nobody can still be using the window, which nobody waits for under a lock: whoever wants to go
 * on looks again. */
#ifndef VB_OBJ_MW_H
#define VB_OBJ_MW_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "base/lock.h"
#include "iba/reason.h"
#include "mem/keys.h"
#include "obj/pd.h"

enum vb_mw_state {
	VB_MW_FREE,
	VB_MW_BOUND,
	VB_MW_GOING, /* its key is dead, but somebody may still be in the middle of a copy */
};

struct vb_mw {
	struct ibv_mw ibv;  /* first: what the application holds */
	struct vb_pd *pd;   /* set once */
	uint64_t id;	    /* no other window of the adapter has it, before or after; set once */
	uint32_t index;	    /* of the key table; set once */
	uint32_t base;	    /* its L_Keys without their variant; set once */
	struct vb_mw *next; /* in its bucket; this and the rest are guarded by the table's lock */
	enum vb_mw_state state;
	uint32_t key;	 /* what the key table has for it, or had last */
	uint32_t region; /* BOUND, GOING: L_Key of the region that it is tied to */
	uint32_t qpn;	 /* BOUND, GOING: of type 2, the QP that it was bound on; of type 1, 0 */
};

/* The window's key with another variant, as an L_Key. */
static inline uint32_t vb_mw_key(const struct vb_mw *mw, uint32_t variant)
{
	return mw->base | VB_KEY_VARIANT(variant);
}

enum { VB_MW_BUCKETS = 4096 };

/* The windows of one adapter. */
struct vb_mws {
	struct vb_keys *keys; /* set once */
	uint32_t max;	      /* set once */
	struct vb_lock lock;  /* guards what follows; a leaf but for the key table's, and the checkers' */
	struct vb_mw **buckets;
	uint32_t count;
	uint64_t last_id;
};

/* 0 or ENOMEM; pairs with vb_mws_fini() */
int vb_mws_init(struct vb_mws *t, struct vb_keys *keys, uint32_t max);
void vb_mws_fini(struct vb_mws *t);

/* Enters mw (zeroed, pd set) and gives it its index, id and first key.  false: there are as many as there may
 * be, or the key table is full. */
bool vb_mw_enter(struct vb_mws *t, struct vb_mw *mw);
/* Takes it out: no request finds it any more, its key is dead, and nobody uses it when this returns. */
void vb_mw_leave(struct vb_mws *t, struct vb_mw *mw);

enum vb_mw_step {
	VB_MW_DONE,
	VB_MW_WAITS,   /* somebody may still use the old binding: call again later */
	VB_MW_REFUSED, /* the facts say why */
};

/* What a bind request says.  length 0: unbinds (type 1). */
struct vb_mw_ask {
	uint64_t id;	       /* of the window */
	uint32_t rkey;	       /* its R_Key afterwards */
	uint32_t region;       /* L_Key */
	uint32_t access;       /* as requested */
	uint64_t addr, length; /* as the region's keys address it */
	uint64_t pd;	       /* of the QP that carries it out */
	uint32_t qpn;
};
enum vb_mw_step vb_mw_bind(struct vb_mws *t, const struct vb_mw_ask *a, struct vb_facts *f);

/* Invalidates the window of type 2 that is bound on the QP under rkey.  *id: 0 at the first call, which sets
 * it; kept for those that follow after VB_MW_WAITS. */
enum vb_mw_step vb_mw_invalidate(struct vb_mws *t, uint32_t rkey, uint32_t qpn, uint64_t *id,
				 struct vb_facts *f);
/* The same where nobody can be using the window.  false: the facts say why. */
bool vb_mw_invalidate_at_once(struct vb_mws *t, uint32_t rkey, uint32_t qpn, struct vb_facts *f);

/* Waits, without locks: the QP is gone, and whatever was bound on it is unbound. */
void vb_mw_qp_gone(struct vb_mws *t, uint32_t qpn);
/* What was unbound, but whose request did not live to see it, holds the region no more, if nobody uses it. */
void vb_mw_let_go(struct vb_mws *t, uint32_t region);

#endif
