/* Letting queue pairs send. */
#ifndef VB_HCA_SEND_H
#define VB_HCA_SEND_H

#include "iba/rxq.h"
#include "obj/qp.h"

/* After anything changed that may let qp send (post, modify, input): makes contact if needed, sends, and
 * leaves qp on the lists from which progress resumes it.  Under qp->lock. */
void vb_hca_send(struct vb_qp *qp);
/* What is left after contact was lost: nothing is placed directly.  Under qp->lock. */
void vb_hca_send_on(struct vb_qp *qp);
/* Lets every path that owes something on the queue send, until its wire is full.  Under r->rx. */
void vb_hca_flush(struct vb_rxq *r);
/* Whether the engine looks after what a poller leaves owed. */
bool vb_hca_watched(struct vb_adapter *a);

#endif
