/* XRC between processes: the two ends of what transport/forward.h carries.
 *
 * A target's process asks the process whose SRQ a message names for a *deputy*, a queue pair that stands for
 * the target there: it takes packets from the target's process, receives by its own process's SRQs, and
 * answers.  The one and the other are said over the control socket. */
#ifndef VB_HCA_FORWARD_H
#define VB_HCA_FORWARD_H

#include "hca/hca.h"

extern const struct vb_forward_ops vb_forward_ops;

/* Before the adapter is there. */
void vb_forward_prepare(struct vb_hca *h);

/* A peer came up, or could not be contacted; and it is gone.  Under the QP's lock, of any QP. */
void vb_forward_peer_up(struct vb_qp *qp, struct vb_peer *peer);
void vb_forward_peer_down(struct vb_qp *qp, struct vb_peer *peer);

/* The deputies of targets of a process that is gone, and all of them: what they were receiving is flushed.
 * Without locks; the thread that brings peers up and down, and the one that closes the device. */
void vb_deputies_end(struct vb_peer *peer);
void vb_deputies_close(struct vb_hca *h);

#endif
