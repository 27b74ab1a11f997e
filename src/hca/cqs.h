/* What completion queues need of the device beyond a queue: the engine's timer for events that are held back,
 * all queue pairs when one of their queues has overrun, and since when completions lie there, for tools. */
#ifndef VB_HCA_CQS_H
#define VB_HCA_CQS_H

#include "hca/hca.h"
#include "obj/cq.h"

extern const struct vb_cq_ops vb_cqs_ops; /* for a new CQ of a device with an adapter */

/* A CQ of this device is new.  Pairs with vb_cqs_forget(). */
void vb_cqs_enter(struct vb_hca *h, struct vb_cq *cq);
/* vb_cq_moderate() of a CQ of this device; the engine sees to the period from then on.  Without locks. */
void vb_cqs_moderate(struct vb_hca *h, struct vb_cq *cq, uint32_t count, uint64_t period);
/* The CQ is being destroyed: afterwards nobody here knows it.  Without locks. */
void vb_cqs_forget(struct vb_hca *h, struct vb_cq *cq);

/* Does what has become due; returns when there is more to do.  Without locks. */
uint64_t vb_cqs_look(struct vb_hca *h, uint64_t now);

#endif
