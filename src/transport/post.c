/* The common post in one go: a request that is posted alone, a SEND of one piece that fits a brief packet, to
 * a queue pair with nothing else to do.  The packet is put together from the work request, and the WQE is
 * filled for the case that the packet has to be sent again.
 *
 * It does what the builder (obj/builder.h) and send_brief() (requester.c) do, and sim.brief compares the
 * ways. All other requests, and all that is wrong, are left untouched to them: so one place refuses. */
#include "base/few.h"
#include "mem/peer_mem.h"
#include "transport/start.h"

enum { TAKEN = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE };

/* Whether the queue pair has nothing to do but this request, which is the one at `head`, and nothing has to
 * be done for it afterwards. */
static inline bool is_calm(const struct vb_qp *qp, uint32_t head)
{
	const struct vb_path *p = &qp->path;
	const struct vb_req *q = &qp->req;

	/* The caller of output() sees to memory that is asked for, to a timer that is to be looked at, and to
	 * contact. */
	return q->next == head && q->seen == head && only_sends(qp, false) && q->timing &&
	       window_open(q, 1) && !p->lossy && !p->nobody &&
	       !(p->mem && atomic_load_explicit(&p->mem->asks, memory_order_relaxed));
}

/* The packet but for its data, which is `len` bytes long. */
static inline void put_head(const struct vb_qp *qp, uint32_t flags, uint32_t len, struct vb_brief *b)
{
	enum { MIGREQ = 0x40 << 16, SOLICITED = 1 << 23 };
	uint32_t pad = -len & 3;
	const uint32_t bth[] = {htobe32(VB_SEND_ONLY << 24 | MIGREQ | VB_PKEY_DEFAULT | pad << 20 |
					flags / IBV_SEND_SOLICITED % 2 * SOLICITED),
				htobe32(qp->dest_qpn & VB_QPN_MASK),
				htobe32(1u << 31 | (qp->req.psn & VB_PSN_MASK))};

	b->hdr_len = VB_BTH_LEN;
	b->flags = (uint8_t)(qp->path_mtu * VB_BRIEF_MTU);
	b->lengths = (uint16_t)(len + pad);
	b->ack = qp->resp.ack_owed ? ack_word(&qp->resp) : 0;
	memcpy(b->bytes, bth, VB_BTH_LEN);
}

/* Its data.  The limit of a message's length is above that of a brief packet.  false: the general way refuses
 * it, or has to look for it. */
static inline bool put_data(struct vb_qp *qp, uint32_t flags, const struct ibv_sge *piece, uint32_t len,
			    struct vb_brief *b)
{
	if (!(flags & IBV_SEND_INLINE))
		return vb_sg_gather(qp, piece, b->bytes + VB_BTH_LEN, len);
	if (vb_unlikely(len > qp->req.max_inline))
		return false;
	vb_copy_few(b->bytes + VB_BTH_LEN, (const void *)(uintptr_t)piece->addr, len);
	return true;
}

/* The request has left: its WQE, as the builder and started() leave it. */
static inline void fill(const struct vb_qp *qp, struct vb_swqe *w, const struct ibv_send_wr *wr, uint32_t len,
			const struct vb_brief *b)
{
	uint32_t flags = wr->send_flags;

	w->wr_id = wr->wr_id;
	w->length = len;
	w->psn = qp->req.psn;
	w->npsn = 1;
	w->placed = 0;
	w->opcode = IBV_WR_SEND;
	w->flags = (uint8_t)(flags | (qp->sq_sig_all ? IBV_SEND_SIGNALED : 0)); /* rule 39 */
	w->state = VB_WQE_STARTED;
	w->place = VB_PLACE_MAYBE;
	w->reason = VB_OK;
	if (flags & IBV_SEND_INLINE) {
		w->num_sge = 0;
		vb_copy_few(w->inline_data, b->bytes + VB_BTH_LEN, len);
	} else {
		w->num_sge = 1;
		w->sge[0] = *wr->sg_list;
	}
}

/* The request at q->next has left, as a packet behind which the wire's mark is this. */
static inline void note(struct vb_qp *qp, struct vb_swqe *w, uint32_t len, uint64_t mark)
{
	struct vb_req *q = &qp->req;
	uint32_t psn = q->psn;

	started(q, w);
	q->mark = mark;
	qp->resp.ack_owed = false; /* it went along */
	q->blocked = q->placing = false;
	q->psn = vb_psn_add(psn, 1);
	if (q->psn_max == psn)
		q->psn_max = q->psn;
	q->seen = ++q->next;
	vb_traffic_send(qp->traffic, len);
	if (q->deadline == VB_NEVER) /* it is outstanding now */
		q->deadline = 0;
}

/* The caller also has the lock of the posting end. */
static inline bool send(struct vb_qp *qp, const struct ibv_send_wr *wr, uint32_t head)
{
	const struct ibv_sge *piece = wr->sg_list;
	struct vb_out *out = qp->path.out;
	uint32_t len = piece->length;
	struct vb_brief b = {0};
	struct vb_swqe *w;
	uint64_t mark;

	vb_lock_assert_held(&qp->lock);
	if (vb_unlikely(!is_calm(qp, head) || !len || len > VB_OUT_BRIEF ||
			VB_BTH_LEN + ((len + 3) & ~3u) > out->brief))
		return false;
	put_head(qp, wr->send_flags, len, &b);
	if (vb_unlikely(!put_data(qp, wr->send_flags, piece, len, &b)))
		return false;
	mark = out->ops->send(out, &b, VB_OUT_REQUEST);
	if (vb_unlikely(!mark))
		return false;
	w = vb_sq_at(&qp->req, head);
	fill(qp, w, wr, len, &b);
	note(qp, w, len, mark);
	return true;
}

enum vb_once vb_requester_post(struct vb_qp *qp, const struct ibv_send_wr *wr)
{
	struct vb_posting *post = &qp->post;
	enum vb_once once = VB_ONCE_NOT;
	uint32_t head;

	vb_qp_expect_post(qp);
	if (vb_unlikely(wr->send_flags & ~(uint32_t)TAKEN || !vb_posting_try(qp)))
		return VB_ONCE_NOT;
	head = atomic_load_explicit(&post->head, memory_order_relaxed);
	/* as in vb_builder_room() and vb_hca_posted() */
	if (vb_likely(head - atomic_load_explicit(&post->free, memory_order_acquire) < qp->req.max_wr &&
		      vb_lock_claim(&qp->lock))) {
		if (vb_likely(send(qp, wr, head))) {
			once = VB_ONCE_SENT;
			/* nobody reads it for a request that is not known: no pair */
			atomic_store_explicit(&post->head, head + 1, memory_order_release);
		} else if (vb_unlikely(qp->req.seen != head)) {
			once = VB_ONCE_LEFT;
		}
		vb_lock_give(&qp->lock);
	}
	vb_posting_give(qp);
	return once;
}
