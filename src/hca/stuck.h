/* What waits for long is said without being asked, once, in one line (VERBENA_WAIT_WARN): a request whose
 * peer is not merely slow, and a thread that sleeps on a channel while completions lie in a CQ of it. */
#ifndef VB_HCA_STUCK_H
#define VB_HCA_STUCK_H

#include <stdint.h>

#include "hca/hca.h"

/* Notes since when the oldest request of the queue pair is outstanding, and says it when it is time.  Returns
 * when to look again, VB_NEVER: not for this.  Under qp->lock, at each look at its timer. */
uint64_t vb_stuck_look(struct vb_qp *qp, uint64_t now);

/* A thread is in ibv_get_cq_event(), from begin() to end(), which a cancelled thread calls, too. */
struct vb_waiting;
struct vb_channel;
struct vb_waiting *vb_sleeper_begin(struct vb_channel *ch);
void vb_sleeper_end(void *waiting);
/* Completions may have come: has the engine look in time. */
void vb_sleepers_notice(struct vb_adapter *a);
/* The same for who looks at the time: says it when it is time.  Returns when to look again. */
uint64_t vb_sleepers_look(uint64_t now);

#endif
