#include "obj/custody.h"

#include "iba/wr.h"
#include "mem/check.h"
#include "mem/check_buffers.h"

/* Writes down what of a request's list is memory of this process.  What has a wrong key fails, and is never
 * touched. */
static void add_pieces(struct vb_check_request *r, struct vb_keys *keys, const struct ibv_sge *sge,
		       uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct vb_check_piece *p = &r->piece[r->num];
		struct vb_key_spec s;

		if (!sge[i].length || !vb_key_look(keys, sge[i].lkey, &s) || s.kind == VB_KEY_NULL ||
		    !vb_key_bounds(s.iova, s.length, sge[i].addr, sge[i].length))
			continue;
		p->at = (uint8_t *)(uintptr_t)(s.addr + (sge[i].addr - s.iova));
		p->length = sge[i].length;
		p->lkey = sge[i].lkey;
		p->number = i;
		r->num++;
	}
}

static void add_send(struct vb_qp *qp, struct vb_check_queue *q, uint32_t index,
		     const struct vb_caller *caller)
{
	struct vb_swqe *w = vb_sq_at(&qp->req, index);
	struct vb_check_request *r = vb_check_slot(q, index);

	r->wr_id = w->wr_id;
	r->opcode = w->opcode;
	r->writes = vb_wr_is(w->opcode, VB_WR_FETCH);
	r->where = caller->where;
	r->frame = caller->frame;
	if (w->flags & IBV_SEND_INLINE || vb_wr_is(w->opcode, VB_WR_WORD))
		vb_check_sends_inline(r, w->inline_data, vb_wr_is(w->opcode, VB_WR_WORD) ? 8 : w->length);
	add_pieces(r, qp->keys, w->sge, w->num_sge); /* none of inline data, and of requests about windows */
	vb_check_posted(r);
}

static void add_receive(struct vb_rq *rq, struct vb_keys *keys, struct vb_check_queue *q, uint32_t index,
			const struct vb_caller *caller)
{
	const struct vb_rwqe *w = vb_rq_at(rq, index);
	struct vb_check_request *r = vb_check_slot(q, index);

	r->wr_id = w->wr_id;
	r->opcode = 0;
	r->writes = true;
	r->where = caller->where;
	r->frame = caller->frame;
	add_pieces(r, keys, w->sge, w->num_sge);
	vb_check_posted(r);
}

void vb_custody_inlined(struct vb_swqe *w, const struct ibv_sge *list, uint32_t n)
{
	uint8_t *to = w->inline_data;

	for (uint32_t i = 0; i < n; i++) {
		vb_check_inlined(to, (const void *)(uintptr_t)list[i].addr, list[i].length);
		to += list[i].length;
	}
}

/* The queue of the QP's that checkers see; NULL: no memory, and it is not checked. */
static struct vb_check_queue *sends_of(struct vb_qp *qp)
{
	struct vb_check_queue *q = qp->custody[VB_CHECK_SENDS];

	if (q)
		return q;
	q = vb_check_queue_new(VB_CHECK_SENDS, qp->qpn, qp->req.mask + 1, qp->req.max_sge);
	if (!q)
		return NULL;
	q->freed = &qp->post.free;
	q->shared = qp->srq && !qp->xrcd ? &qp->srq->custody : NULL;
	q->from = q->to = atomic_load_explicit(&qp->post.head, memory_order_relaxed);
	return qp->custody[VB_CHECK_SENDS] = q; /* vb_custody_end() */
}

static struct vb_check_queue *receives_of(struct vb_qp *qp)
{
	struct vb_check_queue *q = qp->custody[VB_CHECK_RECEIVES];
	const struct vb_rq *rq = &qp->resp.rq;

	if (q)
		return q;
	q = vb_check_queue_new(VB_CHECK_RECEIVES, qp->qpn, rq->mask + 1, rq->max_sge);
	if (q)
		q->freed = &rq->polled;
	return qp->custody[VB_CHECK_RECEIVES] = q; /* vb_custody_end() */
}

static struct vb_check_queue *shared_of(struct vb_srq *srq)
{
	/* Slots are free in another order than they were used in. */
	uint32_t entries = 2 * (srq->rq.mask + 1);
	struct vb_check_queue *q = srq->custody;

	if (q)
		return q;
	q = vb_check_queue_new(VB_CHECK_SHARED, srq->number, entries, srq->rq.max_sge);
	if (!q)
		return NULL;
	q->taken = &srq->rq.tail;
	if (srq->cq)
		vb_check_queue_xrc(q, srq->cq);
	return srq->custody = q; /* vb_custody_end_srq() */
}

/* A window's key ends by a request, which is where the program says so. */
static void note_unbound(const struct vb_qp *qp, uint32_t end)
{
	for (uint32_t i = atomic_load_explicit(&qp->post.head, memory_order_relaxed); i != end; i++)
		if (vb_sq_at(&qp->req, i)->opcode == IBV_WR_LOCAL_INV)
			vb_check_key_ended(vb_sq_at(&qp->req, i)->window.rkey, VB_CHECK_UNBOUND);
}

/* A program may learn from a completion counter that a request is done, and poll later: nothing is known of
 * its requests. */
void vb_custody_sends(struct vb_qp *qp, uint32_t end, const struct vb_caller *caller)
{
	struct vb_check_queue *q = qp->counters ? NULL : sends_of(qp);

	note_unbound(qp, end);
	if (!q)
		return;
	vb_lock_take(&vb_check_lock);
	/* Requests may have been flushed, and another thread that has polled them may not have told yet. */
	if (vb_qp_state_now(qp) >= IBV_QPS_SQE)
		q->failed = true;
	for (uint32_t i = atomic_load_explicit(&qp->post.head, memory_order_relaxed); i != end; i++)
		add_send(qp, q, i, caller);
	vb_lock_give(&vb_check_lock);
}

void vb_custody_receives(struct vb_qp *qp, uint32_t end, const struct vb_caller *caller)
{
	struct vb_check_queue *q = qp->counters ? NULL : receives_of(qp);
	struct vb_rq *rq = &qp->resp.rq;

	if (!q)
		return;
	vb_lock_take(&vb_check_lock);
	for (uint32_t i = atomic_load_explicit(&rq->head, memory_order_relaxed); i != end; i++)
		add_receive(rq, qp->keys, q, i, caller);
	vb_lock_give(&vb_check_lock);
}

void vb_custody_shared(struct vb_srq *srq, struct vb_keys *keys, uint32_t end, const struct vb_caller *caller)
{
	struct vb_check_queue *q = shared_of(srq);

	if (!q)
		return;
	vb_lock_take(&vb_check_lock);
	for (uint32_t i = atomic_load_explicit(&srq->rq.head, memory_order_relaxed); i != end; i++)
		add_receive(&srq->rq, keys, q, i, caller);
	vb_lock_give(&vb_check_lock);
}

void vb_custody_polled(struct vb_cq *cq, const struct ibv_wc *wc, int n)
{
	for (int i = 0; i < n; i++)
		if (wc[i].status != IBV_WC_SUCCESS)
			vb_check_failed(wc[i].qp_num);
	for (int i = 0; i < n; i++)
		vb_check_polled(wc[i].qp_num, wc[i].wr_id, cq);
}

void vb_custody_begin(struct vb_qp *qp)
{
	sends_of(qp);
}

static void release_shared(struct vb_qp *qp)
{
	if (qp->srq && qp->srq->custody)
		vb_check_release_taken(qp->srq->custody);
}

void vb_custody_reset(struct vb_qp *qp)
{
	release_shared(qp);
	for (unsigned i = 0; i < 2; i++)
		if (qp->custody[i])
			vb_check_queue_reset(qp->custody[i]);
}

void vb_custody_end(struct vb_qp *qp)
{
	release_shared(qp);
	for (unsigned i = 0; i < 2; i++) {
		if (qp->custody[i])
			vb_check_queue_end(qp->custody[i]);
		qp->custody[i] = NULL;
	}
}

void vb_custody_end_srq(struct vb_srq *srq)
{
	if (srq->custody)
		vb_check_queue_end(srq->custody);
	srq->custody = NULL;
}
