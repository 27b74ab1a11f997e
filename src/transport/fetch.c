/* Requests that have an answer of their own: READ, atomics, FLUSH and ATOMIC WRITE.  Each is one packet; on a
 * path that may lose packets a READ is several requests, so that the window bounds what the responder sends
 * at once. */
#include <string.h>

#include "transport/rc_priv.h"

/* One request, with payload where it is ATOMIC WRITE.  After a
 * step back a READ asks for the rest (rule 5).  at, n: the PSNs that are asked for. */
static bool send_fetch(struct vb_qp *qp, struct vb_swqe *w, uint32_t at, uint32_t n)
{
	uint32_t off = at * qp->path.out->mtu, rest = w->length - off, part = n * qp->path.out->mtu;
	uint32_t payload = vb_wr_is(w->opcode, VB_WR_WORD) ? 8 : 0;
	struct vb_outbuf b;
	struct vb_pkt p = {
	    .opcode = qp->family | vb_wrs[w->opcode].packets.only,
	    .pkey = VB_PKEY_DEFAULT,
	    .ack_req = true,
	    .qpn = qp->dest_qpn,
	    .psn = vb_psn_add(w->psn, at),
	    .rkey = w->remote.rkey,
	    .va = w->remote.addr + off,
	    .dma_len = at + n == w->npsn ? rest : part,
	    .swap_add = vb_wr_is(w->opcode, VB_WR_COMPARE) ? w->remote.swap : w->remote.compare_add,
	    .compare = w->remote.compare_add,
	    .srqn = w->remote.srqn,
	};

	if (w->opcode == VB_WR_FLUSH) {
		p.dma_len = w->remote.flush.range;
		p.flush_type = w->remote.flush.type;
		p.flush_level = w->remote.flush.level;
	}
	if (!qp->path.out->ops->reserve(qp->path.out, &b, vb_opcodes[p.opcode].hdr_len, payload,
					VB_OUT_REQUEST))
		return false;
	memcpy(b.payload, w->inline_data, payload);
	vb_pkt_encode(b.hdr, &p);
	carry_ack(qp, &b);
	qp->path.out->ops->commit(qp->path.out, &b);
	return true;
}

/* What a request asks for, which on a lossy path are several requests.  true: all are out. */
bool vb_fetch_send(struct vb_qp *qp, struct vb_swqe *w)
{
	struct vb_req *q = &qp->req;

	while (q->sent < w->npsn) {
		uint32_t n = w->npsn - q->sent;

		if (vb_unlikely(qp->path.lossy)) {
			n = vb_flight_piece(qp, w, q->sent);
			if (!vb_flight_opens(qp, w, q->sent, n))
				return false;
		}
		q->blocked = !send_fetch(qp, w, q->sent, n);
		if (q->blocked)
			return false;
		if (vb_unlikely(qp->path.lossy))
			vb_flight_sent(qp, w, q->sent, n);
		if (((q->psn - q->psn_una) & VB_PSN_MASK) < ((q->psn_max - q->psn_una) & VB_PSN_MASK))
			count(qp, VB_TRAFFIC_RETRANSMITTED, 1);
		q->sent += n;
		q->psn = vb_psn_add(w->psn, q->sent);
	}
	return true;
}

void vb_fetch_again(struct vb_qp *qp, struct vb_swqe *w, uint32_t at)
{
	send_fetch(qp, w, at, vb_flight_piece(qp, w, at));
}
