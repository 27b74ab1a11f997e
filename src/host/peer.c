/* The table of peers.  An entry is made on first use and goes DOWN for good when the peer disconnects.  Its
 * index is used again when no reference to it is left; so is the index of a number that no process had.  A
 * struct peer lives as long as its adapter, so that a thread may read any of them at any time.
 *
 * The windows, the address ranges into which segments of peers are mapped, live as long, too, but belong to
 * no peer for good: a peer that comes UP takes one of a peer that is not UP.  So there are as many windows as
 * there were peers at once, even if references to peers that ended remain.  The index that was freed last is
 * used first, and with it the rings in our segment, whose pages the kernel keeps.  The index of a process
 * that may live is used last, since that process may still read those rings. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/fault.h"
#include "base/log.h"
#include "host/devices.h"
#include "host/private.h"
#include "iba/reach.h"
#include "iba/rxq.h"

/* How many entries of unconnected numbers are kept, up to which number of entries, and how many are freed in
 * one step, since other threads wait for the table's lock. */
enum { SWEEP_LEAVES = 8, SWEEP_ALL = VB_MAX_PEERS / 2, SWEEP_MOST = 16 };

static int state_of(const struct peer *p)
{
	return atomic_load_explicit(&p->pub.state, memory_order_acquire);
}

static void set_state(struct peer *p, int state)
{
	atomic_store_explicit(&p->pub.state, state, memory_order_seq_cst);
}

static struct peer *peer_at(const struct vb_adapter *a, uint32_t index)
{
	return atomic_load_explicit(&a->peers[index], memory_order_acquire); /* pairs with peer_make() */
}

static struct vb_ring *ring_at(const uint8_t *base, uint32_t ring)
{
	return (struct vb_ring *)(base + VB_SEG_RINGS) + ring;
}

static struct vb_ring *rings_of(const struct peer *p)
{
	return ring_at(p->pub.adapter->seg->base, ring_index(p->pub.index, 0));
}

/* The next peer must not find packets that were meant for this one.  Nobody holds that one any more, so
 * nobody is in the middle of a send to it. */
static void clear_rings(struct peer *p)
{
	struct vb_ring *r = rings_of(p);

	for (uint32_t lane = 0; lane < p->pub.nlanes; lane++) {
		struct vb_slot *s = r[lane].slots;

		/* Slots are written in turn: pages that nobody has used are not touched. */
		for (uint32_t i = 0; i < VB_RING_SLOTS && atomic_load(&s[i].seq); i++)
			atomic_store_explicit(&s[i].seq, 0, memory_order_relaxed);
	}
	p->used = false;
}

/* Our counters of the rings of the peer that has this index. */
static void reset_counters(const struct peer *p)
{
	const uint8_t *base = p->pub.adapter->seg->base;

	for (uint32_t lane = 0; lane < VB_LANES; lane++) {
		uint32_t ring = ring_index(p->pub.index, lane);

		atomic_store_explicit(consumed_of(base, ring), 0, memory_order_release);
		atomic_store(cold_of(base, ring), 0);
	}
	atomic_store(heard_of(base, p->pub.index), 0);
}

static void peer_init(struct peer *p, uint32_t number)
{
	struct vb_peer *peer = &p->pub;

	vb_lock_assert_held(&peer->adapter->peers_lock);
	peer->number = number;
	peer->incarnation = 0;
	peer->pid = 0;
	atomic_store_explicit(&peer->refs, 0, memory_order_relaxed);
	peer->sock = -1; /* `view` stays: a thread may be on its way there */
	p->conn = NULL;
	p->same = NULL;
	p->want = p->over = p->lives = false;
	p->next_try = 0;
	atomic_store_explicit(&p->broken, false, memory_order_relaxed);
	atomic_store_explicit(&p->asked, 0, memory_order_relaxed);
	p->trouble = (struct vb_reach_facts){0};
	p->sought = 0;
	atomic_store_explicit(&p->unable, 0, memory_order_relaxed);
	atomic_store_explicit(&p->began, 0, memory_order_relaxed);
	if (p->used)
		clear_rings(p);
	reset_counters(p);
	set_state(p, VB_PEER_IDLE);
}

/* A free index: of a peer that is gone, else a fresh one with `fresh` as its object. */
static struct peer *peer_place(struct vb_adapter *a, struct peer **fresh)
{
	struct vb_list *n = vb_list_pop(&a->free_peers);
	uint32_t i = atomic_load_explicit(&a->npeers, memory_order_relaxed);
	struct peer *p = *fresh;

	vb_lock_assert_held(&a->peers_lock);
	if (n)
		return vb_list_entry(n, struct peer, free_node);
	if (i == VB_MAX_PEERS || !p)
		return NULL;
	*fresh = NULL;
	p->pub.far.kind = a->ops->far;
	p->pub.adapter = a;
	p->pub.index = i;
	p->pub.nlanes = a->wire->lanes;
	vb_list_init(&p->free_node);
	return p;
}

static struct peer *peer_make(struct vb_adapter *a, uint32_t number, struct peer **fresh)
{
	struct peer *p = peer_place(a, fresh);

	if (!p)
		return NULL;
	peer_init(p, number);
	if (!peer_at(a, p->pub.index)) {
		atomic_store_explicit(&a->peers[p->pub.index], p, memory_order_release);
		atomic_store_explicit(&a->npeers, p->pub.index + 1, memory_order_release);
	}
	a->by_number[number] = (uint16_t)(p->pub.index + 1);
	return p;
}

static struct peer *peer_alloc(void)
{
	struct peer *p = aligned_alloc(VB_LINE, (sizeof(*p) + VB_LINE - 1) & ~(size_t)(VB_LINE - 1));

	if (p)
		memset(p, 0, sizeof(*p));
	return p;
}

/* Asks the engine for contact. */
static void ask_contact(struct peer *p)
{
	vb_lock_assert_held(&p->pub.adapter->peers_lock);
	p->want = true;
	if (!atomic_load_explicit(&p->began, memory_order_relaxed))
		atomic_store_explicit(&p->began, vb_now(), memory_order_relaxed);
	set_state(p, VB_PEER_CONTACTING);
	atomic_store_explicit(&p->pub.adapter->contact_work, true, memory_order_release);
}

struct peer *vb_peer_make(struct vb_adapter *a, uint32_t number, bool want)
{
	struct peer *fresh = peer_alloc(), *p = NULL;
	uint32_t known;

	vb_lock_take(&a->peers_lock);
	known = a->by_number[number];
	if (known) /* a QP may just have named it */
		p = peer_at(a, known - 1);
	if (!p || state_of(p) == VB_PEER_DOWN)
		p = peer_make(a, number, &fresh);
	if (p && want)
		ask_contact(p);
	vb_lock_give(&a->peers_lock);
	free(fresh);
	return p;
}

/* This process itself: always the first peer. */
int vb_peer_self(struct vb_adapter *a)
{
	struct peer *p = vb_peer_make(a, a->head->number, false);
	int err;

	if (!p)
		return ENOMEM;
	pthread_mutex_lock(&a->control);
	err = vb_peer_attach(p, a->seg->base, a->seg->hints, p->pub.index, a->seg->incarnation);
	pthread_mutex_unlock(&a->control);
	if (err)
		return err;
	p->pub.incarnation = a->seg->incarnation;
	p->pub.pid = a->pid;
	set_state(p, VB_PEER_UP);
	return 0;
}

/* The parts of a lane: `base` is the peer's segment, in which this process is its peer of index peer_index.
 */
static struct vb_wire_parts lane_parts(const struct vb_peer *peer, uint32_t lane, const uint8_t *base,
				       uint32_t peer_index)
{
	const uint8_t *own = peer->adapter->seg->base;
	uint32_t ours = ring_index(peer->index, lane), theirs = ring_index(peer_index, lane);

	return (struct vb_wire_parts){
	    .to = ring_at(own, ours),
	    .from = ring_at(base, theirs),
	    .consumed = consumed_of(own, ours),
	    .peer_consumed = consumed_of(base, theirs),
	    .peer_awake = (const _Atomic uint32_t *)(base + VB_SEG_AWAKE),
	    .cold = cold_of(own, ours),
	    .peer_cold = cold_of(base, theirs),
	    .hint = theirs,
	    .gids = ((const struct vb_seg_head *)base)->gids,
	    .lid = vb_devices_lid(((const struct vb_seg_head *)base)->device % VB_MAX_DEVICES),
	};
}

int vb_peer_attach(struct peer *p, const uint8_t *base, struct vb_set *hints, uint32_t peer_index,
		   uint64_t incarnation)
{
	struct vb_peer *peer = &p->pub;
	struct vb_adapter *a = peer->adapter;
	uint32_t offset = vb_segment_key_offset(base); /* this once */

	vb_mutex_assert_held(&a->control);
	if (offset > VB_KEY_OFFSET_MAX)
		return EPROTO;
	for (uint32_t lane = 0; lane < peer->nlanes; lane++) {
		struct vb_wire_parts parts = lane_parts(peer, lane, base, peer_index);
		int err;

		parts.peer_hints = hints;
		parts.incarnation = incarnation;
		err = a->wire->up(peer, &peer->lanes[lane], &parts);
		if (err)
			return err;
	}
	peer->view = base;
	peer->view_index = peer_index;
	atomic_store_explicit(&p->rung, 0, memory_order_relaxed); /* before the link is UP */
	peer->key_offset = offset;
	return 0;
}

void vb_peer_rise(struct peer *p)
{
	struct vb_adapter *a = p->pub.adapter;

	vb_mutex_assert_held(&a->control);
	vb_lock_take(&a->peers_lock);
	p->trouble = (struct vb_reach_facts){0};
	p->want = false;
	p->used = true;
	a->by_number[p->pub.number] = (uint16_t)(p->pub.index + 1);
	set_state(p, VB_PEER_UP);
	vb_lock_give(&a->peers_lock);
	/* Behind that: without contact, and not making any for as long as anybody knows, it would be gone. */
	atomic_store_explicit(&p->asked, 0, memory_order_relaxed);
	atomic_store_explicit(&p->unable, 0, memory_order_relaxed);
	atomic_store_explicit(&p->began, 0, memory_order_release); /* pairs with vb_peer_pending() */
	a->ops->peer_up(&p->pub);
	/* From here on the upper layer waits for what the peer announces, if it has memory for that. */
	if (atomic_load(&p->pub.mem))
		atomic_store(heard_of(a->seg->base, p->pub.index), token_of(p->pub.incarnation));
}

/* An attempt to connect has failed. */
void vb_peer_failed(struct peer *p, bool tell)
{
	struct vb_adapter *a = p->pub.adapter;

	vb_mutex_assert_held(&a->control);
	atomic_store_explicit(&p->asked, 0, memory_order_relaxed);
	vb_lock_take(&a->peers_lock);
	p->want = false;
	p->conn = NULL;
	set_state(p, VB_PEER_IDLE);
	vb_lock_give(&a->peers_lock);
	if (!tell)
		return;
	a->ops->peer_up(&p->pub);
	vb_adapter_resume(a); /* what waits for contact has the engine ask for it anew */
}

/* No reference to the peer and nothing of it is left: its index may be used again. */
static void peer_retire(struct peer *p)
{
	struct vb_adapter *a = p->pub.adapter;
	uint32_t n = atomic_load_explicit(&a->npeers, memory_order_relaxed);

	vb_lock_assert_held(&a->peers_lock);
	for (uint32_t i = 0; i < VB_ADAPTERS; i++) {
		if (a->by_number[i] == p->pub.index + 1)
			a->by_number[i] = 0;
	}
	for (uint32_t i = 0; i < n; i++) {
		struct peer *q = peer_at(a, i);

		if (q->same == p)
			q->same = NULL;
	}
	if (p->lives)
		vb_list_append(&a->free_peers, &p->free_node);
	else
		vb_list_push(&a->free_peers, &p->free_node);
}

static void peer_over(struct peer *p)
{
	struct vb_adapter *a = p->pub.adapter;

	vb_lock_take(&a->peers_lock);
	p->over = true;
	if (!atomic_load_explicit(&p->pub.refs, memory_order_acquire))
		peer_retire(p);
	vb_lock_give(&a->peers_lock);
}

/* No process of this user has that number, and no reference to it is left.  Under `control`, since a process
 * that connects may be about to become this peer. */
static bool peer_is_idle(const struct peer *p)
{
	return state_of(p) == VB_PEER_IDLE && !p->want && !p->conn && !vb_list_linked(&p->free_node) &&
	       !atomic_load_explicit(&p->pub.refs, memory_order_acquire);
}

/* One that was tried a moment ago keeps its place, so that it is not tried again at once, unless few places
 * are left. */
uint64_t vb_peers_sweep(struct vb_adapter *a, uint64_t now)
{
	uint32_t n = atomic_load_explicit(&a->npeers, memory_order_relaxed), idle = 0, swept = 0, leave;
	uint64_t next = VB_NEVER;

	vb_mutex_assert_held(&a->control);
	vb_lock_take(&a->peers_lock);
	leave = n >= SWEEP_ALL && vb_list_empty(&a->free_peers) ? 0 : SWEEP_LEAVES;
	for (uint32_t i = 1; i < n; i++)
		idle += peer_is_idle(peer_at(a, i));
	for (uint32_t i = 1; i < n && idle > leave && swept < SWEEP_MOST; i++) {
		struct peer *p = peer_at(a, i);

		if (!peer_is_idle(p))
			continue;
		if (p->next_try > now && leave) {
			next = p->next_try < next ? p->next_try : next;
			continue;
		}
		set_state(p, VB_PEER_DOWN);
		p->over = true;
		peer_retire(p);
		idle--;
		swept++;
	}
	vb_lock_give(&a->peers_lock);
	return idle <= leave ? VB_NEVER : swept == SWEEP_MOST ? now : next;
}

void vb_peer_take_window(struct peer *p)
{
	struct vb_adapter *a = p->pub.adapter;
	uint32_t n = atomic_load_explicit(&a->npeers, memory_order_relaxed);

	vb_mutex_assert_held(&a->control);
	for (uint32_t i = 1; i < n && !p->window; i++) {
		struct peer *q = peer_at(a, i);

		if (state_of(q) == VB_PEER_UP && !q->seg)
			continue;
		p->window = q->window;
		q->window = NULL;
	}
}

/* Under the locks of its receive queues, so that nobody reads its rings any more. */
void vb_peer_unmap(struct peer *p)
{
	const struct vb_peer *peer = &p->pub;

	vb_mutex_assert_held(&peer->adapter->control);
	for (uint32_t lane = 0; lane < peer->nlanes && peer->lanes[lane].rxq; lane++)
		vb_lock_take(&peer->lanes[lane].rxq->rx);
	if (!p->seg && p->window)
		vb_segment_unmap(p->window);
	if (!p->seg && p->hints)
		vb_hints_unmap(p->hints);
	for (uint32_t lane = 0; lane < peer->nlanes && peer->lanes[lane].rxq; lane++)
		vb_lock_give(&peer->lanes[lane].rxq->rx);
}

static bool any_ready(const struct vb_peer *peer)
{
	for (uint32_t lane = 0; lane < peer->nlanes; lane++)
		if (vb_rxq_ready(peer->lanes[lane].rxq))
			return true;
	return false;
}

/* How many packets of it were taken in, ever. */
static uint32_t taken(const struct vb_peer *peer)
{
	uint32_t n = 0;

	for (uint32_t lane = 0; lane < peer->nlanes; lane++)
		n += atomic_load_explicit(&peer->lanes[lane].rxq->at, memory_order_relaxed);
	return n;
}

/* A thread skips a ring that another thread holds.  The next look finds the packets that the other one
 * leaves. */
static void await_holders(const struct vb_peer *peer)
{
	for (uint32_t lane = 0; lane < peer->nlanes; lane++) {
		vb_lock_take(&peer->lanes[lane].rxq->rx);
		vb_lock_give(&peer->lanes[lane].rxq->rx);
	}
}

/* Reads the packets that the peer sent before it disconnected: at most as many as its rings hold, since it
 * may live and continue. */
static void read_to_end(struct peer *p)
{
	struct vb_adapter *a = p->pub.adapter;
	uint32_t begun = taken(&p->pub);

	while (any_ready(&p->pub) && taken(&p->pub) - begun < VB_LANES * VB_RING_SLOTS &&
	       !atomic_load_explicit(&p->broken, memory_order_relaxed)) {
		a->ops->progress(a, VB_LOOK_ALL);
		await_holders(&p->pub);
	}
}

void vb_peer_fall(struct peer *p, enum vb_peer_end how, const char *why)
{
	struct vb_peer *peer = &p->pub;
	struct vb_adapter *a = peer->adapter;
	uint64_t began = 0;

	vb_mutex_assert_held(&a->control);
	vb_log(how == VB_END_GOODBYE ? VB_LOG_DEBUG : VB_LOG_INFO,
	       "the connection to adapter %u (PID %u) has ended: %s", peer->number, peer->pid, why);
	read_to_end(p);
	atomic_store(heard_of(a->seg->base, peer->index), 0);
	atomic_store(&peer->fades, how == VB_END_UNCLEAR || how == VB_END_CLOSED || how == VB_END_LOST ||
				       how == VB_END_RUBBISH);
	vb_lock_take(&a->peers_lock);
	set_state(p, VB_PEER_DOWN);
	vb_lock_give(&a->peers_lock);
	while (atomic_load_explicit(&p->ringing, memory_order_seq_cst)) /* pairs with vb_peer_ring() */
		vb_cpu_offer(&began);
	peer->sock = -1;
	VB_FAULT_POINT("link down, its QPs do not know yet");
	a->ops->peer_down(peer, how); /* still reads the peer's tables */
	if (p->conn) {
		vb_conn_close(a, p->conn);
		p->conn = NULL;
	}
	VB_FAULT_POINT("link down, the segment still mapped");
	vb_peer_unmap(p);
	/* The pages stay in the file, which is sealed, and leave this process's memory. */
	madvise(rings_of(p), peer->nlanes * sizeof(struct vb_ring), MADV_DONTNEED);
	p->lives = how != VB_END_DIED && how != VB_END_REPLACED;
	peer_over(p);
}

struct peer *vb_peer_publishing(struct vb_adapter *a, uint32_t number)
{
	uint32_t n = atomic_load_explicit(&a->npeers, memory_order_acquire);

	vb_lock_assert_held(&a->peers_lock);
	for (uint32_t i = 1; i < n; i++) {
		struct peer *p = peer_at(a, i);

		if (state_of(p) == VB_PEER_UP && vb_segment_lists(p->pub.view, number))
			return p;
	}
	return NULL;
}

struct peer *vb_peer_by_incarnation(struct vb_adapter *a, uint64_t incarnation)
{
	uint32_t n = atomic_load_explicit(&a->npeers, memory_order_acquire);

	vb_mutex_assert_held(&a->control);
	for (uint32_t i = 0; i < n; i++) {
		struct peer *p = peer_at(a, i);

		if (state_of(p) == VB_PEER_UP && p->pub.incarnation == incarnation)
			return p;
	}
	return NULL;
}

/* The peer that has the number at present.  NULL: none. */
static struct peer *peer_known(struct vb_adapter *a, uint32_t number)
{
	uint32_t i = a->by_number[number];
	struct peer *p = i ? peer_at(a, i - 1) : NULL;

	vb_lock_assert_held(&a->peers_lock);
	if (p && p->same)
		p = p->same;
	if (p && state_of(p) != VB_PEER_DOWN)
		return p;
	/* Our own further numbers lead to ourselves. */
	if (atomic_load_explicit(&a->slot_of[number], memory_order_acquire))
		return peer_at(a, 0);
	p = vb_peer_publishing(a, number);
	if (p)
		a->by_number[number] = (uint16_t)(p->pub.index + 1);
	return p;
}

struct vb_peer *vb_peer_get(struct vb_adapter *a, uint32_t number)
{
	struct peer *p, *fresh = NULL;
	bool ask = false;

	if (vb_adapter_dead(a) || !number || number >= VB_ADAPTERS)
		return NULL;
	vb_lock_take(&a->peers_lock);
	p = peer_known(a, number);
	if (!p && vb_list_empty(&a->free_peers)) {
		vb_lock_give(&a->peers_lock); /* not over an allocation */
		fresh = peer_alloc();
		vb_lock_take(&a->peers_lock);
		p = peer_known(a, number);
	}
	if (!p)
		p = peer_make(a, number, &fresh);
	if (p) {
		atomic_fetch_add_explicit(&p->pub.refs, 1, memory_order_relaxed); /* vb_peer_put() */
		ask = state_of(p) == VB_PEER_IDLE;
		if (ask)
			ask_contact(p);
	}
	vb_lock_give(&a->peers_lock);
	free(fresh);
	if (ask)
		vb_adapter_nudge(a);
	return p ? &p->pub : NULL;
}

void vb_peer_put(struct vb_peer *peer)
{
	struct vb_adapter *a = peer->adapter;
	struct peer *p = peer_of(peer);

	if (vb_adapter_dead(a))
		return;
	if (atomic_fetch_sub_explicit(&peer->refs, 1, memory_order_acq_rel) != 1)
		return;
	vb_lock_take(&a->peers_lock);
	if (p->over && !vb_list_linked(&p->free_node) &&
	    !atomic_load_explicit(&peer->refs, memory_order_acquire))
		peer_retire(p);
	vb_lock_give(&a->peers_lock);
	if (state_of(p) == VB_PEER_IDLE) /* when the engine runs the next time: vb_peers_sweep() */
		atomic_store_explicit(&a->contact_work, true, memory_order_release);
}

void vb_peer_contact(struct vb_peer *peer)
{
	struct vb_adapter *a = peer->adapter;
	bool ask;

	if (vb_adapter_dead(a))
		return;
	vb_lock_take(&a->peers_lock);
	ask = state_of(peer_of(peer)) == VB_PEER_IDLE;
	if (ask)
		ask_contact(peer_of(peer));
	vb_lock_give(&a->peers_lock);
	if (ask)
		vb_adapter_nudge(a);
}

struct vb_reach_facts vb_peer_trouble(struct vb_peer *peer, uint32_t *asked)
{
	struct vb_adapter *a = peer->adapter;
	struct vb_reach_facts t;

	*asked = atomic_load_explicit(&peer_of(peer)->asked, memory_order_relaxed);
	vb_lock_take(&a->peers_lock);
	t = peer_of(peer)->trouble;
	vb_lock_give(&a->peers_lock);
	return t;
}

uint32_t vb_peer_unable(struct vb_peer *peer)
{
	return atomic_load_explicit(&peer_of(peer)->unable, memory_order_relaxed);
}

struct vb_peer *vb_peer_current(struct vb_peer *peer)
{
	struct vb_adapter *a = peer->adapter;
	struct peer *same;

	if (vb_adapter_dead(a))
		return peer;
	vb_lock_take(&a->peers_lock);
	same = peer_of(peer)->same;
	if (same)
		atomic_fetch_add_explicit(&same->pub.refs, 1, memory_order_relaxed);
	vb_lock_give(&a->peers_lock);
	if (!same)
		return peer;
	vb_peer_put(peer);
	return &same->pub;
}

bool vb_peer_is_alias(struct vb_peer *peer)
{
	struct vb_adapter *a = peer->adapter;
	bool is;

	vb_lock_take(&a->peers_lock);
	is = peer_of(peer)->same;
	vb_lock_give(&a->peers_lock);
	return is;
}

void vb_peer_insane(struct vb_peer *peer)
{
	struct vb_adapter *a = peer->adapter;

	if (vb_adapter_dead(a) || atomic_exchange(&peer_of(peer)->broken, true))
		return;
	vb_log(VB_LOG_ERROR,
	       "adapter %u (PID %u) wrote an invalid packet to its ring; its connection is closed",
	       peer->number, peer->pid);
	atomic_store(&a->breaks, true);
	vb_engine_kick(a);
}

struct vb_peer *vb_peer_at(const struct vb_adapter *a, uint32_t index)
{
	struct peer *p = index < VB_MAX_PEERS ? peer_at(a, index) : NULL;

	return p ? &p->pub : NULL;
}

uint32_t vb_peer_count(const struct vb_adapter *a)
{
	return atomic_load_explicit(&a->npeers, memory_order_acquire);
}

int vb_peer_pidfd(struct vb_peer *peer)
{
	const struct peer *p = peer_of(peer);

	if (!peer->index)
		return -1;
	vb_mutex_assert_held(&peer->adapter->control);
	return p->conn ? p->conn->pidfd : -1;
}

/* The engine is gone, and no QP is left. */
void vb_peers_free(struct vb_adapter *a)
{
	uint32_t n = atomic_load_explicit(&a->npeers, memory_order_relaxed);

	for (uint32_t i = 0; i < n; i++) {
		struct peer *p = peer_at(a, i);

		for (uint32_t lane = 0; lane < p->pub.nlanes; lane++)
			if (p->pub.lanes[lane].out)
				a->wire->free(&p->pub.lanes[lane]);
		if (atomic_load(&p->pub.mem))
			a->ops->peer_free(&p->pub);
		if (p->seg)
			vb_segment_put(p->seg);
		vb_segment_release(p->window);
		vb_hints_release(p->hints);
		free(p);
	}
}
