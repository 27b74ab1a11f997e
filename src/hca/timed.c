#include "hca/timed.h"

#include "base/clock.h"
#include "hca/capture.h"
#include "hca/datagrams.h"
#include "hca/far.h"
#include "hca/owed.h"
#include "hca/path.h"
#include "hca/send.h"
#include "hca/silence.h"
#include "hca/stuck.h"
#include "iba/out.h"
#include "transport/transport.h"

#define AGAIN	(100 * VB_MSEC) /* until it is looked again whether the far end is connected */
#define BUSY_NS (50 * VB_USEC)	/* until a QP whose lock was busy is looked at again */
#define QUIET	(10 * VB_MSEC)	/* without a request, after which a QP leaves the list */

static void keep(struct vb_hca *h, struct vb_qp *qp)
{
	vb_lock_assert_held(&qp->lock);
	vb_lock_assert_held(&h->timer_lock);
	if (qp->req.timing || qp->forgotten)
		return;
	qp->req.timing = true;
	vb_list_append(&h->timed, &qp->on_timer);
}

/* Pollers look at timers themselves, and if they stop, the engine looks 20 ms later at most.  Where nobody
 * polls it may count on a later deadline, and a waiter looks at no timers. */
static void look_soon(struct vb_hca *h)
{
	if (vb_hca_watched(h->adapter))
		atomic_store_explicit(&h->next_look, 0, memory_order_relaxed);
	else
		vb_adapter_nudge(h->adapter);
}

void vb_hca_keep_time(struct vb_qp *qp)
{
	struct vb_hca *h = vb_qp_hca(qp);

	vb_lock_assert_held(&qp->lock);
	if (qp->req.waiting_rnr) {
		atomic_store_explicit(&h->rnr_waits, 1, memory_order_relaxed);
		if (qp->used_up)
			atomic_store_explicit(&h->slow_receivers, 1, memory_order_relaxed);
		look_soon(h);
	}
	if (qp->req.timing || qp->forgotten)
		return;
	vb_lock_take(&h->timer_lock);
	keep(h, qp);
	vb_lock_give(&h->timer_lock);
	look_soon(h);
}

/* An answer may lie in our own queue because the thread that has the queue does not run.  Whatever lies there
 * now has been taken once as many packets have been as the queue has room for; what comes after them does not
 * count. */
static bool may_lie_here(struct vb_qp *qp)
{
	const struct vb_rxq *r = qp->path.rxq;
	uint32_t at;

	vb_lock_assert_held(&qp->lock);
	if (!r || !atomic_load_explicit(&r->open, memory_order_relaxed) || !vb_rxq_ready(r))
		return false;
	at = atomic_load_explicit(&r->at, memory_order_relaxed);
	if (qp->unread_until != qp->req.deadline)
		qp->unread_at = at;
	return at - qp->unread_at < VB_RXQ_HOLDS;
}

/* The last retry has run out. */
static void consider_end(struct vb_qp *qp, uint64_t now)
{
	vb_lock_assert_held(&qp->lock);
	if (vb_unlikely(may_lie_here(qp))) {
		qp->req.deadline = qp->unread_until = now + VB_MSEC;
		return;
	}
	if (!vb_silence_is_only_slow(qp, now)) {
		vb_silence_explain(qp);
		return;
	}
	qp->req.deadline = 0; /* what was sent stands; the wait begins anew */
	qp->req.retried = 0;
}

/* On a network each retry but the first one looks for the reason, too: `verbena explain` shows it. */
static void look_at_deadline(struct vb_qp *qp, uint64_t now)
{
	bool last = qp->req.retried >= qp->attr.retry_cnt;

	if (!qp->acked && qp->path.out) /* nothing is missing, but more may leave */
		return;
	if (last && qp->acked)
		consider_end(qp, now);
	else if (last || (qp->acked && qp->path.lossy && qp->req.retried && !qp->req.waiting_rnr))
		vb_silence_explain(qp);
}

/* What the far end shows as received counts as acknowledged: its ACK may wait for a program that has stopped
 * polling.  Not on a wire that behaves like a network. */
static void take_shown(struct vb_qp *qp)
{
	const struct vb_path *p = &qp->path;
	uint32_t received;

	if (!p->out || !p->out->carries_acks || !vb_path_is_connected(p))
		return;
	received = p->far->kind->received(p);
	if (!received)
		return;
	vb_capture_shown(qp, received & VB_PSN_MASK);
	qp->transport->received(qp, received & VB_PSN_MASK);
}

/* Returns when to look again. */
static uint64_t look(struct vb_qp *qp, uint64_t now)
{
	struct vb_path *p = &qp->path;
	uint64_t t, warn = VB_NEVER;

	vb_lock_assert_held(&qp->lock);
	vb_lock_assert_held(&vb_qp_hca(qp)->timer_lock);
	if (qp->dests) {
		t = vb_datagrams_look(qp, now);
		goto listed;
	}
	if (vb_unlikely(!p->far && qp->req.next != qp->req.seen)) /* its address may have come since */
		vb_path_attach(p);
	if (vb_qp_timed(qp))
		take_shown(qp);
	if (qp->req.deadline && now >= qp->req.deadline)
		look_at_deadline(qp, now);
	t = qp->transport->timer(qp, now);
	warn = vb_stuck_look(qp, now);
	if (vb_unlikely(p->nobody && !p->rxq && qp->req.next != qp->req.seen))
		vb_hca_send(qp); /* there is no queue whose flush would */
	if (qp->transport->owes(qp) == VB_OWES_MORE || (!p->out && qp->req.next != qp->req.seen)) {
		vb_owe(p);
		if (!p->out)
			vb_path_contact(p);
	}
	(void)vb_path_give_up(p);
	if (vb_unlikely((p->rxq || (!p->far && !p->gone)) && !p->out && qp->req.next != qp->req.seen &&
			t > now + AGAIN))
		t = now + AGAIN;
listed:
	if (vb_qp_timed(qp))
		return t < warn ? t : warn;
	/* A QP that goes on sending is soon on the list again, and would have to wake the engine for it. */
	if (qp->req.timed_psn != qp->req.psn) {
		qp->req.timed_psn = qp->req.psn;
		return now + QUIET;
	}
	vb_list_unlink(&qp->on_timer);
	qp->req.timing = false;
	return t;
}

uint64_t vb_hca_scan(struct vb_hca *h, uint64_t now, uint64_t *again)
{
	uint64_t next = VB_NEVER, t;
	uint32_t rnr = 0, slow = 0;

	*again = VB_NEVER;
	if (!vb_lock_try(&h->timer_lock)) {
		*again = now + VB_MSEC;
		return VB_NEVER;
	}
	vb_list_each_safe (n, tmp, &h->timed) {
		struct vb_qp *qp = vb_list_entry(n, struct vb_qp, on_timer);

		if (!vb_lock_try(&qp->lock)) {
			*again = now + BUSY_NS;
			rnr++;
			continue;
		}
		t = look(qp, now);
		rnr += qp->req.waiting_rnr;
		slow += qp->req.waiting_rnr && qp->used_up;
		while (vb_unlikely(!vb_hca_gives(qp))) {
			keep(h, qp); /* or sending would, which waits for the lock that we hold */
			vb_hca_send(qp);
			t = look(qp, now);
		}
		if (t < next)
			next = t;
	}
	atomic_store_explicit(&h->rnr_waits, rnr, memory_order_relaxed);
	atomic_store_explicit(&h->slow_receivers, slow, memory_order_relaxed);
	vb_lock_give(&h->timer_lock);
	return next;
}

void vb_hca_untime(struct vb_qp *qp)
{
	struct vb_hca *h = vb_qp_hca(qp);

	vb_lock_take(&h->timer_lock);
	vb_list_unlink(&qp->on_timer);
	vb_lock_give(&h->timer_lock);
}
