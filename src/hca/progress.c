/* Locks, in the order in which they are taken: rxq->rx (trylock but for destruction), hca->timer_lock
 * (trylock but to add), a QP's posting lock, qp->lock, then its lock for receives, SRQ, CQ and channel, then
 * rxq->owed_lock or the wire's own. hca->timer_lock is also taken under qp->lock to add a QP; the scan that
 * holds it only tries qp->lock, so that the two do not wait for one another. */
#include "hca/progress.h"

#include "base/clock.h"
#include "hca/direct.h"
#include "hca/lost.h"
#include "hca/path.h"
#include "hca/peers.h"
#include "hca/receive.h"
#include "hca/send.h"
#include "hca/timed.h"
#include "iba/out.h"

enum {
	QUIET_AFTER = 4096, /* polls without a packet after which a queue is looked at less often */
	QUIET_EVERY = 16,
	SPINS = 16,	  /* polls in a row that make a sleeper a poller */
	SPINS_ARMED = 64, /* the same while a CQ is armed */
	/* Polls in a row that found nothing, after which whoever is waited for may need this very CPU.  Rare
	 * enough to cost nothing where it does not. */
	IDLE_POLLS = 2048,
};

static __thread unsigned idle_polls;

static struct vb_rxq *rxq_at(struct vb_hca *h, uint32_t i)
{
	return atomic_load_explicit(&h->rxqs[i], memory_order_relaxed);
}

static uint32_t rxq_count(struct vb_hca *h)
{
	return atomic_load_explicit(&h->nrxqs, memory_order_acquire); /* pairs with vb_hca_rxq_open() */
}

static bool is_open(const struct vb_rxq *r)
{
	return atomic_load_explicit(&r->open, memory_order_acquire); /* pairs with vb_hca_rxq_open() */
}

static unsigned progress(struct vb_adapter *a, bool all)
{
	struct vb_hca *h = vb_hca(a);
	uint32_t queues = rxq_count(h);
	uint32_t turn = 0;
	unsigned n = 0;

	if (queues > 1) {
		turn = atomic_load_explicit(&h->turn, memory_order_relaxed) + 1;
		atomic_store_explicit(&h->turn, turn, memory_order_relaxed);
	}
	for (uint32_t i = 0; i < queues; i++) {
		struct vb_rxq *r = rxq_at(h, i);

		if (!is_open(r))
			continue;
		if (!all && queues > QUIET_EVERY && (turn + i) % QUIET_EVERY &&
		    atomic_load_explicit(&r->quiet, memory_order_relaxed) > QUIET_AFTER)
			continue;
		n += vb_hca_look(r, all);
	}
	return n;
}

static bool ready(struct vb_adapter *a)
{
	struct vb_hca *h = vb_hca(a);
	uint32_t queues = rxq_count(h);

	for (uint32_t i = 0; i < queues; i++) {
		struct vb_rxq *r = rxq_at(h, i);

		if (is_open(r) && vb_rxq_ready(r))
			return true;
	}
	return false;
}

/* Lets the paths on a queue send; returns when to try again.  A peer does not say when there is room in its
 * ring: soon, if it has taken packets out since the last try. */
static uint64_t push_on(struct vb_rxq *r, uint64_t now)
{
	struct vb_out *o = r->out;
	uint64_t before = o->ops->mark(o);

	/* what is to be placed directly is a poller's, while there is one */
	if (atomic_load_explicit(&r->placing, memory_order_relaxed) && vb_hca_watched(r->adapter))
		return now + VB_MSEC;
	vb_hca_look(r, false);
	if (!atomic_load_explicit(&r->owes, memory_order_relaxed))
		return VB_NEVER;
	if (atomic_load_explicit(&r->placing, memory_order_relaxed))
		return now;
	/* Who waits for the far end's queue pair hears its bell (hca/path.c), and hca/timed.c looks now and
	 * then. */
	if (!atomic_load(&r->waits) && !atomic_load_explicit(&r->rx.held, memory_order_relaxed))
		return VB_NEVER;
	return now + (o->ops->mark(o) != before || o->ops->room(o) ? VB_MSEC / 10 : VB_MSEC);
}

static uint64_t timers(struct vb_adapter *a, uint64_t now)
{
	struct vb_hca *h = vb_hca(a);
	uint64_t next = vb_hca_scan(h, now), at = vb_relaxed_tick(&h->relaxed, now);
	uint32_t queues = rxq_count(h);

	if (at < next)
		next = at;
	for (uint32_t i = 0; i < queues; i++) {
		struct vb_rxq *r = rxq_at(h, i);

		if (!is_open(r) || !atomic_load_explicit(&r->owes, memory_order_relaxed))
			continue;
		at = push_on(r, now);
		if (at < next)
			next = at;
	}
	return next;
}

/* What the engine alone does besides. */
static uint64_t engine_timers(struct vb_adapter *a, uint64_t now)
{
	uint64_t next = timers(a, now);

	if (vb_addresses_tick(&vb_hca(a)->addresses, now) && next > now + VB_ADDRESSES_APART)
		next = now + VB_ADDRESSES_APART;
	return next;
}

const struct vb_adapter_ops vb_hca_ops = {
    .peer_free = vb_direct_peer_free,
    .told = vb_hca_told,
    .progress = progress,
    .ready = ready,
    .timers = engine_timers,
    .peer_up = vb_hca_peer_up,
    .peer_down = vb_hca_peer_down,
    .lost = vb_device_lost,
};

void vb_hca_poll(struct vb_adapter *a)
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

/* Whatever queue it was on when it owed. */
static void forget_acks(struct vb_rxq *r, const struct vb_path *p)
{
	vb_lock_take(&r->rx);
	if (r->acks == p)
		r->acks = NULL;
	vb_lock_give(&r->rx);
}

void vb_hca_forget(struct vb_qp *qp)
{
	struct vb_hca *h = vb_qp_hca(qp);

	vb_lock_take(&qp->lock);
	qp->forgotten = true;
	vb_path_close(qp);
	vb_direct_show(qp); /* no more */
	vb_hca_give(qp);
	for (uint32_t i = 0; i < rxq_count(h); i++)
		forget_acks(rxq_at(h, i), &qp->path);
	vb_hca_untime(qp);
}

void vb_hca_quiesce(struct vb_hca *h)
{
	for (uint32_t i = 0; i < rxq_count(h); i++) {
		struct vb_rxq *r = rxq_at(h, i);

		vb_lock_take(&r->rx);
		vb_lock_give(&r->rx);
	}
}
