/* Targets of XRC of this process that other processes have open.
 *
 * Each time that one of them opens a target, an *opening* stands for it here, as what ibv_open_qp() gives in
 * one process does: so the target lives on when its maker destroys it, ends with the last that has it open,
 * and tells each of its events.  What such a process asks for the thread that hears the control socket does;
 * the engine tells it the events. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "hca/say.h"
#include "hca/send.h"
#include "iba/qp_state.h"
#include "verbs/target.h"
#include "verbs/verbs.h"

#define AGAIN (10 * VB_MSEC) /* nobody tells when a peer has read what it was told before */

struct opening {
	struct vb_qp qp;      /* first; its context is hca->inner */
	struct vb_xrcd xrcd;  /* on which the target leans if its maker's is gone */
	struct vb_list node;  /* among hca->openings; guarded, as the rest, by their lock */
	struct vb_peer *peer; /* who has it open; ended with it, so it takes no reference */
	uint32_t handle;      /* the peer's name for it */
	uint32_t ticket;      /* of the last change that it asked for, */
	int32_t err;	      /* and what came of that */
};

static struct opening *opening_at(struct vb_list *n)
{
	return vb_list_entry(n, struct opening, node);
}

static struct opening *find(struct vb_hca *h, const struct vb_peer *peer, uint32_t handle)
{
	vb_list_each (n, &h->openings) {
		struct opening *o = opening_at(n);

		if (o->peer == peer && o->handle == handle)
			return o;
	}
	return NULL;
}

static void unmake(struct opening *o)
{
	for (unsigned i = 0; i < VB_QP_EVENTS; i++)
		vb_async_cancel(o->qp.ctx, vb_qp_event_at(&o->qp, i));
	vb_target_unmake(&o->qp);
}

/* The target goes with the last. */
static void end(struct opening *o)
{
	struct vb_qp *target = vb_target_leave(&o->qp);

	vb_list_unlink(&o->node);
	if (target)
		vb_qp_end(target); /* it uses the opening's domain */
	unmake(o);
}

/* 0, or EINVAL: there is no such target; ENOMEM. */
static int open_for(struct vb_hca *h, struct vb_peer *peer, const struct vb_target_tell *t)
{
	struct vb_xrcd named = {.id = {t->open.dev, t->open.ino}};
	struct ibv_qp_open_attr a = {.qp_num = t->open.qpn, .qp_type = IBV_QPT_XRC_RECV, .xrcd = &named.ibv};
	struct opening *o;

	if (t->open.device != h->device || t->open.dev == VB_XRCD_PRIVATE)
		return EINVAL;
	named.ibv.context = &h->inner.v.context;
	o = (struct opening *)vb_target_stand_in(&a, sizeof(*o)); /* pairs with unmake() */
	if (!o)
		return ENOMEM;
	o->xrcd = named;
	atomic_store(&o->xrcd.refs, 1);
	o->qp.xrcd = &o->xrcd;
	o->peer = peer;
	o->handle = t->handle;
	if (!vb_target_join(&o->qp)) {
		unmake(o);
		return EINVAL;
	}
	vb_list_append(&h->openings, &o->node); /* pairs with end() */
	return 0;
}

/* A question may come again, since its answer may have been lost: what was done is not done again. */
static int change(struct opening *o, const struct vb_target_tell *t)
{
	struct vb_qp *target = o->qp.of;
	struct ibv_qp_attr a;

	if (o->ticket == t->head.ticket)
		return o->err;
	o->ticket = t->head.ticket;
	vb_target_unpack(&a, &t->modify.attr);
	if (t->modify.mask & IBV_QP_AV)
		vb_addresses_learn(&vb_qp_hca(target)->addresses, &a.ah_attr);
	o->err = t->modify.from < VB_QP_STATES
		     ? vb_qp_check(target, (enum ibv_qp_state)t->modify.from, &a, t->modify.mask)
		     : EINVAL;
	if (!o->err)
		o->err = vb_qp_change(target, (enum ibv_qp_state)t->modify.from, &a, t->modify.mask);
	return o->err;
}

static void answer(struct vb_hca *h, struct vb_peer *peer, const struct vb_target_tell *t)
{
	struct vb_target_tell to = {.head = {VB_TARGET_ANSWER, t->head.ticket}, .handle = t->handle};
	struct opening *o = find(h, peer, t->handle);
	struct ibv_qp_attr a;
	int err = 0;

	if (!o && t->head.kind == VB_TARGET_OPEN) {
		err = open_for(h, peer, t);
		o = find(h, peer, t->handle);
	}
	if (!err)
		err = !o ? EIO : t->head.kind == VB_TARGET_MODIFY ? change(o, t) : 0;
	if (o) {
		vb_qp_attributes(o->qp.of, &a);
		vb_target_pack(&to.answer.attr, &a);
	}
	to.answer.err = err;
	vb_peer_tell(peer, VB_SUBJECT_TARGET, &to, sizeof(to), -1); /* else it asks again */
}

static void hear(struct vb_peer *peer, const void *msg, size_t len, int fd)
{
	struct vb_hca *h = vb_hca(peer->adapter);
	struct vb_target_tell t;
	struct opening *o;

	(void)fd;
	if (len != sizeof(t))
		return;
	memcpy(&t, msg, sizeof(t));
	if (t.head.kind == VB_TARGET_ANSWER) {
		vb_ask_answered(peer, VB_SUBJECT_TARGET, msg, len, -1);
	} else if (t.head.kind == VB_TARGET_EVENT || t.head.kind == VB_TARGET_ENDED) {
		vb_target_told(peer, &t);
	} else {
		pthread_mutex_lock(&h->openings_lock);
		if (t.head.kind != VB_TARGET_CLOSE)
			answer(h, peer, &t);
		else if ((o = find(h, peer, t.handle)))
			end(o);
		pthread_mutex_unlock(&h->openings_lock);
	}
}

static void added(struct vb_evq *q)
{
	struct vb_hca *h = vb_containerof(q, struct vb_hca, inner.async);

	atomic_store(&h->opening_events, true);
	vb_adapter_nudge(h->adapter);
}

void vb_openings_prepare(struct vb_hca *h)
{
	pthread_mutex_init(&h->openings_lock, NULL);
	vb_list_init(&h->openings);
	vb_list_init(&h->far);
	vb_list_init(&h->inner.async.nodes);
	h->inner.async.added = added;
	h->hear[VB_SUBJECT_TARGET] = hear;
}

static unsigned index_of(struct vb_qp *qp, const struct vb_async_node *node)
{
	unsigned i = 0;

	while (vb_qp_event_at(qp, i) != node)
		i++;
	return i;
}

static bool tell(struct vb_async_node *node)
{
	struct opening *o = (struct opening *)node->ev.element.qp;
	const struct vb_target_tell t = {
	    .head.kind = VB_TARGET_EVENT, .handle = o->handle, .event = index_of(&o->qp, node)};

	return vb_peer_tell(o->peer, VB_SUBJECT_TARGET, &t, sizeof(t), -1);
}

/* What cannot be told now stays, before what came meanwhile. */
static bool tell_all(struct vb_evq *q)
{
	struct vb_list untold, *l;
	bool left;

	vb_list_init(&untold);
	vb_lock_take(&q->lock);
	while ((l = vb_list_pop(&q->nodes))) {
		bool told;

		vb_lock_give(&q->lock);
		told = tell(vb_list_entry(l, struct vb_async_node, link));
		vb_lock_take(&q->lock);
		if (!told && !vb_list_linked(l)) /* else it has come once more */
			vb_list_append(&untold, l);
	}
	left = !vb_list_empty(&untold);
	while ((l = untold.prev) != &untold) {
		vb_list_unlink(l);
		vb_list_append(q->nodes.next, l);
	}
	vb_lock_give(&q->lock);
	return left;
}

uint64_t vb_openings_tick(struct vb_hca *h, uint64_t now)
{
	uint64_t next = VB_NEVER;

	if (vb_likely(!atomic_load_explicit(&h->opening_events, memory_order_relaxed)))
		return VB_NEVER;
	if (pthread_mutex_trylock(&h->openings_lock))
		return now + VB_MSEC;
	atomic_store(&h->opening_events, false);
	if (tell_all(&h->inner.async)) {
		atomic_store(&h->opening_events, true);
		next = now + AGAIN;
	}
	pthread_mutex_unlock(&h->openings_lock);
	return next;
}

void vb_openings_peer_down(struct vb_peer *peer, enum vb_peer_end how)
{
	struct vb_hca *h = vb_hca(peer->adapter);

	pthread_mutex_lock(&h->openings_lock);
	vb_list_each_safe (n, tmp, &h->openings)
		if (opening_at(n)->peer == peer)
			end(opening_at(n));
	pthread_mutex_unlock(&h->openings_lock);
	vb_targets_lose(peer, how);
}

/* Whether somebody of this process has it open besides its maker. */
static bool is_open_here(struct vb_hca *h, struct vb_qp *target)
{
	bool here = false;

	vb_lock_take(&target->lock);
	vb_list_each (n, &target->opened)
		here |= vb_list_entry(n, struct vb_qp, on_target)->ctx != &h->inner;
	vb_hca_give(target);
	return here;
}

void vb_openings_expel(struct vb_context *c)
{
	struct vb_hca *h = vb_hca(c->adapter);

	vb_mutex_assert_held(&h->openings_lock);
	vb_list_each_safe (n, tmp, &h->openings) {
		struct opening *o = opening_at(n);
		const struct vb_target_tell t = {.head.kind = VB_TARGET_ENDED, .handle = o->handle};

		if (o->qp.of->ctx != c || is_open_here(h, o->qp.of))
			continue;
		vb_hca_say(o->peer, VB_SUBJECT_TARGET, &t, sizeof(t));
		end(o);
	}
}
