/* All queue pairs of an adapter; and one that is to be known to nobody any more. */
#ifndef VB_HCA_ALL_H
#define VB_HCA_ALL_H

#include "hca/hca.h"

/* Each of the adapter's QPs, those of contexts and deputies; with the locks of the list, and not the QP's. */
void vb_hca_each_qp(struct vb_hca *h, void (*look)(struct vb_qp *qp, void *with), void *with);

/* Destruction: removes qp from every list; after it, and vb_qpn_give() and vb_hca_quiesce(), no other thread
 * knows it.  Without qp->lock. */
void vb_hca_forget(struct vb_qp *qp);
/* Waits until every thread that was processing a packet has finished it.  Without locks. */
void vb_hca_quiesce(struct vb_hca *h);

#endif
