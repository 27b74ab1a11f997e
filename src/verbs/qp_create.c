/* Queue pairs: creation and destruction. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "check/check.h"
#include "iba/names.h"
#include "iba/opcode.h"
#include "iba/profile.h"
#include "host/devices.h"
#include "obj/custody.h"
#include "obj/dests.h"
#include "transport/transport.h"
#include "hca/datagrams.h"
#include "hca/direct.h"
#include "hca/forward.h"
#include "hca/lost.h"
#include "hca/hca.h"
#include "hca/all.h"
#include "verbs/verbs.h"
#include "verbs/wr.h"

#define CALL "ibv_create_qp"

enum { TYPES_TEXT = 128 }; /* has room for the names of all types */

static_assert(sizeof(struct ibv_qp) == 160 && sizeof(struct ibv_qp_ex) == 352 &&
		  offsetof(struct vb_qp, newer.wr_flush) == 352,
	      "ABI");

/* The names of the types that have a row. */
static const char *types_made(char *buf, size_t size)
{
	size_t len = 0;

	buf[0] = '\0';
	for (uint32_t type = 0; type < VB_TRANSPORTS && len < size; type++)
		if (vb_transport_of(type))
			len += (size_t)snprintf(buf + len, size - len, "%s%s", len ? ", " : "",
						vb_name_qp_type(type));
	return buf;
}

static int check_type(enum ibv_qp_type type)
{
	const char *name = vb_name_qp_type(type);
	char made[TYPES_TEXT];

	if (vb_transport_of(type))
		return 0;
	if (!name)
		return vb_refuse(EINVAL, CALL, "qp_type %d is unknown", (int)type); /* rule 41 */
	return vb_refuse(EOPNOTSUPP, CALL, "QPs of type %s are not supported; use one of %s", name,
			 types_made(made, sizeof(made)));
}

static int check_limit(const char *what, uint32_t asked, uint32_t max)
{
	return asked <= max ? 0 : vb_refuse_limit(CALL, what, asked, max);
}

static int check_cap(const struct ibv_qp_cap *cap, bool receives)
{
	const struct vb_profile *p = vb_profile();
	int err = check_limit("max_send_wr", cap->max_send_wr, p->max_qp_wr);

	if (!err)
		err = check_limit("max_send_sge", cap->max_send_sge, p->max_sge);
	if (!err)
		err = check_limit("max_inline_data", cap->max_inline_data, p->max_inline);
	if (!err && receives) /* else these do not count */
		err = check_limit("max_recv_wr", cap->max_recv_wr, p->max_qp_wr);
	if (!err && receives)
		err = check_limit("max_recv_sge", cap->max_recv_sge, p->max_sge);
	return err;
}

/* What a queue pair is made of: XRC's have not everything. */
struct plan {
	struct ibv_context *context;
	const struct ibv_qp_init_attr *attr;
	struct ibv_pd *pd;	  /* NULL: a target's */
	struct ibv_cq *scq, *rcq; /* NULL: a target's; an initiator's of XRC has no rcq */
	struct ibv_srq *srq;	  /* NULL: none */
	struct vb_xrcd *xrcd;	  /* a target's; NULL: it is none */
	const struct ibv_qp_cap *cap;
	bool no_rq;
	bool extended; /* its struct is a struct vb_wr_qp */
};

static int check_queues(const struct plan *p)
{
	bool recv = p->attr->qp_type != IBV_QPT_XRC_SEND;

	if (p->xrcd)
		return 0;
	if (!recv &&
	    p->attr->srq) /* as the kernel has it; what else an initiator has no use for is dropped */
		return vb_refuse(EINVAL, CALL,
				 "srq must be NULL: a QP of type IBV_QPT_XRC_SEND receives nothing. Each "
				 "request names the peer's SRQ (ibv_send_wr.qp_type.xrc.remote_srqn)");
	if (!p->scq || (recv && !p->rcq)) /* rule 41 */
		return vb_refuse(EINVAL, CALL, "%s_cq is NULL", p->scq ? "recv" : "send");
	if (p->scq->context != p->context || (recv && p->rcq->context != p->context))
		return vb_refuse(EINVAL, CALL, "a CQ belongs to another context than the protection domain");
	if (p->srq && p->srq->context != p->context)
		return vb_refuse(EINVAL, CALL,
				 "the SRQ belongs to another context than the protection domain");
	if (p->srq && vb_srq(p->srq)->xrcd)
		return vb_refuse(
		    EINVAL, CALL,
		    "the SRQ is of type IBV_SRQT_XRC: only target QPs of its XRC domain can receive from it");
	return check_cap(p->cap, !p->no_rq);
}

static int check_new(const struct plan *p)
{
	int err = vb_context_check(CALL, p->context);

	if (err)
		return err;
	err = check_type(p->attr->qp_type);
	if (err)
		return err;
	if (p->attr->qp_type == IBV_QPT_XRC_RECV && !p->xrcd)
		return vb_refuse(EINVAL, CALL,
				 "a QP of type IBV_QPT_XRC_RECV requires an XRC domain; create it with "
				 "ibv_create_qp_ex()");
	return check_queues(p);
}

/* Counts the QP at everything that it uses; n is 1 at creation and -1 at destruction. */
static void count(struct vb_qp *qp, uint32_t n)
{
	if (qp->xrcd) { /* all that a target has of its own */
		atomic_fetch_add(&qp->xrcd->refs, n);
		return;
	}
	vb_pd_count(qp->pd, VB_CHILD_QP, n);
	if (n == 1) {
		atomic_fetch_add(&qp->scq->refs, 1);
		if (qp->rcq)
			atomic_fetch_add(&qp->rcq->refs, 1);
		if (qp->srq)
			atomic_fetch_add(&qp->srq->refs, 1);
		return;
	}
	vb_cq_let_go(qp->scq);
	if (qp->rcq)
		vb_cq_let_go(qp->rcq);
	if (qp->srq)
		vb_srq_let_go(qp->srq);
}

static void describe(struct vb_qp *qp, const struct plan *p)
{
	qp->ibv.context = p->context;
	qp->ibv.qp_context = p->attr->qp_context;
	qp->ibv.pd = p->pd;
	qp->ibv.send_cq = p->scq;
	qp->ibv.recv_cq = p->rcq;
	qp->ibv.srq = p->srq;
	qp->ibv.handle = qp->ibv.qp_num = qp->qpn;
	qp->ibv.state = IBV_QPS_RESET;
	qp->ibv.qp_type = p->attr->qp_type;
	pthread_mutex_init(&qp->ibv.mutex, NULL);
	pthread_cond_init(&qp->ibv.cond, NULL);
}

/* What it uses, before it has queues. */
static void join(struct vb_qp *qp, const struct plan *p)
{
	struct vb_context *c = vb_context(p->context);
	struct vb_hca *h = vb_hca(c->adapter);

	qp->ctx = c;
	qp->pd = p->pd ? vb_pd(p->pd) : NULL;
	qp->pd_id = qp->pd ? qp->pd->id : 0;
	qp->scq = p->scq ? vb_cq(p->scq) : NULL;
	qp->rcq = p->rcq ? vb_cq(p->rcq) : NULL;
	qp->srq = p->srq ? vb_srq(p->srq) : NULL;
	qp->xrcd = p->xrcd;
	qp->srqs = &h->srqs;
	qp->keys = &h->keys;
	qp->mws = &h->mws;
	qp->sq_sig_all = p->attr->sq_sig_all;
	qp->post.alone = qp->pd && qp->pd->parent && qp->pd->parent->td;
	qp->ibv.qp_type = p->attr->qp_type;
	vb_transport_choose(qp, p->attr->qp_type);
}

/* NULL: *err says why.  cap receives what was granted. */
static struct ibv_qp *make(const struct plan *p, struct ibv_qp_cap *granted, int *err)
{
	size_t size = p->extended ? sizeof(struct vb_wr_qp) : sizeof(struct vb_qp);
	struct vb_context *c = vb_context(p->context);
	struct ibv_qp_cap cap;
	struct vb_hca *h;
	struct vb_qp *qp;

	*err = check_new(p);
	if (*err)
		return NULL;
	qp = aligned_alloc(VB_LINE, (size + VB_LINE - 1) & -(size_t)VB_LINE);
	if (!qp) {
		*err = vb_refuse_memory(CALL);
		return NULL;
	}
	memset(qp, 0, size);
	h = vb_hca(c->adapter);
	join(qp, p);
	cap = *p->cap;
	*err = vb_qp_init(qp, &cap); /* pairs with ibv_destroy_qp() */
	if (*err)		     /* said */
		goto free_qp;
	qp->attr.cap = cap;
	if (qp->forwards)
		qp->forwards->ops = &vb_forward_ops;
	if (atomic_fetch_add(&h->qps, 1) >= vb_profile()->max_qp) { /* pairs with ibv_destroy_qp() */
		*err = vb_refuse(ENOMEM, CALL, "all %u QPs of the device are in use", vb_profile()->max_qp);
		goto uncount;
	}
	qp->qpn = vb_qpn_take(c->adapter, qp, CALL); /* pairs with ibv_destroy_qp() */
	if (!qp->qpn) {
		*err = vb_context_lost(c) ? vb_refuse(EIO, CALL, VB_LOST_TEXT) : ENOMEM; /* said */
		goto uncount;
	}
	if (qp->dests) {
		qp->dests->gids = vb_adapter_gids(c->adapter);
		qp->dests->infiniband = vb_devices_infiniband();
		qp->dests->group = &vb_mcast_ops;
		qp->dests->back = &vb_back_ops;
	}
	qp->shown = vb_qpn_published(c->adapter, qp->qpn);
	qp->traffic = vb_qpn_traffic(c->adapter, qp->qpn);
	qp->drops = vb_adapter_drops(c->adapter);
	describe(qp, p);
	if (vb_check_on)
		vb_custody_begin(qp); /* vb_qp_fini() */
	vb_lock_take(&qp->lock);      /* a packet for an earlier QP of that number may find this one */
	vb_direct_show(qp);
	vb_lock_give(&qp->lock);
	count(qp, 1);
	vb_lock_take(&c->lock);
	vb_list_append(&c->qps, &qp->on_ctx);
	vb_lock_give(&c->lock);
	*granted = cap;
	vb_live_enter(&qp->ibv, VB_LIVE_QP);
	vb_adapter_count_qp(c->adapter, 1); /* pairs with ibv_destroy_qp() */
	return &qp->ibv;
uncount:
	atomic_fetch_sub(&h->qps, 1);
	vb_qp_fini(qp);
free_qp:
	free(qp);
	return NULL;
}

/* Of the attributes that which a QP of the type has. */
static struct plan plan_of(struct ibv_context *context, struct ibv_pd *pd,
			   const struct ibv_qp_init_attr *attr)
{
	bool sends_only = attr->qp_type == IBV_QPT_XRC_SEND;

	return (struct plan){.context = context,
			     .attr = attr,
			     .pd = pd,
			     .scq = attr->send_cq,
			     .rcq = sends_only ? NULL : attr->recv_cq,
			     .srq = sends_only ? NULL : attr->srq,
			     .cap = &attr->cap,
			     .no_rq = sends_only || attr->srq};
}

VB_EXPORT VB_OBJECT(struct ibv_qp *, ibv_create_qp, (ibpd, attr), struct ibv_pd *ibpd,
		    struct ibv_qp_init_attr *attr)
{
	int err = ibpd ? 0 : vb_pd_check("ibv_create_qp", NULL);
	struct ibv_qp *qp = NULL;
	struct plan p;

	if (!err) {
		p = plan_of(ibpd->context, ibpd, attr);
		qp = make(&p, &attr->cap, &err);
	}
	if (!qp)
		errno = err;
	return qp;
}

static const char call_ex[] = "ibv_create_qp_ex";

/* A target has none of what the other attributes say. */
static struct ibv_qp *make_target(struct ibv_context *context, struct ibv_qp_init_attr_ex *a, int *err)
{
	static const struct ibv_qp_cap none;
	const struct ibv_qp_init_attr basic = {.qp_context = a->qp_context, .qp_type = a->qp_type};
	struct plan p = {.context = context, .attr = &basic, .cap = &none, .no_rq = true};

	if (!(a->comp_mask & IBV_QP_INIT_ATTR_XRCD) || !a->xrcd) {
		*err = vb_refuse(EINVAL, call_ex,
				 "a QP of type IBV_QPT_XRC_RECV requires an XRC domain; set xrcd, and "
				 "IBV_QP_INIT_ATTR_XRCD in comp_mask");
		return NULL;
	}
	if (a->xrcd->context != context) {
		*err = vb_refuse(EINVAL, call_ex, "the XRC domain belongs to another context");
		return NULL;
	}
	if (a->srq && !vb_srq(a->srq)->xrcd) { /* as the kernel has it; of the right type it says nothing */
		*err = vb_refuse(EINVAL, call_ex,
				 "a QP of type IBV_QPT_XRC_RECV has no SRQ of its own, since each message "
				 "names one; leave srq NULL");
		return NULL;
	}
	p.xrcd = vb_xrcd(a->xrcd);
	return make(&p, &a->cap, err);
}

static struct ibv_qp *make_in_pd(struct ibv_context *context, struct ibv_qp_init_attr_ex *a, int *err)
{
	struct ibv_qp_init_attr basic = {.qp_context = a->qp_context,
					 .send_cq = a->send_cq,
					 .recv_cq = a->recv_cq,
					 .srq = a->srq,
					 .cap = a->cap,
					 .qp_type = a->qp_type,
					 .sq_sig_all = a->sq_sig_all};
	struct ibv_qp *qp;
	struct plan p;

	if (!(a->comp_mask & IBV_QP_INIT_ATTR_PD) || !a->pd) {
		*err = vb_refuse(EINVAL, call_ex,
				 "the QP requires a protection domain; set pd, and IBV_QP_INIT_ATTR_PD in "
				 "comp_mask");
		return NULL;
	}
	if (a->pd->context != context) {
		*err = vb_refuse(EINVAL, call_ex, "the protection domain belongs to another context");
		return NULL;
	}
	p = plan_of(context, a->pd, &basic);
	p.extended = a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	qp = make(&p, &a->cap, err);
	if (qp && a->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && a->create_flags) /* it is a datagram's */
		vb_qp(qp)->dests->no_echo = true;
	if (qp && p.extended)
		vb_wr_open((struct vb_wr_qp *)qp, (uint32_t)a->send_ops_flags);
	return qp;
}

static int check_create_flags(enum ibv_qp_type type, uint32_t flags)
{
	const uint32_t known = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
	char names[VB_FLAGS_TEXT];

	if (flags & ~known)
		return vb_refuse(EOPNOTSUPP, call_ex, "create_flags: %s is not supported",
				 vb_name_flags(names, sizeof(names), VB_FLAGS_QP_CREATE, flags & ~known));
	if (flags && type != IBV_QPT_UD)
		return vb_refuse(EINVAL, call_ex,
				 "create_flags: IBV_QP_CREATE_BLOCK_SELF_MCAST_LB requires a QP of type "
				 "IBV_QPT_UD: no other type receives multicast");
	return 0;
}

/* What the mask brings beside the basic attributes. */
static int check_ex(const struct ibv_qp_init_attr_ex *a)
{
	/* What a type has no use for is not looked at, as with other libraries: rdma_create_qp_ex() gives XRC
	 * targets a domain. */
	const uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_CREATE_FLAGS |
			       IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	uint64_t asked = a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS ? a->send_ops_flags : 0;
	char names[VB_FLAGS_TEXT];
	int err = 0;

	if (a->comp_mask & ~known)
		return vb_refuse(
		    EOPNOTSUPP, call_ex, "comp_mask: %s is not supported",
		    vb_name_flags(names, sizeof(names), VB_FLAGS_QP_INIT, a->comp_mask & ~known));
	if (a->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS)
		err = check_create_flags(a->qp_type, a->create_flags);
	if (err || !vb_transport_of(a->qp_type)) /* of such a type nothing is made */
		return err;
	asked &= ~(uint64_t)vb_wr_askable(a->qp_type);
	if (asked)
		return vb_refuse(EOPNOTSUPP, call_ex,
				 "send_ops_flags: %s is not supported on a QP of type %s",
				 vb_name_flags(names, sizeof(names), VB_FLAGS_SEND_OPS, asked),
				 vb_name_qp_type(a->qp_type));
	return 0;
}

VB_OBJECT_AS(struct ibv_qp *, vb_create_qp_ex, call_ex, (context, a), struct ibv_context *context,
	     struct ibv_qp_init_attr_ex *a)
{
	int err = check_ex(a);
	struct ibv_qp *qp = NULL;

	if (!err)
		qp = a->qp_type == IBV_QPT_XRC_RECV ? make_target(context, a, &err)
						    : make_in_pd(context, a, &err);
	if (!qp)
		errno = err;
	return qp;
}

VB_EXPORT VB_OBJECT(struct ibv_qp_ex *, ibv_qp_to_qp_ex, (qp), struct ibv_qp *qp)
{
	if (qp && vb_qp(qp)->ex.wr_start)
		return &vb_qp(qp)->ex;
	errno = vb_refuse(
	    EOPNOTSUPP, "ibv_qp_to_qp_ex",
	    "the QP was created without IBV_QP_INIT_ATTR_SEND_OPS_FLAGS; set it in ibv_create_qp_ex()");
	return NULL;
}

/* A program that posts to a queue pair that it has destroyed is to read what it was, and be told so; where
 * malloc() had the memory it would jump to whatever stands there.  So the last few are kept for a while. */
static void bury(struct vb_qp *qp)
{
#ifdef __SANITIZE_ADDRESS__
	free(qp); /* its report has both stacks */
#else
	enum { KEPT = 16 };
	static _Atomic(struct vb_qp *) graves[KEPT];
	static _Atomic uint32_t next;

	vb_check_handed();
	qp = atomic_exchange(&graves[atomic_fetch_add(&next, 1) % KEPT], qp);
	vb_check_handed();
	free(qp);
#endif
}

void vb_qp_end(struct vb_qp *qp)
{
	struct vb_context *c = qp->ctx;

	if (qp->dests) /* while the context still finds it, should the device be lost */
		vb_datagrams_drain(qp);
	if (vb_qp_unheard(qp))
		vb_qp_say_unheard(qp->qpn);
	/* A QP in RESET takes no packet and completes nothing, and one that is forgotten stays there: what
	 * follows cannot be undone by a latecomer. */
	vb_qp_hold(qp);
	vb_qp_to_reset(qp);
	qp->forgotten = true;
	vb_qp_drop(qp);
	vb_lock_take(&c->lock);
	vb_list_unlink(&qp->on_ctx); /* not before a target has let go of its SRQ, which finds it here */
	vb_lock_give(&c->lock);
	vb_hca_forget(qp);
	vb_direct_revoked(qp);
	if (qp->windows) /* before another QP has the number that theirs is bound to (rule 48) */
		vb_mw_qp_gone(&vb_hca(c->adapter)->mws, qp->qpn);
	vb_adapter_count_qp(c->adapter, -1);
	vb_qpn_give(c->adapter, qp->qpn);
	vb_hca_quiesce(vb_hca(c->adapter));
	atomic_fetch_sub(&vb_hca(c->adapter)->qps, 1);
	vb_qp_await_events(qp); /* rule 36 */
	vb_qp_fini(qp);		/* before its domain can go, whose callbacks it may need */
	count(qp, (uint32_t)-1);
	pthread_cond_destroy(&qp->ibv.cond);
	pthread_mutex_destroy(&qp->ibv.mutex);
	bury(qp);
}

VB_EXPORT VB_END(ibv_destroy_qp, "ibv_destroy_qp", VB_LIVE_QP, ibqp, struct ibv_qp *ibqp)
{
	struct vb_qp *qp = vb_qp(ibqp);

	if (vb_context_dead(qp->ctx))
		return 0;
	if (!vb_mcast_shut(vb_hca(qp->ctx->adapter), qp)) /* as the kernel has it */
		return vb_refuse_busy(
		    "ibv_destroy_qp",
		    "the QP is attached to a multicast group; call ibv_detach_mcast() first");
	if (!qp->xrcd || vb_qp_close(qp))
		vb_qp_end(qp);
	return 0;
}
