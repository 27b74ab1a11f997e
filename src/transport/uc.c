/* Unreliable connections: what is lost is lost, and what cannot be taken is dropped, whole messages at a
 * time. Requester and responder they share with reliable ones. */
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

/* Nothing is owed, and nothing waited for. */

static bool uc_brief(struct vb_qp *qp, struct vb_arrival *in)
{
	struct vb_brief *b = &in->b;
	uint32_t first = vb_pkt_get_word(b->bytes, 0) ^ (uint32_t)VB_FAMILY_UC << 24;
	bool taken;

	vb_lock_assert_held(&qp->lock);
	if (vb_unlikely(qp->state != IBV_QPS_RTS || (first & VB_PKT_KIND) != VB_PKT_OF(VB_SEND_ONLY)))
		return false;
	b->ack = 0;
	taken = vb_responder_brief(qp, b);
	qp->resp.ack_owed = false; /* whatever the packet asked for */
	return taken;
}

static void uc_input(struct vb_qp *qp, const struct vb_pkt *p)
{
	if (vb_unlikely(p->loan != NULL)) /* nothing is lent to this type */
		return;
	vb_rc_input(qp, p);
	qp->resp.ack_owed = false;
}

static void uc_ack(struct vb_qp *qp, uint32_t psn)
{
	(void)qp, (void)psn;
}

static enum vb_owes uc_owes(const struct vb_qp *qp)
{
	vb_lock_assert_held(&qp->lock);
	return vb_requester_ready(qp) ? VB_OWES_MORE : VB_OWES_NOTHING;
}

static void uc_last_word(struct vb_qp *qp)
{
	(void)qp;
}

/* That a peer is gone nobody tells one who waits for no answers: what is sent from then on is lost. */
static void uc_error(struct vb_qp *qp, const struct vb_facts *f)
{
	if (f->reason != VB_R_PEER_DIED && f->reason != VB_R_PEER_CLOSED)
		vb_rc_error(qp, f);
}

const struct vb_transport vb_uc_transport = {
    .brief = uc_brief,
    .input = uc_input,
    .ack = uc_ack,
    .received = uc_ack,
    .output = vb_requester_output,
    .owes = uc_owes,
    .timer = vb_rc_timer,
    .path = vb_rc_path,
    .last_word = uc_last_word,
    .enter = vb_rc_enter,
    .error = uc_error,
    .flush = vb_rc_flush,
};
