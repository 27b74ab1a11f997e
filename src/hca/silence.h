/* Why a peer is silent: what can be seen of it when acknowledgements do not come. */
#ifndef VB_HCA_SILENCE_H
#define VB_HCA_SILENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "iba/reach.h"
#include "obj/qp.h"

/* Whether silence only means that somebody does not get to run, since nothing is lost on this host.  Before
 * there is contact there is no ring to leave packets in; and what the far end shows as received it is going
 * to answer.  Under qp->lock. */
bool vb_silence_is_only_slow(const struct vb_qp *qp, uint64_t now);
/* What can be seen of the other end, for the sentence on a request that is about to be given up: in
 * qp->reach. Under qp->lock. */
void vb_silence_explain(struct vb_qp *qp);

#endif
