/* A target queue pair has neither a protection domain nor a receive queue nor a CQ: a message brings them
 * along. Each request names an SRQ, and what the request may reach is what that SRQ stands for (annex A14):
 * its receive requests and its CQ, and for READ, WRITE and atomics the regions of its protection domain. */
#include "transport/xrc.h"

#include "obj/srqs.h"
#include "transport/forward.h"
#include "transport/rc_priv.h"

static bool is_ours(const struct vb_qp *qp, const struct vb_pkt *p)
{
	return VB_FAMILY(p->opcode) == qp->family;
}

void vb_xrc_initiator_input(struct vb_qp *qp, const struct vb_pkt *p)
{
	vb_lock_assert_held(&qp->lock);
	if (!is_ours(qp, p))
		vb_flight_other(qp, p);
	else if (p->op->bits & VB_OP_RESPONSE)
		vb_completer_input(qp, p);
}

/* The message is received by the SRQ that it names.  All packets of one name the same. */
static bool choose(struct vb_qp *qp, uint32_t srqn)
{
	struct vb_srq *srq;

	if (qp->resp.in_message ||
	    qp->resp.have_wqe) /* the latter: its first packet is to come again (VB_AETH_NAK_LOAN) */
		return qp->srq && qp->srq->number == srqn;
	if (vb_likely(qp->srq && qp->srq->number == srqn)) /* it is taken away before it is destroyed */
		return true;
	srq = vb_srqs_find(qp->srqs, srqn);
	if (!srq || !vb_xrcd_is(&srq->xrcd->id, &qp->xrcd->id))
		return false;
	qp->srq = srq;
	qp->rcq = srq->cq;
	qp->pd_id = srq->pd->id;
	return true;
}

/* The reason why the target does not have an SRQ, as far as it is known. */
static struct vb_srq_facts seek_lost(const struct vb_qp *qp, uint32_t srqn)
{
	const struct vb_forwards *w = qp->forwards;
	const struct vb_srq *srq = vb_srqs_find(qp->srqs, srqn);

	if (srq && !vb_xrcd_is(&srq->xrcd->id, &qp->xrcd->id))
		return (struct vb_srq_facts){srqn, VB_SRQ_DOMAIN, 0};
	if (!w || !w->ops || qp->xrcd->id.dev == VB_XRCD_PRIVATE || w->ops->own(qp, srqn))
		return (struct vb_srq_facts){srqn, VB_SRQ_UNKNOWN, 0};
	if (srqn >> VB_QPN_INDEX_BITS == w->gone)
		return (struct vb_srq_facts){srqn, VB_SRQ_GONE, w->gone_pid};
	return (struct vb_srq_facts){srqn, VB_SRQ_NOBODY, 0};
}

/* A deputy that has failed says so to whatever comes: when it did, its target may have waited for nothing,
 * and then heard nothing. */
static void fail_again(struct vb_qp *qp)
{
	struct vb_resp *s = &qp->resp;

	s->nak_owed = vb_reasons[qp->why.reason].nak;
	s->nak_psn = s->epsn;
	s->nak_facts = qp->why;
}

/* A deputy's process answers, and asks for nothing. */
static bool is_from_initiator(const struct vb_qp *qp, const struct vb_pkt *p)
{
	return !qp->forwards || !p->source || vb_source_is(p->source, &qp->path.source);
}

void vb_xrc_target_input(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_facts f;

	vb_lock_assert_held(&qp->lock);
	if (!is_ours(qp, p)) {
		vb_flight_other(qp, p);
		return;
	}
	if (vb_unlikely(qp->deputy) && qp->state == IBV_QPS_ERR && !(p->op->bits & VB_OP_RESPONSE)) {
		fail_again(qp);
		return;
	}
	if (qp->state < IBV_QPS_RTR || qp->state > IBV_QPS_SQE)
		return;
	if (p->op->bits & VB_OP_RESPONSE) {
		if (qp->forwards)
			vb_forward_answer(qp, p);
		return;
	}
	if (!is_from_initiator(qp, p))
		return;
	if (qp->forwards && vb_forward_request(qp, p))
		return;
	/* Of what has come before nothing is looked at again. */
	if (p->psn == qp->resp.epsn && !choose(qp, p->srqn)) {
		f = (struct vb_facts){.srq = seek_lost(qp, p->srqn)};
		vb_responder_fault(qp, &f, VB_R_XRC_SRQ, false);
		return;
	}
	vb_responder_input(qp, p);
}
