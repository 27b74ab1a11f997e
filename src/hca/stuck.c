#include "hca/stuck.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/waiting.h"
#include "hca/far.h"
#include "hca/silence.h"
#include "iba/grh.h"
#include "iba/reach.h"
#include "iba/shown.h"
#include "iba/waits.h"
#include "iba/wr.h"
#include "obj/cq.h"

/* ---- requests ---- */

/* "QP 0x1: a SEND (wr_id 0x7) has been outstanding for 3.0 s" */
static void begin(struct vb_text *t, struct vb_qp *qp, uint64_t now)
{
	const struct vb_swqe *w = vb_sq_at(&qp->req, qp->req.una);

	vb_text_add(t, "QP 0x%06x: a %s (wr_id 0x%" PRIx64 ") has been outstanding for %.1f s", qp->qpn,
		    vb_wrs[w->opcode].name, w->wr_id, (double)(now - qp->stuck_since) / 1e9);
}

/* Whether it leads to an address on a network. */
static bool is_host(const struct vb_qp *qp)
{
	const struct vb_far *far = qp->path.far;

	return far && far->kind->whom(far).kind == VB_WHOM_ADDRESS;
}

/* The receiver has said by RNR NAKs that it lacks a receive. */
static bool say_rnr(struct vb_qp *qp, uint64_t now)
{
	const struct vb_shown_qp *peer = qp->path.peer_qp;
	uint32_t srq = peer ? atomic_load_explicit(&peer->srq, memory_order_relaxed) : 0;
	const struct vb_swqe *w = vb_sq_at(&qp->req, qp->req.una);
	char text[500] = "";
	struct vb_text t = {text, sizeof(text)};

	if (!qp->req.rnr_row || vb_wr_is(w->opcode, VB_WR_FETCH) || w->opcode == IBV_WR_RDMA_WRITE)
		return false;
	begin(&t, qp, now);
	vb_text_add(&t, ", because the peer, ");
	if (is_host(qp))
		vb_gid_add(&t, qp->attr.ah_attr.grh.dgid.raw);
	else
		vb_text_add(&t, "process %u", qp->path.pid);
	vb_text_add(&t, ", has no receive posted ");
	vb_text_add(&t, srq ? "in SRQ 0x%06x: " : "on QP 0x%06x: ", srq ? srq : qp->dest_qpn);
	vb_text_add(&t, "%u%s RNR NAKs so far", qp->req.rnr_row, qp->req.rnr_row == 255 ? " or more" : "");
	vb_wait_say(srq ? VB_W_NO_RECEIVE_SRQ : VB_W_NO_RECEIVE, "%s", text);
	return true;
}

static bool say_reach(struct vb_qp *qp, uint64_t now, const struct vb_reach_facts *f)
{
	enum vb_wait_cause cause = vb_wait_of_reach(f);
	char text[600] = "";
	struct vb_text t = {text, sizeof(text)};

	begin(&t, qp, now);
	vb_text_add(&t, ", and QP 0x%06x does not answer: ", qp->dest_qpn);
	if (!vb_reach_add(&t, f))
		return false;
	if (cause != VB_W_UNREACHABLE) /* else the clause is all that is known */
		vb_text_add(&t, " (verbena explain %d says more)", (int)getpid());
	vb_log_reason(vb_wait_rows[cause].name, "%s", text);
	return true;
}

/* false: the peer is alive and ready, as far as can be seen, and merely slow. */
static bool say_request(struct vb_qp *qp, uint64_t now)
{
	const struct vb_far *far = qp->path.far;
	struct vb_reach_facts f;

	if (say_rnr(qp, now))
		return true;
	if (far && far->kind->silence) {
		f = far->kind->silence((struct vb_far *)far, qp->path.pid, true);
		if (f.reach == VB_REACH_STOPPED)
			return say_reach(qp, now, &f);
	}
	if (vb_silence_is_only_slow(qp, now))
		return false;
	if (is_host(qp) && qp->attr.timeout && !qp->req.retried)
		return false; /* what was sent last is being answered */
	vb_silence_explain(qp);
	if (qp->silence.reach == VB_REACH_HOST_OTHERS && qp->req.retried < 2)
		return false;
	return qp->silence.reach && say_reach(qp, now, &qp->silence);
}

uint64_t vb_stuck_look(struct vb_qp *qp, uint64_t now)
{
	struct vb_req *q = &qp->req;
	uint64_t warn;

	vb_lock_assert_held(&qp->lock);
	if (q->una == q->seen) {
		qp->stuck_since = 0;
		return VB_NEVER;
	}
	warn = vb_waiting_warn(VB_NEVER);
	if (!qp->stuck_since || qp->stuck_una != q->una) {
		qp->stuck_since = now;
		qp->stuck_una = q->una;
		qp->stuck_warn = warn == VB_NEVER ? VB_NEVER : now + warn;
	}
	/* To a host, UC waits for its own rate only: nobody answers. */
	if (qp->path.lossy && (!is_host(qp) || !qp->acked))
		return VB_NEVER;
	if (now < qp->stuck_warn || qp->state != IBV_QPS_RTS)
		return qp->stuck_warn;
	qp->stuck_warn = say_request(qp, now) ? VB_NEVER : now + warn;
	return qp->stuck_warn;
}

/* ---- threads that sleep on a channel ---- */

/* Held while the table's channels are looked at, and by a thread that leaves the table, so that no channel
 * that is looked at goes meanwhile.  A channel's own lock and a CQ's come after it. */
static struct vb_lock sleepers_lock;
static _Atomic uint32_t sleepers; /* threads that sleep, where that may have to be said */

struct vb_waiting *vb_sleeper_begin(struct vb_channel *ch)
{
	struct vb_waiting *w = vb_waiting_begin(VB_WAITING_CQ_EVENT, ch, 0);

	if (w && vb_waiting_warn(VB_NEVER) != VB_NEVER)
		atomic_fetch_add(&sleepers, 1);
	return w;
}

void vb_sleeper_end(void *waiting)
{
	if (!waiting || vb_waiting_warn(VB_NEVER) == VB_NEVER) {
		vb_waiting_end(waiting);
		return;
	}
	vb_lock_take(&sleepers_lock);
	vb_waiting_end(waiting);
	vb_lock_give(&sleepers_lock);
	atomic_fetch_sub(&sleepers, 1);
}

/* It has completions, and makes no event for them.  Its lock comes before the channel's, which is held: where
 * somebody has it, it is being used. */
static bool is_deaf(struct vb_cq *cq)
{
	bool deaf;

	if (vb_cq_is_empty(cq) || !vb_lock_try(&cq->lock))
		return false;
	deaf = !vb_cq_is_empty(cq) && !cq->moderation.held;
	vb_lock_give(&cq->lock);
	return deaf;
}

/* One of the channel that is; NULL: none, or the thread is about to wake up. */
static struct vb_cq *deaf_cq(struct vb_channel *ch)
{
	struct vb_cq *deaf = NULL;

	vb_lock_take(&ch->evq.lock);
	vb_list_each (n, &ch->cqs) {
		struct vb_cq *cq = vb_list_entry(n, struct vb_cq, on_channel);

		if (cq->undelivered) {
			deaf = NULL;
			break;
		}
		if (is_deaf(cq))
			deaf = cq;
	}
	vb_lock_give(&ch->evq.lock);
	return deaf;
}

static void say_deaf(const struct vb_waiting *w, const struct vb_cq *cq, int fd, uint64_t now)
{
	uint32_t n = atomic_load_explicit(&cq->head, memory_order_relaxed) -
		     atomic_load_explicit(&cq->tail, memory_order_relaxed);
	enum vb_wait_cause cause = cq->armed == VB_ARM_SOLICITED ? VB_W_SOLICITED
				   : cq->armed			 ? VB_W_ARMED_LATE
				   : cq->arms			 ? VB_W_NOT_REARMED
								 : VB_W_NEVER_ARMED;

	vb_wait_say(cause,
		    "thread %u has slept for %.1f s in ibv_get_cq_event() on the completion channel with fd "
		    "%d, while "
		    "%u completion%s in its CQ: the CQ %s",
		    atomic_load(&w->tid), (double)(now - w->since) / 1e9, fd, n, n == 1 ? " lies" : "s lie",
		    cause == VB_W_SOLICITED	? "is armed for solicited completions only"
		    : cause == VB_W_ARMED_LATE	? "was armed after they had come"
		    : cause == VB_W_NOT_REARMED ? "was not armed again after its last event"
						: "was never armed");
}

/* When it is time for this one. */
static uint64_t look_at_sleeper(struct vb_waiting *w, uint64_t now)
{
	struct vb_channel *ch = (struct vb_channel *)(uintptr_t)w->object;
	uint64_t warn = vb_waiting_warn(VB_NEVER);
	struct vb_cq *cq = deaf_cq(ch);

	if (!cq) {
		w->noticed = 0;
		return VB_NEVER;
	}
	if (!w->noticed)
		w->noticed = now;
	if (now < w->noticed + warn)
		return w->noticed + warn;
	atomic_store_explicit(&w->said, 1, memory_order_relaxed);
	say_deaf(w, cq, ch->evq.fd, now);
	return VB_NEVER;
}

uint64_t vb_sleepers_look(uint64_t now)
{
	uint64_t next = VB_NEVER, at;

	if (vb_likely(!atomic_load_explicit(&sleepers, memory_order_relaxed)) || !vb_lock_try(&sleepers_lock))
		return VB_NEVER;
	for (uint32_t i = 0; i < VB_WAITINGS; i++) {
		struct vb_waiting *w = &vb_waitings[i];

		if (!atomic_load(&w->tid) || w->what != VB_WAITING_CQ_EVENT ||
		    atomic_load_explicit(&w->said, memory_order_relaxed))
			continue;
		at = look_at_sleeper(w, now);
		if (at < next)
			next = at;
	}
	vb_lock_give(&sleepers_lock);
	return next;
}

void vb_sleepers_notice(struct vb_adapter *a)
{
	uint64_t at;

	if (vb_likely(!atomic_load_explicit(&sleepers, memory_order_relaxed)))
		return;
	at = vb_sleepers_look(vb_now());
	if (at != VB_NEVER)
		vb_adapter_due(a, at);
}
