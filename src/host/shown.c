/* What a peer shows of its queue pairs in its segment. */
#include "host/private.h"

const uint8_t (*vb_peer_gids(const struct vb_peer *peer))[16]
{
	return ((const struct vb_seg_head *)(const void *)peer->view)->gids;
}

const struct vb_shown_qp *vb_peer_shown(const struct vb_peer *peer, uint32_t qpn)
{
	const struct vb_seg_head *h = (const void *)peer->view;
	const struct vb_shown_qp *table = (const void *)(peer->view + VB_SEG_QPS);
	uint32_t n;

	if (!h)
		return NULL;
	n = atomic_load_explicit(&h->nnumbers, memory_order_acquire);
	for (uint32_t k = 0; k < n && k < VB_ADAPTER_NUMBERS; k++) {
		if (h->numbers[k] == qpn >> VB_QPN_INDEX_BITS)
			return &table[k * VB_QPN_INDICES + qpn % VB_QPN_INDICES];
	}
	return NULL;
}

uint32_t vb_peer_qp_state(const struct vb_peer *peer, uint32_t qpn)
{
	const struct vb_shown_qp *q = vb_peer_shown(peer, qpn);

	return q ? atomic_load_explicit(&q->state, memory_order_acquire) : 0;
}

bool vb_peer_qp_dropped(const struct vb_peer *peer, uint32_t qpn, uint32_t psn)
{
	const struct vb_shown_qp *q = vb_peer_shown(peer, qpn);

	return q && atomic_load_explicit(&q->stray, memory_order_acquire) == (VB_SHOWN_RECEIVED | psn);
}

uint32_t vb_peer_qp_known(const struct vb_peer *peer, uint32_t qpn)
{
	const struct vb_shown_qp *q = vb_peer_shown(peer, qpn);

	return q ? atomic_load_explicit(&q->known, memory_order_acquire) : 0; /* pairs with forward.c */
}

uint32_t vb_peer_qp_received(const struct vb_peer *peer, uint32_t qpn)
{
	const struct vb_shown_qp *q = vb_peer_shown(peer, qpn);

	/* by seq_cst: of who has just said that it sleeps, see hca/receive.c */
	return q ? atomic_load_explicit(&q->received, memory_order_seq_cst) : 0;
}
