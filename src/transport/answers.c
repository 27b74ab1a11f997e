/* What the responder owes is sent: answers to READs and atomics from its resources, in the order of their
 * requests and each again if it is asked for again; behind them a NAK, or one ACK for all that came. */
#include <string.h>

#include "transport/forward.h"
#include "transport/rc_priv.h"

static bool emit(struct vb_qp *qp, const struct vb_pkt *p, const void *payload, uint32_t len)
{
	uint32_t hdr_len = vb_opcodes[p->opcode].hdr_len;
	struct vb_outbuf b;

	if (vb_likely(!len && qp->path.out && hdr_len <= qp->path.out->brief)) {
		struct vb_brief brief = {.hdr_len = (uint8_t)hdr_len};

		vb_pkt_encode(brief.bytes, p);
		return qp->path.out->ops->send(qp->path.out, &brief, VB_OUT_RESPONSE) != 0;
	}
	if (!qp->path.out || !qp->path.out->ops->reserve(qp->path.out, &b, hdr_len, len, VB_OUT_RESPONSE))
		return false;
	vb_pkt_encode(b.hdr, p);
	if (len)
		memcpy(b.payload, payload, len);
	qp->path.out->ops->commit(qp->path.out, &b);
	vb_out_push(qp->path.out);
	return true;
}

/* A deputy answers the target that it stands for, whose number it has. */
static struct vb_pkt response(const struct vb_qp *qp, enum vb_operation operation, uint32_t psn,
			      uint8_t syndrome, uint32_t msn)
{
	return (struct vb_pkt){.opcode = qp->family | (uint8_t)operation,
			       .pkey = VB_PKEY_DEFAULT,
			       .qpn = vb_unlikely(qp->deputy) ? qp->qpn : qp->dest_qpn,
			       .psn = psn,
			       .syndrome = syndrome,
			       .msn = msn};
}

/* A READ that was answered before is asked for again, and its key has been taken back since.  Requests behind
 * it have come: mostly this is a late duplicate, whose requester has had its answer; then the NAK finds
 * nobody, and it is no fault of this QP. */
static int refuse_replay(struct vb_qp *qp, struct vb_facts *f, enum vb_reason r, uint32_t psn)
{
	struct vb_resp *s = &qp->resp;

	f->reason = r;
	f->qpn = qp->qpn;
	if (!s->nak_owed) {
		s->nak_owed = vb_reasons[r].nak;
		s->nak_psn = psn;
		s->nak_facts = *f;
	}
	return -1;
}

/* One packet of a READ's answer.  1: sent, 0: no room, -1: the region is not there any more. */
static int read_packet(struct vb_qp *qp, struct vb_resource *res)
{
	uint32_t mtu = path_mtu(qp), k = res->sent, off = k * mtu;
	uint32_t len = res->length - off < mtu ? res->length - off : mtu;
	bool first = k == res->start, last = k + 1 == res->npsn;
	struct vb_pkt p = response(qp,
				   first ? (last ? VB_READ_RESP_ONLY : VB_READ_RESP_FIRST)
					 : (last ? VB_READ_RESP_LAST : VB_READ_RESP_MIDDLE),
				   vb_psn_add(res->psn, k), VB_AETH_ACK, res->msn);
	struct vb_mem_want w = remote_want(qp, res->rkey, IBV_ACCESS_REMOTE_READ, res->va + off, len);
	const uint8_t *bytes = NULL; /* another process's */
	struct vb_facts f = {0};
	struct vb_mem_use u;
	struct vb_outbuf b;
	enum vb_reason r = VB_OK;
	int there = 1;

	w.pd = res->pd;
	p.pad = -len & 3;
	if (vb_unlikely(res->forward)) {
		there = vb_forward_fetch(qp, res, k, &bytes);
		if (!there)
			return 0;
	}
	if (!qp->path.out || !qp->path.out->ops->reserve(qp->path.out, &b, vb_opcodes[p.opcode].hdr_len,
							 len + p.pad, VB_OUT_RESPONSE))
		return 0;
	if (there < 0) {
		r = VB_R_XRC_SRQ;
		f.srq.number = res->srqn;
	} else if (bytes) {
		memcpy(b.payload, bytes, len);
	} else if (len) {
		r = vb_mem_begin(qp->keys, &u, &w, &f);
	}
	if (r == VB_OK && len && !bytes) {
		if (!vb_mem_get(&u, b.payload, len)) {
			r = vb_mem_why(&u, res->rkey, res->va + off, len, &f);
			f.addr = res->va; /* the request's, not this packet's */
			f.len = res->length;
		}
		vb_mem_end(&u);
	}
	if (r != VB_OK) {
		qp->path.out->ops->cancel(qp->path.out, &b);
		if (res->replay && qp->resp.epsn != vb_psn_add(res->psn, res->npsn))
			return refuse_replay(qp, &f, r, p.psn);
		vb_responder_fault(qp, &f, r, false);
		qp->resp.nak_psn = p.psn; /* rule 8: the answer breaks off here */
		qp->resp.res_next = qp->resp.res_head;
		qp->resp.replaying = false;
		return -1;
	}
	memset(b.payload + len, 0, p.pad);
	b.path_mtu = qp->path_mtu;
	vb_pkt_encode(b.hdr, &p);
	qp->path.out->ops->commit(qp->path.out, &b);
	return 1;
}

/* All that is left of one answer.  As read_packet(). */
static int answer(struct vb_qp *qp, struct vb_resource *res)
{
	struct vb_pkt p;
	int r;

	if (VB_OPERATION(res->opcode) == VB_READ_REQUEST) {
		for (; res->sent < res->npsn; res->sent++) {
			r = read_packet(qp, res);
			if (r != 1)
				return r;
			if (vb_unlikely(qp->deputy)) /* its target asks for each (vb_forward_fetch()) */
				break;
		}
		return 1;
	}
	if (vb_opcodes[res->opcode].bits & VB_OP_ATOMIC)
		p = response(qp, VB_ATOMIC_ACK, res->psn, VB_AETH_ACK, res->msn);
	else /* FLUSH, ATOMIC WRITE: as to a READ of length 0 (annex A19) */
		p = response(qp, VB_READ_RESP_ONLY, res->psn, VB_AETH_ACK, res->msn);
	p.orig = res->orig;
	if (!emit(qp, &p, NULL, 0))
		return 0;
	res->sent = 1;
	return 1;
}

static bool send_nak(struct vb_qp *qp)
{
	struct vb_resp *s = &qp->resp;
	bool told = qp->path.out && qp->path.out->local && VB_AETH_KIND(s->nak_owed) == 0x60 &&
		    s->nak_owed != VB_AETH_NAK_PSN && s->nak_owed != VB_AETH_NAK_AGAIN &&
		    s->nak_owed != VB_AETH_NAK_LOAN;
	struct vb_pkt p = response(qp, VB_ACK, s->nak_psn, s->nak_owed, s->msn); /* rule 16 */

	if (told && qp->by_cm)
		s->nak_facts.ends = VB_END_HERE;
	if (!emit(qp, &p, &s->nak_facts, told ? sizeof s->nak_facts : 0))
		return false;
	VB_TRACE_NAK_SENT(qp->qpn, p.qpn, s->nak_psn, s->nak_owed);
	if (VB_AETH_KIND(s->nak_owed) == VB_AETH_RNR)
		count(qp, VB_TRAFFIC_RNR_OUT, 1);
	else if (s->nak_owed == VB_AETH_NAK_REMOTE_ACCESS)
		count(qp, VB_TRAFFIC_ACCESS_REFUSED, 1);
	s->nak_owed = 0;
	return true;
}

bool vb_responder_run(struct vb_qp *qp)
{
	struct vb_resp *s = &qp->resp;
	uint32_t n = s->res_head < s->res_size ? s->res_head : s->res_size;
	int r;

	vb_lock_assert_held(&qp->lock);
	for (uint32_t i = s->res_head - n; s->replaying && i != s->res_next; i++) {
		struct vb_resource *res = &s->res[i % s->res_size];

		if (!res->replay)
			continue;
		r = answer(qp, res);
		if (r == 0)
			return true;
		res->replay = false;
	}
	s->replaying = false;
	while (s->res_next != s->res_head) {
		struct vb_resource *res = &s->res[s->res_next % s->res_size];

		r = answer(qp, res);
		if (r == 0)
			return true;
		if (r > 0)
			s->res_next++;
		if (r > 0 && vb_unlikely(qp->counters != NULL) &&
		    VB_OPERATION(res->opcode) == VB_READ_REQUEST)
			vb_comp_remote(qp, VB_COMP_REMOTE_READ, res->length);
	}
	if (s->nak_owed && !send_nak(qp))
		return true;
	return false;
}

bool vb_responder_ack(struct vb_qp *qp)
{
	struct vb_resp *s = &qp->resp;
	struct vb_pkt p = response(qp, VB_ACK, vb_psn_add(s->epsn, VB_PSN_MASK), VB_AETH_ACK, s->msn);

	vb_lock_assert_held(&qp->lock);
	if (s->res_next != s->res_head || s->replaying || s->nak_owed) /* goes behind the answers before it */
		return true;
	if (!emit(qp, &p, NULL, 0))
		return true;
	s->ack_owed = false;
	return false;
}

void vb_responder_follow(struct vb_qp *qp)
{
	struct vb_resp *s = &qp->resp;
	struct vb_pkt p = response(qp, VB_ACK, vb_psn_add(s->epsn, VB_PSN_MASK), VB_AETH_ACK, s->msn);

	struct vb_brief b = {.hdr_len = vb_opcodes[p.opcode].hdr_len};

	vb_lock_assert_held(&qp->lock);
	vb_pkt_encode(b.bytes, &p);
	s->ack_owed = !qp->path.out->ops->send_list(qp->path.out, &b, 1, VB_OUT_RESPONSE);
}

uint64_t vb_responder_send_before(struct vb_qp *qp, const struct vb_brief *b)
{
	struct vb_out *out = qp->path.out;

	if (!out->ops->send_list(out, b, 1, VB_OUT_REQUEST))
		return 0;
	vb_responder_follow(qp);
	vb_out_push(out);
	return out->ops->mark(out);
}

bool vb_responder_notify(struct vb_qp *qp)
{
	const struct vb_pkt p = {
	    .opcode = VB_FAMILY_CNP | VB_NOTIFY, .pkey = VB_PKEY_DEFAULT, .qpn = qp->dest_qpn};

	vb_lock_assert_held(&qp->lock);
	if (!emit(qp, &p, NULL, 0))
		return false;
	count(qp, VB_TRAFFIC_CNPS_OUT, 1);
	return true;
}
