#include "hca/silence.h"

#include "hca/hca.h"
#include "iba/reach.h"

static bool is_up(const struct vb_peer *peer)
{
	return atomic_load_explicit(&peer->state, memory_order_acquire) == VB_PEER_UP;
}

static void explain_no_contact(struct vb_qp *qp, struct vb_peer *peer)
{
	uint32_t asked, unable = vb_peer_unable(peer);
	struct vb_trouble t = vb_peer_trouble(peer, &asked);

	if (t.reach == VB_REACH_UNKNOWN && unable)
		t = (struct vb_trouble){VB_REACH_UNABLE, unable, 0};
	else if (atomic_load_explicit(&peer->state, memory_order_acquire) == VB_PEER_DOWN)
		t = (struct vb_trouble){VB_REACH_LEFT, peer->pid, 0};
	else if (asked && t.reach == VB_REACH_UNKNOWN)
		t = (struct vb_trouble){VB_REACH_SILENT, asked, 0};
	qp->reach = t.reach == VB_REACH_UNKNOWN ? VB_REACH_NOBODY : (uint8_t)t.reach;
	qp->reach_a = t.a;
	qp->reach_b = t.b;
}

/* Its process is there. */
static void explain_qp(struct vb_qp *qp, const struct vb_peer *peer)
{
	const struct vb_shown_qp *q = vb_peer_shown(peer, qp->dest_qpn);
	uint32_t state = vb_peer_qp_state(peer, qp->dest_qpn);
	uint32_t received = vb_peer_qp_received(peer, qp->dest_qpn), expected = received & VB_PSN_MASK;

	qp->reach = VB_REACH_NO_QP;
	if (!state)
		return;
	qp->reach_a = state - 1;
	qp->reach = VB_REACH_STATE;
	if (state - 1 < IBV_QPS_RTR || state - 1 >= IBV_QPS_ERR)
		return;
	qp->reach = VB_REACH_OTHER;
	qp->reach_a = atomic_load_explicit(&q->dest_qpn, memory_order_relaxed);
	if (qp->reach_a != qp->qpn)
		return;
	qp->reach = VB_REACH_UNKNOWN;
	if (received &&
	    (vb_psn_diff(expected, qp->req.psn_una) < 0 || vb_psn_diff(expected, qp->req.psn_max) > 0 ||
	     vb_peer_qp_dropped(peer, qp->dest_qpn, qp->req.psn_una))) {
		qp->reach = VB_REACH_PSN;
		qp->reach_a = expected;
		qp->reach_b = qp->req.psn_una;
	}
}

void vb_silence_explain(struct vb_qp *qp)
{
	struct vb_peer *peer = qp->path.peer;

	vb_lock_assert_held(&qp->lock);
	if (!peer)
		qp->reach = vb_addresses_have(&vb_qp_hca(qp)->addresses, qp->attr.ah_attr.grh.dgid.raw)
				? VB_REACH_NOBODY
				: VB_REACH_ADDRESS;
	else if (is_up(peer))
		explain_qp(qp, peer);
	else
		explain_no_contact(qp, peer);
}

bool vb_silence_is_only_slow(const struct vb_qp *qp, uint64_t now)
{
	struct vb_peer *peer = qp->path.peer;
	uint32_t state, received; /* state: 1 + enum ibv_qp_state, 0: no such QP */

	vb_lock_assert_held(&qp->lock);
	if (!peer)
		return false;
	if (!is_up(peer))
		return vb_peer_pending(peer, now);
	if (!qp->path.rxq)
		return true; /* it came up just now: peer_up() is on its way to this QP */
	if (!qp->path.out)
		return false;
	state = vb_peer_qp_state(peer, qp->dest_qpn);
	received = vb_peer_qp_received(peer, qp->dest_qpn);
	return state > IBV_QPS_RTR && state <= IBV_QPS_SQE + 1 && /* else it answers nothing any more */
	       received && vb_psn_diff(received & VB_PSN_MASK, qp->req.psn_una) > 0 &&
	       vb_psn_diff(received & VB_PSN_MASK, qp->req.psn_max) <= 0 &&
	       !vb_peer_qp_dropped(peer, qp->dest_qpn, qp->req.psn_una);
}
