#include "obj/builder.h"

#include <string.h>

#include "mem/keys.h"
#include "obj/mw.h"

/* The pieces' keys are not looked at (rule 40). */
static void copy_inline(struct vb_swqe *w, const struct ibv_sge *list, size_t n)
{
	uint8_t *to = w->inline_data;

	for (size_t i = 0; i < n; i++) {
		memcpy(to, (const void *)(uintptr_t)list[i].addr, list[i].length);
		to += list[i].length;
	}
	w->num_sge = 0;
}

enum vb_build_fault vb_builder_pieces(const struct vb_req *q, struct vb_swqe *w, const struct ibv_sge *list,
				      size_t n)
{
	uint64_t length = 0;

	if (vb_unlikely(n > q->max_sge)) /* a negative number of ibv_post_send's is a large one here */
		return VB_BUILD_SGES;
	for (size_t i = 0; i < n; i++)
		length += list[i].length;
	if (vb_unlikely(w->flags & IBV_SEND_INLINE)) {
		if (length > q->max_inline)
			return VB_BUILD_INLINE_LENGTH;
		copy_inline(w, list, n);
	} else {
		for (size_t i = 0; i < n; i++)
			w->sge[i] = list[i];
		w->num_sge = (uint8_t)n;
	}
	if (vb_unlikely(length > q->max_msg))
		return VB_BUILD_LENGTH;
	w->length = (uint32_t)length;
	return VB_BUILD_FINE;
}

enum vb_build_fault vb_builder_inlines(const struct vb_req *q, struct vb_swqe *w,
				       const struct ibv_data_buf *list, size_t n)
{
	size_t length = 0;

	for (size_t i = 0; i < n; i++) {
		if (list[i].length > q->max_inline - length)
			return VB_BUILD_INLINE_LENGTH;
		if (list[i].length) /* an empty one may have no address */
			memcpy(w->inline_data + length, list[i].addr, list[i].length);
		length += list[i].length;
	}
	w->num_sge = 0;
	w->length = (uint32_t)length;
	return VB_BUILD_FINE;
}

void vb_builder_bind(struct vb_swqe *w, const struct ibv_mw *ibmw, uint32_t rkey,
		     const struct ibv_mw_bind_info *info)
{
	const struct vb_mw *mw = (const struct vb_mw *)ibmw;

	w->window.id = mw->id;
	w->window.addr = info->addr;
	w->window.length = info->length;
	/* rules 44, 47: of a key that the application gives the low byte counts, whatever stands above it */
	w->window.rkey = VB_KEY_REMOTE | vb_mw_key(mw, rkey);
	w->window.access = info->mw_access_flags;
	w->region = info->mr ? info->mr->lkey : 0;
}

void vb_builder_invalidate(struct vb_swqe *w, uint32_t rkey)
{
	w->window.id = 0;
	w->window.rkey = rkey;
}

/* A list of pieces means nothing to such a request. */
static __attribute__((noinline)) enum vb_build_fault fill_window(struct vb_swqe *w,
								 const struct ibv_send_wr *wr)
{
	w->length = w->num_sge = 0;
	if (wr->opcode == IBV_WR_LOCAL_INV)
		vb_builder_invalidate(w, wr->invalidate_rkey);
	else
		vb_builder_bind(w, wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
	return VB_BUILD_FINE;
}

enum vb_build_fault vb_builder_fill_rare(const struct vb_req *q, struct vb_swqe *w,
					 const struct ibv_send_wr *wr, uint32_t bits)
{
	if (bits & VB_WR_SELF)
		return VB_BUILD_CALL;
	if (bits & VB_WR_LOCAL)
		return fill_window(w, wr);
	w->remote.addr = wr->wr.atomic.remote_addr;
	w->remote.rkey = wr->wr.atomic.rkey;
	w->remote.compare_add = wr->wr.atomic.compare_add;
	w->remote.swap = wr->wr.atomic.swap;
	w->imm = wr->imm_data;
	w->remote.srqn = wr->qp_type.xrc.remote_srqn;
	return vb_builder_pieces(q, w, wr->sg_list, (unsigned)wr->num_sge);
}
