/* Progress: whoever posts, polls or waits makes it, else the engine. */
#ifndef VB_HCA_PROGRESS_H
#define VB_HCA_PROGRESS_H

#include "hca/hca.h"

extern const struct vb_adapter_ops vb_hca_ops;

/* The work of a poll: perhaps more than one queue, or something else. */
#define VB_POLL_ALL ((struct vb_rxq *)1)

/* For ibv_poll_cq and ibv_start_poll on an empty CQ, in which it is inlined where the library is linked.
 * NULL: there is nothing at all to do, and that poll has been counted; else vb_hca_poll() is to be called
 * with what it returns, a queue or VB_POLL_ALL. */
struct vb_rxq *vb_hca_poll_where(struct vb_adapter *a);
/* Takes packets in; sends owed ACKs when there was nothing.  where: VB_POLL_ALL, or what vb_hca_poll_where()
 * has just said.  Returns whether any came.  Without locks. */
bool vb_hca_poll(struct vb_adapter *a, struct vb_rxq *where);
/* What came after that: something that the caller polls for, or nothing of that, so that he goes on polling
 * in vain, and whoever the packets were for may have no CPU. */
void vb_hca_polled_well(void);
void vb_hca_polled_for_others(struct vb_adapter *a);

#endif
