/* The types of queue pairs as rows of operations.  hca/ and verbs/ know no type by name: they call the
 * protocol through qp->transport, which creation takes from here.
 *
 * A transport owns no socket, no thread and no clock.  Packets come in through input(), the time through
 * timer(), and packets leave through a path's way out whenever output() runs.  Taking a packet in sends none
 * but the ACK of an XRC target (transport/responder.c), and never needs room for it.  Every operation is
 * called with qp->lock held, and further locks where it says so; none blocks, allocates or makes a system
 * call of its own. No operation is NULL: where a type has nothing to do it has a function that does nothing.
 */
#ifndef VB_TRANSPORT_TRANSPORT_H
#define VB_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "iba/out.h"
#include "iba/pkt.h"
#include "iba/rxq.h"
#include "obj/qp.h"

/* The packets that a QP would send if output() ran now, without requests posted since its last run. */
enum vb_owes {
	VB_OWES_NOTHING,
	VB_OWES_ACK, /* an ACK alone: it may wait for company (hca/receive.c) */
	VB_OWES_MORE,
};

struct vb_transport {
	/* The fast path for a brief packet, as it came: only its lengths are checked, and it comes from where
	 * the QP accepts packets.  Processes the packet, with the ACK that it carries, if it is of a common
	 * kind and nothing about it or the QP is rare.  false: the caller decodes it and calls ack() and
	 * input(), which do the same.  The ACK may have been processed (in->b.ack is 0 then).  From
	 * hca/receive.c, as input(). */
	bool (*brief)(struct vb_qp *qp, struct vb_arrival *in);

	/* Processes one decoded packet for this QP, which comes from where the QP accepts packets.  Its
	 * payload stays the caller's.  A packet of another family than that of the QP's type (qp->family) is
	 * discarded, and so is a packet that the QP's state does not permit.  From hca/receive.c, with the
	 * lock of the receive queue. */
	void (*input)(struct vb_qp *qp, const struct vb_pkt *p);

	/* The peer has received all packets up to this PSN and says so without an ACK packet: a request
	 * carried the ACK, which counts before that request (vb_outbuf.ack, hca/receive.c), or the peer
	 * process has died and its memory shows it (hca/peers.c).  For types that are acknowledged. */
	void (*ack)(struct vb_qp *qp, uint32_t psn);

	/* The peer shows that it has received everything before this PSN.  Unlike an ACK, that does not cover
	 * responses: those to READs may be in flight, or still to come. */
	void (*received)(struct vb_qp *qp, uint32_t psn);

	/* Sends all pending packets that the protocol permits, as far as paths have ways out; requests posted
	 * until now are among them.  p: &qp->path; or, of a type with many destinations, the path that may
	 * have changed.  From hca/send.c and hca/datagrams.c, after a post and whenever a condition that was
	 * waited for may have changed.  place: bytes that may be placed directly.  qp->req.deadline is set if
	 * the QP waits with a time limit (0: from now on).  Returns true if something is left for p (for
	 * &qp->path: for any) that waits only for room in the wire, or for another call.  In SQE and ERR it
	 * flushes the posted requests (rule 30). */
	bool (*output)(struct vb_path *p, uint32_t place);

	/* Whether output() must be called.  From hca/receive.c after a batch of packets, from hca/timed.c
	 * after timer(), from hca/peers.c when a path gets its way out. */
	enum vb_owes (*owes)(const struct vb_qp *qp);

	/* Checks the QP's timer and returns its next deadline, VB_NEVER if it has none.  A timer that was
	 * started since the last check begins to run now.  May retransmit requests or fail them: output() is
	 * called afterwards if owes() says so.  From hca/timed.c, with its timer lock, for QPs whose
	 * qp->req.deadline is not VB_NEVER: a type without timers leaves it there. */
	uint64_t (*timer)(struct vb_qp *qp, uint64_t now);

	/* Sets or removes (NULL) the way out of one of the QP's paths, in p->out.  A connected QP has one
	 * path, and resumes there.  From hca/path.c. */
	void (*path)(struct vb_path *p, struct vb_out *out);

	/* The path is being closed, and its way out is removed next.  Sends the pending ACK if there is room,
	 * so that the peer does not report as lost what this end has reported as received.  From hca/path.c.
	 */
	void (*last_word)(struct vb_qp *qp);

	/* Attributes and qp->state are set: the protocol's part of the transition.  Not to ERR (error()) and
	 * RESET (vb_qp_reset()).  From verbs/, with the posting lock. */
	void (*enter)(struct vb_qp *qp, enum ibv_qp_state from);

	/* Moves the QP to the error state for a reason that no packet brought (VB_R_FLUSHED: the
	 * application's own doing; VB_R_DEVICE_LOST, VB_R_PEER_DIED, VB_R_PEER_CLOSED, VB_R_CQ_OVERRUN), if
	 * it is not there.  With any but the first IBV_EVENT_QP_FATAL is posted; with VB_R_PEER_* an
	 * outstanding request completes with the reason's status; everything else in both queues is flushed
	 * in order (rule 30).  Without the posting lock. */
	void (*error)(struct vb_qp *qp, const struct vb_facts *f);

	/* A receive was posted to a QP in the error state: flushes both queues (rule 30).  From verbs/. */
	void (*flush)(struct vb_qp *qp);

	/* Whether requests wait for an acknowledgement.  Otherwise they complete when they are sent, and the
	 * peer discards what it cannot receive. */
	bool acked;

	/* Whether a program answers a message by another queue pair than the one whose ACK the message waits
	 * for (XRC).  Nothing may overtake that ACK: it is sent before the completion is visible, and all
	 * queue pairs of such types use one lane (hca/path.c). */
	bool answers_apart;

	/* Whether its queue pairs may be attached to multicast groups. */
	bool multicast;
};

/* Posts and sends a SEND of one piece, which is no list, to a queue pair with qp->post.brief.  Takes the
 * locks of a post, and leaves errno alone.  Unless it is sent nothing has happened, and the general way is to
 * do it.  LEFT: an earlier request may have been left to this thread, while it had the queue pair's lock
 * (vb_hca_gives()); it is to be looked for before anything is waited for. */
enum vb_once { VB_ONCE_NOT, VB_ONCE_SENT, VB_ONCE_LEFT };
enum vb_once vb_requester_post(struct vb_qp *qp, const struct ibv_send_wr *wr);

/* Copies the bytes [off, off + n) of a send request, from its list or inline, for a capture (hca/capture.c).
 * false: they are not available.  With the QP's lock, and without an announcement of this thread. */
bool vb_request_bytes(struct vb_qp *qp, const struct vb_swqe *w, uint64_t off, uint8_t *to, uint32_t n);

/* The queue pair does not receive a message of an unreliable type: counts it as discarded, and logs the
 * reason. other: it comes from another sender than the one that the QP is connected to.  With the QP's lock.
 */
void vb_not_heard(struct vb_qp *qp, const struct vb_pkt *p, bool other);

enum { VB_TRANSPORTS = IBV_QPT_XRC_RECV + 1 }; /* all that have a row are below */

/* The row of a type; NULL: no such QPs are made.  type: enum ibv_qp_type, or any other number. */
const struct vb_transport *vb_transport_of(uint32_t type);
/* Makes qp one of this type, which has a row. */
void vb_transport_choose(struct vb_qp *qp, enum ibv_qp_type type);

#endif
