/* Direct placement, composed: what peers are shown of our QPs, what we keep of theirs, and revocation. */
#ifndef VB_HCA_DIRECT_H
#define VB_HCA_DIRECT_H

#include <stdbool.h>
#include <stdint.h>

#include "hca/hca.h"
#include "mem/keys.h"
#include "obj/qp.h"

/* A link is UP (or is that to oneself): the tables of its peer may be used.  Without memory for it there is
 * no direct placement on this link.  Called under peer_up(), never by two at once. */
void vb_direct_peer_up(struct vb_peer *peer);
/* The peer is gone, and no QP has its way out any more. */
void vb_direct_peer_down(struct vb_peer *peer);
void vb_direct_peer_free(struct vb_peer *peer);
/* A message of the peer, of VB_SUBJECT_DIRECT. */
vb_hear_fn vb_direct_told;
/* Asks the peer about regions that are used again and again; if p->mem->asks.  Under the QP's lock. */
void vb_direct_ask(struct vb_path *p);

/* The path leads to a peer, which is UP: it may be used for reaching memory directly, if the wire permits
 * that.  Under the QP's lock. */
void vb_direct_attach(struct vb_path *p);

/* qp->lock held: shows peers what the QP is now: state, what it received, what it permits. */
void vb_direct_show(struct vb_qp *qp);
/* Shows that what it has to send waits for the queue pair at the other end. */
void vb_direct_await(struct vb_qp *qp);

/* After a change that took permissions back (state, access flags, path): waits until nobody uses them any
 * more.  Without locks; a stopped peer holds it. */
void vb_direct_revoked(struct vb_qp *qp);
/* A key was retracted that permitted remote access: waits until no peer uses it any more.  Without locks; a
 * stopped peer holds it. */
void vb_direct_key_retracted(struct vb_adapter *a, uint32_t lkey);

/* Functions that key tables call; their owner is the adapter. */
extern const struct vb_keys_ops vb_direct_keys_ops;

/* A key was hidden, and nobody uses it any more: has peers that have mapped its memory let go of it. */
void vb_direct_key_settled(struct vb_adapter *a, uint32_t lkey);

/* A region with remote access is made: lets peers reach in, where Yama asks for leave. */
void vb_direct_admit(void);
/* A protection domain is shared: lets its other members reach in, also where direct placement is off. */
void vb_direct_admit_members(void);

#endif
