/* Connections and datagram services: asked for, accepted, refused, ended. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rdmacm/call.h"
#include "rdmacm/rdmacm.h"

enum {
	RETRIES = 7,
	DATA_MAX = 255
}; /* where the program gives no parameters (rdma-core); what a length can be */

/* What a call says to the far end, and the private data that it points to. */
struct saying {
	struct vb_cm_param param;
	struct ibv_ece ece; /* of this end's vendor, which a request brings */
	uint8_t data[DATA_MAX];
};

/* rdma_connect(3), rdma_accept(3): connections are checked here, since only RDMA_PS_TCP has depths of its
 * own. */
static int check(const struct vb_rdma_id *p, const char *call, const struct rdma_conn_param *param)
{
	if (!p->device)
		return vb_cm_refuse(EINVAL, call, VB_RDMA_NO_DEVICE);
	if (p->id.ps != RDMA_PS_TCP)
		return 0;
	if (!p->id.qp && !param)
		return vb_cm_refuse(EINVAL, call,
				    "conn_param is NULL and the id has no queue pair; call rdma_create_qp(), "
				    "or set rdma_conn_param.qp_num");
	if (!param)
		return 0;
	if (param->responder_resources != RDMA_MAX_RESP_RES &&
	    param->responder_resources > p->device->max_responder_resources)
		return vb_cm_refuse(EINVAL, call, "responder_resources %u exceeds the device's limit of %u",
				    param->responder_resources, p->device->max_responder_resources);
	if (param->initiator_depth != RDMA_MAX_INIT_DEPTH &&
	    param->initiator_depth > p->device->max_initiator_depth)
		return vb_cm_refuse(EINVAL, call, "initiator_depth %u exceeds the device's limit of %u",
				    param->initiator_depth, p->device->max_initiator_depth);
	return 0;
}

static int add_data(struct saying *s, const char *call, const void *data, size_t len)
{
	if (!data || !len)
		return 0;
	if (len > DATA_MAX - (size_t)s->param.private_len)
		return vb_cm_refuse(EINVAL, call,
				    "private data of %zu bytes does not fit after the %u bytes of ai_connect",
				    len, s->param.private_len);
	memcpy(s->data + s->param.private_len, data, len);
	s->param.private_len = (uint8_t)(s->param.private_len + len);
	return 0;
}

/* The depths stand in the id already. */
static int prepare(struct vb_rdma_id *p, const char *call, const struct rdma_conn_param *param,
		   struct saying *s)
{
	struct ibv_qp *qp = vb_rdma_qp_hold(p);
	int err;

	s->param = (struct vb_cm_param){
	    .private_data = s->data,
	    .responder_resources = p->responder_resources,
	    .initiator_depth = p->initiator_depth,
	    .flow_control = param ? param->flow_control : 0,
	    .retry_count = param ? param->retry_count : RETRIES,
	    .rnr_retry_count = param ? param->rnr_retry_count : RETRIES,
	    .srq = qp	   ? qp->srq != NULL
		   : param ? param->srq
			   : 0,
	    .qp_num = qp      ? qp->qp_num
		      : param ? param->qp_num
			      : 0,
	};
	s->ece = p->local_ece;
	if (qp)
		vb_rdma_qp_give(p);
	err = add_data(s, call, p->connect, p->connect_len);
	if (!err && param)
		err = add_data(s, call, param->private_data, param->private_data_len);
	return err;
}

VB_EXPORT VB_RDMA_CALL(rdma_connect, (id, conn_param), struct rdma_cm_id *id,
		       struct rdma_conn_param *conn_param)
{
	static const char call[] = "rdma_connect";
	struct vb_rdma_id *p = vb_rdma_id(id);
	bool sync = p->sync;
	void *connect = p->connect;
	struct saying s;
	int err = check(p, call, conn_param);

	if (err)
		return err;
	p->initiator_depth = conn_param && conn_param->initiator_depth != RDMA_MAX_INIT_DEPTH
				 ? conn_param->initiator_depth
				 : p->device->max_initiator_depth;
	p->responder_resources = conn_param && conn_param->responder_resources != RDMA_MAX_RESP_RES
				     ? conn_param->responder_resources
				     : p->device->max_responder_resources;
	err = prepare(p, call, conn_param, &s);
	if (err)
		return err;
	s.param.ece = s.ece;
	p->connect = NULL; /* it is in the request; with an event, the id is another thread's */
	err = vb_cm_id_connect(p->cm, &s.param);
	if (err) {
		p->connect = connect;
		return err;
	}
	free(connect);
	return vb_rdma_id_complete(p, sync);
}

static uint8_t least(uint8_t a, uint8_t b)
{
	return a < b ? a : b;
}

/* Without a number of the program's, what the request asked for, as far as the device has it. */
static void choose_depths(struct vb_rdma_id *p, const struct rdma_conn_param *param)
{
	p->initiator_depth = param && param->initiator_depth != RDMA_MAX_INIT_DEPTH
				 ? param->initiator_depth
				 : least(p->initiator_depth, p->device->max_initiator_depth);
	p->responder_resources = param && param->responder_resources != RDMA_MAX_RESP_RES
				     ? param->responder_resources
				     : least(p->responder_resources, p->device->max_responder_resources);
}

VB_EXPORT VB_RDMA_CALL(rdma_accept, (id, conn_param), struct rdma_cm_id *id,
		       struct rdma_conn_param *conn_param)
{
	static const char call[] = "rdma_accept";
	struct vb_rdma_id *p = vb_rdma_id(id);
	bool datagrams = id->qp_type == IBV_QPT_UD, sync = p->sync;
	struct saying s = {0};
	/* A listener at all addresses has no device, and its state says more. */
	int err = p->device ? 0 : vb_cm_id_may_accept(p->cm, &s.param);

	if (!err)
		err = check(p, call, conn_param);
	if (err)
		return err;
	choose_depths(p, conn_param);
	err = prepare(p, call, conn_param, &s);
	if (!err && !datagrams)
		err = vb_cm_id_may_accept(p->cm, &s.param);
	/* Before the answer, since data may follow on it at once. */
	if (!err && !datagrams)
		err = vb_rdma_qp_connect(p, p->responder_resources, p->initiator_depth);
	if (err && err != VB_RDMA_NO_QP)
		return err;
	/* The answer is about the options of the vendor that asked. */
	if (p->remote_ece.vendor_id)
		s.param.ece =
		    (struct ibv_ece){.vendor_id = p->remote_ece.vendor_id, .options = p->local_ece.options};
	err = vb_cm_id_accept(p->cm, &s.param, p); /* from here on its events come, to any thread */
	if (err) {
		if (!datagrams)
			vb_rdma_qp_error(p);
		return err;
	}
	if (!datagrams)
		return vb_rdma_id_complete(p, sync);
	if (sync) /* no event tells that an answer to a lookup has arrived */
		vb_rdma_id_ack(p);
	return 0;
}

VB_EXPORT VB_RDMA_CALL(rdma_reject, (id, private_data, private_data_len), struct rdma_cm_id *id,
		       const void *private_data, uint8_t private_data_len)
{
	return vb_cm_id_reject(vb_rdma_id(id)->cm, private_data, private_data ? private_data_len : 0,
			       VB_RDMA_REJ_CONSUMER);
}

VB_EXPORT VB_RDMA_CALL(rdma_reject_ece, (id, private_data, private_data_len), struct rdma_cm_id *id,
		       const void *private_data, uint8_t private_data_len)
{
	return vb_cm_id_reject(vb_rdma_id(id)->cm, private_data, private_data ? private_data_len : 0,
			       VB_RDMA_REJ_VENDOR_OPTION);
}

VB_EXPORT VB_RDMA_CALL(rdma_establish, (id), struct rdma_cm_id *id)
{
	if (id->qp)
		return vb_cm_refuse(
		    EINVAL, "rdma_establish",
		    "the id has a queue pair: rdma_get_cm_event() establishes its connection");
	return vb_cm_id_establish(vb_rdma_id(id)->cm);
}

VB_EXPORT VB_RDMA_CALL(rdma_disconnect, (id), struct rdma_cm_id *id)
{
	struct vb_rdma_id *p = vb_rdma_id(id);
	bool sync = p->sync;
	int err;

	if (!p->device)
		return vb_cm_refuse(EINVAL, "rdma_disconnect",
				    "the id was never connected; call rdma_destroy_id() instead");
	err = vb_rdma_qp_error(p);
	if (!err)
		err = vb_cm_id_disconnect(p->cm);
	/* Where there is no connection, or has been one that is forgotten, nothing comes to be waited for. */
	return err || !sync || !vb_cm_id_has_news(p->cm) ? err : vb_rdma_id_complete(p, sync);
}

VB_EXPORT VB_RDMA_CALL(rdma_notify, (id, event), struct rdma_cm_id *id, enum ibv_event_type event)
{
	return vb_cm_id_notify(vb_rdma_id(id)->cm, event);
}

VB_EXPORT VB_RDMA_CALL(rdma_init_qp_attr, (id, qp_attr, qp_attr_mask), struct rdma_cm_id *id,
		       struct ibv_qp_attr *qp_attr, int *qp_attr_mask)
{
	return vb_cm_id_qp_attr(vb_rdma_id(id)->cm, qp_attr, qp_attr_mask);
}

/* Both are for queue pairs that rdma_cm does not manage (rdma_set_local_ece(3)). */
static int check_ece(const char *call, const struct rdma_cm_id *id, const struct ibv_ece *ece)
{
	if (!id || !ece)
		return vb_cm_refuse(EINVAL, call, "id or ece is NULL");
	if (id->qp)
		return vb_cm_refuse(EINVAL, call, "the id has a queue pair: rdma_cm sets its ECE options");
	return 0;
}

VB_EXPORT VB_RDMA_CALL(rdma_set_local_ece, (id, ece), struct rdma_cm_id *id, struct ibv_ece *ece)
{
	static const char call[] = "rdma_set_local_ece";
	int err = check_ece(call, id, ece);

	if (err)
		return err;
	if (!ece->vendor_id || ece->comp_mask)
		return vb_cm_refuse(
		    EINVAL, call,
		    "vendor_id is 0x%x and comp_mask 0x%x: vendor_id must not be 0, comp_mask must be 0",
		    ece->vendor_id, ece->comp_mask);
	vb_rdma_id(id)->local_ece = (struct ibv_ece){.vendor_id = ece->vendor_id, .options = ece->options};
	return 0;
}

VB_EXPORT VB_RDMA_CALL(rdma_get_remote_ece, (id, ece), struct rdma_cm_id *id, struct ibv_ece *ece)
{
	int err = check_ece("rdma_get_remote_ece", id, ece);

	if (!err)
		*ece = (struct ibv_ece){.vendor_id = vb_rdma_id(id)->remote_ece.vendor_id,
					.options = vb_rdma_id(id)->remote_ece.options};
	return err;
}
