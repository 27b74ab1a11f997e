/* Requests of a checked process, as checkers see them (check/check.h).  Where vb_check_on is false nothing of
 * this is called. */
#ifndef VB_OBJ_CUSTODY_H
#define VB_OBJ_CUSTODY_H

#include <stdint.h>

#include <infiniband/verbs.h>

#include "base/where.h"
#include "check/check.h"
#include "obj/qp.h"
#include "obj/srq.h"

/* Requests that were filled, and are about to be published: those from the queue's head to `end`.  Under the
 * posting lock of the queue.  caller: the program's code that posts. */
void vb_custody_sends(struct vb_qp *qp, uint32_t end, const struct vb_caller *caller);
void vb_custody_receives(struct vb_qp *qp, uint32_t end, const struct vb_caller *caller);
void vb_custody_shared(struct vb_srq *srq, struct vb_keys *keys, uint32_t end,
		       const struct vb_caller *caller);
/* Before, as the inline data of a request is copied. */
void vb_custody_inlined(struct vb_swqe *w, const struct ibv_sge *list, uint32_t n);
/* n completions were polled. */
void vb_custody_polled(struct vb_cq *cq, const struct ibv_wc *wc, int n);
/* The queue pair begins; has no requests any more; and ends. */
void vb_custody_begin(struct vb_qp *qp);
void vb_custody_reset(struct vb_qp *qp);
void vb_custody_end(struct vb_qp *qp);
void vb_custody_end_srq(struct vb_srq *srq);

#endif
