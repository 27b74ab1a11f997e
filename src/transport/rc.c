/* The parts that all engines share: completions, the error state, flushing, timers. */
#include <inttypes.h>
#include <string.h>

#include "base/debug.h"
#include "base/log.h"
#include "iba/facts.h"
#include "iba/names.h"
#include "iba/shown.h"
#include "transport/congestion.h"
#include "transport/forward.h"
#include "transport/rc_priv.h"
#include "transport/xrc.h"

void vb_rc_push(struct vb_qp *qp, struct vb_cq *cq, const struct vb_cqe *e, bool solicited)
{
	struct vb_facts f;

	vb_lock_assert_held(&qp->lock);
	if (vb_likely(vb_cq_push(cq, e, solicited)) || qp->state == IBV_QPS_ERR)
		return;
	f = (struct vb_facts){.reason = VB_R_CQ_OVERRUN, .qpn = qp->qpn, .limit = {.most = cq->cqe}};
	vb_rc_error(qp, &f); /* rule 31 */
}

/* Field by field, in place: what is put together elsewhere is copied. */
static inline void put_sent(struct ibv_wc *to, const struct vb_qp *qp, const struct vb_swqe *w)
{
	memset(to, 0, sizeof *to);
	to->wr_id = w->wr_id;
	to->opcode = vb_wrs[w->opcode].wc;
	to->qp_num = qp->qpn;
}

static __attribute__((cold, noinline)) void count_failure(const struct vb_qp *qp, uint8_t status)
{
	static const enum vb_traffic_count by_status[] = {
	    [IBV_WC_RETRY_EXC_ERR] = VB_TRAFFIC_RETRY_EXCEEDED,
	    [IBV_WC_RNR_RETRY_EXC_ERR] = VB_TRAFFIC_RNR_EXCEEDED,
	    [IBV_WC_REM_ACCESS_ERR] = VB_TRAFFIC_REMOTE_ACCESS,
	    [IBV_WC_REM_INV_REQ_ERR] = VB_TRAFFIC_REMOTE_INVALID};

	count(qp, VB_TRAFFIC_SEND_ERRORS, 1);
	if (status < sizeof by_status / sizeof *by_status && by_status[status])
		count(qp, by_status[status], 1);
}

/* `w` has left the queue already (q->una is behind it). */
void vb_rc_complete_send(struct vb_qp *qp, struct vb_swqe *w, uint8_t status)
{
	bool failed = status != IBV_WC_SUCCESS;
	struct ibv_wc *to;
	struct vb_cqe e;

	vb_lock_assert_held(&qp->lock);
	if (vb_unlikely(failed))
		count_failure(qp, status);
	if (vb_unlikely(qp->counters != NULL))
		vb_comp_sent(qp, w, failed);
	if (!failed && !(w->flags & IBV_SEND_SIGNALED)) /* rule 39 */
		return;
	to = vb_likely(!failed) ? vb_cq_handed(qp->scq) : NULL;
	put_sent(to ? to : &e.wc, qp, w);
	if (!failed && vb_wr_is(w->opcode, VB_WR_FETCH))
		(to ? to : &e.wc)->byte_len = w->length;
	if (vb_likely(to != NULL)) {
		vb_sq_give(qp, qp->req.una);
		return;
	}
	e.wc.status = status;
	e.wc.vendor_err = failed ? w->reason : 0;
	e.qp = qp;
	e.srq = NULL;
	e.sq_free = qp->req.una;
	e.is_send = true;
	vb_rc_push(qp, qp->scq, &e, failed);
}

static const char *const far_end[] = {"", " (reported by the peer)"};

/* The far end's facts are data. */
static const char *name_of(const struct vb_facts *f)
{
	return f->reason < VB_REASONS ? vb_reasons[f->reason].name : "unknown";
}

static bool is_far(const struct vb_qp *qp, const struct vb_facts *f)
{
	return f->qpn && f->qpn != qp->qpn;
}

/* Which ends rdma_cm has connected, as seen from the one that found it.  Of a far end that shows nothing it
 * is taken to be as this one is. */
static struct vb_facts with_ends(const struct vb_qp *qp, const struct vb_facts *f)
{
	const struct vb_shown_qp *peer = qp->path.peer_qp;
	bool own = qp->by_cm, far = peer ? atomic_load_explicit(&peer->by_cm, memory_order_relaxed) : own;
	struct vb_facts told = *f;

	vb_lock_assert_held(&qp->lock);
	if (is_far(qp, f))
		told.ends = (uint16_t)((f->ends & VB_END_HERE) | (own ? VB_END_THERE : 0));
	else
		told.ends = (uint16_t)((own ? VB_END_HERE : 0) | (far ? VB_END_THERE : 0));
	return told;
}

/* A request of this end has failed. */
static void say(struct vb_qp *qp, const char *what, uint64_t wr_id, uint8_t status, const struct vb_facts *f)
{
	struct vb_facts told;
	char buf[700], facts[VB_LOG_FACTS];

	if (!vb_log_wanted(VB_LOG_WARN))
		return;
	told = with_ends(qp, f);
	vb_log_reason_facts(name_of(f), vb_facts_logged(facts, &told),
			    "QP 0x%06x: %s wr_id 0x%" PRIx64 " ended with %s: %s%s", qp->qpn, what, wr_id,
			    vb_name_wc_status(status), vb_reason_say(buf, sizeof buf, &told),
			    far_end[is_far(qp, f)]);
}

/* Something else has: no completion here tells of it. */
static void say_event(struct vb_qp *qp, const char *what, const struct vb_facts *f)
{
	struct vb_facts told;
	char buf[700], facts[VB_LOG_FACTS];

	if (!vb_log_wanted(VB_LOG_WARN))
		return;
	told = with_ends(qp, f);
	vb_log_reason_facts(name_of(f), vb_facts_logged(facts, &told), "QP 0x%06x: %s: %s", qp->qpn, what,
			    vb_reason_say(buf, sizeof buf, &told));
}

void vb_drop(struct vb_qp *qp, const struct vb_facts *f)
{
	uint64_t bit = 1ull << f->reason;

	vb_lock_assert_held(&qp->lock);
	if (qp->drops)
		atomic_fetch_add_explicit(&qp->drops->count[f->reason], 1, memory_order_relaxed);
	if (!(qp->said & bit))
		say_event(qp, "messages are discarded", f);
	qp->said |= bit;
}

static struct vb_cqe flushed(struct vb_qp *qp)
{
	return (struct vb_cqe){
	    .wc = {.status = IBV_WC_WR_FLUSH_ERR, .qp_num = qp->qpn, .vendor_err = VB_R_FLUSHED}, .qp = qp};
}

static void flush_sends(struct vb_qp *qp)
{
	struct vb_req *q = &qp->req;
	struct vb_cqe e = flushed(qp);

	vb_sq_notice(qp);
	/* A request that has begun to take a window back ends as it would have, and those behind it wait for
	 * it: nobody would know what has become of the window (rule 46). */
	while (q->una != q->seen && !vb_requester_settles(qp)) {
		struct vb_swqe *w = vb_sq_at(q, q->una++);

		e.wc.wr_id = w->wr_id;
		e.wc.opcode = vb_wrs[w->opcode].wc;
		e.sq_free = q->una;
		e.is_send = true;
		qp->flushed_send++;
		count(qp, VB_TRAFFIC_SEND_ERRORS, 1);
		count(qp, VB_TRAFFIC_SEND_FLUSHED, 1);
		if (qp->counters)
			vb_comp_sent(qp, w, true);
		vb_rc_push(qp, qp->scq, &e, true);
	}
	q->next = q->una;
}

static void flush_receive(struct vb_qp *qp, const struct vb_cqe *e)
{
	qp->flushed_recv++;
	count(qp, VB_TRAFFIC_RECEIVE_ERRORS, 1);
	count(qp, VB_TRAFFIC_RECEIVE_FLUSHED, 1);
	if (qp->counters)
		vb_comp_received(qp, 0, true);
	vb_rc_push(qp, qp->rcq, e, true);
}

/* The queues, in order, oldest first (rule 30); in SQE only that which has failed. */
void vb_rc_flush(struct vb_qp *qp)
{
	struct vb_resp *s = &qp->resp;
	struct vb_cqe e = flushed(qp);

	vb_lock_assert_held(&qp->lock);
	flush_sends(qp);
	if (qp->state == IBV_QPS_SQE)
		return;
	e.wc.opcode = IBV_WC_RECV;
	e.qp = vb_qp_of_receive(qp);
	e.srq = qp->srq;
	if (s->have_wqe) {
		s->have_wqe = false;
		e.wc.wr_id = s->cur->wr_id;
		flush_receive(qp, &e);
	}
	while (!qp->srq && !vb_rq_empty(&s->rq)) {
		e.wc.wr_id = vb_rq_at(&s->rq, s->rq.tail++)->wr_id;
		flush_receive(qp, &e);
	}
	/* rule 35: none is held any more, and none will be taken */
	if (qp->srq && !qp->xrcd && !qp->last_wqe_done) {
		qp->last_wqe_done = true;
		vb_async_post(qp->ctx, &qp->ev_last_wqe);
	}
}

/* Before the program hears of a failure: from then on it may change what it has lent. */
static void take_leave_back(struct vb_qp *qp)
{
	if (qp->shown)
		qp->unsettled |= atomic_exchange(&qp->shown->may, 0) != 0;
}

static void enter_error(struct vb_qp *qp, const struct vb_facts *f)
{
	struct vb_req *q = &qp->req;

	vb_qp_set_state(qp, IBV_QPS_ERR);
	qp->ibv.state = IBV_QPS_ERR;
	vb_lock_take(&qp->post.receives); /* who posts from here on flushes by itself */
	vb_lock_give(&qp->post.receives);
	take_leave_back(qp);
	if (qp->shown) /* before the flush tells the application */
		atomic_store_explicit(&qp->shown->state, 1 + IBV_QPS_ERR, memory_order_release);
	if (vb_unlikely(qp->forwards && qp->forwards->ops))
		qp->forwards->ops->end(qp);
	qp->why = *f;
	q->waiting_rnr = false;
	vb_requester_arm(qp);
	q->reads = 0;
	q->blocked = q->placing = false;
	qp->resp.ack_owed = false;
	qp->resp.in_message = false;
	if (vb_unlikely(qp->deputy) && !qp->resp.nak_owed && f->reason != VB_R_FLUSHED) {
		qp->resp.nak_owed = vb_reasons[f->reason].nak; /* the target is to end as well */
		qp->resp.nak_psn = qp->resp.epsn;
		qp->resp.nak_facts = *f;
	}
	if (!qp->resp.nak_owed) { /* a NAK still goes out, behind the answers that it follows */
		qp->resp.res_next = qp->resp.res_head;
		qp->resp.replaying = false;
	}
	vb_rc_flush(qp);
	if (f->reason != VB_R_FLUSHED && qp->flushed_send + qp->flushed_recv && vb_log_wanted(VB_LOG_INFO))
		vb_log(VB_LOG_INFO, "QP 0x%06x: %u send and %u receive requests were flushed after that",
		       qp->qpn, qp->flushed_send, qp->flushed_recv);
	qp->flushed_send = qp->flushed_recv = 0;
}

/* A send request has failed of which the far end hears nothing: what is behind it is flushed, and receiving
 * goes on, until the program moves the QP on (IBTA 10.3.1: send queue error). */
static void stop_sending(struct vb_qp *qp, const struct vb_facts *f)
{
	vb_qp_set_state(qp, IBV_QPS_SQE);
	qp->ibv.state = IBV_QPS_SQE;
	if (qp->shown)
		atomic_store_explicit(&qp->shown->state, 1 + IBV_QPS_SQE, memory_order_release);
	qp->why = *f;
	qp->req.blocked = qp->req.placing = false;
	vb_rc_flush(qp);
	qp->flushed_send = 0;
}

/* The oldest request fails; it has been reached in order, so everything before it is complete. */
void vb_rc_fail_send(struct vb_qp *qp, const struct vb_facts *f, uint8_t status)
{
	struct vb_req *q = &qp->req;
	struct vb_swqe *w;

	vb_lock_assert_held(&qp->lock);
	take_leave_back(qp);
	if (q->una != q->seen) {
		w = vb_sq_at(q, q->una++);
		w->reason = f->reason;
		say(qp, vb_wrs[w->opcode].name, w->wr_id, status, f);
		vb_rc_complete_send(qp, w, status);
	} else { /* nobody has a request that could tell of it */
		say_event(qp, "enters the error state", f);
		vb_async_post(qp->ctx, &qp->ev_fatal);
	}
	if (qp->state == IBV_QPS_ERR)
		return;
	if (qp->acked)
		enter_error(qp, f);
	else
		stop_sending(qp, f);
}

void vb_rc_fail_recv(struct vb_qp *qp, const struct vb_facts *f, bool take_wqe)
{
	const struct vb_reason_row *row = &vb_reasons[f->reason];
	struct vb_resp *s = &qp->resp;
	/* What a WRITE with immediate may not reach is no buffer of the receive request that it took: IBTA
	 * has a status of its own for that (rule 20). */
	uint8_t status = row->nak == VB_AETH_NAK_REMOTE_ACCESS ? IBV_WC_LOC_ACCESS_ERR : row->local_wc;

	vb_lock_assert_held(&qp->lock);
	s->nak_owed = qp->acked ? row->nak : 0;
	s->nak_psn = s->epsn;
	s->nak_facts = *f;
	if (take_wqe && s->have_wqe) {
		struct vb_cqe e = {.wc = {.wr_id = s->cur->wr_id,
					  .status = status,
					  .opcode = IBV_WC_RECV,
					  .qp_num = qp->qpn,
					  .vendor_err = f->reason},
				   .qp = vb_qp_of_receive(qp),
				   .srq = qp->srq};

		s->have_wqe = false;
		count(qp, VB_TRAFFIC_RECEIVE_ERRORS, 1);
		say(qp,
		    status == IBV_WC_LOC_ACCESS_ERR
			? "the peer's WRITE with immediate was refused: receive request"
			: "receive request",
		    e.wc.wr_id, status, f);
		if (qp->counters)
			vb_comp_received(qp, 0, true);
		vb_rc_push(qp, qp->rcq, &e, true);
	} else {
		say_event(qp, "a request of the peer was refused", f);
		if (row->event == IBV_EVENT_QP_ACCESS_ERR) /* rule 20 */
			vb_async_post(qp->ctx, &qp->ev_access);
		else if (row->event == IBV_EVENT_QP_REQ_ERR)
			vb_async_post(qp->ctx, &qp->ev_req);
		else /* never without a word: no completion told of it */
			vb_async_post(qp->ctx, &qp->ev_fatal);
	}
	if (qp->state != IBV_QPS_ERR)
		enter_error(qp, f);
}

static void last_word(struct vb_qp *qp)
{
	vb_lock_assert_held(&qp->lock);
	if (qp->resp.ack_owed && qp->acked && qp->path.out)
		vb_responder_ack(qp);
}

/* Something of the request has reached the far end, or may have. */
static bool is_begun(const struct vb_swqe *w)
{
	return w->state == VB_WQE_STARTED || w->placed;
}

void vb_rc_error(struct vb_qp *qp, const struct vb_facts *f)
{
	struct vb_req *q = &qp->req;

	vb_lock_assert_held(&qp->lock);
	if (qp->state == IBV_QPS_ERR)
		return;
	last_word(qp);
	if (f->reason == VB_R_FLUSHED) {
		enter_error(qp, f);
		return;
	}
	/* said once, for all queue pairs */
	if (f->reason == VB_R_DEVICE_LOST || f->reason == VB_R_CQ_OVERRUN) {
		enter_error(qp, f);
		vb_async_post(qp->ctx, &qp->ev_fatal);
		return;
	}
	if ((f->reason == VB_R_PEER_DIED || f->reason == VB_R_PEER_CLOSED) && q->una != q->seen &&
	    is_begun(vb_sq_at(q, q->una)))
		vb_rc_fail_send(qp, f, vb_reasons[f->reason].local_wc);
	else {
		say_event(qp, "enters the error state", f);
		enter_error(qp, f);
	}
	vb_async_post(qp->ctx, &qp->ev_fatal);
}

static bool brief(struct vb_qp *qp, struct vb_arrival *in)
{
	struct vb_brief *b = &in->b;
	uint32_t first = vb_pkt_get_word(b->bytes, 0) ^ (uint32_t)qp->family << 24;

	vb_lock_assert_held(&qp->lock);
	if (vb_unlikely(qp->state != IBV_QPS_RTS))
		return false;
	switch (first & VB_PKT_KIND) {
	case VB_PKT_OF(VB_SEND_ONLY):
		return vb_responder_brief(qp, b);
	case VB_PKT_OF(VB_ACK):
		return vb_completer_brief(qp, b);
	default:
		return false;
	}
}

void vb_rc_input(struct vb_qp *qp, const struct vb_pkt *p)
{
	vb_lock_assert_held(&qp->lock);
	/* What is no opcode of this type of queue pair is dropped, as on a wire (IBTA 9.6: packet transport
	 * header validation). */
	if (vb_unlikely(VB_FAMILY(p->opcode) != qp->family)) {
		vb_flight_other(qp, p);
		return;
	}
	if (p->op->bits & VB_OP_RESPONSE)
		vb_completer_input(qp, p);
	else
		vb_responder_input(qp, p);
}

/* Answers leave before the requests behind them, or when there is no room for more. */
static bool run_answers(struct vb_qp *qp)
{
	bool blocked = vb_responder_run(qp);

	if (qp->path.out)
		vb_out_push(qp->path.out);
	return blocked;
}

/* Apart from vb_requester_output(), whose registers and stack it would take from each post. */
__attribute__((noinline)) bool vb_rc_output(struct vb_qp *qp, uint32_t place)
{
	bool blocked = false;

	vb_lock_assert_held(&qp->lock);
	if (vb_unlikely(qp->state >= IBV_QPS_SQE)) /* whoever posted it may rely on this */
		flush_sends(qp);
	if (vb_unlikely(qp->resp.res_next != qp->resp.res_head || qp->resp.replaying || qp->resp.nak_owed))
		blocked = run_answers(qp);
	/* What the application sends now may be its answer to what the ACK is for.  Its peer must find the
	 * ACK first: programs rely on a SEND being complete when the answer to it comes. */
	if (qp->resp.ack_owed && !(qp->path.out && (qp->path.out->carries_acks || vb_flight_leads_ack(qp))))
		blocked |= vb_responder_ack(qp);
	if (qp->req.seen - qp->req.next > 1) /* one alone has been tried, or is rare */
		vb_requester_list(qp);
	if (qp->req.next != qp->req.seen || qp->req.blocked)
		blocked |= vb_requester_run(qp, place); /* carries it along */
	if (qp->resp.ack_owed && !blocked)
		blocked = vb_responder_ack(qp);
	return blocked;
}

/* A target has no requests; its packets are no common ones, as all of them name an SRQ. */
static bool target_brief(struct vb_qp *qp, struct vb_arrival *in)
{
	(void)qp, (void)in;
	return false;
}

static bool target_output(struct vb_path *p, uint32_t place)
{
	struct vb_qp *qp = p->qp;
	struct vb_forwards *w = qp->forwards;

	vb_lock_assert_held(&qp->lock);
	if (w && w->again) {
		if (w->wanted && !w->asked)
			w->ops->seek(qp);
		vb_forward_resume(qp);
	}
	return vb_requester_output(p, place) || vb_forward_waits(qp);
}

static enum vb_owes owes(const struct vb_qp *qp)
{
	const struct vb_resp *s = &qp->resp;

	vb_lock_assert_held(&qp->lock);
	if (s->res_next != s->res_head || s->replaying || s->nak_owed ||
	    (qp->req.una != qp->req.seen && vb_requester_ready(qp))) /* mostly there is no request */
		return VB_OWES_MORE;
	return s->ack_owed ? VB_OWES_ACK : VB_OWES_NOTHING;
}

/* What waits for output() to look again owes a look. */
static enum vb_owes target_owes(const struct vb_qp *qp)
{
	return vb_unlikely(vb_forward_waits(qp)) ? VB_OWES_MORE : owes(qp);
}

uint64_t vb_rc_ack_timeout(uint8_t code)
{
	return code ? 4096ull << (code & 31) : VB_NEVER; /* rule 38: 0 is for ever */
}

uint64_t vb_rc_rnr_delay(uint8_t code)
{
	/* IBTA table 45, in units of 10 us; code 0 is the longest */
	static const uint32_t tens[32] = {65536, 1,    2,    3,	    4,	   6,	  8,	 12,
					  16,	 24,   32,   48,    64,	   96,	  128,	 192,
					  256,	 384,  512,  768,   1024,  1536,  2048,	 3072,
					  4096,	 6144, 8192, 12288, 16384, 24576, 32768, 49152};

	return tens[code & 31] * 10 * VB_USEC;
}

/* An RNR wait that begins now.  A receiver that is only slow is asked again after 32 us, and then each time
 * after twice that, up to a millisecond; not later than it wants to be asked. */
static uint64_t rnr_wait(struct vb_qp *qp, uint64_t now)
{
	const struct vb_req *q = &qp->req;
	uint64_t wait = vb_rc_rnr_delay(q->rnr_code), soon, left;

	if (!qp->used_up)
		return wait;
	if (!qp->used_up_until)
		qp->used_up_until = now + VB_USED_UP_MS * VB_MSEC;
	soon = 16 * VB_USEC << (q->rnr_row < 6 ? q->rnr_row : 6);
	left = qp->used_up_until > now ? qp->used_up_until - now : 0;
	wait = wait < soon ? wait : soon;
	return wait < left ? wait : left;
}

/* An RNR wait is over. */
static void rnr_waited(struct vb_qp *qp, uint64_t now)
{
	struct vb_req *q = &qp->req;

	vb_lock_assert_held(&qp->lock);
	if (qp->used_up && now >= qp->used_up_until)
		qp->used_up_until = VB_NEVER;
	q->waiting_rnr = false;
	vb_requester_arm(qp);
}

/* How long what is not acknowledged waits for contact: as long as that may take where nobody is stopped
 * (vb_peer_pending()). */
#define CONTACT_WITHIN (5 * VB_SEC)

void vb_rc_again(struct vb_qp *qp, enum vb_trace_cause cause)
{
	vb_lock_assert_held(&qp->lock);
	VB_TRACE_RETRANSMIT(qp->qpn, qp->req.psn_una, cause, qp->req.retried);
	vb_requester_back(qp);
}

/* How long an ACK is waited for: between the timeout and four of it (IBTA 9.7.6.1.3).  Over a network the far
 * end may be a program that waits for a CPU, or a queue that is full: each time in vain the next wait is
 * longer. */
static uint64_t ack_wait(const struct vb_qp *qp)
{
	uint64_t wait = vb_rc_ack_timeout(qp->attr.timeout);

	if (wait == VB_NEVER || !qp->path.lossy)
		return wait;
	return wait << (qp->req.retried < 2 ? qp->req.retried : 2);
}

/* The ACK timer has run out. */
static void timed_out(struct vb_qp *qp, uint64_t now)
{
	struct vb_req *q = &qp->req;
	struct vb_facts f = {
	    .reason = VB_R_RETRY,
	    .qpn = qp->qpn,
	    .retry = {.retries = qp->attr.retry_cnt, .peer_qpn = qp->dest_qpn, .silence = qp->silence}};

	if (!qp->acked) { /* whoever is to make contact does not */
		qp->path.nobody = true;
		vb_requester_arm(qp);
		return;
	}
	if (q->retried >= qp->attr.retry_cnt) {
		vb_rc_fail_send(qp, &f, vb_reasons[f.reason].local_wc);
		return;
	}
	count(qp, VB_TRAFFIC_TIMEOUTS, 1);
	q->retried++;
	q->retry_pending = false;
	q->deadline = 0;
	if (qp->path.lossy)
		vb_congestion_silent(&qp->congestion, now);
	vb_rc_again(qp, VB_TRACE_TIMEOUT);
}

uint64_t vb_rc_timer(struct vb_qp *qp, uint64_t now)
{
	struct vb_req *q = &qp->req;
	uint64_t wait;

	vb_lock_assert_held(&qp->lock);
	if (q->deadline == VB_NEVER)
		return VB_NEVER;
	if (vb_unlikely(vb_requester_settles(qp))) {
		if (q->deadline && now >= q->deadline) {
			while (vb_window_local(qp))
				;
			vb_requester_turn(qp);
			vb_requester_arm(qp);
			return q->deadline == VB_NEVER ? VB_NEVER : now;
		}
		if (!q->deadline)
			q->deadline = now + VB_MSEC;
		return q->deadline;
	}
	if (vb_unlikely(!qp->acked && qp->path.out))
		return vb_flight_waits(qp, now);
	if (q->deadline == 0) { /* begins to run now */
		wait = q->waiting_rnr ? rnr_wait(qp, now) : qp->acked ? ack_wait(qp) : CONTACT_WITHIN;
		if (wait == VB_NEVER && !qp->path.lossy)
			return VB_NEVER;
		if (!q->waiting_rnr && qp->path.out && !qp->path.out->ops->taken(qp->path.out, q->mark))
			return now + (wait < 10 * VB_MSEC ? wait : 10 * VB_MSEC); /* only slow, not lost */
		q->deadline = wait == VB_NEVER ? VB_NEVER - 1 : now + wait;
		qp->congestion.probe_at = 0;
	}
	if (now < q->deadline)
		return vb_unlikely(qp->path.lossy) ? vb_flight_timer(qp, now) : q->deadline;
	if (q->waiting_rnr) {
		rnr_waited(qp, now);
	} else if (vb_unlikely(!vb_requester_outstanding(qp))) {
		vb_assert(!"a timer ran with nothing outstanding");
		vb_requester_arm(qp);
	} else if (vb_unlikely(qp->path.out && q->psn == q->psn_una)) {
		q->deadline = 0; /* nothing has gone out again yet, for want of room or of a thread that holds
				  * the ring and does not run: nobody can have answered */
	} else {
		timed_out(qp, now);
	}
	return q->deadline == VB_NEVER ? VB_NEVER : now;
}

/* What was sent before goes on, with all its retries if the way out came; a request that waited for it is not
 * outstanding any more until it is sent. */
void vb_rc_path(struct vb_path *p, struct vb_out *out)
{
	struct vb_qp *qp = p->qp;

	vb_lock_assert_held(&qp->lock);
	if (out && !p->out)
		qp->req.retried = 0; /* those used up until now went to nobody */
	vb_flight_begin(p, out);
	p->out = out;
	p->plain = out && out->tells_mtu ? (uint8_t)(qp->path_mtu * VB_BRIEF_MTU) : 0;
	if (!qp->req.waiting_rnr)
		vb_requester_arm(qp);
}

void vb_rc_enter(struct vb_qp *qp, enum ibv_qp_state from)
{
	struct vb_req *q = &qp->req;

	vb_lock_assert_held(&qp->lock);
	if (qp->state == IBV_QPS_RTS && from == IBV_QPS_RTR)
		q->retried = q->rnr_retried = 0;
	if (qp->state == IBV_QPS_SQD && from != IBV_QPS_SQD) { /* one event for each time */
		q->drained_posted = false;
		vb_requester_turn(qp);
	}
	/* what was posted and waits for a way out is outstanding in RTS only */
	if ((q->deadline != VB_NEVER) != vb_requester_outstanding(qp))
		vb_requester_arm(qp);
}

/* The types that are acknowledged differ in how they take a packet in. */
#define RELIABLE(apart, takes_brief, takes_in, sends, owing)                                                \
	{                                                                                                   \
		.acked = true, .answers_apart = apart, .brief = takes_brief, .input = takes_in,             \
		.ack = vb_completer_ack, .received = vb_completer_received, .output = sends, .owes = owing, \
		.timer = vb_rc_timer, .path = vb_rc_path, .last_word = last_word, .enter = vb_rc_enter,     \
		.error = vb_rc_error, .flush = vb_rc_flush,                                                 \
	}

const struct vb_transport vb_rc_transport = RELIABLE(false, brief, vb_rc_input, vb_requester_output, owes);
const struct vb_transport vb_xrc_initiator_transport =
    RELIABLE(true, brief, vb_xrc_initiator_input, vb_requester_output, owes);
const struct vb_transport vb_xrc_target_transport =
    RELIABLE(true, target_brief, vb_xrc_target_input, target_output, target_owes);
