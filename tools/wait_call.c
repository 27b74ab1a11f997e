/* Calls that block. */
#include <stdio.h>
#include <stdlib.h>

#include "waits.h"

static const char *const calls[VB_WAITING_KINDS] = {
    [VB_WAITING_CQ_ERR_ACKS] = "ibv_destroy_cq",
    [VB_WAITING_CQ_ACKS] = "ibv_destroy_cq",
    [VB_WAITING_QP_ACKS] = "ibv_destroy_qp",
    [VB_WAITING_SRQ_ACKS] = "ibv_destroy_srq",
    [VB_WAITING_MR_USERS] = "ibv_dereg_mr",
    [VB_WAITING_TURN] = "ibv_start_poll",
    [VB_WAITING_BUILDER] = "a post or ibv_modify_qp()",
    [VB_WAITING_ASYNC_EVENT] = "ibv_get_async_event",
    [VB_WAITING_CM_EVENT] = "rdma_get_cm_event",
    [VB_WAITING_CM_ACKS] = "rdma_destroy_id",
};

/* Objects that end are in no list any more: they are read by their address. */
static void cq_acks(struct vb_waits *l, const struct vb_waiting *w, const struct vb_text *what)
{
	const struct vb_inside *in = &l->world.self->in;
	struct vb_cq *cq = aligned_alloc(VB_LINE, sizeof(*cq));
	uint32_t comp, async;

	if (cq && vb_inside_get(in, (void *)(uintptr_t)w->object, cq, sizeof(*cq))) {
		comp = cq->delivered - cq->ibv.comp_events_completed;
		async = cq->async_delivered - cq->ibv.async_events_completed;
		if (comp)
			vb_wait_add(
			    l, VB_W_CQ_ACKS, w->since, what,
			    "%u completion event%s of CQ 0x%llx %s not acknowledged: %u delivered, %u "
			    "acknowledged",
			    comp, comp == 1 ? "" : "s", (unsigned long long)w->object,
			    comp == 1 ? "is" : "are", cq->delivered, cq->ibv.comp_events_completed);
		else if (async)
			vb_wait_add(
			    l, VB_W_ASYNC_ACKS, w->since, what,
			    "%u asynchronous event%s of CQ 0x%llx (IBV_EVENT_CQ_ERR) %s not acknowledged",
			    async, async == 1 ? "" : "s", (unsigned long long)w->object,
			    async == 1 ? "is" : "are");
	}
	free(cq);
}

static void async_acks(struct vb_waits *l, const struct vb_waiting *w, const struct vb_text *what, uint32_t n)
{
	vb_wait_add(l, VB_W_ASYNC_ACKS, w->since, what, "%u asynchronous event%s of the %s not acknowledged",
		    n, n == 1 ? "" : "s",
		    w->what == VB_WAITING_QP_ACKS ? (n == 1 ? "queue pair is" : "queue pair are")
						  : (n == 1 ? "SRQ is" : "SRQ are"));
}

static void qp_acks(struct vb_waits *l, const struct vb_waiting *w, const struct vb_text *what)
{
	struct vb_qp *qp = aligned_alloc(VB_LINE, sizeof(*qp));

	if (qp && vb_inside_get(&l->world.self->in, (void *)(uintptr_t)w->object, qp, sizeof(*qp)) &&
	    qp->delivered != qp->ibv.events_completed)
		async_acks(l, w, what, qp->delivered - qp->ibv.events_completed);
	free(qp);
}

static void srq_acks(struct vb_waits *l, const struct vb_waiting *w, const struct vb_text *what)
{
	struct vb_srq *srq = aligned_alloc(VB_LINE, sizeof(*srq));

	if (srq && vb_inside_get(&l->world.self->in, (void *)(uintptr_t)w->object, srq, sizeof(*srq)) &&
	    srq->delivered != srq->ibv.events_completed)
		async_acks(l, w, what, srq->delivered - srq->ibv.events_completed);
	free(srq);
}

/* The thread between ibv_start_poll() and ibv_end_poll(), as far as it is known. */
static void turn(struct vb_waits *l, const struct vb_waiting *w, const struct vb_text *what)
{
	const struct vb_inside *in = &l->world.self->in;
	const struct vb_inside_cq *c = vb_inside_find_cq(in, (void *)(uintptr_t)w->object);
	uint64_t holder = c ? atomic_load(&c->cq.turn.holder) : 0;
	char who[120] = "another thread";

	if (holder == w->self)
		snprintf(who, sizeof(who), "the same thread");
	else if (holder)
		snprintf(who, sizeof(who),
			 "another thread (pthread_self() 0x%llx, see gdb's \"info threads\")",
			 (unsigned long long)holder);
	for (size_t i = 0; holder && i < in->nwaitings; i++)
		if (in->waitings[i].self == holder && holder != w->self)
			snprintf(who, sizeof(who), "thread %u", atomic_load(&in->waitings[i].tid));
	vb_wait_add(l, VB_W_TURN, w->since, what,
		    "%s has called ibv_start_poll() on CQ 0x%llx and has not called ibv_end_poll()", who,
		    (unsigned long long)w->object);
}

void vb_wait_call(struct vb_waits *l, const struct vb_waiting *w)
{
	char text[320] = "";
	struct vb_text t = {text, sizeof(text)}, what = {text, sizeof(text)};

	if (!calls[w->what])
		return; /* channels have their own findings */
	vb_text_add(&t, "%s%s: thread %u waits in it", calls[w->what],
		    w->what == VB_WAITING_BUILDER ? "" : "()", atomic_load(&w->tid));
	switch (w->what) {
	case VB_WAITING_CQ_ACKS:
	case VB_WAITING_CQ_ERR_ACKS:
		vb_text_add(&t, ", for CQ 0x%llx, which is no longer among the queues below",
			    (unsigned long long)w->object);
		cq_acks(l, w, &what);
		break;
	case VB_WAITING_QP_ACKS:
		qp_acks(l, w, &what);
		break;
	case VB_WAITING_SRQ_ACKS:
		srq_acks(l, w, &what);
		break;
	case VB_WAITING_MR_USERS:
		vb_wait_add(l, VB_W_MR_USED, w->since, &what,
			    "process %u is copying to or from the region, and has not ended that", w->amount);
		break;
	case VB_WAITING_TURN:
		vb_text_add(&t, ", for CQ 0x%llx", (unsigned long long)w->object);
		turn(l, w, &what);
		break;
	case VB_WAITING_BUILDER:
		vb_wait_add(l, VB_W_BUILDING, w->since, &what,
			    "another thread has called ibv_wr_start() on QP 0x%06x and has not called "
			    "ibv_wr_complete()",
			    w->amount);
		break;
	case VB_WAITING_ASYNC_EVENT:
		vb_wait_add(l, VB_W_ASYNC_EVENT, w->since, &what,
			    "no asynchronous event has come, which is normal while nothing goes wrong");
		break;
	default:
		break;
	}
}
