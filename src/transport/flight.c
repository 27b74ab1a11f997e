/* What is in flight on a path that may lose packets: joins the queue pair's requests to the window
 * (congestion.c), or those of UC to the rate (pace.c).  Bytes count in the direction in which they travel:
 * those of a READ are its answer's, so that the requester's window bounds what the responder sends at once.
 */
#include "transport/congestion.h"
#include "transport/pace.h"
#include "transport/rc_priv.h"

enum {
	PIECE = 4, /* packets that a request of a split READ asks for, at least */
	CROWD = 4, /* times as many requests may be in flight as leave at a time */
};
#define TELL_EVERY (50 * VB_USEC) /* CNPs of a queue pair, at most */

static uint64_t now_of(const struct vb_qp *qp)
{
	return qp->path.out->ops->now(qp->path.out);
}

static bool is_read(const struct vb_swqe *w)
{
	return w->opcode == IBV_WR_RDMA_READ;
}

/* What the PSNs [from, to) of a request count. */
static uint64_t bytes_of(const struct vb_qp *qp, const struct vb_swqe *w, uint32_t from, uint32_t to)
{
	uint64_t mtu = qp->congestion.mtu, begin = from * mtu, end = to * mtu;

	begin = begin < w->length ? begin : w->length;
	end = end < w->length ? end : w->length;
	return end - begin + (uint64_t)(to - from) * VB_CONGESTION_OVERHEAD;
}

void vb_flight_begin(struct vb_path *p, struct vb_out *out)
{
	p->lossy = p->apart = out && out->lossy;
	if (!p->lossy || p->out)
		return;
	vb_congestion_begin(&p->qp->congestion, out->mtu);
	p->qp->congestion.together = out->together;
	vb_pace_begin(&p->qp->pace, out->ops->now(out));
}

/* Of UC: more may leave now.  The clock is read once in many packets. */
static bool is_due(const struct vb_qp *qp)
{
	return qp->pace.left > 0 || vb_pace_at(&qp->pace) <= now_of(qp);
}

/* The packet of a request at that PSN, or what it asks for there, was not sent before. */
static bool is_fresh(const struct vb_qp *qp, const struct vb_swqe *w, uint32_t from)
{
	const struct vb_req *q = &qp->req;

	return ((w->psn + from - q->psn_una) & VB_PSN_MASK) >= ((q->psn_max - q->psn_una) & VB_PSN_MASK);
}

static bool is_idle(const struct vb_qp *qp)
{
	return qp->req.psn == qp->req.psn_una;
}

/* What was asked for of a split READ may have come whole: then its next request has the READ's own place. */
bool vb_flight_deep(const struct vb_qp *qp)
{
	return !is_idle(qp) && qp->req.reads + qp->congestion.pieces >= qp->max_rd_atomic;
}

/* What could leave together with these PSNs of the request at q->next, or more. */
static uint64_t waiting(const struct vb_qp *qp, const struct vb_swqe *w, uint32_t from, uint32_t n)
{
	if (is_read(w))
		return bytes_of(qp, w, from, from + n);
	if (qp->req.seen - qp->req.next > 1)
		return qp->congestion.together;
	return bytes_of(qp, w, from, w->state == VB_WQE_STARTED ? w->npsn : from + n);
}

static bool takes_receive(const struct vb_swqe *w)
{
	return !vb_wr_is(w->opcode, VB_WR_REMOTE) || vb_wr_is(w->opcode, VB_WR_IMM);
}

/* The far end has as many receive requests as it said, and a request waits that would need one more (IBTA
 * 9.7.7.2).  One such request may be sent without: its answer tells of others. */
static bool lacks_credit(const struct vb_qp *qp, const struct vb_swqe *w, uint32_t from)
{
	const struct vb_req *q = &qp->req;
	uint32_t taken = 0;

	if (vb_likely(!qp->congestion.credited) || from || !takes_receive(w) ||
	    q->next - q->una < qp->congestion.credits)
		return false;
	for (uint32_t i = q->una; i != q->next; i++)
		taken += takes_receive(vb_sq_at(q, i));
	return taken && taken >= qp->congestion.credits;
}

void vb_flight_credits(struct vb_qp *qp, uint8_t syndrome)
{
	struct vb_congestion *c = &qp->congestion;
	uint32_t code = syndrome & VB_AETH_ACK;

	/* 0, 1, 2, 3, 4, 6, 8, 12, 16, 24 ... 32768, and the last code is no number. */
	c->credited = code != VB_AETH_ACK;
	if (c->credited)
		c->credits = (uint16_t)(code < 2 ? code : (2 + code % 2) << code / 2 >> 1);
}

/* Where packets that leave together cost little more than one, a request waits for others while many are in
 * flight: those that wait leave once they are a quarter as many, at the latest when those in flight have been
 * acknowledged. */
static bool is_crowd(const struct vb_qp *qp, const struct vb_swqe *w)
{
	const struct vb_congestion *c = &qp->congestion;
	const struct vb_req *q = &qp->req;
	uint32_t n = q->seen - q->next;

	return !c->together || c->going || q->sent || vb_wr_is(w->opcode, VB_WR_FETCH) ||
	       n >= (q->next - q->una) / CROWD || (uint64_t)n * w->length >= c->together;
}

static bool admits(const struct vb_qp *qp, const struct vb_swqe *w, uint32_t from, uint32_t n)
{
	if (is_read(w)) {
		if (w->state == VB_WQE_STARTED)
			n = vb_flight_piece(qp, w, from);
		if (from && vb_flight_deep(qp) && is_fresh(qp, w, from))
			return false;
	}
	return vb_congestion_admits(&qp->congestion, bytes_of(qp, w, from, from + n)) &&
	       vb_congestion_pays(&qp->congestion, waiting(qp, w, from, n));
}

bool vb_flight_fits(const struct vb_qp *qp, const struct vb_swqe *w, uint32_t from, uint32_t n)
{
	if (vb_unlikely(!qp->acked))
		return is_due(qp);
	return !lacks_credit(qp, w, from) && is_crowd(qp, w) && admits(qp, w, from, n);
}

bool vb_flight_opens(struct vb_qp *qp, const struct vb_swqe *w, uint32_t from, uint32_t n)
{
	bool may;

	if (vb_unlikely(!qp->acked)) {
		may = is_due(qp);
		qp->req.blocked |= !may;
		return may;
	}
	may = !lacks_credit(qp, w, from) && is_crowd(qp, w);
	qp->congestion.going = may && admits(qp, w, from, n);
	qp->congestion.limited |= may && !qp->congestion.going;
	return qp->congestion.going;
}

bool vb_flight_joins(struct vb_qp *qp, const struct vb_swqe *w, uint64_t *ahead)
{
	uint64_t bytes = *ahead + bytes_of(qp, w, 0, 1);

	if (vb_unlikely(!qp->acked))
		return is_due(qp);
	if (vb_unlikely(qp->congestion.credited) && takes_receive(w)) /* each one asks for itself */
		return false;
	if (!*ahead && !vb_flight_fits(qp, w, 0, 1))
		return false;
	if (!vb_congestion_admits(&qp->congestion, bytes)) {
		qp->congestion.limited = true;
		return false;
	}
	*ahead = bytes;
	return true;
}

bool vb_flight_asks(const struct vb_qp *qp, const struct vb_swqe *w, uint32_t k)
{
	return vb_congestion_asks(&qp->congestion, bytes_of(qp, w, k, k + 1));
}

void vb_flight_sent(struct vb_qp *qp, const struct vb_swqe *w, uint32_t from, uint32_t n)
{
	bool fetch = vb_wr_is(w->opcode, VB_WR_FETCH), fresh = is_fresh(qp, w, from), asks;
	uint64_t now;

	vb_lock_assert_held(&qp->lock);
	if (vb_unlikely(!qp->acked)) {
		vb_pace_sent(&qp->pace, bytes_of(qp, w, from, from + n), qp->pace.left > 0 ? 0 : now_of(qp));
		return;
	}
	asks = fetch || from + n == w->npsn || vb_flight_asks(qp, w, from);
	now = vb_congestion_times(&qp->congestion, fresh, asks) ? now_of(qp) : 0;
	if (is_read(w) && from && fresh && !is_idle(qp))
		qp->congestion.pieces++;
	/* of an answer the first packet tells of the round trip */
	vb_congestion_sent(&qp->congestion, vb_psn_add(w->psn, from + (fetch ? 1 : n)),
			   bytes_of(qp, w, from, from + n), fresh, asks, now);
}

/* Where a queue on the way is full, what is sent again is lost again, and the far end says so within a round
 * trip: all retries would be used up before the window is small enough.  They are for a path that does not
 * work, for as long as retry_cnt and the timeout say. */
bool vb_flight_counts(struct vb_qp *qp)
{
	struct vb_congestion *c = &qp->congestion;
	uint64_t now = now_of(qp);

	if (c->counted_at && qp->attr.timeout && now - c->counted_at < vb_rc_ack_timeout(qp->attr.timeout))
		return false;
	c->counted_at = now;
	return true;
}

void vb_flight_arrived(struct vb_qp *qp, const struct vb_swqe *w, uint32_t from, uint32_t n)
{
	struct vb_congestion *c = &qp->congestion;

	vb_congestion_arrived(c, bytes_of(qp, w, from, n));
	if (is_read(w) && n < w->npsn && n % w->piece == 0 && c->pieces)
		c->pieces--;
}

void vb_flight_progress(struct vb_qp *qp)
{
	struct vb_congestion *c = &qp->congestion;
	struct vb_req *q = &qp->req;
	/* The probe has arrived and nothing that was sent before it: that is lost, too. */
	bool lost = c->tail && vb_psn_diff(q->psn_una, c->probed_psn) == 1 && q->psn_una != c->probed_end;

	vb_lock_assert_held(&qp->lock);
	c->tail = false;
	c->probes = 0;
	vb_congestion_acked(c, q->psn_una, now_of(qp));
	if (!lost || q->retried >= qp->attr.retry_cnt)
		return;
	q->retried++;
	q->retry_pending = true;
	vb_flight_lost(qp);
	vb_rc_again(qp, VB_TRACE_TAIL);
}

bool vb_flight_is_news(const struct vb_qp *qp)
{
	const struct vb_req *q = &qp->req;

	return qp->path.out &&
	       vb_congestion_is_news(&qp->congestion, q->una != q->seen && is_read(vb_sq_at(q, q->una)),
				     now_of(qp));
}

void vb_flight_lost(struct vb_qp *qp)
{
	vb_congestion_lost(&qp->congestion, now_of(qp));
}

uint64_t vb_flight_timer(struct vb_qp *qp, uint64_t now)
{
	struct vb_congestion *c = &qp->congestion;
	struct vb_req *q = &qp->req;

	vb_lock_assert_held(&qp->lock);
	if (q->waiting_rnr || q->psn == q->psn_una || q->una == q->seen)
		return q->deadline;
	if (!c->probe_at)
		c->probe_at = now + vb_congestion_patience(c);
	if (now >= c->probe_at) {
		c->probes += c->probes < UINT8_MAX;
		c->probe_at = now + vb_congestion_patience(c);
		c->tail = !vb_wr_is(vb_sq_at(q, q->una)->opcode, VB_WR_FETCH);
		c->probed_psn = q->psn_una;
		c->probed_end = q->psn;
		c->timing = false;
		c->unasked = UINT32_MAX; /* it asks for an ACK */
		VB_TRACE_RETRANSMIT(qp->qpn, q->psn_una, VB_TRACE_PROBE, q->retried);
		vb_requester_probe(qp);
		vb_out_push(qp->path.out);
		c->unasked = 0;
	}
	return c->probe_at < q->deadline ? c->probe_at : q->deadline;
}

uint64_t vb_flight_waits(struct vb_qp *qp, uint64_t now)
{
	struct vb_req *q = &qp->req;
	uint64_t at = qp->pace.left > 0 ? 0 : vb_pace_at(&qp->pace);

	vb_lock_assert_held(&qp->lock);
	/* If that time has come it is the wire that has no room, and who waits for it looks again anyway. */
	q->deadline = !vb_requester_outstanding(qp) ? VB_NEVER : at > now ? at : now + VB_MSEC;
	return q->deadline;
}

uint32_t vb_flight_cut(const struct vb_qp *qp, const struct vb_swqe *w)
{
	const struct vb_congestion *c = &qp->congestion;
	uint32_t half = c->window / 2 / c->mtu;

	if (qp->max_rd_atomic < 2) /* there is never a second one */
		half *= 2;
	half = half > PIECE ? half : PIECE;
	return half < w->npsn ? half : w->npsn;
}

uint32_t vb_flight_piece(const struct vb_qp *qp, const struct vb_swqe *w, uint32_t from)
{
	uint32_t n = is_read(w) ? w->piece - from % w->piece : w->npsn, rest = w->npsn - from;

	(void)qp;
	return n < rest ? n : rest;
}

uint32_t vb_flight_left(const struct vb_qp *qp, const struct vb_swqe *w)
{
	uint32_t mtu = qp->congestion.mtu, from = w->got / mtu;
	uint32_t end = (from + vb_flight_piece(qp, w, from)) * mtu;

	return (end < w->length ? end : w->length) - w->got;
}

void vb_flight_astray(struct vb_qp *qp, uint32_t psn)
{
	struct vb_congestion *c = &qp->congestion;

	/* The requester went back, and what is expected was lost again: the NAK is due again. */
	if (qp->resp.nak_sent && vb_psn_diff(psn, c->astray) <= 0)
		qp->resp.nak_sent = false;
	c->astray = psn;
}

void vb_flight_marked(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_congestion *c = &qp->congestion;
	uint64_t now;

	count(qp, VB_TRAFFIC_MARKED_IN, 1);
	if (!qp->path.lossy)
		return;
	now = now_of(qp);
	if (p->op->bits & VB_OP_RESPONSE) /* how much of an answer comes at once this end decides */
		vb_congestion_marked(c, now);
	if ((!c->told_at || now - c->told_at >= TELL_EVERY) && vb_responder_notify(qp))
		c->told_at = now;
}

void vb_flight_other(struct vb_qp *qp, const struct vb_pkt *p)
{
	vb_lock_assert_held(&qp->lock);
	if (p->opcode != (VB_FAMILY_CNP | VB_NOTIFY))
		vb_not_taken(qp, p);
	else if (qp->path.lossy && qp->acked)
		vb_congestion_marked(&qp->congestion, now_of(qp));
	else if (qp->path.lossy)
		vb_pace_marked(&qp->pace, now_of(qp));
	if (p->opcode == (VB_FAMILY_CNP | VB_NOTIFY))
		count(qp, VB_TRAFFIC_CNPS_IN, 1);
}

bool vb_flight_leads_ack(const struct vb_qp *qp)
{
	const struct vb_req *q = &qp->req;
	const struct vb_swqe *w;

	if (!qp->path.out->acks_behind || q->next == q->seen || !vb_requester_ready(qp))
		return false;
	w = vb_sq_at(q, q->next);
	return w->state == VB_WQE_POSTED && w->length <= qp->path.out->mtu;
}
