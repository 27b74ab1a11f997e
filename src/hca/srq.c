#include "hca/srq.h"

#include "hca/progress.h"
#include "hca/send.h"

void vb_hca_forget_srq(struct vb_hca *h, struct vb_srq *srq)
{
	vb_srqs_drop(&h->srqs, srq);
	vb_hca_quiesce(h); /* whoever has just found it has noted it with its queue pair by now */
	vb_lock_take(&h->contexts_lock);
	vb_list_each (n, &h->contexts) {
		struct vb_context *c = vb_list_entry(n, struct vb_context, on_hca);

		vb_lock_take(&c->lock);
		vb_list_each (q, &c->qps) {
			struct vb_qp *qp = vb_list_entry(q, struct vb_qp, on_ctx);

			if (!qp->xrcd)
				continue;
			vb_lock_take(&qp->lock);
			vb_qp_forget_srq(qp, srq);
			vb_hca_give(qp);
		}
		vb_lock_give(&c->lock);
	}
	vb_lock_give(&h->contexts_lock);
}
