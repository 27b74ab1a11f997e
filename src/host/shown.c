/* The contents of a peer's segment: the location of its tables, its port and its queue pairs. */
#include <sys/syscall.h>
#include <unistd.h>

#include "host/private.h"

/* Its TID, if it means the same thread here. */
static int thread_of(const struct vb_adapter *a, const struct vb_peer *peer)
{
	const struct vb_seg_head *h = (const void *)peer->view;
	int tid = (int)h->tid;

	if (!h->pid_ns || h->pid_ns != a->head->pid_ns || h->pid != peer->pid || tid <= 0)
		return 0;
	return syscall(SYS_tgkill, peer->pid, tid, 0) ? 0 : tid; /* of that process, as the kernel named it */
}

void vb_peer_tables(const struct vb_peer *peer, struct vb_peer_tables *at)
{
	const struct peer *p = (const struct peer *)peer;

	at->keys = (const struct vb_key_entry *)(const void *)(peer->view + VB_SEG_KEYS);
	at->slots = (const struct vb_key_slot *)(const void *)(peer->view + VB_SEG_KEY_SLOTS);
	at->marks = (const struct vb_key_marks *)(const void *)(peer->view + VB_SEG_KEY_MARKS);
	at->key_offset = peer->key_offset;
	at->pds = (const struct vb_pd_slot *)(const void *)(peer->view + VB_SEG_PDS);
	at->pd_marks = (const struct vb_pd_marks *)(const void *)(peer->view + VB_SEG_PD_MARKS);
	at->heard = heard_of(peer->view, peer->view_index);
	at->token = token_of(peer->adapter->seg->incarnation);
	at->awake = (const _Atomic uint32_t *)(const void *)(peer->view + VB_SEG_AWAKE);
	at->polls = (const _Atomic uint32_t *)(const void *)(peer->view + VB_SEG_POLLS);
	at->same = peer->index == 0 || p->seg;
	at->tid = at->same ? 0 : thread_of(peer->adapter, peer);
}

const uint8_t (*vb_peer_gids(const struct vb_peer *peer))[16]
{
	return ((const struct vb_seg_head *)(const void *)peer->view)->gids;
}

void vb_adapter_show_gsi(struct vb_adapter *a, uint32_t number)
{
	atomic_store_explicit(&a->head->gsi, number,
			      memory_order_release); /* pairs with vb_peer_shows_gsi() */
}

bool vb_peer_shows_gsi(const struct vb_peer *peer)
{
	const struct vb_seg_head *h = (const void *)peer->view;

	return h && atomic_load_explicit(&h->gsi, memory_order_acquire);
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
