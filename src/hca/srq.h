/* The end of an SRQ that packets name. */
#ifndef VB_HCA_SRQ_H
#define VB_HCA_SRQ_H

#include "hca/hca.h"
#include "obj/srq.h"

/* An SRQ of XRC is being destroyed: afterwards no queue pair, and nobody who is in the middle of a packet,
 * knows it.  A message that it was receiving is refused with its next packet.  Without locks. */
void vb_hca_forget_srq(struct vb_hca *h, struct vb_srq *srq);

#endif
