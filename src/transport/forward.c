/* A target's messages for SRQs of other processes.
 *
 * Packets go on to a deputy of the target, which is a responder like any other, in the process whose SRQ they
 * name.  What the target acknowledges is what the deputy has: resp.epsn moves when its answers come, so
 * everything that looks at epsn, the far end's look at what is shown among it, means what was taken there.
 *
 * Requests take effect in their order, so one process is busy at a time: what names another waits for the
 * answers.  Nothing is kept here meanwhile.  What cannot go on now is held back, and asked for again when it
 * can, by a NAK that costs the far end no retry: only a receive request that is missing is "receiver not
 * ready", since programs give up after few of those. */
#include "transport/forward.h"

#include <string.h>

#include "obj/srqs.h"
#include "transport/rc_priv.h"

static void hold_back(struct vb_qp *qp)
{
	qp->forwards->again = true;
	qp->resp.nak_sent = true; /* of what follows nothing is said either */
	vb_forward_show(qp);
}

/* In place of an ACK, and until the expected packet comes nothing else. */
static void refuse(struct vb_resp *s, uint8_t syndrome)
{
	s->nak_sent = true;
	s->nak_owed = syndrome;
	s->nak_psn = s->epsn;
}

void vb_forward_resume(struct vb_qp *qp)
{
	struct vb_forwards *w = qp->forwards;

	vb_lock_assert_held(&qp->lock);
	if (!w->again || w->busy || w->wanted || (w->full && !w->full->ops->room(w->full)))
		return;
	w->again = false;
	w->full = NULL;
	vb_forward_show(qp);
	/* between hosts the far end knows only of losses */
	refuse(&qp->resp, qp->path.out && !qp->path.out->local ? VB_AETH_NAK_PSN : VB_AETH_NAK_AGAIN);
}

static struct vb_forward *find(const struct vb_forwards *w, uint32_t number)
{
	vb_list_each (n, &w->all) {
		struct vb_forward *f = vb_list_entry(n, struct vb_forward, node);

		if (f->number == number)
			return f;
	}
	return NULL;
}

static bool send(struct vb_forward *f, const struct vb_pkt *p, uint32_t psn)
{
	struct vb_pkt to = *p;
	struct vb_outbuf b;

	if (!f->out->ops->reserve(f->out, &b, vb_opcodes[p->opcode].hdr_len, p->payload_len + p->pad,
				  VB_OUT_REQUEST))
		return false;
	to.qpn = f->deputy;
	to.psn = psn;
	to.ack_req = true;
	b.path_mtu = p->path_mtu;
	vb_pkt_encode(b.hdr, &to);
	memcpy(b.payload, p->payload, p->payload_len);
	memset(b.payload + p->payload_len, 0, p->pad);
	f->out->ops->commit(f->out, &b);
	return true;
}

/* Whether the message that p belongs to, or begins, is one for this process: its SRQ is, or it is nobody's
 * and so refused here. */
static bool is_for_here(const struct vb_qp *qp, const struct vb_pkt *p)
{
	const struct vb_forwards *w = qp->forwards;

	if (w->within)
		return false;
	return qp->resp.in_message || qp->resp.have_wqe || (qp->srq && qp->srq->number == p->srqn) ||
	       !w->ops || qp->xrcd->id.dev == VB_XRCD_PRIVATE || /* no other process has it open */
	       w->ops->own(qp, p->srqn) || p->srqn >> VB_QPN_INDEX_BITS == w->nowhere;
}

/* The one that leads to where p is to go; NULL: it is looked for. */
static struct vb_forward *way_of(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_forwards *w = qp->forwards;
	uint32_t number = p->srqn >> VB_QPN_INDEX_BITS;
	struct vb_forward *f = w->within ? w->within : find(w, number);

	if (f || w->busy) /* what is before it may yet fail */
		return f;
	w->wanted = number;
	w->ops->seek(qp);
	return NULL;
}

/* p is the packet that is expected.  false: it cannot go on now. */
static bool go_on(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_forwards *w = qp->forwards;
	struct vb_forward *f = way_of(qp, p);

	if (!f || (w->busy && w->busy != f))
		return false;
	if (!send(f, p, f->psn)) {
		w->full = f->out;
		return false;
	}
	vb_responder_met(qp);
	f->psn = vb_psn_add(f->psn, 1);
	w->next = vb_psn_add(p->psn, 1);
	w->busy = f;
	w->within = p->op->bits & VB_OP_LAST ? NULL : f;
	w->again = false;
	w->full = NULL;
	qp->resp.nak_sent = false;
	qp->resp.nak_owed = 0;
	vb_forward_show(qp);
	return true;
}

/* What a deputy cannot do for the target. */
static bool cannot_go_on(const struct vb_qp *qp, const struct vb_pkt *p)
{
	return p->loan || p->op->bits & VB_OP_HELD ||
	       (p->op->bits & VB_OP_WRITE && !(qp->access & IBV_ACCESS_REMOTE_WRITE));
}

static void stop(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_facts f = {0};

	if (p->loan) { /* who lends lends to this process alone */
		refuse(&qp->resp, VB_AETH_NAK_LOAN);
	} else if (p->op->bits & VB_OP_HELD) {
		f.srq.number = p->srqn;
		vb_responder_fault(qp, &f, VB_R_XRC_SRQ, false);
	} else {
		f.access.want = IBV_ACCESS_REMOTE_WRITE;
		f.access.have = qp->access;
		vb_responder_fault(qp, &f, VB_R_QP_ACCESS, false); /* rule 22 */
	}
}

bool vb_forward_request(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_forwards *w = qp->forwards;
	int32_t d = vb_psn_diff(p->psn, w->busy ? w->next : qp->resp.epsn);

	vb_lock_assert_held(&qp->lock);
	if (d > 0 || vb_psn_diff(p->psn, qp->resp.epsn) < 0)
		return false; /* something is lost before it, or it was answered before */
	if (d < 0) {	      /* it is with the deputy, or was lost on its way there */
		if (!w->busy->out->tells)
			send(w->busy, p, vb_psn_add(w->busy->psn, (uint32_t)d & VB_PSN_MASK));
		return true;
	}
	if (is_for_here(qp, p)) {
		if (!w->busy) {
			w->again = false;
			w->nowhere = 0;
			vb_forward_show(qp);
			return false;
		}
		hold_back(qp);
		return true;
	}
	if (cannot_go_on(qp, p) && !w->busy) /* else what is before it may yet fail */
		stop(qp, p);
	else if (cannot_go_on(qp, p) || !go_on(qp, p))
		hold_back(qp);
	return true;
}

/* What the deputy has not taken comes again from the far end, or never. */
static void step_back(struct vb_forwards *w, struct vb_forward *f)
{
	f->psn = f->una;
	w->busy = NULL;
	w->within = NULL;
	w->again = false;
	w->full = NULL;
}

static void nak(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_facts f;

	if (VB_AETH_KIND(p->syndrome) == VB_AETH_RNR) {
		refuse(&qp->resp, VB_AETH_RNR | (qp->attr.min_rnr_timer & 0x1f));
	} else if (p->syndrome == VB_AETH_NAK_PSN) {
		refuse(&qp->resp, VB_AETH_NAK_PSN);
	} else {
		vb_nak_facts(&f, p);
		vb_rc_fail_recv(qp, &f, false);
	}
}

void vb_forward_answer(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_forward *f = qp->forwards->busy;
	bool positive = VB_AETH_KIND(p->syndrome) == 0;
	uint32_t upto = vb_psn_add(p->psn, positive);

	vb_lock_assert_held(&qp->lock);
	if (!f || !p->source || !vb_source_is(p->source, &f->source) || !(p->op->bits & VB_OP_AETH))
		return;
	if (vb_psn_diff(upto, f->una) < 0 || vb_psn_diff(upto, f->psn) > 0)
		return; /* of an earlier time */
	qp->resp.msn = vb_psn_add(qp->resp.msn, (p->msn - f->msn) & VB_PSN_MASK);
	f->msn = p->msn;
	vb_forward_arrived(qp, f, upto);
	if (!positive) {
		step_back(qp->forwards, f);
		nak(qp, p);
	}
	if (qp->state == IBV_QPS_ERR)
		return;
	vb_forward_resume(qp);
	vb_forward_show(qp);
}
