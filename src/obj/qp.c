#include "base/waiting.h"
#include "obj/qp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "iba/profile.h"
#include "iba/opcode.h"
#include "obj/comp_cntr.h"
#include "obj/context.h"
#include "obj/custody.h"
#include "obj/dests.h"
#include "obj/refuse.h"
#include "base/clock.h"
#include "obj/ring.h"
#include "iba/waits.h"

#define relaxed memory_order_relaxed

static struct vb_traffic
    nowhere; /* of queue pairs that nobody can look at: before they have a number, and in tests */

static uint32_t round_up(uint32_t n, uint32_t to)
{
	return (n + to - 1) / to * to;
}

static int send_queue(struct vb_qp *qp, struct ibv_qp_cap *cap)
{
	struct vb_req *r = &qp->req;
	uint32_t entries = vb_ring_entries(cap->max_send_wr), sges, room;
	uint32_t max_inline = vb_profile()->max_inline & ~15u;
	int err;

	cap->max_inline_data = round_up(cap->max_inline_data, 16); /* rule 40: at least what was asked */
	sges = cap->max_send_sge * (uint32_t)sizeof(struct ibv_sge);
	/* The place of the list serves for inline data, too, which programs rely on that ask for none. */
	if (cap->max_inline_data < sges)
		cap->max_inline_data = sges < max_inline ? sges : max_inline;
	room = sges > cap->max_inline_data ? sges : cap->max_inline_data;
	if (room < sizeof(struct vb_swqe) - offsetof(struct vb_swqe, sge))
		room = sizeof(struct vb_swqe) - offsetof(struct vb_swqe, sge);
	r->stride = round_up((uint32_t)offsetof(struct vb_swqe, sge) + room, VB_LINE);
	err = vb_queue_alloc(&qp->sq_mem, qp->pd, VB_QUEUE_SEND, (size_t)entries * r->stride,
			     cap->max_send_wr, "ibv_create_qp"); /* pairs with vb_qp_fini() */
	if (err)
		return err;
	r->ring = qp->sq_mem.at;
	r->mask = entries - 1;
	r->max_wr = cap->max_send_wr;
	r->max_sge = cap->max_send_sge;
	r->max_inline = cap->max_inline_data;
	r->max_msg = vb_profile()->max_msg;
	r->late_sinks = vb_profile()->late_sinks;
	if (!cap->max_send_sge) /* one piece is one too many, inline too */
		qp->post.brief = false;
	return 0;
}

static int recv_queue(struct vb_qp *qp, struct ibv_qp_cap *cap)
{
	uint32_t sges = qp->srq	   ? qp->srq->rq.max_sge
			: qp->xrcd ? vb_profile()->max_srq_sge /* whatever SRQ a message names */
				   : cap->max_recv_sge;
	int err = 0;

	if (qp->no_rq) {
		cap->max_recv_wr = 0;
		cap->max_recv_sge = 0;
	} else {
		err = vb_rq_init(&qp->resp.rq, qp->pd, VB_QUEUE_RECV, cap->max_recv_wr, cap->max_recv_sge);
	}
	if (err)
		return err;
	qp->resp.copy = calloc(1, sizeof(struct vb_rwqe) + sges * sizeof(struct ibv_sge));
	if (qp->xrcd && !qp->deputy) {
		qp->forwards = calloc(1, sizeof(*qp->forwards)); /* pairs with vb_qp_fini() */
		if (qp->forwards)
			vb_list_init(&qp->forwards->all);
	}
	return qp->resp.copy && (!qp->xrcd || qp->deputy || qp->forwards) ? 0
									  : vb_refuse_memory("ibv_create_qp");
}

/* What state RESET means for the queues; what they may hold stays as it is. */
static void empty_queues(struct vb_qp *qp)
{
	struct vb_req *r = &qp->req;
	struct vb_resp *s = &qp->resp;
	struct vb_req req = {.ring = r->ring,
			     .stride = r->stride,
			     .mask = r->mask,
			     .max_wr = r->max_wr,
			     .max_sge = r->max_sge,
			     .max_inline = r->max_inline,
			     .max_msg = r->max_msg,
			     .late_sinks = r->late_sinks,
			     .deadline = VB_NEVER,
			     .timing = r->timing}; /* whoever put the QP on the list takes it off */
	struct vb_resp resp = {.rq = s->rq, .copy = s->copy, .res = s->res, .res_size = s->res_size};

	*r = req;
	*s = resp;
	s->rq.tail = 0;
	atomic_store_explicit(&s->rq.head, 0, relaxed);
	atomic_store_explicit(&s->rq.polled, 0, relaxed);
	atomic_store_explicit(&qp->post.head, 0, relaxed);
	atomic_store_explicit(&qp->post.free, 0, relaxed);
	vb_qp_set_state(qp, IBV_QPS_RESET);
	qp->attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RESET, .cap = qp->attr.cap};
	qp->dest_qpn = 0;
	qp->qkey = 0;
	qp->max_rd_atomic = 0;
	qp->access = 0;
	if (qp->xrcd) { /* no message has named an SRQ yet */
		qp->srq = NULL;
		qp->rcq = NULL;
		qp->pd_id = 0;
	}
	if (qp->dests)
		vb_dests_stop(qp->dests);
	qp->comm_est = qp->last_wqe_done = false;
	qp->flushed_send = qp->flushed_recv = 0;
	qp->why = (struct vb_facts){0};
	atomic_store_explicit(&qp->astray.n, 0, relaxed);
	qp->astray.tried = 0;
	qp->astray.translated = false;
}

struct vb_async_node *vb_qp_event_at(struct vb_qp *qp, unsigned i)
{
	struct vb_async_node *const nodes[VB_QP_EVENTS] = {
	    &qp->ev_fatal, &qp->ev_access, &qp->ev_req, &qp->ev_comm_est, &qp->ev_drained, &qp->ev_last_wqe};

	return nodes[i];
}

void vb_qp_established(struct vb_qp *qp)
{
	vb_async_post(qp->ctx, &qp->ev_comm_est);
	if (qp->ctx->established)
		qp->ctx->established(qp->ctx, qp->qpn);
}

void vb_qp_init_events(struct vb_qp *qp)
{
	static const enum ibv_event_type types[VB_QP_EVENTS] = {
	    IBV_EVENT_QP_FATAL, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_REQ_ERR,
	    IBV_EVENT_COMM_EST, IBV_EVENT_SQ_DRAINED,	 IBV_EVENT_QP_LAST_WQE_REACHED};

	for (unsigned i = 0; i < VB_QP_EVENTS; i++)
		vb_async_init(vb_qp_event_at(qp, i), types[i], &qp->ibv);
	vb_list_init(&qp->on_ctx);
	vb_list_init(&qp->mcasts);
	vb_list_init(&qp->opened);
	vb_list_init(&qp->on_target);
}

int vb_qp_init(struct vb_qp *qp, struct ibv_qp_cap *cap)
{
	int err;

	qp->no_rq = qp->srq || qp->xrcd || qp->ibv.qp_type == IBV_QPT_XRC_SEND;
	vb_qp_init_events(qp);
	vb_list_init(&qp->path.owes);
	qp->path.qp = qp;
	if (!qp->traffic)
		qp->traffic = &nowhere;
	vb_list_init(&qp->on_timer);
	if (qp->family == VB_FAMILY_UD && !(qp->dests = vb_dests_new())) /* pairs with vb_qp_fini() */
		return vb_refuse_memory("ibv_create_qp");
	err = send_queue(qp, cap);
	if (!err)
		err = recv_queue(qp, cap);
	if (err) {
		vb_qp_fini(qp);
		return err;
	}
	empty_queues(qp);
	return 0;
}

/* A receive WQE that was taken from an SRQ for a message that now never completes is lost to the application,
 * its slot is not. */
static void return_srq_slot(struct vb_qp *qp)
{
	if (qp->srq && qp->resp.have_wqe)
		atomic_fetch_add_explicit(&qp->srq->rq.polled, 1, relaxed);
	qp->resp.have_wqe = false;
}

void vb_qp_forget_srq(struct vb_qp *qp, const struct vb_srq *srq)
{
	vb_lock_assert_held(&qp->lock);
	if (!qp->xrcd || qp->srq != srq)
		return;
	return_srq_slot(qp);
	qp->srq = NULL;
	qp->rcq = NULL;
	qp->pd_id = 0;
}

static void say_built(const struct vb_qp *qp, uint64_t waited)
{
	vb_wait_say(VB_W_BUILDING,
		    "QP 0x%06x: a post or ibv_modify_qp() has waited for %.1f s: another thread has called "
		    "ibv_wr_start() and has "
		    "not called ibv_wr_complete()",
		    qp->qpn, (double)waited / 1e9);
	vb_log_tell();
}

__attribute__((cold, noinline)) bool vb_posting_wait(struct vb_qp *qp)
{
	struct vb_waiting *w;
	uint64_t began = 0;

	if (vb_posting_is_mine(qp))
		return false;
	if (!atomic_load_explicit(&qp->post.builder, memory_order_relaxed)) {
		vb_lock_wait(&qp->post.sends);
		return true;
	}
	w = vb_waiting_begin(VB_WAITING_BUILDER, qp, qp->qpn);
	while (!vb_lock_try(&qp->post.sends)) {
		uint64_t now = vb_now();

		if (vb_waiting_is_long(w, now))
			say_built(qp, now - w->since);
		vb_cpu_offer(&began);
	}
	vb_waiting_end(w);
	return true;
}

void vb_qp_fini(struct vb_qp *qp)
{
	vb_custody_end(qp);
	return_srq_slot(qp);
	vb_comp_detach(qp);
	vb_queue_free(&qp->sq_mem);
	qp->req.ring = NULL;
	if (!qp->no_rq)
		vb_rq_fini(&qp->resp.rq);
	free(qp->resp.copy);
	qp->resp.copy = NULL;
	free(qp->resp.res);
	qp->resp.res = NULL;
	vb_dests_free(qp->dests);
	qp->dests = NULL;
	free(qp->forwards);
	qp->forwards = NULL;
}

/* Completions of the time before are forgotten too: polled later, they would give back slots of the new life.
 */
void vb_qp_reset(struct vb_qp *qp)
{
	vb_lock_assert_held(&qp->lock);
	if (qp->scq)
		vb_cq_forget(qp->scq, qp);
	if (qp->rcq && qp->rcq != qp->scq && !qp->xrcd)
		vb_cq_forget(qp->rcq, qp);
	return_srq_slot(qp);
	vb_lock_take(&qp->post.receives);
	vb_custody_reset(qp);
	empty_queues(qp);
	vb_lock_give(&qp->post.receives);
}

/* Sizes are powers of two, as mlx5 has them, since indices run freely.  A ring whose unanswered entries would
 * not fit stays as it is: nothing that is being answered is cut off (rule 38). */
int vb_qp_resources(struct vb_qp *qp, uint32_t n)
{
	struct vb_resp *s = &qp->resp;
	uint32_t size = n ? vb_ring_entries(n) : 0, keep = size < s->res_size ? size : s->res_size;
	struct vb_resource *res = NULL;

	vb_lock_assert_held(&qp->lock);
	if (size == s->res_size || s->res_head - s->res_next > size)
		return 0;
	if (size) {
		res = calloc(size, sizeof(*res));
		if (!res)
			return ENOMEM;
	}
	for (uint32_t i = 1; i <= keep && i <= s->res_head; i++)
		res[(s->res_head - i) % size] = s->res[(s->res_head - i) % s->res_size];
	free(s->res);
	s->res = res;
	s->res_size = size;
	return 0;
}
