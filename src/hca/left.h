/* What this process has left in rings whose readers say that they poll.
 *
 * Nobody is rung for such a packet: a poller takes it in a moment.  But the word may be up to 20 ms old
 * (host/engine.c), and the program may have turned to something else.  So whoever is here looks after what it
 * has left: if it lies for a millisecond, or for less at a peer that is prompt (mem/prompt.h), the reader is
 * rung, once.  After that its engine looks, and nobody else has to. */
#ifndef VB_HCA_LEFT_H
#define VB_HCA_LEFT_H

#include "hca/hca.h"

/* A wire has left a packet for this peer, and peer->left was not set; with what locks the wire's caller has.
 */
void vb_left(struct vb_peer *peer);
/* The peer is gone: the next one at its index begins with nothing. */
void vb_left_forget(struct vb_peer *peer);
/* Rings where something lies too long; returns when to look again, VB_NEVER: nothing lies.  Any thread. */
uint64_t vb_left_look(struct vb_hca *h, uint64_t now);

#endif
