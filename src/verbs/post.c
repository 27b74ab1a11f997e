/* Posting work requests: checks everything that can be checked at the call, fills WQEs in place, and lets the
 * protocol run once per list. */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "iba/names.h"
#include "transport/rc.h"
#include "verbs/mw.h"
#include "hca/progress.h"
#include "verbs/verbs.h"

/* What a request may be on an RC QP; rule 11. */
enum wr_bits { WR_KNOWN = 1, WR_INLINE = 2, WR_RDMA = 4, WR_ATOMIC = 8, WR_LOCAL = 16 };

static const uint8_t wr_rows[] = {
    [IBV_WR_RDMA_WRITE] = WR_KNOWN | WR_INLINE | WR_RDMA,
    [IBV_WR_RDMA_WRITE_WITH_IMM] = WR_KNOWN | WR_INLINE | WR_RDMA,
    [IBV_WR_SEND] = WR_KNOWN | WR_INLINE,
    [IBV_WR_SEND_WITH_IMM] = WR_KNOWN | WR_INLINE,
    [IBV_WR_RDMA_READ] = WR_KNOWN | WR_RDMA,
    [IBV_WR_ATOMIC_CMP_AND_SWP] = WR_KNOWN | WR_ATOMIC,
    [IBV_WR_ATOMIC_FETCH_AND_ADD] = WR_KNOWN | WR_ATOMIC,
    [IBV_WR_LOCAL_INV] = WR_KNOWN | WR_LOCAL,
    [IBV_WR_BIND_MW] = WR_KNOWN | WR_LOCAL,
    [IBV_WR_SEND_WITH_INV] = WR_KNOWN | WR_INLINE,
};

enum {
	SEND_FLAGS = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE,
};

static __attribute__((cold, noinline)) int refuse_request(const struct vb_qp *qp,
							  const struct ibv_send_wr *wr, uint64_t length)
{
	uint32_t op = wr->opcode;
	uint8_t row = op < sizeof wr_rows ? wr_rows[op] : 0;
	const char *name = vb_name_wr_opcode(op);
	char flags[VB_FLAGS_TEXT];

	if (!(row & WR_KNOWN))
		return name ? vb_refuse(EINVAL, "ibv_post_send", "%s is no request that an RC QP takes", name)
			    : vb_refuse(EINVAL, "ibv_post_send", "there is no opcode %u", op);
	if (!(row & WR_LOCAL) && (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->req.max_sge))
		return vb_refuse(EINVAL, "ibv_post_send",
				 "num_sge %d; QP 0x%06x was made for at most %u (max_send_sge)", wr->num_sge,
				 qp->qpn, qp->req.max_sge);
	if (wr->send_flags & ~(unsigned)SEND_FLAGS)
		return vb_refuse(EINVAL, "ibv_post_send", "send_flags: %s is not for an RC QP",
				 vb_name_flags(flags, sizeof flags, VB_FLAGS_SEND,
					       wr->send_flags & ~(unsigned)SEND_FLAGS));
	if ((wr->send_flags & IBV_SEND_INLINE) && !(row & WR_INLINE))
		return vb_refuse(EINVAL, "ibv_post_send", "IBV_SEND_INLINE with %s, which sends no data",
				 name);
	if (wr->send_flags & IBV_SEND_INLINE)
		return vb_refuse(EINVAL, "ibv_post_send", "%llu bytes inline, QP 0x%06x takes up to %u",
				 (unsigned long long)length, qp->qpn, qp->req.max_inline);
	return vb_refuse(EINVAL, "ibv_post_send", "a message of %llu bytes, the port takes up to %u",
			 (unsigned long long)length, qp->req.max_msg);
}

static __attribute__((cold, noinline)) int refuse_full(const struct vb_qp *qp, const char *call)
{
	return vb_refuse(
	    ENOMEM, call,
	    "the send queue of QP 0x%06x is full: as many requests are posted as it was made for "
	    "(%u), and no completion behind them polled (unsignalled ones count until a later "
	    "one's is)",
	    qp->qpn, qp->req.max_wr);
}

static __attribute__((cold, noinline)) int refuse_state(const struct vb_qp *qp, const char *call)
{
	static const char *const names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};

	return vb_refuse(EINVAL, call, "QP 0x%06x is in %s", qp->qpn, names[qp->state]);
}

static void copy_inline(struct vb_swqe *w, const struct ibv_send_wr *wr)
{
	uint8_t *to = w->inline_data;

	for (int i = 0; i < wr->num_sge; i++) { /* rule 40: no key is looked at */
		memcpy(to, (const void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
		to += wr->sg_list[i].length;
	}
}

/* What this end does by itself, with windows of this type; a list of pieces means nothing to it. */
static __attribute__((noinline)) int fill_local(struct vb_qp *qp, const struct ibv_send_wr *wr,
						enum ibv_mw_type binds)
{
	struct vb_req *q = &qp->req;
	struct vb_swqe *w = vb_sq_at(q, q->head);
	const char *call = binds == IBV_MW_TYPE_1 ? "ibv_bind_mw" : "ibv_post_send";
	uint32_t flags = wr->send_flags;
	int err;

	if (flags & IBV_SEND_INLINE || flags & ~(uint32_t)SEND_FLAGS)
		return refuse_request(qp, wr, 0);
	w->rkey = wr->invalidate_rkey;
	w->swap = 0;
	if (wr->opcode == IBV_WR_BIND_MW) {
		err = vb_mw_fill(qp, w, wr, call, binds);
		if (err)
			return err;
	}
	w->wr_id = wr->wr_id;
	w->length = w->num_sge = w->got = 0;
	w->opcode = (uint8_t)wr->opcode;
	w->flags = (uint8_t)(flags | (qp->sq_sig_all ? IBV_SEND_SIGNALED : 0)); /* rule 39 */
	w->state = VB_WQE_POSTED;
	w->reason = VB_OK;
	w->place = VB_PLACE_RING;
	return 0;
}

/* Fills the WQE at the head; 0 or errno. */
static inline int fill(struct vb_qp *qp, const struct ibv_send_wr *wr, enum ibv_mw_type binds)
{
	struct vb_req *q = &qp->req;
	struct vb_swqe *w = vb_sq_at(q, q->head);
	uint32_t op = wr->opcode, flags = wr->send_flags;
	uint64_t length = 0;
	uint8_t row;

	row = vb_likely(op < sizeof wr_rows) ? wr_rows[op] : 0;
	if (vb_unlikely(row & WR_LOCAL))
		return fill_local(qp, wr, binds);
	if (vb_unlikely(!(row & WR_KNOWN) || (uint32_t)wr->num_sge > q->max_sge ||
			(flags & ~(uint32_t)SEND_FLAGS)))
		return refuse_request(qp, wr, 0);
	for (int i = 0; i < wr->num_sge; i++)
		length += wr->sg_list[i].length;
	if (vb_unlikely(flags & IBV_SEND_INLINE)) {
		if (!(row & WR_INLINE) || length > q->max_inline)
			return refuse_request(qp, wr, length);
		copy_inline(w, wr);
	} else {
		for (int i = 0; i < wr->num_sge; i++)
			w->sge[i] = wr->sg_list[i];
	}
	if (vb_unlikely(length > q->max_msg))
		return refuse_request(qp, wr, length);
	w->wr_id = wr->wr_id;
	w->imm_inv = wr->imm_data;
	w->length = (uint32_t)length;
	w->num_sge = (uint32_t)wr->num_sge;
	w->opcode = (uint8_t)op;
	w->flags = (uint8_t)(flags | (qp->sq_sig_all ? IBV_SEND_SIGNALED : 0)); /* rule 39 */
	/* A READ before it may be using the window that it invalidates: its answer, or what must be asked for
	 * again of it, is on the way. */
	if (vb_unlikely(op == IBV_WR_SEND_WITH_INV))
		w->flags |= IBV_SEND_FENCE;
	w->state = VB_WQE_POSTED;
	w->reason = VB_OK;
	w->place = VB_PLACE_MAYBE;
	w->got = 0;
	if (row & WR_RDMA) {
		w->raddr = wr->wr.rdma.remote_addr;
		w->rkey = wr->wr.rdma.rkey;
	} else if (row & WR_ATOMIC) {
		w->raddr = wr->wr.atomic.remote_addr;
		w->rkey = wr->wr.atomic.rkey;
		w->compare_add = wr->wr.atomic.compare_add;
		w->swap = wr->wr.atomic.swap;
	}
	return 0;
}

/* binds: the type of window that requests in the list may bind. */
static inline int post_send(struct vb_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad,
			    enum ibv_mw_type binds)
{
	struct vb_req *q = &qp->req;
	int err = 0;

	vb_lock_take(&qp->lock);
	if (vb_unlikely(qp->state < IBV_QPS_RTS)) {
		err = refuse_state(qp, binds == IBV_MW_TYPE_1 ? "ibv_bind_mw" : "ibv_post_send");
		goto give_lock;
	}
	for (; wr; wr = wr->next) {
		/* rule 11; the acquire pairs with the poll that gave the slots back */
		if (vb_unlikely(q->head - atomic_load_explicit(&q->free, memory_order_acquire) >=
				q->max_wr)) {
			err = refuse_full(qp, binds == IBV_MW_TYPE_1 ? "ibv_bind_mw" : "ibv_post_send");
			break;
		}
		err = fill(qp, wr, binds);
		if (vb_unlikely(err))
			break;
		q->head++;
	}
	if (vb_unlikely(qp->state == IBV_QPS_ERR))
		vb_rc_flush(qp); /* rule 30 */
	else
		vb_progress_send(qp);
give_lock:
	vb_lock_give(&qp->lock);
	if (vb_unlikely(err))
		*bad = wr;
	return err;
}

VB_CODE(vb_post_send, (qp, wr, bad), struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return post_send(vb_qp(qp), wr, bad, IBV_MW_TYPE_2);
}

int vb_post_bind(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	return post_send(vb_qp(qp), wr, &bad, IBV_MW_TYPE_1);
}

VB_CODE(vb_post_recv, (ibqp, wr, bad), struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct vb_qp *qp = vb_qp(ibqp);
	int err;

	if (vb_unlikely(qp->srq != NULL)) { /* rule 34 */
		*bad = wr;
		return vb_refuse(EINVAL, "ibv_post_recv",
				 "QP 0x%06x receives from a shared queue: post to it by ibv_post_srq_recv",
				 qp->qpn);
	}
	vb_lock_take(&qp->lock);
	if (vb_unlikely(qp->state == IBV_QPS_RESET)) {
		err = refuse_state(qp, "ibv_post_recv");
		*bad = wr;
	} else {
		err = vb_rq_post(&qp->resp.rq, wr, bad, "ibv_post_recv");
		if (vb_unlikely(qp->state == IBV_QPS_ERR))
			vb_rc_flush(qp); /* rule 30 */
	}
	vb_lock_give(&qp->lock);
	return err;
}
