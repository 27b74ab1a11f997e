#include "hca/forward.h"

#include <stdlib.h>
#include <string.h>

#include "hca/direct.h"
#include "hca/path.h"
#include "hca/all.h"
#include "hca/say.h"
#include "hca/send.h"
#include "iba/limits.h"
#include "iba/pkt.h"
#include "iba/reach.h"
#include "iba/wr.h"
#include "transport/transport.h"

#define PATIENCE (30 * VB_SEC) /* with a process that there is no contact with, though there may be soon */

/* What the two ends say to one another.  They mean a target by its number, and which question by a ticket, of
 * which a process gives each once: the number may be another target's soon.  What is said of a deputy once
 * is said for certain; a question that found no room is asked again. */
enum { TELL_OPEN = 1, TELL_OPENED, TELL_CLOSE };

struct tell {
	uint32_t kind;
	uint32_t target; /* QPN */
	uint32_t ticket;
	uint32_t number;   /* of the adapter, as SRQ numbers have it: a process may have several */
	uint32_t deputy;   /* OPENED: QPN; 0: there is none */
	uint32_t dest_qpn; /* OPEN, as the rest: the QP that sends to the target */
	uint32_t psn;	   /* the first */
	uint32_t path_mtu; /* enum ibv_mtu */
	uint64_t dev, ino; /* the target's domain */
};
_Static_assert(sizeof(struct tell) <= VB_TELL_MAX, "it fits a message");

struct deputy {
	struct vb_qp qp; /* first */
	struct vb_xrcd xrcd;
	uint32_t number; /* its own QPN */
	uint32_t of;	 /* of which adapter number the SRQs are; a target has a deputy for each */
	uint32_t ticket;
	bool ending; /* guarded by the list's lock */
};

static bool is_up(const struct vb_peer *peer)
{
	return atomic_load_explicit(&peer->state, memory_order_acquire) == VB_PEER_UP;
}

/* ---- the target's end ---- */

static bool own(const struct vb_qp *qp, uint32_t srqn)
{
	struct vb_adapter *a = vb_qp_adapter(qp);

	for (uint32_t k = 0; k < vb_adapter_number_count(a); k++)
		if (vb_adapter_number_at(a, k) == srqn >> VB_QPN_INDEX_BITS)
			return true;
	return false;
}

static bool ask(struct vb_qp *qp)
{
	struct vb_forwards *w = qp->forwards;
	const struct tell t = {.kind = TELL_OPEN,
			       .target = qp->qpn,
			       .ticket = w->ticket,
			       .number = w->wanted,
			       .dest_qpn = qp->dest_qpn,
			       .psn = w->ticket & VB_PSN_MASK,
			       .path_mtu = qp->path_mtu,
			       .dev = qp->xrcd->id.dev,
			       .ino = qp->xrcd->id.ino};

	return vb_peer_tell(w->seeking, VB_SUBJECT_XRC, &t, sizeof(t), -1);
}

static void stop_seeking(struct vb_forwards *w)
{
	if (w->seeking)
		vb_peer_put(w->seeking);
	w->seeking = NULL;
	w->contacting = w->asked = false;
}

/* Nobody is there, or nobody who can be reached. */
static void find_nobody(struct vb_qp *qp)
{
	stop_seeking(qp->forwards);
	vb_forward_fail(qp);
}

/* As hca/path.c does, it looks whether whoever has the number is not one that has just died. */
static void seek(struct vb_qp *qp)
{
	struct vb_forwards *w = qp->forwards;

	vb_lock_assert_held(&qp->lock);
	if (w->contacting)
		return;
	if (!w->since)
		w->since = vb_now();
	if (!w->seeking) {
		w->seeking = vb_peer_get(vb_qp_adapter(qp), w->wanted); /* pairs with stop_seeking() */
		w->ticket =
		    (atomic_fetch_add(&vb_qp_hca(qp)->tickets, 1) + 1) * 0x10001; /* PSNs are far apart */
	}
	if (w->seeking && is_up(w->seeking) && vb_peer_is_over(w->seeking))
		stop_seeking(w);
	if (!w->seeking)
		return; /* it is tried again */
	if (is_up(w->seeking)) {
		w->asked |= ask(qp);
	} else {
		w->contacting = true;
		vb_peer_contact(w->seeking);
	}
}

static void drop(struct vb_forward *f)
{
	vb_peer_put(f->peer);
	free(f);
}

static void dismiss(const struct vb_qp *qp, struct vb_peer *peer, uint32_t ticket)
{
	const struct tell t = {.kind = TELL_CLOSE, .target = qp->qpn, .ticket = ticket};

	vb_hca_say(peer, VB_SUBJECT_XRC, &t, sizeof(t));
}

static void end(struct vb_qp *qp)
{
	struct vb_forwards *w = qp->forwards;
	struct vb_list *n;

	vb_lock_assert_held(&qp->lock);
	while ((n = vb_list_pop(&w->all))) {
		struct vb_forward *f = vb_list_entry(n, struct vb_forward, node);

		dismiss(qp, f->peer, f->ticket);
		drop(f);
	}
	if (w->asked) /* the deputy is made before this is heard, or is there already */
		dismiss(qp, w->seeking, w->ticket);
	stop_seeking(w);
	w->busy = w->within = NULL;
	w->fetch = (struct vb_fetch){0};
	w->count = (struct vb_forward_count){0};
	w->again = false;
	w->full = NULL;
	w->wanted = w->nowhere = 0;
	w->since = 0;
	if (qp->shown)
		atomic_store_explicit(&qp->shown->known, 0, memory_order_relaxed);
}

const struct vb_forward_ops vb_forward_ops = {.own = own, .seek = seek, .end = end};

/* Contact failed.  Whether there may be some the next time: what one of the two lacks may be there again, and
 * a process in a crowd may have had no time to answer.  Meanwhile the far end waits. */
static bool may_come_yet(const struct vb_forwards *w)
{
	uint32_t asked, reach = vb_peer_trouble(w->seeking, &asked).reach;

	return vb_now() < w->since + PATIENCE &&
	       (vb_peer_unable(w->seeking) || reach == VB_REACH_UNKNOWN || reach == VB_REACH_TROUBLE ||
		reach == VB_REACH_UNABLE || reach == VB_REACH_CLOSED);
}

void vb_forward_peer_up(struct vb_qp *qp, struct vb_peer *peer)
{
	struct vb_forwards *w = qp->forwards;

	vb_lock_assert_held(&qp->lock);
	if (vb_likely(!w || w->seeking != peer || !w->contacting))
		return;
	w->seeking = vb_peer_current(peer);
	w->contacting = false;
	if (is_up(w->seeking) || may_come_yet(w))
		seek(qp);
	else
		find_nobody(qp);
	vb_hca_send(qp);
}

void vb_forward_peer_down(struct vb_qp *qp, struct vb_peer *peer)
{
	struct vb_forwards *w = qp->forwards;

	vb_lock_assert_held(&qp->lock);
	if (vb_likely(!w || (!w->seeking && vb_list_empty(&w->all))))
		return;
	if (w->seeking == peer) {
		w->gone = w->wanted;
		w->gone_pid = peer->pid;
		find_nobody(qp);
	}
	vb_list_each_safe (n, tmp, &w->all) {
		struct vb_forward *f = vb_list_entry(n, struct vb_forward, node);

		if (f->peer != peer)
			continue;
		w->gone = f->number;
		w->gone_pid = peer->pid;
		/* its last ACK may have died with it */
		vb_forward_forget(qp, f, vb_peer_qp_received(peer, f->deputy));
		drop(f);
	}
	vb_hca_send(qp);
}

/* Both ends choose this one. */
static const struct vb_lane *lane_of(const struct vb_peer *peer, uint32_t target)
{
	return &peer->lanes[target % peer->nlanes];
}

static void hear_opened(struct vb_peer *peer, const struct tell *t)
{
	struct vb_adapter *a = peer->adapter;
	struct vb_rxq *r = peer->lanes[0].rxq; /* under which no QP goes */
	const struct vb_lane *lane = lane_of(peer, t->target);
	struct vb_forward *f = calloc(1, sizeof(*f) + lane->out->mtu); /* pairs with drop() */
	struct vb_qp *qp;

	vb_lock_take(&r->rx);
	qp = vb_qpn_find(a, t->target);
	if (qp)
		vb_lock_take(&qp->lock);
	if (qp && qp->forwards && !qp->forgotten && qp->forwards->seeking == peer &&
	    qp->forwards->wanted == t->number && qp->forwards->ticket == t->ticket) {
		struct vb_forwards *w = qp->forwards;

		if (f && t->deputy) {
			*f = (struct vb_forward){.number = t->number,
						 .ticket = t->ticket,
						 .deputy = t->deputy,
						 .peer = peer,
						 .out = lane->out,
						 .room = lane->out->mtu,
						 .source = {.high = VB_SOURCE_PEER, .low = peer->incarnation},
						 .psn = t->ticket & VB_PSN_MASK,
						 .una = t->ticket & VB_PSN_MASK};
			w->seeking = NULL; /* its reference is f's now */
			w->asked = false;
			vb_forward_add(qp, f);
			f = NULL;
		} else {
			find_nobody(qp);
		}
		vb_hca_send(qp);
	}
	if (qp)
		vb_hca_give(qp);
	vb_lock_give(&r->rx);
	free(f);
}

/* ---- the SRQ's end ---- */

static struct deputy *deputy_of(struct vb_list *n)
{
	return (struct deputy *)vb_list_entry(n, struct vb_qp, on_ctx);
}

/* Whoever has it ends it.  It stays on the list until it has no SRQ any more: who destroys one looks for
 * those that receive by it there (hca/srq.c). */
static struct deputy *take_deputy(struct vb_hca *h, bool (*is)(const struct deputy *d, const void *of),
				  const void *of)
{
	struct deputy *found = NULL;

	vb_lock_take(&h->inner.lock);
	vb_list_each (n, &h->inner.qps) {
		struct deputy *d = deputy_of(n);

		if (!found && !d->ending && is(d, of))
			found = d;
	}
	if (found)
		found->ending = true;
	vb_lock_give(&h->inner.lock);
	return found;
}

static void unlist(struct vb_hca *h, struct deputy *d)
{
	vb_lock_take(&h->inner.lock);
	vb_list_unlink(&d->qp.on_ctx);
	vb_lock_give(&h->inner.lock);
}

/* It was taken, or never was on the list. */
static void end_deputy(struct vb_hca *h, struct deputy *d)
{
	struct vb_qp *qp = &d->qp;
	const struct vb_facts f = {.reason = VB_R_FLUSHED, .qpn = qp->qpn};

	vb_lock_take(&qp->lock);
	qp->transport->error(qp, &f); /* a receive request in use is flushed */
	vb_path_close(qp);
	vb_qp_reset(qp);
	vb_hca_give(qp);
	unlist(h, d);
	vb_hca_forget(qp);
	vb_qpn_give(h->adapter, d->number);
	vb_hca_quiesce(h);
	vb_qp_fini(qp);
	free(d);
}

static void describe(struct deputy *d, struct vb_hca *h, const struct tell *t)
{
	struct vb_qp *qp = &d->qp;

	qp->ctx = &h->inner;
	d->of = t->number;
	d->ticket = t->ticket;
	d->xrcd.id = (struct vb_xrcd_id){t->dev, t->ino};
	qp->xrcd = &d->xrcd;
	qp->deputy = true;
	qp->srqs = &h->srqs;
	qp->keys = &h->keys;
	qp->mws = &h->mws;
	qp->qpn = t->target;
	qp->ibv.qp_type = IBV_QPT_XRC_RECV;
	vb_transport_choose(qp, IBV_QPT_XRC_RECV);
}

/* Ready to receive: what the target's process has checked is permitted. */
static void begin(struct deputy *d, struct vb_peer *peer, const struct tell *t)
{
	const struct vb_lane *lane = lane_of(peer, t->target);
	struct vb_qp *qp = &d->qp;
	struct vb_path *p = &qp->path;

	vb_lock_take(&qp->lock);
	qp->dest_qpn = t->dest_qpn;
	qp->access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
		     VB_ACCESS_FLUSH_GLOBAL | VB_ACCESS_FLUSH_PERSISTENT;
	qp->attr.path_mtu = (enum ibv_mtu)t->path_mtu;
	qp->path_mtu = (uint8_t)t->path_mtu;
	qp->resp.epsn = t->psn & VB_PSN_MASK;
	p->far = &vb_peer_get(peer->adapter, peer->number)->far; /* pairs with vb_path_close() */
	p->rxq = lane->rxq;
	p->source = (struct vb_origin){.high = VB_SOURCE_PEER, .low = peer->incarnation};
	p->pid = peer->pid;
	qp->transport->path(p, lane->out);
	vb_qp_set_state(qp, IBV_QPS_RTS);
	qp->ibv.state = IBV_QPS_RTS;
	vb_direct_show(qp);
	vb_hca_give(qp);
}

/* NULL: there is no memory, or no number left. */
static struct deputy *make_deputy(struct vb_hca *h, struct vb_peer *peer, const struct tell *t)
{
	size_t size = (sizeof(struct deputy) + VB_LINE - 1) & -(size_t)VB_LINE;
	struct deputy *d = aligned_alloc(VB_LINE, size); /* pairs with end_deputy() */
	struct ibv_qp_cap cap = {0};
	int room;

	if (!d)
		return NULL;
	memset(d, 0, size);
	describe(d, h, t);
	if (vb_qp_init(&d->qp, &cap)) /* pairs with end_deputy() */
		goto free_deputy;
	for (unsigned i = 0; i < VB_QP_EVENTS; i++)
		vb_qp_event_at(&d->qp, i)->deaf = true;	   /* they are the target's */
	d->number = vb_qpn_take(h->adapter, &d->qp, NULL); /* pairs with end_deputy() */
	if (!d->number)
		goto fini_qp;
	vb_lock_take(&d->qp.lock);
	room = vb_qp_resources(&d->qp, VB_MAX_RD_ATOMIC); /* no target answers more of them again */
	vb_lock_give(&d->qp.lock);
	if (room)
		goto give_number;
	d->qp.shown = vb_qpn_published(h->adapter, d->number);
	d->qp.traffic = vb_qpn_traffic(h->adapter, d->number);
	d->qp.drops = vb_adapter_drops(h->adapter);
	begin(d, peer, t);
	return d;
give_number:
	vb_qpn_give(h->adapter, d->number);
fini_qp:
	vb_qp_fini(&d->qp);
free_deputy:
	free(d);
	return NULL;
}

/* Which target a deputy stands for. */
struct whose {
	uint64_t incarnation;
	uint32_t target; /* 0: any, and the rest does not count */
	uint32_t number;
	uint32_t ticket;
};

static bool is_whose(const struct deputy *d, const void *of)
{
	const struct whose *w = of;

	return d->qp.path.source.low == w->incarnation &&
	       (!w->target || (d->qp.qpn == w->target && d->of == w->number));
}

static void end_those(struct vb_hca *h, const struct whose *w)
{
	struct deputy *d;

	while ((d = take_deputy(h, is_whose, w)))
		end_deputy(h, d);
}

static bool is_asked_for(const struct deputy *d, const void *of)
{
	const struct whose *w = of;

	return d->qp.path.source.low == w->incarnation && d->qp.qpn == w->target && d->ticket == w->ticket;
}

static void hear_close(struct vb_peer *peer, const struct tell *t)
{
	const struct whose w = {.incarnation = peer->incarnation, .target = t->target, .ticket = t->ticket};
	struct vb_hca *h = vb_hca(peer->adapter);
	struct deputy *d = take_deputy(h, is_asked_for, &w);

	if (d)
		end_deputy(h, d);
}

/* The QPN of the deputy that the same question has made before; 0: there is none. */
static uint32_t made_before(struct vb_hca *h, const struct whose *w)
{
	uint32_t number = 0;

	vb_lock_take(&h->inner.lock);
	vb_list_each (n, &h->inner.qps) {
		const struct deputy *d = deputy_of(n);

		if (!d->ending && is_asked_for(d, w))
			number = d->number;
	}
	vb_lock_give(&h->inner.lock);
	return number;
}

/* false: the device is being closed. */
static bool keep_deputy(struct vb_hca *h, struct deputy *d)
{
	bool kept;

	vb_lock_take(&h->inner.lock);
	kept = !h->closing;
	if (kept)
		vb_list_append(&h->inner.qps, &d->qp.on_ctx);
	vb_lock_give(&h->inner.lock);
	return kept;
}

/* One more deputy: its QPN, 0: there cannot be one. */
static uint32_t one_more(struct vb_hca *h, struct vb_peer *peer, const struct tell *t)
{
	struct deputy *d = make_deputy(h, peer, t);
	uint32_t number = d ? d->number : 0;

	if (!d || keep_deputy(h, d))
		return number;
	end_deputy(h, d);
	return 0;
}

/* The one that the target has by an earlier question is of another time, unless the question is the same. */
static void hear_open(struct vb_peer *peer, const struct tell *t)
{
	const struct whose w = {peer->incarnation, t->target, t->number, t->ticket};
	struct vb_hca *h = vb_hca(peer->adapter);
	struct tell answer = *t;

	/* a domain without a file is its process's alone, whatever is asked */
	if (!t->target || t->path_mtu < IBV_MTU_256 || t->path_mtu > IBV_MTU_4096 ||
	    t->dev == VB_XRCD_PRIVATE)
		return;
	answer.kind = TELL_OPENED;
	answer.deputy = made_before(h, &w);
	if (!answer.deputy) {
		end_those(h, &w);
		answer.deputy = one_more(h, peer, t);
	}
	vb_hca_say(peer, VB_SUBJECT_XRC, &answer, sizeof(answer));
}

static void hear(struct vb_peer *peer, const void *msg, size_t len, int fd)
{
	struct tell t;

	(void)fd;
	if (len != sizeof(t))
		return;
	memcpy(&t, msg, sizeof(t));
	if (t.kind == TELL_OPEN)
		hear_open(peer, &t);
	else if (t.kind == TELL_OPENED)
		hear_opened(peer, &t);
	else if (t.kind == TELL_CLOSE && t.target)
		hear_close(peer, &t);
}

void vb_forward_prepare(struct vb_hca *h)
{
	h->hear[VB_SUBJECT_XRC] = hear;
	vb_list_init(&h->inner.qps);
}

void vb_deputies_end(struct vb_peer *peer)
{
	struct vb_hca *h = vb_hca(peer->adapter);
	const struct whose w = {.incarnation = peer->incarnation};

	end_those(h, &w);
}

static bool is_any(const struct deputy *d, const void *of)
{
	(void)d, (void)of;
	return true;
}

void vb_deputies_close(struct vb_hca *h)
{
	struct deputy *d;

	vb_lock_take(&h->inner.lock);
	h->closing = true;
	vb_lock_give(&h->inner.lock);
	while ((d = take_deputy(h, is_any, NULL)))
		end_deputy(h, d);
}
