#include "hca/peers.h"

#include "hca/capture.h"
#include "hca/datagrams.h"
#include "hca/direct.h"
#include "hca/forward.h"
#include "hca/gsi.h"
#include "hca/left.h"
#include "hca/lost.h"
#include "hca/owed.h"
#include "hca/path.h"
#include "hca/send.h"
#include "hca/warm.h"
#include "iba/profile.h"
#include "transport/transport.h"

void vb_hca_open_rxq(struct vb_hca *h, struct vb_rxq *r, uint32_t index, uint32_t kept)
{
	vb_lock_take(&r->rx);
	r->adapter = h->adapter;
	r->index = index;
	atomic_store_explicit(&r->owes, false, memory_order_relaxed);
	atomic_store_explicit(&r->placing, false, memory_order_relaxed);
	atomic_store_explicit(&r->waits, false, memory_order_relaxed);
	r->quiet = r->unflushed = r->budget = r->malformed = 0;
	r->acks = NULL;
	r->kept = kept;
	atomic_store_explicit(&h->rxqs[index], r, memory_order_release); /* pairs with vb_hca_rxq_at() */
	if (index >= vb_hca_rxq_count(h))
		atomic_store_explicit(&h->nrxqs, index + 1, memory_order_release); /* vb_hca_rxq_count() */
	atomic_store_explicit(&r->open, true, memory_order_release);		   /* pairs with is_open() */
	vb_hca_warm(r);
	vb_lock_give(&r->rx);
}

void vb_hca_open_lanes(struct vb_peer *peer)
{
	for (uint32_t i = 0; i < peer->nlanes; i++)
		vb_hca_open_rxq(vb_hca(peer->adapter), peer->lanes[i].rxq, peer->index * VB_LANES + i,
				vb_capture_from(peer));
}

/* All QPs of the adapter, in turn; *at begins at 0.  The caller holds r->rx of some queue, so that none goes
 * meanwhile (vb_hca_quiesce()). */
static struct vb_qp *next_qp(const struct vb_rxq *r, uint32_t *at)
{
	struct vb_adapter *a = r->adapter;
	uint32_t number;

	vb_lock_assert_held(&r->rx);
	while ((number = vb_adapter_number_at(a, *at / VB_QPN_INDICES))) {
		struct vb_qp *qp = vb_qpn_find(a, number << VB_QPN_INDEX_BITS | *at % VB_QPN_INDICES);

		++*at;
		if (qp)
			return qp;
	}
	return NULL;
}

static struct vb_rxq *own_rxq(struct vb_adapter *a)
{
	return vb_peer_at(a, 0)->lanes[0].rxq;
}

void vb_hca_by_cm(struct vb_adapter *a, uint32_t qpn, enum vb_by_cm how)
{
	struct vb_rxq *r = own_rxq(a); /* under which no QP goes */
	struct vb_qp *qp;

	vb_lock_take(&r->rx);
	qp = vb_qpn_find(a, qpn);
	if (qp) {
		vb_lock_take(&qp->lock);
		if (qp->by_cm < how)
			qp->by_cm = (uint8_t)how;
		if (qp->shown)
			atomic_store_explicit(&qp->shown->by_cm, 1, memory_order_relaxed);
		vb_hca_give(qp);
	}
	vb_lock_give(&r->rx);
}

/* All its receive queues, so that nothing of it is taken in meanwhile.  Only the thread that brings peers up
 * and down holds more than one lock of this kind, so that no two wait for one another. */
static void take_lanes(const struct vb_peer *peer)
{
	for (uint32_t i = 0; i < peer->nlanes; i++)
		vb_lock_take(&peer->lanes[i].rxq->rx);
}

static void give_lanes(const struct vb_peer *peer)
{
	for (uint32_t i = 0; i < peer->nlanes; i++)
		vb_lock_give(&peer->lanes[i].rxq->rx);
}

/* Contact failed for now, or the peer turned out to be one that is known by another number: then its paths go
 * over to that one. */
static void move_paths(struct vb_peer *peer)
{
	struct vb_rxq *r = own_rxq(peer->adapter); /* the peer has none */
	struct vb_qp *qp;

	vb_lock_take(&r->rx);
	for (uint32_t at = 0; (qp = next_qp(r, &at));) {
		vb_lock_take(&qp->lock);
		vb_forward_peer_up(qp, peer);
		if (qp->dests && !qp->forgotten) {
			vb_datagrams_peer(qp, peer);
		} else if (qp->path.peer == peer && !qp->forgotten) {
			vb_path_move(&qp->path);
			if ((qp->path.out || qp->path.nobody) && qp->req.next != qp->req.seen)
				vb_hca_send(qp);
		}
		vb_hca_give(qp);
	}
	vb_lock_give(&r->rx);
}

void vb_hca_peer_up(struct vb_peer *peer)
{
	int state = atomic_load_explicit(&peer->state, memory_order_acquire);
	struct vb_qp *qp;

	if (state != VB_PEER_UP) {
		move_paths(peer);
		/* Contact failed: what QP1 said to it is lost, unless that has just gone another way. */
		if (state == VB_PEER_IDLE && !vb_peer_is_alias(peer))
			vb_gsi_peer_down(vb_hca(peer->adapter), peer, VB_END_UNCLEAR);
		return;
	}
	vb_mcast_peers_changed(&vb_hca(peer->adapter)->mcast);
	vb_direct_peer_up(peer);
	vb_hca_open_lanes(peer);
	take_lanes(peer);
	for (uint32_t at = 0; (qp = next_qp(peer->lanes[0].rxq, &at));) {
		struct vb_path *p = &qp->path;

		vb_lock_take(&qp->lock);
		vb_forward_peer_up(qp, peer);
		if (qp->dests && !qp->forgotten) {
			vb_datagrams_peer(qp, peer);
		} else if (p->peer == peer && !qp->forgotten) {
			if (!p->rxq || !p->mem)
				vb_path_attach(p); /* what it permits is for the peer to see */
			if (qp->req.next != qp->req.seen || qp->transport->owes(qp) != VB_OWES_NOTHING)
				vb_owe(p);
		}
		vb_hca_give(qp);
	}
	for (uint32_t i = 0; i < peer->nlanes; i++)
		vb_hca_flush(peer->lanes[i].rxq);
	give_lanes(peer);
	vb_gsi_peer_up(vb_hca(peer->adapter), peer);
}

/* Whether the queue pair at the other end was, or could have been, connected to this one: not one that is
 * gone, or another one's. */
static bool had_far_end(const struct vb_path *p)
{
	uint32_t state = p->rxq ? vb_peer_qp_state(p->peer, p->qp->dest_qpn) : 0; /* 1 + enum ibv_qp_state */

	return state && (state <= IBV_QPS_RTR || vb_path_is_connected(p));
}

static void lose_peer(struct vb_peer *peer, struct vb_qp *qp, enum vb_peer_end how)
{
	struct vb_facts f = vb_end_facts(how, peer->pid);
	struct vb_path *p = &qp->path;

	vb_lock_assert_held(&peer->lanes[0].rxq->rx);
	vb_lock_take(&qp->lock);
	vb_forward_peer_down(qp, peer);
	if (qp->dests && !qp->forgotten) {
		vb_datagrams_lose(qp, peer);
	} else if (p->peer == peer && !qp->forgotten) {
		bool met = p->out != NULL;
		uint32_t received = met ? vb_peer_qp_received(peer, qp->dest_qpn) : 0;

		if (received & VB_SHOWN_RECEIVED) /* the last ACK may have died with the process */
			qp->transport->ack(qp, vb_psn_add(received, VB_PSN_MASK));
		f.qpn = qp->qpn;
		if (how != VB_END_GOODBYE && vb_profile()->death_events && qp->state >= IBV_QPS_RTR &&
		    qp->state <= IBV_QPS_SQE && had_far_end(p))
			qp->transport->error(qp, &f);
		vb_path_detach(p);
		if (met)
			vb_path_lose(p);
		else
			vb_path_unresolve(p);
		if (qp->state !=
		    IBV_QPS_ERR) /* what is left is lost, like packets to nobody: its timer runs */
			vb_hca_send_on(qp);
	}
	vb_hca_give(qp);
}

void vb_hca_peer_down(struct vb_peer *peer, enum vb_peer_end how)
{
	struct vb_qp *qp;
	bool hid = false;

	/* Who sends just now holds a queue pair's lock, which each is asked for below. */
	vb_mcast_peers_changed(&vb_hca(peer->adapter)->mcast);
	take_lanes(peer);
	for (uint32_t at = 0; (qp = next_qp(peer->lanes[0].rxq, &at));)
		lose_peer(peer, qp, how);
	for (uint32_t i = 0; i < peer->nlanes; i++) {
		struct vb_rxq *r = peer->lanes[i].rxq;

		r->acks = NULL;
		atomic_store_explicit(&r->open, false, memory_order_relaxed);
		hid |= vb_set_drop(&vb_hca(peer->adapter)->warm, r->index);
	}
	give_lanes(peer);
	if (hid) /* whoever looked meanwhile saw nothing of other queues */
		vb_adapter_nudge(peer->adapter);
	vb_deputies_end(peer);
	if (vb_hca(peer->adapter)->upper)
		vb_hca(peer->adapter)->upper->peer_down(peer, how);
	vb_gsi_peer_down(vb_hca(peer->adapter), peer, how);
	vb_left_forget(peer);
	vb_direct_peer_down(peer);
}

void vb_hca_told(struct vb_peer *peer, uint8_t subject, const void *msg, size_t len, int fd)
{
	struct vb_hca *h = vb_hca(peer->adapter);

	if (subject < VB_SUBJECTS && h->hear[subject])
		h->hear[subject](peer, msg, len, fd);
}
