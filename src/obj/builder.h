/* Filling send WQEs in place: what ibv_post_send and ibv_wr_* do, and the tests of the protocol.
 *
 *	vb_builder_begin(&b, qp);
 *	for each request, while vb_builder_room(&b):
 *		vb_builder_start(&b, opcode, flags, wr_id);
 *		vb_builder_fill(&b, wr);
 *		vb_builder_next(&b);
 *	vb_builder_publish(&b);
 *	vb_builder_end(&b);
 *
 * In place of vb_builder_fill() there is a function for each thing that a request may say.  Then it begins
 *with vb_builder_bare(), and what is not said stays away: a request to which nobody gives data has none.
 *
 * Nothing of it is seen by the protocol before it is published; ending without that drops it.  What a fault
 * means is told by whoever posts. */
#ifndef VB_OBJ_BUILDER_H
#define VB_OBJ_BUILDER_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <infiniband/verbs.h>

#include "base/few.h"
#include "iba/pkt.h"
#include "iba/wr.h"
#include "obj/dests.h"
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
	VB_BUILD_FLUSH,		/* a placement type or a level that there is not */
	VB_BUILD_NO_ADDRESS,	/* a datagram without an address handle */
	VB_BUILD_CALL,		/* a work request cannot say what it has to */
};

enum { VB_BUILD_FLAGS_KNOWN = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE };

/* No other thread posts until vb_builder_end().  false: this thread is between ibv_wr_start() and
 * ibv_wr_complete() of that queue pair, and nothing begins. */
static inline bool vb_builder_begin(struct vb_builder *b, struct vb_qp *qp)
{
	vb_qp_expect_post(qp);
	b->qp = qp;
	b->bits = 0;
	if (vb_unlikely(!vb_posting_take(qp))) {
		b->next = 0;
		return false;
	}
	b->next = atomic_load_explicit(&qp->post.head, memory_order_relaxed);
	return true;
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

/* A request that is posted, and fails in its turn. */
static inline void vb_builder_refused(struct vb_swqe *w, enum vb_reason r)
{
	w->state = VB_WQE_REFUSED;
	w->reason = (uint8_t)r;
}

/* The request has no data, and of XRC no SRQ, until they are given. */
static inline void vb_builder_bare(struct vb_builder *b)
{
	b->w->length = b->w->num_sge = 0;
	b->w->remote.srqn = 0;
}

/* A datagram's address: a number has 24 bits, as packets bring it; a Q_Key with the high bit stands for the
 * queue pair's own (IBTA 10.2.5); an address handle of another protection domain fails the request (IBTA
 * C10-10). */
static inline void vb_builder_to(const struct vb_qp *qp, struct vb_swqe *w, const struct vb_ah *ah,
				 uint32_t qpn, uint32_t qkey)
{
	uint32_t dest = atomic_load_explicit(&ah->dest, memory_order_relaxed);

	qpn &= VB_QPN_MASK;
	w->to.number = vb_likely(dest == VB_DEST_BY_QPN) ? qpn >> VB_QPN_INDEX_BITS : dest;
	w->to.qpn = qpn;
	if (vb_unlikely(ah->pd_id != qp->pd_id))
		vb_builder_refused(w, VB_R_AH_PD);
	w->to.qkey = vb_unlikely(qkey >> 31) ? qp->qkey : qkey;
	w->to.route = ah->route;
}

/* The same of a group's address, whose queue pairs have one number: to any other it leads nowhere. */
static inline void vb_builder_to_group(struct vb_swqe *w, const struct vb_ah *ah, uint32_t qpn)
{
	if (vb_unlikely((qpn & VB_QPN_MASK) != VB_QPN_GROUP))
		return;
	w->to.number = VB_DEST_GROUP;
	memcpy(w->to.mgid, ah->attr.grh.dgid.raw, sizeof(w->to.mgid));
}

/* XRC: the SRQ at the far end. */
static inline void vb_builder_srqn(struct vb_builder *b, uint32_t srqn)
{
	b->w->remote.srqn = srqn;
}

static inline void vb_builder_remote(struct vb_builder *b, uint32_t rkey, uint64_t addr)
{
	const struct vb_posting *p = &b->qp->post;

	if (atomic_load_explicit(&p->near_rkey, memory_order_relaxed) == rkey && !(b->bits & VB_WR_FETCH))
		vb_expect_write(atomic_load_explicit(&p->near, memory_order_relaxed) + addr);
	b->w->remote.addr = addr;
	b->w->remote.rkey = rkey;
}

/* An atomic's; the other kind than compare-and-swap has one operand. */
static inline void vb_builder_operands(struct vb_builder *b, uint64_t compare_add, uint64_t swap)
{
	b->w->remote.compare_add = compare_add;
	b->w->remote.swap = swap;
}

/* Whichever of the two the request has (VB_WR_IMM, VB_WR_INV). */
static inline void vb_builder_imm(struct vb_builder *b, uint32_t imm)
{
	b->w->imm = imm;
}

/* What is written, 8 bytes, which are copied now. */
static inline void vb_builder_word(struct vb_builder *b, const void *word)
{
	b->w->flags |= IBV_SEND_INLINE;
	b->w->length = 8;
	memcpy(b->w->inline_data, word, 8);
}

/* Which bytes behind the address of the far end, and how: enum vb_flush_types, vb_flush_level. */
static inline enum vb_build_fault vb_builder_flush(struct vb_builder *b, uint64_t range, uint8_t type,
						   uint8_t level)
{
	if (!type || type & ~(VB_FLUSH_GLOBAL | VB_FLUSH_PERSISTENT) || level >= VB_FLUSH_LEVELS)
		return VB_BUILD_FLUSH;
	if (range > b->qp->req.max_msg)
		return VB_BUILD_LENGTH;
	b->w->remote.flush.range = (uint32_t)range;
	b->w->remote.flush.type = type;
	b->w->remote.flush.level = level;
	return VB_BUILD_FINE;
}

/* Which window is bound, to which key and what; the window is there.  A request that invalidates names a key
 * alone. */
void vb_builder_bind(struct vb_swqe *w, const struct ibv_mw *mw, uint32_t rkey,
		     const struct ibv_mw_bind_info *info);
void vb_builder_invalidate(struct vb_swqe *w, uint32_t rkey);

/* The data: one piece of memory, or bytes that are copied now (rule 40). */
static inline enum vb_build_fault vb_builder_piece(const struct vb_req *q, struct vb_swqe *w,
						   const struct ibv_sge *piece)
{
	if (vb_unlikely(!q->max_sge))
		return VB_BUILD_SGES;
	if (vb_unlikely(piece->length > q->max_msg))
		return VB_BUILD_LENGTH;
	w->sge[0] = *piece;
	w->num_sge = 1;
	w->length = piece->length;
	return VB_BUILD_FINE;
}

static inline enum vb_build_fault vb_builder_inline(const struct vb_req *q, struct vb_swqe *w,
						    const void *data, size_t length)
{
	if (vb_unlikely(length > q->max_inline))
		return VB_BUILD_INLINE_LENGTH;
	vb_copy_few(w->inline_data, data, length);
	w->num_sge = 0;
	w->length = (uint32_t)length;
	return VB_BUILD_FINE;
}

/* Any number of pieces, which the flags of w say whether to copy; and any number of bytes' places.  (They
 * take no builder, which then needs no memory.) */
enum vb_build_fault vb_builder_pieces(const struct vb_req *q, struct vb_swqe *w, const struct ibv_sge *list,
				      size_t n);
enum vb_build_fault vb_builder_inlines(const struct vb_req *q, struct vb_swqe *w,
				       const struct ibv_data_buf *list, size_t n);

/* Whether it is vb_builder_fill_rare() that fills the request. */
static inline bool vb_builder_is_rare(const struct vb_builder *b)
{
	return b->bits & (VB_WR_LOCAL | VB_WR_ATOMIC | VB_WR_SELF);
}

/* For vb_builder_fill(): what an atomic, or a request about a window, has besides, and its data. */
enum vb_build_fault vb_builder_fill_rare(const struct vb_req *q, struct vb_swqe *w,
					 const struct ibv_send_wr *wr, uint32_t bits);

/* The rest, from a work request whose opcode and flags these are.  A window that is bound is there. */
static inline __attribute__((always_inline)) enum vb_build_fault vb_builder_fill(struct vb_builder *b,
										 const struct ibv_send_wr *wr)
{
	const struct vb_req *q = &b->qp->req;
	struct vb_swqe *w = b->w;

	if (vb_unlikely(vb_builder_is_rare(b)))
		return vb_builder_fill_rare(q, w, wr, b->bits);
	if (b->bits & VB_WR_REMOTE)
		vb_builder_remote(b, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
	vb_builder_imm(b, wr->imm_data);
	vb_builder_srqn(b, wr->qp_type.xrc.remote_srqn);
	if (vb_unlikely(wr->num_sge != 1 || !q->max_sge))
		return vb_builder_pieces(q, w, wr->sg_list, (unsigned)wr->num_sge);
	if (w->flags & IBV_SEND_INLINE)
		return vb_builder_inline(q, w, (const void *)(uintptr_t)wr->sg_list->addr,
					 wr->sg_list->length);
	return vb_builder_piece(q, w, wr->sg_list);
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
