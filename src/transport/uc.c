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
