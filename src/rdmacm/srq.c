/* Shared receive queues of ids: rdma_create_srq(3). */
#include <errno.h>

#include "rdmacm/call.h"
#include "rdmacm/rdmacm.h"

/* The two shapes have one name in sentences. */
static const char call[] = "rdma_create_srq";

static int check(const struct vb_rdma_id *p, const struct ibv_srq_init_attr_ex *attr)
{
	if (!p->device)
		return vb_cm_refuse(EINVAL, call, VB_RDMA_NO_DEVICE);
	if (p->id.srq)
		return vb_cm_refuse(EINVAL, call, "the id already has an SRQ");
	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE))
		return vb_cm_refuse(EINVAL, call, "comp_mask lacks IBV_SRQ_INIT_ATTR_TYPE");
	if ((attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) && attr->pd && attr->pd->context != p->id.verbs)
		return vb_cm_refuse(EINVAL, call, VB_RDMA_OTHER_CONTEXT);
	return 0;
}

/* Of what an XRC SRQ needs the program may leave out the domain and the completion queue. */
static int complete_xrc(struct vb_rdma_id *p, struct ibv_srq_init_attr_ex *attr, struct vb_rdma_cqs *made)
{
	struct ibv_comp_channel *channel = p->id.recv_cq_channel;
	struct ibv_cq *cq = p->id.recv_cq;
	int err = 0;

	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_XRCD) || !attr->xrcd)
		err = vb_rdma_device_xrcd(p->device, &attr->xrcd);
	if (!err && (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_CQ) || !attr->cq)) {
		p->id.recv_cq_channel = NULL;
		p->id.recv_cq = NULL;
		err = vb_rdma_cqs_make(p, 0, attr->attr.max_wr, made);
		if (!made->recv) {
			p->id.recv_cq_channel = channel;
			p->id.recv_cq = cq;
		} else { /* the QP's, which was there before, is kept for it */
			p->spare_channel = channel;
			p->spare_cq = cq;
		}
		attr->cq = p->id.recv_cq;
	}
	attr->comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
	return err;
}

static int create(struct vb_rdma_id *p, struct ibv_srq_init_attr_ex *attr)
{
	struct vb_rdma_cqs made = {0};
	int err = check(p, attr);

	if (err)
		return err;
	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !attr->pd) {
		attr->pd = p->id.pd;
		attr->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
	}
	if (attr->srq_type == IBV_SRQT_XRC) {
		err = complete_xrc(p, attr, &made);
		if (err)
			return err;
	}
	p->id.srq = ibv_create_srq_ex(p->id.verbs, attr);
	if (p->id.srq)
		return 0;
	err = errno;
	if (made.recv) {
		vb_rdma_cqs_undo(p, made);
		p->id.recv_cq_channel = p->spare_channel;
		p->id.recv_cq = p->spare_cq;
		p->spare_channel = NULL;
		p->spare_cq = NULL;
		attr->cq = NULL; /* it is gone, and a second attempt must not find it */
	}
	return err;
}

VB_EXPORT VB_RDMA_CALL(rdma_create_srq_ex, (id, attr), struct rdma_cm_id *id,
		       struct ibv_srq_init_attr_ex *attr)
{
	return create(vb_rdma_id(id), attr);
}

/* What is there is written back whether it succeeds or not: "the actual capabilities" (rdma_create_srq(3)).
 */
VB_EXPORT VB_RDMA_CALL(rdma_create_srq, (id, pd, attr), struct rdma_cm_id *id, struct ibv_pd *pd,
		       struct ibv_srq_init_attr *attr)
{
	struct ibv_srq_init_attr_ex ex = {
	    .srq_context = attr->srq_context,
	    .attr = attr->attr,
	    .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
	    .srq_type = id->qp_type == IBV_QPT_XRC_RECV ? IBV_SRQT_XRC : IBV_SRQT_BASIC,
	    .pd = pd,
	};
	int err = create(vb_rdma_id(id), &ex);

	attr->srq_context = ex.srq_context;
	attr->attr = ex.attr;
	return err;
}

void vb_rdma_srq_destroy(struct vb_rdma_id *p)
{
	/* The id has none afterwards, as with rdma-core, also where queue pairs still need it. */
	if (p->id.srq)
		vb_cm_srq_abandon(p->id.srq);
	p->id.srq = NULL;
	vb_rdma_cqs_release(p);
}

VB_EXPORT VB_RDMA_NOTHING(rdma_destroy_srq, (id), struct rdma_cm_id *id)
{
	if (!vb_cm_object_check("rdma_destroy_srq", id, VB_CM_OBJECT_ID))
		vb_rdma_srq_destroy(vb_rdma_id(id));
}
