/* Filling send WQEs in place: what ibv_post_send does, and the tests of the protocol.
 *
 *	vb_builder_begin(&b, qp);
 *	for each request, while vb_builder_room(&b):
 *		vb_builder_start(&b, opcode, flags, wr_id);
 *		vb_builder_fill(&b, wr);
 *		vb_builder_next(&b);
 *	vb_builder_publish(&b);
 *	vb_builder_end(&b);
 *
 * Nothing of it is seen by the protocol before it is published; ending without that drops it.  What a fault
 * means is told by whoever posts. */
#ifndef VB_OBJ_BUILDER_H
#define VB_OBJ_BUILDER_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "base/few.h"
#include "iba/wr.h"
#include "obj/qp.h"

struct vb_builder {
	struct vb_qp *qp;
	uint32_t bits;	   /* enum vb_wr_bits of the request that is being filled */
	uint32_t next;	   /* index of the request that is being filled */
	struct vb_swqe *w; /* it */
};

enum vb_build_fault {
	VB_BUILD_FINE,
	VB_BUILD_OPCODE,	/* none that a QP of this type takes */
	VB_BUILD_FLAGS,		/* some that there are not */
	VB_BUILD_NOT_INLINE,	/* it sends no data */
	VB_BUILD_SGES,		/* more pieces than the queue was made for */
	VB_BUILD_INLINE_LENGTH, /* more bytes inline than the queue was made for */
	VB_BUILD_LENGTH,	/* a longer message than the port takes */
};

enum { VB_BUILD_FLAGS_KNOWN = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE };

/* No other thread posts until vb_builder_end(). */
static inline void vb_builder_begin(struct vb_builder *b, struct vb_qp *qp)
{
	b->qp = qp;
	b->bits = 0;
	vb_posting_take(qp);
	b->next = atomic_load_explicit(&qp->post.head, memory_order_relaxed);
}

/* Whether there is a slot for another request; the slots are free again when completions are polled (rule
 * 11). */
static inline bool vb_builder_room(struct vb_builder *b)
{
	struct vb_req *q = &b->qp->req;

	b->w = vb_sq_at(q, b->next);
	/* the acquire pairs with the poll that gave the slots back */
	return b->next - atomic_load_explicit(&b->qp->post.free, memory_order_acquire) < q->max_wr;
}

/* What every request has.  flags: enum ibv_send_flags. */
static inline enum vb_build_fault vb_builder_start(struct vb_builder *b, uint32_t opcode, uint32_t flags,
						   uint64_t wr_id)
{
	const struct vb_wr_row *row = vb_wr_row(opcode);
	struct vb_swqe *w = b->w;

	if (vb_unlikely(!(row->types >> b->qp->ibv.qp_type & 1)))
		return VB_BUILD_OPCODE;
	if (vb_unlikely(flags & ~(uint32_t)VB_BUILD_FLAGS_KNOWN))
		return VB_BUILD_FLAGS;
	if (vb_unlikely(flags & IBV_SEND_INLINE) && !(row->bits & VB_WR_INLINE))
		return VB_BUILD_NOT_INLINE;
	if (b->qp->sq_sig_all) /* rule 39 */
		flags |= IBV_SEND_SIGNALED;
	if (vb_unlikely(row->bits & VB_WR_FENCED))
		flags |= IBV_SEND_FENCE;
	b->bits = row->bits;
	w->wr_id = wr_id;
	w->opcode = (uint8_t)opcode;
	w->flags = (uint8_t)flags;
	w->state = VB_WQE_POSTED;
	w->place = VB_PLACE_MAYBE;
	w->placed = 0;
	w->reason = VB_OK;
	return VB_BUILD_FINE;
}

/* For vb_builder_fill(): what an atomic, or a request about a window, has besides; and the data of any number
 * of pieces.  (Without the builder, which then needs no memory.) */
enum vb_build_fault vb_builder_fill_rare(const struct vb_req *q, struct vb_swqe *w,
					 const struct ibv_send_wr *wr, uint32_t bits);
enum vb_build_fault vb_builder_fill_pieces(const struct vb_req *q, struct vb_swqe *w,
					   const struct ibv_send_wr *wr);

/* The rest, from a work request whose opcode and flags these are.  A window that is bound is there. */
static inline enum vb_build_fault vb_builder_fill(struct vb_builder *b, const struct ibv_send_wr *wr)
{
	const struct vb_req *q = &b->qp->req;
	struct vb_swqe *w = b->w;
	uint32_t length;

	if (vb_unlikely(b->bits & (VB_WR_LOCAL | VB_WR_ATOMIC)))
		return vb_builder_fill_rare(q, w, wr, b->bits);
	if (b->bits & VB_WR_REMOTE) {
		w->remote.addr = wr->wr.rdma.remote_addr;
		w->remote.rkey = wr->wr.rdma.rkey;
	}
	w->imm = wr->imm_data; /* one with the key to invalidate */
	w->remote.srqn = wr->qp_type.xrc.remote_srqn;
	if (vb_unlikely(wr->num_sge != 1 || !q->max_sge))
		return vb_builder_fill_pieces(q, w, wr);
	length = wr->sg_list->length;
	if (w->flags & IBV_SEND_INLINE) {
		if (vb_unlikely(length > q->max_inline))
			return VB_BUILD_INLINE_LENGTH;
		vb_copy_few(w->inline_data, (const void *)(uintptr_t)wr->sg_list->addr, length); /* rule 40 */
		w->num_sge = 0;
	} else {
		w->sge[0] = *wr->sg_list;
		w->num_sge = 1;
	}
	if (vb_unlikely(length > q->max_msg))
		return VB_BUILD_LENGTH;
	w->length = length;
	return VB_BUILD_FINE;
}

/* The request is whole. */
static inline void vb_builder_next(struct vb_builder *b)
{
	b->next++;
}

/* Hands the requests that are whole to the protocol, which may find them at once, or is to be told. */
static inline void vb_builder_publish(struct vb_builder *b)
{
	atomic_store_explicit(&b->qp->post.head, b->next,
			      memory_order_release); /* pairs with vb_sq_notice() */
}

static inline void vb_builder_end(struct vb_builder *b)
{
	vb_posting_give(b->qp);
}

#endif
