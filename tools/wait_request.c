/* Requests that are outstanding, and receives that nobody uses. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "host/segment.h"
#include "iba/pkt.h"
#include "iba/qp_state.h"
#include "iba/reach.h"
#include "iba/wr.h"
#include "waits.h"

enum { WHY = 700, MOST_NAKS = 255 };

static uint32_t posted(const struct vb_qp *qp)
{
	return atomic_load(&qp->post.head);
}

static uint32_t outstanding(const struct vb_qp *qp)
{
	return posted(qp) - qp->req.una;
}

static uint32_t receives(const struct vb_qp *qp)
{
	return qp->no_rq ? 0 : atomic_load(&qp->resp.rq.head) - qp->resp.rq.tail;
}

bool vb_wait_request_at(const struct vb_inside *in, const struct vb_qp *qp, uint32_t index, struct vb_swqe *w)
{
	size_t len = qp->req.stride < sizeof(*w) ? qp->req.stride : sizeof(*w);

	memset(w, 0, sizeof(*w));
	return qp->req.ring &&
	       vb_inside_get(in, qp->req.ring + (size_t)(index & qp->req.mask) * qp->req.stride, w, len);
}

uint64_t vb_wait_since(const struct vb_qp *qp)
{
	return qp->stuck_una == qp->req.una ? qp->stuck_since : 0;
}

static const struct vb_qp *earlier(const struct vb_side *s, const struct vb_inside_qp *q)
{
	const struct vb_inside_qp *b = vb_inside_find_qp(&s->before, q->qp.qpn);

	return b && b->at == q->at ? &b->qp : NULL;
}

bool vb_wait_moves(const struct vb_side *s, const struct vb_inside_qp *q)
{
	const struct vb_qp *b = earlier(s, q), *n = &q->qp;

	return !b || b->req.una != n->req.una || b->req.psn_una != n->req.psn_una || posted(b) != posted(n) ||
	       b->state != n->state;
}

/* "2 requests outstanding, the oldest a SEND (wr_id 0x1)" */
void vb_wait_add_request(struct vb_text *t, const struct vb_side *s, const struct vb_qp *qp)
{
	struct vb_swqe w;
	uint32_t n = outstanding(qp);

	vb_text_add(t, "%u request%s outstanding", n, n == 1 ? "" : "s");
	if (vb_wait_request_at(&s->in, qp, qp->req.una, &w))
		vb_text_add(
		    t, n == 1 ? ", a %s (wr_id 0x%" PRIx64 ")" : ", the oldest a %s (wr_id 0x%" PRIx64 ")",
		    vb_wr_row(w.opcode)->name ? vb_wr_row(w.opcode)->name : "request", w.wr_id);
}

/* What keeps it from failing by itself. */
static void add_patience(struct vb_text *t, const struct vb_qp *qp, bool rnr)
{
	uint64_t each = qp->attr.timeout ? 4096ull << (qp->attr.timeout & 31) : 0;

	if (!qp->acked || !outstanding(qp))
		return;
	if (rnr && qp->attr.rnr_retry == 7)
		vb_text_add(t, ". rnr_retry is 7, so the request is retried for ever and no error will come");
	else if (!each)
		vb_text_add(t, ". timeout is 0, so the request waits for ever and no error will come");
	else if (each * (qp->attr.retry_cnt + 1u) > 60 * 1000000000ull)
		vb_text_add(t, ". timeout is %u, so an error comes after %u attempts of %.0f s each",
			    qp->attr.timeout, qp->attr.retry_cnt + 1u, (double)each / 1e9);
}

/* What would make it fail by itself. */
static void advise_patience(struct vb_waits *l, const struct vb_qp *qp, bool rnr)
{
	uint64_t each = qp->attr.timeout ? 4096ull << (qp->attr.timeout & 31) : 0;

	if (!qp->acked || !outstanding(qp))
		return;
	if (rnr && qp->attr.rnr_retry == 7)
		vb_wait_also(
		    l, qp->by_cm ? "pass an rnr_retry_count of less than 7 to rdma_connect() or "
				   "rdma_accept(), so that an error comes"
				 : "set rnr_retry to less than 7 in ibv_modify_qp() to RTS, so that an error "
				   "comes");
	else if (!qp->by_cm && (!each || each * (qp->attr.retry_cnt + 1u) > 60 * 1000000000ull))
		vb_wait_also(
		    l, "set timeout to 14 and retry_cnt to 7 in ibv_modify_qp() to RTS, so that an error "
		       "comes soon");
}

/* A finding about the other end of a connection. */
static void add_far(struct vb_waits *l, enum vb_wait_cause cause, const struct vb_inside_qp *q,
		    const struct vb_far_end *f, const struct vb_text *what, char why[WHY], bool rnr)
{
	struct vb_text t = {why + strlen(why), WHY - strlen(why)};

	add_patience(&t, &q->qp, rnr);
	vb_wait_add(l, cause, vb_wait_since(&q->qp), what, "%s", why);
	vb_wait_peer(l, f->side);
	advise_patience(l, &q->qp, rnr);
}

static void add_peer(struct vb_text *t, const struct vb_waits *l, const struct vb_far_end *f)
{
	if (!f->side || f->side == l->world.self)
		vb_text_add(t, "this process");
	else
		vb_text_add(t, "the peer, PID %d (%s),", (int)f->side->at.pid, f->side->at.program);
}

/* Whether the peer's threads do something else than to call the library. */
static void add_busy(struct vb_text *t, const struct vb_waits *l, const struct vb_far_end *f)
{
	const struct vb_side *s = f->side;

	if (!s || s == l->world.self || !s->read)
		return;
	if (vb_side_is_stopped(s))
		vb_text_add(t, ". PID %d is %s", (int)s->at.pid,
			    s->state == 't' ? "stopped by a debugger" : "stopped by a signal");
	else if (s->running && !vb_side_polls(s))
		vb_text_add(t, ". PID %d computes and does not call the library", (int)s->at.pid);
	else if (vb_side_polls(s))
		vb_text_add(t, ". PID %d polls a CQ meanwhile", (int)s->at.pid);
}

static void add_used(struct vb_text *t, const struct vb_qp *peer)
{
	uint32_t n = atomic_load(&peer->resp.rq.head);

	if (n)
		vb_text_add(t, ". All %u that it has posted are used up", n);
	else
		vb_text_add(t, ". It has never posted one");
}

/* The peer has said by RNR NAKs that it lacks a receive. */
static void find_receive(struct vb_waits *l, const struct vb_inside_qp *q, const struct vb_far_end *f,
			 const struct vb_text *what)
{
	char why[WHY] = "";
	struct vb_text t = {why, sizeof(why)};
	const struct vb_inside_srq *srq =
	    f->qp && f->qp->qp.srq ? vb_inside_find_srq(&f->side->in, f->qp->qp.srq) : NULL;
	uint32_t srqn = srq	   ? srq->srq.number
			: f->shown ? atomic_load_explicit(&f->shown->srq, memory_order_relaxed)
				   : 0;
	unsigned naks = q->qp.req.rnr_row;
	bool has = f->qp && !f->qp->qp.no_rq && receives(&f->qp->qp);

	if (srq)
		has = atomic_load(&srq->srq.rq.head) != srq->srq.rq.tail;
	if (has) {
		add_peer(&t, l, f);
		vb_text_add(&t, " has posted a receive, and takes the message soon");
		vb_wait_add(l, VB_W_PEER_SLOW, vb_wait_since(&q->qp), what, "%s", why);
		return;
	}
	add_peer(&t, l, f);
	if (srqn)
		vb_text_add(&t, " has no receive posted in SRQ 0x%06x, from which QP 0x%06x receives", srqn,
			    q->qp.dest_qpn);
	else
		vb_text_add(&t, " has no receive posted on QP 0x%06x", q->qp.dest_qpn);
	vb_text_add(&t, ": %u%s RNR NAK%s so far", naks, naks == MOST_NAKS ? " or more" : "",
		    naks == 1 ? "" : "s");
	if (f->qp && !srqn)
		add_used(&t, &f->qp->qp);
	else if (srq)
		vb_text_add(&t, atomic_load(&srq->srq.rq.head) ? ". All that it has posted are used up"
							       : ". It has never posted one");
	add_busy(&t, l, f);
	add_far(l, srqn ? VB_W_NO_RECEIVE_SRQ : VB_W_NO_RECEIVE, q, f, what, why, true);
	if (srqn)
		vb_wait_advise(
		    l, VB_WAIT_PEER,
		    "post receives to SRQ 0x%06x with ibv_post_srq_recv(), and post each one again "
		    "after its completion",
		    srqn);
	else if (f->qp && atomic_load(&f->qp->qp.resp.rq.head))
		vb_wait_advise(
		    l, VB_WAIT_PEER,
		    "post each receive again with ibv_post_recv() after its completion, or post more");
	else if (f->qp)
		vb_wait_advise(
		    l, VB_WAIT_PEER,
		    "post receives on QP 0x%06x with ibv_post_recv() before the other end sends, and "
		    "post each one again after its completion",
		    q->qp.dest_qpn);
}

/* What to do, and with which process: that of the peer is not there any more, or has no device. */
static void advise_gone(struct vb_waits *l, const struct vb_qp *qp, bool runs)
{
	const struct vb_side *s = l->world.self;

	if (runs)
		vb_wait_advise(
		    l, VB_WAIT_ANY,
		    "keep the device and QP 0x%06x open in PID %u until PID %d (%s) has its "
		    "completions. To go on, open them there again, exchange the queue pair numbers "
		    "again, and connect both ends again",
		    qp->dest_qpn, qp->path.pid, (int)s->at.pid, s->at.program);
	else if (qp->path.pid)
		vb_wait_advise(
		    l, VB_WAIT_ANY,
		    "find out why PID %u has ended: it has to run until PID %d (%s) has its "
		    "completions. To go on, start it again, exchange the queue pair numbers again, and "
		    "connect both ends again",
		    qp->path.pid, (int)s->at.pid, s->at.program);
	else
		vb_wait_advise(
		    l, VB_WAIT_ANY,
		    "check dest_qp_num 0x%06x in PID %d (%s). If the number is right, its process has "
		    "ended: start that again, exchange the queue pair numbers again, and connect both "
		    "ends again",
		    qp->dest_qpn, (int)s->at.pid, s->at.program);
}

/* The other end is another user's, or is not on this host. */
static void say_unread(struct vb_waits *l, const struct vb_inside_qp *q, const struct vb_far_end *f,
		       const struct vb_text *what)
{
	const struct vb_reach_facts *known = &q->qp.silence;
	char why[WHY] = "";
	struct vb_text t = {why, sizeof(why)};

	if (f->how == VB_FAR_ELSEWHERE && known->reach == VB_REACH_ADDRESS) {
		(void)vb_reach_add(&t, known);
		add_far(l, VB_W_UNREACHABLE, q, f, what, why, false);
		return;
	}
	vb_text_add(&t,
		    f->how == VB_FAR_STRANGER
			? "the peer cannot be read, so the cause is unknown. The process that has "
			  "QP 0x%06x belongs to another user or has another version of Verbena"
			: "the peer of QP 0x%06x cannot be read, so the cause is unknown: its address "
			  "is not one of a process of this host",
		    q->qp.dest_qpn);
	if (known->reach) {
		vb_text_add(&t, ". At the last attempt: ");
		(void)vb_reach_add(&t, known);
	}
	add_far(l, VB_W_PEER_UNREADABLE, q, f, what, why, false);
}

/* Nobody who can be read is there. */
static bool find_nobody(struct vb_waits *l, const struct vb_inside_qp *q, const struct vb_far_end *f,
			const struct vb_text *what)
{
	char why[WHY] = "", state;
	struct vb_text t = {why, sizeof(why)};

	switch (f->how) {
	case VB_FAR_NOBODY:
		state = q->qp.path.pid ? vb_process_state(q->qp.path.pid) : 0;
		if (q->qp.path.pid)
			vb_text_add(&t, "the peer, PID %u, has %s, and no process has QP 0x%06x",
				    q->qp.path.pid,
				    state && state != 'Z' ? "closed its device and still runs" : "ended",
				    q->qp.dest_qpn);
		else
			vb_text_add(&t, "no process of this host has QP 0x%06x", q->qp.dest_qpn);
		add_far(l, VB_W_PEER_GONE, q, f, what, why, false);
		advise_gone(l, &q->qp, q->qp.path.pid && state && state != 'Z');
		return true;
	case VB_FAR_STRANGER:
	case VB_FAR_ELSEWHERE:
		say_unread(l, q, f, what);
		return true;
	case VB_FAR_SHOWN:
		if (!f->side->read || f->side->in.state != VB_INSIDE_GONE)
			return false;
		vb_text_add(&t, "the peer, PID %d (%s), ended while it was looked at", (int)f->side->at.pid,
			    f->side->at.program);
		add_far(l, VB_W_PEER_GONE, q, f, what, why, false);
		return true;
	default:
		return false;
	}
}

static uint32_t state_of(const struct vb_shown_qp *s)
{
	return s ? atomic_load_explicit(&s->state, memory_order_acquire) : 0;
}

/* Whether a number without a queue pair had one before. */
static bool was_there(const struct vb_far_end *f)
{
	return f->shown && atomic_load_explicit(&f->shown->type, memory_order_relaxed);
}

/* A few of the queue pairs that the peer has instead. */
static void add_own(struct vb_text *t, const struct vb_far_end *f)
{
	const struct vb_inside *in = f->how == VB_FAR_READ ? &f->side->in : NULL;

	for (size_t i = 0; in && i < in->nqps && i < 4; i++)
		vb_text_add(t, "%s QP 0x%06x (%s)", i ? "," : ". It has", in->qps[i]->qp.qpn,
			    vb_qp_state_name(in->qps[i]->qp.state));
	if (in && in->nqps > 4)
		vb_text_add(t, " and %zu more", in->nqps - 4);
	else if (in && !in->nqps)
		vb_text_add(t, ". It has no queue pair now");
}

/* Which end has the wrong number: the peer's, unless what it is connected to is connected to it, too. */
static void advise_wrong_end(struct vb_waits *l, enum vb_wait_cause cause, const struct vb_inside_qp *q,
			     const struct vb_far_end *f)
{
	uint32_t qpn = q->qp.dest_qpn, other;
	const struct vb_shown_qp *third;

	if (cause == VB_W_PEER_STATE) {
		vb_wait_advise(l, VB_WAIT_PEER,
			       "move QP 0x%06x to RTR and RTS with ibv_modify_qp(), with dest_qp_num 0x%06x",
			       qpn, q->qp.qpn);
	} else if (cause == VB_W_PEER_NO_QP && was_there(f)) {
		vb_wait_advise(l, VB_WAIT_PEER, "keep QP 0x%06x until the other end has its completions",
			       qpn);
	} else if (cause == VB_W_PEER_NO_QP) {
		vb_wait_advise(
		    l, VB_WAIT_HERE,
		    "set dest_qp_num to the qp_num that the peer has; check how the number is exchanged "
		    "(byte order, 24 bits)");
	} else if (cause == VB_W_PEER_OTHER) {
		other = atomic_load_explicit(&f->shown->dest_qpn, memory_order_relaxed);
		third = other == qpn ? NULL : vb_world_shown(&l->world, other);
		if (third && atomic_load(&third->state) && atomic_load(&third->dest_qpn) == qpn)
			vb_wait_advise(l, VB_WAIT_HERE,
				       "set dest_qp_num of QP 0x%06x to another queue pair: QP 0x%06x and QP "
				       "0x%06x are connected with each other",
				       q->qp.qpn, qpn, other);
		else
			vb_wait_advise(
			    l, VB_WAIT_PEER,
			    "set dest_qp_num of QP 0x%06x to 0x%06x, the number of the other end, in "
			    "ibv_modify_qp() to RTR",
			    qpn, q->qp.qpn);
	}
}

/* What is wrong with the queue pair at the other end, as that end shows it. */
static bool find_wrong_end(struct vb_waits *l, const struct vb_inside_qp *q, const struct vb_far_end *f,
			   const struct vb_text *what)
{
	uint32_t state = state_of(f->shown), qpn = q->qp.dest_qpn, other;
	char why[WHY] = "";
	struct vb_text t = {why, sizeof(why)};
	enum vb_wait_cause cause;

	other = f->shown ? atomic_load_explicit(&f->shown->dest_qpn, memory_order_relaxed) : 0;
	add_peer(&t, l, f);
	if (!state) {
		cause = VB_W_PEER_NO_QP;
		vb_text_add(&t, " has no QP 0x%06x%s", qpn,
			    was_there(f) ? ": it was destroyed" : ", and never had it: the number is wrong");
		add_own(&t, f);
	} else if (state == 1 + IBV_QPS_ERR) {
		cause = VB_W_PEER_ERROR;
		vb_text_add(&t, " has QP 0x%06x in the error state, so it answers nothing", qpn);
	} else if (state < 1 + IBV_QPS_RTR) {
		cause = VB_W_PEER_STATE;
		vb_text_add(&t, " has QP 0x%06x in state %s, which receives nothing", qpn,
			    vb_qp_state_name((enum ibv_qp_state)(state - 1)));
	} else if (other != q->qp.qpn) {
		cause = VB_W_PEER_OTHER;
		vb_text_add(&t, " has connected QP 0x%06x to %sQP 0x%06x, and not to this QP 0x%06x", qpn,
			    other == qpn ? "itself, " : "", other, q->qp.qpn);
	} else {
		return false;
	}
	add_busy(&t, l, f);
	add_far(l, cause, q, f, what, why, false);
	advise_wrong_end(l, cause, q, f);
	return true;
}

/* Whether the peer expects a PSN that this end will not send. */
static bool find_psn(struct vb_waits *l, const struct vb_inside_qp *q, const struct vb_far_end *f,
		     const struct vb_text *what)
{
	const struct vb_req *r = &q->qp.req;
	uint32_t expected, ahead, sent = (r->psn_max - r->psn_una) & VB_PSN_MASK;
	char why[WHY] = "";
	struct vb_text t = {why, sizeof(why)};

	if (!f->qp || r->psn == r->psn_una || q->qp.path.lossy)
		return false;
	expected = f->qp->qp.resp.epsn;
	ahead = (expected - r->psn_una) & VB_PSN_MASK;
	if (ahead <= sent)
		return false;
	add_peer(&t, l, f);
	vb_text_add(&t, " expects PSN 0x%06x on QP 0x%06x, and this end has sent PSN 0x%06x", expected,
		    q->qp.dest_qpn, r->psn_una);
	if (sent > 1)
		vb_text_add(&t, " to 0x%06x", (r->psn_max - 1) & VB_PSN_MASK);
	add_far(l, VB_W_PEER_PSN, q, f, what, why, false);
	vb_wait_advise(
	    l, VB_WAIT_PEER,
	    "set rq_psn of QP 0x%06x to the sq_psn of QP 0x%06x (the PSN that it sends first). The "
	    "rq_psn of QP 0x%06x has to be the sq_psn of QP 0x%06x in the same way",
	    q->qp.dest_qpn, q->qp.qpn, q->qp.qpn, q->qp.dest_qpn);
	return true;
}

static bool find_stopped(struct vb_waits *l, const struct vb_inside_qp *q, const struct vb_far_end *f,
			 const struct vb_text *what)
{
	char why[WHY] = "";
	struct vb_text t = {why, sizeof(why)};

	if (!f->side || f->side == l->world.self || !f->side->read || !vb_side_is_stopped(f->side))
		return false;
	vb_text_add(&t, "the peer, PID %d (%s), is %s", (int)f->side->at.pid, f->side->at.program,
		    f->side->state == 't'
			? "stopped by a debugger, so it answers nothing"
			: "stopped by a signal (SIGSTOP or Ctrl-Z) or a debugger, so it answers nothing");
	add_far(l, VB_W_PEER_STOPPED, q, f, what, why, false);
	vb_wait_advise(l, VB_WAIT_ANY, "let PID %d run again: kill -CONT %d, or continue it in its debugger",
		       (int)f->side->at.pid, (int)f->side->at.pid);
	vb_wait_also(l, ""); /* the program is not at fault */
	return true;
}

/* The peer is there, connected and not stopped. */
static void find_slow(struct vb_waits *l, const struct vb_inside_qp *q, const struct vb_far_end *f,
		      const struct vb_text *what)
{
	char why[WHY] = "";
	struct vb_text t = {why, sizeof(why)};

	add_peer(&t, l, f);
	vb_text_add(&t, " is connected, and its queue pair is ready: it has not answered yet");
	add_busy(&t, l, f);
	if (f->how == VB_FAR_SHOWN)
		vb_text_add(&t, ". Its memory cannot be read, so more is unknown");
	add_far(l, f->how == VB_FAR_SHOWN ? VB_W_PEER_UNREADABLE : VB_W_PEER_SLOW, q, f, what, why, false);
	vb_wait_also(l, "");
}

static void find_far(struct vb_waits *l, const struct vb_inside_qp *q, const struct vb_text *what)
{
	struct vb_far_end f = vb_world_far(&l->world, l->world.self, &q->qp);

	if (f.how == VB_FAR_HOST) {
		vb_wait_host_request(l, q, what);
		return;
	}
	if (f.how == VB_FAR_UNSET || find_nobody(l, q, &f, what) || find_wrong_end(l, q, &f, what))
		return;
	if (q->qp.req.rnr_row || q->qp.req.waiting_rnr) {
		find_receive(l, q, &f, what);
		return;
	}
	if (find_stopped(l, q, &f, what) || find_psn(l, q, &f, what))
		return;
	find_slow(l, q, &f, what);
}

/* Requests that are not sent yet, though nothing before them has failed. */
static void find_held(struct vb_waits *l, const struct vb_inside_qp *q)
{
	const struct vb_req *r = &q->qp.req;
	char text[320] = "";
	struct vb_text t = {text, sizeof(text)}, what = {text, sizeof(text)};
	struct vb_swqe w;

	if (r->next == posted(&q->qp) || r->next == r->una || !r->reads || r->sent ||
	    !vb_wait_request_at(&l->world.self->in, &q->qp, r->next, &w))
		return;
	vb_name_qp(&t, l, q);
	vb_text_add(&t, ": a %s (wr_id 0x%" PRIx64 ") of these is posted and not sent",
		    vb_wr_row(w.opcode)->name ? vb_wr_row(w.opcode)->name : "request", w.wr_id);
	if (w.flags & IBV_SEND_FENCE)
		vb_wait_add(l, VB_W_FENCE, 0, &what,
			    "it has IBV_SEND_FENCE, and %u READ%s or atomic%s before it %s not complete",
			    r->reads, r->reads == 1 ? "" : "s", r->reads == 1 ? "" : "s",
			    r->reads == 1 ? "is" : "are");
	else if (vb_wr_is(w.opcode, VB_WR_FETCH) && r->reads >= q->qp.max_rd_atomic)
		vb_wait_add(l, VB_W_READ_DEPTH, 0, &what,
			    "%u READs and atomics are outstanding, as many as max_rd_atomic permits",
			    r->reads);
}

/* All slots are taken by requests that are done and whose completions nobody gets. */
static bool find_full(struct vb_waits *l, const struct vb_inside_qp *q)
{
	const struct vb_qp *qp = &q->qp;
	uint32_t held = posted(qp) - atomic_load(&qp->post.free), signalled = 0;
	char text[320] = "";
	struct vb_text t = {text, sizeof(text)}, what = {text, sizeof(text)};
	struct vb_swqe w;

	if (!held || held > qp->req.max_wr || outstanding(qp)) /* more: it was copied while it changed */
		return false;
	for (uint32_t i = atomic_load(&qp->post.free); i != posted(qp); i++)
		signalled += vb_wait_request_at(&l->world.self->in, qp, i, &w) && w.flags & IBV_SEND_SIGNALED;
	vb_name_qp(&t, l, q);
	if (held < qp->req.max_wr) {
		if (signalled || qp->deputy)
			return false;
		vb_text_add(&t, ": %u request%s done, and no completion comes", held,
			    held == 1 ? " is" : "s are");
		vb_wait_add(
		    l, VB_W_UNSIGNALLED_DONE, 0, &what,
		    held == 1 ? "it was posted without IBV_SEND_SIGNALED, so its success is not reported. It "
				"takes %u of %u slots of the send queue"
			      : "they were posted without IBV_SEND_SIGNALED, so their success is not "
				"reported. They take %u of %u slots of the send queue",
		    held, qp->req.max_wr);
		return true;
	}
	vb_text_add(&t, ": its send queue is full, so ibv_post_send() returns ENOMEM");
	if (signalled)
		vb_wait_add(
		    l, VB_W_QUEUE_FULL, 0, &what,
		    "all %u requests are done, and their completions lie in CQ 0x%llx, which nobody polls",
		    held, (unsigned long long)(uintptr_t)qp->scq);
	else
		vb_wait_add(l, VB_W_UNSIGNALLED, 0, &what,
			    "all %u requests are done, and none has IBV_SEND_SIGNALED: no completion frees "
			    "their slots",
			    held);
	return true;
}

/* A thread is between ibv_wr_start() and ibv_wr_complete(). */
static void find_built(struct vb_waits *l, const struct vb_inside_qp *q)
{
	const struct vb_qp *b = earlier(l->world.self, q);
	char text[320] = "";
	struct vb_text t = {text, sizeof(text)}, what = {text, sizeof(text)};

	if (!b || !atomic_load(&q->qp.post.builder) ||
	    atomic_load(&q->qp.post.builder) != atomic_load(&b->post.builder) || posted(b) != posted(&q->qp))
		return;
	vb_name_qp(&t, l, q);
	vb_text_add(&t, ": requests are built and not posted");
	vb_wait_add(l, VB_W_BUILT, 0, &what,
		    "a thread has called ibv_wr_start(), and neither ibv_wr_complete() nor ibv_wr_abort()");
}

/* What is posted to it is flushed. */
static void find_error(struct vb_waits *l, const struct vb_inside_qp *q)
{
	char text[320] = "", reason[700] = "";
	struct vb_text t = {text, sizeof(text)}, what = {text, sizeof(text)};

	vb_name_qp(&t, l, q);
	vb_text_add(&t, ": it sends and receives nothing");
	if (q->qp.why.reason && q->qp.why.reason != VB_R_FLUSHED)
		vb_wait_add(l, VB_W_OWN_ERROR, 0, &what, "the queue pair is in the error state: %s",
			    vb_reason_say(reason, sizeof(reason), &q->qp.why));
	else
		vb_wait_add(l, VB_W_OWN_ERROR, 0, &what,
			    "the queue pair is in the error state, to which %s moved it",
			    q->qp.by_cm ? "rdma_cm has" : "the program has");
	if (q->qp.by_cm)
		vb_wait_advise(l, VB_WAIT_HERE,
			       "see what is said about its rdma_cm_id, call rdma_destroy_qp() and "
			       "rdma_destroy_id(), and connect with a new id");
}

void vb_wait_requests(struct vb_waits *l, const struct vb_inside_qp *q)
{
	const struct vb_qp *qp = &q->qp;
	char text[320] = "";
	struct vb_text t = {text, sizeof(text)}, what = {text, sizeof(text)};

	if (qp->of || qp->far || vb_wait_moves(l->world.self, q))
		return;
	if (qp->state == IBV_QPS_ERR) {
		find_error(l, q);
		return;
	}
	find_built(l, q);
	if (find_full(l, q) || !outstanding(qp))
		return;
	vb_name_qp(&t, l, q);
	vb_text_add(&t, ": ");
	vb_wait_add_request(&t, l->world.self, qp);
	if (qp->state == IBV_QPS_SQD)
		vb_wait_add(l, VB_W_QUEUE_DRAINED, vb_wait_since(qp), &what,
			    "the queue pair is in state SQD, in which it begins no request");
	else if (qp->dests)
		vb_wait_add(l, VB_W_PEER_SLOW, 0, &what,
			    "there is no contact with the receiver's process yet");
	else
		find_far(l, q, &what);
	find_held(l, q);
}

/* ---- receives ---- */

/* The queue pair's completions in a CQ are taken by somebody, so it waits for messages. */
static bool is_empty(const struct vb_waits *l, const void *cq)
{
	const struct vb_inside_cq *c = vb_inside_find_cq(&l->world.self->in, cq);

	return c && atomic_load(&c->cq.head) == atomic_load(&c->cq.tail);
}

/* The peer's last request was a WRITE that tells nobody. */
static bool last_was_write(const struct vb_far_end *f)
{
	const struct vb_qp *p = &f->qp->qp;
	struct vb_swqe w;

	return posted(p) && !outstanding(p) && vb_wait_request_at(&f->side->in, p, posted(p) - 1, &w) &&
	       w.opcode == IBV_WR_RDMA_WRITE;
}

static void find_silence(struct vb_waits *l, const struct vb_inside_qp *q, const struct vb_text *what)
{
	struct vb_far_end f = vb_world_far(&l->world, l->world.self, &q->qp);
	char why[WHY] = "";
	struct vb_text t = {why, sizeof(why)};

	if (f.how == VB_FAR_HOST)
		vb_wait_host_receive(l, q, what);
	if (f.how == VB_FAR_UNSET || f.how == VB_FAR_HOST)
		return;
	if (find_nobody(l, q, &f, what) || find_wrong_end(l, q, &f, what) || find_stopped(l, q, &f, what))
		return;
	if (f.how == VB_FAR_READ && outstanding(&f.qp->qp) && f.qp->qp.req.rnr_row)
		return; /* vb_wait_awaited() */
	add_peer(&t, l, &f);
	if (f.how != VB_FAR_READ) {
		vb_text_add(&t, " cannot be read, so it is unknown whether it sends");
		vb_wait_add(l, VB_W_PEER_UNREADABLE, 0, what, "%s", why);
	} else if (outstanding(&f.qp->qp)) {
		vb_text_add(&t, " has %u request%s outstanding to this queue pair", outstanding(&f.qp->qp),
			    outstanding(&f.qp->qp) == 1 ? "" : "s");
		vb_wait_add(l, VB_W_PEER_SLOW, 0, what, "%s", why);
	} else if (last_was_write(&f)) {
		vb_text_add(&t, " has sent an RDMA_WRITE as its last request: a WRITE without immediate data "
				"uses no receive and "
				"makes no completion here");
		vb_wait_add(l, VB_W_WRITE_SILENT, 0, what, "%s", why);
		vb_wait_peer(l, f.side);
		vb_wait_advise(
		    l, VB_WAIT_PEER,
		    "send IBV_WR_RDMA_WRITE_WITH_IMM, or a SEND after the WRITE, if PID %d waits for a "
		    "completion; or let PID %d look at the memory that is written",
		    (int)l->world.self->at.pid, (int)l->world.self->at.pid);
	} else if (receives(&f.qp->qp) && !posted(&f.qp->qp) && !posted(&q->qp)) {
		vb_text_add(&t, " has %u receive%s posted too, and neither end has sent anything",
			    receives(&f.qp->qp), receives(&f.qp->qp) == 1 ? "" : "s");
		vb_wait_add(l, VB_W_BOTH_RECEIVE, 0, what, "%s", why);
		vb_wait_advise(
		    l, VB_WAIT_ANY,
		    "let one of the two processes, PID %d or PID %d, send first with ibv_post_send()",
		    (int)l->world.self->at.pid, (int)f.side->at.pid);
	} else {
		vb_text_add(&t, " has no request outstanding%s",
			    posted(&f.qp->qp) ? "" : ", and has sent nothing yet");
		if (receives(&f.qp->qp))
			vb_text_add(&t, ". It has %u receive%s posted, so both ends wait for a message",
				    receives(&f.qp->qp), receives(&f.qp->qp) == 1 ? "" : "s");
		add_busy(&t, l, &f);
		vb_text_add(&t, ". This is normal for an idle connection");
		vb_wait_add(l, VB_W_NOTHING_SENT, 0, what, "%s", why);
		vb_wait_advise(l, VB_WAIT_NORMAL, "find out why PID %d (%s) does not send",
			       (int)f.side->at.pid, f.side->at.program);
	}
}

void vb_wait_receives(struct vb_waits *l, const struct vb_inside_qp *q)
{
	const struct vb_qp *qp = &q->qp, *b = earlier(l->world.self, q);
	uint32_t n = receives(qp);
	char text[320] = "";
	struct vb_text t = {text, sizeof(text)}, what = {text, sizeof(text)};

	if (qp->of || qp->far || !b || b->resp.epsn != qp->resp.epsn || outstanding(qp))
		return;
	if (!n && !qp->srq)
		return;
	vb_name_qp(&t, l, q);
	if (n)
		vb_text_add(&t, ": %u receive%s posted, and no message comes", n, n == 1 ? "" : "s");
	else
		vb_text_add(&t, ": it receives from an SRQ, and no message comes");
	if (qp->state < IBV_QPS_RTR && n)
		vb_wait_add(l, VB_W_OWN_STATE, 0, &what,
			    "the queue pair is in state %s, which receives nothing",
			    vb_qp_state_name(qp->state));
	else if (is_empty(l, qp->rcq) && qp->state >= IBV_QPS_RTR && !qp->dests)
		find_silence(l, q, &what);
}
