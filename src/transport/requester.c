/* The requester: turns send WQEs into packets, in order, as far as fence, initiator depth, PSN window, RNR
 * wait and the wire allow.  What comes back is the completer's business. */
#include <string.h>

#include "base/few.h"
#include "transport/congestion.h"
#include "transport/lend.h"
#include "transport/place.h"
#include "transport/start.h"

/* An ACK is asked for at least this often within a long message: what a lossy wire has to repeat is bounded,
 * and a sender whose ring was full hears that it has room. */
enum { ACK_EVERY = 8 };

enum { TOGETHER = 8 }; /* requests of a list that leave with one call of the wire */

void vb_requester_fail(struct vb_qp *qp, struct vb_swqe *w, enum vb_reason r, struct vb_facts *f)
{
	f->reason = r;
	f->qpn = qp->qpn;
	qp->why = *f;
	w->state = VB_WQE_FAILED;
	w->reason = r;
}

__attribute__((cold, noinline)) void vb_requester_refused(struct vb_qp *qp, struct vb_swqe *w)
{
	struct vb_facts f = {.request = {.opcode = w->opcode, .type = qp->ibv.qp_type}};

	vb_requester_fail(qp, w, w->reason, &f);
}

/* Everything that can be wrong with a request at this side, before its first packet. */
static bool check(struct vb_qp *qp, struct vb_swqe *w)
{
	bool fetch = vb_wr_is(w->opcode, VB_WR_FETCH);
	struct vb_facts f = {0};
	enum vb_reason r;

	if (fetch && !qp->max_rd_atomic) { /* rule 14 */
		vb_requester_fail(qp, w, VB_R_READ_DEPTH_ZERO, &f);
		return false;
	}
	if (vb_wr_is(w->opcode, VB_WR_ATOMIC) && w->length != 8) {
		f.length = (struct vb_length_facts){.bytes = w->length, .fit = 8};
		vb_requester_fail(qp, w, VB_R_MSG_TOO_LONG, &f);
		return false;
	}
	if (w->flags & IBV_SEND_INLINE) /* rule 40: bytes are here already */
		return true;
	if (fetch && qp->req.late_sinks) /* the copy's own check comes with the answer (rule 13) */
		return true;
	for (uint32_t i = 0; i < w->num_sge; i++) {
		if (!w->sge[i].length)
			continue;
		r = vb_sg_check(qp, &w->sge[i], fetch ? IBV_ACCESS_LOCAL_WRITE : 0, &f);
		if (vb_unlikely(r != VB_OK)) {
			vb_requester_fail(qp, w, r, &f);
			return false;
		}
	}
	return true;
}

/* A packet is sent that was sent before. */
static inline bool is_again(const struct vb_req *q)
{
	return ((q->psn - q->psn_una) & VB_PSN_MASK) < ((q->psn_max - q->psn_una) & VB_PSN_MASK);
}

/* Packets up to q->psn have been sent. */
static inline void note_sent(struct vb_req *q)
{
	/* as distances: a READ alone may take 2^23 PSNs, too many to compare signed */
	if (((q->psn - q->psn_una) & VB_PSN_MASK) > ((q->psn_max - q->psn_una) & VB_PSN_MASK))
		q->psn_max = q->psn;
}

/* Gives a posted request its PSNs, unless it has to wait.  true: its packets may go. */
static bool start(struct vb_qp *qp, struct vb_swqe *w)
{
	struct vb_req *q = &qp->req;
	bool fetch = vb_wr_is(w->opcode, VB_WR_FETCH);

	if ((w->flags & IBV_SEND_FENCE) && q->reads) /* rule 9: waits for READs and atomics, nothing else */
		return false;
	if (fetch && qp->max_rd_atomic && q->reads >= qp->max_rd_atomic) /* rule 14 */
		return false;
	if (fetch && vb_unlikely(qp->path.lossy) && vb_flight_deep(qp))
		return false;
	/* One buffer and one packet need no check ahead: the copy's own comes before anything is sent. */
	if ((fetch || w->num_sge > 1 || w->length > qp->path.out->mtu) && w->place != VB_PLACE_DONE &&
	    !check(qp, w))
		return false;
	/* What is not acknowledged is the program's again before it could be collected. */
	if (vb_unlikely(w->length >= VB_LEND_FROM) && qp->acked && w->place == VB_PLACE_MAYBE &&
	    vb_lend_may(qp, w))
		w->place = VB_PLACE_LENT;
	w->npsn = w->place == VB_PLACE_DONE ? 1 : psn_count(w->length, qp->path.out->mtu);
	if (fetch && !window_open(q, w->npsn))
		return false;
	if (fetch && vb_unlikely(qp->path.lossy))
		w->piece = vb_flight_cut(qp, w);
	q->reads += fetch;
	w->psn = q->psn;
	w->got = 0;
	started(q, w);
	vb_traffic_send(qp->traffic, fetch ? 0 : w->length); /* a READ asks for its bytes */
	if (!fetch && w->length > SHORTEST_MTU)
		count(qp, VB_TRAFFIC_PACKETS_OUT, further_packets(qp, w->length));
	return true;
}

enum sent { SENT, BLOCKED, FAILED };

/* The fields of packet k of a SEND or WRITE, len bytes of payload.  One by one: clearing those for which its
 * opcode has no header would cost more than the rest. */
static inline void describe(const struct vb_qp *qp, const struct vb_swqe *w, uint32_t k, uint32_t len,
			    struct vb_pkt *p)
{
	const struct vb_wr_packets *set = &vb_wrs[w->opcode].packets;
	bool first = k == 0, last = k + 1 == w->npsn;

	p->opcode = qp->family | (first ? (last ? set->only : set->first) : (last ? set->last : set->middle));
	p->pkey = VB_PKEY_DEFAULT;
	p->ack_req = qp->acked && (last || (vb_unlikely(qp->path.lossy) ? vb_flight_asks(qp, w, k)
									: k % ACK_EVERY == ACK_EVERY - 1));
	p->solicited = last && (w->flags & IBV_SEND_SOLICITED);
	p->pad = -len & 3;
	p->qpn = qp->dest_qpn;
	p->psn = vb_psn_add(w->psn, k);
	p->op = &vb_opcodes[p->opcode];
}

/* What those of its headers say that follow the BTH. */
static inline void describe_more(const struct vb_swqe *w, struct vb_pkt *p)
{
	p->rkey = w->remote.rkey;
	p->va = w->remote.addr; /* rule 6: only the first packet carries it, and it never shifts */
	p->dma_len = w->length;
	p->imm = w->imm; /* one with the key to invalidate */
	p->inv_rkey = w->inv_rkey;
	p->srqn = w->remote.srqn;
}

/* One packet of a SEND or WRITE. */
static enum sent send_packet(struct vb_qp *qp, struct vb_swqe *w, uint32_t k)
{
	uint32_t mtu = qp->path.out->mtu, off = k * mtu;
	bool placed = w->place == VB_PLACE_DONE;
	uint32_t len = placed ? 0 : w->length - off < mtu ? w->length - off : mtu;
	struct vb_outbuf b;
	struct vb_facts f;
	struct vb_pkt p;
	enum vb_reason r = VB_OK;

	describe(qp, w, k, len, &p);
	if (p.op->bits & VB_OP_HEADERS)
		describe_more(w, &p);
	if (vb_unlikely(
		!qp->path.out->ops->reserve(qp->path.out, &b, p.op->hdr_len, len + p.pad, VB_OUT_REQUEST)))
		return BLOCKED;
	if (w->flags & IBV_SEND_INLINE)
		memcpy(b.payload, w->inline_data + off, len);
	else if (len)
		r = vb_sg_copy(qp, qp->pd_id, w->sge, w->num_sge, off, b.payload, len, VB_SG_GATHER, &f);
	if (vb_unlikely(r != VB_OK)) {
		qp->path.out->ops->cancel(qp->path.out, &b);
		vb_requester_fail(qp, w, r, &f);
		return FAILED;
	}
	memset(b.payload + len, 0, p.pad);
	vb_pkt_encode(b.hdr, &p);
	b.placed = placed;
	b.path_mtu = qp->path_mtu;
	carry_ack(qp, &b);
	qp->path.out->ops->commit(qp->path.out, &b);
	return SENT;
}

/* How many PSNs the next packet of a SEND or WRITE takes. */
static inline uint32_t span(const struct vb_qp *qp, const struct vb_swqe *w)
{
	return vb_unlikely(w->place == VB_PLACE_LENT) ? vb_lend_span(qp, w, qp->req.sent) : 1;
}

static inline enum sent send_next(struct vb_qp *qp, struct vb_swqe *w)
{
	if (vb_unlikely(w->place == VB_PLACE_LENT))
		return vb_lend_send(qp, w, qp->req.sent) ? SENT : BLOCKED;
	return send_packet(qp, w, qp->req.sent);
}

/* The packets of a started request that have not gone (again).  true: all are out. */
static bool send_wqe(struct vb_qp *qp, struct vb_swqe *w)
{
	struct vb_req *q = &qp->req;

	if (vb_wr_is(w->opcode, VB_WR_FETCH))
		return vb_fetch_send(qp, w);
	while (q->sent < w->npsn) {
		uint32_t n = span(qp, w);

		if (vb_unlikely(!window_open(q, n)) ||
		    (vb_unlikely(qp->path.lossy) && !vb_flight_opens(qp, w, q->sent, n)))
			return false;
		switch (send_next(qp, w)) {
		case BLOCKED:
			q->blocked = true;
			return false;
		case FAILED:
			return false;
		case SENT:
			if (vb_unlikely(qp->path.lossy))
				vb_flight_sent(qp, w, q->sent, n);
			if (vb_unlikely(is_again(q)))
				count(qp, VB_TRAFFIC_RETRANSMITTED, n);
			q->sent += n;
			q->psn = vb_psn_add(w->psn, q->sent);
			if (vb_unlikely(!qp->acked)) /* what has left is not waited for: no window */
				q->psn_una = q->psn;
		}
	}
	return true;
}

/* In SQD nothing is begun. */
static inline bool may_begin(const struct vb_qp *qp, const struct vb_swqe *w)
{
	return qp->state == IBV_QPS_RTS || w->state != VB_WQE_POSTED || w->placed;
}

/* The receiver was not ready for the oldest request, which is out again: whether it is ready now will be
 * heard, and what would follow it meanwhile would be sent in vain. */
static inline bool probes(const struct vb_req *q)
{
	return vb_unlikely(q->rnr_row) && q->next != q->una;
}

/* NULL: none. */
static inline struct vb_swqe *oldest(const struct vb_req *q)
{
	return q->una != q->seen ? vb_sq_at(q, q->una) : NULL;
}

bool vb_requester_settles(const struct vb_qp *qp)
{
	const struct vb_swqe *w = oldest(&qp->req);

	return w && w->state == VB_WQE_GOING;
}

static inline bool outstanding(const struct vb_qp *qp)
{
	const struct vb_swqe *w = oldest(&qp->req);

	if (!w)
		return false;
	if (vb_unlikely(w->state == VB_WQE_GOING))
		return true;
	/* Only contact is waited for, and not for ever: nobody would miss what is lost (vb_transport.acked).
	 * And where packets may be lost, the time at which more may leave. */
	if (vb_unlikely(!qp->acked))
		return qp->path.out ? qp->path.lossy && may_begin(qp, w) && w->state != VB_WQE_FAILED
				    : !qp->path.nobody && qp->state == IBV_QPS_RTS;
	if (vb_unlikely(qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_SQD))
		return false;
	/* Without a way out nothing starts; the timer counts down all the same, since packets to nobody are
	 * lost packets. */
	return w->state == VB_WQE_STARTED || (!qp->path.out && (qp->state == IBV_QPS_RTS || w->placed) &&
					      !vb_wr_is(w->opcode, VB_WR_LOCAL));
}

bool vb_requester_outstanding(const struct vb_qp *qp)
{
	return outstanding(qp);
}

void vb_requester_arm(struct vb_qp *qp)
{
	vb_lock_assert_held(&qp->lock);
	qp->req.deadline = outstanding(qp) ? 0 : VB_NEVER;
}

/* A failed request whose turn has come. */
static __attribute__((cold, noinline)) void fail_oldest(struct vb_qp *qp)
{
	struct vb_facts f = qp->why;
	bool waited = qp->state == IBV_QPS_ERR; /* what is behind it */

	vb_rc_fail_send(qp, &f, vb_reasons[f.reason].local_wc);
	if (waited)
		vb_rc_flush(qp);
}

static __attribute__((cold, noinline)) void look_drained(struct vb_qp *qp, const struct vb_swqe *w)
{
	bool begun = w && ((w->state != VB_WQE_POSTED && w->state != VB_WQE_REFUSED) || w->placed);

	if (qp->req.drained_posted || begun)
		return;
	qp->req.drained_posted = true;
	if (qp->attr.en_sqd_async_notify)
		vb_async_post(qp->ctx, &qp->ev_drained);
}

static inline void turn(struct vb_qp *qp)
{
	struct vb_swqe *w = oldest(&qp->req);

	if (vb_unlikely(w && w->state == VB_WQE_FAILED))
		fail_oldest(qp);
	else if (vb_unlikely(qp->state == IBV_QPS_SQD))
		look_drained(qp, w);
}

void vb_requester_turn(struct vb_qp *qp)
{
	vb_lock_assert_held(&qp->lock);
	turn(qp);
}

/* All packets of the request before q->next have left, and nobody will acknowledge them. */
static __attribute__((noinline)) void complete_sent(struct vb_qp *qp, struct vb_swqe *w)
{
	struct vb_req *q = &qp->req;

	q->psn_una = q->psn;
	q->una++;
	vb_rc_complete_send(qp, w, IBV_WC_SUCCESS);
}

/* Nobody is there to whom the request at q->next could be sent: its packets, or those that are left of it,
 * are lost. */
static void lose(struct vb_qp *qp, struct vb_swqe *w)
{
	const struct vb_facts f = {.reason = VB_R_DROP_NOBODY,
				   .qpn = qp->qpn,
				   .retry = {.peer_qpn = qp->dest_qpn, .silence = qp->silence}};
	struct vb_req *q = &qp->req;

	if (w->state == VB_WQE_POSTED) {
		w->npsn = psn_count(w->length, path_mtu(qp));
		w->psn = q->psn;
		started(q, w);
		vb_traffic_send(qp->traffic, w->length);
	}
	q->psn = vb_psn_add(w->psn, w->npsn);
	q->next++;
	q->sent = 0;
	vb_drop(qp, &f);
	complete_sent(qp, w);
}

/* The request at q->next has no way out.  What is wrong with it at this end fails it now: an adapter sends
 * without asking whether somebody is there, and so finds that first (rule 13).  true: it is done with. */
static __attribute__((noinline)) bool go_nowhere(struct vb_qp *qp, struct vb_swqe *w)
{
	if (w->state == VB_WQE_FAILED || !may_begin(qp, w) || (w->state == VB_WQE_POSTED && !check(qp, w)) ||
	    !qp->path.nobody)
		return false;
	lose(qp, w);
	return true;
}

/* Whether the request is the common one, which goes next but for `before` such; whatever is rare is left to
 * vb_requester_run(). */
static inline bool is_plain(const struct vb_req *q, const struct vb_swqe *w, uint32_t before)
{
	return w->state == VB_WQE_POSTED && !(vb_wrs[w->opcode].bits & (VB_WR_FETCH | VB_WR_LOCAL)) &&
	       w->num_sge <= 1 && !(w->flags & IBV_SEND_FENCE && q->reads) && window_open(q, before + 1);
}

/* All headers of a request of one packet. */
static __attribute__((noinline)) void put_headers(const struct vb_qp *qp, const struct vb_swqe *w,
						  uint8_t *to)
{
	struct vb_pkt p;

	describe(qp, w, 0, w->length, &p);
	describe_more(w, &p);
	vb_pkt_encode(to, &p);
}

/* The bytes of the one packet of a request whose npsn and psn are set, at q->next or behind it in a list.
 * false: it is not brief, or is to be placed directly, or its data is not to be had so easily. */
static inline __attribute__((always_inline)) bool make_brief(struct vb_qp *qp, struct vb_swqe *w,
							     struct vb_brief *b)
{
	uint8_t *payload;
	struct vb_pkt p;

	describe(qp, w, 0, w->length, &p);
	if (vb_unlikely(p.op->hdr_len + w->length + p.pad > qp->path.out->brief))
		return false;
	if (vb_unlikely(p.op->bits & VB_OP_WRITE) && !vb_place_rings(qp, w))
		return false;
	b->hdr_len = p.op->hdr_len;
	b->lengths = (uint16_t)(w->length + p.pad);
	b->flags = (uint8_t)(qp->path_mtu * VB_BRIEF_MTU);
	b->ack = qp->resp.ack_owed ? ack_word(&qp->resp) : 0;
	if (vb_likely(!(p.op->bits & VB_OP_HEADERS)))
		vb_pkt_put_bth(b->bytes, &p);
	else
		put_headers(qp, w, b->bytes);
	payload = b->bytes + b->hdr_len;
	if (w->flags & IBV_SEND_INLINE)
		vb_copy_few(payload, w->inline_data, w->length);
	else if (w->length)
		return vb_sg_gather(qp, w->sge, payload, w->length);
	return true;
}

/* The one request that is to be sent goes, and nothing else is to be done.  false: it has not, or there is
 * more. */
static inline __attribute__((always_inline)) bool send_brief(struct vb_qp *qp, bool lossy)
{
	struct vb_req *q = &qp->req;
	struct vb_swqe *w = vb_sq_at(q, q->next);
	struct vb_out *out = qp->path.out;
	struct vb_brief b = {0};
	uint32_t psn = q->psn;
	uint64_t mark;

	if (vb_unlikely(q->seen - q->next != 1 || !only_sends(qp, lossy) || !is_plain(q, w, 0)))
		return false;
	if (lossy && !vb_flight_fits(qp, w, 0, 1))
		return false;
	w->npsn = 1;
	w->psn = psn;
	if (vb_unlikely(!make_brief(qp, w, &b)))
		return false;
	mark = lossy && qp->resp.ack_owed ? vb_responder_send_before(qp, &b)
					  : out->ops->send(out, &b, VB_OUT_REQUEST);
	if (vb_unlikely(!mark))
		return false;
	started(q, w);
	if (lossy)
		vb_flight_sent(qp, w, 0, 1);
	q->mark = mark;
	if (!lossy) /* it went along */
		qp->resp.ack_owed = false;
	q->blocked = q->placing = false;
	q->psn = vb_psn_add(psn, 1);
	if (q->psn_max == psn) /* note_sent(), of one packet */
		q->psn_max = q->psn;
	q->next++;
	vb_traffic_send(qp->traffic, w->length);
	if (vb_unlikely(!qp->acked))
		complete_sent(qp, w);
	else if (q->deadline == VB_NEVER) /* it is outstanding now */
		q->deadline = 0;
	return true;
}

/* The requests at q->next that send_brief() could send, one after the other, leave together here, as far as
 * there is room for them. */
void vb_requester_list(struct vb_qp *qp)
{
	struct vb_req *q = &qp->req;
	struct vb_brief b[TOGETHER];
	bool lossy = qp->path.lossy;
	uint32_t n, sent, all = 0;

	vb_lock_assert_held(&qp->lock);
	if (!only_sends(qp, lossy) || (q->blocked && !qp->path.out->ops->room(qp->path.out)))
		return;
	do {
		uint64_t ahead = 0;

		for (n = 0; n < TOGETHER && q->next + n != q->seen; n++) {
			struct vb_swqe *w = vb_sq_at(q, q->next + n);

			if (!is_plain(q, w, n))
				break;
			w->npsn = 1;
			w->psn = vb_psn_add(q->psn, n);
			if (vb_unlikely(lossy) && !vb_flight_joins(qp, w, &ahead))
				break;
			b[n] = (struct vb_brief){0};
			if (!make_brief(qp, w, &b[n]))
				break;
			if (n)
				b[n].ack = 0;
		}
		sent = n ? qp->path.out->ops->send_list(qp->path.out, b, n, VB_OUT_REQUEST) : 0;
		if (!sent)
			break;
		if (!lossy)
			qp->resp.ack_owed = false;
		for (uint32_t i = 0; i < sent && qp->state == IBV_QPS_RTS; i++) {
			struct vb_swqe *w = vb_sq_at(q, q->next);

			started(q, w);
			if (vb_unlikely(lossy))
				vb_flight_sent(qp, w, 0, 1);
			vb_traffic_send(qp->traffic, w->length);
			q->psn = vb_psn_add(q->psn, 1);
			q->next++;
			if (!qp->acked)
				complete_sent(qp, w);
		}
		note_sent(q);
		q->mark = qp->path.out->ops->mark(qp->path.out);
		if (qp->acked && q->deadline == VB_NEVER)
			q->deadline = 0;
		all += sent;
	} while (sent == TOGETHER);
	if (!all)
		return;
	if (lossy && qp->resp.ack_owed)
		vb_responder_follow(qp);
	vb_out_push(qp->path.out);
}

/* On a lossy path; apart, so that others pay one test for it. */
static __attribute__((noinline)) bool send_brief_there(struct vb_qp *qp)
{
	return send_brief(qp, true);
}

bool vb_requester_output(struct vb_path *p, uint32_t place)
{
	struct vb_qp *qp = p->qp;

	vb_lock_assert_held(&qp->lock);
	vb_sq_notice(qp);
	if (vb_unlikely(p->apart) && (p->lossy || vb_place_at_once(qp, place)))
		return p->lossy && !send_brief_there(qp) && vb_rc_output(qp, place);
	return vb_likely(send_brief(qp, false)) ? false : vb_rc_output(qp, place);
}

bool vb_requester_run(struct vb_qp *qp, uint32_t place)
{
	struct vb_req *q = &qp->req;
	bool sent = false, runs;

	vb_lock_assert_held(&qp->lock);
	q->blocked = q->placing = false;
	if (!vb_requester_may_work(qp)) { /* rule 2: a post does not end an RNR wait */
		if (vb_requester_settles(qp) && !vb_window_local(qp))
			vb_requester_turn(qp);
		goto out;
	}
	while (q->next != q->seen) {
		struct vb_swqe *w = vb_sq_at(q, q->next);

		if (probes(q))
			break;
		if (vb_unlikely(w->state == VB_WQE_REFUSED)) {
			if (qp->state == IBV_QPS_RTS) /* in SQD nothing is begun */
				vb_requester_refused(qp, w);
			break;
		}
		if (vb_unlikely(vb_wr_is(w->opcode, VB_WR_LOCAL))) {
			if (vb_window_local(qp))
				continue;
			break;
		}
		if (vb_unlikely(!qp->path.out)) {
			if (go_nowhere(qp, w))
				continue;
			break;
		}
		if (w->state == VB_WQE_POSTED) {
			if (!may_begin(qp, w))
				break;
			if (qp->path.mem && vb_wrs[w->opcode].access) {
				enum vb_placed p = vb_place(qp, w, &place);

				if (p == VB_PLACED)
					continue;
				if (p == VB_PLACED_LATER)
					break;
			}
			if (!start(qp, w))
				break;
		}
		if (w->state == VB_WQE_FAILED)
			break;
		sent = true;
		if (!send_wqe(qp, w))
			break;
		q->next++;
		q->sent = 0;
		if (vb_unlikely(!qp->acked))
			complete_sent(qp, w);
	}
	qp->congestion.going = false;
	if (sent) {
		if (vb_unlikely(qp->path.out->acks_behind) && qp->resp.ack_owed && only_sends(qp, true))
			vb_responder_follow(qp);
		vb_out_push(qp->path.out);
		note_sent(q);
		q->mark = qp->path.out->ops->mark(qp->path.out);
	}
	turn(qp);
out:
	runs = outstanding(qp);
	if ((q->deadline != VB_NEVER) != runs)
		q->deadline = runs ? 0 : VB_NEVER;
	return q->blocked || q->placing;
}

bool vb_requester_ready(const struct vb_qp *qp)
{
	const struct vb_req *q = &qp->req;
	const struct vb_swqe *w;

	if (vb_requester_settles(qp))
		return true;
	if (q->next == q->seen || !vb_requester_may_work(qp) || probes(q))
		return false;
	w = vb_sq_at(q, q->next);
	if (vb_unlikely(w->state == VB_WQE_REFUSED))
		return qp->state == IBV_QPS_RTS;
	if (vb_wr_is(w->opcode, VB_WR_LOCAL))
		return q->una == q->next && w->state == VB_WQE_POSTED && qp->state == IBV_QPS_RTS;
	if (!qp->path.out)
		return qp->path.nobody && may_begin(qp, w);
	if (w->state == VB_WQE_POSTED) {
		if (q->placing)
			return true;
		if (qp->path.mem && vb_place_holds(qp, w))
			return false;
		if (qp->state != IBV_QPS_RTS || ((w->flags & IBV_SEND_FENCE) && q->reads))
			return false;
		if (vb_wr_is(w->opcode, VB_WR_FETCH) && q->reads && q->reads >= qp->max_rd_atomic)
			return false;
		if (vb_unlikely(qp->path.lossy) && !vb_flight_fits(qp, w, 0, 1))
			return false;
		return window_open(
		    q, vb_wr_is(w->opcode, VB_WR_FETCH) ? psn_count(w->length, qp->path.out->mtu) : 1);
	}
	if (vb_unlikely(qp->path.lossy) && !vb_flight_fits(qp, w, q->sent, 1))
		return false;
	return w->state == VB_WQE_STARTED &&
	       (vb_wr_is(w->opcode, VB_WR_FETCH) || window_open(q, span(qp, w)));
}

void vb_requester_back(struct vb_qp *qp)
{
	struct vb_req *q = &qp->req;
	struct vb_swqe *w;

	vb_lock_assert_held(&qp->lock);
	q->next = q->una;
	q->sent = 0;
	q->psn = q->psn_una;
	if (vb_unlikely(qp->path.lossy))
		vb_congestion_back(&qp->congestion);
	if (q->next == q->seen)
		return;
	w = vb_sq_at(q, q->next);
	if (w->state == VB_WQE_STARTED)
		q->sent = (q->psn_una - w->psn) & VB_PSN_MASK;
}

void vb_requester_probe(struct vb_qp *qp)
{
	struct vb_req *q = &qp->req;
	struct vb_swqe *w = oldest(q);
	uint32_t k;

	vb_lock_assert_held(&qp->lock);
	if (!w || w->state != VB_WQE_STARTED)
		return;
	k = (q->psn_una - w->psn) & VB_PSN_MASK;
	count(qp, VB_TRAFFIC_RETRANSMITTED, 1);
	if (vb_wr_is(w->opcode, VB_WR_FETCH))
		vb_fetch_again(qp, w, k);
	else
		send_packet(qp, w, k);
	turn(qp);
}
