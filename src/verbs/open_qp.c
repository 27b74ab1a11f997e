/* ibv_open_qp(): targets of XRC that several parts of a program share, or several programs.
 *
 * What is opened stands for the target: it may modify, query and destroy it, and hears its events.  The
 * target ends with the last that has it open, whoever made it, and lives in the process that made it.  Where
 * that is another one, peer_target.c has what stands for it here, and openings.c what does so there. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "hca/send.h"
#include "verbs/target.h"
#include "verbs/verbs.h"

static const char call[] = "ibv_open_qp";

static int check_new(const struct ibv_context *context, const struct ibv_qp_open_attr *a)
{
	const uint32_t needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
	const uint32_t known = needed | IBV_QP_OPEN_ATTR_CONTEXT;
	int err;

	err = vb_context_check(call, context);
	if (err)
		return err;
	if (a->comp_mask & ~known)
		return vb_refuse_bits(EOPNOTSUPP, call, "comp_mask", a->comp_mask, known);
	if ((a->comp_mask & needed) != needed)
		return vb_refuse(EINVAL, call,
				 "comp_mask 0x%x lacks the QP number, the XRC domain or the QP type: "
				 "ibv_open_qp() requires all three",
				 a->comp_mask);
	if (!a->xrcd || a->xrcd->context != context)
		return vb_refuse(EINVAL, call, "xrcd is %s", a->xrcd ? "of another context" : "NULL");
	if (a->qp_type != IBV_QPT_XRC_RECV)
		return vb_refuse(EINVAL, call,
				 "qp_type is %d: only QPs of type IBV_QPT_XRC_RECV (%d) can be opened",
				 (int)a->qp_type, IBV_QPT_XRC_RECV);
	return 0;
}

/* From now on h hears what happens to the target.  Under the target's lock, as leave(). */
static void join(struct vb_qp *target, struct vb_qp *h)
{
	for (unsigned i = 0; i < VB_QP_EVENTS; i++) {
		struct vb_async_node *n = vb_qp_event_at(h, i), *to = vb_qp_event_at(target, i);

		n->also = to->also;
		n->also_in = to->also_in;
		to->also = n;
		to->also_in = h->ctx;
	}
	vb_list_append(&target->opened, &h->on_target);
}

static void leave(struct vb_qp *target, struct vb_qp *h)
{
	for (unsigned i = 0; i < VB_QP_EVENTS; i++) {
		struct vb_async_node *n = vb_qp_event_at(h, i), *at = vb_qp_event_at(target, i);

		while (at->also != n)
			at = at->also;
		at->also = n->also;
		at->also_in = n->also_in;
	}
	vb_list_unlink(&h->on_target);
}

/* Has h stand for the target of that number, if this context has it and it is of h's domain. */
static bool find_in(struct vb_context *c, struct vb_qp *h)
{
	bool found = false;

	vb_lock_take(&c->lock);
	vb_list_each (n, &c->qps) {
		struct vb_qp *qp = vb_list_entry(n, struct vb_qp, on_ctx);

		if (found || qp->ibv.qp_type != IBV_QPT_XRC_RECV || qp->qpn != h->qpn)
			continue;
		vb_lock_take(&qp->lock);
		found = vb_xrcd_is(&qp->xrcd->id, &h->xrcd->id) &&
			!((qp->closed || atomic_load(&c->closing)) && vb_list_empty(&qp->opened));
		if (found) {
			h->of = qp;
			h->ibv.state = qp->state;
			join(qp, h);
		}
		vb_hca_give(qp);
	}
	vb_lock_give(&c->lock);
	return found;
}

bool vb_target_join(struct vb_qp *h)
{
	struct vb_hca *hca = vb_qp_hca(h);
	bool found = false;

	vb_lock_take(&hca->contexts_lock);
	vb_list_each (n, &hca->contexts) {
		if (!found)
			found = find_in(vb_list_entry(n, struct vb_context, on_hca), h);
	}
	vb_lock_give(&hca->contexts_lock);
	return found;
}

void vb_target_unmake(struct vb_qp *h)
{
	atomic_fetch_sub(&h->xrcd->refs, 1);
	pthread_cond_destroy(&h->ibv.cond);
	pthread_mutex_destroy(&h->ibv.mutex);
	free(h);
}

struct vb_qp *vb_target_stand_in(const struct ibv_qp_open_attr *a, size_t size)
{
	struct vb_qp *h;

	size = (size + VB_LINE - 1) & -(size_t)VB_LINE;
	h = aligned_alloc(VB_LINE, size); /* pairs with vb_target_unmake() */
	if (!h)
		return NULL;
	memset(h, 0, size);
	h->ibv.context = a->xrcd->context;
	h->ctx = vb_context(a->xrcd->context);
	h->xrcd = vb_xrcd(a->xrcd);
	h->no_rq = true;
	h->qpn = h->ibv.qp_num = h->ibv.handle = a->qp_num;
	h->ibv.qp_type = a->qp_type;
	if (a->comp_mask & IBV_QP_OPEN_ATTR_CONTEXT)
		h->ibv.qp_context = a->qp_context;
	pthread_mutex_init(&h->ibv.mutex, NULL);
	pthread_cond_init(&h->ibv.cond, NULL);
	vb_qp_init_events(h);
	atomic_fetch_add(&h->xrcd->refs, 1); /* pairs with vb_target_unmake() */
	return h;
}

/* One of this process. */
static int open_here(struct ibv_qp_open_attr *attr, struct vb_qp **h)
{
	*h = vb_target_stand_in(attr, sizeof(**h));
	if (!*h)
		return vb_refuse_memory(call);
	if (vb_target_join(*h))
		return 0;
	vb_target_unmake(*h);
	return vb_refuse(EINVAL, call, "the XRC domain has no target QP 0x%06x", attr->qp_num);
}

VB_OBJECT(struct ibv_qp *, vb_open_qp, (context, attr), struct ibv_context *context,
	  struct ibv_qp_open_attr *attr)
{
	int err = check_new(context, attr);
	struct vb_qp *h = NULL;

	if (!err)
		err = vb_adapter_has_number(vb_context(context)->adapter, attr->qp_num >> VB_QPN_INDEX_BITS)
			  ? open_here(attr, &h)
			  : vb_target_open_far(attr, &h);
	if (!err) {
		vb_live_enter(&h->ibv, VB_LIVE_QP);
		return &h->ibv;
	}
	errno = err;
	return NULL;
}

/* A target that its maker has closed uses the domain of one that has it open. */
static void lean(struct vb_qp *target)
{
	struct vb_qp *on = vb_list_entry(target->opened.next, struct vb_qp, on_target);

	vb_lock_assert_held(&target->lock);
	atomic_fetch_add(&on->xrcd->refs, 1);
	atomic_fetch_sub(&target->xrcd->refs, 1);
	target->xrcd = on->xrcd;
}

/* The program's own object of the target goes, and the target stays for those that have it open.  Only when
 * nobody needs that object any more may they end it. */
static bool keeps(struct vb_qp *qp)
{
	struct vb_hca *h = vb_qp_hca(qp);
	bool kept;

	vb_lock_take(&qp->lock);
	for (unsigned i = 0; i < VB_QP_EVENTS; i++)
		vb_qp_event_at(qp, i)->deaf = true;
	kept = !vb_list_empty(&qp->opened);
	qp->closed = !kept;
	vb_hca_give(qp);
	if (!kept)
		return false;
	vb_qp_await_events(qp);
	pthread_mutex_lock(&h->openings_lock);
	vb_lock_take(&qp->lock);
	kept = !vb_list_empty(&qp->opened);
	qp->closed = true;
	if (kept)
		lean(qp);
	vb_hca_give(qp);
	pthread_mutex_unlock(&h->openings_lock);
	return kept;
}

struct vb_qp *vb_target_leave(struct vb_qp *h)
{
	struct vb_qp *target = h->of;
	bool last;

	vb_mutex_assert_held(&vb_qp_hca(target)->openings_lock);
	vb_qp_hold(target);
	leave(target, h);
	last = vb_list_empty(&target->opened);
	if (target->closed && !last)
		lean(target);
	if (last && !target->closed && atomic_load(&target->ctx->closing))
		vb_qp_to_reset(target); /* ibv_close_device() has left it for those that had it open */
	last = last && target->closed;
	vb_qp_drop(target);
	return last ? target : NULL;
}

/* What stands for a target of this process goes. */
static void part(struct vb_qp *h)
{
	struct vb_hca *hca = vb_qp_hca(h);
	struct vb_context *c = h->of->ctx;
	struct vb_qp *last;

	pthread_mutex_lock(&hca->openings_lock);
	last = vb_target_leave(h);
	if (last)
		vb_qp_end(last);
	else if (atomic_load(&c->closing)) /* it is closed, and left the target behind for this one */
		vb_openings_expel(c);
	pthread_mutex_unlock(&hca->openings_lock);
	vb_qp_await_events(h);
	vb_target_unmake(h);
}

bool vb_qp_close(struct vb_qp *qp)
{
	if (!qp->far && !qp->of)
		return !keeps(qp);
	if (qp->far)
		vb_target_close_far(qp);
	else
		part(qp);
	return false;
}
