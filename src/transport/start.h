/* When a request may begin, and what its beginning changes: for the ways that requests go (requester.c,
 * post.c). Under qp->lock. */
#ifndef VB_TRANSPORT_START_H
#define VB_TRANSPORT_START_H

#include "transport/rc_priv.h"

/* Whether n more PSNs may be outstanding. */
static inline bool window_open(const struct vb_req *q, uint32_t n)
{
	uint32_t out = (q->psn - q->psn_una) & VB_PSN_MASK;

	return !out || (uint64_t)out + n <= PSN_WINDOW;
}

/* The request at q->next, whose psn and npsn are set, has its PSNs. */
static inline void started(struct vb_req *q, struct vb_swqe *w)
{
	w->state = VB_WQE_STARTED;
	q->sent = 0;
	q->ringed = q->una == q->next ? 1 : q->ringed + 1;
}

/* Whether nothing but requests that were posted is to be looked at, and there is a way out. */
static inline bool only_sends(const struct vb_qp *qp, bool lossy)
{
	const struct vb_resp *s = &qp->resp;

	return qp->path.out && qp->state == IBV_QPS_RTS && !qp->req.rnr_row && /* nor an RNR wait */
	       s->res_next == s->res_head && !s->replaying && !s->nak_owed &&
	       (!s->ack_owed || qp->path.out->carries_acks || (lossy && qp->path.out->acks_behind));
}

#endif
