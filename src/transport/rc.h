/* The reliable-connected protocol: requester, responder, completer.
 *
 * It owns no socket, no thread and no clock.  Packets come in through vb_rc_input(), the time through `now`,
 * and packets leave through qp->out whenever vb_rc_output() runs.  Taking a packet in never sends one.  All
 * functions are called with qp->lock held; none blocks, allocates or makes a system call of its own. */
#ifndef VB_TRANSPORT_RC_H
#define VB_TRANSPORT_RC_H

#include <stdbool.h>
#include <stdint.h>

#include "iba/pkt.h"
#include "obj/qp.h"

/* Puts one checked request at the end of the SQ is verbs' work; these run it. */

/* One packet for this QP; its payload stays the caller's. */
void vb_rc_input(struct vb_qp *qp, const struct vb_pkt *p, uint64_t now);

/* Sends what is owed and allowed: responses, ACK or NAK, then requests.  Without qp->out nothing is sent.
 * Returns true if something is left that waits only for room in the wire. */
bool vb_rc_output(struct vb_qp *qp, uint64_t now);

/* Whether anything waits to be sent, be it for room or for the first chance. */
bool vb_rc_owes(const struct vb_qp *qp);

/* Looks at the QP's timers; returns its next deadline, VB_NEVER if none.  May complete requests and mark others
 * for sending again: call vb_rc_output() afterwards. `reach` false: the peer is known to be absent, and its
 * packets are taken for lost. */
uint64_t vb_rc_timer(struct vb_qp *qp, uint64_t now);

/* Moves the QP to the error state: the oldest outstanding request completes with f's reason (VB_R_FLUSHED: all
 * are flushed), all others of both queues are flushed in order (rule 30), events are posted. */
void vb_rc_error(struct vb_qp *qp, const struct vb_facts *f);

/* The peer's process has died: error, in `reason`'s words, if the QP was connected. */
void vb_rc_peer_died(struct vb_qp *qp, uint32_t pid);

/* After a post to a QP in the error state: flush what came (rule 30). */
void vb_rc_flush(struct vb_qp *qp);

/* QP state changes that the protocol takes part in: RTS/SQD/... after verbs/ checked and stored the attributes. */
void vb_rc_enter(struct vb_qp *qp, enum ibv_qp_state from);

/* Ready to send: how long a Local ACK Timeout code is, and a min_rnr_timer code, in nanoseconds. */
uint64_t vb_rc_ack_timeout(uint8_t code); /* 4.096 us * 2^code, 0: VB_NEVER */
uint64_t vb_rc_rnr_delay(uint8_t code);

#endif
