#include "hca/srq.h"

#include "hca/all.h"
#include "hca/send.h"

static void forget(struct vb_qp *qp, void *srq)
{
	if (!qp->xrcd)
		return;
	vb_lock_take(&qp->lock);
	vb_qp_forget_srq(qp, srq);
	vb_hca_give(qp);
}

void vb_hca_forget_srq(struct vb_hca *h, struct vb_srq *srq)
{
	vb_srqs_drop(&h->srqs, srq);
	vb_hca_quiesce(h); /* whoever has just found it has noted it with its queue pair by now */
	vb_hca_each_qp(h, forget, srq);
}
