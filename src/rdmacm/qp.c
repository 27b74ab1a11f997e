/* Queue pairs of ids: made with what the program leaves out, and brought through their states as the
 * handshake goes on (rdma_create_qp(3)). */
#include <errno.h>

#include "rdmacm/call.h"
#include "rdmacm/rdmacm.h"

static const char create_call[] = "rdma_create_qp";

/* What the handshake says about this state, so far as it has come. */
static int attributes(struct vb_rdma_id *p, enum ibv_qp_state state, struct ibv_qp_attr *attr, int *mask)
{
	*attr = (struct ibv_qp_attr){.qp_state = state};
	*mask = 0;
	return vb_cm_id_qp_attr(p->cm, attr, mask);
}

static int to_init(struct vb_rdma_id *p, struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	int mask, err = attributes(p, IBV_QPS_INIT, &attr, &mask);

	return err ? err : ibv_modify_qp(qp, &attr, mask);
}

/* An unconnected one is ready at once: its Q_Key is in the attributes of INIT. */
static int to_ready(struct vb_rdma_id *p, struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
	int err = to_init(p, qp);

	if (!err)
		err = ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	if (err)
		return err;
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = 0};
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

/* Vendors' options are agreed upon by those of one vendor; a device that knows none has none. */
static int agree(struct vb_rdma_id *p, struct ibv_qp *qp)
{
	struct ibv_ece ece = p->remote_ece;
	int err;

	if (!ece.vendor_id || ece.vendor_id != p->local_ece.vendor_id) {
		if (ece.vendor_id)
			p->local_ece.options = 0;
		return 0;
	}
	err = ibv_set_ece(qp, &ece);
	if (!err)
		p->local_ece.options = ece.options;
	return err == ECONNREFUSED ? err : 0;
}

static int begin_ece(struct vb_rdma_id *p, struct ibv_qp *qp)
{
	struct ibv_ece ece = {0};

	if (ibv_query_ece(qp, &ece))
		return 0;
	p->local_ece = ece;
	return agree(p, qp);
}

struct ibv_qp *vb_rdma_qp_hold(struct vb_rdma_id *p)
{
	if (p->forks != vb_rdma_forks()) /* the lock stays as the fork found it */
		return NULL;
	pthread_mutex_lock(&p->lock);
	if (p->id.qp && vb_cm_qp_lives(p->id.qp))
		return p->id.qp;
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

void vb_rdma_qp_give(struct vb_rdma_id *p)
{
	pthread_mutex_unlock(&p->lock);
}

static int check_qp(struct vb_rdma_id *p, const char *call)
{
	struct ibv_qp *qp = vb_rdma_qp_hold(p);
	int err;

	if (!qp)
		return p->id.qp && p->forks == vb_rdma_forks()
			   ? vb_cm_refuse(
				 EINVAL, call,
				 "id->qp was destroyed by ibv_destroy_qp(); first call rdma_destroy_qp()")
			   : 0;
	err = vb_cm_refuse(EINVAL, call, "the id already has queue pair 0x%06x", qp->qp_num);
	vb_rdma_qp_give(p);
	return err;
}

/* rdma_cm creates no completion queue of 0 entries, as with rdma-core, and a queue pair needs both. */
static int check_cqs(const struct vb_rdma_id *p, const char *call, const struct ibv_qp_init_attr_ex *attr)
{
	bool receives = attr->qp_type != IBV_QPT_XRC_SEND && attr->qp_type != IBV_QPT_XRC_RECV;

	if (attr->qp_type != IBV_QPT_XRC_RECV && !attr->send_cq && !p->id.send_cq && !attr->cap.max_send_wr)
		return vb_cm_refuse(EINVAL, call,
				    "send_cq is NULL, and none is created because cap.max_send_wr is 0; set "
				    "send_cq or max_send_wr");
	if (receives && !attr->recv_cq && !p->id.recv_cq && !attr->cap.max_recv_wr)
		return vb_cm_refuse(
		    EINVAL, call,
		    "recv_cq is NULL, and none is created because cap.max_recv_wr is 0; set recv_cq or "
		    "max_recv_wr%s",
		    attr->srq || p->id.srq ? " (a queue pair with an SRQ also needs a receive CQ)" : "");
	return 0;
}

static int check(struct vb_rdma_id *p, const char *call, const struct ibv_qp_init_attr_ex *attr)
{
	const struct rdma_cm_id *id = &p->id;
	int err;

	if (!p->device)
		return vb_cm_refuse(EINVAL, call, VB_RDMA_NO_DEVICE);
	err = check_qp(p, call);
	if (err)
		return err;
	if ((attr->comp_mask & IBV_QP_INIT_ATTR_PD) && attr->pd && attr->pd->context != id->verbs)
		return vb_cm_refuse(EINVAL, call, VB_RDMA_OTHER_CONTEXT);
	if (id->send_cq && attr->send_cq && id->send_cq != attr->send_cq)
		return vb_cm_refuse(EINVAL, call, "send_cq is not id->send_cq, which the id already has");
	if (id->recv_cq && attr->recv_cq && id->recv_cq != attr->recv_cq)
		return vb_cm_refuse(EINVAL, call, "recv_cq is not id->recv_cq, which the id already has");
	return 0;
}

/* What the program leaves out, but for completion queues. */
static int complete(struct vb_rdma_id *p, struct ibv_qp_init_attr_ex *attr)
{
	int err = 0;

	if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || !attr->pd) {
		attr->comp_mask |= IBV_QP_INIT_ATTR_PD;
		attr->pd = p->id.pd;
	}
	if (p->id.qp_type == IBV_QPT_XRC_RECV &&
	    (!(attr->comp_mask & IBV_QP_INIT_ATTR_XRCD) || !attr->xrcd)) {
		err = vb_rdma_device_xrcd(p->device, &attr->xrcd);
		attr->comp_mask |= IBV_QP_INIT_ATTR_XRCD;
	}
	if (p->id.srq && !attr->srq)
		attr->srq = p->id.srq;
	return err;
}

static int create(struct vb_rdma_id *p, const char *call, struct ibv_qp_init_attr_ex *attr)
{
	struct ibv_cq *given_send = attr->send_cq, *given_recv = attr->recv_cq;
	struct vb_rdma_cqs made;
	struct ibv_qp *qp;
	int err = check(p, call, attr);

	if (!err)
		err = check_cqs(p, call, attr);
	if (!err)
		err = complete(p, attr);
	if (!err)
		err = vb_rdma_cqs_make(p, given_send || p->id.send_cq ? 0 : attr->cap.max_send_wr,
				       given_recv || p->id.recv_cq ? 0 : attr->cap.max_recv_wr, &made);
	if (err)
		return err;
	if (!given_send)
		attr->send_cq = p->id.send_cq;
	if (!given_recv)
		attr->recv_cq = p->id.recv_cq;
	qp = ibv_create_qp_ex(p->id.verbs, attr);
	if (!qp) {
		err = errno;
		goto undo_cqs;
	}
	err = begin_ece(p, qp);
	if (!err)
		err = p->id.qp_type == IBV_QPT_UD ? to_ready(p, qp) : to_init(p, qp);
	if (err)
		goto destroy_qp;
	p->id.pd = attr->pd;
	vb_cm_id_has_qp(p->cm, qp->qp_num);
	pthread_mutex_lock(&p->lock);
	p->id.qp = qp;
	pthread_mutex_unlock(&p->lock);
	return 0;

destroy_qp:
	ibv_destroy_qp(qp);
undo_cqs:
	vb_rdma_cqs_undo(p, made);
	/* Who tries again with fewer requests must not find the queues that have just gone. */
	attr->send_cq = given_send;
	attr->recv_cq = given_recv;
	return err;
}

int vb_rdma_qp_create_plain(struct vb_rdma_id *p, const char *call, struct ibv_pd *pd,
			    struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex ex = {
	    .qp_context = attr->qp_context,
	    .send_cq = attr->send_cq,
	    .recv_cq = attr->recv_cq,
	    .srq = attr->srq,
	    .cap = attr->cap,
	    .qp_type = attr->qp_type,
	    .sq_sig_all = attr->sq_sig_all,
	    .comp_mask = IBV_QP_INIT_ATTR_PD,
	    .pd = pd,
	};
	int err = create(p, call, &ex);

	attr->send_cq = ex.send_cq;
	attr->recv_cq = ex.recv_cq;
	attr->srq = ex.srq;
	attr->cap = ex.cap;
	return err;
}

VB_EXPORT VB_RDMA_CALL(rdma_create_qp, (id, pd, attr), struct rdma_cm_id *id, struct ibv_pd *pd,
		       struct ibv_qp_init_attr *attr)
{
	return vb_rdma_qp_create_plain(vb_rdma_id(id), create_call, pd, attr);
}

VB_EXPORT VB_RDMA_CALL(rdma_create_qp_ex, (id, attr), struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
	return create(vb_rdma_id(id), "rdma_create_qp_ex", attr);
}

void vb_rdma_qp_destroy(struct vb_rdma_id *p)
{
	struct ibv_qp *qp = vb_rdma_qp_hold(p);

	if (qp)
		vb_rdma_mcast_detach_all(p, qp); /* one that is attached would not go */
	p->id.qp = NULL;
	if (qp) {
		vb_rdma_qp_give(p); /* destroying it may take a while, and nobody finds it any more */
		ibv_destroy_qp(qp);
	}
	vb_rdma_cqs_release(p);
}

VB_EXPORT VB_RDMA_NOTHING(rdma_destroy_qp, (id), struct rdma_cm_id *id)
{
	if (!vb_cm_object_check("rdma_destroy_qp", id, VB_CM_OBJECT_ID))
		vb_rdma_qp_destroy(vb_rdma_id(id));
}

/* The queue pair is held. */
static int to_connected(struct vb_rdma_id *p, struct ibv_qp *qp, int responder_resources, int initiator_depth)
{
	struct ibv_qp_attr attr;
	int mask, err = agree(p, qp);

	/* Once more INIT: what the peer may do with this queue pair is known since the handshake only. */
	if (!err)
		err = to_init(p, qp);
	if (!err)
		err = attributes(p, IBV_QPS_RTR, &attr, &mask);
	if (err)
		return err;
	if (responder_resources >= 0)
		attr.max_dest_rd_atomic = (uint8_t)responder_resources;
	err = ibv_modify_qp(qp, &attr, mask);
	if (!err)
		err = attributes(p, IBV_QPS_RTS, &attr, &mask);
	if (err)
		return err;
	if (initiator_depth >= 0)
		attr.max_rd_atomic = (uint8_t)initiator_depth;
	return ibv_modify_qp(qp, &attr, mask);
}

int vb_rdma_qp_connect(struct vb_rdma_id *p, int responder_resources, int initiator_depth)
{
	struct ibv_qp *qp = vb_rdma_qp_hold(p);
	int err;

	if (!qp)
		return VB_RDMA_NO_QP;
	err = to_connected(p, qp, responder_resources, initiator_depth);
	vb_rdma_qp_give(p);
	return err;
}

int vb_rdma_qp_error(struct vb_rdma_id *p)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	struct ibv_qp *qp = vb_rdma_qp_hold(p);
	int err;

	if (!qp)
		return 0;
	err = ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	vb_rdma_qp_give(p);
	return err;
}
