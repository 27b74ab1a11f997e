/* Attributes of queue pairs and address vectors, made of what both ends have agreed upon.  All of it is pure.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "cm/id.h"

enum {
	NO_LID = 0xffff, /* the permissive LID: what RoCE has in a REQ for want of one */
	NEAR_HOPS = 1,	 /* a path of at most so many hops stays in its subnet */
	OWN_PORT = 1,
};

/* ---- paths ---- */

void vb_cm_req_path(struct vb_cm_path *out, const struct ibv_sa_path_rec *path, uint8_t ack_timeout)
{
	bool near = path->hop_limit <= NEAR_HOPS;

	*out = (struct vb_cm_path){
	    .local_lid = near ? ntohs(path->slid) : NO_LID,
	    .remote_lid = near ? ntohs(path->dlid) : NO_LID,
	    .flow_label = ntohl(path->flow_label),
	    .rate = path->rate,
	    .traffic_class = path->traffic_class,
	    .hop_limit = path->hop_limit,
	    .sl = path->sl,
	    .subnet_local = near,
	    .local_ack_timeout = ack_timeout,
	};
	memcpy(out->local_gid, path->sgid.raw, 16);
	memcpy(out->remote_gid, path->dgid.raw, 16);
}

/* InfiniBand has a GRH only between subnets; RoCE always. */
void vb_cm_ah_of_path(struct ibv_ah_attr *out, const struct ibv_sa_path_rec *path, uint8_t sgid_index,
		      bool infiniband)
{
	bool global = !infiniband || path->hop_limit > NEAR_HOPS;

	*out = (struct ibv_ah_attr){.dlid = infiniband ? ntohs(path->dlid) : 0,
				    .sl = path->sl,
				    .static_rate = path->rate,
				    .is_global = global,
				    .port_num = OWN_PORT};
	if (!global)
		return;
	out->grh.dgid = path->dgid;
	out->grh.flow_label = ntohl(path->flow_label);
	out->grh.sgid_index = sgid_index;
	out->grh.hop_limit = path->hop_limit;
	out->grh.traffic_class = path->traffic_class;
}

/* The same path from its other end. */
void vb_cm_ah_of_req(struct ibv_ah_attr *out, const struct vb_cm_path *path, uint8_t sgid_index,
		     bool infiniband)
{
	bool global = !infiniband || !path->subnet_local;

	*out = (struct ibv_ah_attr){.dlid = infiniband ? path->local_lid : 0,
				    .sl = path->sl,
				    .static_rate = path->rate,
				    .is_global = global,
				    .port_num = OWN_PORT};
	if (!global)
		return;
	memcpy(out->grh.dgid.raw, path->local_gid, 16);
	out->grh.flow_label = path->flow_label;
	out->grh.sgid_index = sgid_index;
	out->grh.hop_limit = path->hop_limit;
	out->grh.traffic_class = path->traffic_class;
}

void vb_cm_av_of_path(struct vb_cm_av *out, const struct ibv_sa_path_rec *path)
{
	*out = (struct vb_cm_av){.local_lid = ntohs(path->slid),
				 .remote_lid = ntohs(path->dlid),
				 .flow_label = ntohl(path->flow_label),
				 .traffic_class = path->traffic_class,
				 .hop_limit = path->hop_limit,
				 .sl = path->sl,
				 .rate = path->rate,
				 .pkey = ntohs(path->pkey)};
	memcpy(out->local_gid, path->sgid.raw, 16);
	memcpy(out->remote_gid, path->dgid.raw, 16);
}

/* ---- queue pairs ---- */

/* What a type's row takes in each state, as the kernel's rdma_cm gives it out.  A datagram queue pair needs
 * no address for RTR. */
static const struct row {
	enum ibv_qp_type type;
	int init, rtr, rts;
} rows[] = {
    {IBV_QPT_RC, IBV_QP_ACCESS_FLAGS,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
	 IBV_QP_MIN_RNR_TIMER,
     IBV_QP_SQ_PSN | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT},
    {IBV_QPT_UC, IBV_QP_ACCESS_FLAGS, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
     IBV_QP_SQ_PSN},
    {IBV_QPT_XRC_SEND, IBV_QP_ACCESS_FLAGS, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
     IBV_QP_SQ_PSN | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT},
    {IBV_QPT_XRC_RECV, IBV_QP_ACCESS_FLAGS,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
	 IBV_QP_MIN_RNR_TIMER,
     IBV_QP_SQ_PSN | IBV_QP_TIMEOUT},
    {IBV_QPT_UD, IBV_QP_QKEY, 0, IBV_QP_SQ_PSN},
};

/* Before anything is agreed upon nothing is permitted; front ends set the flags again, INIT to INIT, when it
 * is. */
static int access_of(const struct vb_cm_deal *d, bool connected)
{
	if (!connected)
		return 0;
	return IBV_ACCESS_REMOTE_WRITE |
	       (d->responder_resources ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC : 0);
}

static void fill(struct ibv_qp_attr *a, const struct vb_cm_deal *d, int bits)
{
	if (bits & IBV_QP_AV)
		a->ah_attr = d->ah;
	if (bits & IBV_QP_PATH_MTU)
		a->path_mtu = (enum ibv_mtu)d->path_mtu;
	if (bits & IBV_QP_DEST_QPN)
		a->dest_qp_num = d->remote_qpn;
	if (bits & IBV_QP_RQ_PSN)
		a->rq_psn = d->local_psn; /* what this end said is what the far end begins with (12.6.5) */
	if (bits & IBV_QP_SQ_PSN)
		a->sq_psn = d->remote_psn;
	if (bits & IBV_QP_MAX_DEST_RD_ATOMIC)
		a->max_dest_rd_atomic = d->responder_resources;
	if (bits & IBV_QP_MIN_RNR_TIMER)
		a->min_rnr_timer = 0; /* 655 ms (rdma_connect(3)) */
	if (bits & IBV_QP_RETRY_CNT)
		a->retry_cnt = d->retry_count;
	if (bits & IBV_QP_RNR_RETRY)
		a->rnr_retry = d->rnr_retry_count;
	if (bits & IBV_QP_MAX_QP_RD_ATOMIC)
		a->max_rd_atomic = d->initiator_depth;
	if (bits & IBV_QP_TIMEOUT)
		a->timeout = d->timeout;
}

static const struct row *row_of(enum ibv_qp_type type)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
		if (rows[i].type == type)
			return &rows[i];
	return NULL;
}

int vb_cm_attr(enum ibv_qp_type type, const struct vb_cm_deal *deal, bool connected, uint32_t qkey,
	       struct ibv_qp_attr *attr, int *mask)
{
	const struct row *r = row_of(type);
	int bits;

	if (!r)
		return EINVAL;
	switch (attr->qp_state) {
	case IBV_QPS_INIT:
		bits = r->init;
		*mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | bits;
		attr->pkey_index = deal->pkey_index;
		attr->port_num = OWN_PORT;
		if (bits & IBV_QP_QKEY)
			attr->qkey = qkey;
		if (bits & IBV_QP_ACCESS_FLAGS)
			attr->qp_access_flags = (unsigned)access_of(deal, connected);
		return 0;
	case IBV_QPS_RTR:
	case IBV_QPS_RTS:
		break;
	default:
		return EINVAL;
	}
	if (!deal->known && type != IBV_QPT_UD)
		return EINVAL;
	bits = attr->qp_state == IBV_QPS_RTR ? r->rtr : r->rts;
	*mask = IBV_QP_STATE | bits;
	fill(attr, deal, bits);
	return 0;
}
