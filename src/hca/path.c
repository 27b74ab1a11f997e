#include "hca/path.h"

#include "hca/capture.h"
#include "hca/datagrams.h"
#include "hca/direct.h"
#include "hca/far.h"
#include "hca/hca.h"
#include "hca/owed.h"
#include "hca/silence.h"
#include "transport/transport.h"

/* Without a far end there is none when the address is not known yet, or when nobody has that number. */
static void resolve(struct vb_path *p)
{
	const struct vb_qp *qp = p->qp;

	if (qp->state < IBV_QPS_RTR || qp->state > IBV_QPS_SQE || p->gone)
		return; /* no path is set, or none any more */
	p->far = vb_far_find(vb_qp_hca(qp), qp);
}

bool vb_path_is_connected(const struct vb_path *p)
{
	return p->far->kind->connected(p);
}

/* Whether what is sent now is lost, of a type that does not wait for answers: nobody has that number, or
 * nobody there is connected to this queue pair.  While contact is being made it is not known yet. */
static void find_nobody(struct vb_path *p)
{
	bool before = p->nobody;

	if (p->qp->acked)
		return;
	/* Another attempt, after one that failed, holds nothing up. */
	p->nobody = !p->out && (before || !p->far || p->far->kind->state(p->far) != VB_FAR_SEEKING);
	if (p->nobody && !before)
		vb_silence_explain(p->qp);
}

void vb_path_attach(struct vb_path *p)
{
	bool fresh = !p->rxq;
	const struct vb_far_kind *kind;
	struct vb_rxq *rxq;

	vb_lock_assert_held(&p->qp->lock);
	if (vb_unlikely(!p->far))
		resolve(p);
	kind = p->far ? p->far->kind : NULL;
	if (!kind || !kind->attach(p)) {
		find_nobody(p);
		return;
	}
	if (!p->out && kind->connected(p)) {
		struct vb_out *out = kind->way(p->far, p->qp, &rxq);

		p->qp->transport->path(p, out ? vb_capture_way(p->qp, p->far, out, true) : NULL);
	}
	find_nobody(p);
	vb_direct_show(p->qp);
	/* A request over there may wait for this queue pair to be connected. */
	if (vb_unlikely(fresh && kind->stir))
		kind->stir(p);
}

void vb_path_detach(struct vb_path *p)
{
	struct vb_out *out = p->out;

	vb_lock_assert_held(&p->qp->lock);
	vb_owe_no_more(p);
	p->rxq = NULL;
	p->qp->transport->path(p, NULL);
	vb_out_end(out);
	p->mem = NULL;
	p->peer_qp = NULL;
	vb_grant_drop(&p->qp->grant);
	p->apart = false;
	vb_direct_show(p->qp);
}

void vb_path_unresolve(struct vb_path *p)
{
	vb_lock_assert_held(&p->qp->lock);
	p->nobody = false;
	vb_far_put(&p->far);
}

void vb_path_lose(struct vb_path *p)
{
	vb_lock_assert_held(&p->qp->lock);
	/* The program may keep the queue pair: that holds no place in a table of far ends. */
	p->qp->silence = p->far->kind->silence(p->far, p->pid, false);
	p->gone = true;
	vb_path_unresolve(p);
}

bool vb_path_give_up(struct vb_path *p)
{
	vb_lock_assert_held(&p->qp->lock);
	if (p->qp->state != IBV_QPS_ERR || !p->far || p->rxq)
		return false;
	vb_path_unresolve(p);
	return true;
}

void vb_path_contact(struct vb_path *p)
{
	vb_lock_assert_held(&p->qp->lock);
	if (p->far)
		p->far->kind->contact(p->far);
}

void vb_path_move(struct vb_path *p)
{
	vb_lock_assert_held(&p->qp->lock);
	p->far = p->far->kind->current(p->far);
	if (!vb_path_give_up(p))
		vb_path_attach(p);
}

void vb_path_open(struct vb_qp *qp)
{
	vb_lock_assert_held(&qp->lock);
	qp->path.pid = 0;
	qp->path.nobody = qp->path.gone = false;
	vb_path_attach(&qp->path);
}

void vb_path_close(struct vb_qp *qp)
{
	struct vb_path *p = &qp->path;

	vb_lock_assert_held(&qp->lock);
	if (qp->dests)
		vb_datagrams_close(qp);
	if (vb_unlikely(qp->forwards && qp->forwards->ops))
		qp->forwards->ops->end(qp);
	if (!p->far)
		return;
	qp->transport->last_word(qp);
	vb_path_detach(p);
	vb_path_unresolve(p);
}
