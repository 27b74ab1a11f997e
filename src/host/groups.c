/* Multicast groups as adapters show them to one another: each those that its own queue pairs are attached to.
 *
 * Who sends to a group looks through the tables of all peers, and keeps what it found for as long as nothing
 * changes.  That something has changed it learns from one word of its own, which stands where peers may
 * write: whoever has changed its table adds to the words of all its peers then.  So a send looks at one word,
 * however many peers there are. */
#include "host/private.h"

static struct vb_shown_group *table_of(const uint8_t *base)
{
	return (struct vb_shown_group *)(base + VB_SEG_GROUPS);
}

static _Atomic uint32_t *mark_of(const uint8_t *base)
{
	return (_Atomic uint32_t *)(base + VB_SEG_GROUP_MARK);
}

static _Atomic uint32_t *stirs_of(struct vb_set *hints)
{
	return (_Atomic uint32_t *)((uint8_t *)hints + VB_HINTS_STIRS);
}

static uint64_t half_of(const struct vb_shown_group *g, int i)
{
	return atomic_load_explicit(&g->half[i], memory_order_relaxed);
}

uint32_t vb_group_show(struct vb_adapter *a, const uint64_t mgid[2])
{
	struct vb_shown_group *table = table_of(a->seg->base);
	_Atomic uint32_t *mark = mark_of(a->seg->base);
	uint32_t n = atomic_load_explicit(mark, memory_order_relaxed), i = 0;

	while (i < n && (half_of(&table[i], 0) || half_of(&table[i], 1)))
		i++;
	if (i == VB_MAX_MCAST_GRP)
		return i;
	atomic_store_explicit(&table[i].half[0], mgid[0], memory_order_relaxed);
	atomic_store_explicit(&table[i].half[1], mgid[1], memory_order_relaxed);
	if (i == n) /* pairs with vb_peer_shows_group(); vb_groups_stir() has those look that have looked */
		atomic_store_explicit(mark, n + 1, memory_order_release);
	return i;
}

void vb_group_hide(struct vb_adapter *a, uint32_t index)
{
	struct vb_shown_group *g = &table_of(a->seg->base)[index];

	atomic_store_explicit(&g->half[0], 0, memory_order_relaxed);
	atomic_store_explicit(&g->half[1], 0, memory_order_relaxed);
}

bool vb_peer_shows_group(const struct vb_peer *peer, const uint64_t mgid[2])
{
	const uint8_t *base;
	uint32_t n;

	if (atomic_load_explicit(&peer->state, memory_order_acquire) != VB_PEER_UP)
		return false;
	base = peer->view;					       /* set before that state */
	n = atomic_load_explicit(mark_of(base), memory_order_acquire); /* pairs with vb_group_show() */
	for (uint32_t i = 0; i < n && i < VB_MAX_MCAST_GRP; i++) {
		const struct vb_shown_group *g = &table_of(base)[i];

		if (half_of(g, 0) == mgid[0] && half_of(g, 1) == mgid[1])
			return true;
	}
	return false;
}

uint32_t vb_groups_stirs(const struct vb_adapter *a)
{
	/* pairs with vb_groups_stir() */
	return atomic_load_explicit(stirs_of(a->seg->hints), memory_order_acquire);
}

void vb_groups_stir(struct vb_adapter *a)
{
	pthread_mutex_lock(&a->control); /* no mapping changes meanwhile */
	for (uint32_t i = 0; i < vb_peer_count(a); i++) {
		struct peer *p = peer_of(vb_peer_at(a, i));
		struct vb_set *hints = i == 0 ? a->seg->hints : p->seg ? p->seg->hints : p->hints;

		if (atomic_load(&p->pub.state) == VB_PEER_UP)
			atomic_fetch_add_explicit(stirs_of(hints), 1, memory_order_seq_cst);
	}
	pthread_mutex_unlock(&a->control);
}
