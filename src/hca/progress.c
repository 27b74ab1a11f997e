/* Locks, in the order in which they are taken: rxq->rx (trylock but for destruction), hca->timer_lock
 * (trylock but to add), a QP's posting lock, qp->lock, then its lock for receives, SRQ, CQ and channel, then
 * rxq->owed_lock or the wire's own. hca->moderated_lock comes before a CQ's, and the lock of an extended CQ's
 * consumer, which the program keeps from one call to another, before all others. hca->left_lock (trylock but
 * to forget a peer) is taken with none of these held, and none is taken under it. hca->timer_lock is also
 * taken under qp->lock to add a QP; the scan that holds it only tries qp->lock, so that the two do not wait
 * for one another. */
#include "hca/progress.h"

#include "base/clock.h"
#include "hca/cqs.h"
#include "hca/direct.h"
#include "hca/gsi.h"
#include "hca/hosts.h"
#include "hca/idle.h"
#include "hca/left.h"
#include "hca/lost.h"
#include "hca/path.h"
#include "hca/peers.h"
#include "hca/port.h"
#include "hca/receive.h"
#include "hca/say.h"
#include "hca/send.h"
#include "hca/stuck.h"
#include "hca/timed.h"
#include "hca/warm.h"
#include "iba/out.h"

enum {
	/* Polls after which it is counted how many looks at queues they were, and looks after which those
	 * that were in vain are to become rarer: where few queues are warm, looking costs little, and a
	 * sender that finds its queue cold loses some 300 ns. */
	COUNT_EVERY = 256,
	COOL_EVERY = 8192,
	SPINS_ARMED = 4 * VB_SPINS, /* polls in a row that make a sleeper a poller while a CQ is armed */
};

static __thread struct vb_idle idle = VB_IDLE_BEGIN;

static unsigned look_at_warm(struct vb_hca *h, enum vb_take take)
{
	unsigned n = 0;

	for (uint64_t any = vb_set_any(&h->warm); any; any &= any - 1) {
		uint32_t w = vb_set_lowest(any);

		for (uint64_t bits = vb_set_word(&h->warm, w); bits; bits &= bits - 1) {
			struct vb_rxq *r = vb_hca_rxq_at(h, w * VB_SET_WORD + vb_set_lowest(bits));

			if (vb_hca_rxq_seems_busy(r))
				n += vb_hca_look(r, take);
		}
	}
	return n;
}

/* Finds the warm queue that seems busy if one alone is warm, as most often: that takes neither a loop nor a
 * stack. */
static inline struct vb_rxq *busy(const struct vb_hca *h)
{
	uint64_t any = vb_set_any(&h->warm), bits;
	struct vb_rxq *r;
	uint32_t w;

	if (vb_unlikely(!any))
		return NULL;
	w = vb_set_lowest(any);
	bits = vb_set_word(&h->warm, w);
	if (vb_unlikely(any & (any - 1)) || vb_unlikely(bits & (bits - 1)) || vb_unlikely(!bits))
		return VB_POLL_ALL;
	r = vb_hca_rxq_at(h, w * VB_SET_WORD + vb_set_lowest(bits));
	return vb_hca_rxq_seems_busy(r) ? r : NULL;
}

static unsigned progress(struct vb_adapter *a, enum vb_look how)
{
	unsigned n;

	if (how == VB_LOOK_ALL)
		vb_hca_notice(a);
	if (!vb_set_is_empty(vb_adapter_presence(a)->hints))
		vb_hca_take_hints(vb_hca(a));
	vb_gsi_listen();
	n = look_at_warm(vb_hca(a), VB_TAKE_ALL);
	if (n)
		vb_sleepers_notice(a);
	vb_gsi_hear(vb_hca(a));
	return n;
}

static __attribute__((noinline)) void count_looks(struct vb_hca *h)
{
	const struct vb_presence *here = vb_adapter_presence(h->adapter);
	uint32_t looks = atomic_load_explicit(&h->looks, memory_order_relaxed);

	atomic_store_explicit(here->told, atomic_load_explicit(&here->polls, memory_order_relaxed),
			      memory_order_relaxed);
	for (uint64_t any = vb_set_any(&h->warm); any; any &= any - 1)
		looks +=
		    COUNT_EVERY * (uint32_t)__builtin_popcountll(vb_set_word(&h->warm, vb_set_lowest(any)));
	if (looks >= COOL_EVERY) {
		vb_hca_cool(h);
		looks = 0;
	}
	atomic_store_explicit(&h->looks, looks, memory_order_relaxed);
	if (!idle.looked) /* else poll_in_vain() does */
		vb_hosts_look(h, 0);
}

/* Whether anybody has polled since timers were looked at before. */
static bool somebody_polled(struct vb_hca *h)
{
	uint32_t polls = atomic_load_explicit(&vb_adapter_presence(h->adapter)->polls, memory_order_relaxed);

	return vb_hca_watched(h->adapter) &&
	       atomic_exchange_explicit(&h->timer_polls, polls, memory_order_relaxed) != polls;
}

/* Lets the paths on a queue send; returns when to try again.  A peer does not say when there is room in its
 * ring: soon, if it has taken packets out since the last try. */
static uint64_t push_on(struct vb_rxq *r, bool polled, uint64_t now)
{
	struct vb_out *o = r->out;
	uint64_t before = o ? o->ops->mark(o) : 0;

	/* what is to be placed directly is a poller's, while there is one */
	if (polled && atomic_load_explicit(&r->placing, memory_order_relaxed))
		return now + VB_MSEC;
	vb_hca_look(r, VB_TAKE_BATCH);
	if (!atomic_load_explicit(&r->owes, memory_order_relaxed))
		return VB_NEVER;
	if (atomic_load_explicit(&r->placing, memory_order_relaxed))
		return now;
	/* A thread that waits for the far end's queue pair hears its bell (hca/path.c), and hca/timed.c looks
	 * now and then. */
	if (!atomic_load(&r->waits) && !atomic_load_explicit(&r->rx.held, memory_order_relaxed))
		return VB_NEVER;
	return now + ((o && o->ops->mark(o) != before) || r->ops->room(r) ? VB_MSEC / 10 : VB_MSEC);
}

/* A QP that owes something is on a warm queue. */
static uint64_t push_all(struct vb_hca *h, bool polled, uint64_t now)
{
	uint64_t next = VB_NEVER, at;

	for (uint64_t any = vb_set_any(&h->warm); any; any &= any - 1) {
		uint32_t w = vb_set_lowest(any);

		for (uint64_t bits = vb_set_word(&h->warm, w); bits; bits &= bits - 1) {
			struct vb_rxq *r = vb_hca_rxq_at(h, w * VB_SET_WORD + vb_set_lowest(bits));

			if (!vb_hca_rxq_is_open(r) || !atomic_load_explicit(&r->owes, memory_order_relaxed))
				continue;
			at = push_on(r, polled, now);
			if (at < next)
				next = at;
		}
	}
	return next;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Returns when the engine has to look again.  Whoever polls looks by himself, after a millisecond at most; if
 * he stops, the engine finds that at its next look at the pollers. */
static uint64_t timers(struct vb_adapter *a, uint64_t now)
{
	struct vb_hca *h = vb_hca(a);
	bool polled = somebody_polled(h);
	uint64_t next, soon, again;

	atomic_store_explicit(&h->next_look, VB_NEVER, memory_order_relaxed);
	soon = vb_hca_scan(h, now, &again);
	soon = least(soon, again);
	soon = least(soon, vb_left_look(h, now));
	soon = least(soon, vb_relaxed_tick(&h->relaxed, now));
	soon = least(soon, push_all(h, polled, now));
	next = least(vb_cqs_look(h, now), vb_sleepers_look(now)); /* events for those that sleep */
	soon = least(soon, next);
	if (!polled)
		next = soon;
	/* `next_look` may have become 0 meanwhile, and then stays so. */
	soon = least(soon, now + VB_MSEC);
	if (soon < atomic_load_explicit(&h->next_look, memory_order_relaxed))
		atomic_store_explicit(&h->next_look, soon, memory_order_relaxed);
	return next;
}

/* The further work of the engine. */
static uint64_t engine_timers(struct vb_adapter *a, uint64_t now)
{
	uint64_t next = least(timers(a, now), vb_hca_say_on(vb_hca(a), now));

	if (vb_hca(a)->upper)
		next = least(next, vb_hca(a)->upper->timers(vb_hca(a), now));
	next = least(next, vb_gsi_run(vb_hca(a), now));
	vb_hosts_say_refused(vb_hca(a));
	if (vb_addresses_tick(&vb_hca(a)->addresses, now) && next > now + VB_ADDRESSES_APART)
		next = now + VB_ADDRESSES_APART;
	return next;
}

/* A thread that goes to sleep is sent ACKs at once from now on.  One that was held back just before shows. */
static void slept(struct vb_adapter *a)
{
	uint64_t now = vb_now(), again, next = vb_hca_scan(vb_hca(a), now, &again),
		 at = vb_left_look(vb_hca(a), now);

	if (next <= now + VB_MSEC || again != VB_NEVER || at != VB_NEVER)
		vb_adapter_nudge(a);
}

static void lost(struct vb_adapter *a)
{
	vb_device_lost(a);
	vb_gsi_lost(vb_hca(a));
}

const struct vb_adapter_ops vb_hca_ops = {
    .far = &vb_far_peer,
    .slept = slept,
    .left = vb_left,
    .peer_free = vb_direct_peer_free,
    .told = vb_hca_told,
    .progress = progress,
    .ready = vb_hca_ready,
    .notice = vb_hca_notice,
    .rang = vb_hca_rang,
    .timers = engine_timers,
    .peer_up = vb_hca_peer_up,
    .peer_down = vb_hca_peer_down,
    .lost = lost,
    .link = vb_port_link,
    .network = vb_port_network,
};

/* The word says asleep.  A few polls after an event are no polling, nor are polls that are far apart: who
 * polls now and then waits for something else meanwhile.  And a program that arms a CQ is about to sleep. */
static __attribute__((cold, noinline)) void spin(struct vb_adapter *a, struct vb_presence *here)
{
	uint32_t spins = atomic_load_explicit(&here->spins, memory_order_relaxed) + 1;
	bool armed = atomic_load_explicit(&here->armed, memory_order_relaxed);
	uint64_t now = vb_now();

	if (spins == 1 || now - atomic_load_explicit(&here->spun, memory_order_relaxed) > VB_MSEC) {
		spins = 1;
		atomic_store_explicit(&here->spun, now, memory_order_relaxed);
	}
	atomic_store_explicit(&here->spins, spins, memory_order_relaxed);
	if (spins > (armed ? SPINS_ARMED : VB_SPINS))
		vb_adapter_wake(a);
}

/* Timers, and what was left in rings, are looked at once a millisecond by whoever polls in vain; sooner where
 * something lies at a peer that is prompt. */
static __attribute__((noinline)) uint64_t look_at_clock(struct vb_adapter *a)
{
	uint64_t now = vb_now();

	if (now >= atomic_load_explicit(&vb_hca(a)->next_look, memory_order_relaxed))
		timers(a, now);
	return now;
}

static __attribute__((noinline)) void offer_cpu(struct vb_adapter *a)
{
	_Atomic uint32_t *yielding = &vb_hca(a)->yielding;
	uint64_t before = vb_now();
	uint32_t others;
	bool offered;

	atomic_fetch_add_explicit(yielding, 1, memory_order_relaxed);
	offered = vb_adapter_yield(a);
	others = atomic_fetch_sub_explicit(yielding, 1, memory_order_relaxed) - 1;
	if (offered)
		vb_idle_offered(&idle, vb_now() - before, others);
	else
		idle.looked = 0;
}

/* What comes from other hosts has no sender that would ring. */
static void look_for_hosts(struct vb_hca *h, uint64_t now)
{
	if (vb_likely(!h->hosts))
		return;
	vb_idle_pace(&idle, now - idle.clock, VB_HOSTS_LOOK);
	idle.clock = now;
	vb_hosts_look(h, now);
}

static __attribute__((noinline)) void poll_in_vain(struct vb_adapter *a)
{
	look_for_hosts(vb_hca(a), look_at_clock(a));
	idle.looked += idle.polls;
	idle.polls = 0;
	if (idle.looked >= idle.yield_at)
		offer_cpu(a);
}

/* If no other thread has come to this since this one did, most likely none waits. */
static __attribute__((noinline)) void offer_to_others(struct vb_adapter *a)
{
	_Atomic(const void *) *last = &vb_hca(a)->for_others;

	if (atomic_load_explicit(last, memory_order_relaxed) == &idle) {
		idle.others = 0;
		return;
	}
	atomic_store_explicit(last, &idle, memory_order_relaxed);
	offer_cpu(a);
}

void vb_hca_polled_for_others(struct vb_adapter *a)
{
	if (vb_unlikely(++idle.others >= idle.yield_at))
		offer_to_others(a);
}

inline __attribute__((always_inline)) void vb_hca_polled_well(void)
{
	idle.others = 0;
}

inline __attribute__((always_inline)) struct vb_rxq *vb_hca_poll_where(struct vb_adapter *a)
{
	struct vb_presence *here = vb_adapter_presence(a);
	const struct vb_hca *h = vb_hca(a);
	uint32_t polls = atomic_load_explicit(&here->polls, memory_order_relaxed) + 1;
	struct vb_rxq *r;

	if (vb_unlikely(polls % COUNT_EVERY == 0 || idle.polls + 1 >= idle.look_at ||
			!vb_set_is_empty(here->hints) ||
			atomic_load_explicit(here->awake, memory_order_relaxed) == VB_ASLEEP ||
			atomic_load_explicit(&h->rnr_waits, memory_order_relaxed)))
		return VB_POLL_ALL;
	r = busy(h);
	if (r)
		return r;
	idle.polls++;
	atomic_store_explicit(&here->polls, polls, memory_order_relaxed);
	return NULL;
}

/* If polls in between found nothing, packets come one at a time. */
static inline enum vb_take by_pace(void)
{
	return idle.polls ? VB_TAKE_ONE : VB_TAKE_BATCH;
}

/* Something came, for whom is not known here. */
static inline bool came(void)
{
	idle.others += idle.polls;
	idle.polls = idle.looked = 0;
	return true;
}

/* The thread that posts receive requests may have no other CPU than this one. */
static __attribute__((noinline)) void wait_for_receiver(struct vb_adapter *a, bool some)
{
	look_at_clock(a);
	if (!some && atomic_load_explicit(&vb_hca(a)->slow_receivers, memory_order_relaxed))
		vb_adapter_yield(a);
}

static __attribute__((noinline)) bool poll_all(struct vb_adapter *a, uint32_t polls)
{
	struct vb_presence *here = vb_adapter_presence(a);
	struct vb_hca *h = vb_hca(a);
	bool some = false;

	if (vb_unlikely(polls % COUNT_EVERY == 0))
		count_looks(h);
	if (vb_unlikely(atomic_load_explicit(here->awake, memory_order_relaxed) == VB_ASLEEP))
		spin(a, here);
	if (vb_unlikely(!vb_set_is_empty(here->hints)))
		vb_hca_take_hints(h);
	if (look_at_warm(h, by_pace()))
		some = came();
	else if (vb_unlikely((idle.polls += vb_hosts_called(h) ? VB_IDLE_CALL : 1) >= idle.look_at))
		poll_in_vain(a);
	if (vb_unlikely(atomic_load_explicit(&h->rnr_waits, memory_order_relaxed)))
		wait_for_receiver(a, some);
	return some;
}

inline __attribute__((always_inline)) bool vb_hca_poll(struct vb_adapter *a, struct vb_rxq *where)
{
	struct vb_presence *here = vb_adapter_presence(a);
	uint32_t polls = atomic_load_explicit(&here->polls, memory_order_relaxed) + 1;

	atomic_store_explicit(&here->polls, polls, memory_order_relaxed);
	if (vb_unlikely(where == VB_POLL_ALL))
		return poll_all(a, polls);
	if (vb_hca_look(where, by_pace()))
		return came();
	idle.polls += vb_likely(where->out != NULL) ? 1 : VB_IDLE_CALL;
	return false;
}
