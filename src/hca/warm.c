#include "hca/warm.h"

enum { QUIET_LOOKS = 2 }; /* of vb_hca_cool() that find nothing new, after which a queue becomes cold */

void vb_hca_warm(struct vb_rxq *r)
{
	/* In this order: see cool(). */
	atomic_store_explicit(r->cold, 0, memory_order_seq_cst);
	vb_set_add(&vb_hca(r->adapter)->warm, r->index);
}

/* A packet has come to a queue that was quiet, and mostly the queue pair was so as well: its lines come while
 * the packet is on its way to it. */
static void expect(struct vb_rxq *r)
{
	const struct vb_qp *qp;

	if (!r->ops->names || !vb_lock_try(&r->rx))
		return;
	qp = vb_qpn_find(r->adapter, r->ops->names(r));
	if (qp)
		vb_qp_expect_packet(qp);
	vb_lock_give(&r->rx);
}

/* Any number may stand in the set. */
static void warm_hinted(struct vb_hca *h, uint32_t i)
{
	struct vb_rxq *r = vb_hca_rxq_at(h, i);

	if (!r || !vb_hca_rxq_is_open(r))
		return;
	expect(r);
	vb_hca_warm(r);
}

/* For who had hints in his hand, or a queue that was neither warm nor seen to be cold, or hid others:
 * somebody who fell asleep meanwhile saw nothing of it, and its sender may have found the word at polling. */
static void tell_sleeper(struct vb_hca *h)
{
	const struct vb_presence *here = vb_adapter_presence(h->adapter);

	if (atomic_load_explicit(here->awake, memory_order_seq_cst) == VB_ASLEEP)
		vb_adapter_resume(h->adapter);
}

void vb_hca_take_hints(struct vb_hca *h)
{
	struct vb_presence *here = vb_adapter_presence(h->adapter);

	for (uint64_t any = vb_set_take_any(here->hints); any; any &= any - 1) {
		uint32_t w = vb_set_lowest(any);

		for (uint64_t bits = vb_set_take_word(here->hints, w); bits; bits &= bits - 1)
			warm_hinted(h, w * VB_SET_WORD + vb_set_lowest(bits));
	}
	tell_sleeper(h);
}

/* The bit goes before the queue is looked at once more: who sends from then on sees the flag.  Somebody else
 * may make it warm meanwhile, for another's hint say: he clears the flag, then sets the bit.  Either the
 * flag shows that here, and the bit is set again, or his bit comes after ours went. */
static void cool(struct vb_hca *h, struct vb_rxq *r)
{
	bool hid;

	vb_lock_assert_held(&r->rx);
	atomic_exchange_explicit(r->cold, 1, memory_order_seq_cst);
	hid = vb_set_drop(&h->warm, r->index);
	if (vb_hca_rxq_is_busy(r) || !atomic_load_explicit(r->cold, memory_order_seq_cst)) {
		vb_hca_warm(r);
		hid = true;
	}
	if (hid)
		tell_sleeper(h);
}

static void consider(struct vb_hca *h, struct vb_rxq *r)
{
	if (!vb_lock_try(&r->rx))
		return;		      /* it is being looked at: no quiet one */
	if (!vb_hca_rxq_is_open(r)) { /* a hint came too late */
		if (vb_set_drop(&h->warm, r->index))
			tell_sleeper(h);
	} else if (!vb_hca_rxq_is_busy(r) && ++r->quiet >= QUIET_LOOKS) {
		cool(h, r);
	}
	vb_lock_give(&r->rx);
}

void vb_hca_cool(struct vb_hca *h)
{
	for (uint64_t any = vb_set_any(&h->warm); any; any &= any - 1) {
		uint32_t w = vb_set_lowest(any);

		for (uint64_t bits = vb_set_word(&h->warm, w); bits; bits &= bits - 1)
			consider(h, vb_hca_rxq_at(h, w * VB_SET_WORD + vb_set_lowest(bits)));
	}
}

bool vb_hca_ready(struct vb_adapter *a)
{
	struct vb_hca *h = vb_hca(a);

	if (!vb_set_is_empty(vb_adapter_presence(a)->hints))
		return true;
	for (uint64_t any = vb_set_any(&h->warm); any; any &= any - 1) {
		uint32_t w = vb_set_lowest(any);

		for (uint64_t bits = vb_set_word(&h->warm, w); bits; bits &= bits - 1) {
			struct vb_rxq *r = vb_hca_rxq_at(h, w * VB_SET_WORD + vb_set_lowest(bits));

			if (vb_hca_rxq_is_open(r) && vb_rxq_ready(r))
				return true;
		}
	}
	return false;
}

/* A cold queue in which something is. */
static void warm_if_there(struct vb_rxq *r)
{
	if (atomic_load_explicit(r->cold, memory_order_relaxed) && vb_hca_rxq_is_open(r) && vb_rxq_ready(r))
		vb_hca_warm(r);
}

void vb_hca_notice(struct vb_adapter *a)
{
	struct vb_hca *h = vb_hca(a);
	uint32_t n = vb_hca_rxq_count(h);

	for (uint32_t i = 0; i < n; i++) {
		struct vb_rxq *r = vb_hca_rxq_at(h, i);

		if (r)
			warm_if_there(r);
	}
}

void vb_hca_rang(struct vb_peer *peer)
{
	for (uint32_t i = 0; i < peer->nlanes; i++)
		warm_if_there(peer->lanes[i].rxq);
}
