/* Shared receive queues. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cm/api.h"
#include "iba/names.h"
#include "iba/limits.h"
#include "iba/profile.h"
#include "hca/hca.h"
#include "hca/lost.h"
#include "hca/srq.h"
#include "obj/custody.h"
#include "verbs/verbs.h"

static _Atomic uint32_t live;

/* What an SRQ is made of. */
struct plan {
	const char *call;
	struct ibv_pd *pd;
	void *srq_context;
	const struct ibv_srq_attr *attr;
	struct vb_xrcd *xrcd; /* of type XRC, as what follows; else NULL */
	struct vb_cq *cq;
};

static int check_new(const struct plan *p)
{
	const struct vb_profile *most = vb_profile();
	int err = p->pd ? vb_context_check(p->call, p->pd->context) : vb_pd_check(p->call, NULL);

	if (err)
		return err;
	if (p->attr->max_wr > most->max_srq_wr)
		return vb_refuse_limit(p->call, "max_wr", p->attr->max_wr, most->max_srq_wr);
	if (p->attr->max_sge > most->max_srq_sge)
		return vb_refuse_limit(p->call, "max_sge", p->attr->max_sge, most->max_srq_sge);
	return 0;
}

/* 0 or errno.  A context without an adapter is the unit tests'. */
static int number(struct vb_srq *srq, const char *call)
{
	struct vb_context *ctx = srq->ctx;

	if (!ctx->adapter)
		return 0;
	srq->number = vb_srqn_take(ctx->adapter, call); /* pairs with ibv_destroy_srq() */
	if (srq->number)
		return 0;
	return vb_context_lost(ctx) ? vb_refuse(EIO, call, VB_LOST_TEXT) : ENOMEM; /* said */
}

/* Counts the SRQ at everything that it uses; n is 1 at creation and -1 at destruction. */
static void count(struct vb_srq *srq, uint32_t n)
{
	if (srq->xrcd) {
		atomic_fetch_add(&srq->xrcd->refs, n);
		if (n == 1)
			atomic_fetch_add(&srq->cq->refs, 1);
		else
			vb_cq_let_go(srq->cq);
	}
	vb_pd_count(srq->pd, VB_CHILD_SRQ, n);
}

static void describe(struct vb_srq *srq, const struct plan *p)
{
	vb_async_init(&srq->ev_limit, IBV_EVENT_SRQ_LIMIT_REACHED, &srq->ibv);
	vb_async_init(&srq->ev_err, IBV_EVENT_SRQ_ERR, &srq->ibv);
	srq->ibv.context = p->pd->context;
	srq->ibv.srq_context = p->srq_context;
	srq->ibv.pd = p->pd;
	srq->ibv.handle = srq->number;
	pthread_mutex_init(&srq->ibv.mutex, NULL);
	pthread_cond_init(&srq->ibv.cond, NULL);
}

/* NULL: *err says why. */
static struct ibv_srq *make(const struct plan *p, int *err)
{
	struct vb_srq *srq = NULL;

	*err = check_new(p);
	if (*err)
		return NULL;
	if (atomic_fetch_add(&live, 1) >= vb_profile()->max_srq) { /* pairs with ibv_destroy_srq */
		*err =
		    vb_refuse(ENOMEM, p->call, "all %u SRQs of the device are in use", vb_profile()->max_srq);
		goto uncount;
	}
	srq = aligned_alloc(VB_LINE, sizeof(*srq));
	if (srq)
		memset(srq, 0, sizeof(*srq));
	*err = srq ? vb_rq_init(&srq->rq, vb_pd(p->pd), VB_QUEUE_SRQ, p->attr->max_wr, p->attr->max_sge)
		   : vb_refuse_memory(p->call);
	if (*err) /* said */
		goto uncount;
	srq->ctx = vb_context(p->pd->context);
	*err = number(srq, p->call);
	if (*err)
		goto free_queue;
	srq->pd = vb_pd(p->pd);
	srq->xrcd = p->xrcd;
	srq->cq = p->cq;
	count(srq, 1); /* pairs with ibv_destroy_srq */
	describe(srq, p);
	vb_list_init(&srq->on_srqs);
	if (srq->xrcd) /* packets find it from here on */
		vb_srqs_add(&vb_hca(srq->ctx->adapter)->srqs, srq);
	vb_live_enter(&srq->ibv, VB_LIVE_SRQ);
	return &srq->ibv;
free_queue:
	vb_rq_fini(&srq->rq);
uncount:
	free(srq);
	atomic_fetch_sub(&live, 1);
	return NULL;
}

VB_EXPORT VB_OBJECT(struct ibv_srq *, ibv_create_srq, (pd, init), struct ibv_pd *pd,
		    struct ibv_srq_init_attr *init)
{
	const struct plan p = {
	    .call = "ibv_create_srq", .pd = pd, .srq_context = init->srq_context, .attr = &init->attr};
	struct ibv_srq *srq;
	int err;

	srq = make(&p, &err);
	if (srq)
		init->attr.srq_limit = 0; /* as it has; ibv_modify_srq() sets one */
	else
		errno = err;
	return srq;
}

static const char call_ex[] = "ibv_create_srq_ex";

static int check_xrc(const struct ibv_context *context, const struct ibv_srq_init_attr_ex *a)
{
	if (!(a->comp_mask & IBV_SRQ_INIT_ATTR_XRCD) || !a->xrcd)
		return vb_refuse(EINVAL, call_ex, "an SRQ of type IBV_SRQT_XRC requires an XRC domain");
	if (a->xrcd->context != context)
		return vb_refuse(EINVAL, call_ex, "the XRC domain belongs to another context");
	if (!(a->comp_mask & IBV_SRQ_INIT_ATTR_CQ) || !a->cq)
		return vb_refuse(EINVAL, call_ex, "an SRQ of type IBV_SRQT_XRC requires a CQ");
	if (a->cq->context != context)
		return vb_refuse(EINVAL, call_ex, "the CQ belongs to another context");
	return 0;
}

/* Members of the attributes that no SRQ has.  What a type has no use for is not looked at, as on mlx5. */
static int check_members(const struct ibv_srq_init_attr_ex *a)
{
	const uint32_t known =
	    IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
	char names[VB_FLAGS_TEXT];

	if (!(a->comp_mask & ~known))
		return 0;
	return vb_refuse(EOPNOTSUPP, call_ex, "comp_mask: %s is not supported",
			 vb_name_flags(names, sizeof(names), VB_FLAGS_SRQ_INIT, a->comp_mask & ~known));
}

static int check_ex(const struct ibv_context *context, const struct ibv_srq_init_attr_ex *a,
		    enum ibv_srq_type type)
{
	int err;

	if (type == IBV_SRQT_TM)
		return vb_refuse(
		    EOPNOTSUPP, call_ex,
		    "SRQs of type IBV_SRQT_TM are not supported: the device has no tag matching");
	if (type != IBV_SRQT_BASIC && type != IBV_SRQT_XRC)
		return vb_refuse(EOPNOTSUPP, call_ex, "srq_type %u is unknown", (unsigned)type);
	err = check_members(a);
	if (err)
		return err;
	if (!(a->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !a->pd)
		return vb_refuse(EINVAL, call_ex,
				 "the SRQ requires a protection domain; set pd, and IBV_SRQ_INIT_ATTR_PD in "
				 "comp_mask");
	if (a->pd->context != context)
		return vb_refuse(EINVAL, call_ex, "the protection domain belongs to another context");
	return type == IBV_SRQT_XRC ? check_xrc(context, a) : 0;
}

VB_OBJECT_AS(struct ibv_srq *, vb_create_srq_ex, call_ex, (context, a), struct ibv_context *context,
	     struct ibv_srq_init_attr_ex *a)
{
	enum ibv_srq_type type = a->comp_mask & IBV_SRQ_INIT_ATTR_TYPE ? a->srq_type : IBV_SRQT_BASIC;
	struct plan p = {.call = call_ex, .pd = a->pd, .srq_context = a->srq_context, .attr = &a->attr};
	struct ibv_srq *srq = NULL;
	int err = check_ex(context, a, type);

	if (!err) {
		if (type == IBV_SRQT_XRC) {
			p.xrcd = vb_xrcd(a->xrcd);
			p.cq = vb_cq(a->cq);
		}
		srq = make(&p, &err);
	}
	if (srq)
		a->attr.srq_limit = 0; /* as it has; ibv_modify_srq() sets one */
	else
		errno = err;
	return srq;
}

/* As mlx5 does, SRQs keep their size.  The limit event comes when a request is consumed and fewer than the
 * limit remain, also if they were fewer already when the limit was set. */
VB_EXPORT VB_CODE(ibv_modify_srq, (ibsrq, attr, mask), struct ibv_srq *ibsrq, struct ibv_srq_attr *attr,
		  int mask)
{
	struct vb_srq *srq = vb_srq(ibsrq);
	uint32_t posted;
	bool say;

	if (vb_context_dead(srq->ctx))
		return vb_refuse_forked("ibv_modify_srq");
	if (mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT))
		return vb_refuse_bits(EINVAL, "ibv_modify_srq", "srq_attr_mask", (unsigned)mask,
				      IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT);
	if (mask & IBV_SRQ_MAX_WR)
		return vb_refuse(EINVAL, "ibv_modify_srq", "an SRQ cannot be resized (its max_wr is %u)",
				 srq->rq.max_wr);
	if (!(mask & IBV_SRQ_LIMIT))
		return 0;
	if (attr->srq_limit > srq->rq.max_wr)
		return vb_refuse(EINVAL, "ibv_modify_srq", "srq_limit %u exceeds the SRQ's max_wr of %u",
				 attr->srq_limit, srq->rq.max_wr);
	vb_lock_take(&srq->lock);
	srq->limit = attr->srq_limit;
	posted = atomic_load_explicit(&srq->rq.head, memory_order_relaxed) - srq->rq.tail;
	say = attr->srq_limit > posted && !srq->limit_said;
	srq->limit_said |= say;
	vb_lock_give(&srq->lock);
	if (say)
		vb_log(VB_LOG_INFO,
		       "ibv_modify_srq: srq_limit %u exceeds the number of posted receive requests, %u: the "
		       "next message raises the limit event; post receives before you set the limit",
		       attr->srq_limit, posted);
	return 0;
}

VB_EXPORT VB_CODE(ibv_query_srq, (ibsrq, attr), struct ibv_srq *ibsrq, struct ibv_srq_attr *attr)
{
	struct vb_srq *srq = vb_srq(ibsrq);

	if (vb_context_dead(srq->ctx))
		return vb_refuse_forked("ibv_query_srq");
	vb_lock_take(&srq->lock);
	*attr = (struct ibv_srq_attr){
	    .max_wr = srq->rq.max_wr, .max_sge = srq->rq.max_sge, .srq_limit = srq->limit};
	vb_lock_give(&srq->lock);
	return 0;
}

/* No event of it comes any more; returns how many were delivered. */
static uint32_t silence(struct vb_srq *srq)
{
	struct vb_context *ctx = srq->ctx;
	uint32_t delivered;

	vb_async_cancel(ctx, &srq->ev_limit);
	vb_async_cancel(ctx, &srq->ev_err);
	vb_lock_take(&ctx->async.lock);
	delivered = srq->delivered;
	vb_lock_give(&ctx->async.lock);
	return delivered;
}

/* No QP uses it, and all of its events are acknowledged. */
static void end(struct vb_srq *srq)
{
	struct vb_context *ctx = srq->ctx;

	pthread_cond_destroy(&srq->ibv.cond);
	pthread_mutex_destroy(&srq->ibv.mutex);
	if (ctx->adapter)
		vb_srqn_give(ctx->adapter, srq->number);
	vb_custody_end_srq(srq);
	vb_rq_fini(&srq->rq);
	count(srq, -1u); /* now its domain may go, whose callbacks that may have needed */
	free(srq);
	atomic_fetch_sub(&live, 1);
}

static void destroy(struct vb_srq *srq)
{
	if (srq->xrcd) {
		vb_hca_forget_srq(vb_hca(srq->ctx->adapter), srq);
		vb_cq_forget_srq(srq->cq, srq);
	}
	vb_wait_acked(&srq->ibv.mutex, &srq->ibv.cond, &srq->ibv.events_completed, silence(srq),
		      VB_WAITING_SRQ_ACKS, srq); /* rule 36 */
	end(srq);
}

VB_EXPORT VB_END(ibv_destroy_srq, "ibv_destroy_srq", VB_LIVE_SRQ, ibsrq, struct ibv_srq *ibsrq)
{
	struct vb_srq *srq = vb_srq(ibsrq);
	uint32_t refs;

	if (vb_context_dead(srq->ctx))
		return 0;
	refs = atomic_load(&srq->refs);
	if (refs) /* rule 37 */
		return vb_refuse_used("ibv_destroy_srq", refs, "QP", "the SRQ", "destroy");
	destroy(srq);
	return 0;
}

void vb_cm_srq_abandon(struct ibv_srq *ibsrq)
{
	struct vb_srq *srq = vb_srq(ibsrq);
	uint32_t refs;

	if (vb_live_leave("rdma_destroy_srq", ibsrq, VB_LIVE_SRQ) || vb_context_dead(srq->ctx))
		return;
	refs = atomic_fetch_or(&srq->refs, VB_SRQ_ABANDONED);
	if (refs) /* with which it may have gone by now */
		vb_log(VB_LOG_INFO,
		       "rdma_destroy_srq: %u QP%s the SRQ: it is destroyed with the last of them; destroy "
		       "QPs first",
		       refs, refs == 1 ? " uses" : "s use");
	else
		destroy(srq);
}

/* Only who destroys an SRQ waits for its events (rule 36).  With one that is not acknowledged an abandoned
 * SRQ stays: the program may still look at it. */
void vb_srq_let_go(struct vb_srq *srq)
{
	uint32_t delivered;
	bool acked;

	if (atomic_fetch_sub(&srq->refs, 1) != (VB_SRQ_ABANDONED | 1))
		return;
	delivered = silence(srq);
	pthread_mutex_lock(&srq->ibv.mutex);
	acked = srq->ibv.events_completed == delivered;
	pthread_mutex_unlock(&srq->ibv.mutex);
	if (acked)
		end(srq);
}

/* caller: of a checked process, the program's code that posts; else NULL. */
static inline __attribute__((always_inline)) int
post(struct ibv_srq *ibsrq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad, const struct vb_caller *caller)
{
	struct vb_srq *srq = vb_srq(ibsrq);
	uint32_t head;
	int err = 0;
	bool all;

	if (vb_context_dead(srq->ctx)) {
		*bad = wr;
		return vb_refuse_forked("ibv_post_srq_recv");
	}
	vb_lock_take(&srq->lock);
	head = vb_rq_fill(&srq->rq, wr, bad, &all);
	if (caller)
		vb_custody_shared(srq, &vb_hca(srq->ctx->adapter)->keys, head, caller);
	vb_rq_publish(&srq->rq, head);
	if (vb_unlikely(!all))
		err = vb_rq_refuse(&srq->rq, *bad, vb_rq_arrived(&srq->rq), "ibv_post_srq_recv");
	vb_lock_give(&srq->lock);
	return err;
}

VB_POST_CODE(vb_post_srq_recv, (ibsrq, wr, bad), struct ibv_srq *ibsrq, struct ibv_recv_wr *wr,
	     struct ibv_recv_wr **bad)
{
	return post(ibsrq, wr, bad, NULL);
}

VB_POSTED(vb_post_srq_recv_checked, (ibsrq, wr, bad, caller), struct ibv_srq *ibsrq, struct ibv_recv_wr *wr,
	  struct ibv_recv_wr **bad)
{
	return post(ibsrq, wr, bad, caller);
}

/* As mlx5 does, of every type of SRQ, though peers name only those of XRC. */
VB_CODE(vb_get_srq_num, (ibsrq, number), struct ibv_srq *ibsrq, uint32_t *number)
{
	struct vb_srq *srq = vb_srq(ibsrq);

	if (vb_context_dead(srq->ctx))
		return vb_refuse_forked("ibv_get_srq_num");
	*number = srq->number;
	return 0;
}
