/* Processes of this host that come and go, and what that means to queue pairs. */
#ifndef VB_HCA_PEERS_H
#define VB_HCA_PEERS_H

#include "hca/hca.h"

/* For vb_adapter_ops. */
void vb_hca_peer_up(struct vb_peer *peer);
void vb_hca_peer_down(struct vb_peer *peer, enum vb_peer_end how);
void vb_hca_told(struct vb_peer *peer, uint8_t subject, const void *msg, size_t len, int fd);

/* Has a receive queue polled from now on, which has that index and captures so much (enum vb_kept).  As the
 * next. */
void vb_hca_open_rxq(struct vb_hca *h, struct vb_rxq *r, uint32_t index, uint32_t kept);
/* Has the peer's receive queues polled from now on.  The thread that brings peers up and down, or before the
 * adapter runs. */
void vb_hca_open_lanes(struct vb_peer *peer);

/* rdma_cm connects the queue pair of that number, if the adapter has one.  Any thread, without locks. */
void vb_hca_by_cm(struct vb_adapter *a, uint32_t qpn, enum vb_by_cm how);

#endif
