/* Progress: takes packets from the wires to the protocol, and sees that what QPs owe gets out.
 *
 * Locks, in the order in which they are taken: peer->rx (trylock but for destruction), hca->timer_lock
 * (trylock but to add), qp->lock, then SRQ, CQ and channel, then link->owed_lock or the wire's own.
 * hca->timer_lock is also taken under qp->lock to add a QP; the scan that holds it only tries qp->lock, so
 * that the two do not wait for one another.
 *
 * ACKs are lazy: an ACK alone waits until a poll finds nothing to take in, until the program posts on that
 * QP, or until ACK_BATCH packets have come.  Everything else that a packet makes a QP owe goes out in the
 * same pass.  The engine's look, once a millisecond, is the longest that an ACK waits for a program that
 * stopped calling. */
#include <errno.h>
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "iba/profile.h"
#include "iba/reach.h"
#include "mem/peer_mem.h"
#include "mem/keys.h"
#include "obj/context.h"
#include "transport/rc.h"
#include "hca/direct.h"
#include "hca/lost.h"
#include "hca/progress.h"
#include "wire/shm.h"

enum {
	PASS_PACKETS = 64,     /* one link's packets before the next link's turn */
	HELD_BYTES = 64 << 10, /* payload taken in under one QP lock */
	POST_BYTES = 64 << 10, /* bytes that a post places directly by itself */
	ACK_BATCH = 32,
	QUIET_AFTER = 4096, /* polls without a packet after which a ring is looked at less often */
	QUIET_EVERY = 16,
	FLUSH_BLOCKED = 64, /* QPs without room after which a flush ends */
	BUSY_NS = 50000,    /* until a QP whose lock was busy is looked at again */
	SPINS = 16,	    /* polls in a row that make a sleeper a poller */
	SPINS_ARMED = 64,   /* the same while a CQ is armed */
};

static struct vb_adapter *adapter_of(const struct vb_qp *qp)
{
	return qp->ctx->adapter;
}

/* qp->lock held. */
static void owe(struct vb_qp *qp)
{
	struct vb_peer *peer = qp->link;

	if (!peer || qp->forgotten)
		return;
	vb_lock_take(&peer->owed_lock);
	if (!vb_list_linked(&qp->owes))
		vb_list_append(&peer->owed, &qp->owes);
	atomic_store_explicit(&peer->owes, true, memory_order_relaxed);
	vb_lock_give(&peer->owed_lock);
}

static void unowe(struct vb_qp *qp)
{
	struct vb_peer *peer = qp->link;

	if (!peer)
		return;
	vb_lock_take(&peer->owed_lock);
	vb_list_unlink(&qp->owes); /* the hint stays: the next flush knows better */
	vb_lock_give(&peer->owed_lock);
}

static struct vb_qp *pop_owing(struct vb_peer *peer)
{
	struct vb_list *n;

	vb_lock_take(&peer->owed_lock);
	n = vb_list_pop(&peer->owed);
	atomic_store_explicit(&peer->owes, !vb_list_empty(&peer->owed), memory_order_relaxed);
	vb_lock_give(&peer->owed_lock);
	return n ? vb_list_entry(n, struct vb_qp, owes) : NULL;
}

/* Whose turn it is next; only to compare with. */
static const struct vb_qp *next_owing(struct vb_peer *peer)
{
	const struct vb_qp *qp = NULL;

	vb_lock_take(&peer->owed_lock);
	if (!vb_list_empty(&peer->owed))
		qp = vb_list_entry(peer->owed.next, struct vb_qp, owes);
	vb_lock_give(&peer->owed_lock);
	return qp;
}

/* qp->lock held: has its timer looked at from now on. */
static void keep_time(struct vb_qp *qp)
{
	struct vb_adapter *a = adapter_of(qp);
	struct vb_hca *h = vb_hca(a);

	if (qp->req.waiting_rnr) {
		atomic_store_explicit(&h->rnr_waits, 1, memory_order_relaxed);
		atomic_store_explicit(&h->next_look, 0, memory_order_relaxed);
		/* The engine may count on a later deadline, and a waiter looks at no timers. */
		vb_adapter_nudge(a);
	}
	if (qp->req.timing || qp->forgotten)
		return;
	qp->req.timing = true;
	vb_lock_take(&h->timer_lock);
	vb_list_append(&h->timed, &qp->on_timer);
	vb_lock_give(&h->timer_lock);
	vb_adapter_nudge(a);
}

/* Whether the link leads to where the QP's path leads. */
static bool leads_there(const struct vb_qp *qp, const struct vb_peer *peer)
{
	return vb_peer_is(peer, qp->dest_qpn >> VB_QPN_INDEX_BITS, qp->attr.ah_attr.grh.dgid.raw);
}

/* qp->lock held: gives the QP its way out if the link is up and really leads to the address in its path. */
static void attach(struct vb_qp *qp)
{
	struct vb_peer *peer = qp->link;
	struct vb_shm *s;

	if (!peer || atomic_load_explicit(&peer->state, memory_order_acquire) != VB_PEER_UP)
		return;
	if (!leads_there(qp, peer))
		return;
	s = peer->wire;
	if (!qp->out)
		vb_rc_path(qp, &s->out);
	qp->peer_pid = peer->pid;
	vb_direct_attach(qp);
	vb_direct_show(qp);
}

/* qp->lock held. */
static void detach(struct vb_qp *qp)
{
	vb_rc_path(qp, NULL);
	qp->mem = NULL;
	qp->peer_qp = NULL;
	vb_direct_show(qp);
}

/* qp->lock held; true: something waits for room in the wire, or for another call.  place: bytes that may be
 * placed directly. */
static bool output(struct vb_qp *qp, uint32_t place)
{
	bool blocked;

	if (vb_unlikely(!qp->out))
		attach(qp);
	qp->req.budget = place;
	blocked = vb_rc_output(qp);
	if (vb_unlikely(qp->mem && atomic_load_explicit(&qp->mem->asks, memory_order_relaxed)))
		vb_direct_ask(qp->link);
	if (vb_unlikely(vb_rc_timed(qp) && !qp->req.timing))
		keep_time(qp);
	return blocked;
}

/* Whether the engine looks after what a poller leaves owed. */
static bool watched(struct vb_adapter *a)
{
	return atomic_load_explicit(vb_adapter_presence(a)->awake, memory_order_relaxed) == VB_POLLING;
}

/* qp->lock held.  The peer does not say when there is room, and whoever makes progress now may be a waiter
 * that blocks next: the engine tries again. */
static void owe_blocked(struct vb_qp *qp)
{
	owe(qp);
	/* What is to be placed directly is a poller's, while there is one: an engine that loses its CPU to
	 * the poller in the middle of a copy would hold it up.  When nobody polls any more the engine drains.
	 */
	if (qp->req.placing && !qp->req.blocked && watched(adapter_of(qp))) {
		atomic_store_explicit(&((struct vb_peer *)qp->link)->placing, true, memory_order_relaxed);
		return;
	}
	vb_adapter_resume(adapter_of(qp));
}

void vb_progress_send(struct vb_qp *qp)
{
	/* without contact: resumed when the link comes up */
	if (vb_unlikely(output(qp, POST_BYTES) || !qp->out)) {
		owe_blocked(qp);
		if (!qp->out && qp->link)
			vb_peer_contact(qp->link);
	}
}

/* Lets every QP that owes something send, until the ring is full.  peer->rx held. */
static void flush_owed(struct vb_peer *peer)
{
	struct vb_qp *qp = peer->acks, *first = NULL;
	unsigned blocked = 0;
	bool placing = false;

	peer->unflushed = 0;
	peer->acks = NULL;
	for (qp = qp ? qp : pop_owing(peer); qp; qp = pop_owing(peer)) {
		vb_lock_take(&qp->lock);
		if (!qp->forgotten && qp->link == peer && output(qp, VB_MEM_CHUNK)) {
			owe_blocked(qp); /* to the end, until the next room */
			placing |= qp->req.placing;
			blocked++;
			first = first ? first : qp;
		}
		vb_lock_give(&qp->lock);
		/* Requests may be stopped where an ACK finds room: every QP has its turn, once. */
		if (blocked > FLUSH_BLOCKED || (first && next_owing(peer) == first))
			break;
	}
	atomic_store_explicit(&peer->placing, placing, memory_order_relaxed);
}

/* The QP that packets are being delivered to, its lock held over a few of them. */
struct delivery {
	struct vb_peer *link;
	struct vb_qp *qp; /* locked, or NULL */
	uint32_t qpn;
	uint32_t bytes;
	bool urgent; /* something must go out in this pass */
};

static void let_go(struct delivery *d)
{
	enum vb_rc_owes owes;

	if (!d->qp)
		return;
	owes = vb_rc_owes(d->qp);
	if (owes == VB_OWES_ACK && (!d->link->acks || d->link->acks == d->qp)) {
		d->link->acks = d->qp; /* the common case is spared the list */
		atomic_store_explicit(&d->link->owes, true, memory_order_relaxed);
	} else if (owes != VB_OWES_NOTHING) {
		owe(d->qp);
	}
	d->urgent |= owes == VB_OWES_MORE;
	atomic_store_explicit(&d->qp->shown->received, VB_SHOWN_RECEIVED | d->qp->resp.epsn,
			      memory_order_release);  /* pairs with vb_peer_qp_received() */
	if (vb_unlikely(d->qp->state == IBV_QPS_RTR)) /* from the first packet on it permits more */
		vb_direct_show(d->qp);
	if (vb_unlikely(vb_rc_timed(d->qp) && (!d->qp->req.timing || d->qp->req.waiting_rnr)))
		keep_time(d->qp);
	vb_lock_give(&d->qp->lock);
	d->qp = NULL;
	d->bytes = 0;
}

static void deliver(struct delivery *d, const struct vb_shm_pkt *sp)
{
	struct vb_adapter *a = d->link->adapter;
	const char *wrong;
	struct vb_pkt p;

	wrong = vb_pkt_decode(&p, sp->hdr, sp->hdr_len, sp->payload_len);
	if (vb_unlikely(wrong != NULL)) {
		vb_log(VB_LOG_WARN, "packet from process %u dropped: %s", d->link->pid, wrong);
		return;
	}
	p.payload = sp->payload;
	p.placed = sp->placed;
	p.path_mtu = sp->path_mtu;
	if (d->qp && (d->qpn != p.qpn || d->bytes > HELD_BYTES))
		let_go(d);
	if (!d->qp) {
		struct vb_qp *qp = vb_qpn_find(a, p.qpn);

		if (!qp)
			return; /* as on a wire: packets to nobody vanish */
		vb_lock_take(&qp->lock);
		if (qp->forgotten || qp->link != d->link) { /* not from the QP's peer */
			vb_lock_give(&qp->lock);
			return;
		}
		if (vb_unlikely(!qp->out))
			attach(qp);
		if (vb_unlikely(!qp->out)) { /* not from the address in its path */
			vb_lock_give(&qp->lock);
			return;
		}
		d->qp = qp;
		d->qpn = p.qpn;
	}
	d->bytes += p.payload_len;
	if (sp->ack & VB_OUT_ACK)
		vb_rc_input_ack(d->qp, sp->ack & VB_PSN_MASK);
	vb_rc_input(d->qp, &p);
}

/* peer->rx held. Returns how many packets came. */
static unsigned drain(struct vb_peer *peer, struct vb_shm *s)
{
	struct delivery d = {.link = peer};
	unsigned budget = peer->budget ? peer->budget : 1, n = 0;
	struct vb_shm_pkt sp;
	int r = 0;

	while (n < budget && (r = vb_shm_peek(s, &sp)) > 0) {
		deliver(&d, &sp);
		VB_FAULT_POINT("packet executed, not yet consumed; the QP and the ring are locked");
		vb_shm_next(s);
		n++;
	}
	let_go(&d);
	/* Where packets come one at a time, a look for a second one would only stall on a line that the
	 * sender has just made its own. */
	peer->budget = n < budget ? 1 : 2 * n < PASS_PACKETS ? 2 * n : PASS_PACKETS;
	if (vb_unlikely(r < 0))
		vb_peer_insane(peer);
	peer->unflushed += n;
	if (atomic_load_explicit(&peer->owes, memory_order_relaxed) &&
	    (!n || d.urgent || peer->unflushed >= ACK_BATCH || !watched(peer->adapter)))
		flush_owed(peer);
	return n;
}

static unsigned look(struct vb_peer *peer, bool all)
{
	struct vb_shm *s = peer->wire;
	unsigned n, total = 0;

	if (!vb_shm_ready(s) && !atomic_load_explicit(&peer->owes, memory_order_relaxed)) {
		atomic_store_explicit(&peer->quiet,
				      atomic_load_explicit(&peer->quiet, memory_order_relaxed) + 1,
				      memory_order_relaxed);
		return 0;
	}
	if (!vb_lock_try(&peer->rx))
		return 0; /* somebody else is at it */
	do {
		n = drain(peer, s);
		total += n;
	} while (all && n);
	if (total)
		atomic_store_explicit(&peer->quiet, 0, memory_order_relaxed);
	vb_lock_give(&peer->rx);
	return total;
}

static unsigned progress(struct vb_adapter *a, bool all)
{
	struct vb_hca *h = vb_hca(a);
	uint32_t links = vb_peer_count(a);
	uint32_t turn = 0;
	unsigned n = 0;

	if (links > 1) {
		turn = atomic_load_explicit(&h->turn, memory_order_relaxed) + 1;
		atomic_store_explicit(&h->turn, turn, memory_order_relaxed);
	}
	for (uint32_t i = 0; i < links; i++) {
		struct vb_peer *peer = vb_peer_at(a, i);

		if (!peer || atomic_load_explicit(&peer->state, memory_order_acquire) != VB_PEER_UP)
			continue;
		if (!all && links > QUIET_EVERY && (turn + i) % QUIET_EVERY &&
		    atomic_load_explicit(&peer->quiet, memory_order_relaxed) > QUIET_AFTER)
			continue;
		n += look(peer, all);
	}
	return n;
}

static uint8_t why_no_contact(struct vb_qp *qp, struct vb_peer *peer)
{
	uint32_t asked, unable = vb_peer_unable(peer);
	struct vb_trouble t = vb_peer_trouble(peer, &asked);

	if (t.reach == VB_REACH_UNKNOWN && unable)
		t = (struct vb_trouble){VB_REACH_UNABLE, unable, 0};
	else if (atomic_load_explicit(&peer->state, memory_order_acquire) == VB_PEER_DOWN)
		t = (struct vb_trouble){VB_REACH_LEFT, peer->pid, 0};
	else if (asked && t.reach == VB_REACH_UNKNOWN)
		t = (struct vb_trouble){VB_REACH_SILENT, asked, 0};
	qp->reach_a = t.a;
	qp->reach_b = t.b;
	return t.reach == VB_REACH_UNKNOWN ? VB_REACH_NOBODY : (uint8_t)t.reach;
}

/* qp->lock held: what can be seen of the other end, for the sentence on a request that is about to be given
 * up. */
static void look_for_peer(struct vb_qp *qp)
{
	struct vb_peer *peer = qp->link;
	uint32_t state, received, expected;

	qp->reach = peer ? why_no_contact(qp, peer) : VB_REACH_NOBODY;
	if (!peer || atomic_load_explicit(&peer->state, memory_order_acquire) != VB_PEER_UP)
		return;
	qp->reach = VB_REACH_ADDRESS;
	if (!qp->out)
		return;
	state = vb_peer_qp_state(peer, qp->dest_qpn);
	received = vb_peer_qp_received(peer, qp->dest_qpn);
	expected = received & VB_PSN_MASK;
	qp->reach = VB_REACH_NO_QP;
	if (!state)
		return;
	qp->reach_a = state - 1;
	qp->reach = VB_REACH_STATE;
	if (state - 1 < IBV_QPS_RTR || state - 1 >= IBV_QPS_ERR)
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

/* qp->lock held: nothing is lost on this host, so silence may only mean that somebody does not get to run.
 * Before there is contact there is no ring to leave packets in; and what the far end shows as received it is
 * going to answer. */
static bool is_only_slow(const struct vb_qp *qp, uint64_t now)
{
	struct vb_peer *peer = qp->link;
	uint32_t state, received; /* state: 1 + enum ibv_qp_state, 0: no such QP */

	if (!peer)
		return false;
	if (atomic_load_explicit(&peer->state, memory_order_acquire) != VB_PEER_UP)
		return vb_peer_pending(peer, now);
	if (!qp->out)
		return leads_there(qp, peer); /* it came up just now: peer_up() is on its way to this QP */
	state = vb_peer_qp_state(peer, qp->dest_qpn);
	received = vb_peer_qp_received(peer, qp->dest_qpn);
	return state > IBV_QPS_RTR && state <= IBV_QPS_SQE + 1 && /* else it answers nothing any more */
	       received && vb_psn_diff(received & VB_PSN_MASK, qp->req.psn_una) > 0 &&
	       vb_psn_diff(received & VB_PSN_MASK, qp->req.psn_max) <= 0 &&
	       !vb_peer_qp_dropped(peer, qp->dest_qpn, qp->req.psn_una);
}

/* qp->lock held: the last retry has run out. */
static void consider_end(struct vb_qp *qp, uint64_t now)
{
	if (!is_only_slow(qp, now)) {
		look_for_peer(qp);
		return;
	}
	qp->req.deadline = 0; /* what was sent stands; the wait begins anew */
	qp->req.retries = qp->attr.retry_cnt;
}

/* Scans the QPs whose timers may run.  What they then have to send goes out with the next pass over the
 * links. */
static uint64_t scan(struct vb_hca *h, uint64_t now)
{
	uint64_t next = VB_NEVER, t;
	uint32_t rnr = 0;

	if (!vb_lock_try(&h->timer_lock))
		return now + VB_MSEC;
	vb_list_each_safe (n, tmp, &h->timed) {
		struct vb_qp *qp = vb_list_entry(n, struct vb_qp, on_timer);

		if (!vb_lock_try(&qp->lock)) {
			next = now + BUSY_NS;
			rnr++;
			continue;
		}
		if (qp->req.deadline && now >= qp->req.deadline && !qp->req.retries)
			consider_end(qp, now);
		t = vb_rc_timer(qp, now);
		if (vb_rc_owes(qp) == VB_OWES_MORE || (!qp->out && qp->req.next != qp->req.head)) {
			owe(qp);
			if (!qp->out && qp->link)
				vb_peer_contact(qp->link);
		}
		rnr += qp->req.waiting_rnr;
		if (!vb_rc_timed(qp)) {
			vb_list_unlink(n);
			qp->req.timing = false;
		}
		vb_lock_give(&qp->lock);
		if (t < next)
			next = t;
	}
	atomic_store_explicit(&h->rnr_waits, rnr, memory_order_relaxed);
	atomic_store_explicit(&h->next_look, next, memory_order_relaxed);
	vb_lock_give(&h->timer_lock);
	return next;
}

/* Lets a link's QPs send; returns when to try again.  The peer does not say when there is room in its ring:
 * soon, if it has taken packets out since the last try. */
static uint64_t push_on(struct vb_peer *peer, uint64_t now)
{
	struct vb_out *o = &((struct vb_shm *)peer->wire)->out;
	uint64_t before = o->ops->mark(o);

	if (atomic_load_explicit(&peer->placing, memory_order_relaxed) && watched(peer->adapter))
		return now + VB_MSEC; /* see owe_blocked() */
	look(peer, false);
	if (!atomic_load_explicit(&peer->owes, memory_order_relaxed))
		return VB_NEVER;
	if (atomic_load_explicit(&peer->placing, memory_order_relaxed))
		return now;
	return now + (o->ops->mark(o) != before ? VB_MSEC / 10 : VB_MSEC);
}

static uint64_t timers(struct vb_adapter *a, uint64_t now)
{
	uint64_t next = scan(vb_hca(a), now), at = vb_relaxed_tick(&vb_hca(a)->relaxed, now);
	uint32_t links = vb_peer_count(a);

	if (at < next)
		next = at;
	for (uint32_t i = 0; i < links; i++) {
		struct vb_peer *peer = vb_peer_at(a, i);

		if (!peer || atomic_load_explicit(&peer->state, memory_order_acquire) != VB_PEER_UP ||
		    !atomic_load_explicit(&peer->owes, memory_order_relaxed))
			continue;
		at = push_on(peer, now);
		if (at < next)
			next = at;
	}
	return next;
}

/* All QPs of the adapter, in turn; *at begins at 0.  Under some link's rx, so that none goes meanwhile. */
static struct vb_qp *next_qp(struct vb_adapter *a, uint32_t *at)
{
	uint32_t number;

	while ((number = vb_adapter_number_at(a, *at / VB_QPN_INDICES))) {
		struct vb_qp *qp = vb_qpn_find(a, number << VB_QPN_INDEX_BITS | *at % VB_QPN_INDICES);

		++*at;
		if (qp)
			return qp;
	}
	return NULL;
}

/* l turned out to lead to a peer that has another link already: its QPs go over to that.  peer->rx held. */
static void move_qps(struct vb_peer *peer)
{
	struct vb_qp *qp;

	for (uint32_t at = 0; (qp = next_qp(peer->adapter, &at));) {
		vb_lock_take(&qp->lock);
		if (qp->link == peer && !qp->forgotten) {
			bool owes;

			vb_lock_take(&peer->owed_lock);
			owes = vb_list_linked(&qp->owes);
			vb_list_unlink(&qp->owes);
			vb_lock_give(&peer->owed_lock);
			qp->link = vb_peer_current(peer);
			attach(qp);
			if (owes)
				vb_progress_send(qp);
		}
		vb_lock_give(&qp->lock);
	}
}

static void peer_up(struct vb_peer *peer)
{
	struct vb_qp *qp;

	if (atomic_load_explicit(&peer->state, memory_order_acquire) != VB_PEER_UP) {
		vb_lock_take(&peer->rx);
		move_qps(peer);
		vb_lock_give(&peer->rx);
		return;
	}

	vb_direct_peer_up(peer);
	vb_lock_take(&peer->rx);
	for (uint32_t at = 0; (qp = next_qp(peer->adapter, &at));) {
		vb_lock_take(&qp->lock);
		if (qp->link == peer && !qp->forgotten && (!qp->out || !qp->mem))
			attach(
			    qp); /* what it permits is for the peer to see, who may have more to do than we */
		vb_lock_give(&qp->lock);
	}
	flush_owed(peer);
	vb_lock_give(&peer->rx);
}

/* peer->rx held. */
static void lose_peer(struct vb_peer *peer, struct vb_qp *qp, enum vb_peer_end how)
{
	struct vb_facts f = vb_end_facts(how, peer->pid);

	vb_lock_take(&qp->lock);
	if (qp->link == peer && !qp->forgotten) {
		uint32_t received = qp->out ? vb_peer_qp_received(peer, qp->dest_qpn) : 0;

		if (received & VB_SHOWN_RECEIVED) /* the last ACK may have died with the process */
			vb_rc_input_ack(qp, vb_psn_add(received, VB_PSN_MASK));
		f.qpn = qp->qpn;
		if (how != VB_END_GOODBYE && vb_profile()->death_events && qp->out &&
		    qp->state >= IBV_QPS_RTR && qp->state <= IBV_QPS_SQE &&
		    vb_peer_qp_state(peer, qp->dest_qpn))
			vb_rc_error(qp, &f);
		detach(qp);
		if (qp->state !=
		    IBV_QPS_ERR) /* what is left is lost, like packets to nobody: its timer runs */
			output(qp, 0);
	}
	vb_lock_give(&qp->lock);
}

static void peer_down(struct vb_peer *peer, enum vb_peer_end how)
{
	struct vb_qp *qp;

	vb_lock_take(&peer->rx);
	for (uint32_t at = 0; (qp = next_qp(peer->adapter, &at));)
		lose_peer(peer, qp, how);
	vb_lock_give(&peer->rx);
	vb_direct_peer_down(peer);
}

/* Both know their messages by the length. */
static void told(struct vb_peer *peer, const void *msg, size_t len, int fd)
{
	vb_direct_told(peer, msg, len, fd);
	vb_hca(peer->adapter)->told(peer, msg, len, fd);
}

const struct vb_adapter_ops vb_progress_ops = {
    .peer_free = vb_direct_peer_free,
    .told = told,
    .progress = progress,
    .timers = timers,
    .peer_up = peer_up,
    .peer_down = peer_down,
    .lost = vb_device_lost,
};

/* Polls in a row that found nothing, after which whoever is waited for may need this very CPU.  Rare enough
 * to cost nothing where it does not. */
enum { IDLE_POLLS = 2048 };
static __thread unsigned idle_polls;

void vb_progress_poll(struct vb_adapter *a)
{
	struct vb_presence *here = vb_adapter_presence(a);
	struct vb_hca *h = vb_hca(a);
	unsigned n;

	atomic_store_explicit(&here->polls, atomic_load_explicit(&here->polls, memory_order_relaxed) + 1,
			      memory_order_relaxed);
	if (vb_unlikely(atomic_load_explicit(here->awake, memory_order_relaxed) == VB_ASLEEP)) {
		/* a few polls after an event are no polling; and a program that arms a CQ is about to sleep
		 */
		uint32_t spins = atomic_load_explicit(&here->spins, memory_order_relaxed) + 1;

		atomic_store_explicit(&here->spins, spins, memory_order_relaxed);
		if (spins > (atomic_load_explicit(&here->armed, memory_order_relaxed) ? SPINS_ARMED : SPINS))
			vb_adapter_wake(a);
	}
	n = progress(a, false);
	if (n) {
		atomic_store_explicit(&here->taken,
				      atomic_load_explicit(&here->taken, memory_order_relaxed) + n,
				      memory_order_relaxed);
		idle_polls = 0;
	} else if (vb_unlikely(++idle_polls == IDLE_POLLS)) {
		idle_polls = 0;
		vb_adapter_yield(a);
	}
	if (vb_unlikely(atomic_load_explicit(&h->rnr_waits, memory_order_relaxed))) {
		uint64_t now = vb_now();

		if (now >= atomic_load_explicit(&h->next_look, memory_order_relaxed))
			timers(a, now);
	}
}

void vb_progress_connect(struct vb_qp *qp)
{
	if (!qp->link)
		qp->link = vb_peer_get(adapter_of(qp), qp->dest_qpn >> VB_QPN_INDEX_BITS);
	attach(qp);
}

void vb_progress_disconnect(struct vb_qp *qp)
{
	struct vb_peer *peer = qp->link;

	if (!peer)
		return;
	vb_rc_last_word(qp);
	unowe(qp);
	detach(qp);
	qp->link = NULL;
	vb_peer_put(peer);
}

/* Whatever link it was on when it owed. */
static void forget_acks(struct vb_peer *peer, const struct vb_qp *qp)
{
	if (!peer)
		return;
	vb_lock_take(&peer->rx);
	if (peer->acks == qp)
		peer->acks = NULL;
	vb_lock_give(&peer->rx);
}

void vb_progress_forget(struct vb_qp *qp)
{
	struct vb_adapter *a = adapter_of(qp);
	struct vb_hca *h = vb_hca(a);

	vb_lock_take(&qp->lock);
	qp->forgotten = true;
	vb_progress_disconnect(qp);
	vb_direct_show(qp); /* no more */
	vb_lock_give(&qp->lock);
	for (uint32_t i = 0; i < vb_peer_count(a); i++)
		forget_acks(vb_peer_at(a, i), qp);
	vb_lock_take(&h->timer_lock); /* waits for a scan that has it in hand */
	vb_list_unlink(&qp->on_timer);
	vb_lock_give(&h->timer_lock);
}
