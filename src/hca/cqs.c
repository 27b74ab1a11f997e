#include "hca/cqs.h"

#include "base/clock.h"
#include "hca/all.h"
#include "hca/send.h"
#include "transport/transport.h"

enum {
	BUSY_NS = 50 * VB_USEC, /* until it is looked again, where another thread is looking */
	NOTICED = 32
}; /* CQs that a look notices */

static struct vb_hca *hca_of(const struct vb_cq *cq)
{
	return vb_hca(cq->ctx->adapter);
}

static void held(struct vb_cq *cq, uint64_t until)
{
	vb_adapter_due(cq->ctx->adapter, until);
}

static void overran(struct vb_cq *cq)
{
	/* pairs with vb_cqs_look() */
	atomic_store_explicit(&hca_of(cq)->overran, true, memory_order_release);
	vb_adapter_nudge(cq->ctx->adapter);
}

const struct vb_cq_ops vb_cqs_ops = {.held = held, .overran = overran};

void vb_cqs_moderate(struct vb_hca *h, struct vb_cq *cq, uint32_t count, uint64_t period)
{
	vb_lock_take(&h->moderated_lock);
	if (count && !vb_list_linked(&cq->on_hca))
		vb_list_append(&h->moderated, &cq->on_hca);		  /* pairs with vb_cqs_forget() */
	atomic_store_explicit(&h->moderates, true, memory_order_relaxed); /* before an event is held back */
	vb_cq_moderate(cq, count, period);
	vb_lock_give(&h->moderated_lock);
}

void vb_cqs_enter(struct vb_hca *h, struct vb_cq *cq)
{
	vb_lock_take(&h->moderated_lock);
	vb_list_append(&h->cqs, &cq->on_device);
	h->ncqs++;
	vb_lock_give(&h->moderated_lock);
}

void vb_cqs_forget(struct vb_hca *h, struct vb_cq *cq)
{
	vb_lock_take(&h->moderated_lock);
	if (vb_list_linked(&cq->on_device)) {
		vb_list_unlink(&cq->on_device);
		h->ncqs--;
	}
	if (vb_list_linked(&cq->on_hca))
		vb_list_unlink(&cq->on_hca);
	vb_lock_give(&h->moderated_lock);
}

/* An entry that the last look has seen, too, keeps its time. */
static void notice_entries(struct vb_cq *cq, uint64_t now)
{
	uint32_t tail = atomic_load_explicit(&cq->tail, memory_order_relaxed);

	if (vb_cq_is_empty(cq)) {
		cq->lies_since = 0;
	} else if (!cq->lies_since || cq->lies_at != tail) {
		cq->lies_since = now;
		cq->lies_at = tail;
	}
}

/* A completion has no time of its own: that would cost each one.  Of many CQs some have their turn. */
static void notice(struct vb_hca *h, uint64_t now)
{
	if (!vb_lock_try(&h->moderated_lock))
		return;
	for (uint32_t i = 0; i < h->ncqs && i < NOTICED; i++) {
		struct vb_list *n = vb_list_pop(&h->cqs);

		notice_entries(vb_list_entry(n, struct vb_cq, on_device), now);
		vb_list_append(&h->cqs, n);
	}
	vb_lock_give(&h->moderated_lock);
}

static uint64_t release(struct vb_hca *h, uint64_t now)
{
	uint64_t next = VB_NEVER, at;

	if (!atomic_load_explicit(&h->moderates, memory_order_relaxed))
		return VB_NEVER;
	if (!vb_lock_try(&h->moderated_lock))
		return now + BUSY_NS;
	vb_list_each (n, &h->moderated) {
		at = vb_cq_release(vb_list_entry(n, struct vb_cq, on_hca), now);
		if (at < next)
			next = at;
	}
	vb_lock_give(&h->moderated_lock);
	return next;
}

static bool is_in_error(const struct vb_cq *cq)
{
	return cq && atomic_load_explicit(&cq->overrun, memory_order_relaxed);
}

static void fail_if_overrun(struct vb_qp *qp, void *with)
{
	struct vb_facts f = {.reason = VB_R_CQ_OVERRUN, .qpn = qp->qpn};
	struct vb_cq *cq;

	(void)with;
	vb_lock_take(&qp->lock); /* else an XRC target's rcq may go, with its SRQ, while it is looked at */
	cq = is_in_error(qp->scq) ? qp->scq : is_in_error(qp->rcq) ? qp->rcq : NULL;
	if (cq && qp->state != IBV_QPS_RESET && qp->state != IBV_QPS_ERR && !qp->forgotten) {
		f.limit.most = cq->cqe;
		qp->transport->error(qp, &f);
	}
	vb_hca_give(qp);
}

uint64_t vb_cqs_look(struct vb_hca *h, uint64_t now)
{
	/* Whoever found the CQ full held the lock of a queue pair, so the others' could not be taken then
	 * (rule 31). */
	if (vb_unlikely(atomic_load_explicit(&h->overran, memory_order_relaxed)) &&
	    atomic_exchange_explicit(&h->overran, false, memory_order_acquire))
		vb_hca_each_qp(h, fail_if_overrun, NULL);
	notice(h, now);
	return release(h, now);
}
