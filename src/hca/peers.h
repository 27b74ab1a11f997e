/* Processes of this host as far ends: how they are found, what they show, and what it means to queue pairs
 * that they come and go. */
#ifndef VB_HCA_PEERS_H
#define VB_HCA_PEERS_H

#include "hca/hca.h"

extern const struct vb_far_kind vb_far_peer;

static inline struct vb_peer *vb_peer_of(const struct vb_far *far)
{
	return vb_containerof(far, struct vb_peer, far);
}

/* The peers, by index and in turn; *at begins at 0, which is this process itself, or at 1.  NULL: there is
 * none, or no more. */
static inline struct vb_peer *vb_hca_peer(const struct vb_hca *h, uint32_t index)
{
	return vb_peer_at(h->adapter, index);
}

static inline struct vb_peer *vb_hca_next_peer(const struct vb_adapter *a, uint32_t *at)
{
	uint32_t n = vb_peer_count(a);
	struct vb_peer *peer;

	while (*at < n)
		if ((peer = vb_peer_at(a, (*at)++)))
			return peer;
	return NULL;
}

/* Why there is no contact with that peer.  pid: of the process that was contacted last, 0: none. */
struct vb_reach_facts vb_silence_no_contact(struct vb_peer *peer, uint32_t pid);
/* The same once contact has taken too long, or of a peer that is UP and silent: whether its process is
 * stopped is looked up in /proc. */
struct vb_reach_facts vb_silence_look(struct vb_peer *peer, uint32_t pid);

/* For vb_adapter_ops. */
void vb_hca_peer_up(struct vb_peer *peer);
void vb_hca_peer_down(struct vb_peer *peer, enum vb_peer_end how);
void vb_hca_told(struct vb_peer *peer, uint8_t subject, const void *msg, size_t len, int fd);

/* Has a receive queue polled from now on, which has that index.  far: whose it is; NULL: many send through
 * it.  As the next. */
void vb_hca_open_rxq(struct vb_hca *h, struct vb_rxq *r, uint32_t index, struct vb_far *far);
/* Has the peer's receive queues polled from now on.  The thread that brings peers up and down, or before the
 * adapter runs. */
void vb_hca_open_lanes(struct vb_peer *peer);

/* rdma_cm connects the queue pair of that number, if the adapter has one.  Any thread, without locks. */
void vb_hca_by_cm(struct vb_adapter *a, uint32_t qpn, enum vb_by_cm how);

#endif
