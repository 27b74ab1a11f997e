/* Memory windows: allocation, and what a request to bind one may say.  Binding itself is a request of the
 * send queue (transport/window.c). */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/log.h"
#include "mem/check_buffers.h"
#include "obj/mw.h"
#include "hca/direct.h"
#include "verbs/mw.h"
#include "check/check.h"
#include "hca/hca.h"
#include "verbs/verbs.h"
#include "verbs/why.h"

/* What a window's access flags may have besides its own: programs pass what they registered the region with.
 */
#define FLAGS                                                                                   \
	((unsigned)(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
		    IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED) |    \
	 IBV_ACCESS_OPTIONAL_RANGE)

static struct vb_mws *mws_of(const struct vb_context *c)
{
	return &vb_hca(c->adapter)->mws;
}

static int check_alloc(const struct vb_context *c, enum ibv_mw_type type)
{
	if (vb_context_dead(c))
		return vb_refuse_forked("ibv_alloc_mw");
	if (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2)
		return vb_refuse(EINVAL, "ibv_alloc_mw",
				 "type %d is unknown; use IBV_MW_TYPE_1 or IBV_MW_TYPE_2", (int)type);
	return 0;
}

VB_OBJECT(struct ibv_mw *, vb_alloc_mw, (ibpd, type), struct ibv_pd *ibpd, enum ibv_mw_type type)
{
	struct vb_context *c = vb_context(ibpd->context);
	struct vb_pd *pd = vb_pd(ibpd);
	struct vb_mw *mw = NULL;
	int err = check_alloc(c, type);

	if (err)
		goto refused;
	mw = calloc(1, sizeof(*mw));
	if (!mw) {
		err = vb_refuse_memory("ibv_alloc_mw");
		goto refused;
	}
	mw->pd = pd;
	mw->ibv.context = ibpd->context;
	mw->ibv.pd = ibpd;
	mw->ibv.type = type;
	if (!vb_mw_enter(mws_of(c), mw)) { /* pairs with vb_dealloc_mw() */
		err = mws_of(c)->count < mws_of(c)->max
			  ? vb_why_no_key(mws_of(c)->keys, "ibv_alloc_mw", pd)
			  : vb_refuse(ENOMEM, "ibv_alloc_mw",
				      "all %u memory windows of the device are in use", mws_of(c)->max);
		goto refused;
	}
	mw->ibv.handle = mw->index;
	vb_pd_count(pd, VB_CHILD_MW, 1); /* pairs with vb_dealloc_mw() */
	vb_direct_admit();
	vb_live_enter(&mw->ibv, VB_LIVE_MW);
	return &mw->ibv;
refused:
	free(mw);
	errno = err;
	return NULL;
}

VB_END(vb_dealloc_mw, "ibv_dealloc_mw", VB_LIVE_MW, ibmw, struct ibv_mw *ibmw)
{
	struct vb_mw *mw = (struct vb_mw *)ibmw;
	struct vb_context *c = vb_context(ibmw->context);

	if (vb_context_dead(c))
		return 0;
	if (ibmw->handle != mw->index) /* rule 37 */
		return vb_refuse(ENOENT, "ibv_dealloc_mw", "the program changed the handle from 0x%x to 0x%x",
				 mw->index, ibmw->handle);
	vb_mw_leave(mws_of(c), mw); /* unbinds it */
	vb_check_revoked();
	vb_pd_count(mw->pd, VB_CHILD_MW, -1u);
	free(mw);
	return 0;
}

static int check_info(const char *call, const struct ibv_mw_bind_info *info, enum ibv_mw_type type)
{
	unsigned access = info->mw_access_flags;

	if (!info->mr && (info->addr || info->length))
		return vb_refuse(EINVAL, call, "bind_info.mr is NULL for the %" PRIu64 " bytes at 0x%" PRIx64,
				 info->length, info->addr);
	if (access & ~FLAGS)
		return vb_refuse_bits(EINVAL, call, "mw_access_flags", access, FLAGS);
	if (type == IBV_MW_TYPE_1 && access & IBV_ACCESS_ZERO_BASED)
		return vb_refuse(EINVAL, call, "IBV_ACCESS_ZERO_BASED requires a memory window of type 2");
	return 0;
}

int vb_mw_check(const struct vb_qp *qp, const struct ibv_mw *mw, const struct ibv_mw_bind_info *info,
		const char *call, enum ibv_mw_type type)
{
	if (!mw)
		return vb_refuse(EINVAL, call, "mw is NULL");
	if (mw->type != type) /* rule 48 */
		return vb_refuse(
		    EINVAL, call,
		    type == IBV_MW_TYPE_1
			? "the memory window is of type 2; bind it with a work request IBV_WR_BIND_MW"
			: "the memory window is of type 1; bind it with ibv_bind_mw()");
	if (vb_context(mw->context)->adapter != qp->ctx->adapter)
		return vb_refuse(EINVAL, call, "the memory window belongs to another device than QP 0x%06x",
				 qp->qpn);
	return check_info(call, info, type);
}

VB_CODE(vb_bind_mw, (qp, mw, bind), struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct ibv_send_wr wr = {.wr_id = bind->wr_id,
				 .opcode = IBV_WR_BIND_MW,
				 .send_flags = bind->send_flags,
				 .bind_mw = {.mw = mw, .bind_info = bind->bind_info}};
	int err;

	if (vb_context_dead(vb_qp(qp)->ctx))
		return vb_refuse_forked("ibv_bind_mw");
	if (mw)
		wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	if (bind->bind_info.mr && mw && vb_pd(mw->pd)->id != vb_pd(bind->bind_info.mr->pd)->id)
		return vb_refuse(
		    EPERM, "ibv_bind_mw",
		    "the memory window belongs to another protection domain than the memory region");
	if (mw)
		vb_check_key_ended(mw->rkey, VB_CHECK_UNBOUND);
	err = vb_post_bind(qp, &wr);
	if (!err)
		mw->rkey = VB_KEY_REMOTE | vb_mw_key((struct vb_mw *)mw, wr.bind_mw.rkey);
	return err;
}
