#include "obj/builder.h"

#include <string.h>

#include "mem/keys.h"
#include "obj/mw.h"

static void copy_inline(struct vb_swqe *w, const struct ibv_send_wr *wr)
{
	uint8_t *to = w->inline_data;

	for (int i = 0; i < wr->num_sge; i++) { /* rule 40: no key is looked at */
		memcpy(to, (const void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
		to += wr->sg_list[i].length;
	}
	w->num_sge = 0;
}

enum vb_build_fault vb_builder_fill_pieces(const struct vb_req *q, struct vb_swqe *w,
					   const struct ibv_send_wr *wr)
{
	uint64_t length = 0;

	if (vb_unlikely((uint32_t)wr->num_sge > q->max_sge)) /* a negative one is a large one here */
		return VB_BUILD_SGES;
	for (int i = 0; i < wr->num_sge; i++)
		length += wr->sg_list[i].length;
	if (vb_unlikely(w->flags & IBV_SEND_INLINE)) {
		if (length > q->max_inline)
			return VB_BUILD_INLINE_LENGTH;
		copy_inline(w, wr);
	} else {
		for (int i = 0; i < wr->num_sge; i++)
			w->sge[i] = wr->sg_list[i];
		w->num_sge = (uint8_t)wr->num_sge;
	}
	if (vb_unlikely(length > q->max_msg))
		return VB_BUILD_LENGTH;
	w->length = (uint32_t)length;
	return VB_BUILD_FINE;
}

/* A list of pieces means nothing to such a request. */
static __attribute__((noinline)) enum vb_build_fault fill_window(struct vb_swqe *w,
								 const struct ibv_send_wr *wr)
{
	const struct ibv_mw_bind_info *info = &wr->bind_mw.bind_info;
	const struct vb_mw *mw = (const struct vb_mw *)wr->bind_mw.mw;

	w->length = w->num_sge = 0;
	if (wr->opcode == IBV_WR_LOCAL_INV) {
		w->window.id = 0;
		w->window.rkey = wr->invalidate_rkey;
		return VB_BUILD_FINE;
	}
	w->window.id = mw->id;
	w->window.addr = info->addr;
	w->window.length = info->length;
	/* rules 44, 47: of a key that the application gives the low byte counts, whatever stands above it */
	w->window.rkey = VB_KEY_REMOTE | vb_mw_key(mw, wr->bind_mw.rkey);
	w->window.access = info->mw_access_flags;
	w->region = info->mr ? info->mr->lkey : 0;
	return VB_BUILD_FINE;
}

enum vb_build_fault vb_builder_fill_rare(const struct vb_req *q, struct vb_swqe *w,
					 const struct ibv_send_wr *wr, uint32_t bits)
{
	if (bits & VB_WR_LOCAL)
		return fill_window(w, wr);
	w->remote.addr = wr->wr.atomic.remote_addr;
	w->remote.rkey = wr->wr.atomic.rkey;
	w->remote.compare_add = wr->wr.atomic.compare_add;
	w->remote.swap = wr->wr.atomic.swap;
	w->imm = wr->imm_data;
	w->remote.srqn = wr->qp_type.xrc.remote_srqn;
	return vb_builder_fill_pieces(q, w, wr);
}
