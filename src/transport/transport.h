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

/* What a QP would send if output() ran now, without what was posted since it ran last. */
enum vb_owes {
	VB_OWES_NOTHING,
	VB_OWES_ACK, /* an ACK alone: it may wait for company (hca/receive.c) */
	VB_OWES_MORE,
};

struct vb_transport {
	/* A packet that is brief, as it came, its lengths within bounds and nothing else looked at, from
	 * where the QP takes packets: takes it in if it is of a kind that is common and nothing about it or
	 * the QP is rare, with the ACK that it carries.  false: it is to be decoded, and given to ack() and
	 * input(), which would have done the same.  The ACK may have been taken (in->b.ack is 0 then). From
	 * hca/receive.c, as input(). */
	bool (*brief)(struct vb_qp *qp, struct vb_arrival *in);

	/* One packet for this QP, decoded, and from where the QP takes packets; its payload stays the
	 * caller's.  One of another family than the QP's type has (qp->family) is dropped, and so is what the
	 * QP's state does not take.  From hca/receive.c, with the lock of the receive queue. */
	void (*input)(struct vb_qp *qp, const struct vb_pkt *p);

	/* All up to this PSN has arrived at the far end, which says so without a packet of its own: a request
	 * carried it along (vb_outbuf.ack), and it counts before that request (hca/receive.c); or the
	 * far end's process has died and left it written (hca/peers.c).  For types that are acknowledged. */
	void (*ack)(struct vb_qp *qp, uint32_t psn);

	/* The far end shows that it has received everything before this PSN.  Unlike an ACK that says nothing
	 * about answers: those to READs may be on their way, or still to come. */
	void (*received)(struct vb_qp *qp, uint32_t psn);

	/* Sends what is owed and allowed, what was posted until now among it, as far as paths have ways out.
	 * p: &qp->path; or, of a type with many destinations, that of which something may have changed.
	 * From hca/send.c and hca/datagrams.c, after a post and whenever something may have changed that was
	 * waited for. place: bytes that may be placed directly.  Whatever has to be waited for with a time
	 * limit is said by qp->req.deadline (0: from now on).  Returns true if something is left for p (for
	 * &qp->path: for any) that waits only for room in the wire, or for another call.  In SQE and ERR it
	 * flushes what was posted (rule 30). */
	bool (*output)(struct vb_path *p, uint32_t place);

	/* Whether output() is to be called: from hca/receive.c when a batch of packets was taken in, from
	 * hca/timed.c after timer(), from hca/peers.c when a way out came. */
	enum vb_owes (*owes)(const struct vb_qp *qp);

	/* Looks at the QP's timer; returns its next deadline, VB_NEVER if it has none.  A timer that was
	 * started since the last look begins to run now.  May set requests back or fail them: output() is
	 * called afterwards if owes() says so.  From hca/timed.c, with its timer lock, for QPs whose
	 * qp->req.deadline is not VB_NEVER: a type without timers leaves it there. */
	uint64_t (*timer)(struct vb_qp *qp, uint64_t now);

	/* The way out of one of the QP's paths comes, or goes (NULL): stores it in p->out.  A connected QP
	 * has one path, and what it has sent before goes on from here.  From hca/path.c. */
	void (*path)(struct vb_path *p, struct vb_out *out);

	/* The path is being closed, and its way out goes next: what is owed and finds room is sent, so that
	 * the far end does not take for lost what this end has reported as received.  From hca/path.c. */
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

	/* Whether requests wait for an acknowledgement.  Otherwise they are complete once they have left, and
	 * what the far end cannot take is dropped there. */
	bool acked;

	/* Whether a program answers a message by another queue pair than the one whose ACK the message waits
	 * for (XRC).  That ACK must not be overtaken: it leaves before the completion is there, and all queue
	 * pairs of such types keep to one lane (hca/path.c). */
	bool answers_apart;

	/* Whether its queue pairs may be attached to multicast groups. */
	bool multicast;
};

/* The bytes [off, off + n) of a send request, from its list or inline, for who shows them (hca/capture.c).
 * false: they are not to be had.  With the QP's lock, and without an announcement of this thread. */
bool vb_request_bytes(struct vb_qp *qp, const struct vb_swqe *w, uint64_t off, uint8_t *to, uint32_t n);

/* A message of an unreliable type came for the queue pair, and it does not take it: it counts as dropped, and
 * why is said.  other: it comes from another sender than the one that the QP is connected to.  With the QP's
 * lock. */
void vb_not_heard(struct vb_qp *qp, const struct vb_pkt *p, bool other);

enum { VB_TRANSPORTS = IBV_QPT_XRC_RECV + 1 }; /* all that have a row are below */

/* The row of a type; NULL: no such QPs are made.  type: enum ibv_qp_type, or any other number. */
const struct vb_transport *vb_transport_of(uint32_t type);
/* Makes qp one of this type, which has a row. */
void vb_transport_choose(struct vb_qp *qp, enum ibv_qp_type type);

#endif
