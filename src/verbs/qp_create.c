/* Queue pairs: creation and destruction. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "iba/names.h"
#include "iba/opcode.h"
#include "iba/profile.h"
#include "transport/transport.h"
#include "hca/direct.h"
#include "hca/lost.h"
#include "hca/hca.h"
#include "hca/progress.h"
#include "verbs/verbs.h"

#define CALL "ibv_create_qp"

enum { TYPES_TEXT = 128 }; /* has room for the names of all types */

static_assert(sizeof(struct ibv_qp) == 160 && sizeof(struct ibv_qp_ex) == 352, "ABI");

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
		return vb_refuse(EINVAL, CALL, "there is no QP type %d", (int)type); /* rule 41 */
	return vb_refuse(EOPNOTSUPP, CALL, "QPs of type %s are not supported, only %s", name,
			 types_made(made, sizeof(made)));
}

static int check_limit(const char *what, uint32_t asked, uint32_t max)
{
	if (asked <= max)
		return 0;
	return vb_refuse(EINVAL, CALL, "%s %u, at most %u is possible", what, asked, max);
}

static int check_cap(const struct ibv_qp_cap *cap, bool srq)
{
	const struct vb_profile *p = vb_profile();
	int err = check_limit("max_send_wr", cap->max_send_wr, p->max_qp_wr);

	if (!err)
		err = check_limit("max_send_sge", cap->max_send_sge, p->max_sge);
	if (!err)
		err = check_limit("max_inline_data", cap->max_inline_data, p->max_inline);
	if (!err && !srq) /* with an SRQ these do not count */
		err = check_limit("max_recv_wr", cap->max_recv_wr, p->max_qp_wr);
	if (!err && !srq)
		err = check_limit("max_recv_sge", cap->max_recv_sge, p->max_sge);
	return err;
}

static int check_new(const struct ibv_pd *pd, const struct ibv_qp_init_attr *a)
{
	const struct ibv_context *c = pd->context;
	int err;

	if (vb_context_dead(vb_context(pd->context)))
		return vb_refuse(EIO, CALL, "the device was opened before fork()");
	err = check_type(a->qp_type);
	if (err)
		return err;
	if (!a->send_cq || !a->recv_cq) /* rule 41 */
		return vb_refuse(EINVAL, CALL, "no %s CQ", a->send_cq ? "receive" : "send");
	if (a->send_cq->context != c || a->recv_cq->context != c)
		return vb_refuse(EINVAL, CALL, "a CQ belongs to another context than the protection domain");
	if (a->srq && a->srq->context != c)
		return vb_refuse(EINVAL, CALL,
				 "the SRQ belongs to another context than the protection domain");
	return check_cap(&a->cap, a->srq);
}

/* Counts the QP at everything that it uses; n is 1 at creation and -1 at destruction. */
static void count(struct vb_qp *qp, uint32_t n)
{
	vb_pd_count(qp->pd, VB_CHILD_QP, n);
	atomic_fetch_add(&qp->scq->refs, n);
	atomic_fetch_add(&qp->rcq->refs, n);
	if (qp->srq)
		atomic_fetch_add(&qp->srq->refs, n);
}

static void describe(struct vb_qp *qp, const struct ibv_qp_init_attr *a)
{
	qp->ibv.context = qp->pd->ibv.context;
	qp->ibv.qp_context = a->qp_context;
	qp->ibv.pd = &qp->pd->ibv;
	qp->ibv.send_cq = a->send_cq;
	qp->ibv.recv_cq = a->recv_cq;
	qp->ibv.srq = a->srq;
	qp->ibv.handle = qp->ibv.qp_num = qp->qpn;
	qp->ibv.state = IBV_QPS_RESET;
	qp->ibv.qp_type = a->qp_type;
	pthread_mutex_init(&qp->ibv.mutex, NULL);
	pthread_cond_init(&qp->ibv.cond, NULL);
}

VB_EXPORT VB_OBJECT(struct ibv_qp *, ibv_create_qp, (ibpd, attr), struct ibv_pd *ibpd,
		    struct ibv_qp_init_attr *attr)
{
	struct vb_context *c = vb_context(ibpd->context);
	struct ibv_qp_cap cap;
	struct vb_hca *h;
	struct vb_qp *qp;
	int err = check_new(ibpd, attr);

	if (err)
		goto refused;
	qp = aligned_alloc(VB_LINE, sizeof(*qp));
	if (!qp) {
		err = vb_refuse(ENOMEM, CALL, "no memory");
		goto refused;
	}
	memset(qp, 0, sizeof(*qp));
	qp->ctx = c;
	qp->pd = vb_pd(ibpd);
	qp->pd_id = qp->pd->id;
	qp->scq = vb_cq(attr->send_cq);
	qp->rcq = vb_cq(attr->recv_cq);
	qp->srq = attr->srq ? vb_srq(attr->srq) : NULL;
	h = vb_hca(c->adapter);
	qp->keys = &h->keys;
	qp->mws = &h->mws;
	qp->sq_sig_all = attr->sq_sig_all;
	qp->post.alone = qp->pd->parent && qp->pd->parent->td;
	qp->family = (uint8_t)vb_opcode_family(attr->qp_type);
	qp->transport = vb_transport_of(attr->qp_type);
	cap = attr->cap;
	err = vb_qp_init(qp, &cap); /* pairs with ibv_destroy_qp() */
	if (err)		    /* said */
		goto free_qp;
	qp->attr.cap = cap;
	if (atomic_fetch_add(&h->qps, 1) >= vb_profile()->max_qp) { /* pairs with ibv_destroy_qp() */
		err = vb_refuse(ENOMEM, CALL, "all %u QPs of the device are in use", vb_profile()->max_qp);
		goto uncount;
	}
	qp->qpn = vb_qpn_take(c->adapter, qp); /* pairs with ibv_destroy_qp() */
	if (!qp->qpn) {
		err = vb_context_lost(c) ? vb_refuse(EIO, CALL, VB_LOST_TEXT)
					 : vb_refuse(ENOMEM, CALL, "no QP number is left");
		goto uncount;
	}
	qp->shown = vb_qpn_published(c->adapter, qp->qpn);
	describe(qp, attr);
	vb_lock_take(&qp->lock); /* a packet for an earlier QP of that number may find this one */
	vb_direct_show(qp);
	vb_lock_give(&qp->lock);
	count(qp, 1);
	vb_lock_take(&c->lock);
	vb_list_append(&c->qps, &qp->on_ctx);
	vb_lock_give(&c->lock);
	attr->cap = cap;
	return &qp->ibv;
uncount:
	atomic_fetch_sub(&h->qps, 1);
	vb_qp_fini(qp);
free_qp:
	free(qp);
refused:
	errno = err;
	return NULL;
}

VB_OBJECT(struct ibv_qp *, vb_create_qp_ex, (context, a), struct ibv_context *context,
	  struct ibv_qp_init_attr_ex *a)
{
	const uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
	struct ibv_qp_init_attr basic = {.qp_context = a->qp_context,
					 .send_cq = a->send_cq,
					 .recv_cq = a->recv_cq,
					 .srq = a->srq,
					 .cap = a->cap,
					 .qp_type = a->qp_type,
					 .sq_sig_all = a->sq_sig_all};
	struct ibv_qp *qp = NULL;
	char names[VB_FLAGS_TEXT];
	int err;

	if (a->comp_mask & ~known)
		err = vb_refuse(EOPNOTSUPP, "ibv_create_qp_ex", "comp_mask: %s is not supported",
				vb_name_flags(names, sizeof(names), VB_FLAGS_QP_INIT, a->comp_mask & ~known));
	else if (a->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && a->create_flags)
		err = vb_refuse(EOPNOTSUPP, "ibv_create_qp_ex", "create_flags: %s is not supported",
				vb_name_flags(names, sizeof(names), VB_FLAGS_QP_CREATE, a->create_flags));
	else if (!(a->comp_mask & IBV_QP_INIT_ATTR_PD) || !a->pd || a->pd->context != context)
		err = vb_refuse(EINVAL, "ibv_create_qp_ex", "no protection domain of this context given");
	else {
		qp = ibv_create_qp(a->pd, &basic);
		err = errno;
		a->cap = basic.cap;
	}
	if (!qp)
		errno = err;
	return qp;
}

VB_EXPORT VB_OBJECT(struct ibv_qp_ex *, ibv_qp_to_qp_ex, (qp), struct ibv_qp *qp)
{
	(void)qp;
	errno = vb_refuse(EOPNOTSUPP, "ibv_qp_to_qp_ex", "ibv_wr_* calls are not supported");
	return NULL;
}

VB_EXPORT VB_CODE(ibv_destroy_qp, (ibqp), struct ibv_qp *ibqp)
{
	struct vb_qp *qp = vb_qp(ibqp);
	struct vb_context *c = qp->ctx;

	if (vb_context_dead(c))
		return 0;
	vb_lock_take(&c->lock);
	vb_list_unlink(&qp->on_ctx);
	vb_lock_give(&c->lock);
	if (vb_qp_unheard(qp))
		vb_qp_say_unheard(qp->qpn);
	/* a QP in RESET takes no packet and completes nothing: what follows cannot be undone by a latecomer
	 */
	vb_qp_hold(qp);
	vb_qp_to_reset(qp);
	vb_qp_drop(qp);
	vb_hca_forget(qp);
	vb_direct_revoked(qp);
	if (qp->windows) /* before another QP has the number that theirs is bound to (rule 48) */
		vb_mw_qp_gone(&vb_hca(c->adapter)->mws, qp->qpn);
	vb_qpn_give(c->adapter, qp->qpn);
	vb_hca_quiesce(vb_hca(c->adapter));
	atomic_fetch_sub(&vb_hca(c->adapter)->qps, 1);
	vb_qp_await_events(qp); /* rule 36 */
	vb_qp_fini(qp);		/* before its domain can go, whose callbacks it may need */
	count(qp, (uint32_t)-1);
	pthread_cond_destroy(&ibqp->cond);
	pthread_mutex_destroy(&ibqp->mutex);
	free(qp);
	return 0;
}
