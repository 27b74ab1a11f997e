/* A device at work: where wires, protocol and objects meet. */
#ifndef VB_HCA_HCA_H
#define VB_HCA_HCA_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/set.h"
#include "base/slab.h"
#include "host/adapter.h"
#include "host/addresses.h"
#include "host/netif.h"
#include "hca/mcast.h"
#include "iba/rxq.h"
#include "mem/keys.h"
#include "obj/context.h"
#include "obj/mw.h"
#include "obj/pds.h"
#include "obj/qp.h"
#include "obj/relaxed.h"
#include "obj/srqs.h"

/* Messages between processes over control sockets, by subject. */
enum vb_subject {
	VB_SUBJECT_DIRECT, /* the memory of a region: hca/direct.c */
	VB_SUBJECT_DM,	   /* device memory that is handed over: verbs/import_dm.c */
	VB_SUBJECT_XRC,	   /* messages for SRQs of another process: hca/forward.c */
	VB_SUBJECT_TARGET, /* targets of XRC that another process has open: verbs/peer_target.c */
	VB_SUBJECTS
};
typedef void vb_hear_fn(struct vb_peer *peer, const void *msg, size_t len, int fd);

struct vb_gsi;
struct vb_hosts;
struct vb_shown_gids;

/* A device of this process: one for each adapter (vb_adapter_user). */
struct vb_hca {
	struct vb_adapter *adapter;
	uint32_t device; /* its index among the process's; set once */
	/* The port (hca/port.h); written by the opener, then under the adapter's control lock. */
	_Atomic(const struct vb_gids *) gids;  /* the GIDs that it shows now */
	_Atomic(struct vb_shown_gids *) shown; /* all GIDs that it has shown */
	_Atomic bool port_down;
	uint8_t away;	/* enum vb_away: why there is no way to other hosts, if there is none; set once */
	bool port_wire; /* vb_port.wire; set once */
	_Atomic bool
	    said_away; /* that a connection leads to an address of another host (verbs/qp_modify.c) */
	_Atomic uint32_t port_mtu; /* enum ibv_mtu */
	uint32_t port_ifindex;	   /* of its interface */
	uint64_t port_owned;	   /* vb_port.owned */
	struct vb_addresses addresses;
	vb_hear_fn *hear[VB_SUBJECTS];	  /* set before the adapter runs */
	const struct vb_hca_upper *upper; /* NULL: none (tests).  Set before the adapter runs */
	/* Receive queues, by their index.  NULL: its peer never was UP. */
	_Atomic(struct vb_rxq *) rxqs[VB_MAX_RINGS];
	_Atomic uint32_t nrxqs; /* indices in use are below; written under the adapter's control lock, or
				   before it runs */
	struct vb_set warm;	/* those that a poll looks at; see hca/warm.h */
	_Atomic uint32_t looks; /* at warm queues since the last vb_hca_cool(), approximately */
	struct vb_keys keys;
	struct vb_mws mws;
	struct vb_srqs srqs;	    /* those of XRC */
	struct vb_hca_mcast mcast;  /* groups, and their senders (hca/mcast.h) */
	struct vb_lock timer_lock;  /* guards timed and every QP's on_timer; taken before QP locks, by trylock
				       from pollers */
	struct vb_list timed;	    /* QPs whose timers may run */
	_Atomic uint32_t rnr_waits; /* QPs waiting out an RNR NAK: pollers look at the clock while > 0 */
	_Atomic uint32_t slow_receivers; /* those of them that only wait for a thread without a CPU */
	_Atomic uint64_t next_look; /* when pollers look at the timers again; 0: something new, look now */
	_Atomic uint32_t yielding;  /* threads that have offered their CPU and do not have it back yet */
	/* The thread that last offered its CPU while all packets were for other threads, as an address of its
	 * own. */
	_Atomic(const void *) for_others;
	_Atomic uint32_t timer_polls;  /* what had been polled when timers were last looked at */
	struct vb_lock left_lock;      /* trylock; held while left packets are checked (hca/left.h) */
	struct vb_set left;	       /* peers, by index, for whom a packet was left */
	struct vb_lock moderated_lock; /* guards moderated and cqs; taken before a CQ's lock */
	struct vb_list cqs;	       /* all CQs of the device (hca/cqs.h) */
	uint32_t ncqs;
	struct vb_list moderated;     /* CQs whose events may be held back (hca/cqs.h) */
	_Atomic bool moderates;	      /* there has been one */
	_Atomic bool overran;	      /* a CQ did, and the queue pairs that complete to it are to fail */
	struct vb_lock contexts_lock; /* guards contexts; taken before a context's lock */
	struct vb_list contexts;
	uint32_t sharers;	   /* contexts on it; guarded by verbs/context.c */
	struct vb_context inner;   /* of the deputies (hca/forward.h), which belong to no program */
	bool closing;		   /* no more deputies are made; guarded by inner.lock */
	struct vb_pds pds;	   /* protection domains */
	_Atomic uint32_t qps, mrs; /* QPs and regions of all contexts */
	struct vb_slab mr_slab;	   /* the regions */
	_Atomic bool gid_asked;	   /* see vb_gid_missed() */
	_Atomic bool said_no_qp;   /* a datagram for an unknown queue pair was logged */
	struct vb_relaxed relaxed; /* pools of relaxed regions */
	struct vb_lock dm_lock;	   /* guards dms and dm_handle */
	struct vb_list dms;	   /* device memory of all contexts */
	uint32_t dm_handle;	   /* last one given */
	struct vb_lock ask_lock;   /* guards asked */
	struct vb_list asked;	   /* threads that wait for an answer (hca/ask.h) */
	_Atomic uint32_t tickets;  /* issued so far: each question of this process has its own */
	struct vb_lock say_lock;   /* guards unsaid */
	struct vb_list unsaid;	   /* messages that peers get later (hca/say.h) */
	struct vb_lock far_lock;   /* guards far; taken before a context's events */
	struct vb_list far;	   /* targets of other processes that are open here (verbs/peer_target.c) */
	/* Targets here that other processes have open (verbs/openings.c); taken before contexts_lock, after
	 * the adapter's control. */
	pthread_mutex_t
	    openings_lock; /* guards openings; whoever ends a target for having it open holds it */
	struct vb_list openings;
	_Atomic bool opening_events;   /* inner.async has events that are still to be sent */
	struct vb_hosts *hosts;	       /* NULL: no wire leads to other hosts.  Set before the adapter runs */
	_Atomic(struct vb_gsi *) gsi;  /* QP1 (hca/gsi.h); NULL: not open */
	_Atomic uint32_t strange_mads; /* MADs of strangers that were discarded */
	pthread_mutex_t gsi_busy;      /* held while its user is called; without other locks */
	_Atomic uint64_t dm_used;      /* bytes of device memory that are allocated */
	_Atomic(struct vb_peer_mem *)
	    peer_mems[VB_ADAPTERS]; /* the process that has, or had, a number; peer_up() writes */
};

static inline struct vb_hca *vb_hca(struct vb_adapter *a)
{
	return vb_adapter_user(a);
}

static inline struct vb_adapter *vb_qp_adapter(const struct vb_qp *qp)
{
	return qp->ctx->adapter;
}

static inline struct vb_hca *vb_qp_hca(const struct vb_qp *qp)
{
	return vb_hca(qp->ctx->adapter);
}

/* Functions of the layer above, whose contexts use the device. */
struct vb_hca_upper {
	/* Fills in its own parts (mr_slab, relaxed, hear[] of its subjects); the engine does not run yet. */
	void (*prepare)(struct vb_hca *h);
	/* A peer is gone, as for vb_adapter_ops.peer_down, and no more packets of it are processed. */
	void (*peer_down)(struct vb_peer *peer, enum vb_peer_end how);
	/* Sends pending messages.  Returns when to be called again.  The engine calls it. */
	uint64_t (*timers)(struct vb_hca *h, uint64_t now);
};

/* Opens the adapter of the process's device of that index: 0 or errno, with the step that failed in *step
 * (may be NULL). */
int vb_hca_open(struct vb_hca **out, uint32_t device, enum vb_open_step *step,
		const struct vb_hca_upper *upper);
/* No QP may be left. */
void vb_hca_close(struct vb_hca *h);

#endif
