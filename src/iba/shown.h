/* What an adapter shows of each of its QPs to the other adapters of the host: one cache line in its segment.
 * The owner alone writes. */
#ifndef VB_IBA_SHOWN_H
#define VB_IBA_SHOWN_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/lock.h"

/* The permission for direct placement is `may`.  It is the last field that is stored when the QP gives it and
 * the first when the QP takes it back (seq_cst); then the owner waits for announced users (mem/peer_mem.h)
 * before it changes what else stands in the second half.  So whoever announces itself and then finds `may`
 * set can rely on that half until its announcement ends. */
struct vb_shown_qp {
	_Atomic uint32_t state;	   /* 0: no such QP, else 1 + enum ibv_qp_state */
	_Atomic uint32_t received; /* VB_SHOWN_RECEIVED | next PSN expected; 0: nothing yet.  Stored before an
				      ACK for it leaves: a sender that waits for nothing finds its own next
				      PSN here, or the two ends do not agree, and the wire is to find that
				      out.  It outlives the process for as long as the peer looks: a sender
				      whose ACK died with the receiver learns that it was owed one */
	/* What the peer may do by itself, without this process: IBV_ACCESS_REMOTE_*, and in the bits above
	 * them a number, the leave, under which the QP lends what it sends; 0: it does not lend.  It is
	 * another one each time that leave is given anew. */
	_Atomic uint32_t may;
	_Atomic uint32_t dest_qpn; /* the QP at the other end */
	_Atomic uint64_t pd;	   /* protection domain that R_Keys must belong to */
	_Atomic uint64_t peer;	   /* incarnation of the adapter at the other end */
	_Atomic uint32_t
	    path_mtu; /* enum ibv_mtu: where it is not the peer's, the wire finds out what fits */
	/* VB_SHOWN_RECEIVED | PSN of the last READ or atomic that came as a duplicate of none; 0: none did.
	 * It will not be answered, though its PSN has been received. */
	_Atomic uint32_t stray;
	uint32_t leaves; /* the last one that was given; the owner's own */
	/* Of a target of XRC: VB_SHOWN_RECEIVED | the PSN up to which it knows of packets that it has not
	 * received, since another process is to take them (transport/forward.h); 0: there are none. */
	_Atomic uint32_t known;
	_Atomic uint16_t by_cm; /* 1: rdma_cm connects it, and remedies name its parameters */
	_Atomic uint16_t waits; /* 1: it has something to send, and waits for the QP at the other end to be
				   connected: that one's process rings then */
	_Atomic uint32_t type;	/* enum ibv_qp_type; 0: not known */
	_Atomic uint32_t reads; /* READs and atomics that it answers at a time: struct vb_resp.res_size */
	_Atomic uint32_t srq;	/* number of the SRQ that it receives from; 0: it has none */
} __attribute__((aligned(VB_LINE)));
/* What an adapter has dropped in silence (vb_drop()), by enum vb_reason, for tools. */
enum { VB_DROPS = 64 }; /* VB_REASONS at most */
struct vb_drops {
	_Atomic uint64_t count[VB_DROPS];
};

/* A multicast group to which queue pairs of an adapter are attached, as peers see it; all zero: none.  Who
 * reads one that changes may see halves of two: the owner tells its peers afterwards that they are to look
 * again. */
struct vb_shown_group {
	_Atomic uint64_t half[2]; /* of the group's GID, as it stands in memory */
};

#define VB_SHOWN_RECEIVED 0x80000000u
#define VB_SHOWN_LEAVE	  8 /* first bit of the leave */

#endif
