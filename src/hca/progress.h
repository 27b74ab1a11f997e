/* Progress: whoever posts, polls or waits makes it, else the engine. */
#ifndef VB_HCA_PROGRESS_H
#define VB_HCA_PROGRESS_H

#include "hca/hca.h"

extern const struct vb_adapter_ops vb_hca_ops;

/* For ibv_poll_cq on an empty CQ: takes packets in; sends owed ACKs when there was nothing.  Without locks.
 */
void vb_hca_poll(struct vb_adapter *a);
/* The same where there is nothing at all to do: such a poll counts.  false: vb_hca_poll() is to be called. */
bool vb_hca_polled_in_vain(struct vb_adapter *a);

/* Destruction: removes qp from every list; after it, and vb_qpn_give() and vb_hca_quiesce(), no other thread
 * knows it.  Without qp->lock. */
void vb_hca_forget(struct vb_qp *qp);
/* Whoever was in the middle of a packet is through with it afterwards.  Without locks. */
void vb_hca_quiesce(struct vb_hca *h);

#endif
