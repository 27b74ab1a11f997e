/* Unreliable connections at the receiving end: what is lost is lost, and what cannot be taken is dropped,
 * whole messages at a time.  Everything else they share with reliable ones. */
#include "transport/rc_priv.h"

__attribute__((cold, noinline)) void vb_uc_drop(struct vb_qp *qp, struct vb_facts *f, enum vb_reason r)
{
	f->reason = r;
	f->qpn = qp->qpn;
	qp->resp.in_message = false;
	vb_drop(qp, f);
}

void vb_not_heard(struct vb_qp *qp, const struct vb_pkt *p, bool other)
{
	uint8_t family = VB_FAMILY(p->opcode);
	struct vb_facts f = {.reason = VB_R_DROP_NO_QP, .qpn = qp->qpn};

	vb_lock_assert_held(&qp->lock);
	f.no_qp.type = qp->ibv.qp_type;
	f.no_qp.sent = vb_opcode_type(family);
	f.no_qp.state = qp->state;
	f.no_qp.dest = qp->dest_qpn;
	if (family != qp->family)
		f.no_qp.why = VB_NOT_TYPE;
	else if (qp->state < IBV_QPS_RTR || qp->state > IBV_QPS_SQE)
		f.no_qp.why = VB_NOT_READY;
	else if (other)
		f.no_qp.why = VB_NOT_FROM_HIM;
	vb_drop(qp, &f);
}

void vb_not_taken(struct vb_qp *qp, const struct vb_pkt *p)
{
	if (vb_pkt_ends_untold(p))
		vb_not_heard(qp, p, false);
}

/* A packet has come to a QP whose packets are not sent again, and it is not the next one, or begins a message
 * before the one in hand has ended: what is missing is lost, and with it the message that it was of.  true:
 * the packet begins the next one (IBTA 9.8.2). */
static __attribute__((cold, noinline)) bool goes_on_from(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_resp *s = &qp->resp;
	struct vb_facts f = {.psn = {.expected = s->epsn, .came = p->psn}};
	bool first = p->op->bits & VB_OP_FIRST, later = vb_psn_diff(p->psn, s->epsn) > 0;
	bool broken = s->in_message; /* what is still to come of it is of a dropped message */

	/* else the rest of what is counted already, or of what was taken */
	if (first || broken || (later && !s->skipping))
		vb_uc_drop(qp, &f, VB_R_DROP_SEQUENCE);
	s->skipping = !first && (later || broken || s->skipping);
	if (first)
		s->epsn = p->psn;
	else if (later)
		s->epsn = vb_psn_add(p->psn, 1);
	return first;
}

void vb_uc_take(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_resp *s = &qp->resp;

	if (p->psn != s->epsn || (s->in_message && p->op->bits & VB_OP_FIRST)) {
		if (!goes_on_from(qp, p))
			return;
	} else if (s->skipping && !(p->op->bits & VB_OP_FIRST)) {
		s->epsn = vb_psn_add(s->epsn, 1);
		return;
	}
	s->skipping = false;
	vb_responder_next(qp, p);
	if (s->epsn != p->psn) /* taken */
		return;
	s->skipping = true;
	s->epsn = vb_psn_add(s->epsn, 1);
}
