/* Direct placement: the initiator carries out a request at the head of its send queue by itself. */
#ifndef VB_TRANSPORT_PLACE_H
#define VB_TRANSPORT_PLACE_H

#include "transport/rc_priv.h"

enum vb_placed {
	VB_PLACED,	 /* it, and perhaps some behind it, is complete: look at the queue again */
	VB_PLACED_DATA,	 /* a WRITE with immediate: the data is there, the immediate is to be sent */
	VB_PLACED_LATER, /* more is to do, with the next call; or the requests before it are to be waited for
			  */
	VB_PLACED_NOT,	 /* send it */
};

/* w: the request at q->next, not started; qp->path.mem is set.  *budget: bytes that may be placed, less those
 * that were. */
enum vb_placed vb_place(struct vb_qp *qp, struct vb_swqe *w, uint32_t *budget);

/* Whether w, a WRITE that is to go now and was not begun, goes over the ring and is not placed: in one packet
 * that is there sooner than a system call would place it.  Then it counts as gone. */
bool vb_place_rings(struct vb_qp *qp, const struct vb_swqe *w);

/* The request at q->next, if it is a WRITE in one piece to the region that is granted (mem/grant.h), and
 * nothing else is to be thought of: vb_place() in short.  place: bytes that may be placed.  false: it was not
 * begun, or something is amiss, and vb_place() finds out. */
bool vb_place_at_once(struct vb_qp *qp, uint32_t place);

/* Whether it waits for the requests before it, to be placed then. */
bool vb_place_holds(const struct vb_qp *qp, const struct vb_swqe *w);

#endif
