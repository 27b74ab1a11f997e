/* XRC on the engine of reliable connections: an initiator has no responder, a target no requester, and which
 * SRQ a message is for its packets say. */
#ifndef VB_TRANSPORT_XRC_H
#define VB_TRANSPORT_XRC_H

#include "iba/pkt.h"
#include "obj/qp.h"

/* vb_transport.input of the two types. */
void vb_xrc_initiator_input(struct vb_qp *qp, const struct vb_pkt *p);
void vb_xrc_target_input(struct vb_qp *qp, const struct vb_pkt *p);

#endif
