#include "hca/path.h"

#include "hca/capture.h"
#include "hca/datagrams.h"
#include "hca/direct.h"
#include "hca/hca.h"
#include "hca/owed.h"
#include "hca/port.h"
#include "hca/silence.h"
#include "transport/transport.h"

struct vb_peer *vb_path_peer(struct vb_adapter *a, uint32_t number)
{
	struct vb_peer *peer = vb_peer_get(a, number);

	/* Whoever had the number may have died just now, and who has it since is meant: the end of the one is
	 * not to be taken for the end of the other.  It is looked again, as for an address that is not known
	 * yet. */
	if (peer && vb_peer_is_over(peer)) {
		vb_peer_put(peer);
		peer = NULL;
	}
	return peer;
}

/* Resolving: an address of this host leads to the process that the QPN's upper bits name.  Whatever GID that
 * one shows, it is there: all addresses of a host are those of all its processes. */
static void resolve(struct vb_path *p)
{
	const struct vb_qp *qp = p->qp;

	if (qp->state < IBV_QPS_RTR || qp->state > IBV_QPS_SQE || p->gone)
		return; /* no path is set, or none any more */
	if (!vb_port_leads_here(vb_qp_hca(qp), &qp->attr.ah_attr))
		return;
	p->peer = vb_path_peer(vb_qp_adapter(qp), qp->dest_qpn >> VB_QPN_INDEX_BITS);
}

/* A GID like 127.0.0.1 may have been copied from another network namespace, where another process has that
 * number: what is sent goes to nobody but to a queue pair that names this one as its destination. */
bool vb_path_is_connected(const struct vb_path *p)
{
	const struct vb_shown_qp *q = vb_peer_shown(p->peer, p->qp->dest_qpn);

	/* The acquire pairs with vb_direct_show(), which stores the destination first. */
	return q && atomic_load_explicit(&q->state, memory_order_acquire) > IBV_QPS_RTR &&
	       atomic_load_explicit(&q->dest_qpn, memory_order_relaxed) == p->qp->qpn;
}

/* Both ends of a connection choose the same one, and queue pairs that were made one after the other different
 * ones, but where the order among several queue pairs matters. */
static const struct vb_lane *lane_of(const struct vb_path *p)
{
	uint32_t own = p->qp->qpn, far = p->qp->dest_qpn;

	if (p->qp->transport->answers_apart)
		return &p->peer->lanes[0];
	return &p->peer->lanes[(own < far ? own : far) % p->peer->nlanes];
}

/* Whether what is sent now is lost, of a type that does not wait for answers: nobody has that number, or
 * nobody there is connected to this queue pair.  While contact is being made it is not known yet. */
static void find_nobody(struct vb_path *p)
{
	bool before = p->nobody;

	if (p->qp->acked)
		return;
	/* Another attempt, after one that failed, holds nothing up. */
	p->nobody =
	    !p->out && (before || !p->peer ||
			atomic_load_explicit(&p->peer->state, memory_order_acquire) != VB_PEER_CONTACTING);
	if (p->nobody && !before)
		vb_silence_explain(p->qp);
}

void vb_path_attach(struct vb_path *p)
{
	bool fresh = !p->rxq;
	const struct vb_lane *lane;
	struct vb_peer *peer;

	vb_lock_assert_held(&p->qp->lock);
	if (vb_unlikely(!p->peer))
		resolve(p);
	peer = p->peer;
	if (!peer || atomic_load_explicit(&peer->state, memory_order_acquire) != VB_PEER_UP) {
		find_nobody(p);
		return;
	}
	lane = lane_of(p);
	p->rxq = lane->rxq;
	p->source = (struct vb_source){.high = VB_SOURCE_PEER, .low = peer->incarnation};
	p->pid = peer->pid;
	vb_direct_attach(p);
	if (!p->out && vb_path_is_connected(p))
		p->qp->transport->path(p, vb_capture_way(p->qp, peer, lane->out, true));
	find_nobody(p);
	vb_direct_show(p->qp);
	/* A request over there may wait for this queue pair to be connected: its process looks again. */
	if (vb_unlikely(fresh))
		vb_peer_ring(peer);
}

void vb_path_detach(struct vb_path *p)
{
	struct vb_out *out = p->out;

	vb_lock_assert_held(&p->qp->lock);
	vb_owe_no_more(p);
	p->rxq = NULL;
	p->qp->transport->path(p, NULL);
	vb_capture_end(out);
	p->mem = NULL;
	p->peer_qp = NULL;
	vb_direct_show(p->qp);
}

void vb_path_unresolve(struct vb_path *p)
{
	struct vb_peer *peer = p->peer;

	vb_lock_assert_held(&p->qp->lock);
	p->peer = NULL;
	p->nobody = false;
	vb_peer_put(peer);
}

void vb_path_lose(struct vb_path *p)
{
	vb_lock_assert_held(&p->qp->lock);
	/* The program may keep the queue pair: that holds no place in the table of peers. */
	p->qp->silence = vb_silence_no_contact(p->peer, p->pid);
	p->gone = true;
	vb_path_unresolve(p);
}

bool vb_path_give_up(struct vb_path *p)
{
	vb_lock_assert_held(&p->qp->lock);
	if (p->qp->state != IBV_QPS_ERR || !p->peer || p->rxq)
		return false;
	vb_path_unresolve(p);
	return true;
}

void vb_path_contact(struct vb_path *p)
{
	vb_lock_assert_held(&p->qp->lock);
	if (p->peer)
		vb_peer_contact(p->peer);
}

void vb_path_move(struct vb_path *p)
{
	vb_lock_assert_held(&p->qp->lock);
	p->peer = vb_peer_current(p->peer);
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
	if (!p->peer)
		return;
	qp->transport->last_word(qp);
	vb_path_detach(p);
	vb_path_unresolve(p);
}
