#include "obj/srq.h"

#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "obj/context.h"
#include "obj/qp.h"
#include "obj/ring.h"

#define relaxed memory_order_relaxed

int vb_rq_init(struct vb_rq *rq, struct vb_pd *pd, enum vb_queue_kind kind, uint32_t max_wr, uint32_t max_sge)
{
	uint32_t entries = vb_ring_entries(max_wr);
	int err;

	/* zero-sized queues work (rule 14): every post finds them full */
	rq->stride = (uint32_t)(sizeof(struct vb_rwqe) + max_sge * sizeof(struct ibv_sge));
	err = vb_queue_alloc(&rq->mem, pd, kind, (size_t)entries * rq->stride, max_wr,
			     kind == VB_QUEUE_SRQ ? "ibv_create_srq" : "ibv_create_qp"); /* vb_rq_fini() */
	if (err)
		return err;
	rq->ring = rq->mem.at;
	rq->mask = entries - 1;
	rq->max_wr = max_wr;
	rq->max_sge = max_sge;
	rq->tail = 0;
	atomic_store_explicit(&rq->head, 0, relaxed);
	atomic_store_explicit(&rq->polled, 0, relaxed);
	return 0;
}

void vb_rq_fini(struct vb_rq *rq)
{
	vb_queue_free(&rq->mem);
	rq->ring = NULL;
}

/* A queue pair's; NULL: the queue is an SRQ's. */
static struct vb_qp *user_of(struct vb_rq *rq)
{
	return rq->mem.kind == VB_QUEUE_SRQ ? NULL : vb_list_entry(rq, struct vb_qp, resp.rq);
}

int vb_rq_refuse(struct vb_rq *rq, const struct ibv_recv_wr *wr, uint32_t arrived, const char *call)
{
	const struct vb_qp *qp = user_of(rq);
	uint32_t number = qp ? qp->qpn : vb_list_entry(rq, struct vb_srq, rq)->number;
	const char *name = qp ? "QP" : "SRQ";
	char text[200] = "";
	struct vb_text why = {text, sizeof(text)};

	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > rq->max_sge)
		return vb_refuse(EINVAL, call, "num_sge %d exceeds the limit of %s 0x%06x, %u (%s)",
				 wr->num_sge, name, number, rq->max_sge, qp ? "max_recv_sge" : "max_sge");
	if (arrived)
		vb_text_add(&why, "messages have arrived for %u of them: poll the CQ", arrived);
	else
		vb_text_add(&why,
			    "no message has arrived for them: post fewer, or create the %s with a larger %s",
			    name, qp ? "max_recv_wr" : "max_wr");
	return vb_refuse(ENOMEM, call,
			 "the receive queue of %s 0x%06x is full: all %u requests (%s) are outstanding; %s",
			 name, number, rq->max_wr, qp ? "max_recv_wr" : "max_wr", text);
}

/* Whether there is one that is for `need` bytes. */
static bool has_next(const struct vb_rq *rq, uint32_t need, uint32_t *room)
{
	if (vb_rq_empty(rq))
		return false;
	if (vb_likely(!need))
		return true;
	*room = vb_rwqe_room(vb_rq_at(rq, rq->tail));
	return *room >= need;
}

bool vb_srq_take(struct vb_srq *srq, struct vb_rwqe *to, uint32_t need, uint32_t *room)
{
	struct vb_rq *rq = &srq->rq;
	bool fires;

	vb_lock_take(&srq->lock);
	if (!has_next(rq, need, room)) {
		vb_lock_give(&srq->lock);
		return false;
	}
	vb_rwqe_copy(to, vb_rq_at(rq, rq->tail++));
	fires = rq->head - rq->tail < srq->limit; /* rule 34: once, then not until armed again */
	if (vb_unlikely(fires)) {
		srq->limit = 0;
		srq->limit_fired++;
	}
	vb_lock_give(&srq->lock);
	if (vb_unlikely(fires))
		vb_async_post(srq->ctx, &srq->ev_limit);
	return true;
}
