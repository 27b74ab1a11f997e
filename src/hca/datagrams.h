/* The destinations of datagram queue pairs (UD): from the number in a request to a far end, and back to what
 * waits there.  What paths are to connections (hca/path.h, hca/peers.h); everything under the queue
 * pair's lock. */
#ifndef VB_HCA_DATAGRAMS_H
#define VB_HCA_DATAGRAMS_H

#include "obj/dests.h"
#include "obj/qp.h"

struct vb_adapter;

/* Sends what was posted; what has to wait does so at its destination, and contact is made. */
void vb_datagrams_send(struct vb_qp *qp);
/* The destination of that number, with a way out if there can be one now. */
struct vb_dest *vb_datagrams_lead(struct vb_qp *qp, uint32_t number);
/* The timer's look at what waits; returns when to look again. */
uint64_t vb_datagrams_look(struct vb_qp *qp, uint64_t now);
/* The far end is UP, or contact with it has failed for now. */
void vb_datagrams_far(struct vb_qp *qp, struct vb_far *far);
/* The far end is gone, for that reason: what waits for it is dropped. */
void vb_datagrams_lose(struct vb_qp *qp, struct vb_far *far, const struct vb_reach_facts *why);
/* The queue pair is in RESET or ERR, or is being destroyed: lets go of all destinations. */
void vb_datagrams_close(struct vb_qp *qp);
/* Without locks, before the queue pair is destroyed: waits until all that was posted has left, or was dropped
 * after its time, since what was sent arrives even if its queue pair goes right afterwards. */
void vb_datagrams_drain(struct vb_qp *qp);
/* A message of a type that is not acknowledged came for a number that no queue pair has, or none that takes
 * it from there. */
void vb_datagrams_no_qp(struct vb_adapter *a, const struct vb_pkt *p);

extern const struct vb_back_ops vb_back_ops;

#endif
