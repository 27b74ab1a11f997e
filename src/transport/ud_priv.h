/* Sending of datagrams from inside: what ud.c and ud_group.c share. */
#ifndef VB_TRANSPORT_UD_PRIV_H
#define VB_TRANSPORT_UD_PRIV_H

#include "base/few.h"
#include "obj/dests.h"
#include "transport/rc_priv.h"

enum vb_ud_sent { VB_UD_SENT, VB_UD_BLOCKED, VB_UD_FAILED };

/* The request fails in its turn. */
void vb_ud_refuse(struct vb_qp *qp, struct vb_swqe *w, enum vb_reason r, struct vb_facts *f);
void vb_ud_refuse_length(struct vb_qp *qp, struct vb_swqe *w, uint32_t fit);
/* To the members of the group that w names; d is where such requests wait. */
enum vb_ud_sent vb_ud_send_to_group(struct vb_qp *qp, struct vb_swqe *w, struct vb_dest *d);

/* The bytes of w at `to`. */
static inline __attribute__((always_inline)) bool vb_ud_gather(struct vb_qp *qp, struct vb_swqe *w,
							       uint8_t *to)
{
	struct vb_facts f;
	enum vb_reason r;

	if (w->flags & IBV_SEND_INLINE) {
		vb_copy_few(to, w->inline_data, w->length);
		return true;
	}
	if (!w->length || (vb_likely(w->num_sge == 1) && vb_likely(vb_sg_gather(qp, w->sge, to, w->length))))
		return true;
	r = vb_sg_copy(qp, qp->pd_id, w->sge, w->num_sge, 0, to, w->length, VB_SG_GATHER, &f);
	if (vb_likely(r == VB_OK))
		return true;
	vb_ud_refuse(qp, w, r, &f);
	return false;
}

#endif
