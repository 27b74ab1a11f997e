/* Letting queue pairs send. */
#ifndef VB_HCA_SEND_H
#define VB_HCA_SEND_H

#include "iba/rxq.h"
#include "obj/qp.h"

/* After anything changed that may let qp send (post, modify, input): makes contact if needed, sends, and
 * leaves qp on the lists from which progress resumes it.  Under qp->lock. */
void vb_hca_send(struct vb_qp *qp);
/* Requests were published: the protocol takes them, unless somebody is at work on the QP, who finds them by
 * vb_hca_give().  Under the posting lock, which is held all the while: so no other request is published
 * before the QP's lock is given back, and nobody has to look for one. */
void vb_hca_posted(struct vb_qp *qp);
/* Gives qp->lock back; false: something was posted meanwhile, and the lock is held again. */
static inline bool vb_hca_gives(struct vb_qp *qp)
{
	uint32_t seen = qp->req.seen;

	vb_lock_assert_held(&qp->lock);
	vb_lock_pass(&qp->lock);
	if (vb_likely(atomic_load_explicit(&qp->post.head, memory_order_relaxed) == seen))
		return true;
	/* whoever has it now comes by here too, or is a poster, who has taken all that was posted, or sees to
	 * it (VB_ONCE_LEFT) */
	return !vb_lock_claim(&qp->lock);
}
/* Gives qp->lock back, then takes what was posted meanwhile.  For everybody who holds that lock but a poster:
 * otherwise a request might be left lying.  The QP must not go once its lock is given: it is looked at. */
static inline void vb_hca_give(struct vb_qp *qp)
{
	while (vb_unlikely(!vb_hca_gives(qp)))
		vb_hca_send(qp);
}
/* Sends what is pending after the connection was lost: nothing is placed directly.  Under qp->lock. */
void vb_hca_send_on(struct vb_qp *qp);
/* Lets every path that owes something on the queue send, until its wire is full.  Under r->rx. */
void vb_hca_flush(struct vb_rxq *r);
/* Something of the path waits for room, or for another call: whoever makes progress there lets it go on.
 * Under the QP's lock. */
void vb_hca_owe_blocked(struct vb_path *p);
/* Whether the engine looks after what a poller leaves owed. */
bool vb_hca_watched(struct vb_adapter *a);

#endif
