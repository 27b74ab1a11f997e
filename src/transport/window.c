/* Binding and invalidating memory windows: requests that this end carries out by itself.  They take no PSN,
 * need no way out, and are carried out when everything before them is complete, so that a fence adds nothing
 * (rule 9). */
#include "transport/rc_priv.h"

static enum vb_mw_step step(struct vb_qp *qp, struct vb_swqe *w, struct vb_facts *f)
{
	struct vb_mw_ask a = {.id = w->window.id,
			      .rkey = w->window.rkey,
			      .region = w->region,
			      .access = w->window.access,
			      .addr = w->window.addr,
			      .length = w->window.length,
			      .pd = qp->pd_id,
			      .qpn = qp->qpn};

	if (w->opcode == IBV_WR_LOCAL_INV)
		return vb_mw_invalidate(qp->mws, w->window.rkey, qp->qpn, &w->window.id, f);
	qp->windows = true;
	return vb_mw_bind(qp->mws, &a, f);
}

enum vb_mw_step vb_window_run(struct vb_qp *qp, struct vb_swqe *w, struct vb_facts *f)
{
	struct vb_req *q = &qp->req;
	enum vb_mw_step s;

	vb_lock_assert_held(&qp->lock);
	if (q->una != q->next ||
	    (w->state != VB_WQE_GOING && (w->state != VB_WQE_POSTED || qp->state != IBV_QPS_RTS)))
		return VB_MW_WAITS; /* in SQD nothing is begun */
	s = step(qp, w, f);
	/* It is begun; the old binding is dead and somebody is in the middle of a copy.  Whoever makes
	 * progress looks again, and the timer does: there may be no link whose progress this is. */
	if (s == VB_MW_WAITS) {
		w->state = VB_WQE_GOING;
		q->blocked = true;
		q->deadline = 0;
	}
	return s;
}

bool vb_window_local(struct vb_qp *qp)
{
	struct vb_req *q = &qp->req;
	struct vb_swqe *w = q->next != q->seen ? vb_sq_at(q, q->next) : NULL;
	struct vb_facts f = {0};

	vb_lock_assert_held(&qp->lock);
	if (!w || !vb_wr_is(w->opcode, VB_WR_LOCAL) ||
	    !(vb_requester_may_work(qp) || vb_requester_settles(qp)))
		return false;
	switch (vb_window_run(qp, w, &f)) {
	case VB_MW_DONE:
		q->una++;
		q->next++;
		if (w->state == VB_WQE_GOING) /* the timer ran for it */
			vb_requester_arm(qp);
		vb_rc_complete_send(qp, w, IBV_WC_SUCCESS);
		if (qp->state == IBV_QPS_ERR) /* what is behind it has waited */
			vb_rc_flush(qp);
		return true;
	case VB_MW_REFUSED:
		vb_requester_fail(qp, w, f.reason, &f);
		break;
	case VB_MW_WAITS:
		break;
	}
	return false;
}

bool vb_window_invalidated(struct vb_qp *qp, uint32_t rkey, struct vb_facts *f)
{
	vb_lock_assert_held(&qp->lock);
	/* Nobody can be in the middle of a copy through this window, so nobody is waited for.  It serves this
	 * QP alone.  This process touches its memory only for packets of this QP, under its lock, which is
	 * held here.  The peer does so (mem/peer_mem.h) under the lock of the one QP that is connected to
	 * this one, for a request that stands at the head of its send queue; our SEND came from that queue,
	 * so what was before it is done, and what is behind it begins when it is acknowledged. */
	return vb_mw_invalidate_at_once(qp->mws, rkey, qp->qpn, f);
}
