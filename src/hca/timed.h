/* Queue pairs whose timers may run. */
#ifndef VB_HCA_TIMED_H
#define VB_HCA_TIMED_H

#include <stdint.h>

#include "hca/hca.h"

/* Has the QP's timer looked at from now on.  Under qp->lock. */
void vb_hca_keep_time(struct vb_qp *qp);
/* Scans those QPs; what they then have to send goes out with the next look at their queues.  Returns the next
 * deadline, VB_NEVER: none.  *again: when to look at those that another thread had in hand, VB_NEVER: none.
 */
uint64_t vb_hca_scan(struct vb_hca *h, uint64_t now, uint64_t *again);
/* The QP is being destroyed: waits for a scan that has it in hand.  Without qp->lock. */
void vb_hca_untime(struct vb_qp *qp);

#endif
