/* The completer: takes in what responders send back, completes send WQEs in order, and decides what must be
 * sent again. */
#include <string.h>

#include "mem/near.h"
#include "transport/lend.h"
#include "iba/shown.h"

/* Something was acknowledged that had not been: retries count from the start again (rule 12), the timer too.
 */
static inline void progress(struct vb_qp *qp, bool lossy)
{
	struct vb_req *q = &qp->req;

	q->retried = q->rnr_retried = q->rnr_row = 0;
	q->retry_pending = false;
	q->waiting_rnr =
	    false; /* what the receiver was not ready for has arrived after all, as a duplicate */
	vb_requester_arm(qp);
	if (lossy)
		vb_flight_progress(qp);
}

/* After a step back an ACK may cover what was going to be sent again. */
static void catch_up(struct vb_qp *qp)
{
	struct vb_req *q = &qp->req;

	if ((int32_t)(q->next - q->una) < 0 || vb_psn_diff(q->psn, q->psn_una) < 0)
		vb_requester_back(qp);
}

static void fail(struct vb_qp *qp, struct vb_facts *f)
{
	f->qpn = qp->qpn;
	vb_rc_fail_send(qp, f, vb_reasons[f->reason].local_wc);
}

/* The SRQ from which the far end takes a receive request for the oldest message; 0: none, or it is not known.
 */
static uint32_t srq_there(const struct vb_qp *qp)
{
	const struct vb_shown_qp *peer = qp->path.peer_qp;

	if (qp->ibv.qp_type == IBV_QPT_XRC_SEND)
		return vb_sq_at(&qp->req, qp->req.una)->remote.srqn;
	return peer ? atomic_load_explicit(&peer->srq, memory_order_relaxed) : 0;
}

/* The far end does not take it, however often it is asked.  slow_ms: of the facts. */
static void give_up(struct vb_qp *qp, enum vb_reason r, uint8_t retries, uint32_t slow_ms)
{
	struct vb_facts f = {.reason = r,
			     .retry = {.retries = retries,
				       .peer_qpn = qp->dest_qpn,
				       .slow_ms = slow_ms,
				       .srq = r == VB_R_RNR ? srq_there(qp) : 0}};

	fail(qp, &f);
}

static void bad_response(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_facts f = {.reason = VB_R_RESPONSE_BAD, .packet = {.opcode = p->opcode}};

	fail(qp, &f);
}

/* A packet or its answer was lost.  Goes back once; further signs of the same loss wait for progress or for
 * the timer (rule 3).  nak: the far end says so; else an answer shows that an earlier one is missing. */
static void retry(struct vb_qp *qp, bool nak)
{
	struct vb_req *q = &qp->req;
	bool counts;

	count(qp, nak ? VB_TRAFFIC_SEQ_IN : VB_TRAFFIC_IMPLIED, 1);
	if (q->waiting_rnr || (q->retry_pending && !(qp->path.lossy && vb_flight_is_news(qp))))
		return;
	counts = !qp->path.lossy || vb_flight_counts(qp);
	if (counts && q->retried >= qp->attr.retry_cnt) {
		give_up(qp, VB_R_RETRY, qp->attr.retry_cnt, 0);
		return;
	}
	q->retried += counts;
	q->retry_pending = true;
	if (qp->path.lossy)
		vb_flight_lost(qp);
	vb_rc_again(qp, nak ? VB_TRACE_SEQUENCE : VB_TRACE_IMPLIED);
}

static inline void complete_oldest(struct vb_qp *qp, struct vb_swqe *w, bool lossy)
{
	struct vb_req *q = &qp->req;

	if (lossy)
		vb_flight_arrived(qp, w, (q->psn_una - w->psn) & VB_PSN_MASK, w->npsn);
	q->psn_una = vb_psn_add(w->psn, w->npsn);
	q->reads -= vb_wr_is(w->opcode, VB_WR_FETCH);
	q->una++;
	vb_rc_complete_send(qp, w, IBV_WC_SUCCESS);
}

/* Everything before `psn` has arrived.  false: a READ or atomic before it has not been answered; its answer
 * was lost, and the packet that says so counts no further than this (rule 4). */
static inline __attribute__((always_inline)) bool ack_before(struct vb_qp *qp, uint32_t psn, bool lossy)
{
	struct vb_req *q = &qp->req;
	bool moved = false, whole = true;

	while (q->una != q->seen && vb_psn_diff(psn, q->psn_una) > 0) {
		struct vb_swqe *w = vb_sq_at(q, q->una);

		if (w->state != VB_WQE_STARTED)
			break;
		if (vb_wr_is(w->opcode, VB_WR_FETCH)) {
			whole = false;
			break;
		}
		moved = true;
		if (vb_psn_diff(psn, vb_psn_add(w->psn, w->npsn)) < 0) {
			if (lossy)
				vb_flight_arrived(qp, w, (q->psn_una - w->psn) & VB_PSN_MASK,
						  (psn - w->psn) & VB_PSN_MASK);
			q->psn_una = psn;
			break;
		}
		complete_oldest(qp, w, lossy);
	}
	if (moved) {
		progress(qp, lossy);
		catch_up(qp);
	}
	return whole;
}

/* On a lossy path; apart, so that others pay one test for it. */
static __attribute__((noinline)) bool acked_there(struct vb_qp *qp, uint32_t psn)
{
	return ack_before(qp, psn, true);
}

static inline bool acked_before(struct vb_qp *qp, uint32_t psn)
{
	return vb_unlikely(qp->path.lossy) ? acked_there(qp, psn) : ack_before(qp, psn, false);
}

/* A request that takes no receive request misses none.  A process of this host says "not ready" to an atomic
 * while it waits for another one's memory (atomic_refused() in responder.c), and that is no failure. */
static bool misses_receive(const struct vb_qp *qp)
{
	uint8_t opcode = vb_sq_at(&qp->req, qp->req.una)->opcode;

	return !qp->path.out || !qp->path.out->local || !vb_wr_is(opcode, VB_WR_REMOTE) ||
	       vb_wr_is(opcode, VB_WR_IMM);
}

/* On a ring of this host slow is not lost: a receiver that has used up its receive requests, as its thread
 * has had no CPU to fetch and to post, is asked again for a while (rc.c: rnr_wait()) before that counts. */
static bool is_only_slow(const struct vb_qp *qp, const struct vb_pkt *p)
{
	return p->syndrome & VB_AETH_USED_UP && qp->path.out && qp->path.out->local &&
	       qp->used_up_until != VB_NEVER;
}

static void rnr_nak(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_req *q = &qp->req;

	count(qp, VB_TRAFFIC_RNR_IN, 1);
	if (q->waiting_rnr)
		return;
	if (!q->rnr_row) /* of this message the first */
		qp->used_up_until = 0;
	qp->used_up = is_only_slow(qp, p);
	if (!qp->used_up && qp->attr.rnr_retry != 7 && misses_receive(qp)) { /* rule 1: 7 is for ever */
		if (q->rnr_retried >= qp->attr.rnr_retry) {
			give_up(qp, VB_R_RNR, qp->attr.rnr_retry,
				qp->used_up_until == VB_NEVER ? VB_USED_UP_MS : 0);
			return;
		}
		q->rnr_retried++;
	}
	vb_rc_again(qp, VB_TRACE_RNR);
	q->retried = 0;	       /* the path works: losses during a long wait do not add up */
	q->waiting_rnr = true; /* rule 2 */
	q->rnr_row += q->rnr_row < 255;
	q->rnr_code = p->syndrome & 0x1f;
	q->deadline = 0;
}

void vb_nak_facts(struct vb_facts *f, const struct vb_pkt *p)
{
	static const uint8_t plain[] = {
	    [VB_AETH_NAK_INVALID_REQUEST & 0x1f] = VB_R_NAK_INVALID_REQUEST,
	    [VB_AETH_NAK_REMOTE_ACCESS & 0x1f] = VB_R_NAK_REMOTE_ACCESS,
	    [VB_AETH_NAK_REMOTE_OPERATION & 0x1f] = VB_R_NAK_REMOTE_OPERATION,
	    [VB_AETH_NAK_INVALID_RD & 0x1f] = VB_R_NAK_INVALID_RD,
	};
	uint32_t code = p->syndrome & 0x1f;

	if (p->payload_len == sizeof *f) {
		memcpy(f, p->payload, sizeof *f);
		if (f->reason < VB_REASONS && vb_reasons[f->reason].nak == p->syndrome)
			return;
	}
	memset(f, 0, sizeof *f);
	f->reason = code < sizeof plain && plain[code] ? plain[code] : VB_R_RESPONSE_BAD;
}

static void nak(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_facts f;

	if (p->syndrome == VB_AETH_NAK_PSN) {
		retry(qp, true);
		return;
	}
	if (p->syndrome == VB_AETH_NAK_AGAIN && p->peer) {
		if (!qp->req.waiting_rnr) {
			vb_rc_again(qp, VB_TRACE_OWN);
			vb_requester_arm(qp);
		}
		return;
	}
	if (p->syndrome == VB_AETH_NAK_LOAN && p->peer) {
		if (vb_lend_refused(qp) && !qp->req.waiting_rnr) {
			vb_rc_again(qp, VB_TRACE_OWN);
			vb_requester_arm(qp);
		} else {
			retry(qp, true);
		}
		return;
	}
	vb_nak_facts(&f, p);
	if (vb_reasons[f.reason].facts == VB_FACTS_mem && f.qpn != qp->qpn)
		vb_key_own(qp->keys, qp->pd_id, &f);
	vb_rc_fail_send(qp, &f, vb_reasons[f.reason].remote_wc);
}

static void ack(struct vb_qp *qp, const struct vb_pkt *p)
{
	bool positive = VB_AETH_KIND(p->syndrome) == 0;

	if (!acked_before(qp, positive ? vb_psn_add(p->psn, 1) : p->psn)) {
		retry(qp, false);
		return;
	}
	if (positive || qp->req.una == qp->req.seen || vb_psn_diff(p->psn, qp->req.psn_una) < 0)
		return;
	VB_TRACE_NAK_RECEIVED(qp->qpn, qp->dest_qpn, p->psn, p->syndrome);
	if (VB_AETH_KIND(p->syndrome) == VB_AETH_RNR)
		rnr_nak(qp, p);
	else
		nak(qp, p);
}

/* The answered request must be the oldest by now.  NULL: nothing (more) to do. */
static struct vb_swqe *answered(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_req *q = &qp->req;
	struct vb_swqe *w;

	if (!acked_before(qp,
			  p->psn)) { /* rule 4: an earlier answer, or an earlier part of this one, is lost */
		retry(qp, false);
		return NULL;
	}
	if (q->una == q->seen || vb_psn_diff(p->psn, q->psn_una) != 0)
		return NULL; /* a duplicate */
	w = vb_sq_at(q, q->una);
	if (w->state != VB_WQE_STARTED)
		return NULL;
	if (!vb_wr_is(w->opcode, VB_WR_FETCH) ||
	    (p->op->bits & VB_OP_READ) != (vb_wr_is(w->opcode, VB_WR_ATOMIC) ? 0 : VB_OP_READ)) {
		bad_response(qp, p);
		return NULL;
	}
	return w;
}

/* The oldest request has all of its answer. */
static void answered_whole(struct vb_qp *qp, struct vb_swqe *w)
{
	if (w->got > SHORTEST_MTU)
		count(qp, VB_TRAFFIC_PACKETS_IN, further_packets(qp, w->got));
	complete_oldest(qp, w, qp->path.lossy);
	progress(qp, qp->path.lossy);
	catch_up(qp);
}

static void scatter(struct vb_qp *qp, struct vb_swqe *w, const uint8_t *from, uint32_t n)
{
	struct vb_req *q = &qp->req;
	struct vb_facts f = {0};
	enum vb_reason r;

	r = vb_sg_copy(qp, qp->pd_id, w->sge, w->num_sge, w->got, (uint8_t *)(uintptr_t)from, n,
		       VB_SG_SCATTER, &f);
	if (vb_unlikely(r != VB_OK)) { /* rule 13 */
		f.reason = r;
		fail(qp, &f);
		return;
	}
	w->got += n;
	qp->traffic->received_bytes += n;
	if (w->got < w->length) {
		if (vb_unlikely(qp->path.lossy))
			vb_flight_arrived(qp, w, (q->psn_una - w->psn) & VB_PSN_MASK,
					  ((q->psn_una - w->psn) & VB_PSN_MASK) + 1);
		q->psn_una = vb_psn_add(q->psn_una, 1);
		progress(qp, qp->path.lossy);
		catch_up(qp);
		return;
	}
	answered_whole(qp, w);
}

static void read_response(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_swqe *w = answered(qp, p);
	uint32_t mtu, left;

	if (!w)
		return;
	if (vb_unlikely(mtus_differ(qp, p) && w->length > smaller_mtu(qp, p))) {
		struct vb_facts f = mtu_facts(qp, p, w->length);

		f.reason = VB_R_RESPONSE_MTU;
		fail(qp, &f);
		return;
	}
	mtu = path_mtu(qp);
	left = vb_wr_is(w->opcode, VB_WR_BARE) ? 0 : w->length - w->got;
	if (vb_unlikely(qp->path.lossy) && left)
		left = vb_flight_left(qp, w);
	/* rule 5: FIRST or MIDDLE is as good as the other, since a part may have been asked for again; what
	 * counts is that only the last packet is short, and none is too long */
	if ((p->op->bits & VB_OP_LAST) ? p->payload_len != left || left > mtu
				       : p->payload_len != mtu || left <= mtu) {
		bad_response(qp, p);
		return;
	}
	if (vb_unlikely(vb_wr_is(w->opcode, VB_WR_BARE)))
		answered_whole(qp, w);
	else
		scatter(qp, w, p->payload, p->payload_len);
}

static void atomic_response(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_swqe *w = answered(qp, p);

	if (w)
		scatter(qp, w, (const uint8_t *)&p->orig, sizeof p->orig);
}

/* Whether an answer with this PSN can be one: not to what was never asked (ghost), nor from before the
 * oldest. */
static inline bool awaited(const struct vb_qp *qp, uint32_t psn)
{
	const struct vb_req *q = &qp->req;

	return (qp->state == IBV_QPS_RTS || qp->state == IBV_QPS_SQD) &&
	       ((psn - q->psn_una) & VB_PSN_MASK) < ((q->psn_max - q->psn_una) & VB_PSN_MASK);
}

void vb_completer_ack(struct vb_qp *qp, uint32_t psn)
{
	vb_lock_assert_held(&qp->lock);
	if (!awaited(qp, psn))
		return;
	if (vb_unlikely(!acked_before(qp, vb_psn_add(psn, 1))))
		retry(qp, false);
	if (vb_likely(qp->state != IBV_QPS_ERR))
		vb_requester_turn(qp);
}

bool vb_completer_brief(struct vb_qp *qp, const struct vb_brief *b)
{
	if (vb_unlikely(b->hdr_len != VB_BTH_LEN + 4 || b->payload_len ||
			VB_PKT_PAD(vb_pkt_get_word(b->bytes, 0)) || b->flags || b->ack ||
			b->bytes[VB_BTH_LEN] != VB_AETH_ACK || (qp->path.lossy && qp->congestion.credited)))
		return false;
	vb_completer_ack(qp, vb_pkt_get_word(b->bytes, 2) & VB_PSN_MASK);
	return true;
}

void vb_completer_received(struct vb_qp *qp, uint32_t psn)
{
	vb_lock_assert_held(&qp->lock);
	if (!awaited(qp, vb_psn_add(psn, VB_PSN_MASK)))
		return;
	acked_before(qp, psn);
	if (vb_likely(qp->state != IBV_QPS_ERR))
		vb_requester_turn(qp);
}

void vb_completer_input(struct vb_qp *qp, const struct vb_pkt *p)
{
	vb_lock_assert_held(&qp->lock);
	if (!awaited(qp, p->psn))
		return;
	if (vb_unlikely(p->marked))
		vb_flight_marked(qp, p);
	if (vb_unlikely(qp->path.lossy) && (p->op->bits & VB_OP_AETH) && !VB_AETH_KIND(p->syndrome))
		vb_flight_credits(qp, p->syndrome);
	if ((p->op->bits & VB_OP_AETH) && VB_AETH_KIND(p->syndrome)) /* rules 8, 16: whatever the opcode */
		ack(qp, p);
	else if (p->op->bits & VB_OP_READ)
		read_response(qp, p);
	else if (p->op->bits & VB_OP_ATOMIC)
		atomic_response(qp, p);
	else
		ack(qp, p);
	if (qp->state != IBV_QPS_ERR)
		vb_requester_turn(qp);
}
