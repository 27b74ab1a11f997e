/* What a process shows of its rdma_cm identifiers, and of what its connection managers have counted, to tools
 * that look into it (`verbena explain`).  The owner alone writes. */
#ifndef VB_IBA_SHOWN_ID_H
#define VB_IBA_SHOWN_ID_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/lock.h"
#include "iba/reach.h"

enum { VB_SHOWN_IDS = 1024 }; /* those beyond are only counted */

enum vb_shown_flags {
	VB_SHOWN_LIVE = 1,    /* the entry is an id's */
	VB_SHOWN_ENDS = 2,    /* rdma_destroy_id() is at work */
	VB_SHOWN_PASSIVE = 4, /* a request brought it about */
	VB_SHOWN_SYNC = 8,    /* its channel is its own: it is synchronous */
	VB_SHOWN_FAR = 16,    /* the far end is on another host */
	VB_SHOWN_TAKEN = 32,  /* which has said that it has `awaited` (MRA) */
};

struct vb_shown_id {
	uint64_t id;  /* where its struct rdma_cm_id is in that process; 0: the program has none yet */
	uint64_t due; /* when the next attempt is made, or TIMEWAIT ends; VB_NEVER: nothing is due */
	uint8_t src[16], dst[16]; /* as GIDs */
	uint16_t src_port, dst_port;
	uint16_t family; /* of the addresses: AF_INET, AF_INET6, AF_IB; 0: there are none yet */
	uint16_t far;	 /* whether there is a destination */
	uint32_t space;	 /* enum rdma_port_space */
	uint32_t qpn, far_qpn, comm_id, far_comm_id; /* 0: not known */
	uint32_t queued,
	    unacked; /* masks by event: those that wait in the channel; those that the program has */
	uint32_t nqueued;
	uint32_t requests, backlog;    /* of a listener: CONNECT_REQUESTs that wait, and how many may */
	uint16_t awaited;	       /* enum vb_cm_kind that is not answered yet; 0: none */
	uint8_t state;		       /* enum vb_cm_id_state */
	uint8_t cm_state;	       /* enum vb_cm_state of the connection */
	uint8_t type;		       /* enum ibv_qp_type */
	uint8_t device;		       /* index among the process's; VB_SHOWN_NOWHERE: bound to none */
	uint8_t said, most;	       /* how often `awaited` was said, and will be */
	uint8_t flags;		       /* enum vb_shown_flags */
	uint8_t failed_by;	       /* of one that has failed: the event that tells so; 0: none does */
	int16_t failed_status;	       /* and its status */
	struct vb_reach_facts silence; /* why no answer to `awaited` comes, if that is known */
};

enum { VB_SHOWN_NOWHERE = 0xff, VB_SHOWN_ID_WORDS = sizeof(struct vb_shown_id) / sizeof(uint64_t) };

struct vb_shown_id_entry { /* base/told.h */
	_Atomic uint32_t seq;
	uint32_t spare;
	struct vb_shown_id id;
} __attribute__((aligned(VB_LINE)));

/* What a connection manager has counted: enum vb_shown_count. */
enum vb_shown_count {
	VB_SHOWN_MALFORMED,
	VB_SHOWN_UNKNOWN,
	VB_SHOWN_UNEXPECTED,
	VB_SHOWN_DUPLICATES,
	VB_SHOWN_REFUSED,
	VB_SHOWN_RETRIED,
	VB_SHOWN_COUNTS
};

/* In the segment of each device; of the ids in that of one of the process's devices alone. */
struct vb_shown_marks {
	_Atomic uint64_t counts[VB_SHOWN_COUNTS];
	_Atomic uint32_t resting; /* comm IDs in TIMEWAIT */
	_Atomic uint32_t all;	  /* ids, those without an entry included */
	_Atomic uint32_t used;	  /* entries; what is above holds nothing, and nobody reads there */
};
struct vb_shown_ids {
	struct vb_shown_marks *marks;	   /* NULL: there are none */
	struct vb_shown_id_entry *entries; /* VB_SHOWN_IDS */
};

_Static_assert(sizeof(struct vb_shown_id) % sizeof(uint64_t) == 0, "whole words");

#endif
