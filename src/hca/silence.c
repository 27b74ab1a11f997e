#include "hca/silence.h"

#include <string.h>

#include "hca/hca.h"
#include "hca/port.h"
#include "host/devices.h"
#include "host/netif.h"

static bool is_up(const struct vb_peer *peer)
{
	return atomic_load_explicit(&peer->state, memory_order_acquire) == VB_PEER_UP;
}

struct vb_reach_facts vb_silence_no_contact(struct vb_peer *peer, uint32_t pid)
{
	uint32_t asked, unable = vb_peer_unable(peer);
	struct vb_reach_facts f = vb_peer_trouble(peer, &asked);

	if (f.reach == VB_REACH_UNKNOWN && unable)
		return (struct vb_reach_facts){VB_REACH_UNABLE, .process = {unable}};
	if (atomic_load_explicit(&peer->state, memory_order_acquire) == VB_PEER_DOWN)
		return (struct vb_reach_facts){VB_REACH_LEFT, .process = {peer->pid}};
	if (f.reach != VB_REACH_UNKNOWN && f.reach != VB_REACH_NOBODY)
		return f;
	if (asked)
		return (struct vb_reach_facts){VB_REACH_SILENT, .process = {asked}};
	return pid ? (struct vb_reach_facts){VB_REACH_LEFT, .process = {pid}}
		   : (struct vb_reach_facts){.reach = VB_REACH_NOBODY};
}

struct vb_reach_facts vb_silence_look(struct vb_peer *peer, uint32_t pid)
{
	uint32_t stopped;
	struct vb_reach_facts f = {.reach = VB_REACH_UNKNOWN};

	if (!is_up(peer))
		f = vb_silence_no_contact(peer, pid);
	if (f.reach != VB_REACH_UNKNOWN && f.reach != VB_REACH_SILENT)
		return f;
	stopped = vb_peer_stopped(peer);
	return stopped ? (struct vb_reach_facts){VB_REACH_STOPPED, .process = {stopped}} : f;
}

/* Which of both ends rdma_cm connected. */
static uint32_t ends_of(const struct vb_qp *qp, const struct vb_shown_qp *far)
{
	uint32_t ends = qp->by_cm ? VB_END_HERE : 0;

	if (far && atomic_load_explicit(&far->by_cm, memory_order_relaxed))
		ends |= VB_END_THERE;
	return ends;
}

/* Whether a queue pair of that type is no other end for qp; 0: it is not known. */
static bool is_foreign(const struct vb_qp *qp, uint32_t type)
{
	bool initiates = qp->ibv.qp_type == IBV_QPT_XRC_SEND;

	return type && type != (uint32_t)(initiates ? IBV_QPT_XRC_RECV : qp->ibv.qp_type);
}

/* The peer is UP: what it shows of the QP tells. */
static struct vb_reach_facts why_no_answer(const struct vb_qp *qp, const struct vb_peer *peer)
{
	const struct vb_shown_qp *q = vb_peer_shown(peer, qp->dest_qpn);
	uint32_t state = vb_peer_qp_state(peer, qp->dest_qpn), dest, type;
	uint32_t received = vb_peer_qp_received(peer, qp->dest_qpn), expected = received & VB_PSN_MASK;
	uint32_t ends = ends_of(qp, q);

	if (!state)
		return (struct vb_reach_facts){VB_REACH_NO_QP, .number = {.ends = ends}};
	type = atomic_load_explicit(&q->type, memory_order_relaxed);
	if (is_foreign(qp, type))
		return (struct vb_reach_facts){VB_REACH_TYPE, .types = {type, qp->ibv.qp_type}};
	if (state - 1 < IBV_QPS_RTR || state - 1 >= IBV_QPS_ERR)
		return (struct vb_reach_facts){VB_REACH_STATE, .state = {state - 1, ends}};
	dest = atomic_load_explicit(&q->dest_qpn, memory_order_relaxed);
	if (dest != qp->qpn)
		return (struct vb_reach_facts){VB_REACH_OTHER, .other = {dest, ends}};
	if (received &&
	    (vb_psn_diff(expected, qp->req.psn_una) < 0 || vb_psn_diff(expected, qp->req.psn_max) > 0 ||
	     vb_peer_qp_dropped(peer, qp->dest_qpn, qp->req.psn_una)))
		return (struct vb_reach_facts){VB_REACH_PSN, .psn = {expected, qp->req.psn_una, ends}};
	return (struct vb_reach_facts){.reach = VB_REACH_UNKNOWN};
}

/* Why there is no peer. */
static struct vb_reach_facts why_nowhere(struct vb_qp *qp)
{
	const struct ibv_ah_attr *av = &qp->attr.ah_attr;
	struct vb_hca *h = vb_qp_hca(qp);
	struct vb_reach_facts f;

	if (av->is_global && vb_gid_is_group(av->grh.dgid.raw))
		return (struct vb_reach_facts){.reach = VB_REACH_GROUP};
	if (vb_port_leads_here(h, av))
		return (struct vb_reach_facts){.reach = VB_REACH_NOBODY};
	if (vb_devices_infiniband())
		return (struct vb_reach_facts){VB_REACH_LID, .lid = {av->dlid}};
	f = (struct vb_reach_facts){VB_REACH_ADDRESS, .away = {vb_addresses_whose(&h->addresses, av)}};
	memcpy(f.away.gid, av->grh.dgid.raw, sizeof(f.away.gid));
	return f;
}

/* No queue pair has the number: the program may have exchanged it in network byte order, and not converted
 * it. */
static void look_reversed(struct vb_qp *qp)
{
	uint32_t meant = __builtin_bswap32(qp->dest_qpn), pid;

	if (meant > VB_QPN_MASK || meant == qp->dest_qpn)
		return;
	pid = vb_qpn_whose(vb_qp_adapter(qp), meant);
	if (pid)
		qp->silence =
		    (struct vb_reach_facts){VB_REACH_REVERSED, .reversed = {meant, pid, ends_of(qp, NULL)}};
}

void vb_silence_explain(struct vb_qp *qp)
{
	struct vb_peer *peer = qp->path.peer;

	vb_lock_assert_held(&qp->lock);
	if (qp->path.gone)
		return; /* vb_path_lose() */
	if (!qp->dest_qpn)
		qp->silence = (struct vb_reach_facts){VB_REACH_UNSET, .number = {.ends = ends_of(qp, NULL)}};
	else if (!peer)
		qp->silence = why_nowhere(qp);
	else
		qp->silence = is_up(peer) ? why_no_answer(qp, peer) : vb_silence_look(peer, qp->path.pid);
	if (qp->silence.reach == VB_REACH_NOBODY || qp->silence.reach == VB_REACH_NO_QP)
		look_reversed(qp);
}

bool vb_silence_is_only_slow(const struct vb_qp *qp, uint64_t now)
{
	struct vb_peer *peer = qp->path.peer;
	uint32_t state, received, known; /* state: 1 + enum ibv_qp_state, 0: no such QP */

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
	known = vb_peer_qp_known(peer, qp->dest_qpn);
	if (known)
		received = known;
	return state > IBV_QPS_RTR && state <= IBV_QPS_SQE + 1 && /* else it answers nothing any more */
	       received && vb_psn_diff(received & VB_PSN_MASK, qp->req.psn_una) > 0 &&
	       vb_psn_diff(received & VB_PSN_MASK, qp->req.psn_max) <= 0 &&
	       !vb_peer_qp_dropped(peer, qp->dest_qpn, qp->req.psn_una);
}
