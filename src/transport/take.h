/* Receive requests, as a responder takes and completes them. */
#ifndef VB_TRANSPORT_TAKE_H
#define VB_TRANSPORT_TAKE_H

#include <string.h>

#include "transport/rc_priv.h"

/* A receive WQE for the message, from RQ or SRQ.  false: there is none, and room is UINT32_MAX; or the SRQ's
 * next one is for less than `need` bytes, as room says, and stays there for others. */
static inline bool vb_take_wqe(struct vb_qp *qp, uint32_t need)
{
	struct vb_resp *s = &qp->resp;

	if (s->have_wqe)
		return true;
	s->room = UINT32_MAX;
	if (vb_unlikely(qp->srq != NULL)) {
		s->cur = s->copy;
		s->have_wqe = vb_srq_take(qp->srq, s->copy, need, &s->room);
	} else if (!vb_rq_empty(&s->rq)) {
		s->cur = vb_rq_at(&s->rq, s->rq.tail++);
		s->have_wqe = true;
	}
	if (!s->have_wqe)
		return false;
	s->room = vb_rwqe_room(s->cur);
	return true;
}

/* The receive request w is complete.  Field by field, in place: what is put together elsewhere is copied. */
static inline void vb_take_put(struct ibv_wc *to, const struct vb_qp *qp, const struct vb_rwqe *w,
			       enum ibv_wc_opcode opcode, uint32_t byte_len)
{
	memset(to, 0, sizeof *to);
	to->wr_id = w->wr_id;
	to->opcode = opcode;
	to->byte_len = byte_len;
	to->qp_num = qp->qpn;
	to->src_qp = qp->dest_qpn;
	if (vb_unlikely(qp->counters != NULL))
		vb_comp_received(qp, byte_len, false);
}

/* The receive request in use is complete: `e` says how (but for whose it is), or the program has it already
 * (vb_cq_handed()), NULL. */
static inline void vb_take_done(struct vb_qp *qp, struct vb_cqe *e, bool solicited)
{
	struct vb_resp *s = &qp->resp;

	s->have_wqe = false;
	if (vb_likely(!e)) {
		if (vb_unlikely(qp->srq != NULL))
			vb_srq_give(qp->srq);
		else
			vb_rq_give(&s->rq);
		return;
	}
	e->qp = vb_qp_of_receive(qp);
	e->srq = qp->srq;
	e->sq_free = 0;
	e->is_send = false;
	vb_rc_push(qp, qp->rcq, e, solicited);
}

#endif
