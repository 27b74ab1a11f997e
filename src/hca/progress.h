/* Progress: where wires, protocol and objects meet.  Whoever posts, polls or waits makes it, else the engine.
 */
#ifndef VB_HCA_PROGRESS_H
#define VB_HCA_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/slab.h"
#include "host/adapter.h"
#include "mem/keys.h"
#include "obj/mw.h"
#include "obj/pds.h"
#include "obj/qp.h"
#include "obj/relaxed.h"

/* What the verbs layer keeps for each adapter (vb_adapter_user). */
struct vb_hca {
	struct vb_adapter *adapter;
	/* The same as vb_adapter_ops.told, for what verbs/ says; set once. */
	void (*told)(struct vb_peer *peer, const void *msg, size_t len, int fd);
	struct vb_keys keys;
	struct vb_mws mws;
	struct vb_lock timer_lock;  /* guards timed and every QP's on_timer; taken before QP locks, by trylock
				       from pollers */
	struct vb_list timed;	    /* QPs whose timers may run */
	_Atomic uint32_t rnr_waits; /* QPs waiting out an RNR NAK: pollers look at the clock while > 0 */
	_Atomic uint64_t next_look; /* earliest deadline at the last scan; 0: something new, scan now */
	_Atomic uint32_t turn;	    /* which of the quiet rings the next poll looks at */
	struct vb_lock contexts_lock; /* guards contexts; taken before a context's lock */
	struct vb_list contexts;
	struct vb_pds pds;	    /* protection domains */
	_Atomic uint32_t qps, mrs;  /* QPs and regions of all contexts */
	struct vb_slab mr_slab;	    /* where the latter stand */
	_Atomic bool gid_asked;	    /* see vb_gid_missed() */
	struct vb_relaxed relaxed;  /* pools of relaxed regions */
	struct vb_lock dm_lock;	    /* guards dms and dm_handle */
	struct vb_list dms;	    /* device memory of all contexts */
	uint32_t dm_handle;	    /* last one given */
	struct vb_lock import_lock; /* guards imports and import_ticket */
	struct vb_list imports;	    /* threads that wait for somebody's device memory */
	uint32_t import_ticket;	    /* last one given */
	_Atomic uint64_t dm_used;   /* bytes of device memory that are allocated */
	_Atomic(struct vb_peer_mem *)
	    peer_mems[VB_ADAPTERS]; /* who has, or had, a number; peer_up() writes */
};

extern const struct vb_adapter_ops vb_progress_ops;

static inline struct vb_hca *vb_hca(struct vb_adapter *a)
{
	return vb_adapter_user(a);
}

/* For ibv_poll_cq on an empty CQ: takes packets in; sends owed ACKs when there was nothing. */
void vb_progress_poll(struct vb_adapter *a);

/* After anything changed that may let qp send (post, modify, input): under qp->lock.  Makes contact if
 * needed, sends, and leaves qp on the lists from which progress resumes it. */
void vb_progress_send(struct vb_qp *qp);

/* modify_qp set or cleared the path (RTR, RESET, ERR): under qp->lock. */
void vb_progress_connect(struct vb_qp *qp);
void vb_progress_disconnect(struct vb_qp *qp);

/* Destruction: removes qp from every list; after it, and vb_qpn_give() and vb_adapter_quiesce(), no other
 * thread knows it.  Without qp->lock. */
void vb_progress_forget(struct vb_qp *qp);

#endif
