#include "hca/peers.h"

#include "hca/capture.h"
#include "hca/datagrams.h"
#include "hca/direct.h"
#include "hca/far.h"
#include "hca/forward.h"
#include "hca/gsi.h"
#include "hca/hosts.h"
#include "hca/left.h"
#include "hca/lost.h"
#include "hca/owed.h"
#include "hca/path.h"
#include "hca/port.h"
#include "hca/send.h"
#include "hca/warm.h"
#include "iba/mad.h"
#include "iba/profile.h"
#include "obj/dests.h"
#include "transport/transport.h"

static bool is_up(const struct vb_peer *peer)
{
	return atomic_load_explicit(&peer->state, memory_order_acquire) == VB_PEER_UP;
}

/* ---- a process as a far end (hca/far.h) ---- */

/* Whoever had the number may have died just now, and who has it since is meant: the end of the one is not to
 * be taken for the end of the other.  It is looked again, as for an address that is not known yet. */
static struct vb_far *at(struct vb_hca *h, uint32_t number)
{
	struct vb_peer *peer = number < VB_ADAPTERS ? vb_peer_get(h->adapter, number) : NULL;

	if (peer && vb_peer_is_over(peer)) {
		vb_peer_put(peer);
		peer = NULL;
	}
	return peer ? &peer->far : NULL;
}

/* An address of this host leads to the process that the QPN's upper bits name.  Whatever GID that one shows,
 * it is there: all addresses of a host are those of all its processes. */
static struct vb_far *find(struct vb_hca *h, const struct vb_qp *qp)
{
	return !vb_hosts_only(h) && vb_port_leads_here(h, &qp->attr.ah_attr)
		   ? at(h, qp->dest_qpn >> VB_QPN_INDEX_BITS)
		   : NULL;
}

static uint32_t leads(struct vb_hca *h, const struct ibv_ah_attr *av, struct vb_far **held)
{
	(void)held; /* processes have their numbers by themselves */
	return !vb_hosts_only(h) && vb_port_leads_here(h, av) ? VB_DEST_BY_QPN : VB_DEST_NOWHERE;
}

static struct vb_far *named(struct vb_hca *h, const struct vb_whom *whom, uint32_t *number)
{
	struct vb_peer *peer = vb_peer_get(h->adapter, whom->number);

	*number = whom->number;
	return peer ? &peer->far : NULL;
}

static bool there(struct vb_hca *h, const struct vb_whom *whom)
{
	const struct vb_peer *peer = vb_hca_peer(h, whom->index);

	return !whom->incarnation || (peer && is_up(peer) && peer->incarnation == whom->incarnation);
}

static void put(struct vb_far *far)
{
	vb_peer_put(vb_peer_of(far));
}

static enum vb_far_state state_of(const struct vb_far *far)
{
	static const uint8_t states[] = {[VB_PEER_IDLE] = VB_FAR_IDLE,
					 [VB_PEER_CONTACTING] = VB_FAR_SEEKING,
					 [VB_PEER_UP] = VB_FAR_UP,
					 [VB_PEER_DOWN] = VB_FAR_GONE};

	return states[atomic_load_explicit(&vb_peer_of(far)->state, memory_order_acquire)];
}

static void contact(struct vb_far *far)
{
	vb_peer_contact(vb_peer_of(far));
}

static struct vb_far *current(struct vb_far *far)
{
	return &vb_peer_current(vb_peer_of(far))->far;
}

/* Our state is shown, and then we look whether the other end waits for it; vb_direct_await() does it the
 * other way round. */
static void stir(const struct vb_path *p)
{
	struct vb_peer *peer = vb_peer_of(p->far);
	const struct vb_shown_qp *q;

	atomic_thread_fence(memory_order_seq_cst);
	q = vb_peer_shown(peer, p->qp->dest_qpn);
	if (!q || atomic_load_explicit(&q->waits, memory_order_relaxed))
		vb_peer_ring(peer);
}

static const uint8_t (*gids(const struct vb_far *far))[16]
{
	return vb_peer_gids(vb_peer_of(far));
}

static bool own(const struct vb_far *far)
{
	struct vb_peer_tables at;

	vb_peer_tables(vb_peer_of(far), &at);
	return at.same;
}

static struct vb_whom whom(const struct vb_far *far)
{
	const struct vb_peer *peer = vb_peer_of(far);

	return (struct vb_whom){.kind = VB_WHOM_PEER,
				.number = peer->number,
				.index = peer->index,
				.pid = peer->pid,
				.incarnation = peer->incarnation};
}

static bool hears(const struct vb_far *far)
{
	const struct vb_peer *peer = vb_peer_of(far);

	return !is_up(peer) || vb_peer_shows_gsi(peer);
}

/* A process that polls is left alone (docs/architecture.md), but whom a MAD is for may wait in poll(2) for an
 * event: its engine is to look now. */
static void rouse(struct vb_far *far)
{
	struct vb_peer *peer = vb_peer_of(far);
	struct vb_peer_tables at;

	if (!peer->index || !is_up(peer))
		return;
	vb_peer_tables(peer, &at);
	if (atomic_load_explicit(at.awake, memory_order_relaxed) == VB_POLLING)
		vb_peer_ring(peer);
}

static bool in_group(const struct vb_far *far, const uint64_t mgid[2])
{
	return vb_peer_shows_group(vb_peer_of(far), mgid);
}

/* Both ends of a connection choose the same one, and queue pairs that were made one after the other different
 * ones, but where the order among several queue pairs matters.  A datagram queue pair keeps to one lane, so
 * that what it sends to another one stays in order. */
static const struct vb_lane *lane_of(const struct vb_peer *peer, const struct vb_qp *qp)
{
	uint32_t mine = qp->qpn, far = qp->dest_qpn;

	if (qp->transport->answers_apart)
		return &peer->lanes[0];
	return &peer->lanes[(qp->dests || mine < far ? mine : far) % peer->nlanes];
}

static struct vb_out *way(struct vb_far *far, const struct vb_qp *qp, struct vb_rxq **rxq)
{
	const struct vb_lane *lane = lane_of(vb_peer_of(far), qp);

	*rxq = lane->rxq;
	return lane->out;
}

static bool attach(struct vb_path *p)
{
	struct vb_peer *peer = vb_peer_of(p->far);
	const struct vb_qp *qp = p->qp;

	vb_lock_assert_held(&qp->lock);
	if (!is_up(peer) || (qp->qpn == VB_GSI_QPN && !vb_peer_shows_gsi(peer)))
		return false;
	p->rxq = lane_of(peer, qp)->rxq;
	p->source = (struct vb_origin){.high = VB_SOURCE_PEER, .low = peer->incarnation};
	p->pid = peer->pid;
	if (!qp->dests)
		vb_direct_attach(p);
	return true;
}

/* A GID like 127.0.0.1 may have been copied from another network namespace, where another process has that
 * number: what is sent goes to nobody but to a queue pair that names this one as its destination. */
static bool connected(const struct vb_path *p)
{
	const struct vb_shown_qp *q = vb_peer_shown(vb_peer_of(p->far), p->qp->dest_qpn);

	/* The acquire pairs with vb_direct_show(), which stores the destination first. */
	return q && atomic_load_explicit(&q->state, memory_order_acquire) > IBV_QPS_RTR &&
	       atomic_load_explicit(&q->dest_qpn, memory_order_relaxed) == p->qp->qpn;
}

static uint32_t received(const struct vb_path *p)
{
	return vb_peer_qp_received(vb_peer_of(p->far), p->qp->dest_qpn);
}

/* ---- why it is silent ---- */

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

static struct vb_reach_facts silence(struct vb_far *far, uint32_t pid, bool looks)
{
	return looks ? vb_silence_look(vb_peer_of(far), pid) : vb_silence_no_contact(vb_peer_of(far), pid);
}

static void explain(struct vb_qp *qp)
{
	struct vb_peer *peer = vb_peer_of(qp->path.far);

	qp->silence = is_up(peer) ? why_no_answer(qp, peer) : vb_silence_look(peer, qp->path.pid);
}

static bool is_only_slow(const struct vb_qp *qp, uint64_t now)
{
	struct vb_peer *peer = vb_peer_of(qp->path.far);
	uint32_t state, received, known; /* state: 1 + enum ibv_qp_state, 0: no such QP */

	vb_lock_assert_held(&qp->lock);
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

const struct vb_far_kind vb_far_peer = {
    .name = "peer",
    .find = find,
    .leads = leads,
    .at = at,
    .named = named,
    .there = there,
    .put = put,
    .state = state_of,
    .contact = contact,
    .current = current,
    .stir = stir,
    .silence = silence,
    .gids = gids,
    .own = own,
    .whom = whom,
    .hears = hears,
    .rouse = rouse,
    .in_group = in_group,
    .attach = attach,
    .way = way,
    .connected = connected,
    .received = received,
    .explain = explain,
    .slow = is_only_slow,
};

/* ---- peers that come and go ---- */

void vb_hca_open_rxq(struct vb_hca *h, struct vb_rxq *r, uint32_t index, struct vb_far *far)
{
	vb_lock_take(&r->rx);
	r->adapter = h->adapter;
	r->index = index;
	atomic_store_explicit(&r->owes, false, memory_order_relaxed);
	atomic_store_explicit(&r->placing, false, memory_order_relaxed);
	atomic_store_explicit(&r->waits, false, memory_order_relaxed);
	r->quiet = r->unflushed = r->budget = r->malformed = 0;
	r->acks = NULL;
	r->far = far;
	r->kept = vb_capture_from(far);
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
				&peer->far);
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
	return vb_hca_peer(vb_hca(a), 0)->lanes[0].rxq;
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

/* Tells QP1 that the peer is gone; why there is no contact, if there never was. */
static void tell_gsi(struct vb_peer *peer, enum vb_peer_end how)
{
	const struct vb_whom who = whom(&peer->far);
	struct vb_hca *h = vb_hca(peer->adapter);
	struct vb_reach_facts silence;

	if (!vb_gsi_is_open(h))
		return;
	if (peer->incarnation && !vb_peer_unable(peer)) {
		vb_gsi_gone(h, &who, how, NULL);
		return;
	}
	silence = vb_silence_no_contact(peer, 0);
	vb_gsi_gone(h, &who, how, &silence);
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
			vb_datagrams_far(qp, &peer->far);
		} else if (qp->path.far == &peer->far && !qp->forgotten) {
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
	struct vb_whom who;
	struct vb_qp *qp;

	if (state != VB_PEER_UP) {
		move_paths(peer);
		/* Contact failed: what QP1 said to it is lost, unless that has just gone another way. */
		if (state == VB_PEER_IDLE && !vb_peer_is_alias(peer))
			tell_gsi(peer, VB_END_UNCLEAR);
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
			vb_datagrams_far(qp, &peer->far);
		} else if (p->far == &peer->far && !qp->forgotten) {
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
	if (!vb_peer_shows_gsi(peer)) {
		who = whom(&peer->far);
		vb_gsi_mute(vb_hca(peer->adapter), &who);
	}
}

/* Whether the queue pair at the other end was, or could have been, connected to this one: not one that is
 * gone, or another one's. */
static bool had_far_end(const struct vb_path *p)
{
	uint32_t state =
	    p->rxq ? vb_peer_qp_state(vb_peer_of(p->far), p->qp->dest_qpn) : 0; /* 1 + enum ibv_qp_state */

	return state && (state <= IBV_QPS_RTR || vb_path_is_connected(p));
}

static void lose_peer(struct vb_peer *peer, struct vb_qp *qp, enum vb_peer_end how)
{
	const struct vb_reach_facts left = {VB_REACH_LEFT, .process = {peer->pid}};
	struct vb_facts f = vb_end_facts(how, peer->pid);
	struct vb_path *p = &qp->path;

	vb_lock_assert_held(&peer->lanes[0].rxq->rx);
	vb_lock_take(&qp->lock);
	vb_forward_peer_down(qp, peer);
	if (qp->dests && !qp->forgotten) {
		vb_datagrams_lose(qp, &peer->far, &left);
	} else if (p->far == &peer->far && !qp->forgotten) {
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
	tell_gsi(peer, how);
	vb_left_forget(peer);
	vb_direct_peer_down(peer);
}

void vb_hca_told(struct vb_peer *peer, uint8_t subject, const void *msg, size_t len, int fd)
{
	struct vb_hca *h = vb_hca(peer->adapter);

	if (subject < VB_SUBJECTS && h->hear[subject])
		h->hear[subject](peer, msg, len, fd);
}
