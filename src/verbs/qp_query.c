/* ibv_query_qp(). */
#include <errno.h>

#include "base/log.h"
#include "hca/send.h"
#include "verbs/target.h"
#include "verbs/verbs.h"

void vb_qp_attributes(struct vb_qp *qp, struct ibv_qp_attr *attr)
{
	vb_lock_take(&qp->lock);
	*attr = qp->attr;
	attr->qp_state = attr->cur_qp_state = qp->state;
	attr->path_mig_state = IBV_MIG_MIGRATED;
	if (qp->state != IBV_QPS_RESET && qp->state != IBV_QPS_INIT) {
		attr->rq_psn = qp->resp.epsn;
		if (qp->state != IBV_QPS_RTR)
			attr->sq_psn = qp->req.psn;
	}
	attr->sq_draining = qp->state == IBV_QPS_SQD && !qp->req.drained_posted;
	vb_hca_give(qp);
}

/* All attributes are cheap, so the mask is not looked at: as with other devices it says what is needed at
 * least.  PSNs are the live ones. */
VB_EXPORT VB_CODE(ibv_query_qp, (ibqp, attr, attr_mask, init), struct ibv_qp *ibqp, struct ibv_qp_attr *attr,
		  int attr_mask, struct ibv_qp_init_attr *init)
{
	struct vb_qp *qp = vb_qp_itself(vb_qp(ibqp));
	int err = 0;

	(void)attr_mask;
	if (vb_context_dead(qp->ctx))
		return vb_refuse_forked("ibv_query_qp");
	if (qp->far)
		err = vb_target_query(qp, attr);
	else
		vb_qp_attributes(qp, attr);
	if (err)
		return err;
	if (ibqp != &qp->ibv) /* what stands for a target, which others may have changed */
		ibqp->state = attr->qp_state;
	*init = (struct ibv_qp_init_attr){.qp_context = ibqp->qp_context,
					  .send_cq = ibqp->send_cq,
					  .recv_cq = ibqp->recv_cq,
					  .srq = ibqp->srq,
					  .cap = attr->cap,
					  .qp_type = ibqp->qp_type,
					  .sq_sig_all = qp->sq_sig_all};
	return 0;
}
