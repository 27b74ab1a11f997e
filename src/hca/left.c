#include "hca/left.h"

#include "base/clock.h"
#include "hca/peers.h"
#include "hca/send.h"
#include "iba/out.h"
#include "mem/peer_mem.h"

/* How long something lies before the peer is rung; and at a peer that is prompt, which by then is probably
 * not going to take it by itself, or not soon. */
#define LIES_FOR VB_MSEC
#define LATE	 (100 * VB_USEC)

void vb_left(struct vb_peer *peer)
{
	struct vb_hca *h = vb_hca(peer->adapter);

	if (atomic_exchange_explicit(&peer->left, true, memory_order_seq_cst))
		return;
	vb_set_add(&h->left, peer->index);
	if (vb_hca_watched(h->adapter))
		atomic_store_explicit(&h->next_look, 0, memory_order_relaxed);
	else
		vb_adapter_nudge(h->adapter);
}

static bool now_taken(const struct vb_peer *peer)
{
	for (uint32_t i = 0; i < peer->nlanes; i++) {
		struct vb_out *o = peer->lanes[i].out;

		if (!o->tells || !o->ops->taken(o, o->ops->mark(o)))
			return false;
	}
	return true;
}

/* Nothing lies there, as far as the wire can tell.  What is committed from here on is noted anew: whoever
 * commits stores its position and then reads peer->left, and here it is the other way round, seq_cst on both
 * sides. */
static bool all_taken(struct vb_peer *peer)
{
	if (!now_taken(peer))
		return false;
	peer->left_since = 0;
	atomic_exchange_explicit(&peer->left, false, memory_order_seq_cst);
	return now_taken(peer);
}

/* Whether the packets that were there at the last look have been taken. */
static bool then_taken(const struct vb_peer *peer)
{
	for (uint32_t i = 0; i < peer->nlanes; i++) {
		struct vb_out *o = peer->lanes[i].out;

		if (!o->tells || !o->ops->taken(o, peer->lanes[i].left_mark))
			return false;
	}
	return true;
}

/* How long something may lie there. */
static uint64_t patience(struct vb_peer *peer)
{
	const struct vb_peer_mem *f = atomic_load(&peer->mem);

	return f && vb_prompt_is(&f->prompt) ? LATE : LIES_FOR;
}

static void ring(struct vb_peer *peer)
{
	struct vb_peer_mem *f = atomic_load(&peer->mem);

	if (f)
		vb_prompt_late(&f->prompt);
	vb_peer_ring(peer);
}

/* Returns when to look at this peer again. */
static uint64_t look(struct vb_peer *peer, uint64_t now)
{
	bool up = atomic_load_explicit(&peer->state, memory_order_acquire) == VB_PEER_UP;
	uint64_t until;

	if (up && all_taken(peer))
		return VB_NEVER;
	if (up && (!peer->left_since || then_taken(peer))) {
		for (uint32_t i = 0; i < peer->nlanes; i++)
			peer->lanes[i].left_mark = peer->lanes[i].out->ops->mark(peer->lanes[i].out);
		peer->left_since = now;
	}
	until = up ? peer->left_since + patience(peer) : 0;
	if (now < until) { /* another thread's clock may have been later */
		atomic_store_explicit(&peer->left, true, memory_order_relaxed);
		return until;
	}
	peer->left_since = 0;
	atomic_store_explicit(&peer->left, false, memory_order_seq_cst);
	if (up)
		ring(peer);
	return VB_NEVER;
}

void vb_left_forget(struct vb_peer *peer)
{
	struct vb_hca *h = vb_hca(peer->adapter);

	vb_lock_take(&h->left_lock);
	vb_set_drop(&h->left, peer->index);
	peer->left_since = 0;
	atomic_store_explicit(&peer->left, false, memory_order_seq_cst);
	vb_lock_give(&h->left_lock);
}

uint64_t vb_left_look(struct vb_hca *h, uint64_t now)
{
	uint64_t next = VB_NEVER, at;

	/* While another thread has the lock, it may have what there is in its hand. */
	if (vb_set_is_empty(&h->left) && !atomic_load_explicit(&h->left_lock.held, memory_order_seq_cst))
		return VB_NEVER;
	if (!vb_lock_try(&h->left_lock))
		return now + LIES_FOR;
	for (uint64_t any = vb_set_take_any(&h->left); any; any &= any - 1) {
		uint32_t w = vb_set_lowest(any);

		for (uint64_t bits = vb_set_take_word(&h->left, w); bits; bits &= bits - 1) {
			uint32_t index = w * VB_SET_WORD + vb_set_lowest(bits);

			at = look(vb_hca_peer(h, index), now);
			if (at != VB_NEVER)
				vb_set_add(&h->left, index);
			if (at < next)
				next = at;
		}
	}
	vb_lock_give(&h->left_lock);
	return next;
}
