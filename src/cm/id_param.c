/* From what programs say to what messages say, and back: depths, transport service, private data, events. All
 * of it is pure. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "cm/id.h"

#define AS_MANY_AS_THERE_ARE 0xff /* RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH */

enum { EXTENDED_XRC = 1 };

static uint8_t lesser(uint8_t a, uint8_t b)
{
	return a < b ? a : b;
}

static bool is_too_deep(uint8_t want, uint8_t max)
{
	return want != AS_MANY_AS_THERE_ARE && want > max;
}

int vb_cm_depths_ask(const struct vb_cm_param *p, uint8_t max, struct vb_cm_depths *out)
{
	if (is_too_deep(p->responder_resources, max) || is_too_deep(p->initiator_depth, max))
		return EINVAL;
	out->responder_resources = lesser(p->responder_resources, max);
	out->initiator_depth = lesser(p->initiator_depth, max);
	return 0;
}

/* This end must not have more requests outstanding than the far end offers resources for; resources beyond
 * what the far end will use are its own to give (rdma_accept(3)), unless it asked for as many as there are:
 * then those that can be used. */
int vb_cm_depths_grant(const struct vb_cm_param *p, uint8_t max, const struct vb_cm_depths *asked,
		       struct vb_cm_depths *out)
{
	if (is_too_deep(p->responder_resources, max) || is_too_deep(p->initiator_depth, max))
		return EINVAL;
	out->initiator_depth = lesser(lesser(p->initiator_depth, max), asked->responder_resources);
	out->responder_resources = p->responder_resources == AS_MANY_AS_THERE_ARE
				       ? lesser(asked->initiator_depth, max)
				       : p->responder_resources;
	return 0;
}

void vb_cm_depths_settle(const struct vb_cm_depths *asked, const struct vb_cm_rep *rep,
			 struct vb_cm_depths *out)
{
	out->initiator_depth = lesser(asked->initiator_depth, rep->responder_resources);
	out->responder_resources = lesser(asked->responder_resources, rep->initiator_depth);
}

/* IBTA 12.7.34.  Each code doubles: twice a path's lifetime is the next code, and adding the port's delay
 * takes one more where that is no longer short of it. */
uint8_t vb_cm_ack_timeout(uint8_t ack_delay, uint8_t life_time)
{
	unsigned t = life_time + 1u;

	if (t >= ack_delay)
		t += ack_delay + 1u >= t;
	else
		t = ack_delay + (t + 1u >= ack_delay);
	return (uint8_t)(t > 31 ? 31 : t);
}

/* ---- transport services ---- */

bool vb_cm_type_fits(enum rdma_port_space ps, enum ibv_qp_type *type)
{
	switch (ps) {
	case RDMA_PS_TCP:
		*type = IBV_QPT_RC;
		return true;
	case RDMA_PS_UDP:
	case RDMA_PS_IPOIB:
		*type = IBV_QPT_UD;
		return true;
	case RDMA_PS_IB: /* the program chooses */
		return *type == IBV_QPT_RC || *type == IBV_QPT_UC || *type == IBV_QPT_UD ||
		       *type == IBV_QPT_XRC_SEND || *type == IBV_QPT_XRC_RECV;
	}
	return false;
}

static const struct {
	enum ibv_qp_type active, passive;
	uint8_t service, extended;
} services[] = {
    {IBV_QPT_RC, IBV_QPT_RC, VB_CM_SERVICE_RC, 0},
    {IBV_QPT_UC, IBV_QPT_UC, VB_CM_SERVICE_UC, 0},
    {IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV, VB_CM_SERVICE_XRC, EXTENDED_XRC},
};

enum { SERVICES = sizeof(services) / sizeof(*services) };

int vb_cm_type_of_req(const struct vb_cm_req *req)
{
	for (int i = 0; i < SERVICES; i++)
		if (services[i].service == req->service_type &&
		    (req->service_type != VB_CM_SERVICE_XRC || services[i].extended == req->extended_type))
			return (int)services[i].passive;
	return -1;
}

void vb_cm_req_set_type(struct vb_cm_req *req, enum ibv_qp_type type)
{
	for (int i = 0; i < SERVICES; i++) {
		if (services[i].active != type)
			continue;
		req->service_type = services[i].service;
		req->extended_type = services[i].extended;
	}
}

/* ---- private data ---- */

int vb_cm_wrap(uint16_t kind, const struct vb_cm_ip *ip, const void *data, size_t len,
	       uint8_t buf[VB_CM_PRIVATE_MAX], struct vb_cm_private *out)
{
	size_t room = vb_cm_private_room(kind), head = ip ? VB_CM_IP_LEN : 0;

	if (len && !data)
		len = 0;
	if (head > room || len > room - head)
		return EINVAL;
	if (ip)
		vb_cm_ip_put(buf, ip);
	if (len)
		memcpy(buf + head, data, len);
	*out = (struct vb_cm_private){.at = buf, .len = (uint16_t)(head + len)};
	return 0;
}

struct vb_cm_private vb_cm_unwrap(const struct vb_cm_msg *m, bool ip)
{
	struct vb_cm_private p = m->private_data;
	uint16_t head = ip && p.len >= VB_CM_IP_LEN ? VB_CM_IP_LEN : 0;

	p.at += head;
	p.len = (uint16_t)(p.len - head);
	return p;
}

/* All that came is told of, zeros behind the user's bytes included, since nothing says how many those were.
 */
void vb_cm_news_data(struct vb_cm_news *n, struct vb_cm_private data)
{
	size_t len = data.len > sizeof(n->data) ? sizeof(n->data) : data.len;

	if (len)
		memcpy(n->data, data.at, len);
	if (n->ud)
		n->ud_param.private_data_len = (uint8_t)len;
	else
		n->conn.private_data_len = (uint8_t)len;
}

/* ---- events ---- */

/* Seen from the far end: what it will initiate is what this end is to have resources for
 * (rdma_get_cm_event(3)). */
void vb_cm_news_of_req(struct rdma_conn_param *out, const struct vb_cm_req *req)
{
	*out = (struct rdma_conn_param){
	    .responder_resources = req->initiator_depth,
	    .initiator_depth = req->responder_resources,
	    .flow_control = req->flow_control,
	    .retry_count = req->retry_count,
	    .rnr_retry_count = req->rnr_retry_count,
	    .srq = req->srq,
	    .qp_num = req->qpn,
	};
}

void vb_cm_news_of_rep(struct rdma_conn_param *out, const struct vb_cm_rep *rep, enum ibv_qp_type type)
{
	*out = (struct rdma_conn_param){
	    .responder_resources = rep->initiator_depth,
	    .initiator_depth = rep->responder_resources,
	    .flow_control = rep->flow_control,
	    .rnr_retry_count = rep->rnr_retry_count,
	    .srq = rep->srq,
	    .qp_num = type == IBV_QPT_XRC_SEND ? rep->eecn : rep->qpn,
	};
}
