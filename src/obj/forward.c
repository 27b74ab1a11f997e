#include "obj/forward.h"

#include "iba/pkt.h"
#include "iba/shown.h"
#include "obj/comp_cntr.h"
#include "obj/qp.h"

void vb_forward_show(struct vb_qp *qp)
{
	const struct vb_forwards *w = qp->forwards;
	uint32_t known = w->busy ? w->next : qp->resp.epsn;

	if (w->again)
		known = vb_psn_add(known, 1);
	if (qp->shown)
		atomic_store_explicit(&qp->shown->known, w->busy || w->again ? VB_SHOWN_RECEIVED | known : 0,
				      memory_order_release); /* pairs with vb_peer_qp_known() */
}

void vb_forward_arrived(struct vb_qp *qp, struct vb_forward *f, uint32_t psn)
{
	struct vb_forward_count *c = &qp->forwards->count;
	struct vb_resp *s = &qp->resp;
	uint32_t n = (psn - f->una) & VB_PSN_MASK;

	s->epsn = vb_psn_add(s->epsn, n);
	s->ack_owed |= n > 0;
	f->una = psn;
	if (f->una != f->psn)
		return;
	qp->forwards->busy = NULL;
	if (c->outstanding && qp->counters && c->receives)
		vb_comp_received(qp, c->bytes, false);
	if (c->outstanding && qp->counters && c->writes)
		vb_comp_remote(qp, VB_COMP_REMOTE_WRITE, c->bytes);
	c->outstanding = false;
}

void vb_forward_add(struct vb_qp *qp, struct vb_forward *f)
{
	vb_lock_assert_held(&qp->lock);
	vb_list_append(&qp->forwards->all, &f->node);
	qp->forwards->wanted = 0;
	qp->forwards->since = 0;
}

void vb_forward_fail(struct vb_qp *qp)
{
	vb_lock_assert_held(&qp->lock);
	qp->forwards->nowhere = qp->forwards->wanted;
	qp->forwards->wanted = 0;
	qp->forwards->since = 0;
}

void vb_forward_forget(struct vb_qp *qp, struct vb_forward *f, uint32_t received)
{
	struct vb_forwards *w = qp->forwards;
	uint32_t psn = received & VB_PSN_MASK;

	vb_lock_assert_held(&qp->lock);
	vb_list_unlink(&f->node);
	if (w->full == f->out)
		w->full = NULL;
	if (w->within == f)
		w->within = NULL;
	if (w->busy != f) {
		if (!w->fetch.under_way) /* what has come was perhaps f's */
			w->fetch = (struct vb_fetch){0};
		return;
	}
	if (received && !w->fetch.under_way && vb_psn_diff(psn, f->una) > 0 && vb_psn_diff(psn, f->psn) <= 0)
		vb_forward_arrived(qp, f, psn);
	w->again |= w->busy == f;
	w->busy = NULL;
	w->count.outstanding = false;
	w->fetch = (struct vb_fetch){0};
	vb_forward_show(qp);
}
