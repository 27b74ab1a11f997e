/* ACKs are lazy: an ACK alone waits until a poll finds nothing to take in, until the program posts on that
 * QP, or until ACK_BATCH packets have come.  Everything else that a packet makes a QP owe goes out in the
 * same pass.  Where the program stops calling, the engine's look at its pollers is the longest that an ACK
 * waits; and nobody waits for it: a sender that polls in vain, or goes to sleep, takes what this process
 * shows as received for an ACK (hca/timed.c), and one that sleeps is sent it at once. */
#include "hca/receive.h"

#include <stdio.h>

#include "base/fault.h"
#include "base/log.h"
#include "hca/capture.h"
#include "hca/datagrams.h"
#include "hca/direct.h"
#include "hca/gsi.h"
#include "hca/hca.h"
#include "hca/owed.h"
#include "hca/path.h"
#include "hca/port.h"
#include "hca/send.h"
#include "hca/timed.h"
#include "hca/warm.h"
#include "iba/loan.h"
#include "iba/out.h"
#include "transport/transport.h"

enum {
	PASS_PACKETS = 64,     /* one queue's packets before the next one's turn */
	PASS_BYTES = 1 << 20,  /* the same in bytes: what is lent is copied while the queue is held */
	HELD_BYTES = 64 << 10, /* payload taken in under one QP lock */
	ACK_BATCH = 32,
	SAY_EVERY = 1000, /* malformed packets of a queue: one line of log each time */
};

/* The QP that packets are being delivered to, its lock held over a few of them. */
struct delivery {
	struct vb_rxq *rxq;
	struct vb_qp *qp; /* locked, or NULL */
	uint32_t qpn;
	uint32_t bytes;	     /* under this lock */
	uint32_t passed;     /* in this pass */
	bool urgent;	     /* something must go out in this pass */
	struct vb_loan loan; /* of the packet in hand */
};

/* Packets have been delivered to the QP: what it owes is noted, what it has received is shown, and its lock
 * is given.  true: something must go out in this pass. */
static inline __attribute__((always_inline)) bool give_qp(struct vb_rxq *r, struct vb_qp *qp)
{
	struct vb_path *p = &qp->path;
	enum vb_owes owes = qp->transport->owes(qp);

	if (owes == VB_OWES_ACK && p->rxq == r && (!r->acks || r->acks == p)) {
		r->acks = p; /* the common case is spared the list */
		atomic_store_explicit(&r->owes, true, memory_order_relaxed);
	} else if (owes != VB_OWES_NOTHING) {
		vb_owe(p);
	}
	atomic_store_explicit(&qp->shown->received, VB_SHOWN_RECEIVED | qp->resp.epsn,
			      memory_order_release); /* pairs with vb_peer_qp_received() */
	if (vb_unlikely(qp->state == IBV_QPS_RTR))   /* from the first packet on it permits more */
		vb_direct_show(qp);
	if (vb_unlikely(vb_qp_timed(qp) && (!qp->req.timing || qp->req.waiting_rnr)))
		vb_hca_keep_time(qp);
	vb_hca_give(qp);
	return owes == VB_OWES_MORE;
}

static __attribute__((noinline)) void let_go(struct delivery *d)
{
	d->urgent |= give_qp(d->rxq, d->qp);
	d->qp = NULL;
	d->bytes = 0;
}

/* From another host packets of a connection have to come to this end's address, too, as soft-RoCE demands. */
static __attribute__((cold, noinline)) bool is_to(const struct vb_path *p, const struct vb_source *source)
{
	struct vb_gid to;

	if (!source->dgid)
		return true;
	to = vb_gid_read(*source->dgid);
	return to.high == p->dgid.high && to.low == p->dgid.low;
}

/* The QP decides who may send to it, whatever queue the packet came through: the far end of its path.  It may
 * not know that yet.  peer: a process of this host has sent the packet, as the caller knows. */
static inline __attribute__((always_inline)) bool takes_from(struct vb_qp *qp, const struct vb_source *source,
							     bool peer)
{
	vb_lock_assert_held(&qp->lock);
	if (vb_unlikely(!qp->path.out)) {
		if (qp->dests)
			return !qp->forgotten; /* datagrams come from anywhere */
		if (!qp->forgotten)
			vb_path_attach(&qp->path);
	}
	/* Not the way out: the sender's queue pair may be gone by now, and what it sent before counts. */
	if (vb_likely(qp->path.rxq && vb_source_is(source, &qp->path.source) && !qp->forgotten))
		return peer || vb_likely(vb_source_is_peer(source)) || is_to(&qp->path, source);
	return qp->forwards && vb_forward_hears(qp->forwards, source);
}

/* The QP of that number, if it takes packets from there: its lock is held then. */
static inline __attribute__((always_inline)) struct vb_qp *take_qp(const struct vb_rxq *r, uint32_t qpn,
								   const struct vb_source *source, bool peer)
{
	struct vb_qp *qp = vb_qpn_find(r->adapter, qpn);

	if (vb_unlikely(!qp))
		return NULL; /* as on a wire: packets to nobody vanish */
	vb_lock_take(&qp->lock);
	if (vb_likely(takes_from(qp, source, peer)))
		return qp;
	vb_hca_give(qp);
	return NULL;
}

/* Another sender than that of the packet before. */
static __attribute__((noinline)) bool takes_other(struct vb_qp *qp, const struct vb_source *source)
{
	return takes_from(qp, source, false);
}

/* Has that QP's lock from here on; false: the packet goes to nobody. */
static inline bool hold(struct delivery *d, uint32_t qpn, const struct vb_source *source)
{
	if (d->qp && (d->qpn != qpn || d->bytes > HELD_BYTES))
		let_go(d);
	if (d->qp)
		return vb_likely(vb_source_is_peer(source) && vb_source_is(source, &d->qp->path.source)) ||
		       takes_other(d->qp, source);
	d->qp = take_qp(d->rxq, qpn, source, false);
	d->qpn = qpn;
	return d->qp != NULL;
}

/* A malformed packet names no queue pair, and its sender may send any number of them. */
static __attribute__((cold, noinline)) void say_dropped(struct vb_rxq *r, const struct vb_arrival *in,
							const char *why)
{
	char before[64] = "";

	vb_lock_assert_held(&r->rx);
	if (r->malformed++ % SAY_EVERY)
		return;
	if (r->malformed > 1)
		snprintf(before, sizeof(before), "; %u malformed packets have come since the first one",
			 r->malformed - 1);
	vb_log(VB_LOG_WARN, "a packet of %u bytes is discarded: %s%s", in->b.hdr_len + in->payload_len, why,
	       before);
}

/* A packet that comes from another host says nothing of what only processes of one host say to each other:
 * neither marks of placed and lent data, nor a path MTU, nor an ACK that travels along.  A datagram keeps its
 * service level and its word, which names the one GID of its source. */
static __attribute__((noinline)) void distrust(struct vb_arrival *in)
{
	bool datagram = VB_FAMILY(in->b.bytes[0]) == VB_FAMILY_UD;

	if (datagram) /* it brings the GID that it came to, which the brief way does not look at */
		in->b.flags |= VB_BRIEF_APART;
	in->b.flags &= (uint8_t) ~(VB_BRIEF_PLACED | VB_BRIEF_LENT | (datagram ? 0 : ~VB_BRIEF_KINDS));
	in->b.ack &= datagram ? ~(VB_OUT_ACK | VB_GRH_WORD(3, 0, 0)) | VB_GRH_GLOBAL : 0;
}

/* The next packet of the queue, 1; 0 and -1 as peek() has them. */
static inline __attribute__((always_inline)) int peek(struct vb_rxq *r, struct vb_arrival *in)
{
	int got = r->ops->peek(r, in);

	if (vb_likely(got > 0) && vb_unlikely(!vb_source_is_peer(in->source)))
		distrust(in);
	return got;
}

/* Whether this process, or by a network this host, has sent it.  A host's queue pairs have different numbers.
 */
static bool is_own(const struct vb_hca *h, const struct vb_source *source)
{
	uint8_t gid[16];

	if (vb_source_is_peer(source))
		return source->origin.low == vb_adapter_incarnation(h->adapter);
	memcpy(gid, &source->origin, sizeof(gid));
	return vb_gids_index(vb_port_gids(h), gid) >= 0;
}

/* A datagram to a group: each queue pair that is attached here gets it, as one that is its own (rule 29). */
static __attribute__((noinline)) void deliver_to_group(struct delivery *d, const struct vb_pkt *p)
{
	const struct vb_hca *h = vb_hca(d->rxq->adapter);

	for (const struct vb_mcast_member *m = vb_mcasts_first(&h->mcast.groups, p->mgid); m;
	     m = vb_mcasts_next(m)) {
		if (m->qp->dests->no_echo && p->src_qpn == m->qp->qpn && is_own(h, p->source))
			continue;
		if (!hold(d, m->qp->qpn, p->source))
			continue;
		d->bytes += p->payload_len;
		d->passed += p->payload_len;
		d->qp->transport->input(d->qp, p);
	}
}

/* Reads a packet whole: NULL, or what is wrong with it. */
static inline __attribute__((always_inline)) const char *
read_packet(struct delivery *d, const struct vb_arrival *in, struct vb_pkt *p)
{
	const char *wrong =
	    vb_pkt_decode(p, in->b.bytes, in->b.hdr_len, in->payload_len, vb_source_is_peer(in->source));

	if (vb_unlikely(wrong != NULL))
		return wrong;
	p->payload = in->payload;
	p->placed = in->b.flags & VB_BRIEF_PLACED;
	p->marked = in->b.flags & VB_BRIEF_MARKED;
	p->path_mtu = in->b.flags / VB_BRIEF_MTU & VB_BRIEF_MTUS;
	if (vb_unlikely(in->b.flags & VB_BRIEF_LENT) && (wrong = vb_loan_decode(&d->loan, p)))
		return wrong;
	p->source = in->source;
	p->route = in->b.route;
	return NULL;
}

/* For a capture, before the packet is taken in. */
static __attribute__((cold, noinline)) void keep(struct delivery *d, const struct vb_arrival *in)
{
	struct vb_pkt p;

	if (read_packet(d, in, &p))
		return;
	if (VB_FAMILY(p.opcode) != VB_FAMILY_UD) {
		if (hold(d, p.qpn, in->source))
			vb_capture_in(d->qp, &p, in->b.ack);
	} else if (d->rxq->kept != VB_KEPT_OWN) {
		vb_capture_datagram(d->rxq->adapter, &p);
	}
}

/* Any packet. */
static __attribute__((noinline)) void deliver_any(struct delivery *d, const struct vb_arrival *in)
{
	const char *wrong;
	struct vb_pkt p;

	wrong = read_packet(d, in, &p);
	if (vb_unlikely(wrong != NULL)) {
		say_dropped(d->rxq, in, wrong);
		return;
	}
	if (p.mgid) {
		deliver_to_group(d, &p);
		return;
	}
	if (!hold(d, p.qpn, in->source)) {
		if (p.qpn == VB_GSI_QPN)
			vb_gsi_take(vb_hca(d->rxq->adapter), d->rxq, &p);
		else if (vb_pkt_ends_untold(&p))
			vb_datagrams_no_qp(d->rxq->adapter, &p);
		return;
	}
	d->bytes += p.payload_len;
	d->passed += p.payload_len;
	if (in->b.ack & VB_OUT_ACK)
		d->qp->transport->ack(d->qp, in->b.ack & VB_PSN_MASK);
	d->qp->transport->input(d->qp, &p);
}

/* A brief packet may take the QP's fast path. */
static inline void deliver(struct delivery *d, struct vb_arrival *in)
{
	if (vb_likely(!(in->b.flags & VB_BRIEF_APART) && hold(d, vb_pkt_get_qpn(in->b.bytes), in->source) &&
		      d->qp->transport->brief(d->qp, in))) {
		d->bytes += in->payload_len;
		d->passed += in->payload_len;
		return;
	}
	deliver_any(d, in);
}

/* Whether the sender sleeps.  It says so first and then looks at what is shown as received; here it is the
 * other way round, with the exchange of vb_lock_pass() in between: one of the two always sees the other. */
static bool sender_sleeps(const struct vb_rxq *r)
{
	const _Atomic uint32_t *word = atomic_load_explicit(&r->sender, memory_order_relaxed);

	return word && atomic_load_explicit(word, memory_order_seq_cst) == VB_ASLEEP;
}

/* Takes in up to `budget` packets, which are kept for a capture or not; *urgent: something must go out in
 * this pass. Returns how many came. */
static inline __attribute__((always_inline)) unsigned take(struct vb_rxq *r, unsigned budget, bool *urgent,
							   bool kept)
{
	struct vb_arrival in __attribute__((aligned(16)));
	struct delivery d;
	unsigned n = 0;
	int got = 0;

	/* Field by field: clearing what a loan would take costs more than the rest. */
	d.rxq = r;
	d.qp = NULL;
	d.bytes = d.passed = 0;
	d.urgent = false;
	while (n < budget && d.passed < PASS_BYTES && (got = peek(r, &in)) > 0) {
		if (kept)
			keep(&d, &in);
		deliver(&d, &in);
		VB_FAULT_POINT("packet executed, not yet consumed; the QP and the ring are locked");
		r->ops->next(r);
		n++;
	}
	*urgent = d.urgent;
	if (d.qp)
		*urgent |= give_qp(r, d.qp);
	if (vb_unlikely(got < 0)) {
		atomic_store_explicit(&r->open, false, memory_order_relaxed);
		r->ops->rubbish(r);
	}
	return n;
}

/* Packets of other hosts come several at a time, and the wire ends the look behind them. */
static __attribute__((noinline)) unsigned take_batch(struct vb_rxq *r, unsigned budget, bool *urgent)
{
	return take(r, r->out ? budget : PASS_PACKETS, urgent, false);
}

/* Apart, so that the other one costs what it did. */
static __attribute__((cold, noinline)) unsigned take_kept(struct vb_rxq *r, unsigned budget, bool *urgent)
{
	return take(r, budget, urgent, true);
}

/* Takes in one packet of a process of this host that is brief and that its QP knows at first sight: it needs
 * none of what a batch keeps.  false: take_batch() sees to it.  (It takes an ACK that came along once more,
 * which says nothing new.) */
static inline bool take_plain(struct vb_rxq *r, bool *urgent)
{
	struct vb_arrival in __attribute__((aligned(16)));
	struct vb_qp *qp;

	if (vb_unlikely(r->ops->peek(r, &in) <= 0 || in.b.flags & VB_BRIEF_APART ||
			!vb_source_is_peer(in.source)))
		return false;
	qp = take_qp(r, vb_pkt_get_qpn(in.b.bytes), in.source, true);
	if (vb_unlikely(!qp))
		return false;
	if (vb_unlikely(!qp->transport->brief(qp, &in))) {
		vb_hca_give(qp);
		return false;
	}
	VB_FAULT_POINT("packet executed, not yet consumed; the QP and the ring are locked");
	r->ops->next(r);
	*urgent = give_qp(r, qp);
	return true;
}

/* Returns how many packets came. */
static inline __attribute__((always_inline)) unsigned drain(struct vb_rxq *r)
{
	unsigned budget = r->budget, n;
	bool urgent;

	vb_lock_assert_held(&r->rx);
	if (vb_unlikely(r->kept))
		n = take_kept(r, budget ? budget : 1, &urgent);
	else if (budget <= 1 && vb_likely(take_plain(r, &urgent)))
		n = 1;
	else
		n = take_batch(r, budget ? budget : 1, &urgent);
	/* Where packets come one at a time (VB_TAKE_ONE), a look for a second one would only stall on a line
	 * that the sender has just made its own. */
	r->budget = n < budget ? 1 : 2 * n < PASS_PACKETS ? 2 * n : PASS_PACKETS;
	r->unflushed += n;
	if (atomic_load_explicit(&r->owes, memory_order_relaxed) &&
	    (!n || urgent || r->unflushed >= ACK_BATCH || !vb_hca_watched(r->adapter) || sender_sleeps(r)))
		vb_hca_flush(r);
	return n;
}

unsigned vb_hca_look(struct vb_rxq *r, enum vb_take take)
{
	unsigned n, total = 0;

	if (!vb_lock_try(&r->rx))
		return 0; /* somebody else is at it */
	if (vb_unlikely(atomic_load_explicit(r->cold, memory_order_relaxed)))
		vb_hca_warm(r); /* what it comes to owe is looked at in warm ones only */
	if (take == VB_TAKE_ONE)
		r->budget = 1;
	do {
		/* its peer may have gone meanwhile */
		n = atomic_load_explicit(&r->open, memory_order_relaxed) ? drain(r) : 0;
		total += n;
	} while (vb_unlikely(take == VB_TAKE_ALL) && n && total < VB_RXQ_HOLDS);
	if (total)
		r->quiet = 0;
	vb_lock_give(&r->rx);
	return total;
}
