/* A target's messages for SRQs of other processes (obj/forward.h).  Everything under the target's lock. */
#ifndef VB_TRANSPORT_FORWARD_H
#define VB_TRANSPORT_FORWARD_H

#include "iba/pkt.h"
#include "obj/forward.h"
#include "obj/qp.h"

/* A request came, of a target that may forward.  false: it is one for this process. */
bool vb_forward_request(struct vb_qp *target, const struct vb_pkt *p);
/* A deputy answers. */
void vb_forward_answer(struct vb_qp *target, const struct vb_pkt *p);
/* Brings the bytes of packet k of a READ's answer, whose region another process has.  1: they are at *bytes;
 * 0: they will come, and output() is to try again; -1: that process is gone. */
int vb_forward_fetch(struct vb_qp *target, const struct vb_resource *res, uint32_t k, const uint8_t **bytes);
/* Whether something is held back, and nobody tells when that is over which it waits for: output() looks. */
bool vb_forward_waits(const struct vb_qp *target);
/* If what was held back may come now, its sender is told. */
void vb_forward_resume(struct vb_qp *target);

#endif
