/* The calls of the upper layer, by the table in states.c. */
#include <errno.h>

#include "cm/conn.h"

/* Whether the state permits the call, and private data fits into the message (kind 0: none is said); 0 or
 * EINVAL. */
static int check(const struct vb_cm_conn *c, enum vb_cm_call call, uint16_t kind,
		 const struct vb_cm_private *private)
{
	vb_lock_assert_held(c->cm->lock);
	if (!vb_cm_rows[c->state].may[call].action || (c->state == VB_CM_IDLE && c->inner->begun))
		return EINVAL;
	return kind && private && private->len > vb_cm_private_room(kind) ? EINVAL : 0;
}

static void go(struct vb_cm_conn *c, enum vb_cm_call call, uint64_t now)
{
	vb_cm_enter(c, vb_cm_rows[c->state].may[call].to, now);
}

int vb_cm_listen(struct vb_cm_conn *c)
{
	int err = check(c, VB_CM_CALL_LISTEN, 0, NULL);

	if (err)
		return err;
	c->inner->begun = true;
	go(c, VB_CM_CALL_LISTEN, 0);
	return 0;
}

/* What both ends know from the REQ. */
static void agree(struct vb_cm_conn *c, const struct vb_cm_req *req)
{
	uint8_t ack = req->primary.local_ack_timeout;

	c->service_id = req->service_id;
	c->retry_count = req->retry_count;
	c->rnr_retry_count = req->rnr_retry_count;
	c->path_mtu = req->path_mtu;
	c->local_ack_timeout = c->remote_ack_timeout = ack;
	c->service_type = req->service_type;
	c->extended_type = req->extended_type;
	c->inner->retries = req->max_cm_retries;
	/* 12.7.34: it is twice the packet life time and the sender's ACK delay, as a power of two; the kernel
	 * takes it for the former. */
	c->inner->life = ack ? vb_cm_time(ack) : 0;
	c->inner->wait = vb_cm_time(ack ? ack : VB_CM_ACK_TIMEOUT);
	c->inner->begun = true;
}

void vb_cm_agree_passive(struct vb_cm_conn *c, const struct vb_cm_msg *m, const struct vb_cm_av *from)
{
	const struct vb_cm_req *req = &m->req;

	agree(c, req);
	c->av = *from;
	c->av.flow_label = req->primary.flow_label;
	c->av.traffic_class = req->primary.traffic_class;
	c->av.sl = req->primary.sl;
	c->av.rate = req->primary.rate;
	c->av.pkey = req->pkey;
	c->remote_comm_id = req->local_comm_id;
	c->remote_ca_guid = req->ca_guid;
	c->remote_qpn = req->qpn;
	c->remote_psn = req->psn;
	c->remote_qkey = req->qkey;
	c->responder_resources = req->initiator_depth;
	c->initiator_depth = req->responder_resources;
	c->srq = req->srq;
	c->inner->tid = m->tid;
	c->inner->timeout = vb_cm_time(req->local_response_timeout) + c->inner->life;
}

/* The initiator of XRC answers no requests and receives nothing, so it has nothing to say of that. */
static void trim_xrc(struct vb_cm_req *req)
{
	req->responder_resources = 0;
	req->retry_count = 0;
	req->rnr_retry_count = 0;
	req->srq = 0;
}

int vb_cm_req(struct vb_cm_conn *c, const struct vb_cm_av *av, const struct vb_cm_req *req,
	      const struct vb_cm_private *private, uint64_t now)
{
	int err = check(c, VB_CM_CALL_REQ, VB_CM_REQ, private);
	struct vb_cm_inner *in = c->inner;
	struct vb_cm_msg m;

	if (err)
		return err;
	if (!vb_cm_service_is_known(req))
		return EINVAL;
	vb_cm_new_tid(c);
	c->av = *av;
	agree(c, req);
	c->active = true;
	c->local_qpn = req->qpn;
	c->local_psn = req->psn;
	c->local_qkey = req->qkey;
	c->responder_resources = req->responder_resources;
	c->initiator_depth = req->initiator_depth;
	vb_cm_conn_num(c)->local_qpn = req->qpn;
	in->timeout = vb_cm_time(req->remote_response_timeout) + in->life;
	in->late = (in->retries + 1ull) * (vb_cm_time(req->local_response_timeout) + in->life);
	in->left = in->retries;
	m = vb_cm_compose(c, VB_CM_REQ, private);
	m.modifier = c->ece_options;
	m.req = *req;
	m.req.local_comm_id = c->local_comm_id;
	m.req.ca_guid = c->cm->ca_guid;
	if (req->service_type == VB_CM_SERVICE_XRC)
		trim_xrc(&m.req);
	go(c, VB_CM_CALL_REQ, now);
	vb_cm_say(c, &m);
	return 0;
}

int vb_cm_rep(struct vb_cm_conn *c, const struct vb_cm_rep *rep, const struct vb_cm_private *private,
	      uint64_t now)
{
	int err = check(c, VB_CM_CALL_REP, VB_CM_REP, private);
	struct vb_cm_msg m;

	if (err)
		return err;
	c->local_qpn = rep->qpn;
	c->local_psn = rep->psn;
	c->local_qkey = rep->qkey;
	c->responder_resources = rep->responder_resources;
	c->initiator_depth = rep->initiator_depth;
	c->target_ack_delay = rep->target_ack_delay;
	vb_cm_conn_num(c)->local_qpn = rep->qpn;
	m = vb_cm_compose(c, VB_CM_REP, private);
	m.modifier = c->ece_options;
	m.rep = *rep;
	m.rep.local_comm_id = c->local_comm_id;
	m.rep.remote_comm_id = c->remote_comm_id;
	m.rep.ca_guid = c->cm->ca_guid;
	if (c->service_type ==
	    VB_CM_SERVICE_XRC) { /* the target receives by its SRQs alone, and asks for nothing */
		m.rep.eecn = rep->qpn;
		m.rep.qpn = 0;
		m.rep.srq = 1;
		m.rep.initiator_depth = 0;
		m.rep.flow_control = 0;
	}
	c->inner->left = c->inner->retries;
	go(c, VB_CM_CALL_REP, now);
	vb_cm_say(c, &m);
	return 0;
}

int vb_cm_rtu(struct vb_cm_conn *c, const struct vb_cm_private *private, uint64_t now)
{
	int err = check(c, VB_CM_CALL_RTU, VB_CM_RTU, private);
	struct vb_cm_msg m;

	if (err)
		return err;
	m = vb_cm_compose(c, VB_CM_RTU, private);
	go(c, VB_CM_CALL_RTU, now);
	vb_cm_say(c, &m);
	return 0;
}

int vb_cm_mra(struct vb_cm_conn *c, uint8_t service_timeout, uint64_t now)
{
	int err = check(c, VB_CM_CALL_MRA, VB_CM_MRA, NULL);
	struct vb_cm_msg m;

	if (err)
		return err;
	m = vb_cm_compose(c, VB_CM_MRA, NULL);
	m.mra.about = vb_cm_rows[c->state].about;
	m.mra.service_timeout = service_timeout & 31;
	go(c, VB_CM_CALL_MRA, now);
	if (service_timeout & VB_CM_MRA_LAZY)
		vb_cm_keep(c, &m);
	else
		vb_cm_say(c, &m);
	return 0;
}

int vb_cm_rej(struct vb_cm_conn *c, uint16_t reason, const uint8_t *info, size_t info_len,
	      const struct vb_cm_private *private, uint64_t now)
{
	int err = check(c, VB_CM_CALL_REJ, VB_CM_REJ, private);

	if (err || info_len > VB_CM_REJ_INFO)
		return EINVAL;
	vb_cm_say_rej(c, reason, info, info_len, private);
	go(c, VB_CM_CALL_REJ, now);
	return 0;
}

int vb_cm_established(struct vb_cm_conn *c, uint64_t now)
{
	vb_lock_assert_held(c->cm->lock);
	if (c->state == VB_CM_ESTABLISHED)
		return EISCONN;
	if (check(c, VB_CM_CALL_ESTABLISHED, 0, NULL))
		return EINVAL;
	go(c, VB_CM_CALL_ESTABLISHED, now);
	return 0;
}

int vb_cm_dreq(struct vb_cm_conn *c, const struct vb_cm_private *private, uint64_t now)
{
	int err = check(c, VB_CM_CALL_DREQ, VB_CM_DREQ, private);

	if (err)
		return err;
	c->inner->left = c->inner->retries;
	go(c, VB_CM_CALL_DREQ, now);
	vb_cm_say_dreq(c, private);
	return 0;
}

int vb_cm_drep(struct vb_cm_conn *c, const struct vb_cm_private *private, uint64_t now)
{
	int err = check(c, VB_CM_CALL_DREP, VB_CM_DREP, private);
	struct vb_cm_msg m;

	if (err)
		return err;
	m = vb_cm_compose(c, VB_CM_DREP, private);
	go(c, VB_CM_CALL_DREP, now);
	vb_cm_say(c, &m);
	return 0;
}

int vb_cm_sidr_req(struct vb_cm_conn *c, const struct vb_cm_av *av, const struct vb_cm_sidr_req *req,
		   uint8_t response_timeout, uint8_t retries, const struct vb_cm_private *private,
		   uint64_t now)
{
	int err = check(c, VB_CM_CALL_SIDR_REQ, VB_CM_SIDR_REQ, private);
	struct vb_cm_inner *in = c->inner;
	struct vb_cm_msg m;

	if (err)
		return err;
	in->begun = true;
	vb_cm_new_tid(c);
	in->timeout = vb_cm_time(response_timeout);
	in->retries = in->left = retries;
	c->active = true;
	c->av = *av;
	c->service_id = req->service_id;
	m = vb_cm_compose(c, VB_CM_SIDR_REQ, private);
	m.sidr_req = *req;
	m.sidr_req.request_id = c->local_comm_id;
	go(c, VB_CM_CALL_SIDR_REQ, now);
	vb_cm_say(c, &m);
	return 0;
}

int vb_cm_sidr_rep(struct vb_cm_conn *c, const struct vb_cm_sidr_rep *rep,
		   const struct vb_cm_private *private, uint64_t now)
{
	int err = check(c, VB_CM_CALL_SIDR_REP, VB_CM_SIDR_REP, private);
	struct vb_cm_msg m;

	if (err)
		return err;
	m = vb_cm_compose(c, VB_CM_SIDR_REP, private);
	m.modifier = c->ece_options;
	m.sidr_rep = *rep;
	m.sidr_rep.request_id = c->remote_comm_id;
	m.sidr_rep.service_id = c->service_id;
	go(c, VB_CM_CALL_SIDR_REP, now);
	vb_cm_say(c, &m);
	return 0;
}
