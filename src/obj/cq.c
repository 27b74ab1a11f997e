#include "obj/cq.h"

#include <errno.h>
#include <string.h>

#include "host/adapter.h"
#include "obj/context.h"
#include "obj/qp.h"
#include "obj/ring.h"
#include "obj/srq.h"

#define relaxed memory_order_relaxed

static struct vb_adapter *adapter_of(const struct vb_cq *cq)
{
	return cq->ctx ? cq->ctx->adapter : NULL;
}

int vb_cq_init(struct vb_cq *cq, uint32_t cqe)
{
	uint32_t entries = vb_ring_entries(cqe);

	cq->ring_bytes = entries * sizeof(*cq->ring);
	cq->ring = vb_ring_alloc(cq->ring_bytes);
	if (!cq->ring)
		return ENOMEM;
	cq->mask = entries - 1;
	cq->cqe = cqe;
	vb_list_init(&cq->node);
	vb_async_init(&cq->ev_overrun, IBV_EVENT_CQ_ERR, &cq->ibv);
	return 0;
}

void vb_cq_fini(struct vb_cq *cq)
{
	struct vb_channel *ch = cq->channel;

	if (cq->armed != VB_ARM_NONE && adapter_of(cq))
		vb_adapter_disarm(adapter_of(cq));
	cq->armed = VB_ARM_NONE;
	if (ch) {
		vb_lock_take(&ch->evq.lock);
		vb_list_unlink(&cq->node);
		vb_evq_take_back(&ch->evq, cq->undelivered);
		cq->undelivered = 0;
		vb_lock_give(&ch->evq.lock);
	}
	if (cq->ctx)
		vb_async_cancel(cq->ctx, &cq->ev_overrun);
	vb_ring_free(cq->ring, cq->ring_bytes);
	cq->ring = NULL;
}

int vb_cq_resize(struct vb_cq *cq, uint32_t cqe, uint32_t *held)
{
	uint32_t entries = vb_ring_entries(cqe), tail, head;
	size_t bytes = entries * sizeof(struct vb_cqe), spare_bytes = bytes;
	struct vb_cqe *ring = vb_ring_alloc(bytes), *spare = ring;
	int err = 0;

	if (!ring)
		return ENOMEM;
	vb_lock_take(&cq->lock);
	tail = atomic_load_explicit(&cq->tail, relaxed);
	head = atomic_load_explicit(&cq->head, relaxed);
	*held = head - tail;
	if (*held > cqe) { /* rule 31: resizing must not drop */
		err = EINVAL;
	} else {
		for (uint32_t i = tail; i != head; i++)
			ring[i & (entries - 1)] = cq->ring[i & cq->mask];
		spare = cq->ring;
		spare_bytes = cq->ring_bytes;
		cq->ring = ring;
		cq->ring_bytes = bytes;
		cq->mask = entries - 1;
		cq->cqe = cqe;
	}
	vb_lock_give(&cq->lock);
	vb_ring_free(spare, spare_bytes);
	return err;
}

bool vb_cq_arm_for(struct vb_cq *cq, bool solicited_only)
{
	bool was_armed;

	vb_lock_take(&cq->lock);
	was_armed = cq->armed != VB_ARM_NONE;
	if (!solicited_only)
		cq->armed = VB_ARM_NEXT; /* rule 32: a "next" request wins */
	else if (!was_armed)
		cq->armed = VB_ARM_SOLICITED;
	vb_lock_give(&cq->lock);
	return was_armed;
}

static bool satisfies(const struct vb_cq *cq, const struct vb_cqe *e, bool solicited)
{
	return cq->armed == VB_ARM_NEXT || solicited || e->wc.status != IBV_WC_SUCCESS; /* rule 32 */
}

/* The event exists once the arming is used up (rule 31). */
static void link_event(struct vb_cq *cq)
{
	struct vb_evq *q = &cq->channel->evq;

	vb_lock_assert_held(&cq->lock);
	cq->armed = VB_ARM_NONE;
	vb_lock_take(&q->lock);
	if (cq->undelivered++ == 0)
		vb_list_append(&q->nodes, &cq->node);
	vb_lock_give(&q->lock);
}

__thread struct vb_cq_hand *vb_cq_hand;

/* The slot of the request that this entry completes is free again.  Under the CQ's lock, or under that of the
 * QP while the CQ is empty. */
static inline void give_slot(const struct vb_cqe *e)
{
	if (e->is_send)
		vb_sq_give(e->qp, e->sq_free);
	else if (e->srq)
		vb_srq_give(e->srq);
	else
		vb_rq_give(&e->qp->resp.rq);
}

/* Gives the CQ's lock back.  The entry is lost; the slot in an SRQ, which others use, is not. */
static bool refuse_push(struct vb_cq *cq, const struct vb_cqe *e)
{
	bool first = !atomic_load_explicit(&cq->overrun, relaxed);

	vb_lock_assert_held(&cq->lock);
	atomic_store_explicit(&cq->overrun, true, relaxed);
	vb_lock_give(&cq->lock);
	if (!e->is_send && e->srq)
		vb_srq_give(e->srq);
	if (first && cq->ctx)
		vb_async_post(cq->ctx, &cq->ev_overrun); /* rule 31 */
	return false;
}

bool vb_cq_push(struct vb_cq *cq, const struct vb_cqe *e, bool solicited)
{
	struct vb_evq *fired = NULL;
	uint32_t head;

	vb_lock_take(&cq->lock);
	head = atomic_load_explicit(&cq->head, relaxed);
	if (vb_unlikely(head - atomic_load_explicit(&cq->tail, relaxed) >= cq->cqe ||
			atomic_load_explicit(&cq->overrun, relaxed)))
		return refuse_push(cq, e);
	cq->ring[head & cq->mask] = *e;
	atomic_store_explicit(&cq->head, head + 1, relaxed);
	if (vb_unlikely(cq->armed != VB_ARM_NONE) && satisfies(cq, e, solicited)) {
		link_event(cq);
		fired = &cq->channel->evq;
	}
	vb_lock_give(&cq->lock);
	if (vb_unlikely(fired != NULL)) {
		if (adapter_of(cq))
			vb_adapter_disarm(adapter_of(cq));
		vb_evq_add(fired);
	}
	return true;
}

int vb_cq_poll(struct vb_cq *cq, int n, struct ibv_wc *wc)
{
	uint32_t tail, held;
	int i;

	if (vb_cq_is_empty(cq))
		return vb_unlikely(atomic_load_explicit(&cq->overrun, relaxed)) ? -1 : 0;
	vb_lock_take(&cq->lock);
	tail = atomic_load_explicit(&cq->tail, relaxed);
	held = atomic_load_explicit(&cq->head, relaxed) - tail;
	for (i = 0; i < n && (uint32_t)i < held; i++) {
		const struct vb_cqe *e = &cq->ring[(tail + (uint32_t)i) & cq->mask];

		wc[i] = e->wc;
		give_slot(e);
	}
	atomic_store_explicit(&cq->tail, tail + (uint32_t)i,
			      memory_order_release); /* pairs with vb_cq_handed() */
	vb_lock_give(&cq->lock);
	return i;
}

/* The entries of a QP, or of an SRQ; the other is NULL.  Closes the gaps, so that what nobody will poll takes
 * no room from others. */
static void forget(struct vb_cq *cq, const struct vb_qp *qp, const struct vb_srq *srq)
{
	uint32_t head, to;

	vb_lock_take(&cq->lock);
	head = atomic_load_explicit(&cq->head, relaxed);
	to = atomic_load_explicit(&cq->tail, relaxed);
	for (uint32_t i = to; i != head; i++) {
		const struct vb_cqe *e = &cq->ring[i & cq->mask];

		if (qp ? e->qp != qp : e->is_send || e->srq != srq) {
			if (to != i)
				cq->ring[to & cq->mask] = *e;
			to++;
		} else {
			give_slot(e);
		}
	}
	atomic_store_explicit(&cq->head, to, relaxed);
	vb_lock_give(&cq->lock);
}

void vb_cq_forget(struct vb_cq *cq, struct vb_qp *qp)
{
	forget(cq, qp, NULL);
}

void vb_cq_forget_srq(struct vb_cq *cq, struct vb_srq *srq)
{
	forget(cq, NULL, srq);
}
