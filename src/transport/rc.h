/* The reliable-connected protocol: requester, responder, completer.
 *
 * It owns no socket, no thread and no clock.  Packets come in through vb_rc_input(), the time through
 * vb_rc_timer(), and packets leave through qp->path.out whenever vb_rc_output() runs.  Taking a packet in
 * never sends one.  All functions are called with qp->lock held; none blocks, allocates or makes a system
 * call of its own. */
#ifndef VB_TRANSPORT_RC_H
#define VB_TRANSPORT_RC_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "iba/pkt.h"
#include "obj/qp.h"

/* One packet for this QP, decoded and checked; its payload stays the caller's.  One of another family than
 * the QP's type has is dropped. */
void vb_rc_input(struct vb_qp *qp, const struct vb_pkt *p);

/* An ACK that a request carried along (vb_outbuf.ack): before that request. */
void vb_rc_input_ack(struct vb_qp *qp, uint32_t psn);

/* Sends what is owed and allowed: responses, ACK or NAK, then requests (requests before a mere ACK: the ACK
 * can wait, the request is what somebody waits for), what was posted until now among them.  Without
 * qp->path.out nothing is sent.  place: bytes that may be placed directly.  Returns true if something is left
 * that waits only for room in the wire, or for another call. */
bool vb_rc_output(struct vb_qp *qp, uint32_t place);

/* What the QP would send if vb_rc_output() ran now, without what was posted since it ran last. */
enum vb_rc_owes { VB_OWES_NOTHING, VB_OWES_ACK, VB_OWES_MORE };
enum vb_rc_owes vb_rc_owes(const struct vb_qp *qp);

/* Whether vb_rc_timer() has anything to look at. */
static inline bool vb_rc_timed(const struct vb_qp *qp)
{
	return qp->req.deadline != VB_NEVER;
}

/* Looks at the QP's timer; returns its next deadline, VB_NEVER if it has none.  A timer that was started
 * since the last look begins to run now.  May set requests back or fail them: call vb_rc_output() afterwards.
 */
uint64_t vb_rc_timer(struct vb_qp *qp, uint64_t now);

/* Moves the QP to the error state for a reason that no packet brought (VB_R_FLUSHED: the application's own
 * doing; VB_R_DEVICE_LOST, VB_R_PEER_DIED, VB_R_PEER_CLOSED, VB_R_CQ_OVERRUN): with any but the first
 * IBV_EVENT_QP_FATAL is posted; with VB_R_PEER_* an outstanding request completes with the reason's status;
 * everything else in both queues is flushed in order (rule 30). */
void vb_rc_error(struct vb_qp *qp, const struct vb_facts *f);

/* Sends the ACK that is owed, if there is room: before the QP goes, so that the far end does not take for
 * lost what this end has reported as received. */
void vb_rc_last_word(struct vb_qp *qp);

/* After a post to a QP in the error state: flush what came (rule 30). */
void vb_rc_flush(struct vb_qp *qp);

/* verbs/ has stored the attributes and set qp->state: the protocol's part of the transition.  Not for ERR
 * (vb_rc_error) and RESET (vb_qp_reset). */
void vb_rc_enter(struct vb_qp *qp, enum ibv_qp_state from);

/* The way out came, or went (NULL): what was sent before goes on, with all its retries if it came, and a
 * request that waited for it is not outstanding any more until it is sent. */
void vb_rc_path(struct vb_qp *qp, struct vb_out *out);

/* Local ACK Timeout code in nanoseconds: 4.096 us * 2^code, 0: VB_NEVER; and a min_rnr_timer code
 * (IBTA 9.7.5.2.8). */
uint64_t vb_rc_ack_timeout(uint8_t code);
uint64_t vb_rc_rnr_delay(uint8_t code);

#endif
