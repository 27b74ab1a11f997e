/* Shared receive queues. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "iba/names.h"
#include "iba/limits.h"
#include "iba/profile.h"
#include "hca/lost.h"
#include "verbs/verbs.h"

static _Atomic uint32_t live;

static int check_new(const struct ibv_pd *pd, const struct ibv_srq_attr *a)
{
	const struct vb_profile *p = vb_profile();

	if (vb_context_dead(vb_context(pd->context)))
		return vb_refuse(EIO, "ibv_create_srq", "the device was opened before fork()");
	if (a->max_wr > p->max_srq_wr)
		return vb_refuse(EINVAL, "ibv_create_srq", "max_wr %u, at most %u is possible", a->max_wr,
				 p->max_srq_wr);
	if (a->max_sge > p->max_srq_sge)
		return vb_refuse(EINVAL, "ibv_create_srq", "max_sge %u, at most %u is possible", a->max_sge,
				 p->max_srq_sge);
	return 0;
}

/* 0 or errno.  A context without an adapter is the unit tests'. */
static int number(struct vb_srq *srq)
{
	struct vb_context *ctx = srq->ctx;

	if (!ctx->adapter)
		return 0;
	srq->number = vb_srqn_take(ctx->adapter); /* pairs with ibv_destroy_srq() */
	if (srq->number)
		return 0;
	return vb_context_lost(ctx) ? vb_refuse(EIO, "ibv_create_srq", VB_LOST_TEXT)
				    : vb_refuse(ENOMEM, "ibv_create_srq", "no SRQ number is left");
}

VB_EXPORT VB_OBJECT(struct ibv_srq *, ibv_create_srq, (pd, init), struct ibv_pd *pd,
		    struct ibv_srq_init_attr *init)
{
	struct vb_context *ctx = vb_context(pd->context);
	struct vb_srq *srq = NULL;
	int err = check_new(pd, &init->attr);

	if (err)
		goto refused;
	if (atomic_fetch_add(&live, 1) >= vb_profile()->max_srq) { /* pairs with ibv_destroy_srq */
		err = vb_refuse(ENOMEM, "ibv_create_srq", "all %u SRQs of the device are in use",
				vb_profile()->max_srq);
		goto uncount;
	}
	srq = aligned_alloc(VB_LINE, sizeof(*srq));
	if (srq)
		memset(srq, 0, sizeof(*srq));
	err = srq ? vb_rq_init(&srq->rq, vb_pd(pd), VB_QUEUE_SRQ, init->attr.max_wr, init->attr.max_sge)
		  : vb_refuse(ENOMEM, "ibv_create_srq", "no memory");
	if (err) /* said */
		goto uncount;
	srq->ctx = ctx;
	err = number(srq);
	if (err)
		goto free_queue;
	srq->pd = vb_pd(pd);
	vb_pd_count(srq->pd, VB_CHILD_SRQ, 1); /* pairs with ibv_destroy_srq */
	vb_async_init(&srq->ev_limit, IBV_EVENT_SRQ_LIMIT_REACHED, &srq->ibv);
	vb_async_init(&srq->ev_err, IBV_EVENT_SRQ_ERR, &srq->ibv);
	srq->ibv.context = pd->context;
	srq->ibv.srq_context = init->srq_context;
	srq->ibv.pd = pd;
	srq->ibv.handle = srq->number;
	pthread_mutex_init(&srq->ibv.mutex, NULL);
	pthread_cond_init(&srq->ibv.cond, NULL);
	return &srq->ibv;
free_queue:
	vb_rq_fini(&srq->rq);
uncount:
	free(srq);
	atomic_fetch_sub(&live, 1);
refused:
	errno = err;
	return NULL;
}

VB_OBJECT(struct ibv_srq *, vb_create_srq_ex, (context, attr), struct ibv_context *context,
	  struct ibv_srq_init_attr_ex *attr)
{
	const uint32_t known = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
	struct ibv_srq_init_attr basic = {.srq_context = attr->srq_context, .attr = attr->attr};
	char names[VB_FLAGS_TEXT];
	struct ibv_srq *srq;
	const char *name;

	if (attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE && attr->srq_type != IBV_SRQT_BASIC) {
		name = vb_name_srq_type(attr->srq_type);
		errno = name ? vb_refuse(EOPNOTSUPP, "ibv_create_srq_ex",
					 "SRQs of type %s are not supported, only IBV_SRQT_BASIC", name)
			     : vb_refuse(EOPNOTSUPP, "ibv_create_srq_ex", "there is no SRQ type %u",
					 (unsigned)attr->srq_type);
		return NULL;
	}
	if (attr->comp_mask & ~known) {
		errno = vb_refuse(
		    EOPNOTSUPP, "ibv_create_srq_ex", "comp_mask: %s is not for an SRQ of type IBV_SRQT_BASIC",
		    vb_name_flags(names, sizeof(names), VB_FLAGS_SRQ_INIT, attr->comp_mask & ~known));
		return NULL;
	}
	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !attr->pd || attr->pd->context != context) {
		errno = vb_refuse(EINVAL, "ibv_create_srq_ex", "no protection domain of this context given");
		return NULL;
	}
	srq = ibv_create_srq(attr->pd, &basic);
	attr->attr = basic.attr;
	return srq;
}

/* As mlx5 does, SRQs keep their size.  The limit event comes when a request is consumed and fewer than the
 * limit remain, also if they were fewer already when the limit was set. */
VB_EXPORT VB_CODE(ibv_modify_srq, (ibsrq, attr, mask), struct ibv_srq *ibsrq, struct ibv_srq_attr *attr,
		  int mask)
{
	struct vb_srq *srq = vb_srq(ibsrq);

	if (vb_context_dead(srq->ctx))
		return vb_refuse(EIO, "ibv_modify_srq", "the device was opened before fork()");
	if (mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT))
		return vb_refuse(EINVAL, "ibv_modify_srq", "mask 0x%x has unknown bits 0x%x", (unsigned)mask,
				 (unsigned)mask & ~(unsigned)(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT));
	if (mask & IBV_SRQ_MAX_WR)
		return vb_refuse(EINVAL, "ibv_modify_srq", "an SRQ cannot be resized (its max_wr is %u)",
				 srq->rq.max_wr);
	if (!(mask & IBV_SRQ_LIMIT))
		return 0;
	if (attr->srq_limit > srq->rq.max_wr)
		return vb_refuse(EINVAL, "ibv_modify_srq", "srq_limit %u is above the SRQ's max_wr, %u",
				 attr->srq_limit, srq->rq.max_wr);
	vb_lock_take(&srq->lock);
	srq->limit = attr->srq_limit;
	vb_lock_give(&srq->lock);
	return 0;
}

VB_EXPORT VB_CODE(ibv_query_srq, (ibsrq, attr), struct ibv_srq *ibsrq, struct ibv_srq_attr *attr)
{
	struct vb_srq *srq = vb_srq(ibsrq);

	if (vb_context_dead(srq->ctx))
		return vb_refuse(EIO, "ibv_query_srq", "the device was opened before fork()");
	vb_lock_take(&srq->lock);
	*attr = (struct ibv_srq_attr){
	    .max_wr = srq->rq.max_wr, .max_sge = srq->rq.max_sge, .srq_limit = srq->limit};
	vb_lock_give(&srq->lock);
	return 0;
}

VB_EXPORT VB_CODE(ibv_destroy_srq, (ibsrq), struct ibv_srq *ibsrq)
{
	struct vb_srq *srq = vb_srq(ibsrq);
	struct vb_context *ctx = srq->ctx;
	uint32_t refs, delivered;

	if (vb_context_dead(ctx))
		return 0;
	refs = atomic_load(&srq->refs);
	if (refs) /* rule 37 */
		return vb_refuse(EBUSY, "ibv_destroy_srq", "%u QP%s from it", refs,
				 refs == 1 ? " receives" : "s receive");
	vb_async_cancel(ctx, &srq->ev_limit);
	vb_async_cancel(ctx, &srq->ev_err);
	vb_lock_take(&ctx->async.lock);
	delivered = srq->delivered;
	vb_lock_give(&ctx->async.lock);
	vb_wait_acked(&ibsrq->mutex, &ibsrq->cond, &ibsrq->events_completed, delivered); /* rule 36 */
	pthread_cond_destroy(&ibsrq->cond);
	pthread_mutex_destroy(&ibsrq->mutex);
	if (ctx->adapter)
		vb_srqn_give(ctx->adapter, srq->number);
	vb_rq_fini(&srq->rq);
	vb_pd_count(srq->pd, VB_CHILD_SRQ,
		    -1u); /* now its domain may go, whose callbacks that may have needed */
	free(srq);
	atomic_fetch_sub(&live, 1);
	return 0;
}

VB_CODE(vb_post_srq_recv, (ibsrq, wr, bad), struct ibv_srq *ibsrq, struct ibv_recv_wr *wr,
	struct ibv_recv_wr **bad)
{
	struct vb_srq *srq = vb_srq(ibsrq);
	int err;

	if (vb_context_dead(srq->ctx)) {
		*bad = wr;
		return vb_refuse(EIO, "ibv_post_srq_recv", "the device was opened before fork()");
	}
	vb_lock_take(&srq->lock);
	err = vb_rq_post(&srq->rq, wr, bad, "ibv_post_srq_recv");
	vb_lock_give(&srq->lock);
	return err;
}

/* As mlx5 does, of every type of SRQ, though peers name only those of XRC. */
VB_CODE(vb_get_srq_num, (ibsrq, number), struct ibv_srq *ibsrq, uint32_t *number)
{
	struct vb_srq *srq = vb_srq(ibsrq);

	if (vb_context_dead(srq->ctx))
		return vb_refuse(EIO, "ibv_get_srq_num", "the device was opened before fork()");
	*number = srq->number;
	return 0;
}
