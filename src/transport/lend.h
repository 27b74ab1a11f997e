/* Lending: a large SEND says where its bytes stand, and its receiver collects them from there. */
#ifndef VB_TRANSPORT_LEND_H
#define VB_TRANSPORT_LEND_H

#include "transport/rc_priv.h"

/* Bytes of a SEND from which on it is lent; see lend.c. */
enum { VB_LEND_FROM = 32 << 10 };

/* The requester's end.  Whether the request, which has at least VB_LEND_FROM bytes and is about to be
 * started, is to be lent. */
bool vb_lend_may(struct vb_qp *qp, const struct vb_swqe *w);
/* How many PSNs the packet takes that begins with the k-th of a request that is lent. */
uint32_t vb_lend_span(const struct vb_qp *qp, const struct vb_swqe *w, uint32_t k);
/* That packet; false: the wire has no room. */
bool vb_lend_send(struct vb_qp *qp, struct vb_swqe *w, uint32_t k);
/* The far end cannot collect the oldest request: it and all that follow are sent through the wire.  false:
 * that one is not lent. */
bool vb_lend_refused(struct vb_qp *qp);

/* The responder's end: copies the bytes of p->loan into the receive WQE in use, behind what has come.  false:
 * they cannot be reached, or not be trusted; some may have been copied. */
bool vb_lend_collect(struct vb_qp *qp, const struct vb_pkt *p);

#endif
